"""Shape functions: the effect of every input column on the score of a linear model, with its error by known noise.

They are computed from released coefficients and declared points, so that they cost nothing and read no record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.encoding.terms import DATES, NAMES, Term

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shape:
    """The effect of one input column at declared points; its mean over the points is zero.

    Args:
        name: the input column.
        points: numbers, dates (NumPy) or names of categories, in units of the column.
        places: the points on the declared scale of the column, from 0 to 1; for names their order.
        scale: "linear", "log", "sqrt", "dates" or "names".
        effect: (outputs, points), what the column adds to the score of each output: log-odds of a class, or a number in
            units of the target.
        error: (points,), one standard deviation of the effect by the noise of training, from the covariance of all
            coefficients; None if it is not known. Sampling error is not part.
    """

    name: str
    points: npt.NDArray[Any]
    places: Floats
    scale: str
    effect: Floats
    error: Floats | None = None

    @property
    def size(self) -> float:
        """The root mean square of the effect over its points and all outputs."""
        return float(np.sqrt(np.mean(self.effect**2)))

    def to_json(self) -> dict[str, Any]:
        """As plain values; dates are ISO text."""
        return {
            "name": self.name,
            "points": self.points.astype(str).tolist() if self.scale == DATES else self.points.tolist(),
            "places": self.places.tolist(),
            "scale": self.scale,
            "effect": self.effect.tolist(),
            "error": None if self.error is None else self.error.tolist(),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Shape":
        """The inverse of `to_json`."""
        kinds: dict[str, Any] = {DATES: "datetime64[s]", NAMES: np.str_}
        return cls(
            str(content["name"]),
            np.array(content["points"], kinds.get(content["scale"], np.float64)),
            np.array(content["places"], np.float64),
            str(content["scale"]),
            np.array([[float(value) for value in row] for row in content["effect"]]),
            None if content["error"] is None else np.array([float(value) for value in content["error"]]),
        )


def shapes_of(terms: Sequence[Term], coefficients: npt.ArrayLike, errors: Floats | None = None) -> tuple[Shape, ...]:
    """The shapes of released coefficients.

    Args:
        terms: of the encoder.
        coefficients: of encoded columns, one row per output, or one row.
        errors: of all points of all terms in order, if they are known.

    >>> import numpy as np, dpbilevel as dpb
    >>> encoder = dpb.BoundedEncoder(ranges={"age": (0, 100)}, knots=3).fit({"age": [40.0]})
    >>> (shape,) = shapes_of(encoder.terms_, [0.0, 1.0, 2.0])
    >>> shape.points.tolist(), shape.effect.tolist()
    ([0.0, 50.0, 100.0], [[-1.0, 0.0, 1.0]])
    """
    weights = np.atleast_2d(np.asarray(coefficients, np.float64))
    made, start = [], 0
    for term in terms:
        end = start + len(term.points)
        effect = weights @ term.centred(weights.shape[1]).T
        own = None if errors is None else errors[start:end]
        made.append(Shape(term.name, term.points, term.places, term.scale, effect, own))
        start = end
    return tuple(made)
