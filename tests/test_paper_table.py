"""The page that goes through the paper item by item: nothing on it dangles, nothing of the paper is left out.

And the evidence for those of its corrections that no other test carries.
"""

import ast
import functools
import math
import re
from pathlib import Path

import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.constants import Constants
from dpbilevel.paper import bounds
from dpbilevel.paper.planner import plan
from dpbilevel.paper.split import PaperSplit
from dpbilevel.privacy.accounting import gaussian_epsilon
from dpbilevel.privacy.profiles import with_replacement

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "paper.md"

# ------------------------------------------------------------------------------------------------ what a page points at

LINK = re.compile(r"\[([^\[\]]+)\]\(([^()\s]+)\)")
TEST = re.compile(r"\b(tests/\w+\.py)(?:::(\w+))?")
CORRECTION = re.compile(r"\[(C\d+)\](?!:)")
COLUMNS = ["item", "what it says", "code", "test", "correction"]


def prose(page):
    """The page without line breaks inside of links."""
    return re.sub(r"(?<!\n)\n(?![\n|#\[-])\s*", " ", page)


def names_in(body):
    """What a module or the body of a class defines, by name."""
    found = {}
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return found


@functools.cache
def names_of(path):
    """What the module at a path defines."""
    return names_in(ast.parse(path.read_text("utf-8")).body)


def defines(path, dotted):
    """Whether a module defines an object, such as "Class.method"."""
    scope = names_of(path)
    for name in dotted.split("."):
        if name not in scope:
            return False
        scope = names_in(getattr(scope[name], "body", []))
    return True


def dangling(page, where=PAGE.parent):
    """Complaints about links, code objects, tests and corrections that a page mentions and that do not exist."""
    found = []
    for text, target in LINK.findall(prose(page)):
        path = (where / target).resolve()
        if "://" in target:
            continue
        if not path.exists():
            found.append(f"link to {target}: no such file")
        elif path.suffix == ".py" and "/" not in text and not defines(path, text.strip("`")):
            found.append(f"link to {target}: no {text} in it")
    for name, test in TEST.findall(page):
        path = ROOT / name
        if not path.exists():
            found.append(f"{name}: no such file")
        elif test and not (defines(path, test) and test.startswith("test_")):
            found.append(f"{name}: no {test} in it")
    anchors = {slug(heading) for heading in re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)}
    targets = dict(re.findall(r"^\[(C\d+)\]: #(\S+)$", page, flags=re.MULTILINE))
    found += [f"{name}: no such heading as {target}" for name, target in targets.items() if target not in anchors]
    found += [f"{name}: leads nowhere" for name in sorted(set(CORRECTION.findall(page)) - set(targets))]
    return found


def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def rows(page):
    """The rows of all tables of items, as dictionaries."""
    found, columns = [], None
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| ") else None
        if cells is None or cells[0].startswith("---"):
            columns = columns if cells else None
        elif columns is None:
            columns = cells
        elif columns == COLUMNS:
            assert len(cells) == len(COLUMNS), line
            found.append(dict(zip(COLUMNS, cells, strict=True)))
    return found


def unanswered(page):
    """Rows that do not say where, which test, or whether the item holds as printed."""
    found = []
    for row in rows(page):
        answers = {
            "what it says": bool(row["what it says"]),
            "code": bool(row["code"]),
            "test": "not covered" in row["test"] or bool(TEST.search(row["test"])),
            "correction": row["correction"] == "as printed" or bool(CORRECTION.search(row["correction"])),
        }
        found += [f"{row['item']}: says nothing about {column}" for column, good in answers.items() if not good]
    return found


# Every item of the paper, as it is numbered there; the paper itself is not part of this repository.
ITEMS = [
    *(f"Problem ({name})" if name == "BO" else f"Losses ({name})" for name in ("BO", "ERM", "Pop")),
    "Definition of neighbours and of (ε, δ)-DP",
    "Definition of the gradient mapping",
    "Definition of ℓ and κ",
    "Definition of the mini-batch gradient",
    *(f"Algorithm {number}, {name}" for number, name in [(1, "DP Bilevel"), (2, "DP-Loc-GD")]),
    *(f"Algorithm {number}, {name}" for number, name in [(3, "Mini-batch DP Bilevel"), (4, "DP-Loc-SGD")]),
    *(f"Algorithm 1, {part}" for part in ("line 3", "line 4", "line 5", "output rule")),
    "Assumption 2.1",
    "Assumption 2.2",
    "Remark 2.3",
    "Example 3.1",
    *(f"Theorem 4.1{part}" for part in ("", ", condition on α", ", λ", ", σ²", ", η", ", T", ", α with K1 and K2")),
    "Remark 4.2",
    "Remark 4.3",
    "Penalty function",
    *(f"Lemma 4.4{part}" for part in ("", ", part (ii)", ", part (iii)")),
    "Lemma 4.5",
    "Lemma 4.6",
    "Proposition 4.7",
    "Theorem 5.1",
    "Remark 5.2",
    *(f"Theorem 6.1, {part}" for part in ("K1 and K2", "gen_n", "mini-batch")),
    "Update rule",
    "Lemma 8.1",
    "Theorem 8.2",
    "Corollary 8.3",
    *(f"Lemma 8.{number}" for number in range(4, 10)),
    *(f"Lemma A.{number}" for number in (1, 2, 3)),
    *(f"Theorem B.1{part}" for part in ("", ", condition on n", ", M", ", σ²", ", η_t", ", T_GD", ", R_m")),
    "Lemma C.1",
    *(f"Equation ({number})" for number in (1, 2, 3, 4, 5, 6, 7, 18, 19, 20, 21)),
    "Equations (8) and (9)",
    "Equations (10) to (13)",
    "Equations (14) to (17)",
    "Equations (22) and (23)",
    *(f"Footnote {number}" for number in (1, 2, 3, 5, 6, 7)),
    *(f"Question: {which}" for which in ("better first-order rates", "variance reduction", "several hyperparameters")),
    "Question: no batch term",
]
LABELS = """
    ass: main 1; ass: main 2; remark: diamY; thm: main; alg: main; alg: DPLocGD; lem: kwon; lem: inexact grad;
    lem: Li improved Lip; prop: outer alg; thm: main minib; rem: batch size; alg: minibatch; alg: DPLocSGD;
    thm: population; lem: sc and lip; thm: DPGD; cor: Bassily dist; lem: ylam Lip; lem: ylam close; lem: small delta;
    lem: rho 2; lem: inexact grad minib; lem: uc; lem: advanced comp; lem: gaussian mech; lem: amplification;
    thm: DPLocSGD; lem: G is Lip; eq: BO; eq: ERM; eq: Pop; eq: hypergradient 2nd order; eq: informal ERM bound;
    eq: informal ERM minib bound; eq: first order; eq: hyperparameter bilevel; eq: Lip 2 summands; eq: 1st lip term;
    eq: 2nd lip term; eq: G rho bound; eq: sum rho; eq: Gout bound; eq: final alpha bound 2; eq: Gout bound minib;
    eq: final alpha bound minib2; eq: induction over m; eq: h SGD bound; eq: bound SGD (I); eq: bound SGD (II);
    eq: R_M distance bound; eq: R_m induction
"""


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text("utf-8")


def test_nothing_on_the_page_dangles(page):
    assert not dangling(page)


def test_every_item_of_the_paper_has_a_row(page):
    items = [row["item"] for row in rows(page)]
    missing = [name for name in ITEMS if not any(re.match(re.escape(name) + r"(?![\w.])", item) for item in items)]
    assert not missing
    labels = [label.strip() for label in LABELS.split(";")]
    assert not [label for label in labels if not any(f"`{label}`" in item for item in items)]
    assert len(set(items)) == len(items)


def test_every_row_answers_every_question(page):
    assert len(rows(page)) > 90
    assert not unanswered(page)


def test_every_correction_is_used_and_explained(page):
    explained = re.findall(r"^### (C\d+): ", page, flags=re.MULTILINE)
    assert explained == [f"C{number}" for number in range(1, len(explained) + 1)]
    used = {name for row in rows(page) for name in CORRECTION.findall(row["correction"])}
    assert used == set(explained)


HEADER = "| item | what it says | code | test | correction |\n| --- | --- | --- | --- | --- |\n"
BROKEN = {
    "link": ("[DPBilevel](../src/dpbilevel/methods/missing.py)", "no such file"),
    "wrapped link": ("see [rates of\nall kinds](results/missing.md)", "no such file"),
    "object": ("[NoSuchClass](../src/dpbilevel/methods/dp_bilevel/dp_bilevel.py)", "no NoSuchClass"),
    "attribute": ("[DPBilevel.no_such](../src/dpbilevel/methods/dp_bilevel/dp_bilevel.py)", "no DPBilevel.no_such"),
    "test file": ("`tests/test_missing.py::test_it`", "no such file"),
    "test": ("`tests/test_paper_table.py::test_that_nobody_wrote`", "no test_that_nobody_wrote"),
    "helper": ("`tests/test_paper_table.py::dangling`", "no dangling in it"),
    "correction": ("see [C99]", "C99: leads nowhere"),
    "anchor": ("### C1: One\n\n[C1]: #c1-two", "no such heading"),
}


@pytest.mark.parametrize(("snippet", "complaint"), BROKEN.values(), ids=BROKEN.keys())
def test_the_check_flags_what_dangles(snippet, complaint):
    (found,) = dangling(snippet)
    assert complaint in found


@pytest.mark.parametrize("cell", range(1, 5))
def test_the_check_flags_rows_that_do_not_answer(cell):
    cells = ["Lemma 1", "says", "nowhere", "not covered", "as printed"]
    assert not unanswered(f"{HEADER}| {' | '.join(cells)} |\n")
    cells[cell] = "" if cell < 3 else "perhaps"
    assert len(unanswered(f"{HEADER}| {' | '.join(cells)} |\n")) == 1


def test_the_check_passes_what_exists():
    kept = "[DPBilevel.steps](../src/dpbilevel/methods/dp_bilevel/dp_bilevel.py) `tests/test_paper_table.py::page`"
    assert dangling(kept) == ["tests/test_paper_table.py: no page in it"]  # a fixture is no test
    assert not dangling(
        "[README](../README.md) `tests/test_docs.py` [x](https://arxiv.org)\n\n## C1: A b\n\n[C1]: #c1-a-b"
    )


# ------------------------------------------------------------------------------------------- evidence: privacy (C1, C4)


def composed(epsilon, delta, times, at):
    """Optimal composition of (epsilon, delta)-DP black boxes (Kairouz, Oh, Viswanath 2015)."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    one = pld.from_privacy_parameters(DifferentialPrivacyParameters(epsilon, delta))
    return one.self_compose(times).get_epsilon_for_delta(at)


def test_lemma_a1_holds_and_the_papers_split_does_not_follow_from_it():
    for epsilon, times in ((0.05, 100), (0.3, 10), (0.9, 2)):
        delta = 1e-9
        lemma = math.sqrt(2 * times * math.log(1 / delta)) * epsilon + 2 * times * epsilon**2
        assert composed(epsilon, delta, times, (times + 1) * delta) <= lemma
    steps, delta = 100, 1e-6
    split = PaperSplit(dpb.Budget(1.0, delta), steps)
    assert composed(1 / math.sqrt(2 * steps), delta / (steps + 1), steps, delta) > 3
    assert composed(split.epsilon, split.delta, 3 * steps, delta) > 2


@pytest.mark.parametrize("epsilon", [0.001, 0.1, 0.999])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1])
def test_lemma_a2_holds_and_is_wasteful(epsilon, delta):
    spent = gaussian_epsilon(epsilon / math.sqrt(2 * math.log(1.25 / delta)), delta)
    assert spent < epsilon
    assert dpb.Budget(epsilon, delta).mu > 1.02 * epsilon / math.sqrt(2 * math.log(1.25 / delta))


def test_theorem_5_1_is_not_private_for_small_batches():
    """One draw: the profile is exact. Noise as for full batches, so the record is n/b times as visible in a batch."""
    budget = dpb.Budget(1.0, 1e-6)
    n, steps = 10**4, 100
    visible = PaperSplit(budget, steps).mu * n
    assert visible == pytest.approx(37.5, abs=0.1)
    one = float(with_replacement(visible, 1, n, budget.epsilon))
    assert one == pytest.approx(1e-4, rel=1e-3)
    # Whoever sees any of the steps that drew the record knows it: that alone is the delta of the run.
    all_steps = 1 - (1 - one) ** steps
    assert all_steps == pytest.approx(9.95e-3, rel=1e-2)
    assert all_steps > 5000 * budget.delta
    # A hundred times the noise for a hundred times as many records: the record is as visible as before.
    assert 1 - (1 - float(with_replacement(visible, 1, 100 * n, budget.epsilon))) ** steps > 50 * budget.delta
    # From b = eps n/sqrt(T) on amplification is what the proof takes it for.
    enough = int(budget.epsilon * n / math.sqrt(steps))
    assert float(with_replacement(visible / enough, enough, n, budget.epsilon)) < 1e-15


# -------------------------------------------------------------------- evidence: the paper's sets and lemmas (C6 to C11)


def test_remark_2_3_needs_a_convex_set():
    mu, a = 0.7, 3.0

    def value(y):
        return mu * y**2 / 2

    def lipschitz(points):
        pairs = [(p, q) for p in points for q in points if p != q]
        return max(abs(value(p) - value(q)) / abs(p - q) for p, q in pairs)

    gap = lipschitz([-a, 0.0, a])
    assert 2 * a == pytest.approx(4 * gap / mu)  # the remark says 2 L0g/mu
    filled = lipschitz(np.linspace(-a, a, 201))
    assert 2 * a <= 2 * filled / mu * 1.01
    assert gap < abs(mu * a), "the slope at a is larger than the Lipschitz constant over the set"


def test_lemma_8_1_fails_under_its_printed_condition():
    """f = h cos(y/w), of slope h/w = 1 and curvature h/w^2 = 10 at most, and g = y^2/2 on [-1, 1]: L1g = mu_g = 1."""
    height, width, h = 0.1, 0.1, 1e-4
    rough, printed = height / width**2, 2.0  # max{2 L1g/mu_g, L0f/L0g}

    def curvature(penalty):
        """Of f + penalty g at y = 0, by differences."""
        values = [height * math.cos(y / width) + penalty * y**2 / 2 for y in (-h, 0.0, h)]
        return (values[0] - 2 * values[1] + values[2]) / h**2

    assert curvature(printed) == pytest.approx(-8.0, abs=1e-3)
    with_the_third = max(printed, rough)  # L1f/L1g, which Lemma 4.5 adds
    assert curvature(with_the_third) == pytest.approx(0.0, abs=1e-3)
    right = 2 * rough
    assert curvature(right) == pytest.approx(right / 2, abs=1e-3)


@pytest.mark.parametrize("kappa", [10.0, 100.0, 1000.0])
def test_lemma_4_6_bounds_the_released_vector_and_not_the_gradient_of_a_summand(kappa):
    """g_i = mu y^2/2 - l x y + s_i l y with s_i = 1, -1 in halves, f = l y^2/2 on [-1, 1]."""
    largest, mu = 1.0, 1.0 / kappa
    penalty = 10 * kappa

    def minimisers(x):
        return largest * x / mu, penalty * largest * x / (penalty * mu + largest)

    def lower(x, y, sign):
        return mu * y**2 / 2 - largest * x * y + sign * largest * y

    def summand(x, sign):
        y, z = minimisers(x)
        return largest * z**2 / 2 + penalty * (lower(x, z, sign) - lower(x, y, sign))

    def vector(x):
        y, z = minimisers(x)
        return penalty * (-largest * z + largest * y)  # f is free of x, and so is s_i l y

    h = 1e-4 / kappa
    slopes = [(summand(h, sign) - summand(-h, sign)) / (2 * h) for sign in (1.0, -1.0)]
    assert np.abs(slopes) == pytest.approx(10 / 11 * largest * kappa**2, rel=1e-6)
    assert np.mean(slopes) == pytest.approx(vector(0.0), abs=1e-6 * kappa**2)  # the means agree, as equation (3) says
    assert vector(0.0) == 0.0
    constants = Constants(
        upper_lipschitz=largest,
        upper_smoothness=largest,
        lower_lipschitz=3 * largest,
        lower_smoothness=np.linalg.norm([[0, -largest], [-largest, mu]], 2),
        lower_hessian_lipschitz=0.0,
        strong_convexity=mu,
    )
    assert penalty >= constants.smallest_penalty_weight()
    assert max(abs(vector(x)) for x in np.linspace(-mu, mu, 21)) <= bounds.record_bound(constants)
    assert max(np.abs(slopes)) > kappa / 3 * bounds.record_bound(constants)


def test_term_ii_is_a_maximum():
    """Equation (21) bounds by d sigma^2 and logarithms: that is the longest of T vectors, not the sum of squares."""
    dimension, sigma = 20, 3.0
    for steps in (100, 10_000):
        squares = np.sum((sigma * np.random.default_rng(0).normal(size=(steps, dimension))) ** 2, axis=1)
        claimed = sigma**2 * bounds.gaussian_norm(dimension, 1e-9 / steps) ** 2
        assert squares.max() <= claimed
        assert squares.sum() > steps / 10 * claimed


# ---------------------------------------------------------------------------- evidence: rates and units (C12, C16, C18)

BUDGET = dpb.Budget(1.0, 1e-9)
CONSTANTS = Constants(
    upper_lipschitz=1.0,
    upper_smoothness=0.5,
    lower_lipschitz=1.0,
    lower_smoothness=1.0,
    lower_hessian_lipschitz=0.1,
    strong_convexity=0.5,
)


def even_constants(kappa):
    """Every L is 1."""
    return Constants(
        upper_lipschitz=1.0,
        upper_smoothness=1.0,
        lower_lipschitz=1.0,
        lower_smoothness=1.0,
        lower_hessian_lipschitz=1.0,
        strong_convexity=1 / kappa,
    )


REGIMES = {
    "K1": ({"n": 10**16, "d_x": 10**24, "d_y": 1}, bounds.OUTER, 1 / 4, 5 / 4),
    "K2": ({"n": 10**20, "d_x": 1, "d_y": 10**6}, bounds.INNER, 1 / 6, 11 / 6),
}


@pytest.mark.parametrize(("sizes", "binds", "of_gap", "of_kappa"), REGIMES.values(), ids=REGIMES.keys())
def test_k1_and_k2_have_the_powers_of_theorem_4_1(sizes, binds, of_gap, of_kappa):
    """The power of l is what is left to degree one: `test_guarantees_scale_with_the_losses`."""
    gaps, kappas = np.array([1.0, 10.0, 100.0]), np.array([100.0, 300.0, 1000.0])
    by_gap = [plan(CONSTANTS, budget=BUDGET, gamma=0.05, gap=gap, **sizes) for gap in gaps]
    by_kappa = [plan(even_constants(kappa), budget=BUDGET, gamma=0.05, gap=1.0, **sizes) for kappa in kappas]
    assert {made.binds for made in (*by_gap, *by_kappa)} == {binds}
    for varied, plans, power in ((gaps, by_gap, of_gap), (kappas, by_kappa, of_kappa)):
        slope = np.polyfit(np.log(varied), np.log([made.alpha for made in plans]), 1)[0]
        assert slope == pytest.approx(power, abs=0.02)


def has_degree_one(bound):
    """Whether multiplying both losses by c multiplies a bound on the hypergradient by c; kappa stays."""
    return all(bound(c) == pytest.approx(c * bound(1.0), rel=1e-6) for c in (1e-3, 0.1, 40.0))


def test_guarantees_scale_with_the_losses():
    for setting in ({}, {"setting": "minibatch", "batch": 50}, {"setting": "population"}):

        def alpha(c, setting=setting):
            scaled = Constants(**{name: c * value for name, value in vars(CONSTANTS).items()})
            return plan(scaled, 10**6, 10, 100, BUDGET, 0.05, gap=c, **setting).alpha

        assert has_degree_one(alpha)
    kappa, n, d_x = 5.0, 10**4, 7
    root, slow = math.sqrt(n), n**0.25
    assert has_degree_one(lambda c: c ** (1 / 4) * c ** (3 / 4) * kappa ** (5 / 4))  # gap^(1/4) l^(3/4)
    assert not has_degree_one(lambda c: c ** (1 / 4) * c ** (1 / 4) * kappa ** (5 / 4)), "K1 of Theorem 6.1"
    spread = math.sqrt(d_x) + kappa
    assert has_degree_one(lambda c: c * kappa * (kappa + 1) * (spread / root + kappa / slow))
    assert not has_degree_one(lambda c: c * kappa * (c * kappa + 1) * spread / root), "the first term of gen_n"
    assert not has_degree_one(lambda c: c**0.5 * kappa**1.5 * (c * kappa + 1) / slow), "the second"
    # Part (3) of Lemma 8.9, multiplied out: L0f (L1g/mu^2 + 1/mu) L1g at L = l.
    largest, mu = 0.3, 0.06
    assert largest * (largest / mu**2 + 1 / mu) * largest == pytest.approx(largest * kappa**2 + largest * kappa)
    assert largest * kappa**2 > 2 * largest**2 * kappa**2, "what is printed is less where l < 1"


def test_condition_on_n_depends_on_the_unit_of_y():
    """A change of unit multiplies lengths (R_0 and L/mu) by c and leaves n, epsilon and d_y alone."""

    def records_asked_for(c, dimension):
        start, slope_over_curvature, epsilon = 4.0 * c, 2.0 * c, 0.1
        return slope_over_curvature * start ** (2 / math.log(dimension)) / epsilon

    assert records_asked_for(1000.0, 50) > 1000 * records_asked_for(1.0, 50)
    with pytest.raises(ZeroDivisionError):
        records_asked_for(1.0, 1)
    for c in (1e-3, 1.0, 1e3):
        radii = bounds.localisation_radii(start=4.0 * c, scale=1e-3 * c, dimension=50)
        assert np.array(radii) / c == pytest.approx(np.array(bounds.localisation_radii(4.0, 1e-3, 50)))
        # After the last round the start is forgotten but for a factor of two.
        assert (4.0 / 1e-3) ** (1 / 2 ** len(radii)) <= 2
