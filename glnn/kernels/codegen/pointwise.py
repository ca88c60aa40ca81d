"""Generator for the templates of shaders/pointwise: operands, fetches, an expression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from glnn.core.layout import Layout, Strip
from glnn.core.layout.bytes import PACKED_ROWS
from glnn.core.layout.layout import PACKED
from glnn.core.symint import divides, same
from glnn.core.types import DType, Shape, TensorType, widened
from glnn.errors import UnsupportedOpError
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.operator import Operator
from glnn.graph.operators.pointwise import Pointwise
from glnn.kernels.codegen.expression import (
    STORED,
    VECTORS,
    fingerprint,
    function,
    types_on_gpu,
    uniforms,
)
from glnn.kernels.codegen.generated import Generated, Uniform

ENDLESS = 2**31 - 1


class Read(IntEnum):
    """Access pattern by which a shader reads an operand's four numbers for a vec4 of the result."""

    SAME = 0
    """The vec4 at the same place."""
    QUAD = 1
    """The vec4 at another place."""
    SPLAT = 2
    """A single number, broadcast to all four."""
    EACH = 3
    """Four numbers, each from its own place."""
    ONE = 4
    """The only number of a scalar operand."""


@dataclass(frozen=True)
class Geometry:
    """The dimensions of a result's memory, adjacent ones merged where they are so in all operands.

    The place of a number in an operand's memory is the sum of strides times indices.
    """

    places: tuple[int, ...]
    """The result's stride along each dimension, outermost first; the last is 1."""
    extents: tuple[int, ...]
    """The size of each dimension; ENDLESS where only padding follows."""
    strides: Mapping[str, tuple[int, ...]]
    """Each operand's strides along these dimensions."""

    @classmethod
    def create(cls, shapes: Mapping[str, Shape], layouts: Mapping[str, Layout]) -> Geometry:
        """Return the geometry of operands whose shapes broadcast to that of the result `out`.

        Raises UnsupportedOpError where an operand's layout has no strides along the result's.
        """
        dims = layouts["out"].dims(shapes["out"])
        names = [name for name in shapes if name != "out"]
        table = {n: [_stride(n, i, shapes, layouts) for i in range(len(dims))] for n in names}
        columns = [
            (dim.extent, dim.stride, [table[name][i] for name in names])
            for i, dim in enumerate(dims)
            if not same(dim.extent, 1)
        ]
        last = columns[-1][1] if columns else 4
        if not same(last, 1):  # padding follows every number
            strides_inside = [
                int(same(shapes[n], shapes["out"]) and layouts[n] == layouts["out"]) for n in names
            ]
            columns.append((last, 1, strides_inside))
        columns = _merged(columns)
        places = tuple(place for _, place, _ in columns)
        extents = tuple(
            extent if i == 0 or same(extent * place, places[i - 1]) else ENDLESS
            for i, (extent, place, _) in enumerate(columns)
        )
        strides = {name: tuple(steps[i] for _, _, steps in columns) for i, name in enumerate(names)}
        return cls(places, extents, strides)

    def read(self, name: str) -> Read:
        """Return the access pattern of the operand `name`."""
        strides = self.strides[name]
        if all(same(stride, 0) for stride in strides):
            return Read.ONE
        if same(strides, self.places):
            return Read.SAME
        if all(divides(4, place) for place in self.places[:-1]):
            if same(strides[-1], 0):
                return Read.SPLAT
            if same(strides[-1], 1) and all(divides(4, stride) for stride in strides[:-1]):
                return Read.QUAD
        return Read.EACH


def _stride(name: str, i: int, shapes: Mapping[str, Shape], layouts: Mapping[str, Layout]) -> int:
    """Return the stride of `name` along dimension `i` of the result's memory; 0 if broadcast."""
    dim = layouts["out"].dims(shapes["out"])[i]
    axis = dim.axis - (len(shapes["out"]) - len(shapes[name]))
    if axis < 0 or shapes[name][axis] != shapes["out"][dim.axis]:
        return 0
    operand_dims = [d for d in layouts[name].dims(shapes[name]) if d.axis == axis]
    if len(operand_dims) == 1:
        return operand_dims[0].stride * dim.step
    for operand_dim in operand_dims:
        if operand_dim.step == dim.step:
            return operand_dim.stride
    raise UnsupportedOpError(
        f"{name} lies in {layouts[name].name} and the result in {layouts['out'].name}"
    )


def _merged(columns: list[tuple[int, int, list[int]]]) -> list[tuple[int, int, list[int]]]:
    """Merge adjacent dimensions (extent, place, strides) that are contiguous in all operands."""
    merged = [columns[0]]
    for extent, place, strides in columns[1:]:
        outer_extent, outer_place, outer_strides = merged[-1]
        pairs = zip(outer_strides, strides, strict=True)
        if divides(place, outer_place) and all(
            same(outer * place, inner * outer_place) for outer, inner in pairs
        ):
            merged[-1] = outer_extent * (outer_place // place), place, strides
        else:
            merged.append((extent, place, strides))
    return merged


@dataclass(frozen=True)
class Packing:
    """The packing of an operand's numbers into words, the first number in the lowest bits."""

    file: str
    """The file in shaders/common that defines the two functions."""
    four: str
    """The GLSL function that unpacks four numbers from the word or words that hold them."""
    one: str
    """The GLSL function that unpacks one number, given its word and its index in the array."""
    count: int
    """The count of numbers in a word."""
    word: str
    """GLSL's type of a word."""
    words: str
    """GLSL's type of the word or words that hold four numbers."""


UNSIGNED = Packing("bytes.glsl", "four_unsigned", "one_unsigned", 4, "int", "int")
SIGNED = Packing("bytes.glsl", "four_signed", "one_signed", 4, "int", "int")
HALVES = Packing("half.glsl", "four_halves", "one_half", 2, "uint", "uvec2")
BYTES = {DType.uint8: UNSIGNED, DType.bool: UNSIGNED, DType.int8: SIGNED}


def packing(dtype: DType, layout: Layout, *, fetched: bool) -> Packing | None:
    """Return the packing of `dtype` in `layout`; None where each number has its own word.

    fetched: True for reading from a texture, whose texels may be halves.
    """
    if dtype is DType.float16:
        return None if fetched else HALVES
    return BYTES.get(dtype) if layout in (PACKED, PACKED_ROWS) else None


READ_AT_OFFSET = {Read.SAME: Read.QUAD, Read.ONE: Read.SPLAT}
"""The Read that replaces another where an operand has an offset in its memory."""
COMPUTED_PLACES = (Read.QUAD, Read.SPLAT, Read.EACH)
"""The Reads whose place in memory differs from the result's and must be computed."""
ATTRIBUTES = 4  # mat4 that a vertex may have: GL guarantees 16 vec4
MANY, FEW = 4, 2  # vec4 that a vertex captures: FEW where the expression takes many registers
LONG = frozenset(("arc", "remainder", "trigonometric"))
"""Files of functions that spill registers on Mali where MANY are computed at once."""


@dataclass(frozen=True)
class Fetch:
    """The access of a pointwise shader to one operand."""

    name: str
    kind: str
    """The kind of its numbers: float, int or bool."""
    read: Read
    binding: int | None
    """Its storage-buffer binding; None where it is fetched from a texture, or an attribute."""
    packing: Packing | None
    """The packing of several numbers in a word; None where each has its own word."""
    attribute: int
    """The count of vec4 that a vertex gets as an attribute, at its own place; 0 for none."""

    @property
    def fours(self) -> bool:
        """Return True where its memory is declared as vec4."""
        return self.read in (Read.SAME, Read.QUAD)

    @property
    def texel(self) -> str | int:
        """The texel format or attribute floats for a vertex shader: see `Generated.reads`."""
        if self.attribute:
            return 4 * self.attribute
        fours = self.fours and not self.packing
        return f"{'rgba' if fours else 'r'}32{'f' if self.kind == 'float' else 'i'}"

    @property
    def structure(self) -> str:
        """The text by which programs with different accesses differ."""
        packed = f"-{self.packing.one}" if self.packing else ""
        return f"{self.kind}-{self.read.name}{packed}{'-attribute' * bool(self.attribute)}"

    @property
    def declarations(self) -> list[str]:
        """The GLSL declarations that stand before any function."""
        name, kind = self.name, (VECTORS if self.fours else STORED)[self.kind]
        if self.packing:
            kind = self.packing.words if self.fours else self.packing.word
        if self.attribute:
            return [f"in highp mat{self.attribute}x4 {name};"]
        if self.binding is None:
            result = [f"uniform highp {name.upper()}_SAMPLER {name};"]
        else:
            block = f"layout(std430, binding = {self.binding}) buffer {name.upper()}"
            result = [f"{block} {{ {kind} {name}[]; }};"]
        if self.read in COMPUTED_PLACES:
            result.append(f"uniform int {name}_stride[RANK], {name}_first, {name}_size;")
        return result

    @property
    def line(self) -> str:
        """The GLSL line that reads its four numbers, or declares the variable for them."""
        name, vector = self.name, VECTORS[self.kind]
        if self.read is Read.EACH:
            return f"{vector} {name}_four;"
        if self.attribute:
            value = f"{name}[turn]"
        elif self.read is Read.SAME:
            value = self._at("quad")
        elif self.read is Read.QUAD:
            value = self._at(f"{self._where} / 4")
        else:
            value = f"{vector}({self._at('0' if self.read is Read.ONE else self._where)})"
        return f"{vector} {name}_four = {value};"

    def lane(self, lane: str) -> str:
        """Return the GLSL line that reads one of four numbers with places of their own."""
        return f"{self.name}_four.{lane} = {self._at(self._where)};"

    @property
    def _where(self) -> str:
        return f"where(at, {self.name}_stride, {self.name}_first, {self.name}_size)"

    def _at(self, index: str) -> str:
        """Return the GLSL expression of the four numbers at `index`, or of the one."""
        packing = self.packing
        if packing is None:
            return self._stored(index)
        if self.fours:
            return f"{packing.four}({self._stored(index)})"
        return f"{packing.one}({self._stored(f'{index} / {packing.count}')}, {index})"

    def _stored(self, index: str) -> str:
        """Return the GLSL expression of the stored word or vector at `index`."""
        if self.binding is not None:
            return f"{self.name}[{index}]"
        return f"texel({self.name}, {index})" + (".x" if self.texel in ("r32f", "r32i") else "")


def _fetches(
    reads: Mapping[str, Read],
    types: Mapping[str, TensorType],
    layouts: Mapping[str, Layout],
    vectors: int,
    *,
    stored: bool,
) -> list[Fetch]:
    """Return each operand's access. stored: by storage buffers, else textures and attributes."""
    result: list[Fetch] = []
    for i, (name, read) in enumerate(reads.items()):
        dtype = types[name].dtype
        spare = sum(fetch.attribute > 0 for fetch in result) < ATTRIBUTES
        as_attribute = read is Read.SAME and dtype is DType.float32 and spare and not stored
        binding, attribute = i + 1 if stored else None, vectors if as_attribute else 0
        packed = packing(dtype, layouts[name], fetched=not stored)
        result.append(Fetch(name, dtype.kind, read, binding, packed, attribute))
    return result


def generate(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate a pointwise kernel's code and uniforms for `op`: see `Generator.make`."""
    if not isinstance(op, Pointwise):
        raise UnsupportedOpError(f"it computes expressions, no {op.name}")
    if wrong := [name for name, one in types.items() if not one.dtype.on_gpu]:
        raise UnsupportedOpError(f"{wrong[0]} is {types[wrong[0]].dtype.value}, which no GPU has")
    types_on_gpu(op.expr, [widened(one).dtype for name, one in types.items() if name != "out"])
    shapes = {name: one.shape for name, one in types.items()}
    out = layouts["out"]
    strip = out if isinstance(out, Strip) else None
    if strip is not None:
        shapes |= {"target": shapes["out"]}
        layouts = {**layouts, "out": strip.base, "target": strip}
    geometry = Geometry.create(shapes, layouts)
    reads = {name: geometry.read(name) for name in types if name != "out"}
    reads |= {k: READ_AT_OFFSET.get(read, read) for k, read in reads.items() if layouts[k].offset}
    few = any(row.source in LONG for row in op.expr.expanded.functions)
    few = few or Read.EACH in reads.values() or len(geometry.places) > 3
    vectors = FEW if few else MANY
    fetches = _fetches(reads, types, layouts, vectors, stored=backend == "compute")
    placed = strip is not None or any(one.read in COMPUTED_PLACES for one in fetches)
    values: dict[str, Uniform] = {**uniforms(op.expr)}
    if placed:
        values |= {"place": geometry.places, "extent": geometry.extents}
        values |= {f"{name}_stride": strides for name, strides in geometry.strides.items()}
    if strip is not None:
        values |= {"target_first": strip.offset, "target_size": strip.size(shapes["out"])}
        values |= {"out_size": strip.base.size(shapes["out"])}
    zeros = out.zero_padding and not divides(4, types["out"].shape[1])
    if zeros:
        _, channels, high, wide = types["out"].shape
        values |= {"channels": channels, "pixels": high * wide}
    kind, expr = types["out"].dtype.kind, op.expr
    dtypes = [widened(types[fetch.name]).dtype for fetch in fetches]
    words = [fingerprint(expr), *(fetch.structure for fetch in fetches)]
    words += [dtype.value for dtype in (*dtypes, types["out"].dtype)]
    return Generated(
        ":".join(words),
        {
            "operands": lambda: "\n".join(_declared(fetches, kind)),
            "expression": lambda: function(expr, dtypes, "apply"),
            "fetches": lambda: "\n".join(_fetched(fetches)),
        },
        {
            "RANK": len(geometry.places) if placed else 0,
            "ZEROS": int(zeros),
            "STRIP": int(strip is not None),
            **_specialization_macros(types),
            **({"VECTORS": vectors} if backend == "feedback" else {}),
        },
        values,
        {fetch.name: fetch.texel for fetch in fetches},
    )


def _specialization_macros(types: Mapping[str, TensorType]) -> dict[str, int]:
    """Return the macros that specialized kernels' declarations test.

    FLOATS: 1 where all tensors are float32. COLUMNS: 1 where, besides, a matrix is combined with a
    vector of one number for each column.
    """
    floats = all(one.dtype is DType.float32 for one in types.values())
    x0, *others = (one.shape for name, one in types.items() if name != "out")
    rows = x0[1:], (1, *x0[1:])
    row = len(x0) == 2 and len(others) == 1 and any(same(others[0], one) for one in rows)
    columns = floats and row and same(x0, types["out"].shape)
    return {"FLOATS": int(floats), "COLUMNS": int(columns)}


def _declared(fetches: list[Fetch], kind: str) -> list[str]:
    """Return the lines before a program's functions. kind: that of the result."""
    declared = [line for fetch in fetches for line in fetch.declarations]
    files = dict.fromkeys(fetch.packing.file for fetch in fetches if fetch.packing)
    includes = [f'#include "common/{file}"' for file in files]
    return [*includes, *declared, f"#define RESULT {VECTORS[kind]}"]


def _fetched(fetches: list[Fetch]) -> list[str]:
    """Return the lines that read the operands' numbers and compute the result."""
    lines = [fetch.line for fetch in fetches]
    each = [fetch for fetch in fetches if fetch.read is Read.EACH]
    for lane in "xyzw" if each else "":  # lane by lane, so that few indices are alive at once
        lines += ["at = next(at);"] if lane != "x" else []
        lines += [fetch.lane(lane) for fetch in each]
    fours = ", ".join(f"{fetch.name}_four" for fetch in fetches)
    return [f"    {line}" for line in (*lines, f"RESULT found = apply({fours});")]


def examples() -> dict[str, tuple[Operator, dict[str, TensorType]]]:
    """Return expressions and operands that cover every variant of the templates."""
    image, three = (2, 6, 5, 7), call("add", call("mul", Arg(0), Arg(1)), Arg(2))
    scaled = call("mul", call("cast_float32", Arg(0)), call("cast_float32", Arg(1)))
    of_bytes, of_halves = TensorType(image, DType.uint8), TensorType(image, DType.float16)
    operands: dict[str, tuple[Expr, list[Shape | TensorType]]] = {
        "alone": (call("relu", Arg(0)), [image]),
        "alike": (call("add", Arg(0), Arg(1)), [image, image]),
        "columns": (call("add", Arg(0), Arg(1)), [(6, 8), (8,)]),
        "rows": (three, [(6, 8), (8,), (6, 1)]),
        "channels": (three, [image, (6, 1, 1), (2, 1, 5, 7)]),
        "scattered": (three, [(2, 3, 1, 3, 3), (1, 3, 5, 1, 3), (2, 1, 5, 3, 1)]),
        "spread": (
            call("add", Arg(0), Arg(1)),
            [(2, 1, 3, 1, 2, 1, 3, 1), (1, 2, 1, 3, 1, 2, 1, 4)],
        ),
        "long": (call("remainder", Arg(0), Arg(1)), [image, image]),
        "curved": (call("gelu", Arg(0)), [(6, 8)]),
        "scaled": (call("mul", call("sigmoid", Arg(0)), 2.0), [image]),
        "bytes": (call("div", call("cast_float32", Arg(0)), 255.0), [of_bytes]),
        "halves": (call("relu", call("cast_float16", Arg(0))), [of_halves]),
        "packed": (scaled, [TensorType((6, 1), DType.int8), TensorType((1, 7), DType.uint8)]),
        "packed-halves": (scaled, [of_halves, TensorType((6, 1, 7), DType.float16)]),
    }
    return {
        name: (Pointwise(expr), {f"x{i}": one for i, one in enumerate(map(_type, types))})
        for name, (expr, types) in operands.items()
    }


def _type(shape: Shape | TensorType) -> TensorType:
    return shape if isinstance(shape, TensorType) else TensorType(shape)
