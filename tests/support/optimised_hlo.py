"""Reads what XLA has made of a program: which values it measures, and what of the records gets past the measure.

In optimised HLO every instruction outside of a fusion is a kernel that writes a buffer; what stands inside of one is
computed wherever the fusion runs. So a value that is compared with a public limit must be a buffer, and once all such
buffers are cut out of the graph nothing of the records may reach what the program returns.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

# What changes no bit of a number but its sign, and where it stands.
_EXACT = ("abs", "bitcast", "broadcast", "convert", "copy", "dynamic-slice", "negate", "reshape", "slice", "transpose")
_SUMS = ("reduce", "reduce-window", "sqrt")
_WIDTHS = {"bf16": 1, "f16": 1, "f32": 2, "f64": 3}


@dataclass(frozen=True)
class Instruction:
    name: str
    dtype: str
    opcode: str
    operands: tuple[str, ...]
    argument: str
    attributes: str
    is_root: bool

    def attribute(self, name: str) -> str:
        found = re.search(rf"\b{name}=%?([\w.-]+)", self.attributes)
        assert found, f"{self.opcode} without {name}"
        return found[1]


@dataclass(frozen=True)
class Value:
    """What is known of an array.

    Args:
        source: the instruction whose bits it has.
        dtype: its type.
        private: whether it depends on records.
        number: its value, where it is a constant.
        squares: the source of what it is a sum of squares of.
    """

    source: str
    dtype: str
    private: bool = False
    number: float | None = None
    squares: str | None = None


@dataclass
class Reading:
    """What one pass over a module finds: what is measured, what is a buffer, whether results depend on records."""

    measured: set[str] = field(default_factory=set)
    buffers: set[str] = field(default_factory=set)
    escapes: bool = False


class Module:
    """Optimised HLO.

    Args:
        text: from ``compiled.as_text()``.
        records: how the names of entry parameters begin that hold records; masks (pred) are not records.
    """

    def __init__(self, text: str, records: str) -> None:
        self._records = records
        self._computations: dict[str, list[Instruction]] = {}
        self._entry = ""
        for line in text.splitlines():
            header = re.match(r"(ENTRY )?%([\w.-]+) \(.*\{$", line)
            if header:
                self._entry = header[2] if header[1] else self._entry
                instructions = self._computations.setdefault(header[2], [])
            elif re.match(r"\s+(ROOT )?%", line):
                instructions.append(_instruction(line))
        assert self._entry, "no entry computation: the text of HLO has changed"

    def opcodes(self) -> list[str]:
        """Of all instructions, fused ones included."""
        return [instruction.opcode for each in self._computations.values() for instruction in each]

    def is_measured_once(self, limit: float) -> bool:
        """Whether what is compared with ``limit`` is in buffers through which everything of the records must pass."""
        first = self._read(limit, cut=frozenset())
        assert first.measured, f"nothing is compared with {limit}"
        second = self._read(limit, cut=frozenset(first.measured))
        return first.escapes and first.measured <= first.buffers and not second.escapes

    def _read(self, limit: float, cut: frozenset[str]) -> Reading:
        reading = Reading()
        parameters: dict[int, Value] = {}
        for instruction in self._computations[self._entry]:
            if instruction.opcode == "parameter":
                private = instruction.name.startswith(self._records) and instruction.dtype != "pred"
                parameters[int(instruction.argument)] = Value(instruction.name, instruction.dtype, private)
        root = _Pass(self._computations, limit, cut, reading).run(
            self._entry, [parameters[index] for index in sorted(parameters)], fused=False
        )
        reading.escapes = any(value.private for value in _leaves(root))
        return reading


class _Pass:
    """One abstract execution of a module."""

    def __init__(
        self, computations: dict[str, list[Instruction]], limit: float, cut: frozenset[str], reading: Reading
    ) -> None:
        self._computations, self._limit, self._cut, self._reading = computations, limit, cut, reading

    def run(self, computation: str, arguments: list[Any], fused: bool) -> Any:
        values: dict[str, Any] = {}
        root = None
        for instruction in self._computations[computation]:
            operands = [values[name] for name in instruction.operands]
            value = self._value(instruction, operands, arguments, fused)
            value = _mapped(value, lambda leaf: replace(leaf, private=leaf.private and leaf.source not in self._cut))
            if not fused:
                self._reading.buffers.update(leaf.source for leaf in _leaves(value))
            values[instruction.name] = value
            root = value if instruction.is_root else root
        return root

    def _value(self, instruction: Instruction, operands: list[Any], arguments: list[Any], fused: bool) -> Any:
        opcode = instruction.opcode
        if opcode == "parameter":
            return arguments[int(instruction.argument)]
        if opcode == "tuple":
            return tuple(operands)
        if opcode == "get-tuple-element":
            return operands[0][int(instruction.attribute("index"))]
        if opcode == "fusion":
            return self.run(instruction.attribute("calls"), operands, fused=True)
        if opcode == "call":
            return self.run(instruction.attribute("to_apply"), operands, fused)
        if opcode == "while":
            return self._loop(instruction.attribute("body"), operands[0], fused)
        assert opcode != "conditional", "a branch on values"
        private = any(leaf.private for leaf in _leaves(tuple(operands)))
        if instruction.dtype.startswith("("):
            number = instruction.dtype.count("[")
            return tuple(Value(f"{instruction.name}#{index}", "", private) for index in range(number))
        return self._array(instruction, operands, Value(instruction.name, instruction.dtype, private))

    def _array(self, instruction: Instruction, operands: list[Any], fresh: Value) -> Value:
        opcode = instruction.opcode
        if opcode == "constant":
            return replace(fresh, number=_number(instruction.argument))
        if opcode == "compare" and "direction=LE" in instruction.attributes:
            given, limit = operands
            if limit.number is not None and math.isclose(limit.number, self._limit, rel_tol=1e-7):
                self._reading.measured.add(given.squares or given.source)
        if opcode in _EXACT and _WIDTHS.get(operands[0].dtype, 0) <= _WIDTHS.get(fresh.dtype, 0):
            return replace(operands[0], dtype=fresh.dtype)
        if opcode == "multiply" and operands[0].source == operands[1].source:
            return replace(fresh, squares=operands[0].source)
        # GPUs sum a long row in two steps, the first of them over parts of equal length.
        padded = opcode == "pad" and operands[1].number == 0
        if opcode in _SUMS or padded:
            return replace(fresh, squares=operands[0].squares)
        return fresh

    def _loop(self, body: str, state: tuple[Value, ...], fused: bool) -> tuple[Value, ...]:
        """A loop carries what its body changes: it is written in one step, and read in the next or after the last."""
        while True:
            measured, buffers = set(self._reading.measured), set(self._reading.buffers)
            after = self.run(body, [state], fused)
            pairs = enumerate(zip(state, after, strict=True))
            joined = tuple(old if old == new else _carried(f"{body}#{index}", old, new) for index, (old, new) in pairs)
            if joined == state:
                return state
            state, self._reading.measured, self._reading.buffers = joined, measured, buffers


def _carried(name: str, old: Value, new: Value) -> Value:
    return Value(name, new.dtype, private=old.private or new.private)


def _instruction(line: str) -> Instruction:
    match = re.match(r"\s+(ROOT )?%([\w.-]+) = (.*)$", line)
    assert match
    dtype, rest = _split(match[3]) if match[3].startswith("(") else match[3].split(" ", 1)
    opcode, rest = rest.strip().split("(", 1)
    inside, attributes = _split("(" + rest)
    return Instruction(
        name=match[2],
        dtype=dtype if dtype.startswith("(") else dtype.split("[")[0],
        opcode=opcode,
        operands=tuple(re.findall(r"%([\w.-]+)", inside)),
        argument=inside[1:-1],
        attributes=attributes,
        is_root=bool(match[1]),
    )


def _split(text: str) -> tuple[str, str]:
    """What stands in the parentheses at the beginning, with them, and what comes after."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[: place + 1], text[place + 1 :]
    raise AssertionError("parentheses that do not close")


def _number(text: str) -> float | None:
    try:
        return float(text.strip("{}"))  # braces around an array of one number
    except ValueError:
        return None


def _leaves(value: Any) -> list[Value]:
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, tuple) else [value]


def _mapped(value: Any, function: Callable[[Value], Value]) -> Any:
    return tuple(_mapped(part, function) for part in value) if isinstance(value, tuple) else function(value)
