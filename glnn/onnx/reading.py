"""Reading .onnx files: every fault is a ModelError that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glnn import reading
from glnn.errors import ModelError, extra

MOST = 2**31 - 1  # bytes of a .onnx file: protobuf reads no more


def package(where: str, doing: str = "reading") -> Any:
    """The `onnx` package. Raises ModelError, which says what for, where it is not installed."""
    try:
        import onnx
    except ImportError:
        needs = f"{doing} ONNX needs the package onnx: {extra('onnx')}"
        raise ModelError(f"{where}: {needs}") from None
    return onnx


def read(path: Path) -> Any:
    """The ModelProto in the file."""
    reading.check_file(path)
    try:
        content = reading.read(path, MOST)
    except (OSError, ValueError) as error:
        fault = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"{path}: cannot be read: {fault}") from None
    return parse(content, str(path))


def parse(content: bytes, where: str) -> Any:
    """The ModelProto that `content` is."""
    onnx = package(where)
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception as error:  # protobuf raises kinds of its own
        raise ModelError(f"{where}: not an ONNX model: {error}") from None
    if not model.HasField("graph"):
        raise ModelError(f"{where}: not an ONNX model: it has no graph")
    return model
