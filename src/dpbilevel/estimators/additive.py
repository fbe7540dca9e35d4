"""Additive models: a linear model of encoded rows, as one curve per input column.

*Shapes.* The hats of a column sum to a constant, which is that of the intercept, so that coefficients are known up to a
shift and have the error of this shift. Shapes are centred at declared points. Their errors are those of differences of
coefficients, from the covariance of the noise of training (`BilevelProblem.readout`).

*Smoothness.* With ``smooth``, rows are written in another basis of every curve: a straight line, and the eigenvectors
of the penalty |D c|^2, with D c the second differences of a curve c at its knots. The basis is orthonormal, so that
rows are no longer than before. It leaves the constant out, which belongs to the intercept (for categories too), so that
no columns are collinear. In it the penalty is a sum of squares d_j y_j^2, with d_j the eigenvalues: a group of columns
with a penalty of its own. Months, weekdays and hours are circles: their second differences go around, no straight line
is left out, and the eigenvectors are waves.

*The first penalty of smoothness* balances noise and bias for the curve that the number of knots assumes as well: one
period of a sine with variance one, over m columns and k knots. Rows are uniform over the range. A coefficient then has
curvature h = kappa |row|^2/k, its gradient has noise of variance s^2 + kappa h/n (of the release, and of sampling), and
d_j y_j^2 has mean tau^2 = k (2 pi/(k - 1))^4 / (|row|^2 (k - 2)). The error of y_j is least for a penalty of d_j times
(s^2 + kappa h/n)/(h tau^2). On a circle the same sine has tau^2 = k (2 pi/k)^4 /
(|row|^2 (k - 1)).
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.applications.regularization import UNTUNED
from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.encoding.streamed_rows import StreamedRows
from dpbilevel.encoding.terms import NAMES, Term, readout
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.prepared import Rows, Unread
from dpbilevel.methods.preconditioned_steps import READOUT, STANDARD_ERRORS
from dpbilevel.problem import BilevelProblem
from dpbilevel.solution.shapes import shapes_of

Floats = npt.NDArray[np.float64]
SHARED = "shared"


@dataclass(frozen=True, eq=False)
class Basis:
    """The columns in which a model is trained, as combinations of encoded columns; both without the intercept.

    Args:
        matrix: (encoded columns, trained columns), orthonormal.
        curve: for each trained column the number of its curve if smoothness penalises it, and -1 otherwise.
        weights: the factor of each trained column on its penalty.
        curves: the curves, in order.
        scale: of the cells of rows of norm one, over encoded cells.
        shared: whether all curves have one penalty of smoothness.
    """

    matrix: Floats
    curve: tuple[int, ...]
    weights: tuple[float, ...]
    curves: tuple[Term, ...]
    scale: float = 1.0
    shared: bool = False

    @classmethod
    def of(cls, terms: Sequence[Term], width: int, scale: float = 1.0, shared: bool = False) -> "Basis":
        """The basis in which the smoothness of every curve is a sum of squares."""
        curves = tuple(term for term in terms if _is_curve(term))
        if not curves:
            raise InvalidArgument(
                "smooth=True: X must be the output of a BoundedEncoder with curves of at least three knots "
                '(try knots="auto"); a model of plain columns has nothing to smooth'
            )
        split = [term for term in terms if len(term.columns) == len(term.points) > 1]
        term_of = {column: term for term in split for column in term.columns}
        parts: list[Floats] = []
        curve: list[int] = []
        weights: list[float] = []
        for column in range(width):
            term = term_of.get(column)
            if term is None:
                parts.append(np.eye(width)[:, [column]])
                curve, weights = [*curve, -1], [*weights, 1.0]
            elif column == term.columns[0]:
                own, eigenvalues = _basis_of(term) if term in curves else (contrasts(len(term.points)), [])
                block = np.zeros((width, own.shape[1]))
                block[list(term.columns)] = own
                parts.append(block)
                free, number = own.shape[1] - len(eigenvalues), curves.index(term) if term in curves else -1
                curve = [*curve, *([-1] * free), *([number] * len(eigenvalues))]
                weights = [*weights, *([1.0] * free), *eigenvalues]
        return cls(np.concatenate(parts, axis=1), tuple(curve), tuple(weights), curves, scale, shared)

    def groups(self, names: npt.NDArray[Any], group_of: Sequence[int]) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
        """Names of groups and the group of each trained column: those of encoded columns, then one for each curve."""
        first = np.argmax(self.matrix != 0, axis=0)  # of the encoded columns of a trained one
        more = ["smoothness"] if self.shared else [f"{term.name}, smoothness" for term in self.curves]
        own = [
            group_of[at] if number < 0 else len(names) + number % len(more)
            for at, number in zip(first, self.curve, strict=True)
        ]
        return np.array([*map(str, names), *more]), (*own, UNTUNED)

    def first_penalties(self, noise: float, rows: int, curvature: float) -> list[float]:
        """Where the penalty of each curve starts: it balances noise and bias.

        Args:
            noise: standard deviation on a coordinate of the mean gradient, for rows of norm one.
            rows: their number.
            curvature: largest second derivative of the loss in the score.
        """
        cells = (self.scale * float(term.values[0, 0]) for term in self.curves)
        worth = [_worth(term, cell**2, noise, rows, curvature) for term, cell in zip(self.curves, cells, strict=True)]
        return [math.exp(float(np.mean(np.log(worth))))] if self.shared else worth


@dataclass(frozen=True, eq=False)
class Additive:
    """The terms of the rows of a fit, in the basis in which they are trained.

    Args:
        terms: of the encoder; empty if rows are not encoded.
        columns: the number of encoded columns.
        basis: None if encoded columns are trained as they are.
    """

    terms: tuple[Term, ...]
    columns: int
    basis: Basis | None

    @classmethod
    def of(cls, X: Any, smooth: bool | str, rows: Rows) -> "Additive":
        """The terms that encoded rows carry; those of a plan have no shapes."""
        columns = rows.shape[1]
        terms = X.terms if isinstance(X, EncodedRows | StreamedRows) else ()
        curves = X.terms if isinstance(X, Unread) else terms
        if not isinstance(smooth, bool | np.bool_) and smooth != SHARED:
            raise InvalidArgument(f"smooth={smooth!r}: must be True, False or {SHARED!r}, one penalty for all curves")
        if not smooth:
            return cls(terms, columns, None)
        norm = X.row_norm if isinstance(X, Unread) else 1.0 if rows.scaling is None else float(rows.scaling.size.max())
        return cls(terms, columns, Basis.of(curves, columns, 1 / norm, smooth == SHARED))

    def units(self, coefficients: Callable[[Floats], Any]) -> Floats:
        """The coefficient of each encoded column for a model of ones."""
        return np.atleast_2d(coefficients(np.ones(self.columns + 1)))[0] if self.terms else np.zeros(0)

    def problem(self, problem: BilevelProblem, units: Floats) -> BilevelProblem:
        """The problem whose training releases the errors of shapes, and in another basis those of coefficients."""
        if not self.terms:
            return problem
        matrix = readout(self.terms, self.columns) * units
        if self.basis is not None:
            matrix = np.concatenate([np.diag(units), matrix]) @ self.basis.matrix
        matrix = np.pad(matrix, ((0, 0), (0, 1)))  # the intercept is in no shape
        return _reading(problem, matrix.astype(np.float32).tobytes(), len(matrix))

    def encoded(self, y: Any) -> Any:
        """A model as a model of encoded columns and the intercept."""
        if self.basis is None:
            return y
        weights = np.asarray(y, np.float64)
        return np.concatenate([np.tensordot(self.basis.matrix, weights[:-1], 1), weights[-1:]])

    def attributes(self, made: dict[str, Any]) -> dict[str, Any]:
        """The attributes of a fitted model, with its shapes."""
        return made | ({"shapes_": shapes_of(self.terms, made["coef_"])} if self.terms else {})

    def errors(self, coefficients: Any, history: Mapping[str, Any], converted: Callable[[Any], Any]) -> dict[str, Any]:
        """Errors of coefficients and of shapes, by the history of a run; ``converted`` are coefficients of a model."""
        read = np.asarray(history.get(READOUT, [[]])[-1], np.float64)
        if self.basis is None:
            own = np.abs(converted(history[STANDARD_ERRORS][-1]))
        else:
            own = np.broadcast_to(read[: self.columns], np.shape(coefficients)).copy()
            read = read[self.columns :]
        shapes = {"shapes_": shapes_of(self.terms, coefficients, read)} if self.terms else {}
        return {"coef_noise_": own} | shapes


def smooth_basis(places: Floats) -> tuple[Floats, list[float]]:
    """An orthonormal basis of curves with mean zero: a straight line, then eigenvectors of second differences.

    >>> basis, eigenvalues = smooth_basis(np.linspace(0, 1, 5))
    >>> basis.shape, np.round(eigenvalues, 2).tolist()
    ((5, 4), [0.82, 5.0, 12.18])
    """
    gaps = np.diff(places) * (len(places) - 1)
    differences = np.zeros((len(places) - 2, len(places)))
    for at, (left, right) in enumerate(itertools.pairwise(gaps.tolist())):
        ends = 2 / (left * (left + right)), 2 / (right * (left + right))
        differences[at, at : at + 3] = ends[0], -sum(ends), ends[1]
    eigenvalues, vectors = np.linalg.eigh(differences.T @ differences)
    line = places - places.mean()
    basis = np.column_stack([line / np.linalg.norm(line), vectors[:, 2:]])
    return basis, eigenvalues[2:].tolist()


def cyclic_basis(number: int) -> tuple[Floats, list[float]]:
    """An orthonormal basis of functions on a circle with mean zero: eigenvectors of second differences around it.

    >>> basis, eigenvalues = cyclic_basis(4)
    >>> basis.shape, np.round(eigenvalues, 2).tolist()
    ((4, 3), [4.0, 4.0, 16.0])
    """
    one = np.eye(number)
    differences = np.roll(one, 1, axis=1) - 2 * one + np.roll(one, -1, axis=1)
    eigenvalues, vectors = np.linalg.eigh(differences.T @ differences)
    return vectors[:, 1:], eigenvalues[1:].tolist()


def contrasts(number: int) -> Floats:
    """An orthonormal basis of vectors with mean zero.

    >>> contrasts(2).round(2).tolist()
    [[-0.71], [0.71]]
    """
    steps = np.diff(np.eye(number), axis=0).T
    basis = np.linalg.qr(steps)[0]
    return basis * np.where(basis[0] > 0, -1.0, 1.0)


def _is_curve(term: Term) -> bool:
    is_ordered = term.scale != NAMES or term.cyclic
    return is_ordered and len(term.columns) == len(term.points) > 2


def _basis_of(curve: Term) -> tuple[Floats, list[float]]:
    return cyclic_basis(len(curve.points)) if curve.cyclic else smooth_basis(curve.places)


def _worth(curve: Term, square: float, noise: float, rows: int, curvature: float) -> float:
    knots = len(curve.points)
    own = curvature * square / knots
    gaps, penalised = (knots, knots - 1) if curve.cyclic else (knots - 1, knots - 2)
    wave = knots * (2 * math.pi / gaps) ** 4 / (square * penalised)
    return (noise**2 + curvature * own / rows) / (own * wave)


@functools.lru_cache(maxsize=64)  # one object for each problem, so that what is compiled is shared
def _reading(problem: BilevelProblem, content: bytes, rows: int) -> BilevelProblem:
    return replace(problem, readout=np.frombuffer(content, np.float32).reshape(rows, -1))
