"""What decides how long the loops of a traced program run: public numbers, or values."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal


def steered_loops(jaxpr: Jaxpr, public: Sequence[bool]) -> list[str]:
    """A name for each loop whose length depends on an input that is not public."""
    found: list[str] = []
    _flow(jaxpr, list(public), found)
    return found


def _flow(jaxpr: Jaxpr, public: Sequence[bool], found: list[str]) -> list[bool]:
    """Which outputs depend on public inputs only; loops that do not are added to ``found``."""
    known: dict[Any, bool] = dict(zip(jaxpr.invars, public, strict=True))

    def is_public(variable: Any) -> bool:
        return isinstance(variable, Literal) or known.get(variable, True)  # constants of a program are public

    for equation in jaxpr.eqns:
        inputs = [is_public(variable) for variable in equation.invars]
        known |= dict(zip(equation.outvars, _outputs(equation, inputs, found), strict=True))
    return [is_public(variable) for variable in jaxpr.outvars]


def _outputs(equation: Any, inputs: list[bool], found: list[str]) -> list[bool]:
    name, parameters = equation.primitive.name, equation.params
    if name == "while":
        return _while(parameters, inputs, found)
    if name == "scan":
        return _scan(parameters, inputs, found)
    inner = [part for value in parameters.values() for part in (value if isinstance(value, tuple) else (value,))]
    bodies = [_plain(part) for part in inner if isinstance(part, ClosedJaxpr | Jaxpr)]
    if len(bodies) == 1 and len(bodies[0].invars) == len(inputs) and len(bodies[0].outvars) == len(equation.outvars):
        return _flow(bodies[0], inputs, found)  # a call
    for body in bodies:  # anything else: its inputs may depend on any value
        _flow(body, [all(inputs)] * len(body.invars), found)
    return [all(inputs)] * len(equation.outvars)


def _while(parameters: dict[str, Any], inputs: list[bool], found: list[str]) -> list[bool]:
    of_condition, of_body = parameters["cond_nconsts"], parameters["body_nconsts"]
    condition, body = _plain(parameters["cond_jaxpr"]), _plain(parameters["body_jaxpr"])
    for_condition, for_body = inputs[:of_condition], inputs[of_condition : of_condition + of_body]
    carry = _settled(lambda carry: _flow(body, [*for_body, *carry], []), inputs[of_condition + of_body :])
    _flow(body, [*for_body, *carry], found)
    if not all(_flow(condition, [*for_condition, *carry], found)):
        found.append("while")
        return [False] * len(carry)
    return carry


def _scan(parameters: dict[str, Any], inputs: list[bool], found: list[str]) -> list[bool]:
    constants, carried = parameters["num_consts"], parameters["num_carry"]
    body, rest = _plain(parameters["jaxpr"]), inputs[constants + carried :]
    first = inputs[:constants]
    start = inputs[constants : constants + carried]
    carry = _settled(lambda carry: _flow(body, [*first, *carry, *rest], [])[:carried], start)
    return [*carry, *_flow(body, [*first, *carry, *rest], found)[carried:]]


def _settled(step: Any, carry: list[bool]) -> list[bool]:
    """What of a carry stays public in all steps."""
    while True:
        after = [one and other for one, other in zip(carry, step(carry), strict=True)]
        if after == carry:
            return carry
        carry = after


def _plain(jaxpr: Any) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
