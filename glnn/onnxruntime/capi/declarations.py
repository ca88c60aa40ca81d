"""ONNX Runtime's exceptions and enumerations, and its classes without a counterpart in glnn."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar

from glnn.errors import (
    DeviceError,
    GlnnError,
    LimitError,
    UnsupportedOpError,
)


class OrtException(GlnnError):  # noqa: N818
    """Base of ONNX Runtime's exceptions, whose texts have `code` and `label`."""

    code: ClassVar[int] = 1
    label: ClassVar[str] = "FAIL"

    @classmethod
    def from_text(cls, text: str) -> OrtException:
        """Return an error with `text` in ONNX Runtime's format, which programs parse."""
        return cls(f"[ONNXRuntimeError] : {cls.code} : {cls.label} : {text}")


class Fail(OrtException):
    """Any error without a class of its own."""


class InvalidArgument(OrtException):
    """An input or output is unknown or does not fit, or a model is malformed."""

    code, label = 2, "INVALID_ARGUMENT"


class NoSuchFile(OrtException):
    """The model file does not exist."""

    code, label = 3, "NO_SUCHFILE"


class NoModel(OrtException):
    """A session has no model; never raised here."""

    code, label = 4, "NO_MODEL"


class EngineError(OrtException):
    """Never raised here."""

    code, label = 5, "ENGINE_ERROR"


class RuntimeException(OrtException):
    """The device cannot take what a run needs."""

    code, label = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(OrtException):
    """A file is no ONNX model."""

    code, label = 7, "INVALID_PROTOBUF"


class ModelLoaded(OrtException):
    """A model was loaded already; never raised here."""

    code, label = 8, "MODEL_LOADED"


class NotImplemented(OrtException):
    """An operator or a feature of ONNX Runtime is not supported."""

    code, label = 9, "NOT_IMPLEMENTED"


class InvalidGraph(OrtException):
    """A model's graph makes no sense."""

    code, label = 10, "INVALID_GRAPH"


class EPFail(OrtException):
    """No device opens, or it was lost."""

    code, label = 11, "EP_FAIL"


class ModelLoadCanceled(OrtException):
    """Never raised here."""

    code, label = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(OrtException):
    """Never raised here."""

    code, label = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(OrtException):
    """Never raised here."""

    code, label = 14, "NOT_FOUND"


class DeviceReset(OrtException):
    """Never raised here: a device that was lost is replaced by the next run."""

    code, label = 15, "DEVICE_RESET"


CLASSES: tuple[tuple[type[GlnnError], type[OrtException]], ...] = (
    (UnsupportedOpError, NotImplemented),
    (LimitError, RuntimeException),
    (DeviceError, EPFail),
    (GlnnError, Fail),
)
"""Classes of glnn's errors with those that they are converted to. The first that matches counts.

Inputs are checked earlier: a ShapeError is about a node's operands, and becomes Fail.
"""


def convert_error(error: GlnnError) -> OrtException:
    """Convert `error` to ONNX Runtime's class, with the same sentence.

    An OrtException is returned unchanged.
    """
    if isinstance(error, OrtException):
        return error
    converted = next(theirs for ours, theirs in CLASSES if isinstance(error, ours))
    return converted.from_text(str(error))


class Absent:
    """Base of classes without a counterpart. The constructor raises NotImplemented."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        raise NotImplemented.from_text(f"glnn has no {type(self).__name__}")


class SparseTensor(Absent):
    """Sparse tensors."""

    @classmethod
    def sparse_coo_from_numpy(cls, *arguments: Any) -> SparseTensor:
        """Raise NotImplemented."""
        return cls()

    @classmethod
    def sparse_csr_from_numpy(cls, *arguments: Any) -> SparseTensor:
        """Raise NotImplemented."""
        return cls()


class AdapterFormat(Absent):
    """Files of adapters."""

    @staticmethod
    def read_adapter(path: Any) -> AdapterFormat:
        """Raise NotImplemented."""
        return AdapterFormat()


class LoraAdapter(Absent):
    """Adapters of weights."""


class ModelCompiler(Absent):
    """Models that are compiled ahead for a provider."""


class ModelPackage(Absent):
    """Several models in one file."""


class ModelPackageComponentContext(Absent):
    """A model of a package."""


class ModelPackageContext(Absent):
    """A package that is open."""


class ModelPackageOptions(Absent):
    """Options for opening a package."""


class OrtEpAssignedNode(Absent):
    """Assignment of a node to a provider."""


class OrtEpAssignedSubgraph(Absent):
    """Assignment of a part of a graph to a provider."""


class OrtEpContextData(Absent):
    """Data that a provider keeps of a compiled model."""


class OrtEpContextDataBuffer(Absent):
    """The bytes of an OrtEpContextData."""


class OrtEpDevice(Absent):
    """A device of a provider's library."""


class OrtExternalInitializerInfo(Absent):
    """Position of an initializer in a file."""


class OrtHardwareDevice(Absent):
    """A device of the machine."""


class OrtSyncStream(Absent):
    """A stream of a device."""


class _OrtEnum(IntEnum):
    """An enumeration whose members are printed with their class and equal their numbers."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class GraphOptimizationLevel(_OrtEnum):
    """Levels of graph optimization: kept, and of no effect here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_OrtEnum):
    """Sequential or parallel execution of operators: kept, and of no effect here."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_OrtEnum):
    """Orders of operators: kept, and of no effect here."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtMemType(_OrtEnum):
    """Kinds of memory as a provider sees them."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtAllocatorType(_OrtEnum):
    """Kinds of allocators."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtDeviceMemoryType(_OrtEnum):
    """Kinds of a device's memory."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(_OrtEnum):
    """Kinds of devices that a memory belongs to."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtHardwareDeviceType(_OrtEnum):
    """Kinds of hardware devices."""

    CPU = 0
    GPU = 1
    NPU = 2


class OrtExecutionProviderDevicePolicy(_OrtEnum):
    """Rules by which a provider is chosen: kept, and of no effect here."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtSparseFormat(_OrtEnum):
    """Formats of sparse tensors."""

    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class OrtCompileApiFlags(_OrtEnum):
    """Flags of ModelCompiler, which glnn does not have."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class ModelPackageWriteMode(_OrtEnum):
    """Modes of writing a ModelPackage, which glnn does not have."""

    PRESERVE = 0
    DENSE = 1


class ArenaExtendStrategy(_OrtEnum):
    """Strategies by which an arena grows."""

    kNextPowerOfTwo = 0  # noqa: N815
    kSameAsRequested = 1  # noqa: N815


class OrtDeviceVendorId(IntEnum):
    """Vendors by their PCI numbers."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086
