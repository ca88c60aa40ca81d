"""A graph captured by PyTorch's compiler, and the warning where it is left to PyTorch."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from glnn.errors import printable

TYPES = (
    *(torch.float32, torch.float16, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
"""Dtypes of tensors that are accepted as inputs and weights."""
STATIC = "_dynamo_static_input_type"  # the compiler's mark of tensors of modules


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A graph, with a classification of its inputs and outputs by position."""

    graph: fx.GraphModule
    """The graph to compute: a function of all inputs that returns a sequence."""
    weights: tuple[int, ...]
    """Inputs that are a module's parameters and buffers: constants until they are changed."""
    tensors: tuple[int, ...]
    """Other inputs that are tensors."""
    sizes: Mapping[int, tuple[int, int]]
    """Inputs that are sizes of tensors: the tensor's position, and the axis."""
    numbers: tuple[int, ...]
    """Other inputs that are numbers: integers, and a module's floats, which the compiler turns into
    float64 tensors without dimensions with `dynamic=True`. Constants in an export."""
    free: Mapping[int, tuple[int, ...]]
    """The axes of tensors whose sizes may differ from call to call, by the tensor's position."""
    computed: tuple[int, ...]
    """Outputs that glnn computes."""
    rest: fx.GraphModule | None
    """The function by which PyTorch computes the other outputs, in order: views of inputs, sizes,
    None. None where there are no others.
    """

    @classmethod
    def from_graph(cls, graph: fx.GraphModule, inputs: Sequence[Any]) -> CapturedGraph:
        """Classify the inputs and outputs of `graph`.

        inputs: examples, one for each placeholder. Raises RefusedError for a graph that glnn does
        not support.
        """
        if torch.is_autocast_enabled("cpu"):
            raise RefusedError("autocast is on, and glnn computes in the types that the graph says")
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        floats = {i for i, (node, value) in enumerate(zip(nodes, inputs)) if _is_float(node, value)}
        for i, (node, value) in enumerate(zip(nodes, inputs, strict=True)):
            if i not in floats:
                _check(node, value)
        _check_attributes(graph)
        _check_gradients(graph)
        is_tensor = [isinstance(value, torch.Tensor) for value in inputs]
        tensors = [i for i in range(len(inputs)) if is_tensor[i] and i not in floats]
        weights = tuple(i for i in tensors if _is_weight(nodes[i], inputs[i]))
        others = tuple(i for i in tensors if i not in weights)
        shapes = {i: [_symbol(n) for n in _example(nodes[i], inputs[i]).shape] for i in others}
        axis_of_size: dict[Any, tuple[int, int]] = {}
        for i, shape in shapes.items():
            for axis, size in enumerate(shape):
                axis_of_size.setdefault(size, (i, axis))
        integers = [i for i in range(len(inputs)) if i not in tensors and i not in floats]
        axes = {i: axis_of_size.get(_symbol(_example(nodes[i], inputs[i]))) for i in integers}
        sizes = {i: axis for i, axis in axes.items() if axis is not None}
        free = {
            i: tuple(a for a, n in enumerate(s) if type(n) is not int) for i, s in shapes.items()
        }
        computed, rest = _outputs(graph)
        numbers = tuple(sorted({*integers, *floats} - sizes.keys()))
        return cls(graph, weights, others, sizes, numbers, free, computed, rest)

    def name(self, position: int) -> str:
        """Return the compiler's name of the input at `position`."""
        nodes = [node for node in self.graph.graph.nodes if node.op == "placeholder"]
        return str(nodes[position].name)

    def with_inputs(self, positions: Iterable[int]) -> CapturedGraph:
        """Return the graph with the weights at `positions` as ordinary inputs."""
        inputs = set(positions)
        weights = tuple(i for i in self.weights if i not in inputs)
        tensors = tuple(sorted({*self.tensors, *inputs}))
        return replace(self, weights=weights, tensors=tensors)


class FrozenGraph(torch.nn.Module):  # type: ignore[misc]
    """A captured graph as a module of `captured.tensors`, with its weights as buffers."""

    def __init__(self, captured: CapturedGraph, inputs: Sequence[Any]) -> None:
        """Freeze the weights and numbers among `inputs`, the inputs of a call."""
        super().__init__()
        self.captured = captured
        self.numbers = {i: number(inputs[i]) for i in captured.numbers}
        self.graph = with_numbers(without_gradients(captured.graph), self.numbers)
        for i in captured.weights:
            self.register_buffer(weight_name(i), inputs[i].detach())

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        """Return the outputs at `captured.computed` for the tensors at `captured.tensors`."""
        inputs = {**dict(zip(self.captured.tensors, tensors, strict=True)), **self.numbers}
        inputs |= {i: getattr(self, weight_name(i)) for i in self.captured.weights}
        inputs |= {i: inputs[t].shape[axis] for i, (t, axis) in self.captured.sizes.items()}
        outputs = self.graph(*(inputs[i] for i in sorted(inputs)))
        return tuple(outputs[i] for i in self.captured.computed)


def weight_name(position: int) -> str:
    """Return the name of the weight at `position` in the export."""
    return f"weight_{position}"


def number(value: Any) -> int | float:
    """Return the value of an input of `CapturedGraph.numbers` as a number."""
    return float(value) if isinstance(value, torch.Tensor) else value


def with_numbers(graph: fx.GraphModule, numbers: Mapping[int, int | float]) -> fx.GraphModule:
    """Replace the inputs of `graph` that are floats by constants. numbers: by input position."""
    for i, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder"):
        if isinstance(numbers.get(i), float):
            for item in list(node.users):
                item.replace_all_uses_with(numbers[i])
                graph.graph.erase_node(item)
    graph.recompile()
    return graph


def without_gradients(graph: fx.GraphModule) -> fx.GraphModule:
    """Return `graph` without nodes that switch gradients on or off."""
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    for node in list(copied.nodes):
        if node.target is torch._C._set_grad_enabled:
            copied.erase_node(node)
    return fx.GraphModule(graph, copied)


def _is_float(node: fx.Node, value: Any) -> bool:
    """Return True where an input is a Python float that the compiler turned into a tensor."""
    scalar = isinstance(value, torch.Tensor) and value.dtype is torch.float64 and not value.shape
    return scalar and all(n.op == "call_method" and n.target == "item" for n in node.users)


def _check(node: fx.Node, value: Any) -> None:
    """Raise RefusedError for an input that glnn does not take."""
    if isinstance(value, (int, torch.SymInt)):
        return
    if not isinstance(value, torch.Tensor):
        raise RefusedError(f"its input {node.name} is no tensor but of {type(value).__name__}")
    what = f"its input {node.name} of {tuple(value.shape)}"
    if type(value) not in (torch.Tensor, torch.nn.Parameter) and type(value).__name__ != "Buffer":
        raise RefusedError(f"{what} is of the class {type(value).__name__}")
    if value.layout is not torch.strided or value.is_quantized:
        raise RefusedError(f"{what} is {value.layout}, and glnn takes dense tensors")
    if value.device.type != "cpu":
        raise RefusedError(f"{what} is on {value.device}, and glnn takes tensors of the host's")
    if value.dtype not in TYPES:
        raise RefusedError(f"{what} is {value.dtype}, which no GPU of OpenGL ES has")


def _check_attributes(graph: fx.GraphModule) -> None:
    """Raise RefusedError where weights are attributes and not inputs: changes go unnoticed."""
    names = {name for name, _ in (*graph.named_parameters(), *graph.named_buffers())}
    for node in graph.graph.nodes:
        if node.op == "get_attr" and node.target in names:
            raise RefusedError(
                f"{node.target} is a part of it: set torch._dynamo.config.inline_inbuilt_nn_modules"
            )


def _check_gradients(graph: fx.GraphModule) -> None:
    """Raise RefusedError where an output requires gradients."""
    for value in map(_value, _graph_results(graph)):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise RefusedError(
                "it needs gradients; call it inside torch.no_grad() or torch.inference_mode()"
            )


def _is_weight(node: fx.Node, value: Any) -> bool:
    is_static = STATIC in node.meta.get("tensor_dict", {})
    return is_static or isinstance(value, torch.nn.Parameter)


def _example(node: fx.Node, value: Any) -> Any:
    """Return the placeholder's traced value, with symbolic sizes; `value` where there is none."""
    return node.meta.get("example_value", value)


def _symbol(size: Any) -> Any:
    """Return a size as an int, or as the expression of a SymInt."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _graph_results(graph: fx.GraphModule) -> list[Any]:
    """Return the graph's results: nodes and constants."""
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    (results,) = output.args
    return list(results)


def _value(value: Any) -> Any:
    return value.meta.get("example_value") if isinstance(value, fx.Node) else value


def _outputs(graph: fx.GraphModule) -> tuple[tuple[int, ...], fx.GraphModule | None]:
    """Return `CapturedGraph.computed` and `CapturedGraph.rest`. Raises RefusedError.

    glnn computes the tensors that share no memory with an input or a weight.
    """
    inputs = [node for node in graph.graph.nodes if node.op in ("placeholder", "get_attr")]
    input_memories = {_memory(_value(node)) for node in inputs} - {None}
    results = _graph_results(graph)
    values = [_value(result) for result in results]
    computed = tuple(
        i
        for i, value in enumerate(values)
        if isinstance(value, torch.Tensor) and _memory(value) not in input_memories
    )
    others = [result for i, result in enumerate(results) if i not in computed]
    if not others:
        return computed, None
    methods = [n.target for n in graph.graph.nodes if n.op == "call_method"]
    in_place = [name for name in methods if name.endswith("_") and not name.endswith("__")]
    if in_place and any(isinstance(value, torch.Tensor) for value in map(_value, others)):
        raise RefusedError(
            f"it gives a view of an input, and changes tensors in place ({in_place[0]})"
        )
    copied = fx.Graph()
    nodes: dict[Any, Any] = {}
    copied.graph_copy(graph.graph, nodes)
    copied.output([nodes[result] if isinstance(result, fx.Node) else result for result in others])
    copied.eliminate_dead_code()
    return computed, fx.GraphModule(graph, copied)


def _memory(value: Any) -> int | None:
    """Return a key of a tensor's memory, equal for tensors that share it; None for other values."""
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


LOG = logging.getLogger(__name__)
STACK_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
MAX_REASON = 300  # letters of a reason


class LeftToPyTorch(UserWarning):
    """PyTorch computes a graph, or a call of it, instead of glnn; the message gives the reason."""


class RefusedError(Exception):
    """glnn cannot run a graph. Its message is a clause with the reason, in lower case."""


def warn_left_to_pytorch(graph: fx.GraphModule, reason: str) -> None:
    """Warn that `graph` is left to PyTorch, with the reason."""
    text = printable(" ".join(reason.split()))
    text = text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 3]}..."
    message = f"{describe_graph(graph)} is left to PyTorch: {text}"
    LOG.info("%s", message)
    warnings.warn(message, LeftToPyTorch, stacklevel=2)


def describe_graph(graph: fx.GraphModule) -> str:
    """Describe `graph` by its number of operators and the source line where it begins."""
    nodes = [node for node in graph.graph.nodes if node.op.startswith("call")]
    frames = [STACK_FRAME.findall(node.stack_trace or "") for node in nodes]
    first = next((result[-1] for result in frames if result), None)
    where = f" from {first[0]}:{first[1]} ({first[2]})" if first else ""
    return f"the graph of {len(nodes)} operator{'s'[: len(nodes) != 1]}{where}"
