"""A model's layers in a table: shapes, parameters, multiply-adds, and the memory of all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from glnn.core import html
from glnn.core.process import readable_bytes
from glnn.core.tensor_info import TensorInfo, show
from glnn.core.types import UNKNOWN, DType, Shape, TensorType
from glnn.errors import ModelError, ShapeError, UnsupportedOpError, printable
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.passes.inlining import expand_composites
from glnn.model.node import Node

Dims = tuple[int | str, ...]


@dataclass(frozen=True)
class LayerSummary:
    """A layer, or a node of an ONNX model.

    kind: its class, or the operator. outputs: the shape of each result, open sizes by name.
    parameters: the number of their elements. parameter_bytes: their bytes. output_bytes: the bytes
    of its results, None where a size is open. multiply_adds: of its products and convolutions, None
    where they are not known.
    """

    name: str
    kind: str
    outputs: tuple[Dims, ...]
    parameters: int
    parameter_bytes: int
    output_bytes: int | None
    multiply_adds: int | None

    @property
    def shapes(self) -> str:
        """The shapes of its results as text."""
        return " ".join(map(show, self.outputs))


@dataclass(frozen=True)
class Summary:
    """The layers of a model and their totals; prints as a table, also in notebooks.

    inputs: of the model, with the sizes that were given. outputs: their names. trainable: the
    number of parameters that gradients change. sizes: by name, the open sizes for which
    multiply_adds are counted; None where these are not counted, as sizes are open or known only in
    a run. open_sizes: names of the open sizes that prevent counting. random_weights: True where a
    layer has its initial parameters.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[str, ...]
    layers: tuple[LayerSummary, ...]
    trainable: int
    sizes: Mapping[str, int] | None = None
    open_sizes: tuple[str, ...] = ()
    random_weights: bool = False

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def parameter_bytes(self) -> int:
        """The bytes of the parameters, as the model has them."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @property
    def multiply_adds(self) -> int | None:
        """The multiply-adds of all layers; None where they are not counted."""
        return _total(layer.multiply_adds for layer in self.layers)

    @property
    def output_bytes(self) -> int | None:
        """The bytes of all layers' results together; None where a size is open."""
        return _total(layer.output_bytes for layer in self.layers)

    @property
    def input_bytes(self) -> int | None:
        """The bytes of the inputs; None where a size is open."""
        return _total(_nbytes(i.tensor_type.bound(self.sizes or {})) for i in self.inputs)

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as dicts, lists, texts and numbers, for JSON."""
        return {
            "name": self.name,
            "inputs": [
                {"name": one.name, "type": one.type, "shape": list(one.shape)}
                for one in self.inputs
            ],
            "outputs": list(self.outputs),
            "layers": [
                {**asdict(layer), "outputs": [list(dims) for dims in layer.outputs]}
                for layer in self.layers
            ],
            "parameters": self.parameters,
            "trainable": self.trainable,
            "parameter_bytes": self.parameter_bytes,
            "input_bytes": self.input_bytes,
            "output_bytes": self.output_bytes,
            "multiply_adds": self.multiply_adds,
            "sizes": None if self.sizes is None else dict(self.sizes),
            "random_weights": self.random_weights,
        }

    @property
    def title(self) -> str:
        """The model's name, its inputs and outputs, and how many parameters it has."""
        inputs = ", ".join(f"{info.name} {_type_text(info)}" for info in self.inputs)
        outputs = ", ".join(self.outputs)
        return f"{self.name}: {inputs} -> {outputs}, {self.parameters:,} parameters"

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of the columns; the first three are texts, the others numbers."""
        counted = () if self.sizes is None else ("multiply-adds",)
        return ("layer", "kind", "output", "parameters", *counted)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells of each layer's row."""
        rows: list[tuple[str, ...]] = []
        for layer in self.layers:
            row = (layer.name, layer.kind, layer.shapes, f"{layer.parameters:,}")
            rows.append(row if self.sizes is None else (*row, _count(layer.multiply_adds)))
        return rows

    @property
    def totals(self) -> tuple[str, ...]:
        """Sentences about all layers: what is counted, and whether weights are random."""
        random = ("random weights: none were loaded or trained",) if self.random_weights else ()
        return (*random, *self._counts())

    def _counts(self) -> tuple[str, ...]:
        """Return sentences of parameters, multiply-adds and memory, as far as they are counted."""
        if self.sizes is None and not self.open_sizes:
            return ()
        others = self.parameters - self.trainable
        parameters = f"parameters: {self.trainable:,} trainable, {others:,} others"
        if self.sizes is None:
            return (
                f"{parameters}, {readable_bytes(self.parameter_bytes)}",
                f"multiply-adds and memory of results: open are {', '.join(self.open_sizes)}; give "
                "shapes (--shape) for the rest",
            )
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        memory = {
            "inputs": self.input_bytes,
            "results": self.output_bytes,
            "parameters": self.parameter_bytes,
        }
        parts = [f"{what} {readable_bytes(n)}" for what, n in memory.items() if n is not None]
        return (
            parameters,
            f"multiply-adds{f' for {sizes}' if sizes else ''}: {_count(self.multiply_adds)}",
            f"memory: {', '.join(parts)}",
        )

    def __str__(self) -> str:
        rows = [self.heads, *self.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.heads))]
        widths[3:] = [max(width, 10) for width in widths[3:]]
        lines = [self.title]
        for row in rows:
            cells = [
                text.ljust(width) if place < 3 else text.rjust(width)
                for place, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells))
        return "\n".join(printable(line.replace("\n", " ")) for line in (*lines, *self.totals))

    def _repr_html_(self) -> str:
        return html.table(
            self.heads, self.rows, caption=self.title, numbers=(3, 4), notes=self.totals
        )


@dataclass(frozen=True)
class SizeBinding:
    """The sizes of a model's inputs: those that were given, and those that stay open.

    known: sizes that were given, by their names in the model. inputs: the shape of each input, open
    sizes by name. sample: {name of the batch: 1} where only the batch is open, else empty.
    """

    known: Mapping[str, int]
    inputs: Mapping[str, Dims]
    sample: Mapping[str, int]

    @property
    def counted(self) -> dict[str, Shape] | None:
        """The inputs' shapes for which multiply-adds are counted, by name: of one sample where only
        the batch is open; None where other sizes are open.
        """
        shapes: dict[str, Shape] = {}
        for name, dims in self.inputs.items():
            sizes = [self.sample.get(n, n) if isinstance(n, str) else n for n in dims]
            if any(isinstance(n, str) for n in sizes):
                return None
            shapes[name] = tuple(map(int, sizes))
        return shapes

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The names of the sizes that stay open, in order."""
        sizes = (n for dims in self.inputs.values() for n in dims if isinstance(n, str))
        return tuple(dict.fromkeys(sizes))

    @classmethod
    def create(
        cls,
        model: str,
        infos: Sequence[TensorInfo],
        shapes: Mapping[str, Sequence[int] | int] | Sequence[int] | None,
        batch: int | None,
    ) -> SizeBinding:
        """Bind `shapes` and `batch`, as `Model.summary` has them, to the inputs `infos`."""
        given = _by_name(model, infos, shapes)
        names = {n for info in infos for n in info.shape if isinstance(n, str) and n != UNKNOWN}
        first = next(iter(infos[0].shape), None) if infos else None
        known: dict[str, int] = {}
        if batch is not None:
            if isinstance(first, str):
                known[first] = batch
            elif batch != first:
                takes = "has no batch" if first is None else f"takes a batch of {first} alone"
                raise ShapeError(f"batch: {model} {takes}, got {batch}")
        inputs: dict[str, Dims] = {}
        for key, value in given.items():
            info = next((info for info in infos if info.name == key), None)
            if info is not None and not isinstance(value, int):
                inputs[key] = shape = tuple(value)
                info.check(shape)
                for symbol, size in zip(info.shape, shape, strict=False):  # their rank may be open
                    if symbol in names and known.setdefault(str(symbol), size) != size:
                        conflict = f"the size {symbol} is {known[str(symbol)]} and {size}"
                        raise ShapeError(f"shapes: {conflict}, expected one for {model}")
            elif key in names and isinstance(value, int):
                known[key] = value
            else:
                takes = ", ".join([*(info.name for info in infos), *sorted(names)])
                raise ModelError(f"shapes: {model} takes shapes or sizes of {takes}, got {key!r}")
        for info in infos:
            dims = tuple(known.get(n, n) if isinstance(n, str) else n for n in info.shape)
            inputs.setdefault(info.name, dims)
        names = {n for dims in inputs.values() for n in dims if isinstance(n, str)}
        sample = {first: 1} if isinstance(first, str) and names == {first} else {}
        return cls(known, {info.name: inputs[info.name] for info in infos}, sample)


def _by_name(
    model: str,
    infos: Sequence[TensorInfo],
    shapes: Mapping[str, Sequence[int] | int] | Sequence[int] | None,
) -> Mapping[str, Sequence[int] | int]:
    """Return `shapes` by name, also where it is the shape of the only input."""
    if shapes is None or isinstance(shapes, Mapping):
        return shapes or {}
    if len(infos) != 1:
        raise ModelError(f"shapes: {model} has {len(infos)} inputs: expected shapes by their names")
    return {infos[0].name: shapes}


@dataclass(frozen=True)
class InferredTypes:
    """The types of a graph's values by name, and the multiply-adds of its nodes.

    shown: types with the sizes that stay open. sized: types for the sizes that are counted, empty
    where none are. counts: multiply-adds by the node's name, None where they are not known.
    """

    shown: Mapping[str, TensorType]
    sized: Mapping[str, TensorType]
    counts: Mapping[str, int | None]

    @classmethod
    def of_graph(cls, graph: Graph, sizes: SizeBinding | None = None) -> InferredTypes:
        """Infer the types for `sizes`; None leaves all sizes open."""
        values = [value for node in graph.nodes for value in node.outputs]
        if sizes is None:
            return cls({value.name: value.type for value in values}, {}, {})
        shown = {value.name: value.type.bound(sizes.known) for value in values}
        if sizes.counted is None:
            return cls(shown, {}, {})
        input_types = graph.input_types(sizes.counted)
        types = graph.infer_types(input_types)
        sized = {value.name: types[value] for value in values}
        shown = _known_for_any_batch(graph, sizes, shown, sized) if sizes.sample else sized
        return cls(shown, sized, _multiply_adds(graph, input_types))

    def summarize(
        self,
        name: str,
        kind: str,
        outputs: Sequence[str],
        parameters: Sequence[TensorType],
    ) -> LayerSummary:
        """Summarize a layer or node. outputs: names of its results."""
        return LayerSummary(
            name,
            kind,
            tuple(self.shown[output].dims for output in outputs),
            sum(prod(type.shape) for type in parameters),
            sum(type.nbytes for type in parameters),
            _total(_nbytes(self.sized.get(one, self.shown[one])) for one in outputs),
            self.counts.get(name),
        )


def _known_for_any_batch(
    graph: Graph,
    sizes: SizeBinding,
    shown: Mapping[str, TensorType],
    sized: Mapping[str, TensorType],
) -> dict[str, TensorType]:
    """Return the types `shown`, with unknown sizes that are the same for any batch.

    That is found by inferring types for two samples. sized: the types for one sample.
    """
    result = dict(shown)
    unknown = {name for name, type in shown.items() if UNKNOWN in type.dims}
    two = replace(sizes, sample=dict.fromkeys(sizes.sample, 2)).counted
    if not unknown or two is None:
        return result
    try:
        types = graph.infer_types(graph.input_types(two))
    except (ShapeError, UnsupportedOpError):  # a model may take one sample alone
        return result
    for value in (value for node in graph.nodes for value in node.outputs):
        if value.name in unknown:
            result[value.name] = _agreeing(shown[value.name], sized[value.name], types[value])
    return result


def _agreeing(shown: TensorType, one: TensorType, two: TensorType) -> TensorType:
    """Return `shown` with its unknown sizes replaced where `one` and `two` have the same size."""
    if not len(shown.dims) == len(one.dims) == len(two.dims):
        return shown
    triples = zip(shown.dims, one.dims, two.dims, strict=True)
    dims = tuple(a if n == UNKNOWN and a == b else n for n, a, b in triples)
    return TensorType(dims, shown.dtype, shown.holds)


def layer_summaries(nodes: Sequence[Node], types: InferredTypes) -> tuple[LayerSummary, ...]:
    """Summarize a model's layers. types: of its graph."""
    return tuple(
        types.summarize(
            node.name,
            type(node.layer).__name__,
            node.outputs,
            [TensorType(shape) for shape in node.layer.shapes.values()],
        )
        for node in nodes
    )


def node_summaries(
    graph: Graph, named: Collection[str], types: InferredTypes
) -> tuple[LayerSummary, ...]:
    """Summarize a graph's nodes; a constant counts as a parameter of its first reader.

    int64 constants, which are sizes and indices, and single numbers whose names are not in `named`
    are no parameters.
    """
    seen: set[Value] = set()
    result = []
    for node in graph.nodes:
        read = [v for v in node.reads if v.kind is Kind.CONSTANT and v not in seen]
        seen.update(read)
        parameters = [
            value.type
            for value in read
            if value.type.dtype is not DType.int64 and (value.type.shape or value.name in named)
        ]
        outputs = [value.name for value in node.outputs]
        result.append(types.summarize(node.name, str(node.operator), outputs, parameters))
    return tuple(result)


def _multiply_adds(graph: Graph, types: Mapping[str, TensorType]) -> dict[str, int | None]:
    """Count the multiply-adds of a graph's nodes, by their names.

    Those of a recurrent layer include the units that pad their number to a multiple of four, as
    these are computed; those of a branch or a loop are not known.

    Args:
        graph: The graph; composites are expanded.
        types: The types of its inputs by name, all sizes known.

    Returns:
        A count for each node, None for one that is not known. Empty where the model's sizes depend
        on numbers known only in a run.
    """
    try:
        expanded = expand_composites(graph, types)
        inferred = expanded.infer_types({v.name: types[v.name] for v in expanded.inputs})
    except (ShapeError, UnsupportedOpError):
        return {}
    result: dict[str, int | None] = {node.name: 0 for node in graph.nodes}
    for node in expanded.nodes:
        name = node.name
        while name not in result and "/" in name:  # a node inside a function: `call/node`
            name = name.rpartition("/")[0]
        count = result.get(name, 0)
        if count is None:
            continue
        operands = node.operator.named([None if v is None else inferred[v] for v in node.inputs])
        if node.operator.control or any(one.symbols for one in operands.values()):
            result[name] = None
        else:
            shapes: dict[str, Shape] = {key: one.shape for key, one in operands.items()}
            result[name] = count + node.operator.multiply_adds(shapes)
    return result


def _nbytes(type: TensorType) -> int | None:
    return None if type.symbols or type.holds else type.nbytes


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum of `counts`, None where one of them is."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _type_text(info: TensorInfo) -> str:
    """Return the shape, and the type where that is not float32."""
    if info.holds:
        return info.holds
    kind = "" if info.dtype is DType.float32 else f"{info.dtype.value} "
    return kind + show(info.shape)
