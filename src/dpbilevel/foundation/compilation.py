"""Compiled functions of records, without the fusions of XLA for processors that read beyond their operands.

XLA fuses matrix products with the reductions that follow them. If an operand of such a product is a broadcast number,
as zeros at which a loss is differentiated, the fused kernel reads a whole matrix at the place of one number (jaxlib
0.10.2). Results then depend on whatever lies behind it, and so would the contribution of a record, whose sensitivity
rests on reading nothing but that record. Kernels that contain a single product do not, and take no longer.
tests/foundation/test_compilation.py has the programs that are wrong.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}


class Compiled:
    """`jax.jit` with the options that records need; they are looked up when it first runs, not when it is imported."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        functools.update_wrapper(self, function)
        self._jit = functools.cache(lambda: jax.jit(function, compiler_options=compiler_options(), **options))

    def __call__(self, *arguments: Any) -> Any:
        return self._jit()(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jit(), name)


@functools.cache
def compiler_options() -> dict[str, Any]:
    """Those for `jax.jit`; none if the compiler does not know them, as one without these fusions may not."""
    try:
        jax.jit(lambda: 0, compiler_options=_OPTIONS).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return dict(_OPTIONS)
