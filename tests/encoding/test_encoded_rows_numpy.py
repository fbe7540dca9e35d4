"""Whatever NumPy computes from encoded rows has their caveats, and a norm only where it holds.

NumPy itself says which of its functions a class of arrays may take over. Each of them is either called here, or named
with the reason why nothing of rows is in what it returns; a new one of a later version fails this test.
"""

import numpy as np
import pytest
from numpy.lib import scimath
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from numpy.testing.overrides import get_overridable_numpy_array_functions, get_overridable_numpy_ufuncs

from dpbilevel.encoding.encoded_rows import EncodedRows

pytestmark = pytest.mark.filterwarnings("ignore")
CELLS = np.array([[2.0, 0.5, 0.1], [0.5, 3.0, 0.2], [0.1, 0.2, 1.0]])
PLACES = np.array([[0], [1], [2]])


def one():
    """Rows whose declared norm is exact: whatever doubles a cell exceeds it."""
    return EncodedRows(CELLS, data_norm=float(np.linalg.norm(CELLS, axis=1).max()), caveats=["one"])


def two():
    return EncodedRows(CELLS + 1, data_norm=9.0, caveats=["two"])


def whole():
    return one().astype(int)


# What a function needs besides one matrix of rows.
OF_ONE = {
    np.apply_along_axis: lambda f: f(np.cumsum, 0, one()),
    np.apply_over_axes: lambda f: f(np.sum, one(), [0]),
    np.array_split: lambda f: f(one(), 2),
    np.astype: lambda f: f(one(), np.float32),
    np.bincount: lambda f: f(whole()[0]),
    np.broadcast_to: lambda f: f(one(), (2, 3, 3)),
    np.compress: lambda f: f([True, False, True], one(), axis=0),
    np.delete: lambda f: f(one(), 0, axis=0),
    np.diag: lambda f: f(one()),
    np.diag_indices_from: lambda f: f(one()),
    np.digitize: lambda f: f(one(), [0.0, 1.0]),
    np.dsplit: lambda f: f(one()[:, :, None], 1),
    np.expand_dims: lambda f: f(one(), 0),
    np.extract: lambda f: f(CELLS > 1, one()),
    np.full_like: lambda f: f(one(), 1.0),
    np.cumulative_prod: lambda f: f(one(), axis=0),
    np.cumulative_sum: lambda f: f(one(), axis=0),
    np.histogramdd: lambda f: f(one()),
    np.hsplit: lambda f: f(one(), 3),
    np.insert: lambda f: f(one(), 0, 1.0, axis=1),
    np.ix_: lambda f: f(whole()[0]),
    np.linalg.matrix_power: lambda f: f(one(), 2),
    np.linalg.tensorinv: lambda f: f(one(), ind=1),
    np.linalg.vector_norm: lambda f: f(one(), axis=1),
    np.moveaxis: lambda f: f(one(), 0, 1),
    np.nanpercentile: lambda f: f(one(), 30, axis=0),
    np.nanquantile: lambda f: f(one(), 0.3, axis=0),
    np.packbits: lambda f: f(one() > 1),
    np.pad: lambda f: f(one(), 1),
    np.partition: lambda f: f(one(), 1),
    np.argpartition: lambda f: f(one(), 1),
    np.percentile: lambda f: f(one(), 30, axis=0),
    np.piecewise: lambda f: f(one(), [CELLS > 1], [1.0, lambda cells: cells]),
    np.polyint: lambda f: f(one()[0]),
    np.polyder: lambda f: f(one()[0]),
    np.quantile: lambda f: f(one(), 0.3, axis=0),
    np.ravel_multi_index: lambda f: f((whole()[0], whole()[0]), (9, 9)),
    np.repeat: lambda f: f(one(), 2, axis=1),
    np.reshape: lambda f: f(one(), (9,)),
    np.resize: lambda f: f(one(), (2, 9)),
    np.roll: lambda f: f(one(), 1),
    np.rollaxis: lambda f: f(one(), 1),
    np.searchsorted: lambda f: f(one()[2], CELLS),
    np.split: lambda f: f(one(), 3),
    np.swapaxes: lambda f: f(one(), 0, 1),
    np.take: lambda f: f(one(), [0, 2], axis=0),
    np.take_along_axis: lambda f: f(one(), PLACES, axis=1),
    np.tile: lambda f: f(one(), 2),
    np.unpackbits: lambda f: f(one().astype(np.uint8)),
    np.unravel_index: lambda f: f(whole()[0], (9, 9)),
    np.vander: lambda f: f(one()[0]),
    np.vsplit: lambda f: f(one(), 3),
    sliding_window_view: lambda f: f(one(), 2, axis=0),
}

# What has parts of two matrices of rows in it.
OF_BOTH = {
    np.append: lambda f: f(one(), two()),
    np.block: lambda f: f([[one(), two()], [np.eye(3), np.eye(3)]]),
    np.choose: lambda f: f(PLACES % 2, [one(), two()]),
    np.column_stack: lambda f: f([one(), two()]),
    np.concatenate: lambda f: f([one(), two()]),
    np.convolve: lambda f: f(one()[0], two()[0]),
    np.correlate: lambda f: f(one()[0], two()[0]),
    np.cov: lambda f: f(one(), two()),
    np.corrcoef: lambda f: f(one(), two()),
    np.cross: lambda f: f(one(), two()),
    np.dot: lambda f: f(one(), two()),
    np.dstack: lambda f: f([one(), two()]),
    np.einsum: lambda f: f("ij,kj->ik", one(), two()),
    np.histogram2d: lambda f: f(one()[0], two()[0]),
    np.geomspace: lambda f: f(one(), two()),
    np.hstack: lambda f: f([one(), two()]),
    np.inner: lambda f: f(one(), two()),
    np.interp: lambda f: f(one()[0], [0.0, 1.0, 2.0], two()[0]),
    np.intersect1d: lambda f: f(one(), two()),
    np.isclose: lambda f: f(one(), two()),
    np.isin: lambda f: f(one(), two()),
    np.kron: lambda f: f(one(), two()),
    np.lexsort: lambda f: f((one()[0], two()[0])),
    np.linalg.cross: lambda f: f(one(), two()),
    np.linalg.lstsq: lambda f: f(one(), two())[:1],
    np.linalg.matmul: lambda f: f(one(), two()),
    np.linalg.multi_dot: lambda f: f([one(), two(), one()]),
    np.linalg.outer: lambda f: f(one()[0], two()[0]),
    np.linalg.solve: lambda f: f(one(), two()),
    np.linalg.tensordot: lambda f: f(one(), two(), axes=1),
    np.linalg.tensorsolve: lambda f: f(one(), two()[0]),
    np.linspace: lambda f: f(one(), two()),
    np.logspace: lambda f: f(one(), two()),
    np.linalg.vecdot: lambda f: f(one(), two()),
    np.meshgrid: lambda f: f(one()[0], two()[0]),
    np.outer: lambda f: f(one(), two()),
    np.polyadd: lambda f: f(one()[0], two()[0]),
    np.polydiv: lambda f: f(one()[0], two()[0]),
    np.polyfit: lambda f: f(one()[0], two()[0], 1),
    np.polymul: lambda f: f(one()[0], two()[0]),
    np.polysub: lambda f: f(one()[0], two()[0]),
    np.polyval: lambda f: f(one()[0], two()),
    np.select: lambda f: f([CELLS > 1, CELLS < 1], [one(), two()]),
    np.setdiff1d: lambda f: f(one(), two()),
    np.setxor1d: lambda f: f(one(), two()),
    np.stack: lambda f: f([one(), two()]),
    np.tensordot: lambda f: f(one(), two(), axes=1),
    np.trapezoid: lambda f: f(one(), two()),
    np.union1d: lambda f: f(one(), two()),
    np.vstack: lambda f: f([one(), two()]),
    np.where: lambda f: f(CELLS > 1, one(), two()),
    scimath.power: lambda f: f(one(), two()),
    scimath.logn: lambda f: f(one() + 1, two()),
}

NO_ARRAY = {
    *(np.allclose, np.array_equal, np.array_equiv, np.can_cast, np.common_type, np.einsum_path, np.iscomplexobj),
    *(np.isrealobj, np.may_share_memory, np.min_scalar_type, np.ndim, np.result_type, np.shape, np.shares_memory),
    *(np.size, np.array2string, np.array_repr, np.array_str, np.vdot, np.save, np.savetxt, np.savez),
    np.savez_compressed,
}
IN_PLACE = {np.copyto, np.fill_diagonal, np.place, np.put, np.put_along_axis, np.putmask}  # test_encoded_rows.py
OF_DATES = {np.busday_count, np.busday_offset, np.datetime_as_string, np.is_busday}
OF_SCALARS = {np.poly, np.roots}  # NumPy asks the elements, not the array, for a class that takes over
# They make an array, a plain one unless like= asks for another: np.asarray is the way out of encoded rows.
MAKERS = {
    *(np.arange, np.array, np.asanyarray, np.asarray, np.ascontiguousarray, np.asfortranarray, np.empty, np.eye),
    *(np.frombuffer, np.fromfile, np.fromfunction, np.fromiter, np.fromstring, np.full, np.genfromtxt, np.identity),
    *(np.loadtxt, np.ones, np.require, np.tri, np.zeros),
}
# Others are for texts and structured arrays.
MODULES = {"numpy", "numpy.fft", "numpy.linalg", "numpy.lib.scimath", "numpy.lib.stride_tricks"}


def name(function):
    return f"{function.__module__}.{function.__name__}"


def takes_rows(function):
    others = {name(other) for other in NO_ARRAY | IN_PLACE | OF_DATES | OF_SCALARS | MAKERS}
    return name(function) not in others and function.__module__ in MODULES


FUNCTIONS = sorted(filter(takes_rows, get_overridable_numpy_array_functions()), key=name)


def arrays(result):
    """All arrays in what a function returned."""
    if isinstance(result, np.ndarray):
        yield result
    elif isinstance(result, list | tuple):
        for part in result:
            yield from arrays(part)


def faults(found, caveats):
    """What is wrong with arrays that come from rows with these caveats."""
    for array in found:
        if not caveats <= set(getattr(array, "caveats", ())):
            yield f"lost {caveats - set(getattr(array, 'caveats', ()))}"
        elif array.data_norm is not None and np.linalg.norm(np.asarray(array), axis=-1).max() > array.data_norm * 1.001:
            yield f"has a norm above {array.data_norm}"


def of_one(function):
    """Call a function on one matrix of rows so that it returns arrays: along an axis, or on a stack of one matrix."""
    calls = [OF_ONE[function]] if function in OF_ONE else DEFAULT_CALLS
    return next(filter(None, (list(arrays(call(function))) for call in calls)), [])


DEFAULT_CALLS = (lambda f: f(one()), lambda f: f(one()[None]) if f in ON_STACKS else f(one(), axis=0))
ON_STACKS = {
    getattr(np.linalg, stacked) for stacked in ("cond", "det", "matrix_norm", "matrix_rank", "slogdet", "trace")
}
ON_STACKS.add(np.trace)


def faults_of_functions():
    for function in FUNCTIONS:
        if function in OF_BOTH:
            found, caveats = list(arrays(OF_BOTH[function](function))), {"one", "two"}
        else:
            found, caveats = of_one(function), {"one"}
        yield from (f"{name(function)} {fault}" for fault in faults(found, caveats))
        if not found:
            yield f"{name(function)} returned no array; call it otherwise, or list it in NO_ARRAY"


def faults_of_ufuncs():
    """All ufuncs, and what can be done with them besides calling them."""
    calls = {ufunc.__name__: ufunc for ufunc in get_overridable_numpy_ufuncs() if "d->" in "".join(ufunc.types)}
    for title, ufunc in calls.items():
        inputs = [one(), two(), one()][: ufunc.nin]
        if ufunc.signature is not None:
            continue  # matmul and its like have their own names among the functions
        try:
            result = ufunc(*inputs)
        except TypeError:
            continue  # not for two matrices of floats
        yield from (
            f"{title} {fault}" for fault in faults(arrays(result), {"one", "two"} if ufunc.nin > 1 else {"one"})
        )
    methods = {
        "reduce": np.add.reduce(one(), axis=0),
        "accumulate": np.add.accumulate(one()),
        "reduceat": np.add.reduceat(one(), [0, 1]),
        "where": np.add(CELLS, 1, where=one() > 1, out=np.zeros((3, 3))),
        "operators": 1 / one() ** 2 - CELLS,
        "matmul": CELLS @ one(),
    }
    yield from (f"{title} {fault}" for title, array in methods.items() for fault in faults([array], {"one"}))
    both = {"outer": np.multiply.outer(one(), two()), "sum": one() + two(), "product": one() @ two()}
    yield from (f"{title} {fault}" for title, array in both.items() for fault in faults([array], {"one", "two"}))


METHODS = {
    "choose": lambda rows: (rows > 1).astype(int).choose([CELLS, CELLS]),
    "clip": lambda rows: rows.clip(0, 1),
    "compress": lambda rows: rows.compress([True, True, False], axis=1),
    "diagonal": lambda rows: rows.diagonal(),
    "dot": lambda rows: rows.dot(CELLS),
    "dot of a plain array": lambda rows: CELLS.dot(rows),
    "getfield": lambda rows: rows.getfield(np.float32),
    "argpartition": lambda rows: rows.argpartition(1),
    "newbyteorder": lambda rows: rows.byteswap(),
    "repeat": lambda rows: rows.repeat(2, axis=1),
    "reshape": lambda rows: rows.reshape(1, 9),
    "searchsorted": lambda rows: rows[2].searchsorted(CELLS),
    "swapaxes": lambda rows: rows.swapaxes(0, 1),
    "take": lambda rows: rows.take([0, 0], axis=1),
    "as_strided": lambda rows: as_strided(rows, subok=True),
    "flat": lambda rows: rows.flat[:4],
    "iteration": list,
    "vectorize": np.vectorize(lambda cell: cell + 1.0),
    "r_": lambda rows: np.r_[rows, CELLS],
    "c_": lambda rows: np.c_[CELLS, rows],
    "sum with out": lambda rows: rows.sum(axis=0, out=np.zeros(3)),
    **{title: lambda rows, title=title: getattr(rows, title) for title in ("T", "real", "imag", "mT")},
    **{
        title: lambda rows, title=title: getattr(rows, title)()
        for title in (
            "argsort",
            "conj",
            "conjugate",
            "copy",
            "flatten",
            "nonzero",
            "ravel",
            "round",
            "squeeze",
            "transpose",
            "view",
        )
    },
    **{
        title: lambda rows, title=title: getattr(rows, title)(axis=0)
        for title in (
            *("all", "any", "argmax", "argmin", "cumprod", "cumsum", "max", "mean", "min", "prod", "std", "sum", "var"),
        )
    },
}


def faults_of_methods():
    for title, method in METHODS.items():
        found = list(arrays(method(one())))
        yield from (f"{title} {fault}" for fault in faults(found, {"one"}))
        if not found:
            yield f"{title} returned no array"


@pytest.mark.parametrize("faults_of", [faults_of_functions, faults_of_ufuncs, faults_of_methods])
def test_whatever_is_computed_from_rows_has_their_caveats_and_no_wrong_norm(faults_of):
    assert list(faults_of()) == []


def test_functions_of_every_kind_are_called():
    called = {*map(name, FUNCTIONS)}
    assert {name(function) for function in (*OF_ONE, *OF_BOTH)} <= called
    assert len(called) > 200


def keep_everything(self, source):
    self.data_norm, self.caveats = getattr(source, "data_norm", None), getattr(source, "caveats", ())


BROKEN = {
    "functions drop caveats": ("__array_function__", np.ndarray.__array_function__),
    "arithmetic knows one of two": ("__array_ufunc__", np.ndarray.__array_ufunc__),
    "every view keeps the norm": ("__array_finalize__", keep_everything),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_arrays_are_noticed(monkeypatch, broken):
    monkeypatch.setattr(EncodedRows, *BROKEN[broken])
    assert [*faults_of_functions(), *faults_of_ufuncs(), *faults_of_methods()]


def test_masks_are_not_lost():
    masked = np.ma.array(CELLS, mask=CELLS > 1)
    assert isinstance(one() + masked, np.ma.MaskedArray)
    assert (one() + masked).mask.sum() == 2
