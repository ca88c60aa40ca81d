"""Graphs of an ONNX model: nodes, the subgraphs of If, Loop and Scan, functions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glnn.core.cached_property import cached_property
from glnn.core.types import ANYTHING, UNKNOWN, UNRANKED, TensorType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder, constant
from glnn.graph.compose.control_flow import COUNT, Body, Scan, branch, loop
from glnn.graph.composite import Composite
from glnn.graph.expression import formula
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import Types
from glnn.graph.operators import Flip, Pointwise, Transpose
from glnn.graph.operators.control_flow import FLAG
from glnn.onnx.delegate import Delegate


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """A node: an operator on named values."""

    name: str
    """The node's name in error messages."""
    operator: Composite | None
    """The operator; None for an Identity that is left out: the result is the operand itself."""
    inputs: tuple[str, ...]
    """The names of the operands, empty where one is left out; captured values come last."""
    outputs: tuple[str, ...]
    """The names of the results, empty where nothing reads one."""

    @property
    def reads_numbers_of(self) -> tuple[str, ...]:
        """The names of the operands on whose numbers the results depend."""
        type_only = self.operator.type_only if self.operator is not None else ()
        if self.operator is None or not type_only:
            return self.inputs
        pairs = zip(self.operator.names(len(self.inputs)), self.inputs, strict=True)
        return tuple(value for name, value in pairs if name not in type_only)


@dataclass(frozen=True, eq=False)
class OnnxGraph:
    """A graph of named values, its nodes in topological order."""

    name: str
    """The graph's name."""
    inputs: tuple[str, ...]
    """The names of its inputs."""
    constants: Mapping[str, Value]
    """Constants by name; all plans share them."""
    nodes: tuple[OnnxNode, ...]
    """The nodes, in topological order."""
    outputs: tuple[str, ...]
    """The names of its outputs."""

    @cached_property
    def free(self) -> tuple[str, ...]:
        """The names of the values that it captures from the enclosing graph, in order of use."""
        defined = {*self.inputs, *self.constants}
        result: dict[str, None] = {}
        for node in self.nodes:
            result |= dict.fromkeys(name for name in node.inputs if name and name not in defined)
            defined.update(node.outputs)
        return tuple(result | dict.fromkeys(name for name in self.outputs if name not in defined))

    @cached_property
    def size_names(self) -> frozenset[str]:
        """The names of inputs and captured values whose numbers determine sizes in the graph."""
        result: set[str] = set()
        for node in reversed(self.nodes):
            if result.intersection(node.outputs):
                result.update(node.reads_numbers_of)
            elif node.operator is not None:
                named = node.operator.named(node.inputs)
                result.update(
                    named[name] for name in node.operator.all_shape_inputs if name in named
                )
        return frozenset(result)

    @cached_property
    def reads_numbers_of(self) -> frozenset[str]:
        """The names on whose numbers the outputs depend."""
        result = set(self.outputs)
        for node in reversed(self.nodes):
            if result.intersection(node.outputs):
                result.update(node.reads_numbers_of)
        return frozenset(result)

    def put(self, builder: Builder, values: Mapping[str, Value]) -> list[Value]:
        """Put all nodes into `builder`, and return the outputs.

        values: inputs and captured values by name. Raises ShapeError or UnsupportedOpError, which
        names the node.
        """
        scope = {**values, **self.constants}
        for node in self.nodes:
            operands: list[Value | None] = [scope[name] if name else None for name in node.inputs]
            while operands and operands[-1] is None:
                operands.pop()
            names = [name for name in node.outputs if name]
            scope |= zip(names, self._results(builder, node, operands, names), strict=True)
        return [scope[name] for name in self.outputs]

    def _results(
        self,
        builder: Builder,
        node: OnnxNode,
        operands: Sequence[Value | None],
        names: Sequence[str],
    ) -> Sequence[Value]:
        if node.operator is None:
            return operands[:1]  # type: ignore[return-value]
        try:
            return builder.add(node.operator, *operands, name=node.name, outputs=names)
        except (ShapeError, UnsupportedOpError) as error:
            raise type(error)(f"node {node.name!r}: {error}") from None


@dataclass(frozen=True, eq=False)
class SubgraphNode(Composite):
    """A node with subgraphs, which may also capture values of the enclosing graph."""

    subgraphs: tuple[OnnxGraph, ...]
    first: int
    """The number of the node's own operands; the values captured by its subgraphs follow these."""
    used_outputs: tuple[bool, ...]
    """Flags, one for each result: True where the result has a name in the model."""

    is_subgraph: ClassVar[bool] = True
    op_type: ClassVar[str]

    def __str__(self) -> str:
        return self.op_type

    @property
    def free(self) -> tuple[str, ...]:
        """The names of the values captured by the subgraphs: the operands behind the node's own."""
        return tuple(dict.fromkeys(name for subgraph in self.subgraphs for name in subgraph.free))

    @property
    def all_shape_inputs(self) -> tuple[str, ...]:
        names = frozenset[str]().union(*(subgraph.size_names for subgraph in self.subgraphs))
        return tuple(f"x{self.first + i}" for i, name in enumerate(self.free) if name in names)

    @property
    def type_only(self) -> tuple[str, ...]:
        read = frozenset[str]().union(*(subgraph.reads_numbers_of for subgraph in self.subgraphs))
        return tuple(f"x{self.first + i}" for i, name in enumerate(self.free) if name not in read)

    def expand(self, operand_values: Sequence[Value | None]) -> Graph:
        builder = Builder(self.op_type)
        for value in operand_values:
            if value is not None and value.kind is not Kind.CONSTANT:
                builder.take(value)
        operands = [*operand_values[: self.first], *(None,) * (self.first - len(operand_values))]
        captured = {n: v for n, v in zip(self.free, operand_values[self.first :], strict=True) if v}
        result = self._results(builder, operands, captured)
        return builder.graph(result)

    @abstractmethod
    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        """Return the used results.

        operands: the node's own, None where one is left out. captured: values of the enclosing
        graph by name.
        """

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        unranked = [None if type is None else type.unranked for type in types]
        for candidates in (types, unranked):
            operands = [
                None if type is None else Value(f"operand {i}", type, Kind.INPUT)
                for i, type in enumerate(candidates)
            ]
            try:
                return tuple(value.type.unknown for value in self.expand(operands).outputs)
            except (ShapeError, UnsupportedOpError):
                continue
        return (ANYTHING,) * sum(self.used_outputs)

    def select_outputs(self, results: Sequence[Value]) -> list[Value]:
        """Return the `results` that the model uses."""
        return [value for value, used in zip(results, self.used_outputs, strict=False) if used]


def require(what: str, value: Value | None) -> Value:
    """Return `value`. Raises ShapeError, which says that `what` is missing, for None."""
    if value is None:
        raise ShapeError(f"{what} is missing")
    return value


TRIES = 4  # times that a loop's body is built until the types of its states no longer change


class IfNode(SubgraphNode):
    """ONNX's If. Where the condition is a constant, only the branch taken is built."""

    op_type: ClassVar[str] = "If"

    @property
    def all_shape_inputs(self) -> tuple[str, ...]:
        """The operands whose numbers must be known, if possible. The condition is one: the branch
        that is not taken may be invalid for the inputs' shapes.
        """
        return tuple(dict.fromkeys(("x0", *super().all_shape_inputs)))

    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        condition = require("condition", operands[0])
        if condition.kind is Kind.CONSTANT:
            if condition.data.size != 1:  # type: ignore[union-attr]
                raise ShapeError(f"If: condition must be one bool, got {condition.type}")
            subgraph = self.subgraphs[0 if condition.data.item() else 1]  # type: ignore[union-attr]
            return self.select_outputs(subgraph.put(builder, captured))
        bodies: list[Body] = []
        for subgraph in self.subgraphs:
            inside = builder.body(subgraph.name)
            bodies.append((inside, self.select_outputs(subgraph.put(inside, captured))))
        return list(branch(builder, condition, *bodies, name="if"))


class LoopNode(SubgraphNode):
    """ONNX's Loop. Operands: the trip count, the condition, and the initial states."""

    op_type: ClassVar[str] = "Loop"

    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        trip_count, condition, *state_operands = operands
        initial = [require(f"value {i}", value) for i, value in enumerate(state_operands)]
        try:
            body = self._body(builder, initial, captured, may_never_run=False)
        except ShapeError:
            # A loop over an axis of size 0 has most often no iteration, and its body may not fit.
            inputs = [*initial, *captured.values()]
            if not any(value.type.ranked and 0 in value.type.dims for value in inputs):
                raise
            body = self._body(builder, initial, captured, may_never_run=True)
            if _is_skipped(trip_count, condition):
                return self._initial_results(initial, body)
        results = loop(builder, body, *initial, trips=trip_count, condition=condition, name="loop")
        stack_values = iter(results[len(initial) :])
        stacks = [
            next(stack_values) if used else None for used in self.used_outputs[len(initial) :]
        ]
        all_results = [*results[: len(initial)], *stacks]
        return [v for v, used in zip(all_results, self.used_outputs, strict=False) if used and v]

    def _body(
        self,
        builder: Builder,
        initial: Sequence[Value],
        captured: dict[str, Value],
        *,
        may_never_run: bool,
    ) -> Body:
        """Build the body for states of the types of `initial`; see `Builder.body`."""
        (subgraph,) = self.subgraphs
        state_types = [value.type for value in initial]
        for _ in range(TRIES):
            inside = builder.body(subgraph.name, may_never_run=may_never_run)
            count, flag = inside.input("iteration", COUNT), inside.input("going", FLAG)
            # ONNX's counter is int64. This one is cast from int32, so that a GPU computes with it.
            (count_int64,) = inside.add(
                Pointwise(formula("cast_int64(a)")), count, name="iteration as int64"
            )
            state_inputs = [
                inside.input(name, type)
                for name, type in zip(subgraph.inputs[2:], state_types, strict=True)
            ]
            values = dict(zip(subgraph.inputs, (count_int64, flag, *state_inputs), strict=True))
            condition, *results = subgraph.put(inside, {**captured, **values})
            types = [_merge_types(a, v.type) for a, v in zip(state_types, results, strict=False)]
            if types == state_types:
                break
            state_types = types
        stacked = self._stacked_outputs(results, len(initial))
        return inside, [condition, *results[: len(initial)], *stacked]

    def _initial_results(self, initial: Sequence[Value], body: Body) -> list[Value]:
        """Return the used results of a loop without iterations: the initial states and empty
        stacks.
        """
        used = self.used_outputs[: len(initial)]
        results = [value for value, is_used in zip(initial, used, strict=True) if is_used]
        for value in body[1][1 + len(initial) :]:
            dims = value.type.dims if value.type.ranked else ()
            sizes = (dim if isinstance(dim, int) else 0 for dim in dims)
            results.append(constant(np.empty((0, *sizes), value.type.dtype.numpy), "nothing"))
        return results

    def _stacked_outputs(self, results: Sequence[Value], count: int) -> list[Value]:
        """Return the used ones among the body's results to stack, which follow `count` states."""
        pairs = zip(results[count:], self.used_outputs[count:], strict=False)
        return [value for value, used in pairs if used]


def _is_skipped(trips: Value | None, condition: Value | None) -> bool:
    """Return True where constants say that a loop has no iteration."""
    constants = (
        value.data for value in (trips, condition) if value and value.kind is Kind.CONSTANT
    )
    return any(int(number.item()) <= 0 for number in constants)  # type: ignore[union-attr]


def _merge_types(before: TensorType, after: TensorType) -> TensorType:
    """Return a type for a loop state that is of type `before` at first and `after` an iteration."""
    if before.dtype is not after.dtype or before == after or before.holds:
        return before
    if len(before.dims) != len(after.dims):
        return TensorType((UNRANKED,), before.dtype)
    pairs = zip(before.dims, after.dims, strict=True)
    return TensorType(tuple(a if a == b else UNKNOWN for a, b in pairs), before.dtype)


@dataclass(frozen=True, eq=False)
class ScanNode(SubgraphNode):
    """ONNX's Scan. Operands: initial states, then the values that are scanned along an axis."""

    scanned: int
    """The number of scanned operands."""
    axes: tuple[int, ...]
    """The axis along which each operand is scanned."""
    backward: tuple[bool, ...]
    """Flags, one for each scanned operand: True where it is scanned from its end."""
    out_axes: tuple[int, ...]
    """The axis along which each output of the body is stacked."""
    out_backward: tuple[bool, ...]
    """Flags, one for each stacked output: True where the first iteration comes last."""

    op_type: ClassVar[str] = "Scan"

    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        values = [require(f"value {i}", value) for i, value in enumerate(operands)]
        initial, scanned = values[: -self.scanned], values[-self.scanned :]
        axes = [_axis(axis, v.type) for axis, v in zip(self.axes, scanned, strict=True)]
        sequences = [
            builder.add(Flip((axis,)), value, name="backward")[0] if backward else value
            for value, axis, backward in zip(scanned, axes, self.backward, strict=True)
        ]
        scan = Scan(builder, initial, sequences, axes, name="scan")
        (subgraph,) = self.subgraphs
        inputs = dict(zip(subgraph.inputs, (*scan.states, *scan.slices), strict=True))
        result = subgraph.put(scan.body, {**captured, **inputs})
        states, slices = result[: len(initial)], result[len(initial) :]
        results = list(scan.results(states, slices))
        for i, (axis, backward) in enumerate(zip(self.out_axes, self.out_backward, strict=True)):
            results[len(initial) + i] = _place_axis(
                builder, results[len(initial) + i], axis, backward
            )
        return self.select_outputs(results)


@dataclass(frozen=True, eq=False)
class BatchedScanNode(SubgraphNode):
    """ONNX's Scan of version 8, which scans each sample of a batch up to its own length.

    The first operand, which may be left out, has the lengths. Beyond a sample's length its
    states keep their values, and stacked results are 0.
    """

    scanned: int
    """The number of scanned operands. Axis 0 is the batch; they are scanned along axis 1."""
    backward: tuple[bool, ...]
    """Flags, one for each scanned operand: True where it is scanned from its end."""

    op_type: ClassVar[str] = "Scan"

    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        lengths = operands[0]
        values = [require(f"value {i}", value) for i, value in enumerate(operands[1:])]
        (subgraph,) = self.subgraphs
        batched = values if lengths is None else [lengths, *values]
        samples = Scan(builder, (), batched, name="samples")
        length = None if lengths is None else samples.slices[0]
        inner_operands = samples.slices[len(batched) - len(values) :]
        initial, scanned = inner_operands[: -self.scanned], inner_operands[-self.scanned :]
        if lengths is not None and any(self.backward):
            raise UnsupportedOpError("Scan: sequence_lens of values that are walked backward")
        sequences = [
            samples.body.add(Flip((0,)), value, name="backward")[0] if backward else value
            for value, backward in zip(scanned, self.backward, strict=True)
        ]
        scan = Scan(samples.body, initial, sequences, name="scan")
        inputs = dict(zip(subgraph.inputs, (*scan.states, *scan.slices), strict=True))
        result = subgraph.put(scan.body, {**captured, **inputs})
        states, slices = result[: len(initial)], result[len(initial) :]
        if length is not None:
            (limit,) = samples.body.add(Pointwise(formula("cast_int32(a)")), length, name="length")
            keep_state, zero_slice = (
                formula("where(c < d, a, b)"),
                formula("where(b < c, a, a - a)"),
            )
            states = [
                scan.body.add(Pointwise(keep_state), new, old, scan.number, limit, name="state")[0]
                for new, old in zip(states, scan.states, strict=True)
            ]
            slices = [
                scan.body.add(Pointwise(zero_slice), row, scan.number, limit, name="row")[0]
                for row in slices
            ]
        return self.select_outputs(samples.results((), scan.results(states, slices)))


def scan_node(
    subgraph: OnnxGraph,
    count: int,
    used_outputs: tuple[bool, ...],
    version: int,
    attributes: Mapping[str, Any],
) -> ScanNode | BatchedScanNode:
    """Return the operator of a Scan of `count` operands.

    version: of ONNX's operator set. Raises ShapeError where the attributes do not fit.
    """
    scanned = attributes.get("num_scan_inputs")
    first = 1 if version < 9 else 0
    if not isinstance(scanned, int) or not 1 <= scanned <= count - first:
        raise ShapeError(f"Scan: num_scan_inputs must be from 1 to {count - first}, got {scanned}")
    stacked = len(used_outputs) - (count - first - scanned)

    def integers(name: str, length: int) -> tuple[int, ...]:
        values = attributes.get(name, (0,) * length)
        if not isinstance(values, tuple) or len(values) != length:
            raise ShapeError(f"Scan: {name} must be {length} integers, got {values}")
        return values

    def backward(name: str, length: int) -> tuple[bool, ...]:
        return tuple(map(bool, integers(name, length)))

    if (
        stacked < 0
        or len(subgraph.inputs) != count - first
        or len(subgraph.outputs) != len(used_outputs)
    ):
        raise ShapeError(
            f"Scan: the body must have {count - first} inputs and {len(used_outputs)} outputs, "
            f"got {len(subgraph.inputs)} and {len(subgraph.outputs)}"
        )
    if version < 9:
        return BatchedScanNode(
            (subgraph,), count, used_outputs, scanned, backward("directions", scanned)
        )
    return ScanNode(
        (subgraph,),
        count,
        used_outputs,
        scanned,
        integers("scan_input_axes", scanned),
        backward("scan_input_directions", scanned),
        integers("scan_output_axes", stacked),
        backward("scan_output_directions", stacked),
    )


def _axis(axis: int, type: TensorType) -> int:
    """Return `axis` counted from 0. Raises ShapeError where a value of `type` does not have it."""
    if not type.ranked:
        raise ShapeError("Scan: only a run tells how many dimensions a scanned value has")
    rank = len(type.dims)
    if not -rank <= axis < rank:
        raise ShapeError(f"Scan: axis must be from {-rank} to {rank - 1}, got {axis}")
    return axis % rank


def _place_axis(builder: Builder, stacked: Value, axis: int, backward: bool) -> Value:
    """Return `stacked` with its first dimension moved to `axis`, reversed if `backward`."""
    if backward:
        (stacked,) = builder.add(Flip((0,)), stacked, name="backward")
    axis = _axis(axis, stacked.type)
    order = [*range(1, len(stacked.type.dims))]
    order.insert(axis, 0)
    return builder.add(Transpose(tuple(order)), stacked, name="stacked")[0] if axis else stacked


Names = Mapping[str, str]
"""Names in the calling graph, by the function's own names."""


def inline_call(
    onnx: Any, function: Any, node: Any, defaults: Iterable[Any], prefix: str
) -> list[Any]:
    """Return the NodeProtos that replace `node`, a call of the FunctionProto `function`.

    defaults: AttributeProtos of attributes that the node may leave out. prefix: begins the names of
    nodes and intermediate values.
    """
    names = dict(zip(function.input, node.input, strict=False))
    names |= dict.fromkeys(function.input[len(node.input) :], "")
    outputs = [
        (name, result) for name, result in zip(function.output, node.output, strict=False) if result
    ]
    forwarded = [(names[name], result) for name, result in outputs if name in names]  # inputs
    names |= {name: result for name, result in outputs if name not in names}
    attributes = {one.name: one for one in (*defaults, *function.attribute_proto, *node.attribute)}
    for inner in function.node:
        for name in inner.output:
            names.setdefault(name, f"{prefix}/{name}" if name else "")
    nodes = _rename_nodes(onnx, function.node, names, attributes, prefix)
    return nodes + [
        onnx.helper.make_node("Identity", [name], [result]) for name, result in forwarded
    ]


def function_body(onnx: Any, function: Any, node: Any, defaults: Iterable[Any]) -> list[Any]:
    """Return the NodeProtos of `function` with the attributes of `node`, by the function's own
    names.
    """
    attributes = {one.name: one for one in (*defaults, *function.attribute_proto, *node.attribute)}
    return _rename_nodes(onnx, function.node, {}, attributes, function.name)


def _rename_nodes(
    onnx: Any, nodes: Iterable[Any], names: Names, attributes: Mapping[str, Any], prefix: str
) -> list[Any]:
    """Return copies of a function's nodes, renamed by `names`, with names that begin with `prefix`.

    attributes: AttributeProtos of the calling node, by name.
    """
    return [
        _rename_node(
            onnx, node, names, attributes, f"{prefix}/{node.name or f'{node.op_type}_{index}'}"
        )
        for index, node in enumerate(nodes)
    ]


def _rename_node(
    onnx: Any, node: Any, names: Names, attributes: Mapping[str, Any], name: str
) -> Any:
    """Return a copy of a function's node, called `name`, with tensors renamed by `names`.

    References to the function's attributes are replaced by those of `attributes`.
    """
    result = onnx.NodeProto()
    result.CopyFrom(node)
    result.name = name
    for tensors in (result.input, result.output):
        for i, tensor in enumerate(tensors):
            tensors[i] = names.get(tensor, tensor)
    del result.attribute[:]
    for source in node.attribute:
        reference = source.ref_attr_name
        if reference and reference not in attributes:
            continue
        attribute = result.attribute.add()
        attribute.CopyFrom(attributes[reference] if reference else source)
        attribute.name = source.name
        for graph in (
            (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs
        ):
            if not reference:
                _rename_graph(onnx, graph, names, attributes, name)
    return result


def _rename_graph(
    onnx: Any, graph: Any, names: Names, attributes: Mapping[str, Any], prefix: str
) -> None:
    """Rename the tensors of `graph`, a body inside a function, in place."""
    for tensors in (graph.input, graph.output, graph.initializer):
        for tensor in tensors:
            tensor.name = names.get(tensor.name, tensor.name)
    nodes = _rename_nodes(onnx, list(graph.node), names, attributes, prefix)
    del graph.node[:]
    graph.node.extend(nodes)


@dataclass(frozen=True, eq=False)
class FunctionNode(Composite):
    """An operator that ONNX defines by a function, which depends on the operands' types."""

    op_type: str
    """ONNX's name."""
    body: Callable[[Types], OnnxGraph]
    """Returns the function's graph for operand types. Raises ShapeError where ONNX has none."""
    free: tuple[str, ...]
    """The names of the values that subgraphs of the node capture: the last operands."""
    delegate: Delegate
    """Computes the node where ONNX has no function for the operands."""

    is_subgraph: ClassVar[bool] = True

    def __str__(self) -> str:
        return self.op_type

    def expand(self, operands: Sequence[Value | None]) -> Graph:
        count = len(operands) - len(self.free)
        try:
            body = self.body([None if v is None else v.type for v in operands[:count]])
            builder = Builder(self.op_type)
            for value in operands:
                if value is not None and value.kind is not Kind.CONSTANT:
                    builder.take(value)
            names = (*body.inputs[:count], *self.free)
            scope = {n: v for n, v in zip(names, operands, strict=True) if v is not None}
            result = body.put(builder, scope)
            return builder.graph(result)
        except (ShapeError, UnsupportedOpError) as error:
            if self.free:
                raise
            return self.delegate.graph(operands, str(error))

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        return self.delegate.unknown(types[: len(types) - len(self.free)])
