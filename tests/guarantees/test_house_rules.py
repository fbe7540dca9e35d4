"""The house rules, as tests: each rule is a function over syntax trees that is also run on a snippet that breaks it."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support.syntax import MODULES, SOURCE, dotted_uses, imports, within

import dpbilevel

# Imports point back along this line: problem -> plan -> solve -> solution -> report (docs: design).
ORDER = (
    "errors",
    "foundation.extras",
    "foundation.about",
    "foundation.arguments",
    "foundation.tables",
    "foundation.files",
    "foundation.reading_ahead",
    "foundation.parquet",
    "foundation.precision",
    "foundation.compilation",
    "foundation.structure",
    "foundation.tracing",
    "foundation.processes",
    "foundation.joining",
    "constraints",
    "constants",
    "theory",
    "problem",
    "linear_loss",
    "privacy",
    "paper",
    "execution.program",
    "execution.progress",
    "execution.parts",
    "execution.segments",
    "execution.means",
    "execution.notices",
    "records",
    "encoding",
    "datasets",
    "methods.layers",
    "methods.derivatives",
    "methods.context",
    "methods.contributions",
    "inner",
    "methods",
    "planning",
    "solution.trees",
    "solution.solution",
    "solution.hyperparameters",
    "solution.shapes",
    "solution.remarks",
    "solution.diagnostics",
    "solution.outcome",
    "checkpoint.file",
    "checkpoint.fingerprint",
    "checkpoint.agreement",
    "checkpoint.checkpoint",
    "execution.running",
    "solving",
    "evaluation",
    "applications",
    "baselines",
    "audit",
    "plot",
    "report",
    "estimators",
    "cli",
    "__main__",
)
# The one exception: what objects show of themselves they import late.
LATE = {
    ("dpbilevel.solution.solution", "dpbilevel.report.writing"),
    ("dpbilevel.solution.solution", "dpbilevel.report.card"),
}
LATE |= {
    (f"dpbilevel.{name}", "dpbilevel.report.privacy_cards") for name in ("planning", "privacy.spend", "privacy.ledger")
}

MAY_DRAW = {
    "dpbilevel.privacy.noise",  # its docstring: the only module that draws float64 noise and batches
    "dpbilevel.privacy.discrete",  # its docstring: exact noise, by OpenDP
    "dpbilevel.estimators.split",  # its docstring: a public permutation from a public seed
    "dpbilevel.theory.falsify",  # synthetic records, at which declared constants are tried; never near private ones
}
MAY_OPEN_THE_VAULT = {"dpbilevel.records"}
# The way to the bytes of records is their seal, and that to the noise secret is a checkpoint.
MAY_TAKE_KEYS = {"dpbilevel.privacy.noise", "dpbilevel.records", "dpbilevel.checkpoint.checkpoint"}
# Every run goes through one loop, which charges before it executes.
MAY_CHARGE = {
    "dpbilevel.execution.running",
    "dpbilevel.checkpoint.checkpoint",  # for the loop: a run that resumes is charged once
    "dpbilevel.cli.run_folder",  # its ledger, which notes in the folder that the run is charged
}
MAY_EXECUTE = {"dpbilevel.execution.running", "dpbilevel.privacy.stores"}  # statements of SQL, in stores
# A hash of data without a secret key lets anybody test a guess of them.
MAY_HASH = {
    "dpbilevel.privacy.noise",  # keys of a secret; a seed, which is public
    "dpbilevel.privacy.stores.chain",  # lines of a ledger, which are public
    "dpbilevel.cli.compilation_cache",  # the kind of the processor
    "dpbilevel.estimators.split",  # ids of units, which become an order; no hash leaves the module
}
MAY_HASH_WITH_A_KEY = {
    "dpbilevel.records",
    *(f"dpbilevel.checkpoint.{name}" for name in ("checkpoint", "file", "fingerprint")),
}
MAY_PRINT = ("dpbilevel.cli", "dpbilevel.execution.progress", "dpbilevel.report")
RANDOM = {"random", "secrets", "uuid", "numpy.random", "jax.random", "os.urandom", "os.getrandom", "scipy.stats.qmc"}
RANDOM.add("opendp")
HEAVY = {
    *("sklearn", "matplotlib", "rich", "typer", "opendp", "jax_privacy", "pandas"),
    "dp_accounting",  # a second of import time
    "sqlalchemy",
}
# Their classes are scikit-learn's own kind, made by inheritance: who uses them has it. Nothing else imports them early.
MAY_IMPORT_SKLEARN = {"dpbilevel.encoding.encoder", "dpbilevel.estimators"}
MAY_IMPORT_TYPER = {"dpbilevel.cli.app", "dpbilevel.cli.registration"}
# What they do is to talk to databases; `Ledger.open` imports them late.
MAY_IMPORT_SQLALCHEMY = {f"dpbilevel.privacy.stores.{name}" for name in ("database", "postgresql", "sqlite", "tables")}
# What has no public interface may change with any version of JAX.
MAY_USE_INTERNALS = {"dpbilevel.foundation.processes", "dpbilevel.foundation.joining"}
VAGUE = {"utils", "util", "helpers", "common", "misc", "tools"}
LONGEST = 400


# -------------------------------------------------------------------------------------------------------- the rules


def draws_randomness(tree: ast.AST, module: str) -> list[str]:
    if module in MAY_DRAW:
        return []
    named = [*(name for name, _ in imports(tree, module)), *dotted_uses(tree, module)]
    return sorted({f"{module} uses {name}" for name in named if within(name, RANDOM)})


def opens_the_vault(tree: ast.AST, module: str) -> list[str]:
    if module in MAY_OPEN_THE_VAULT:
        return []
    found = []
    for node in ast.walk(tree):
        words = [getattr(node, field, None) for field in ("id", "attr", "name", "arg")]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.append("_VAULT" if "_VAULT" in node.value else None)
        if "_VAULT" in words:
            found.append(f"{module}:{getattr(node, 'lineno', '?')} mentions _VAULT")
    return found


def takes_keys(tree: ast.AST, module: str) -> list[str]:
    if module in MAY_TAKE_KEYS:
        return []
    words = {"reveal_secret", "seal"}
    named = {getattr(node, field, None) for node in ast.walk(tree) for field in ("id", "attr", "name")}
    quoted = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    restores = [name for name in dotted_uses(tree, module) if name.endswith("KeySchedule.restore")]
    return [f"{module} mentions {word}" for word in sorted((named | quoted) & words)] + restores


def runs_past_the_loop(tree: ast.AST, module: str) -> list[str]:
    allowed = {"charge": MAY_CHARGE, "execute": MAY_EXECUTE}
    named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return [f"{module} mentions {word}" for word in sorted(named & set(allowed)) if not within(module, allowed[word])]


def hashes(tree: ast.AST, module: str) -> list[str]:
    forbidden = {"hashlib", "zlib.crc32", "zlib.adler32", "binascii.crc32", "hmac"}
    forbidden -= {"hashlib"} if module in MAY_HASH else set()
    forbidden -= {"hmac"} if module in MAY_HASH_WITH_A_KEY else set()
    named = [*(name for name, _ in imports(tree, module)), *dotted_uses(tree, module)]
    return sorted({f"{module} uses {name}" for name in named if within(name, forbidden)})


def uses_internals(tree: ast.AST, module: str) -> list[str]:
    if module in MAY_USE_INTERNALS:
        return []
    named = [*(name for name, _ in imports(tree, module)), *dotted_uses(tree, module)]
    return sorted({f"{module} uses {name}" for name in named if within(name, {"jax._src"})})


def prints(tree: ast.AST, module: str) -> list[str]:
    if within(module, set(MAY_PRINT)):
        return []
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    bare = [
        f"{module}:{f.lineno} prints" for f in called if isinstance(f, ast.Name) and f.id in ("print", "breakpoint")
    ]
    streams = [
        f"{module} uses {name}" for name in dotted_uses(tree, module) if within(name, {"sys.stdout", "jax.debug"})
    ]
    return bare + streams


def place(module: str) -> int | None:
    """Where a module stands in ORDER: by its own name, or by that of its package."""
    _, *parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((ORDER.index(name) for name in names if name in ORDER), None)


def imports_forward(tree: ast.AST, module: str) -> list[str]:
    if module == "dpbilevel":
        return []  # the public interface, lazy: it names everything and imports nothing
    late = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = []
    for name, node in imports(tree, module):
        if not within(name, {"dpbilevel"}):
            continue
        if isinstance(node, ast.ImportFrom) and node.level:
            found.append(f"{module}: relative import of {name}; imports are absolute")
        home = next((m for m in (name, name.rpartition(".")[0]) if m in MODULES and m != "dpbilevel"), None)
        if home is None:
            found.append(f"{module} imports {name}, which is no module of the library")
        elif (module, home) in LATE and id(node) in late:
            continue
        elif place(home) is None or place(module) is None:
            found.append(f"{module} imports {home}: one of them has no place in ORDER")
        elif place(home) > place(module):
            found.append(f"{module} imports {home}, which comes after it")
    return found


def heavy_at_module_level(tree: ast.Module, module: str) -> list[str]:
    def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from statements(node.orelse)
                continue
            yield node
            for field in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)

    heavy = HEAVY - ({"sklearn"} if within(module, MAY_IMPORT_SKLEARN) else set())
    heavy -= {"typer"} if within(module, MAY_IMPORT_TYPER) else set()
    heavy -= {"sqlalchemy"} if module in MAY_IMPORT_SQLALCHEMY else set()
    found = []
    for node in statements(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [f"{module} imports {name}" for name, _ in imports(node, module) if within(name, heavy)]
    return found


def lacks_docstring(tree: ast.Module, module: str) -> list[str]:
    return [] if (ast.get_docstring(tree) or "").strip() else [f"{module} has no docstring"]


def too_long(tree: ast.Module, module: str) -> list[str]:
    last = max((node.end_lineno or 0 for node in tree.body), default=0)
    return [f"{module} has {last} lines"] if last > LONGEST else []


def vaguely_named(tree: ast.Module, module: str) -> list[str]:
    return [f"{module} says nothing of what is in it"] if VAGUE & set(module.split(".")) else []


Rule = Callable[[ast.Module, str], list[str]]
RULES: list[Rule] = [
    draws_randomness,
    opens_the_vault,
    takes_keys,
    runs_past_the_loop,
    hashes,
    uses_internals,
    prints,
    imports_forward,
    heavy_at_module_level,
    lacks_docstring,
    too_long,
    vaguely_named,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_its_rules(rule):
    broken = [
        complaint for module, path in MODULES.items() for complaint in rule(ast.parse(path.read_text("utf-8")), module)
    ]
    assert not broken, "\n".join(broken)


def test_the_walk_sees_the_whole_house():
    assert {
        "dpbilevel",
        "dpbilevel.records",
        "dpbilevel.privacy.noise",
        "dpbilevel.methods.dp_bilevel.dp_bilevel",
    } <= set(MODULES)
    assert all(path.read_text("utf-8").count("\n") <= LONGEST for path in MODULES.values())


BROKEN = [
    (draws_randomness, "dpbilevel.methods.x", "import random"),
    (draws_randomness, "dpbilevel.methods.x", "import secrets as s"),
    (draws_randomness, "dpbilevel.methods.x", "from os import urandom"),
    (draws_randomness, "dpbilevel.methods.x", "import os\nkey = os.urandom(8)"),
    (draws_randomness, "dpbilevel.methods.x", "from jax import random"),
    (draws_randomness, "dpbilevel.methods.x", "import jax.random"),
    (draws_randomness, "dpbilevel.methods.x", "import jax as j\ndef f(k):\n    return j.random.normal(k)"),
    (draws_randomness, "dpbilevel.methods.x", "import numpy as np\nnp.random.default_rng()"),
    (draws_randomness, "dpbilevel.methods.x", "def f():\n    from numpy.random import default_rng"),
    (draws_randomness, "dpbilevel.privacy.release", "import jax\ndraw = jax.random.normal"),
    (draws_randomness, "dpbilevel.privacy.release", "def f():\n    import opendp.prelude as dp"),
    (opens_the_vault, "dpbilevel.solving", "from dpbilevel.records import _VAULT"),
    (opens_the_vault, "dpbilevel.solving", "import dpbilevel.records as r\nx = r._VAULT"),
    (opens_the_vault, "dpbilevel.solving", "from dpbilevel import records\nx = getattr(records, '_VAULT')"),
    (opens_the_vault, "dpbilevel.solving", "_VAULT = {}"),
    (takes_keys, "dpbilevel.solving", "def f(records, key):\n    return records.seal(key)"),
    (takes_keys, "dpbilevel.solving", "def f(schedule):\n    return getattr(schedule, 'reveal_secret')()"),
    (takes_keys, "dpbilevel.solving", "from dpbilevel.privacy.noise import KeySchedule as K\ns = K.restore(b'')"),
    (runs_past_the_loop, "dpbilevel.solving", "def f(ledger, releases):\n    return ledger.charge(releases)"),
    (runs_past_the_loop, "dpbilevel.baselines.random_search", "run = records.execute"),
    (runs_past_the_loop, "dpbilevel.evaluation.evaluating", "run = getattr(records, 'execute')"),
    (hashes, "dpbilevel.records", "import hashlib"),
    (hashes, "dpbilevel.report.html", "from hashlib import sha256"),
    (hashes, "dpbilevel.report.html", "import hmac"),
    (hashes, "dpbilevel.cli.app", "import zlib as z\nx = z.crc32(b'')"),
    (uses_internals, "dpbilevel.solving", "from jax._src import distributed"),
    (uses_internals, "dpbilevel.solving", "import jax\nstate = jax._src.distributed.global_state"),
    (prints, "dpbilevel.solving", "def f(x):\n    print(x)"),
    (prints, "dpbilevel.solving", "import sys\nsys.stdout.write('x')"),
    (prints, "dpbilevel.solving", "import jax\njax.debug.print('{}', 1)"),
    (imports_forward, "dpbilevel.problem", "from dpbilevel.planning import plan"),
    (imports_forward, "dpbilevel.problem", "def f():\n    from dpbilevel.solving import solve"),
    (imports_forward, "dpbilevel.privacy.release", "import dpbilevel.records"),
    (imports_forward, "dpbilevel.planning", "from dpbilevel import solving"),
    (imports_forward, "dpbilevel.planning", "import dpbilevel as dpb"),
    (imports_forward, "dpbilevel.planning", "from dpbilevel import plan"),
    (imports_forward, "dpbilevel.records", "from .errors import InvalidRecords"),
    (imports_forward, "dpbilevel.solution.solution", "from dpbilevel.report.writing import write_report"),
    (imports_forward, "dpbilevel.solution.trees", "from dpbilevel.solution.outcome import outcome"),
    (imports_forward, "dpbilevel.foundation.newcomer", "from dpbilevel.errors import InvalidRecords"),
    (imports_forward, "dpbilevel.newcomer", "from dpbilevel.errors import InvalidRecords"),
    (heavy_at_module_level, "dpbilevel.solving", "import rich.progress"),
    (heavy_at_module_level, "dpbilevel.solving", "from sklearn.base import BaseEstimator"),
    (heavy_at_module_level, "dpbilevel.solving", "try:\n    import matplotlib\nexcept ImportError:\n    pass"),
    (heavy_at_module_level, "dpbilevel.solving", "try:\n    import numpy\nexcept ImportError:\n    import pandas"),
    (heavy_at_module_level, "dpbilevel.solving", "if True:\n    import dp_accounting"),
    (heavy_at_module_level, "dpbilevel.solving", "class A:\n    import typer"),
    (heavy_at_module_level, "dpbilevel.encoding.encoder", "import pandas"),
    (heavy_at_module_level, "dpbilevel.estimators.classifier", "from sklearn.base import clone\nimport matplotlib"),
    (heavy_at_module_level, "dpbilevel.datasets.sources", "import sklearn.datasets"),
    (heavy_at_module_level, "dpbilevel.privacy.ledger", "from sqlalchemy import select"),
    (heavy_at_module_level, "dpbilevel.privacy.discrete", "import opendp.prelude as dp"),
    (heavy_at_module_level, "dpbilevel.privacy.stores.entry", "import sqlalchemy"),
    (lacks_docstring, "dpbilevel.solving", "x = 1"),
    (lacks_docstring, "dpbilevel.solving", '"""  """'),
    (too_long, "dpbilevel.solving", "x = 1\n" * 401),
    (vaguely_named, "dpbilevel.privacy.utils", ""),
]


@pytest.mark.parametrize(("rule", "module", "source"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_each_rule_flags_a_snippet_that_breaks_it(rule, module, source):
    assert rule(ast.parse(source), module)


KEPT = [
    (draws_randomness, "dpbilevel.privacy.noise", "import jax, secrets\ndraw = jax.random.normal"),
    (draws_randomness, "dpbilevel.solving", "def f(random):\n    return random.choice, state.random"),
    (draws_randomness, "dpbilevel.privacy.discrete", "def f():\n    import opendp.prelude as dp"),
    (opens_the_vault, "dpbilevel.records", "_VAULT = {}"),
    (takes_keys, "dpbilevel.checkpoint.checkpoint", "def f(records, key):\n    return records.seal(key)"),
    (
        takes_keys,
        "dpbilevel.solving",
        "from dpbilevel.foundation.precision import isolated_jax_config\nrestored = kept.restored()",
    ),
    (runs_past_the_loop, "dpbilevel.execution.running", "ledger.charge(records.execute)"),
    (runs_past_the_loop, "dpbilevel.privacy.stores.sqlite", "connection.execute('PRAGMA synchronous = FULL')"),
    (runs_past_the_loop, "dpbilevel.solving", "from dpbilevel.execution.running import charge\nreceipt = charge()"),
    (hashes, "dpbilevel.records", "import hmac"),
    (hashes, "dpbilevel.privacy.stores.chain", "import hashlib"),
    (uses_internals, "dpbilevel.foundation.processes", "from jax._src import distributed"),
    (uses_internals, "dpbilevel.solving", "from jax.extend import core"),
    (prints, "dpbilevel.cli", "print('hello')"),
    (prints, "dpbilevel.report.markdown", "print('hello')"),
    (imports_forward, "dpbilevel.planning", "from dpbilevel.records import RecordShapes\nfrom dpbilevel import errors"),
    (
        imports_forward,
        "dpbilevel.solution.solution",
        "def report():\n    from dpbilevel.report.writing import write_report",
    ),
    (imports_forward, "dpbilevel", "from dpbilevel.solving import solve"),
    (heavy_at_module_level, "dpbilevel.solving", "def bar():\n    import rich"),
    (
        heavy_at_module_level,
        "dpbilevel.solving",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import sklearn",
    ),
    (heavy_at_module_level, "dpbilevel.encoding.encoder", "from sklearn.base import BaseEstimator"),
    (heavy_at_module_level, "dpbilevel.estimators.classifier", "import sklearn.base"),
    (heavy_at_module_level, "dpbilevel.privacy.stores.sqlite", "from sqlalchemy import Engine"),
    (too_long, "dpbilevel.solving", "x = 1\n" * 400),
    (vaguely_named, "dpbilevel.solution.trees", ""),
]


@pytest.mark.parametrize(("rule", "module", "source"), KEPT, ids=lambda value: getattr(value, "__name__", None))
def test_no_rule_flags_a_snippet_that_keeps_it(rule, module, source):
    assert not rule(ast.parse(source), module)


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """A cycle of a graph, or nothing."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        found = next(filter(None, (walk(child, [*path, node]) for child in sorted(graph.get(node, ())))), [])
        done.add(node)
        return found

    return next(filter(None, (walk(node, []) for node in sorted(graph))), [])


def test_no_two_modules_import_each_other():
    """The order above is one of packages; inside a package the graph of modules must have no cycle either."""
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if module != "dpbilevel":
            names = [name for name, _ in imports(ast.parse(path.read_text("utf-8")), module)]
            homes = {m for name in names for m in (name, name.rpartition(".")[0]) if m in MODULES and m != "dpbilevel"}
            graph[module] = {home for home in homes if (module, home) not in LATE}
    assert cycle(graph) == []
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_the_map_of_contributing_shows_every_room_and_no_other():
    page = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    section = page.partition("## The map")[2].partition("\n## ")[0]
    heads = re.findall(r"^- \*\*(.*?)\*\*:", section, re.MULTILINE)
    shown = [name for head in heads for name in re.findall(r"`([\w/.]+)`", head)]
    packages = {f"{path.parent.relative_to(SOURCE)}/" for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE}
    modules = {path.name for path in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert sorted(shown) == sorted(packages | modules)


# ------------------------------------------------------------------------------------------------ the public interface


def has_own_docstring(name: str, value: object) -> bool:
    """Dataclasses without a docstring are given their signature as one: that does not count."""
    text = (getattr(value, "__doc__", None) or "").strip()
    return bool(text) and not text.startswith(f"{name}(")


@pytest.mark.parametrize("name", dpbilevel.__all__)
def test_every_public_name_has_a_docstring(name):
    assert has_own_docstring(name, getattr(dpbilevel, name))


def test_the_docstring_check_sees_through_dataclasses():
    import dataclasses

    bare = dataclasses.make_dataclass("Bare", ["a"])
    assert bare.__doc__
    assert not has_own_docstring("Bare", bare)


def test_public_names_are_listed_sorted_and_live_where_they_are_said_to():
    assert list(dpbilevel.__all__) == sorted(set(dpbilevel.__all__))
    assert dir(dpbilevel) == dpbilevel.__all__
    with pytest.raises(AttributeError, match="no attribute 'Tracking_'"):
        dpbilevel.Tracking_  # noqa: B018


def test_type_checkers_and_the_lazy_import_know_the_same_names():
    tree = ast.parse(MODULES["dpbilevel"].read_text("utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    declared = {name.removeprefix("dpbilevel.") for name, _ in imports(block, "dpbilevel")}
    assert declared == {f"{home}.{name}" for name, home in dpbilevel._HOMES.items()} | set(dpbilevel._PACKAGES)


def run(script: str) -> str:
    path = os.pathsep.join(filter(None, [str(SOURCE.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_is_quick():
    heavy = ("jax", "jaxlib", "numpy", "scipy", "optax", "dp_accounting", "rich")
    loaded = run(f"import sys, dpbilevel; print([name for name in {heavy!r} if name in sys.modules])")
    assert loaded.strip() == "[]"


WITHOUT_EXTRAS = """
import sys

class Blocker:
    names = {"rich", "sklearn", "matplotlib", "typer", "pandas", "jax_privacy", "opendp", "sqlalchemy"}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ImportError(f"{name} is not installed on this machine")

sys.meta_path.insert(0, Blocker())

import numpy as np
import dpbilevel as dpb

try:
    import rich
except ImportError:
    pass
else:
    raise SystemExit("the blocker does not block")

problem = dpb.BilevelProblem(
    upper_term=lambda x, y: 0.5 * (x + y - 1) ** 2, lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2
)
method = dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0, steps=2, rounds=1), step_size=0.3, steps=2)
records, budget = dpb.Records(lower=np.linspace(-1, 1, 50)), dpb.Budget(2.0, 1e-4)
planned = dpb.plan(problem, records.sizes, budget, method=method, start=(0.0, 0.0))
solution = dpb.solve(problem, records, budget, method=method, start=(0.0, 0.0))
solution.summary(), planned.explain(), repr(solution)
print(round(solution.privacy.epsilon(), 6), sorted(Blocker.names & set(sys.modules)))
"""


def test_the_package_plans_and_solves_on_a_machine_with_jax_and_the_accountant_alone():
    assert run(WITHOUT_EXTRAS).strip() == "2.0 []"
