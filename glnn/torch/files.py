"""PyTorch's files of tensors by name, read without executing code."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from glnn.core.fileio import atomic_write, check_file, open_regular
from glnn.core.types import Array
from glnn.errors import GlnnError, ModelError, fault, first_line
from glnn.model.files import check_inflated

ZIP, PICKLE = b"PK\x03\x04", b"\x80"
OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of a pickle written by torch.save before 1.6; later files are zip archives."""


def read(path: Path) -> Any:
    """Read a file of `torch.save` that has only tensors, numbers, texts, lists and dicts.

    Tensors are on the CPU. Raises ModelError for a damaged file, and for any other content.
    """
    check_file(path)
    try:
        with open(path, "rb", opener=open_regular) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = torch.load(file, map_location="cpu", weights_only=True)
            size = path.stat().st_size
        check_inflated(path, size, sum(t.numel() * t.element_size() for t in _tensors(result)))
        return result
    except GlnnError:
        raise
    except Exception as error:  # PyTorch raises any
        raise ModelError(f"{path}: {_describe_fault(path, error)}") from None


def save(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write `arrays` to `path` atomically, as `torch.save` writes a state dict.

    Raises ModelError where the file cannot be written, or PyTorch lacks a dtype.
    """
    try:
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        with atomic_write(path) as stream:
            torch.save(tensors, stream)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ModelError(f"{path}: cannot be written: {fault(error)}") from None  # type: ignore[arg-type]


def _describe_fault(path: Path, error: Exception) -> str:
    """Return a description of a file's fault, from PyTorch's error and the file's first bytes."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            begin = file.read(len(OLD))
            names = zipfile.ZipFile(file).namelist() if begin.startswith(ZIP) else []
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile):
        return "it is cut short, or damaged: PyTorch cannot read it"
    if any(name.endswith("/constants.pkl") for name in names):
        return (
            "it is TorchScript, which is not read, as it would be run: save the weights alone, "
            "torch.save(torch.jit.load(path).state_dict(), other)"
        )
    if not names and not begin.startswith(PICKLE):
        return "it is cut short, or is no file of torch.save"
    if isinstance(error, EOFError) or "unexpected EOF" in str(error) or len(begin) < len(OLD):
        return "it is cut short: PyTorch cannot read it"
    if isinstance(error, pickle.UnpicklingError):
        return (
            "has more than tensors, which is not read, as it would be run: save the "
            "weights alone, torch.save(model.state_dict(), path)"
        )
    return f"PyTorch cannot read it: {first_line(error)}"


def _tensors(content: Any) -> Iterator[Any]:
    """Yield all tensors in dicts, lists and tuples."""
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, Mapping):
        for one in content.values():
            yield from _tensors(one)
    elif isinstance(content, (list, tuple)):
        for one in content:
            yield from _tensors(one)
