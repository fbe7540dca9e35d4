"""Histograms: every record is in one of several public cells, and adds one to its count.

A count that is a function of private numbers, such as the number of positives, has no sensitivity of its own: the
histogram is released as a whole, and one record changes two of its counts, by one each.
"""

import jax
import numpy as np

from dpbilevel.evaluation.means import NORM, Floats, Tree

UNIT = 1 / NORM  # records per unit of a contribution


def one_cell(place: jax.Array, cells: int) -> jax.Array:
    """The contribution of a record in one cell, of norm 1/2; zero if its place is -1."""
    return jax.nn.one_hot(place, cells) * NORM


def counts(answer: Tree, number: int) -> Floats:
    """The numbers of records in all cells, not clamped: noise may make them negative."""
    return np.asarray(answer, np.float64) * (UNIT * number)


def count_noise(noise: float, number: int) -> float:
    """The standard deviation of the noise of every count."""
    return noise * UNIT * number


def bin_of(values: Floats, edges: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """The bin of each value, from 0; values outside the edges are in the first and the last one.

    >>> bin_of(np.array([-1.0, 0.1, 0.5, 2.0]), np.array([0.0, 0.5, 1.0])).tolist()
    [0, 0, 1, 1]
    """
    return (np.searchsorted(edges[1:-1], values, side="right")).astype(np.int32)
