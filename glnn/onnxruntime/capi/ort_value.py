"""Devices, OrtValue, and the inputs of runs, which are checked as by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from operator import index
from threading import RLock
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from glnn.core.tensor_info import kind_numbers
from glnn.core.types import Array
from glnn.errors import GlnnError, shown
from glnn.onnxruntime.capi.declarations import (
    Fail,
    InvalidArgument,
    NotImplemented,
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtMemType,
    convert_error,
)
from glnn.onnxruntime.capi.node_arg import NUMBERS, NodeArg, dtype_of, type_of
from glnn.runtime.device_array import DeviceArray

KINDS = {"cpu": 0, "cuda": 1, "gpu": 1, "webgpu": 1, "npu": 3, "cann": 3, "dml": 4}
"""The numbers of device types, by name."""


DEVICE = "gpu"
"""The name of glnn's device: values on it are read and written by runs without transfers."""


def is_on_device(device_type: str, what: str) -> bool:
    """Return True for DEVICE, False for "cpu", the host.

    Raises RuntimeError for another device, Exception for an unknown name. what: the value to place,
    for the error.
    """
    if device_type not in KINDS:
        raise Exception(f"Unsupported device type: {device_type}")
    if device_type not in ("cpu", DEVICE):
        raise RuntimeError(
            f"{what} cannot lie in memory of {device_type!r}: glnn has values in the host's, "
            f"'cpu', and on its own device, {DEVICE!r}, and runs on the GPU whichever it is"
        )
    return device_type == DEVICE


class DeviceMemory:
    """Memory on glnn's device of one shape and dtype, whose content runs and the host replace.

    Runs in flight continue with the content that they started with. Several OrtValues may share one
    memory. Thread-safe.
    """

    __slots__ = ("__weakref__", "content", "is_shared", "lock", "number")
    _BY_ADDRESS: ClassVar[WeakValueDictionary[int, DeviceMemory]] = WeakValueDictionary()
    _FIRST_ADDRESS: ClassVar[int] = 1 << 62  # above the addresses of any host's memory
    _NUMBERS: ClassVar[Iterator[int]] = count()

    def __init__(self, content: DeviceArray) -> None:
        self.content = content
        self.lock = RLock()
        """Held to read the content, and by a run that may overwrite it."""
        self.is_shared = False
        """True once another memory has had the same content: then no run may overwrite it."""
        self.number = next(self._NUMBERS)
        """Unique number, which orders locks."""

    @property
    def address(self) -> int:
        """The number that `data_ptr` returns in place of an address."""
        result = self._FIRST_ADDRESS + 256 * self.number
        self._BY_ADDRESS[result] = self
        return result

    @classmethod
    def from_address(cls, address: int, what: str) -> DeviceMemory:
        """Return the memory of an address. Raises RuntimeError where no OrtValue has it any more.

        what: the input or output, for the error.
        """
        result = cls._BY_ADDRESS.get(address)
        if result is None:
            raise RuntimeError(
                f"{what}: there is no memory of {DEVICE!r} at {address}, which must be data_ptr() "
                "of an OrtValue there that still is"
            )
        return result

    def replace(self, content: DeviceArray) -> None:
        """Replace the content by one that no other memory has."""
        self.content, self.is_shared = content, False

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self.content.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the numbers."""
        return self.content.dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.content.size

    @property
    def nbytes(self) -> int:
        """The bytes of the numbers."""
        return self.content.nbytes

    def numpy(self) -> Array:
        """Copy the content to a new array. Raises EPFail where its device was closed or lost."""
        try:
            with self.lock:
                return self.content.numpy()
        except GlnnError as error:
            raise convert_error(error) from None

    def wait(self) -> None:
        """Wait for the runs that compute the content. Raises EPFail where its device was closed or
        lost.
        """
        try:
            with self.lock:
                self.content.wait()
        except GlnnError as error:
            raise convert_error(error) from None


@contextmanager
def lock_memories(values: Iterable[object]) -> Iterator[None]:
    """Lock all DeviceMemory among `values` against reading and overwriting by other threads."""
    locks = {one.number: one.lock for one in values if isinstance(one, DeviceMemory)}
    locked = []
    try:
        for number in sorted(locks):  # in one order in all threads, so that there is no deadlock
            locks[number].acquire()
            locked.append(locks[number])
        yield
    finally:
        for lock in reversed(locked):
            lock.release()


class OrtDevice:
    """A device, identified by the number of its type."""

    def __init__(self, device_type: Any, mem_type: int = 0, *more: int) -> None:
        """device_type: a number of KINDS, or an OrtDevice. more: the id, or vendor id and id."""
        is_copy = isinstance(device_type, OrtDevice)
        self._kind = device_type.device_type() if is_copy else int(device_type)
        self._id = device_type.device_id() if is_copy else int((more or (0,))[-1])
        self._memory, self._vendor = mem_type, more[0] if len(more) == 2 else 0

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Return the device of a name in KINDS. Raises Exception for an unknown name."""
        if ort_device_name not in KINDS:
            raise Exception(f"Unsupported device type: {ort_device_name}")
        return OrtDevice(KINDS[ort_device_name], 0, max(vendor_id, 0), device_id)

    def device_id(self) -> int:
        """Return the number among devices of the type."""
        return self._id

    def device_type(self) -> int:
        """Return the number of the type; 0 is the host."""
        return self._kind

    def device_vendor_id(self) -> int:
        """Return the vendor's PCI number, by default 0."""
        return self._vendor

    def device_mem_type(self) -> int:
        """Return the kind of memory, by default 0, the usual one."""
        return self._memory

    vendor_id = device_vendor_id
    mem_type = device_mem_type

    def _get_c_device(self) -> OrtDevice:
        return self

    @staticmethod
    def cpu() -> int:
        """Return the type of the host."""
        return KINDS["cpu"]

    @staticmethod
    def cuda() -> int:
        """Return the type of NVIDIA's GPUs, on which glnn places no values."""
        return KINDS["cuda"]

    @staticmethod
    def default_memory() -> int:
        """Return the kind of the usual memory."""
        return 0


@dataclass(frozen=True)
class OrtMemoryInfo:
    """The host's memory. Raises RuntimeError for the name of any other."""

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
        """Always 0, no vendor."""
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

    def __init__(self, *arguments: Any) -> None:
        """arguments: four of NAMES, or a dict. Raises RuntimeError for an unknown name."""
        if len(arguments) == 1 and isinstance(arguments[0], dict):
            values = arguments[0]
        elif len(arguments) == 4:
            values = dict(zip(self.NAMES, arguments))
        else:
            raise TypeError("OrtArenaCfg takes a dict or four ints")
        for name in values:
            if name not in self.NAMES:
                raise RuntimeError(f"Invalid OrtArenaCfg option: {name}")
        for name in self.NAMES:
            setattr(self, name, int(values.get(name, 0 if name == "max_mem" else -1)))


class OrtValue:
    """A tensor, a list of tensors, or a missing optional value.

    Created by `ortvalue_from_numpy`, `ortvalue_from_shape_and_type` and `from_dlpack`, without
    copying, as is `numpy()`. To and from DEVICE tensors are copied.
    """

    def __init__(self, ortvalue: Any, numpy_obj: Array | None = None) -> None:
        """ortvalue: another OrtValue, an array, a DeviceMemory, a list of arrays, or None."""
        self._content: Any = ortvalue._content if isinstance(ortvalue, OrtValue) else ortvalue
        self._numpy_obj = numpy_obj

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Return a value of `numpy_obj`, which is copied only if it is not contiguous.

        For DEVICE it is copied, and uploaded by the first run that reads it. Raises RuntimeError
        for anything but an array of numbers, and for another device.
        """
        on_device = is_on_device(device_type, "a value")
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "USO":
            raise RuntimeError(
                "Creation of OrtValues is currently only supported from non-string numpy arrays"
            )
        type_of(numpy_obj.dtype)
        if on_device:
            return cls(DeviceMemory(DeviceArray(numpy_obj)))
        return cls(np.require(numpy_obj, requirements="C"), numpy_obj)

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """Return a value of the bytes of `data` as another dtype: uint16 as bfloat16, uint8 as
        float8.

        onnx_element_type: ONNX's number. Raises RuntimeError where the element sizes differ.
        """
        dtype = dtype_of(onnx_element_type)
        value = cls.ortvalue_from_numpy(data)
        if dtype.itemsize != data.dtype.itemsize:
            raise RuntimeError(
                f"an element of {dtype} has not as many bytes as one of {data.dtype}"
            )
        return cls(value.numpy().view(dtype), data)

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: object = None,
    ) -> OrtValue:
        """Return a tensor of zeros, to be written to.

        element_type: NumPy's dtype, or ONNX's number. Raises TypeError for sizes that are no
        integers, RuntimeError for a negative size, an unknown dtype, or a device other than "cpu"
        and DEVICE.
        """
        on_device = is_on_device(device_type, "a value")
        try:
            sizes = tuple(map(index, shape))
        except TypeError:
            raise TypeError(f"a tensor's sizes must be integers, got {shown(shape)}") from None
        if any(n < 0 for n in sizes):
            raise RuntimeError(f"a tensor's sizes must be at least 0, got {list(sizes)}")
        zeros = np.zeros(sizes, dtype_of(element_type))
        return cls(DeviceMemory(DeviceArray.of_host(zeros)) if on_device else zeros)

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: object) -> OrtValue:
        """Raise NotImplemented."""
        raise NotImplemented.from_text("glnn has no sparse tensors")

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Return a value of an object with `__dlpack__`, in the host's memory; not copied."""
        return cls.ortvalue_from_numpy(np.from_dlpack(data))

    def as_sparse_tensor(self) -> Any:
        """Raise NotImplemented."""
        raise NotImplemented.from_text("glnn has no sparse tensors")

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    def _get_c_value(self) -> OrtValue:
        return self

    def data_ptr(self) -> int:
        """Return the address of the first byte; for DEVICE a number that bindings take for it."""
        if isinstance(self._content, DeviceMemory):
            return self._content.address
        return int(self._array().ctypes.data)

    def device_name(self) -> str:
        """Return "cpu" for a value in the host's memory, DEVICE for one on the device."""
        return DEVICE if isinstance(self._content, DeviceMemory) else "cpu"

    def shape(self) -> list[int]:
        """Return the sizes of a tensor."""
        return list(self._tensor().shape)

    def data_type(self) -> str:
        """Return the type, as `tensor(float)`."""
        if self.is_tensor_sequence():
            inner = type_of(self._content[0].dtype) if self._content else "tensor(float)"
            return f"seq({inner})"
        return type_of(self._tensor().dtype)

    def element_type(self) -> int:
        """Return ONNX's number for the dtype."""
        return NUMBERS[type_of(self._tensor().dtype)]

    def tensor_size_in_bytes(self) -> int:
        """Return the bytes of a tensor."""
        return int(self._tensor().nbytes)

    def has_value(self) -> bool:
        """Return False for a missing optional value."""
        return self._content is not None

    def is_tensor(self) -> bool:
        """Return True for a tensor."""
        return isinstance(self._content, (np.ndarray, DeviceMemory))

    def is_sparse_tensor(self) -> bool:
        """Return False: there are no sparse tensors."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Return True for a list of tensors."""
        return isinstance(self._content, list)

    def numpy(self) -> Array:
        """Return the tensor without copying; from DEVICE a copy.

        Raises RuntimeError for a value that is no tensor, EPFail where its device was closed.
        """
        content = self._content
        return content.numpy() if isinstance(content, DeviceMemory) else self._array()

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule of the tensor. Raises RuntimeError for one on DEVICE."""
        return self.__dlpack__()

    def update_inplace(self, data: Any) -> None:
        """Write `data`, an array or OrtValue of the same dtype and number of elements.

        Raises RuntimeError where these differ, TypeError for anything else.
        """
        if not isinstance(data, (np.ndarray, OrtValue)):
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")
        source, target = unwrap(data), self._tensor()
        if isinstance(data, OrtValue):
            source = data._tensor()
        if source.size != target.size:
            text = "The input size of numpy arrays does not match the size of the OrtValue."
            raise RuntimeError(text)
        if source.dtype != target.dtype:
            raise RuntimeError(f"the OrtValue has numbers of {target.dtype}, got {source.dtype}")
        if not isinstance(target, DeviceMemory):
            np.copyto(target, _numbers(source).reshape(target.shape))
        elif isinstance(source, DeviceMemory) and source.shape == target.shape:
            with lock_memories((source, target)):
                target.content = source.content
                target.is_shared = source.is_shared = True
        else:
            target.replace(DeviceArray(_numbers(source).reshape(target.shape)))

    def _tensor(self) -> Array | DeviceMemory:
        """Return the tensor on the host or on DEVICE. Raises RuntimeError for other values."""
        if not isinstance(self._content, (np.ndarray, DeviceMemory)):
            raise RuntimeError(f"a tensor was expected, got {type(self._content).__name__}")
        return self._content

    def _array(self) -> Array:
        """Return the tensor in the host's memory. Raises RuntimeError for other values."""
        tensor = self._tensor()
        if isinstance(tensor, DeviceMemory):
            raise RuntimeError(f"the OrtValue is on {DEVICE!r}: numpy() copies it to the host")
        return tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        result = self.numpy()
        if dtype is not None and result.dtype != dtype:
            return result.astype(dtype)
        return result.copy() if copy else result

    def __dlpack__(self, *, stream: object = None) -> Any:
        return self._array().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        self._array()
        return 1, 0


def _numbers(tensor: Array | DeviceMemory) -> Array:
    """Return the numbers of a tensor, copied from DEVICE if necessary."""
    return tensor.numpy() if isinstance(tensor, DeviceMemory) else tensor


class OrtValueVector(list[OrtValue]):
    """A list of values."""

    def push_back(self, value: OrtValue) -> None:
        """Add `value`."""
        self.append(value)


def unwrap(value: object) -> Any:
    """Return the content of an OrtValue; any other object as it is."""
    return value._content if isinstance(value, OrtValue) else value


def values(arrays: Iterable[object]) -> list[OrtValue]:
    """Return an OrtValue for each array."""
    return [OrtValue(array) for array in arrays]


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: object = None) -> None:
    """Write each of `src` to that of `dst` at the same index. Raises as `update_inplace`."""
    if len(src) != len(dst):
        raise RuntimeError(f"there are {len(src)} values to copy, and {len(dst)} to copy to")
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)


ADVICE = "Please fix either the inputs/outputs or the model."


class RunInputs:
    """Checks and converts the inputs of a model's runs, and caches the last valid shapes.

    unranked: names of the inputs that may have any number of dimensions.
    """

    def __init__(self, inputs: Sequence[NodeArg], unranked: frozenset[str]) -> None:
        self._inputs = {one.name: one for one in inputs}
        self._dims = {one.name: tuple(one.shape) for one in inputs}
        self._unranked = unranked
        self._kinds = kind_numbers(
            {one.name: (one.type, self._dims[one.name], one.name in unranked) for one in inputs}
        )
        """For each input the number of its type and dimensions, which inputs may share, as caches.
        """
        self._fitted: dict[int, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        """The last valid shape and dtype, by these numbers."""

    def required(self, inputs: Mapping[str, Any]) -> None:
        """Raise ValueError where an input is missing."""
        keys = inputs.keys()
        missing = [name for name in self._inputs if name not in keys]
        if missing:
            names = list(keys)
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({names}).")

    def arrays(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the inputs of a run to arrays, DeviceArrays and lists of these.

        Raises InvalidArgument for a wrong name, type or shape, RuntimeError for what cannot be
        converted.
        """
        result: dict[str, Any] = {}
        kinds, fitted = self._kinds, dict(self._fitted)
        unchecked: list[str] = []
        for name, value in inputs.items():
            if isinstance(value, DeviceMemory):
                value, is_array = value.content, True
            else:
                is_array = type(value) is np.ndarray or isinstance(value, DeviceArray)
            kind = kinds.get(name, -1)
            if not is_array or (value.shape, value.dtype) != fitted.get(kind):
                unchecked.append(name)
                value = self._array(name, value)
                if is_array and kind >= 0 and self._dims[name] and value.dtype.kind != "O":
                    fitted[kind] = value.shape, value.dtype  # others of the kind need no check
            result[name] = value
        for name in unchecked:
            result[name] = self._check_value(name, result[name])
        self._fitted = fitted
        return result

    def _array(self, name: str, value: Any) -> Any:
        """Convert `value` to an array or DeviceArray; unchanged where the input is no tensor."""
        info = self._inputs.get(name)
        if isinstance(value, OrtValue):
            value = value._content
        if isinstance(value, DeviceMemory):
            return value.content
        if isinstance(value, DeviceArray):
            return value
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
            raise Fail.from_text(f"Missing Input: {name}")
        if hasattr(value, "__iter__"):
            if not any(True for _ in value):
                raise RuntimeError(f"Input '{name}' must not be empty.")
            text = (
                f"Input must be a list of dictionaries or a single numpy array for input '{name}'."
            )
            raise RuntimeError(text)
        raise RuntimeError(f"Unable to handle object of type {type(value)}")

    def _check_value(self, name: str, value: Any) -> Any:
        """Return `value` for the input `name`. Raises InvalidArgument for a wrong type or shape."""
        info = self._inputs.get(name)
        if info is None:
            raise InvalidArgument.from_text(f"Invalid input name: {name}")
        wants_tensor = info.type.startswith("tensor(")
        is_tensor = isinstance(value, (np.ndarray, DeviceArray))
        if not wants_tensor or not is_tensor:
            if wants_tensor != is_tensor and not info.type.startswith("optional("):
                what = "a tensor" if is_tensor else type(value).__name__
                text = f"input with name: '{name}' expected to be of type: {info.type} but received"
                raise InvalidArgument.from_text(f"{text} {what}")
            return value
        actual = type_of(value.dtype)
        if actual != info.type:
            raise InvalidArgument.from_text(
                f"Unexpected input data type. Actual: ({actual}) , expected: ({info.type})"
            )
        if value.dtype.kind == "O":
            value = _texts(value)
        dims = self._dims[name]
        if name in self._unranked:
            return value
        if not dims and value.size == 1:  # ONNX Runtime takes these for scalars
            return np.asarray(value).reshape(())
        check_shape(f"input: {name}", value.shape, dims)
        return value


def check_shape(what: str, shape: Sequence[int], dims: Sequence[int | str | None]) -> None:
    """Raise InvalidArgument unless `shape` fits `dims`. what: the tensor in errors, `input: x`."""
    if len(shape) != len(dims):
        raise InvalidArgument.from_text(
            f"Invalid rank for {what} Got: {len(shape)} Expected: {len(dims)} {ADVICE}"
        )
    pairs = enumerate(zip(shape, dims, strict=True))
    wrong = [(i, got, dim) for i, (got, dim) in pairs if isinstance(dim, int) and got != dim]
    if wrong:
        lines = "".join(f" index: {i} Got: {got} Expected: {dim}\n" for i, got, dim in wrong)
        text = f"Got invalid dimensions for {what} for the following indices\n{lines} {ADVICE}"
        raise InvalidArgument.from_text(text)


def _texts(value: Array) -> Array:
    """Convert the elements of an array of objects to str."""
    if all(type(one) is str for one in value.flat):
        return value
    texts = [one.decode() if isinstance(one, bytes) else str(one) for one in value.flat]
    result = np.empty(len(texts), object)
    result[:] = texts
    return result.reshape(value.shape)


def _from_list(value: list[Any], dtype: np.dtype[Any]) -> Array:
    """Convert a list to an array of `dtype`; floats are truncated for integers."""
    if dtype.kind == "O":
        return np.array(np.array(value).astype(str), object)
    result = np.array(value)
    if dtype.kind in "iu" and result.size and result.dtype.kind in "iuf":
        limits = np.iinfo(dtype)
        if not (result.min() >= limits.min and result.max() <= limits.max):
            raise OverflowError
    return result.astype(dtype)
