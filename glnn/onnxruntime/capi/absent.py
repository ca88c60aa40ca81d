"""Names of ONNX Runtime without a counterpart in glnn; using one raises an error that says so."""

from __future__ import annotations

from typing import Any

from glnn.onnxruntime.capi.faults import NotImplemented


class Absent:
    """A class that cannot be made. Raises NotImplemented, whatever it is given."""

    def __init__(self, *given: Any, **more: Any) -> None:
        raise NotImplemented.saying(f"glnn has no {type(self).__name__}")


class SparseTensor(Absent):
    """Sparse tensors."""

    @classmethod
    def sparse_coo_from_numpy(cls, *given: Any) -> SparseTensor:
        """Raise NotImplemented."""
        return cls()

    @classmethod
    def sparse_csr_from_numpy(cls, *given: Any) -> SparseTensor:
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
    """The bytes of it."""


class OrtEpDevice(Absent):
    """A device of a provider's library."""


class OrtExternalInitializerInfo(Absent):
    """Position of an initializer in a file."""


class OrtHardwareDevice(Absent):
    """A device of the machine."""


class OrtSyncStream(Absent):
    """A stream of a device."""
