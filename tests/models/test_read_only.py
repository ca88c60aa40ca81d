"""Layers cannot be changed in silence, whatever their kind, and copies of them are layers."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from glnn.errors import ReadOnlyError
from glnn.graph.composite import Composite
from glnn.layers import LSTM, Conv2d, Layer, Linear, Pointwise
from glnn.layers.layer import Fixed, Parameter
from tests.onnx.test_export import CASES, SEVERAL

LAYERS: list[Layer] = [layer for layer, _ in (*CASES, *SEVERAL)]
"""One at least of every kind (tests/onnx/test_export.py sees to that)."""
COPIES = [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]


def mutable(where: str, value: Any) -> Iterator[str]:
    """The places within `value` that somebody can write to."""
    if value is None or isinstance(value, (int, float, str, bytes, type, Enum)):
        return
    if isinstance(value, np.ndarray):
        inside: dict[Any, Any] = {}
        if value.flags.writeable:
            yield where
    elif isinstance(value, tuple):
        inside = dict(enumerate(value))
    elif isinstance(value, (Fixed, MappingProxyType)):
        inside = dict(value)
    elif is_dataclass(value) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        kept = {"_expansions"} if isinstance(value, Composite) else set()  # follows from the others
        inside = {n: getattr(value, n) for n in {one.name for one in fields(value)} - kept}
    else:
        inside = {}
        yield where
    for name, one in inside.items():
        yield from mutable(f"{where}.{name}", one)


def public(layer: Layer) -> dict[str, Any]:
    """Its attributes but for methods and parameters; `parameters` is made anew each time."""
    found = {name: getattr(layer, name) for name in dir(layer) if not name.startswith("_")}
    kind = type(layer)
    others = {n for n in found if isinstance(getattr(kind, n, None), Parameter)}
    others |= {"parameters", *layer.shapes}
    return {n: v for n, v in found.items() if not callable(v) and n not in others}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda one: repr(one)[:50])
def test_no_attribute_can_be_written_to(layer: Layer) -> None:
    before = repr(layer)
    kind = type(layer).__name__
    for name, value in public(layer).items():
        assert not [*mutable(f"{kind}.{name}", value)]
        with pytest.raises(ReadOnlyError, match=f"{kind} {name} is read-only"):
            setattr(layer, name, value)
    for name, array in layer.parameters.items():
        assert not array.flags.writeable, name
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    for name in ("__class__", "__dict__", "weigth", *vars(layer)):
        if name not in layer.shapes:
            with pytest.raises(ReadOnlyError):
                setattr(layer, name, None)
        with pytest.raises(ReadOnlyError, match="cannot be deleted"):
            delattr(layer, name)
    with pytest.raises(TypeError):
        layer.shapes["weight"] = (1,)  # type: ignore[index]
    with pytest.raises(TypeError):
        layer.revisions["weight"] = 5  # type: ignore[index]
    assert repr(layer) == before


@pytest.mark.parametrize("layer", LAYERS, ids=lambda one: repr(one)[:50])
@pytest.mark.parametrize("of", COPIES)
def test_copies_are_equal_and_apart(layer: Layer, of: Any) -> None:
    for name in layer.shapes:
        setattr(layer, name, getattr(layer, name) + 1)
    again, counts = of(layer), dict(layer.revisions)
    assert type(again) is type(layer) and repr(again) == repr(layer)
    assert again.op == layer.op and again.shapes == layer.shapes
    assert again.revisions == layer.revisions
    for name, array in layer.parameters.items():
        found = again.parameters[name]
        assert np.array_equal(found, array) and not found.flags.writeable
        setattr(again, name, 2 * array)
        assert np.array_equal(getattr(layer, name), array) and dict(layer.revisions) == counts
    with pytest.raises(ReadOnlyError):
        again.op = None  # type: ignore[assignment]


def as_numpy(value: Any) -> Any:
    """`value` with NumPy's numbers and truths for Python's."""
    kinds: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}
    if isinstance(value, (tuple, list)):
        return type(value)(map(as_numpy, value))
    return kinds.get(type(value), lambda one: one)(value)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda one: repr(one)[:50])
def test_numbers_of_numpy_are_taken(layer: Layer) -> None:
    config = layer.config()
    again = type(layer)(**{name: as_numpy(value) for name, value in config.items()})
    assert json.dumps(again.config()) == json.dumps(config)  # 1, 1.0 and true are different
    assert again.op == layer.op and again.shapes == layer.shapes


def test_numbers_of_numpy_stay_of_their_kind() -> None:
    x = np.array([1, 2], np.int32)
    assert Pointwise("add", [np.int64(2)])(x, backend="cpu").dtype == np.int32
    assert Pointwise("logical_or", [np.True_])(x > 1, backend="cpu").all()


class Tagged(Linear):
    """A layer of a user's, with what is its own: a list, and a slot."""

    __slots__ = ("slot",)

    def __init__(self, tags: list[str]) -> None:
        self.tags, self.slot = tags, len(tags)
        super().__init__(2, 1)


class Plain(Conv2d):
    """One without a constructor of its own."""


@pytest.mark.parametrize("of", COPIES)
def test_layers_of_users(of: Any) -> None:
    again = of(Tagged(["a"]))
    again.tags.append("b")  # nothing of ours
    assert (again.tags, again.slot) == (["a", "b"], 1)
    again.weight = np.ones((1, 2))
    for name in ("tags", "slot", "bias_", "in_features"):
        with pytest.raises(ReadOnlyError):
            setattr(again, name, 1)
    with pytest.raises(ReadOnlyError, match="Plain stride is read-only"):
        of(Plain(1, 1, 3)).stride = 2


def test_a_name_that_is_nearly_a_parameter() -> None:
    with pytest.raises(ReadOnlyError, match="did you mean 'weight_hh_l0'"):
        LSTM(2, 3).weigth_hh_l0 = 1
