"""Plot of the advantage of membership attacks, and of what privacy allows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from plot_results import Results, parse

from dpbilevel.audit.attack import Attack, allowed_advantage
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import in_the_form_of
from dpbilevel.plot.canvas import drawing
from dpbilevel.plot.style import COLOURS, INK
from dpbilevel.privacy.accounting import gaussian_delta, gaussian_mu
from dpbilevel.privacy.budget import Budget

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EXAMPLE = "docs/results/leak.json"
_EXACT = COLOURS[1]


@in_the_form_of("results", _EXAMPLE)
def leak(results: Results | Sequence[Attack], ax: "Axes | None" = None) -> "Axes":
    """The advantage of membership attacks as a function of epsilon, with curves of what privacy allows.

    Args:
        results: docs/results/leak.json or its content, or a list of results of `dpbilevel.audit.leak`: attacks on
            exact optimisation (a horizontal band) and on private methods (points with intervals).
        ax: Axes to draw on; new ones by default.
    """
    attacks = _attacks(results)
    private = [attack for attack in attacks if attack.budget.is_private]
    with drawing(ax, height=3.9) as ax:
        _curves(ax, private)
        for attack in attacks:
            if not attack.budget.is_private:
                ax.axhspan(*attack.interval, color=_EXACT, alpha=0.3)
                ax.axhline(attack.advantage, color=_EXACT, label=f"{attack.method}, n = {attack.n}")
        others = [colour for colour in COLOURS if colour != _EXACT]
        for place, name in enumerate(dict.fromkeys(attack.method for attack in private)):
            mine = [attack for attack in private if attack.method == name]
            values = np.array([attack.advantage for attack in mine])
            limits = np.abs(np.array([attack.interval for attack in mine]).T - values)
            at = [attack.budget.epsilon for attack in mine]
            colour, label = others[place % len(others)], f"{name}, attacked"
            ax.errorbar(at, values, yerr=limits, fmt="o", capsize=3, color=colour, label=label)
        tested = sorted({attack.budget.epsilon for attack in private})
        if tested:
            ax.set_xscale("log")
            ax.minorticks_off()
            ax.set_xticks(tested, [f"{epsilon:g}" for epsilon in tested])
        ax.set_xlabel("ε of the run")
        ax.set_ylabel("advantage of the attack (TPR − FPR)")
        ax.legend(loc="upper left", bbox_to_anchor=(0.0, -0.14), ncols=2)
    return ax


def _curves(ax: "Axes", private: list[Attack]) -> None:
    if not private:
        return
    smallest, largest = (choose(attack.budget.epsilon for attack in private) for choose in (min, max))
    epsilons = np.geomspace(smallest / 2, largest * 2, 100)
    for delta in sorted({attack.budget.delta or 0.0 for attack in private}):
        allowed = [allowed_advantage(Budget(epsilon, delta)) for epsilon in epsilons]
        gaussian = [gaussian_delta(gaussian_mu(epsilon, delta), 0.0) for epsilon in epsilons]
        ax.plot(epsilons, allowed, "--", color=INK, label=f"(ε, {delta:g})-DP allows")
        ax.plot(epsilons, gaussian, "-", color=INK, label=f"Gaussian noise at (ε, {delta:g}) allows")


def _attacks(results: Results | Sequence[Attack]) -> list[Attack]:
    if isinstance(results, Sequence) and not isinstance(results, str):
        if not results or not all(isinstance(attack, Attack) for attack in results):
            raise InvalidArgument("results: must be a non-empty list of results of dpbilevel.audit.leak")
        return list(results)
    return [Attack.from_json(entry) for entry in parse(results, "attacks", _EXAMPLE)["attacks"]]
