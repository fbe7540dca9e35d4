"""Shapes: effects of released coefficients, and their plain values."""

import json

import numpy as np

import dpbilevel as dpb
from dpbilevel.solution.shapes import Shape, shapes_of


def test_effects_are_differences_of_scores():
    encoder = dpb.BoundedEncoder(ranges={"age": (0, 10)}, categories={"town": ["Oslo", "Rome"]}, knots=4)
    encoder.fit({"age": [1.0], "town": ["Oslo"]})
    coefficients = np.random.default_rng(0).normal(size=(2, 6))
    age, town = shapes_of(encoder.terms_, coefficients, np.arange(6.0))
    cells = {"age": age.points, "town": ["Rome"] * 4}
    scores = coefficients @ np.asarray(encoder.transform(cells), np.float64).T
    assert np.allclose(age.effect, scores - scores.mean(axis=1, keepdims=True), atol=1e-6)
    assert age.error.tolist() == [0, 1, 2, 3]
    assert town.error.tolist() == [4, 5]
    shifted = coefficients + np.array([3.0] * 4 + [-5.0] * 2)
    for one, other in zip((age, town), shapes_of(encoder.terms_, shifted), strict=True):
        assert np.allclose(one.effect, other.effect, atol=1e-6)
        assert other.error is None


def test_shapes_survive_json():
    dates = np.array(["2026-01-01", "2026-01-31"], "datetime64[s]")
    for points, scale in ((np.array([1.0, 2.0]), "log"), (np.array(["a", "b"]), "names"), (dates, "dates")):
        own = Shape("one", points, np.array([0.0, 1.0]), scale, np.array([[-1.0, 1.0]]), np.array([0.1, 0.2]))
        back = Shape.from_json(json.loads(json.dumps(own.to_json())))
        assert np.array_equal(back.points, points)
        assert back.points.dtype.kind == points.dtype.kind
        assert back.effect.tolist() == own.effect.tolist()
        assert back.error.tolist() == own.error.tolist()
        assert own.size == 1.0
