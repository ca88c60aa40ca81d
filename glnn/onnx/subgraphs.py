"""The graphs of an ONNX model: the nodes of one, subgraphs of If, Loop and Scan, functions."""

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
    """A node: an operator on values that have names."""

    name: str
    """The node's name in error messages."""
    operator: Composite | None
    """The node's operator; None where the result is the operand itself."""
    inputs: tuple[str, ...]
    """The name of each operand, empty where one is left out; what bodies take comes last."""
    outputs: tuple[str, ...]
    """The names of the results, empty where nobody reads one."""

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
    """Nodes, each behind those whose results it reads."""

    name: str
    """The graph's."""
    inputs: tuple[str, ...]
    """The names of its inputs."""
    constants: Mapping[str, Value]
    """Constants by name, made once, so that plans share them."""
    nodes: tuple[OnnxNode, ...]
    """The nodes, in an order in which they can run."""
    outputs: tuple[str, ...]
    """The names of its outputs."""

    @cached_property
    def free(self) -> tuple[str, ...]:
        """The names that it takes from the graph around it, in the order in which they are read."""
        made = {*self.inputs, *self.constants}
        result: dict[str, None] = {}
        for node in self.nodes:
            result |= dict.fromkeys(name for name in node.inputs if name and name not in made)
            made.update(node.outputs)
        return tuple(result | dict.fromkeys(name for name in self.outputs if name not in made))

    @cached_property
    def size_names(self) -> frozenset[str]:
        """The names of inputs and free values whose numbers determine sizes inside the graph."""
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
        """Put all nodes into `builder`. values: inputs and free values by name.

        Return the outputs. Raises ShapeError or UnsupportedOpError, which names the node.
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
    """A node with subgraphs, which may also read values of the graph around it."""

    subgraphs: tuple[OnnxGraph, ...]
    """The subgraphs."""
    first: int
    """The number of the node's own operands; the values that its subgraphs capture follow these."""
    used_outputs: tuple[bool, ...]
    """Flags, one for each result: True where the result has a name in the model."""

    opens: ClassVar[bool] = True
    op_type: ClassVar[str]

    def __str__(self) -> str:
        return self.op_type

    @property
    def free(self) -> tuple[str, ...]:
        """The names of the values that the subgraphs capture: the operands behind the first."""
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

        operands: the node's own, None where one is left out. captured: values of the graph around
        it, by name.
        """

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        unranked = [None if type is None else type.unranked for type in types]
        for some in (types, unranked):
            operands = [
                None if type is None else Value(f"operand {i}", type, Kind.INPUT)
                for i, type in enumerate(some)
            ]
            try:
                return tuple(value.type.unknown for value in self.expand(operands).outputs)
            except (ShapeError, UnsupportedOpError):
                continue
        return (ANYTHING,) * sum(self.used_outputs)

    def select_outputs(self, results: Sequence[Value]) -> list[Value]:
        """Return those of `results` that the model uses."""
        return [value for value, used in zip(results, self.used_outputs, strict=False) if used]


def require(what: str, value: Value | None) -> Value:
    """Return `value`. Raises ShapeError where it is None: `what` is missing."""
    if value is None:
        raise ShapeError(f"{what} is missing")
    return value


TRIES = 4  # how often a loop's body is built until the types that it is given are what it gives


class IfNode(SubgraphNode):
    """ONNX's If: one of two graphs; where the condition is known, that one alone."""

    op_type: ClassVar[str] = "If"

    @property
    def all_shape_inputs(self) -> tuple[str, ...]:
        """The operands whose numbers are read: the condition is one, as the branch that is not
        taken may be wrong for the inputs' shapes.
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
    """ONNX's Loop: trips, condition, and the values that are carried."""

    op_type: ClassVar[str] = "Loop"

    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        trips, condition, *rest = operands
        initial = [require(f"value {i}", value) for i, value in enumerate(rest)]
        try:
            body = self._body(builder, initial, captured, may_never_run=False)
        except ShapeError:
            # Over an axis of size 0 there is most often no iteration, which might not fit.
            read = [*initial, *captured.values()]
            if not any(value.type.ranked and 0 in value.type.dims for value in read):
                raise
            body = self._body(builder, initial, captured, may_never_run=True)
            if _is_skipped(trips, condition):
                return self._initial_results(initial, body)
        results = loop(builder, body, *initial, trips=trips, condition=condition, name="loop")
        left = iter(results[len(initial) :])
        stacks = [next(left) if used else None for used in self.used_outputs[len(initial) :]]
        every = [*results[: len(initial)], *stacks]
        return [v for v, used in zip(every, self.used_outputs, strict=False) if used and v]

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
            count, going = inside.input("iteration", COUNT), inside.input("going", FLAG)
            # ONNX counts in int64; that this one is an int32 is known, so a GPU computes with it.
            (wide,) = inside.add(
                Pointwise(formula("cast_int64(a)")), count, name="iteration as int64"
            )
            states = [
                inside.input(name, type)
                for name, type in zip(subgraph.inputs[2:], state_types, strict=True)
            ]
            values = dict(zip(subgraph.inputs, (wide, going, *states), strict=True))
            last, *result = subgraph.put(inside, {**captured, **values})
            types = [_merge_types(a, v.type) for a, v in zip(state_types, result, strict=False)]
            if types == state_types:
                break
            state_types = types
        stacked = self._stacked_outputs(result, len(initial))
        return inside, [last, *result[: len(initial)], *stacked]

    def _initial_results(self, initial: Sequence[Value], body: Body) -> list[Value]:
        """Return the used results of no iteration: states as they were, and nothing stacked."""
        used = self.used_outputs[: len(initial)]
        matches = [value for value, is_used in zip(initial, used, strict=True) if is_used]
        for value in body[1][1 + len(initial) :]:
            dims = value.type.dims if value.type.ranked else ()
            sizes = (dim if isinstance(dim, int) else 0 for dim in dims)
            matches.append(constant(np.empty((0, *sizes), value.type.dtype.numpy), "nothing"))
        return matches

    def _stacked_outputs(self, results: Sequence[Value], count: int) -> list[Value]:
        """Return the stacked results of the body, behind `count` states, that the model uses."""
        pairs = zip(results[count:], self.used_outputs[count:], strict=False)
        return [value for value, used in pairs if used]


def _is_skipped(trips: Value | None, condition: Value | None) -> bool:
    """Return True where it is known that a loop has no iteration."""
    known = (value.data for value in (trips, condition) if value and value.kind is Kind.CONSTANT)
    return any(int(number.item()) <= 0 for number in known)  # type: ignore[union-attr]


def _merge_types(before: TensorType, after: TensorType) -> TensorType:
    """Return the type of a loop state that is of type `before`, then of type `after`."""
    if before.dtype is not after.dtype or before == after or before.holds:
        return before
    if len(before.dims) != len(after.dims):
        return TensorType((UNRANKED,), before.dtype)
    pairs = zip(before.dims, after.dims, strict=True)
    return TensorType(tuple(a if a == b else UNKNOWN for a, b in pairs), before.dtype)


@dataclass(frozen=True, eq=False)
class ScanNode(SubgraphNode):
    """ONNX's Scan: values that are carried, then those that are walked along their axes."""

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
        walked = [
            builder.add(Flip((axis,)), value, name="backward")[0] if back else value
            for value, axis, back in zip(scanned, axes, self.backward, strict=True)
        ]
        scan = Scan(builder, initial, walked, axes, name="scan")
        (subgraph,) = self.subgraphs
        inputs = dict(zip(subgraph.inputs, (*scan.states, *scan.slices), strict=True))
        result = subgraph.put(scan.body, {**captured, **inputs})
        states, rows = result[: len(initial)], result[len(initial) :]
        results = list(scan.results(states, rows))
        for i, (axis, back) in enumerate(zip(self.out_axes, self.out_backward, strict=True)):
            results[len(initial) + i] = _put(builder, results[len(initial) + i], axis, back)
        return self.select_outputs(results)


@dataclass(frozen=True, eq=False)
class BatchedScanNode(SubgraphNode):
    """Scan as it was in version 8: each sample of a batch by itself, of a length of its own.

    The first operand, which may be left out, is the lengths; behind these the values of the states
    keep, and the others are 0.
    """

    scanned: int
    """The number of scanned operands; they are scanned along axis 1, behind the batch."""
    backward: tuple[bool, ...]
    """Flags, one for each scanned operand: True where it is scanned from its end."""

    op_type: ClassVar[str] = "Scan"

    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        lengths = operands[0]
        values = [require(f"value {i}", value) for i, value in enumerate(operands[1:])]
        (subgraph,) = self.subgraphs
        by_sample = values if lengths is None else [lengths, *values]
        samples = Scan(builder, (), by_sample, name="samples")
        length = None if lengths is None else samples.slices[0]
        places = samples.slices[len(by_sample) - len(values) :]
        initial, scanned = places[: -self.scanned], places[-self.scanned :]
        if lengths is not None and any(self.backward):
            raise UnsupportedOpError("Scan: sequence_lens of values that are walked backward")
        walked = [
            samples.body.add(Flip((0,)), value, name="backward")[0] if back else value
            for value, back in zip(scanned, self.backward, strict=True)
        ]
        scan = Scan(samples.body, initial, walked, name="scan")
        inputs = dict(zip(subgraph.inputs, (*scan.states, *scan.slices), strict=True))
        result = subgraph.put(scan.body, {**captured, **inputs})
        states, rows = result[: len(initial)], result[len(initial) :]
        if length is not None:
            (most,) = samples.body.add(Pointwise(formula("cast_int32(a)")), length, name="length")
            within, nothing = formula("where(c < d, a, b)"), formula("where(b < c, a, a - a)")
            states = [
                scan.body.add(Pointwise(within), new, old, scan.number, most, name="state")[0]
                for new, old in zip(states, scan.states, strict=True)
            ]
            rows = [
                scan.body.add(Pointwise(nothing), row, scan.number, most, name="row")[0]
                for row in rows
            ]
        return self.select_outputs(samples.results((), scan.results(states, rows)))


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
        match = attributes.get(name, (0,) * length)
        if not isinstance(match, tuple) or len(match) != length:
            raise ShapeError(f"Scan: {name} must be {length} integers, got {match}")
        return match

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


def _put(builder: Builder, stacked: Value, axis: int, backward: bool) -> Value:
    """Return `stacked` with its first dimension moved to `axis`."""
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
    """Return the NodeProtos of `function`, a FunctionProto, in the place of `node`, a NodeProto.

    defaults: AttributeProtos of what the node may leave out. prefix: what goes before the names of
    what the function computes between.
    """
    names = dict(zip(function.input, node.input, strict=False))
    names |= dict.fromkeys(function.input[len(node.input) :], "")
    pairs = [(name, to) for name, to in zip(function.output, node.output, strict=False) if to]
    handed = [(names[name], to) for name, to in pairs if name in names]  # inputs as they are
    names |= {name: to for name, to in pairs if name not in names}
    attributes = {one.name: one for one in (*defaults, *function.attribute_proto, *node.attribute)}
    for one in function.node:
        for name in one.output:
            names.setdefault(name, f"{prefix}/{name}" if name else "")
    nodes = _rename_nodes(onnx, function.node, names, attributes, prefix)
    return nodes + [onnx.helper.make_node("Identity", [name], [to]) for name, to in handed]


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
            onnx, node, names, attributes, f"{prefix}/{node.name or f'{node.op_type}_{number}'}"
        )
        for number, node in enumerate(nodes)
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
    for listed in (result.input, result.output):
        for i, one in enumerate(listed):
            listed[i] = names.get(one, one)
    del result.attribute[:]
    for one in node.attribute:
        if one.ref_attr_name and one.ref_attr_name not in attributes:
            continue
        attribute = result.attribute.add()
        attribute.CopyFrom(attributes[one.ref_attr_name] if one.ref_attr_name else one)
        attribute.name = one.name
        for graph in (
            (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs
        ):
            if not one.ref_attr_name:
                _rename_graph(onnx, graph, names, attributes, name)
    return result


def _rename_graph(
    onnx: Any, graph: Any, names: Names, attributes: Mapping[str, Any], prefix: str
) -> None:
    """Rename the tensors of `graph`, a body inside a function, in place."""
    for listed in (graph.input, graph.output, graph.initializer):
        for one in listed:
            one.name = names.get(one.name, one.name)
    nodes = _rename_nodes(onnx, list(graph.node), names, attributes, prefix)
    del graph.node[:]
    graph.node.extend(nodes)


@dataclass(frozen=True, eq=False)
class FunctionNode(Composite):
    """An operator that ONNX defines by a function, which depends on the operands' types."""

    op_type: str
    """ONNX's name."""
    body: Callable[[Types], OnnxGraph]
    """Function that returns the nodes for operand types. Raises ShapeError where ONNX has none."""
    free: tuple[str, ...]
    """The names of the values that subgraphs of the node capture: the last operands."""
    delegate: Delegate
    """Computes the node where no function of ONNX fits."""

    opens: ClassVar[bool] = True

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
