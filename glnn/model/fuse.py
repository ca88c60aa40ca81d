"""Joining layers into fewer ops: a bias and an activation go into their producer's epilogue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from glnn.ops import Activation, Bias, Conv2d, Matmul
from glnn.ops.op import Op

if TYPE_CHECKING:
    from glnn.model.model import Model, Node


@dataclass(frozen=True)
class FusedNode:
    """One op of a plan, made of one layer or of several that were joined."""

    name: str
    op: Op
    parameters: Mapping[str, NDArray[Any]]
    inputs: tuple[str, ...]
    output: str


def fuse(model: Model, *, enabled: bool = True) -> tuple[FusedNode, ...]:
    """The ops that compute `model`, in order; `enabled=False` keeps one op a layer.

    A tensor that somebody else reads, or that is an output of the model, is never fused away.
    """
    readers = Counter(name for node in model.nodes for name in node.inputs)
    readers.update(model.outputs)
    fused: list[FusedNode] = []
    for node in model.nodes:
        previous = fused[-1] if fused else None
        joined = None
        if (
            enabled
            and previous
            and node.inputs == (previous.output,)
            and readers[previous.output] == 1
        ):
            joined = _join(previous, node)
        if joined is not None:
            fused[-1] = joined
        else:
            layer = node.layer
            fused.append(FusedNode(node.name, layer.op, layer.parameters, node.inputs, node.output))
    return tuple(fused)


def _join(first: FusedNode, node: Node) -> FusedNode | None:
    """`first` with the layer of `node` in its epilogue, or None where that cannot be."""
    op, following = first.op, node.layer.op
    if not isinstance(op, (Matmul, Conv2d)) or op.activation != "identity":
        return None
    joined = replace(first, name=f"{first.name} + {node.name}", output=node.output)
    if isinstance(following, Activation):
        return replace(joined, op=op.with_activation(following.function))
    if isinstance(following, Bias) and not {"bias", "c"} & set(first.parameters):
        return replace(joined, parameters={**first.parameters, **node.layer.parameters})
    return None
