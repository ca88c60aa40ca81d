"""Files that hold weights alone: arrays by PyTorch's names, `conv1.weight`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glnn.errors import ModelError, ShapeError, shown
from glnn.model import safetensors_format
from glnn.model.npz import open_npz, save_arrays
from glnn.registry import module_for
from glnn.types import Array, of_tensor

TORCH = (".pt", ".pth")
ENDINGS = (".safetensors", ".npz", *TORCH)
"""Endings of files of weights."""
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys of a training checkpoint that may have the state dict."""


def load_weights(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays in a file of weights, by their names.

    path: a .safetensors or .npz file; or a .pt or .pth file of `torch.save(model.state_dict(),
    path)`, or of a checkpoint that has one as `state_dict`, `model_state_dict` or `model`, where
    PyTorch is installed. They are of the types that the file says; bfloat16 becomes float32.
    Nothing that a file says is run: pickled objects are refused. Raises ModelError, in one
    sentence that names the file, for every fault.
    """
    file, ending = _place(path)
    if ending == ".safetensors":
        return safetensors_format.read(file)
    if ending == ".npz":
        return _npz(file)
    return arrays_of(state_dict_of(_torch(file, "read").read(file), str(file)), str(file))


def save_weights(state_dict: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a state dict to the file `path`, whole or not at all.

    state_dict: NumPy arrays or PyTorch's tensors by their names, as `Model.state_dict` gives them.
    path: as `load_weights` has it. bfloat16 is written as float32. Raises ModelError where it
    cannot be written.
    """
    file, ending = _place(path)
    arrays = arrays_of(state_dict_of(state_dict, "state_dict"), str(file))
    if ending == ".safetensors":
        safetensors_format.save(file, arrays)
    elif ending == ".npz":
        save_arrays(file, arrays)
    else:
        _torch(file, "write").save(file, arrays)


def is_weights(path: str | os.PathLike[str]) -> bool:
    """Return True for the name of a file of weights alone."""
    return Path(path).suffix.lower() in ENDINGS


def state_dict_of(checkpoint: object, where: str) -> Mapping[str, Any]:
    """Return the state dict that `checkpoint` is, or has under one of WRAPPERS. where: its name in
    errors.

    Raises ModelError where it is none, and where it has one by another name.
    """
    if not isinstance(checkpoint, Mapping):
        hint = ""
        if callable(getattr(checkpoint, "state_dict", None)):
            hint = ": give what its state_dict() gives"
        got = shown(checkpoint) if isinstance(checkpoint, (int, str)) else type(checkpoint).__name__
        raise ModelError(f"{where}: expected arrays by their names, got {got}{hint}")
    for key in WRAPPERS:
        if isinstance(checkpoint.get(key), Mapping):
            return state_dict_of(checkpoint[key], where)
    for key in checkpoint:
        if not isinstance(key, str):
            raise ModelError(f"{where}: expected arrays by their names, got {shown(key)} as a name")
    if not any(map(_is_array, checkpoint.values())):
        for key, one in checkpoint.items():
            if isinstance(one, Mapping) and any(map(_is_array, one.values())):
                raise ModelError(
                    f"{where}: expected arrays by their names, got a checkpoint, whose "
                    f'"{key}" has them: give torch.load(path)["{key}"]'
                )
    return checkpoint


def _is_array(value: object) -> bool:
    return hasattr(value, "shape")


def arrays_of(state_dict: Mapping[str, Any], where: str) -> dict[str, Array]:
    """Return the state dict with all values as NumPy arrays of numbers."""
    found = {}
    for name, value in state_dict.items():
        try:
            array = of_tensor(repr(name), value)
        except ShapeError as error:
            raise ModelError(f"{where}: {error}") from None
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            got = f"{array.dtype} array" if isinstance(array, np.ndarray) else type(value).__name__
            raise ModelError(f"{where}: {name!r} must be an array or a tensor, got {got}")
        if np.ma.is_masked(array):
            raise ModelError(f"{where}: {name!r} has masked values, which are no numbers")
        found[name] = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    return found


def _place(path: object) -> tuple[Path, str]:
    """The path, and how it ends. Raises ModelError for another ending than those of weights."""
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(f"weights lie in a file, expected its path, got {shown(path)}")
    file = Path(path)
    if not is_weights(file):
        raise ModelError(f"{file}: a file of weights ends with {', '.join(ENDINGS)}")
    return file, file.suffix.lower()


def _npz(file: Path) -> dict[str, Array]:
    found = {}
    with open_npz(file) as archive:
        for name in archive.names:
            dtype = archive.header(name).dtype
            if dtype.kind not in "fiub":
                raise ModelError(f"{file}: the array {name!r} must be of numbers, got {dtype}")
            found[name] = archive.read(name)
    return found


def _torch(file: Path, what: str) -> Any:
    """Return the front end that reads and writes PyTorch's files, which imports torch."""
    try:
        return module_for("read and write torch weights")
    except ImportError as error:
        raise ModelError(
            f"{file}: to {what} it PyTorch is needed, and {error.name} is not installed: pip "
            "install torch, or take a .safetensors file, which needs no package"
        ) from None
