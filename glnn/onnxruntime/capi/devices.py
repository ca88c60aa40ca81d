"""Devices of values: the host's memory, whatever a session runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glnn.errors import shown
from glnn.onnxruntime.capi.enums import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtMemType,
)

KINDS = {"cpu": 0, "cuda": 1, "gpu": 1, "webgpu": 1, "npu": 3, "cann": 3, "dml": 4}
"""The numbers of devices, by the names that programs give."""


def host_only(device_type: str, what: str) -> None:
    """Raise RuntimeError, or Exception for an unknown name, unless it is the host's memory.

    what: what was to lie there.
    """
    if device_type not in KINDS:
        raise Exception(f"Unsupported device type: {device_type}")
    if KINDS[device_type]:
        raise RuntimeError(
            f"{what} cannot lie in memory of {device_type!r}: glnn takes and gives arrays in the "
            "host's memory, device_type='cpu', and runs on the GPU all the same"
        )


class OrtDevice:
    """A device, by its kind's number; only the host's has values."""

    def __init__(self, device_type: Any, mem_type: int = 0, *more: int) -> None:
        """device_type: a number of KINDS, or another. more: the id, or the vendor's and the id."""
        whole = isinstance(device_type, OrtDevice)
        self._kind = device_type.device_type() if whole else int(device_type)
        self._id = device_type.device_id() if whole else int((more or (0,))[-1])
        self._memory, self._vendor = mem_type, more[0] if len(more) == 2 else 0

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """The device called `cpu`, `cuda` and so on. Raises Exception for an unknown name."""
        if ort_device_name not in KINDS:
            raise Exception(f"Unsupported device type: {ort_device_name}")
        return OrtDevice(KINDS[ort_device_name], 0, max(vendor_id, 0), device_id)

    def device_id(self) -> int:
        """The number among devices of its kind."""
        return self._id

    def device_type(self) -> int:
        """The kind's number: 0 is the host."""
        return self._kind

    def device_vendor_id(self) -> int:
        """The vendor's number of PCI; 0 where none was given."""
        return self._vendor

    def device_mem_type(self) -> int:
        """The kind of memory: 0, the usual one, unless said otherwise."""
        return self._memory

    vendor_id = device_vendor_id
    mem_type = device_mem_type

    def _get_c_device(self) -> OrtDevice:
        return self

    @staticmethod
    def cpu() -> int:
        """The host's number."""
        return KINDS["cpu"]

    @staticmethod
    def cuda() -> int:
        """Return the kind of NVIDIA's GPUs, which have no values here."""
        return KINDS["cuda"]

    @staticmethod
    def default_memory() -> int:
        """Return the kind of the usual memory."""
        return 0


@dataclass(frozen=True)
class OrtMemoryInfo:
    """A memory, which is the host's. Raises RuntimeError for the name of any other."""

    name: str = "Cpu"
    allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_DEVICE_ALLOCATOR
    device_id: int = 0
    mem_type: OrtMemType = OrtMemType.DEFAULT

    def __post_init__(self) -> None:
        if self.name != "Cpu":
            raise RuntimeError(f"a memory must be 'Cpu', the host's, got {shown(self.name)}")

    @property
    def device_mem_type(self) -> OrtDeviceMemoryType:
        """The usual one."""
        return OrtDeviceMemoryType.DEFAULT

    @property
    def device_vendor_id(self) -> int:
        """None's."""
        return 0


class OrtArenaCfg:
    """Settings of ONNX Runtime's own memory arena: kept, and of no effect."""

    NAMES = (
        "max_mem",
        "arena_extend_strategy",
        "initial_chunk_size_bytes",
        "max_dead_bytes_per_chunk",
        "initial_growth_chunk_size_bytes",
        "max_power_of_two_extend_bytes",
    )

    def __init__(self, *given: Any) -> None:
        """given: the first four of NAMES, or a dict. Raises RuntimeError for an unknown name."""
        if len(given) == 1 and isinstance(given[0], dict):
            values = given[0]
        elif len(given) == 4:
            values = dict(zip(self.NAMES, given))
        else:
            raise TypeError("OrtArenaCfg takes a dict or four ints")
        for name in values:
            if name not in self.NAMES:
                raise RuntimeError(f"Invalid OrtArenaCfg option: {name}")
        for name in self.NAMES:
            setattr(self, name, int(values.get(name, 0 if name == "max_mem" else -1)))
