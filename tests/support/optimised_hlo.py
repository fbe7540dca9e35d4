"""Reads what XLA has made of a program: which values it measures, and what of the records gets past the measure.

In optimised HLO every instruction outside of a fusion is a kernel that writes a buffer; what stands inside of one is
computed wherever the fusion runs. So a value that is compared with a public limit must be a buffer, and once all such
buffers are cut out of the graph nothing of the records may reach what the program returns.

Rows of records may get past the measure in one way: exact copies of rows whose norms the program computes, in a product
with what was measured.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from dpbilevel.foundation.compilation import compiler_options

# LLVM makes machine code of optimised HLO. Nobody runs it here, and its optimisation is half of a compilation.
UNOPTIMISED_CODE = {"xla_backend_optimization_level": 0}
# What changes no bit of a number but its sign, and where it stands.
_EXACT = ("abs", "bitcast", "broadcast", "convert", "copy", "dynamic-slice", "negate", "reshape", "slice", "transpose")
_EXACT += ("gather",)
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
    rank: int

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product, by the compiler's own code or by a library."""
        return self.opcode == "dot" or (self.opcode == "custom-call" and "gemm" in self.attributes)

    def contracted(self, side: str) -> set[int]:
        """The axes of a factor ("lhs" or "rhs") that a product contracts."""
        found = re.search(rf'{side}_contracting_dim(?:ension)?s"?[=:]\s*[{{\[]([^}}\]]*)', self.attributes)
        return {int(axis) for axis in re.findall(r"\d+", found[1])} if found else set()

    @property
    def precisions(self) -> tuple[str, ...]:
        """Of the factors of a product."""
        found = re.search(r'operand_precision"?[=:]\s*[{\[]([^}\]]*)', self.attributes)
        return tuple(found[1].replace('"', "").lower().split(",")) if found else ("default",)

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
        private: whether it depends on records, other than by what was measured.
        bounded: whether it depends on what was measured.
        number: its value, where it is a constant.
        squares: the source of what it is a sum of squares of.
        rank: how many axes it has.
    """

    source: str
    dtype: str
    private: bool = False
    bounded: bool = False
    number: float | None = None
    squares: str | None = None
    rank: int = 0


@dataclass
class Reading:
    """What one pass over a module finds.

    Args:
        measured: what is compared with the limit.
        rows: records of which norms are computed.
        precisions: of products that sum over records.
        buffers: what is in memory.
        escapes: whether results depend on records.
    """

    measured: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)
    precisions: set[str] = field(default_factory=set)
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

    def precisions_of_sums(self, limit: float) -> set[str]:
        """Of all products that sum over records what is measured by ``limit``; empty if there is none."""
        measured = self._read(limit, cut=frozenset()).measured
        return self._read(limit, cut=frozenset(measured)).precisions

    def _read(self, limit: float, cut: frozenset[str]) -> Reading:
        reading, measured = Reading(), set[str]()
        parameters: dict[int, Value] = {}
        for instruction in self._computations[self._entry]:
            if instruction.opcode == "parameter":
                name = _argument_name(instruction)
                private = name.startswith(self._records) and instruction.dtype != "pred"
                # What `Memory` has measured of its own arrays, all of which are matrices here.
                norms = private and "_norms_" in name
                value = Value(name, instruction.dtype, private and not norms, bounded=norms)
                parameters[int(instruction.argument)] = value
                if norms:
                    measured.add(name.replace("_norms_", "_arrays_").partition(".")[0])
        records = frozenset(value.source for value in parameters.values() if value.private)
        reading.rows = {name for name in records if name.partition(".")[0] in measured}
        root = _Pass(self._computations, limit, cut, records, reading).run(
            self._entry, [parameters[index] for index in sorted(parameters)], fused=False
        )
        reading.escapes = any(value.private for value in _leaves(root))
        return reading


class _Pass:
    """One abstract execution of a module."""

    def __init__(
        self,
        computations: dict[str, list[Instruction]],
        limit: float,
        cut: frozenset[str],
        records: frozenset[str],
        reading: Reading,
    ) -> None:
        self._computations, self._limit, self._cut, self._reading = computations, limit, cut, reading
        self._records = records

    def run(self, computation: str, arguments: list[Any], fused: bool) -> Any:
        values: dict[str, Any] = {}
        root = None
        for instruction in self._computations[computation]:
            operands = [values[name] for name in instruction.operands]
            value = self._value(instruction, operands, arguments, fused)
            value = _mapped(value, lambda leaf: _cut_off(leaf) if leaf.source in self._cut else leaf)
            if isinstance(value, Value):
                value = replace(value, rank=instruction.rank)
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
        leaves = _leaves(tuple(operands))
        private, bounded = any(leaf.private for leaf in leaves), any(leaf.bounded for leaf in leaves)
        if instruction.is_product and self._sums_what_is_measured(instruction, leaves):
            private = False
        if instruction.dtype.startswith("("):
            number = instruction.dtype.count("[")
            return tuple(Value(f"{instruction.name}#{index}", "", private, bounded) for index in range(number))
        return self._array(instruction, operands, Value(instruction.name, instruction.dtype, private, bounded))

    def _sums_what_is_measured(self, product: Instruction, factors: list[Value]) -> bool:
        """Whether a product sums, over records, rows whose norms are computed times numbers that were measured.

        Scores contract the columns of rows, their last axis; sums contract another one.
        """
        left, right = factors[:2]
        sides = (left, product.contracted("lhs")), (right, product.contracted("rhs"))
        scores = any(side.private and side.rank - 1 in axes for side, axes in sides)
        over_records = any(side.rank > 1 and side.rank - 1 not in axes for side, axes in sides)
        if scores or not over_records or not (left.bounded or right.bounded):
            return False
        self._reading.precisions |= set(product.precisions)
        rows = {side.source for side in (left, right) if side.private}
        return len(rows) == 1 and rows <= self._reading.rows

    def _array(self, instruction: Instruction, operands: list[Any], fresh: Value) -> Value:
        opcode = instruction.opcode
        if opcode == "constant":
            return replace(fresh, number=_number(instruction.argument))
        if opcode == "compare" and "direction=LE" in instruction.attributes:
            given, limit = operands
            if limit.number is not None and math.isclose(limit.number, self._limit, rel_tol=1e-7):
                self._reading.measured.add(given.squares or given.source)
        # A row, or zeros: what decides was measured, and what is left is the row.
        if opcode == "select" and operands[2].number == 0 and not operands[0].private:
            return replace(operands[1], dtype=fresh.dtype)
        if opcode in _EXACT and _WIDTHS.get(operands[0].dtype, 0) <= _WIDTHS.get(fresh.dtype, 0):
            return replace(operands[0], dtype=fresh.dtype)
        if opcode == "multiply" and operands[0].source == operands[1].source:
            return replace(fresh, squares=operands[0].source)
        # GPUs sum a long row in two steps, the first of them over parts of equal length. Zeros change no row.
        padded = opcode == "pad" and operands[1].number == 0
        if padded and operands[0].squares is None:
            return replace(operands[0], dtype=fresh.dtype)
        if opcode in _SUMS or padded:
            squares = operands[0].squares
            if opcode == "reduce" and squares in self._records:
                # The norm of a row of the records as they are: whoever computes it again gets another bound on it.
                self._reading.rows.add(squares)
                return replace(fresh, private=False, bounded=True, squares=squares)
            return replace(fresh, squares=squares)
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


def _argument_name(parameter: Instruction) -> str:
    """As Python has it. Programs for several devices number their parameters, and keep names as metadata."""
    written = re.search(r'op_name="([^"]*)"', parameter.attributes)
    if written is None or not parameter.name.startswith("param"):
        return parameter.name
    return re.sub(r"\W", "_", written[1].replace("\\", ""))


def _carried(name: str, old: Value, new: Value) -> Value:
    return Value(name, new.dtype, private=old.private or new.private, bounded=old.bounded or new.bounded)


def _cut_off(value: Value) -> Value:
    return replace(value, private=False, bounded=True)


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
        rank=0 if dtype.startswith("(") or "[]" in dtype else dtype.split("]")[0].count(",") + 1,
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
        return float(text.strip("{} "))  # braces around an array of one number
    except ValueError:
        return None


def _leaves(value: Any) -> list[Value]:
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, tuple) else [value]


def _mapped(value: Any, function: Callable[[Value], Value]) -> Any:
    return tuple(_mapped(part, function) for part in value) if isinstance(value, tuple) else function(value)


def optimised(lowered: Any, *, records: str) -> Module:
    """The program as the compiler has made it; ``records`` is the name of the argument that holds them."""
    options = UNOPTIMISED_CODE if jax.default_backend() == "cpu" else {}
    return Module(lowered.compile(compiler_options=options | compiler_options()).as_text(), records=records)
