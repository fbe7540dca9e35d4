"""Pictures that benchmarks draw of their results."""

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import norm

import dpbilevel as dpb
from dpbilevel.audit import leak as audit

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
sys.path.append(str(ROOT / "benchmarks"))
from plot_audits import audits  # noqa: E402
from plot_leak import leak  # noqa: E402
from plot_rates import rates  # noqa: E402
from plot_utility import epsilon_utility  # noqa: E402

AUDITED = {
    "name": "Tracking, one step",
    "claimed": 4.0,
    "delta": 1e-2,
    "adjacency": "replace-one",
    "lower_bound": 1.5,
    "upper_bound": 2.5,
    "reach": 2.0,
    "confidence": 0.99,
    "runs": 4000,
    "records": 48,
    "releases": 2,
    "canaries": None,
    "passed": True,
}
AUDITS = {"audits": [AUDITED, AUDITED | {"name": "Refit, one step", "upper_bound": None}]}
DRAWN = {
    "audits": lambda ax=None: audits(RESULTS / "audits.json", ax),
    "epsilon_utility": lambda ax=None: epsilon_utility(RESULTS / "utility.json", ax),
    "rates": lambda ax=None: rates(RESULTS / "rates.json", ax),
    "leak": lambda ax=None: leak(RESULTS / "leak.json", ax),
}


def words(ax):
    found = ax.figure.findobj(matplotlib.text.Text)
    return [text.get_text() for text in found if text.get_text()]


@pytest.mark.parametrize("name", DRAWN)
def test_plots_return_axes_and_leave_no_state(name):
    before = dict(matplotlib.rcParams)
    ax = DRAWN[name]()
    assert isinstance(ax, matplotlib.axes.Axes)
    assert dict(matplotlib.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []
    assert ax.get_xlabel()
    own = Figure().subplots()
    assert DRAWN[name](own) is own


@pytest.mark.parametrize("name", DRAWN)
def test_plots_show_in_notebooks(name):
    shown = DRAWN[name]()._repr_html_()
    assert "<svg" in shown
    assert "currentColor" in shown
    assert 'role="img"' in shown


def test_utility_curves_are_those_of_the_page():
    ax = epsilon_utility(json.loads((RESULTS / "utility.json").read_text()))
    curves = {line.get_label(): line for line in ax.lines}
    page = (RESULTS / "utility.md").read_text(encoding="utf-8")
    section = page.split("## Gap closed at ε = 1\n")[1].split("##")[0]
    header, *_, medians = [line for line in section.splitlines() if line.startswith("|")]
    reported = dict(zip(header.split("|")[2:-1], medians.split("|")[2:-1], strict=True))
    at = list(curves["tracking"].get_xdata()).index(1.0)
    for method in ("tracking", "grid search", "screening"):
        value = next(text for name, text in reported.items() if name.strip() == method)
        assert f"{curves[method].get_ydata()[at]:.3f}" == value.strip()


@pytest.mark.parametrize("against", ["n", "epsilon", "d_", "batch"])
def test_rates_have_a_fit_and_a_bound_for_every_experiment(against):
    content = json.loads((RESULTS / "rates.json").read_text())
    ax = rates(content, against=against)
    shown = ax.get_legend_handles_labels()[1]
    expected = [e for e in content["experiments"] if e["against"].startswith(against)]
    assert 0 < len(shown) <= len(expected)
    assert all("(" in name for name in shown)


def test_audits_show_what_was_proved_and_what_was_claimed(tmp_path):
    ax = audits(AUDITS)
    proved, reach, claimed = (line.get_xdata() for line in ax.lines[:3])
    assert (list(proved), list(reach), list(claimed)) == ([1.5, 1.5], [2.0, 2.0], [4.0, 4.0])
    assert {"Tracking, one step", "Refit, one step", "claimed"} <= set(words(ax))
    (tmp_path / "audits.json").write_text(json.dumps(AUDITS))
    reported = [dpb.audit.Audit.from_json(entry) for entry in AUDITS["audits"]]
    assert words(audits(tmp_path / "audits.json")) == words(audits(reported)) == words(ax)


def test_the_leak_shows_intervals_and_both_bounds():
    content = json.loads((RESULTS / "leak.json").read_text())
    ax = leak(content)
    allowed, gaussian = (line for line in ax.lines if len(line.get_xdata()) == 100)
    assert np.all(gaussian.get_ydata() < allowed.get_ydata())
    at_one = np.argmin(abs(gaussian.get_xdata() - 1.0))
    mu = dpb.Budget(gaussian.get_xdata()[at_one], 1e-3).mu
    assert gaussian.get_ydata()[at_one] == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-6)
    (bars,) = ax.containers
    (segments,) = bars[2]
    drawn = sorted(tuple(segment[:, 1]) for segment in segments.get_segments())
    expected = sorted(
        tuple(entry["interval"]) for entry in content["attacks"] if entry["budget"]["epsilon"] is not None
    )
    np.testing.assert_allclose(drawn, expected)


def test_the_leak_is_the_same_from_attacks_and_from_their_file(tmp_path):
    content = json.loads((RESULTS / "leak.json").read_text())
    attacks = [audit.Attack.from_json(entry) for entry in content["attacks"]]
    assert [attack.to_json() for attack in attacks] == content["attacks"]
    first, second = leak(attacks), leak(content)
    for one, other in zip(first.lines, second.lines, strict=True):
        np.testing.assert_array_equal(one.get_ydata(), other.get_ydata())
    labels = first.get_legend_handles_labels()[1]
    assert {"exact bilevel, n = 100", "DPBilevel, attacked", "(ε, 0.001)-DP allows"} <= set(labels)
    alone = leak(attacks[:1])
    assert len(alone.lines) == 1


WRONG = [
    (audits, []),
    (audits, [1.0]),
    (audits, {"attacks": []}),
    (leak, []),
    (leak, [1.0]),
    (leak, {"experiments": []}),
    (rates, {"attacks": []}),
    (rates, {"experiments": []}),
    (epsilon_utility, {}),
    (epsilon_utility, {"results": {}}),
    (epsilon_utility, 3),
    (epsilon_utility, {"results": {"a": {"epsilon": 1.0}}}),
    (rates, {"experiments": [{"against": "n", "metric": "x"}]}),
    (audits, {"audits": [{"name": "x"}]}),
    (leak, {"attacks": [{"budget": None}]}),
    (leak, "no/such/file.json"),
]


@pytest.mark.parametrize(("function", "results"), WRONG)
def test_what_are_no_results_is_refused(function, results):
    with pytest.raises(dpb.InvalidArgument, match=r"^results"):
        function(results)


def test_files_that_are_no_results_are_refused(tmp_path):
    path = tmp_path / "results.json"
    path.write_text("no JSON")
    with pytest.raises(dpb.InvalidArgument, match="not a JSON file"):
        rates(path)
    with pytest.raises(dpb.InvalidArgument, match="against"):
        rates(RESULTS / "rates.json", against="m")
