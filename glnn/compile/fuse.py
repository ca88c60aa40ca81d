"""Joining layers into fewer ops.

A bias, a batch normalisation and an activation go into their producer; a dropout goes away. A
concatenation of more inputs than kernels take becomes several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.graph.epilogue import BIASED, SUMMED, Epilogue
from glnn.graph.expression import MOST_CALLS, Arg, call
from glnn.graph.operator import Contraction
from glnn.graph.operators import (
    Activation,
    Add,
    BatchNorm,
    Bias,
    Conv2d,
    Dropout,
    Matmul,
    Subsample,
)
from glnn.graph.operators.concat import MOST
from glnn.kernels.problem import Problem
from glnn.layers import BatchNorm2d, Concat

if TYPE_CHECKING:
    from glnn.model.model import Model, Node


@dataclass(frozen=True)
class FusedNode:
    """One op of a plan, made of one layer or of several that were joined.

    parameters: its operands that are fixed. inputs: the tensors that it reads. epilogue: what is
    done to its result. extras: the operands of the epilogue that are among the inputs.
    """

    name: str
    op: Contraction
    parameters: Mapping[str, NDArray[Any]]
    inputs: tuple[str, ...]
    output: str
    epilogue: Epilogue | None = None
    extras: Mapping[str, str] = field(default_factory=dict)

    def compute(self, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The result by NumPy, in float64, of the tensors that it reads, by their names."""
        named = {**dict(zip(self.op.inputs, self.inputs, strict=False)), **self.extras}
        operands = {name: tensors[tensor] for name, tensor in named.items()}
        operands |= self.parameters
        wide = {name: array.astype(np.float64) for name, array in operands.items()}
        shapes = {name: array.shape for name, array in wide.items()}
        return Problem.of(self.op, shapes, {}, self.epilogue).compute(wide)


def fuse(model: Model, *, enabled: bool = True) -> tuple[FusedNode, ...]:
    """The ops that compute `model`, in order.

    `enabled=False` keeps one op a layer, but for long concatenations. A tensor that somebody else
    reads, or that is an output of the model, is never fused away.
    """
    taken = {name for node in model.nodes for name in (node.name, node.output, *node.inputs)}
    nodes = [part for node in model.nodes for part in _split(node, taken)]
    if enabled:
        nodes = _without_dropouts(nodes, model.outputs)
    readers = Counter(name for node in nodes for name in node.inputs)
    readers.update(model.outputs)
    fused: list[FusedNode] = []
    for node in nodes:
        previous = fused[-1] if fused else None
        joined = None
        if enabled and previous and readers[previous.output] == 1:
            if node.inputs == (previous.output,):
                joined = _join(previous, node)
            elif previous.output in node.inputs:
                joined = _with_residual(previous, node)
        if joined is not None:
            fused[-1] = joined
        else:
            layer = node.layer
            made = FusedNode(node.name, layer.op, layer.operands, node.inputs, node.output)
            fused.append(replace(made, epilogue=layer.epilogue))
    return tuple(fused)


def _split(node: Node, taken: set[str]) -> list[Node]:
    """`node` itself, or, where it joins more inputs than kernels take, several of fewer.

    taken: names that the parts must not have.
    """
    if not isinstance(node.layer, Concat) or len(node.inputs) <= MOST:
        return [node]
    parts: list[Node] = []
    inputs = node.inputs
    while len(inputs) > MOST:
        left = len(inputs)
        fewer: list[str] = []
        for start in range(0, len(inputs), MOST):
            some = inputs[start : start + MOST]
            if left > MOST and len(some) == MOST:
                name = f"{node.name} part {len(parts) + 1}"
                while name in taken:
                    name += "'"
                layer = Concat(MOST)
                parts.append(replace(node, name=name, layer=layer, inputs=some, output=name))
                some = (name,)
                left -= MOST - 1
            fewer += some
        inputs = tuple(fewer)
    return [*parts, replace(node, layer=Concat(len(inputs)), inputs=inputs)]


def _without_dropouts(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    """`nodes` without the dropouts, whose readers read what they read; outputs are kept."""
    same: dict[str, str] = {}
    kept: list[Node] = []
    for node in nodes:
        inputs = tuple(same.get(name, name) for name in node.inputs)
        if isinstance(node.layer.op, Dropout) and node.output not in outputs:
            same[node.output] = inputs[0]
        else:
            kept.append(replace(node, inputs=inputs))
    return kept


def _join(first: FusedNode, node: Node) -> FusedNode | None:
    """`first` with the layer of `node` in it, or None where that cannot be."""
    op, following = first.op, node.layer.op
    if not isinstance(op, (Matmul, Conv2d, Add, Subsample, BatchNorm)):
        return None
    joined = replace(first, name=f"{first.name} + {node.name}", output=node.output)
    if isinstance(following, Activation):
        function = Epilogue(call(following.function, Arg(0)))
        whole = function if first.epilogue is None else first.epilogue.then(function)
        return replace(joined, epilogue=whole) if whole.expr.calls <= MOST_CALLS else None
    if not isinstance(op, (Matmul, Conv2d)) or first.epilogue not in (None, BIASED):
        return None
    if isinstance(following, Bias) and first.epilogue is None:
        biased = {**first.parameters, "e1": node.layer.operands["bias"]}
        return replace(joined, parameters=biased, epilogue=BIASED)
    if isinstance(node.layer, BatchNorm2d):
        folded = _folded(first.parameters, node.layer)
        return replace(joined, parameters=folded, epilogue=BIASED)
    return None


def _with_residual(first: FusedNode, node: Node) -> FusedNode | None:
    """`first`, a convolution, with what `node` adds to its result, or None where that cannot be."""
    if not isinstance(first.op, Conv2d) or not isinstance(node.layer.op, Add):
        return None
    if first.epilogue not in (None, BIASED):
        return None
    (other,) = (name for name in node.inputs if name != first.output)
    whole = SUMMED if first.epilogue is None else BIASED.then(SUMMED)
    return replace(
        first,
        name=f"{first.name} + {node.name}",
        inputs=(*first.inputs, other),
        output=node.output,
        epilogue=whole,
        extras={whole.names[-1]: other},
    )


def _folded(parameters: Mapping[str, NDArray[Any]], norm: BatchNorm2d) -> dict[str, NDArray[Any]]:
    """The weight and bias of a layer whose results `norm` then scales and shifts."""
    scale, shift = norm.scale_and_shift()
    weight = parameters["weight"]
    weight = scale.reshape(-1, *(1,) * (weight.ndim - 1)) * weight
    bias = scale * parameters["e1"] + shift if "e1" in parameters else shift
    return {"weight": weight.astype(np.float32), "e1": bias.astype(np.float32)}
