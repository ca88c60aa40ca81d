"""Layers one after another, as the nodes of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from glnn.errors import ModelError, shown
from glnn.layers import Layer
from glnn.model.checks import are_texts, check_layer
from glnn.model.node import Node

T = TypeVar("T")


def chain(
    layers: Sequence[Layer] | Mapping[str, Layer], names: Sequence[str] | None, first: str
) -> tuple[Node, ...]:
    """Return the nodes of `layers` one after another, the first of which reads the tensor `first`.

    names: what the layers are called; None takes the mapping's keys, or else their kinds, as
    `conv2d1`, `relu1`, `conv2d2`. Raises ModelError where something is no layer or no name.
    """
    if isinstance(layers, Mapping):
        names = list(layers) if names is None else names
        layers = list(layers.values())
    layers = to_list("layers", layers, "layers")
    for number, layer in enumerate(layers, start=1):
        check_layer(f"layer {number}", layer)
    names = _names(layers) if names is None else to_list("names", names, "names")
    if not are_texts(names):
        raise ModelError(f"layers are called by texts, got {shown(names)}")
    if len(names) != len(layers):
        raise ModelError(f"{len(layers)} layers need as many names, got {len(names)}")
    read = [first, *names]
    return tuple(
        Node(name, layer, (before,), name)
        for name, layer, before in zip(names, layers, read, strict=False)
    )


def to_list(what: str, values: Iterable[T], kind: str) -> list[T]:
    """Return `values` as a list. kind: the values' kind, for errors. Raises ModelError for what is
    not iterable.
    """
    try:
        return list(values)
    except TypeError:
        raise ModelError(f"{what} must be a list of {kind}, got {shown(values)}") from None


def _names(layers: Sequence[Layer]) -> list[str]:
    counts: Counter[str] = Counter()
    names = []
    for layer in layers:
        kind = type(layer).__name__.lower()
        counts[kind] += 1
        names.append(f"{kind}{counts[kind]}")
    return names
