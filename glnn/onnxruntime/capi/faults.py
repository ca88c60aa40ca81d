"""ONNX Runtime's exceptions, and what becomes one of them."""

from __future__ import annotations

from typing import ClassVar

from glnn.errors import (
    DeviceError,
    GlnnError,
    LimitError,
    UnsupportedOpError,
)


class Fault(GlnnError):  # noqa: N818
    """Base of ONNX Runtime's exceptions; `code` and `label` stand in their texts."""

    code: ClassVar[int] = 1
    label: ClassVar[str] = "FAIL"

    @classmethod
    def saying(cls, text: str) -> Fault:
        """Return an error of this class, its text laid out as ONNX Runtime's, which programs
        parse.
        """
        return cls(f"[ONNXRuntimeError] : {cls.code} : {cls.label} : {text}")


class Fail(Fault):
    """Anything that has no class of its own."""


class InvalidArgument(Fault):
    """An input or output is unknown or does not fit, or a model is malformed."""

    code, label = 2, "INVALID_ARGUMENT"


class NoSuchFile(Fault):
    """There is no such model."""

    code, label = 3, "NO_SUCHFILE"


class NoModel(Fault):
    """A session has no model; never raised here."""

    code, label = 4, "NO_MODEL"


class EngineError(Fault):
    """Never raised here."""

    code, label = 5, "ENGINE_ERROR"


class RuntimeException(Fault):
    """The device cannot take what a run needs."""

    code, label = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(Fault):
    """A file is none of ONNX."""

    code, label = 7, "INVALID_PROTOBUF"


class ModelLoaded(Fault):
    """A model was loaded already; never raised here."""

    code, label = 8, "MODEL_LOADED"


class NotImplemented(Fault):
    """An operator or a part of ONNX Runtime that is not there."""

    code, label = 9, "NOT_IMPLEMENTED"


class InvalidGraph(Fault):
    """A model's graph makes no sense."""

    code, label = 10, "INVALID_GRAPH"


class EPFail(Fault):
    """No device opens, or it was lost."""

    code, label = 11, "EP_FAIL"


class ModelLoadCanceled(Fault):
    """Never raised here."""

    code, label = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(Fault):
    """Never raised here."""

    code, label = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(Fault):
    """Never raised here."""

    code, label = 14, "NOT_FOUND"


class DeviceReset(Fault):
    """Never raised here: a device that was lost is replaced by the next run."""

    code, label = 15, "DEVICE_RESET"


CLASSES: tuple[tuple[type[GlnnError], type[Fault]], ...] = (
    (UnsupportedOpError, NotImplemented),
    (LimitError, RuntimeException),
    (DeviceError, EPFail),
    (GlnnError, Fail),
)
"""Classes of glnn's errors and those that they are converted to; the first that fits.

Inputs are checked before, so that a ShapeError is one of a node's operands.
"""


def fault(error: GlnnError) -> Fault:
    """Convert `error` to the one that ONNX Runtime would raise, with its own sentence; a Fault
    stays as it is.
    """
    if isinstance(error, Fault):
        return error
    wanted = next(theirs for ours, theirs in CLASSES if isinstance(error, ours))
    return wanted.saying(str(error))
