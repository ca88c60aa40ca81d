"""Values that are given to runs and come from them: arrays of the host, with their types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from glnn.onnxruntime.capi.devices import host_only
from glnn.onnxruntime.capi.faults import NotImplemented
from glnn.onnxruntime.capi.types import NUMBERS, dtype_of, type_of
from glnn.types import Array


class OrtValue:
    """A tensor, or a list of some: `numpy()` is what it was made of, not a copy.

    Made by `ortvalue_from_numpy`, `ortvalue_from_shape_and_type` and `from_dlpack`.
    """

    def __init__(self, ortvalue: Any, numpy_obj: Array | None = None) -> None:
        """ortvalue: another OrtValue, an array, or what a sequence holds."""
        self._content: Any = ortvalue._content if isinstance(ortvalue, OrtValue) else ortvalue
        self._numpy_obj = numpy_obj

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Return a value of `numpy_obj`, which is not copied unless it is not contiguous.

        Raises RuntimeError for what is no array of numbers, or another memory than the host's.
        """
        host_only(device_type, "a value")
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "USO":
            raise RuntimeError(
                "Creation of OrtValues is currently only supported from non-string numpy arrays"
            )
        type_of(numpy_obj.dtype)
        return cls(np.require(numpy_obj, requirements="C"), numpy_obj)

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """Return a value of `data`, whose bytes are numbers of ONNX's type: uint16 for bfloat16,
        uint8 for float8.

        Raises RuntimeError where the sizes differ.
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
        """A tensor of zeros, to be written to.

        element_type: NumPy's dtype, or ONNX's number. Raises RuntimeError for a negative size, an
        unknown type, or another memory than the host's.
        """
        host_only(device_type, "a value")
        sizes = tuple(int(n) for n in shape)
        if any(n < 0 for n in sizes):
            raise RuntimeError(f"a tensor's sizes must be at least 0, got {list(sizes)}")
        return cls(np.zeros(sizes, dtype_of(element_type)))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: object) -> OrtValue:
        """Raise NotImplemented."""
        raise NotImplemented.saying("glnn has no sparse tensors")

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Return a value of an object with `__dlpack__`, in the host's memory; not copied."""
        return cls.ortvalue_from_numpy(np.from_dlpack(data))

    def as_sparse_tensor(self) -> Any:
        """Raise NotImplemented."""
        raise NotImplemented.saying("glnn has no sparse tensors")

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    def _get_c_value(self) -> OrtValue:
        return self

    def data_ptr(self) -> int:
        """The address of the first byte."""
        return int(self._array().ctypes.data)

    def device_name(self) -> str:
        """Return "cpu": values lie in the host's memory."""
        return "cpu"

    def shape(self) -> list[int]:
        """The sizes of a tensor."""
        return list(self._array().shape)

    def data_type(self) -> str:
        """Return the type, as `tensor(float)`."""
        if self.is_tensor_sequence():
            inner = type_of(self._content[0].dtype) if self._content else "tensor(float)"
            return f"seq({inner})"
        return type_of(self._array().dtype)

    def element_type(self) -> int:
        """ONNX's number for it."""
        return NUMBERS[type_of(self._array().dtype)]

    def tensor_size_in_bytes(self) -> int:
        """Return the bytes of a tensor."""
        return int(self._array().nbytes)

    def has_value(self) -> bool:
        """False for an optional that is missing."""
        return self._content is not None

    def is_tensor(self) -> bool:
        """Return True for a tensor."""
        return isinstance(self._content, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        """False: there are none."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Return True for a list of tensors."""
        return isinstance(self._content, list)

    def numpy(self) -> Array:
        """The tensor: the memory itself. Raises RuntimeError for what is none."""
        return self._array()

    def to_dlpack(self) -> Any:
        """A capsule of DLPack for the tensor."""
        return self._array().__dlpack__()

    def update_inplace(self, data: Any) -> None:
        """Write `data`, an array or an OrtValue of as many elements and the same type.

        Raises RuntimeError where it does not fit, TypeError for anything else.
        """
        if not isinstance(data, (np.ndarray, OrtValue)):
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")
        given = data._array() if isinstance(data, OrtValue) else data
        own = self._array()
        if given.size != own.size:
            text = "The input size of numpy arrays does not match the size of the OrtValue."
            raise RuntimeError(text)
        if given.dtype != own.dtype:
            raise RuntimeError(f"the OrtValue has numbers of {own.dtype}, got {given.dtype}")
        np.copyto(own, given.reshape(own.shape))

    def _array(self) -> Array:
        if not isinstance(self._content, np.ndarray):
            raise RuntimeError(f"a tensor was expected, got {type(self._content).__name__}")
        return self._content

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self._array()
        if dtype is not None and found.dtype != dtype:
            return found.astype(dtype)
        return found.copy() if copy else found

    def __dlpack__(self, *, stream: object = None) -> Any:
        return self._array().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class OrtValueVector(list[OrtValue]):
    """Several values; what fills it from others' memory is `push_back`."""

    def push_back(self, value: OrtValue) -> None:
        """Add `value`."""
        self.append(value)


def unwrap(value: object) -> Any:
    """Return the content of an OrtValue; any other object as it is."""
    return value._content if isinstance(value, OrtValue) else value


def values(arrays: Iterable[object]) -> list[OrtValue]:
    """An OrtValue of each."""
    return [OrtValue(array) for array in arrays]


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: object = None) -> None:
    """Write each of `src` to the one of `dst` at its place. Raises RuntimeError as they do."""
    if len(src) != len(dst):
        raise RuntimeError(f"there are {len(src)} values to copy, and {len(dst)} to copy to")
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)
