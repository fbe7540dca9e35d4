"""No switch voids the guarantee: no argument, field, constant or environment variable turns noise, clipping or charging
off. Like the other house rules, this one is a function over syntax trees that is also run on snippets that break it.

``Budget(inf)``, a fixed seed and black boxes are no switches: each marks its result for good.
"""

import ast
from collections.abc import Iterator

import pytest
from support.syntax import MODULES, dotted_uses, imports, within

VOIDING = {
    "debug",
    "unsafe",
    "insecure",
    "disable",
    "disabled",
    "bypass",
    "skip",
    "noiseless",
    "unclipped",
    "uncharged",
}
GUARDED = {
    *("noise", "noisy", "sigma", "clip", "clips", "clipping", "clipped", "sensitivity"),
    *("private", "privacy", "dp", "charge", "charged", "charging", "accounting", "ledger", "budget"),
}
NEEDED = {"noise", "sigma", "clip", "clips", "clipping"}  # left out, these must not mean "none"

# What looks like a switch and is none, with the reason.
EXCUSED = {
    ("dpbilevel.encoding.encoder", "skip_check_array"),  # scikit-learn's: the encoder checks arrays itself
    ("dpbilevel.estimators.base", "skip_check_array"),  # the same
    ("dpbilevel.plot.trajectories", "clip_on"),  # matplotlib's: a line may cross the frame of a picture
    ("dpbilevel.inner.loc_gd", "upper_clip_norm"),  # None: as the clip of the lower level
    ("dpbilevel.methods.dp_bilevel.dp_bilevel", "upper_clip_norm"),  # None: as the clip of the lower level
    ("dpbilevel.methods.dp_bilevel.sensitivity", "upper_clip"),  # None: as the clip of the lower level
    ("dpbilevel.privacy.accounting", "clip"),  # what the report shows of a black box, which has no clip of ours
    ("dpbilevel.privacy.accountant", "clip"),  # of a cache key, which the ratio of noise to sensitivity identifies
    ("dpbilevel.paper.planner", "noise_ratio"),  # of a bound, which is theory: None for the theorem's own
    ("dpbilevel.evaluation.means", "clipped"),  # the caller passes budget.is_private
    ("dpbilevel.evaluation.r_squared", "clipped"),  # the same
    ("dpbilevel.evaluation.scoring", "private"),  # the same
    ("dpbilevel.baselines.runs", "private"),  # the same
    ("dpbilevel.methods.joint", "clipped"),  # the same
    ("dpbilevel.methods.layers", "debug_info"),  # JAX's: names of a program's inputs
}
# Where files and caches are may come from the environment, and which process of a job this is; what a run does may not.
MAY_READ_THE_ENVIRONMENT = {"dpbilevel.cli.compilation_cache", "dpbilevel.cli.run_folder", "dpbilevel.datasets.sources"}
MAY_READ_THE_ENVIRONMENT.add("dpbilevel.cli.launch")
ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb"}

Named = tuple[str, ast.expr | None, ast.expr | None, int]  # name, value or default, annotation, line


def named_values(tree: ast.AST) -> Iterator[Named]:
    """Everything that has a name and can be set: parameters, fields, constants, arguments of calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            given = node.args
            positional = [*given.posonlyargs, *given.args]
            defaults = [None] * (len(positional) - len(given.defaults)) + given.defaults
            for argument, default in [
                *zip(positional, defaults, strict=True),
                *zip(given.kwonlyargs, given.kw_defaults, strict=True),
            ]:
                yield argument.arg, default, argument.annotation, argument.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name | ast.Attribute):
            yield _name(node.target), node.value, node.annotation, node.lineno
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name | ast.Attribute):
                    yield _name(target), node.value, None, node.lineno
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                yield keyword.arg or "", keyword.value, None, node.lineno


def _name(target: ast.Name | ast.Attribute) -> str:
    return target.id if isinstance(target, ast.Name) else target.attr


def voids_the_guarantee(tree: ast.AST, module: str) -> list[str]:
    found = []
    for name, value, annotation, line in named_values(tree):
        words = set(name.lower().strip("_").split("_"))
        constant = isinstance(value, ast.Constant)
        boolean = (constant and isinstance(value.value, bool)) or _says_bool(annotation)
        nothing = constant and value.value is None
        voiding = words & VOIDING or (words & GUARDED and boolean) or (words & NEEDED and nothing)
        if voiding and (module, name) not in EXCUSED:
            found.append(f"{module}:{line}: {name} looks like a switch that voids the guarantee")
    return found


def _says_bool(annotation: ast.expr | None) -> bool:
    """Of a value; a function that returns a bool is no switch."""
    if annotation is None or ast.unparse(annotation).startswith("Callable["):
        return False
    return any(isinstance(node, ast.Name) and node.id == "bool" for node in ast.walk(annotation))


def reads_the_environment(tree: ast.AST, module: str) -> list[str]:
    if module in MAY_READ_THE_ENVIRONMENT:
        return []
    used = [*(name for name, _ in imports(tree, module)), *dotted_uses(tree, module)]
    return sorted({f"{module} reads {name}" for name in used if within(name, ENVIRONMENT)})


RULES = (voids_the_guarantee, reads_the_environment)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_switch_exists(rule):
    found = [c for module, path in MODULES.items() for c in rule(ast.parse(path.read_text("utf-8")), module)]
    assert not found, "\n".join(found)


def test_no_excuse_is_idle():
    """An excuse that excuses nothing any more would excuse the next switch of that name."""
    needed = set()
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text("utf-8"))
        names = {name for name, *_ in named_values(tree)}
        needed |= {(module, name) for name in names if (module, name) in EXCUSED}
    assert needed == EXCUSED


BROKEN = [
    (voids_the_guarantee, "def solve(records, *, noise=False): ..."),
    (voids_the_guarantee, "def solve(records, add_noise: bool = True): ..."),
    (voids_the_guarantee, "def solve(records, add_noise: bool | None = None): ..."),
    (voids_the_guarantee, "def solve(records, private=True): ..."),
    (voids_the_guarantee, "def solve(records, *, clip=None): ..."),
    (voids_the_guarantee, "def solve(records, clip_norm=False): ..."),
    (voids_the_guarantee, "def answer(point, debug=0): ..."),
    (voids_the_guarantee, "def answer(point, unsafe_look=None): ..."),
    (voids_the_guarantee, "class Release:\n    noise: float | None = None"),
    (voids_the_guarantee, "class Release:\n    is_clipped: bool"),
    (voids_the_guarantee, "class Release:\n    def __init__(self):\n        self.noise = None"),
    (voids_the_guarantee, "DEBUG = 1"),
    (voids_the_guarantee, "_ADD_NOISE = True"),
    (voids_the_guarantee, "_SKIP_CHARGE = object()"),
    (voids_the_guarantee, "release.answer(records, point, noise=False)"),
    (voids_the_guarantee, "run(lambda x, dp_enabled=True: x)"),
    (voids_the_guarantee, "answer = replace(release, clip=None)"),
    (reads_the_environment, "import os\nif os.environ.get('DPBILEVEL_FAST'):\n    sigma = 0.0"),
    (reads_the_environment, "from os import environ"),
    (reads_the_environment, "import os as system\nquick = system.getenv('QUICK')"),
]


@pytest.mark.parametrize(("rule", "source"), BROKEN)
@pytest.mark.parametrize("module", ["dpbilevel.privacy.release", "dpbilevel.records"])
def test_a_switch_is_noticed(rule, source, module):
    assert rule(ast.parse(source), module)


KEPT = [
    (voids_the_guarantee, "def solve(records, *, noise='float', seed=None, ledger=None, progress=True): ..."),
    (voids_the_guarantee, "class Release:\n    noise: float\n    clip: float = 1.0"),
    (voids_the_guarantee, "def skipped(rows, noisy_answer): ..."),
    (voids_the_guarantee, "_HEADROOM = 1e-9"),
    (voids_the_guarantee, "def running(folder, charged: Callable[[], bool]): ..."),
    (reads_the_environment, "def f(os):\n    return os.environ"),
]


@pytest.mark.parametrize(("rule", "source"), KEPT)
def test_what_is_no_switch_is_let_be(rule, source):
    assert not rule(ast.parse(source), "dpbilevel.privacy.release")
