"""Adult, also known as Census Income: does a person earn more than 50,000 dollars a year?"""

from typing import Any

from dpbilevel.datasets.dataset import Array, Dataset, code_book, decode
from dpbilevel.datasets.sources import Directory, fetched, names_in, stored
from dpbilevel.encoding.columns import is_missing
from dpbilevel.foundation.arguments import in_the_form_of

ARRAYS = ("num_train", "cat_train", "y_train", "num_test", "cat_test", "y_test", "meta_json")
CLASSES = ("<=50K", ">50K")

# The survey's own coding (ages from 17, capped at 90; two digits of hours; five of gains);
# losses are clamped by choice.
RANGES = {
    "age": (17.0, 90.0),
    "education_num": (1.0, 16.0),
    "capital_gain": (0.0, 99_999.0),
    "capital_loss": (0.0, 5000.0),
    "hours_per_week": (1.0, 99.0),
}

# Sums of money span decades.
MAPS = {"knots": "auto", "scales": {"capital_gain": "log", "capital_loss": "log"}}

# The published code book, in its spelling. "?" is a missing answer.
CATEGORIES = {
    "workclass": code_book(
        "? Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay"
    ),
    "education": code_book(
        "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate HS-grad Masters "
        "Preschool Prof-school Some-college"
    ),
    "marital_status": code_book(
        "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated Widowed"
    ),
    "occupation": code_book(
        "? Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners Machine-op-inspct "
        "Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support Transport-moving"
    ),
    "relationship": code_book("Husband Not-in-family Other-relative Own-child Unmarried Wife"),
    "race": code_book("Amer-Indian-Eskimo Asian-Pac-Islander Black Other White"),
    "sex": code_book("Female Male"),
    "native_country": code_book(
        "? Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France Germany Greece "
        "Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan Laos Mexico "
        "Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South Taiwan "
        "Thailand Trinadad&Tobago United-States Vietnam Yugoslavia"
    ),
}


@in_the_form_of("data", "adult.npz")
def load_adult(data: Directory = None) -> Dataset:
    """Adult: 5 numeric and 8 categorical columns; the survey weight fnlwgt is not a feature and is omitted.

    Read from adult.npz (``num_train``, ``cat_train``, ``y_train`` and the same for ``test``), otherwise from OpenML,
    which merges training and test rows: ``test_X`` is then None.

    Args:
        data: a directory with adult.npz; by default DPBILEVEL_DATA and then scikit-learn's fetcher are tried.

    >>> load_adult("/data")  # doctest: +SKIP
    Dataset('adult', 32561 rows, 13 columns, 2 classes, 16281 test rows)
    """
    arrays = stored("adult", data, *ARRAYS)
    test_X, test_target = None, None
    if arrays is not None:
        X, target = _part(arrays, "train")
        test_X, test_target = _part(arrays, "test")
    else:
        bunch = fetched("adult", lambda datasets: datasets.fetch_openml("adult", version=2, as_frame=True))
        X, target = _of_frame(bunch.data), bunch.target.to_numpy(dtype=object)
    return Dataset(
        name="adult",
        X=X,
        target=target,
        test_X=test_X,
        test_target=test_target,
        ranges=dict(RANGES),
        categories={column: list(values) for column, values in CATEGORIES.items()},
        maps=dict(MAPS),
        classes=CLASSES,
        citation="B. Becker and R. Kohavi, Adult, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20",
        licence="CC BY 4.0",
    )


def _part(arrays: dict[str, Array], part: str) -> tuple[dict[str, Array], Array]:
    names = names_in(arrays)
    numeric, codes = names["numeric_columns"], names["categorical_columns"]
    columns = {name: arrays[f"num_{part}"][:, numeric.index(name)] for name in RANGES}
    for name in CATEGORIES:
        columns[name] = decode(arrays[f"cat_{part}"][:, codes.index(name)], names["categories"][name])
    return columns, decode(arrays[f"y_{part}"], list(CLASSES))


def _of_frame(frame: Any) -> dict[str, Array]:
    """Rename OpenML's columns (such as education-num) and replace its missing cells by UCI's "?"."""
    columns = {name: frame[name.replace("_", "-")].to_numpy() for name in RANGES}
    for name in CATEGORIES:
        cells = frame[name.replace("_", "-")].to_numpy(dtype=object)
        cells[[is_missing(cell) for cell in cells]] = "?"
        columns[name] = cells
    return columns
