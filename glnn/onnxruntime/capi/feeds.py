"""Inputs of a run: converted and checked as ONNX Runtime does, with its error texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glnn.onnxruntime.capi.faults import Fail, InvalidArgument
from glnn.onnxruntime.capi.node_arg import NodeArg
from glnn.onnxruntime.capi.ort_value import OrtValue
from glnn.onnxruntime.capi.types import dtype_of, type_of
from glnn.types import Array

ADVICE = "Please fix either the inputs/outputs or the model."


class Feeds:
    """The inputs of a model, and of what type and shape they were last.

    unranked: names of those that may have any number of dimensions.
    """

    def __init__(self, inputs: Sequence[NodeArg], unranked: frozenset[str]) -> None:
        self._inputs = {one.name: one for one in inputs}
        self._dims = {one.name: tuple(one.shape) for one in inputs}
        self._unranked = unranked
        self._fitted: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}

    def required(self, inputs: Mapping[str, Any]) -> None:
        """Raise ValueError where an input is missing."""
        keys = inputs.keys()
        missing = [name for name in self._inputs if name not in keys]
        if missing:
            names = list(keys)
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({names}).")

    def arrays(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the inputs of a run to what the session takes: arrays, lists of these, numbers in
        lists.

        Raises InvalidArgument for what does not fit, RuntimeError for what is no tensor at all.
        """
        found: dict[str, Any] = {}
        fresh: list[str] = []
        for name, value in inputs.items():
            like = self._fitted.get(name)
            known = type(value) is np.ndarray and (value.shape, value.dtype) == like
            if not known:
                value = self._array(name, value)
                fresh.append(name)
            found[name] = value
        for name in fresh:
            found[name] = value = self._check_value(name, found[name])
            if type(value) is np.ndarray and value is inputs[name]:
                self._fitted[name] = value.shape, value.dtype
        return found

    def _array(self, name: str, value: Any) -> Any:
        """Return `value` as an array, or as it is where the input is no tensor."""
        info = self._inputs.get(name)
        if isinstance(value, OrtValue):
            value = value._content
        if isinstance(value, np.ndarray):
            value = np.asarray(value)
            if not value.dtype.isnative:
                value = value.astype(value.dtype.newbyteorder("="))
            type_of(value.dtype)
            return value
        if info is None or not info.type.startswith("tensor("):
            return value
        if isinstance(value, list):
            try:
                return _from_list(value, dtype_of(info.type))
            except (TypeError, ValueError, OverflowError):
                raise RuntimeError("Could not create tensor from given input list") from None
        if value is None:
            raise Fail.saying(f"Missing Input: {name}")
        if hasattr(value, "__iter__"):
            if not any(True for _ in value):
                raise RuntimeError(f"Input '{name}' must not be empty.")
            text = (
                f"Input must be a list of dictionaries or a single numpy array for input '{name}'."
            )
            raise RuntimeError(text)
        raise RuntimeError(f"Unable to handle object of type {type(value)}")

    def _check_value(self, name: str, value: Any) -> Any:
        """Return `value` where the input `name` can be it. Raises InvalidArgument for any other."""
        info = self._inputs.get(name)
        if info is None:
            raise InvalidArgument.saying(f"Invalid input name: {name}")
        tensor = info.type.startswith("tensor(")
        if not tensor or not isinstance(value, np.ndarray):
            if tensor != isinstance(value, np.ndarray) and not info.type.startswith("optional("):
                what = "a tensor" if isinstance(value, np.ndarray) else type(value).__name__
                text = f"input with name: '{name}' expected to be of type: {info.type} but received"
                raise InvalidArgument.saying(f"{text} {what}")
            return value
        actual = type_of(value.dtype)
        if actual != info.type:
            raise InvalidArgument.saying(
                f"Unexpected input data type. Actual: ({actual}) , expected: ({info.type})"
            )
        if value.dtype.kind == "O":
            value = _texts(value)
        dims = self._dims[name]
        if name in self._unranked:
            return value
        if not dims and value.size == 1:  # ONNX Runtime takes these for scalars
            return value.reshape(())
        check(f"input: {name}", value.shape, dims)
        return value


def check(what: str, shape: Sequence[int], dims: Sequence[int | str | None]) -> None:
    """Raise InvalidArgument unless a tensor of `shape` can have `dims`. what: `input: x`."""
    if len(shape) != len(dims):
        raise InvalidArgument.saying(
            f"Invalid rank for {what} Got: {len(shape)} Expected: {len(dims)} {ADVICE}"
        )
    pairs = enumerate(zip(shape, dims, strict=True))
    wrong = [(i, got, dim) for i, (got, dim) in pairs if isinstance(dim, int) and got != dim]
    if wrong:
        lines = "".join(f" index: {i} Got: {got} Expected: {dim}\n" for i, got, dim in wrong)
        text = f"Got invalid dimensions for {what} for the following indices\n{lines} {ADVICE}"
        raise InvalidArgument.saying(text)


def _texts(value: Array) -> Array:
    """An array of texts, of whatever they are made."""
    if all(type(one) is str for one in value.flat):
        return value
    made = [one.decode() if isinstance(one, bytes) else str(one) for one in value.flat]
    found = np.empty(len(made), object)
    found[:] = made
    return found.reshape(value.shape)


def _from_list(value: list[Any], dtype: np.dtype[Any]) -> Array:
    """Return the numbers or texts of a list; numbers are cut to integers where the input has
    such.
    """
    if dtype.kind == "O":
        return np.array(np.array(value).astype(str), object)
    found = np.array(value)
    if dtype.kind in "iu" and found.size and found.dtype.kind in "iuf":
        limits = np.iinfo(dtype)
        if not (found.min() >= limits.min and found.max() <= limits.max):
            raise OverflowError
    return found.astype(dtype)
