"""How much memory a traced function takes."""

from jax import make_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr

from dpbilevel.records import isolated_jax_config


def largest_intermediate(function, *shapes):
    """Elements of the largest array that a traced function computes, inner functions included; inputs do not count."""

    def sizes(value):
        if isinstance(value, ClosedJaxpr):
            value = value.jaxpr
        if isinstance(value, Jaxpr):
            for equation in value.eqns:
                yield from (variable.aval.size for variable in equation.outvars)
                yield from sizes(list(equation.params.values()))
        elif isinstance(value, tuple | list):
            for item in value:
                yield from sizes(item)

    with isolated_jax_config():
        return max(sizes(make_jaxpr(function)(*shapes)))
