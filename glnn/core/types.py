"""Types of tensors: the type of the numbers, and the dimensions; and checks of users' arrays."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.core.cached_property import cached_property
from glnn.core.symint import is_integer, is_symbolic
from glnn.errors import ShapeError, first_line, shown

Array = NDArray[Any]
Shape = tuple[int, ...]
Dim = int | str
"""A size, or a symbol for one; equal symbols are equal sizes."""
UNKNOWN = "?"
"""The symbol of a size known only at run time; two such sizes may differ."""
UNRANKED = "..."
"""The only entry of the dimensions of a tensor whose rank is known only at run time."""
MOST = 2**31 - 1  # the greatest int of a shader
FLOAT16 = np.dtype(np.float16)


class DType(Enum):
    """The type of a tensor's numbers, named as in NumPy.

    On the GPU, float32, int32, uint8, int8 and bool take a word of 32 bits; only inputs of uint8,
    int8 and bool are stored as on the host, four numbers in a word. float16 is stored two numbers
    in a word and computed in float32. All other types stay on the host; those that NumPy lacks are
    from `ml_dtypes`. `object` is the type of strings, and of a single value that is no tensor: a
    list of tensors, or an optional one.
    """

    float32 = "float32"
    float16 = "float16"
    int32 = "int32"
    uint8 = "uint8"
    int8 = "int8"
    bool = "bool"
    int64 = "int64"
    float64 = "float64"
    uint16 = "uint16"
    int16 = "int16"
    uint32 = "uint32"
    uint64 = "uint64"
    bfloat16 = "bfloat16"
    float8_e4m3fn = "float8_e4m3fn"
    float8_e4m3fnuz = "float8_e4m3fnuz"
    float8_e5m2 = "float8_e5m2"
    float8_e5m2fnuz = "float8_e5m2fnuz"
    float8_e8m0fnu = "float8_e8m0fnu"
    float4_e2m1fn = "float4_e2m1fn"
    int4 = "int4"
    uint4 = "uint4"
    int2 = "int2"
    uint2 = "uint2"
    complex64 = "complex64"
    complex128 = "complex128"
    object = "object"

    __hash__ = builtins.object.__hash__  # Enum's is written in Python; types are hashed often

    @classmethod
    def from_array(cls, array: Array) -> DType:
        """Return the type of the numbers of `array`. Raises ShapeError for an unknown one."""
        if array.dtype.hasobject and is_symbolic(array):
            return cls.int64
        return _dtype_of(array.dtype)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype. Raises ShapeError where it needs `ml_dtypes`, which is not installed."""
        try:
            return np.dtype(self.value)
        except TypeError:
            pass
        try:
            import ml_dtypes
        except ImportError:
            raise ShapeError(f"{self.value} needs the package ml_dtypes") from None
        result: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.value))
        return result

    @cached_property
    def word(self) -> np.dtype[Any]:
        """The NumPy dtype of a number in device memory: float32 or int32 (a word), or float16."""
        return word(self.numpy)

    def words(self, count: int) -> int:
        """Return the words of 32 bits that `count` numbers take in device memory."""
        return -(-count // 2) if self is DType.float16 else count

    @property
    def narrow(self) -> builtins.bool:
        """Return True where a GPU has the type and a number takes less than 32 bits on the host."""
        return self.on_gpu and self.numpy.itemsize < 4

    @cached_property
    def kind(self) -> str:
        """The type in a shader: "float", "int" or "bool"; the type's own name for others."""
        if self is DType.bool:
            return "bool"
        if self.value.startswith(("float", "bfloat")):
            return "float"
        return "int" if "int" in self.value else self.value

    @property
    def on_gpu(self) -> builtins.bool:
        """Return True where a GPU computes with the type."""
        return self in ON_GPU


ON_GPU = frozenset((DType.float32, DType.float16, DType.int32, DType.uint8, DType.int8, DType.bool))


@lru_cache(maxsize=256)
def _dtype_of(dtype: np.dtype[Any]) -> DType:
    """Return the DType of NumPy's `dtype`. Raises ShapeError for an unknown one."""
    if dtype.kind == "U":
        return DType.object
    try:
        return DType(dtype.name)
    except ValueError:
        known = ", ".join(one.value for one in DType)
        raise ShapeError(f"numbers must be of one of {known}, got {dtype}") from None


@dataclass(frozen=True)
class TensorType:
    """The type of a tensor's numbers, and its dimensions, any of which may be symbols."""

    dims: tuple[Dim, ...]
    dtype: DType = DType.float32
    holds: str = ""
    """ONNX Runtime's name of the type of a value that is no tensor, as `seq(tensor(float))` or
    `optional(tensor(int64))`; empty for a tensor."""

    def __post_init__(self) -> None:
        dims = self.dims
        if not isinstance(dims, tuple) or not all(map(_is_dim, dims)):
            what = f"sizes of at least 0 and at most {MOST}, or symbols"
            raise ShapeError(f"a tensor's dimensions must be {what}, got {shown(self.dims)}")
        vars(self)["symbols"] = tuple([dim for dim in dims if isinstance(dim, str)])

    @classmethod
    def from_array(cls, array: Array) -> TensorType:
        """Return the type of `array`."""
        return cls(array.shape, DType.from_array(array))

    @property
    def shape(self) -> Shape:
        """The dimensions. Raises ShapeError where one is a symbol."""
        if self.symbols:
            raise ShapeError(f"the size {self.symbols[0]!r} of {self} is not known yet")
        return self.dims  # type: ignore[return-value]

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols among the dimensions, in order."""
        return tuple(dim for dim in self.dims if isinstance(dim, str))

    @property
    def nbytes(self) -> int:
        """The bytes of its numbers on the host; 0 where a dimension is a symbol."""
        return 0 if self.symbols else prod(self.shape) * self.dtype.numpy.itemsize

    @property
    def ranked(self) -> bool:
        """Return True where the number of dimensions is known."""
        return self.dims != (UNRANKED,)

    @property
    def unknown(self) -> TensorType:
        """This type with all sizes unknown."""
        if not self.ranked:
            return self
        return TensorType((UNKNOWN,) * len(self.dims), self.dtype, self.holds)

    @property
    def unranked(self) -> TensorType:
        """This type with an unknown number of dimensions; unchanged where it is no tensor's."""
        return self if self.holds else TensorType((UNRANKED,), self.dtype)

    def bound(self, sizes: Mapping[str, int]) -> TensorType:
        """Return this type with the symbols in `sizes` replaced by their sizes."""
        if not self.symbols:
            return self
        dims = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in self.dims)
        return TensorType(dims, self.dtype, self.holds)

    def of_shape(self, shape: Shape) -> TensorType:
        """Return this type with another shape."""
        return TensorType(tuple(shape), self.dtype, self.holds)

    def __str__(self) -> str:
        if self.holds:
            return self.holds
        comma = "," if len(self.dims) == 1 else ""
        return f"{self.dtype.value} ({', '.join(map(str, self.dims))}{comma})"


def _is_dim(dim: object) -> bool:
    if type(dim) is int:
        return 0 <= dim <= MOST
    if isinstance(dim, str):
        return bool(dim)
    return is_integer(dim) and 0 <= dim <= MOST


ANYTHING = TensorType((UNRANKED,), DType.object)
"""The type of a value whose dtype and rank are unknown."""


def content(array: Array) -> Any:
    """Return a hashable value that is equal for arrays of the same numbers or strings."""
    return repr(array.tolist()) if array.dtype.hasobject else array.tobytes()


def boxed(value: object) -> Array:
    """Wrap `value`, which is no tensor, in an object array without dimensions."""
    box = np.empty(1, object)
    box[0] = value
    return box.reshape(())


def unboxed(array: Array) -> Any:
    """Return the object that `boxed` wrapped; `array` itself where it holds numbers or strings."""
    if array.dtype == object and array.ndim == 0 and not isinstance(array.item(), str):
        return array.item()
    return array


def word(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in device memory of numbers of `dtype`: int32 for integers and bools."""
    if dtype == np.float16:
        return dtype
    return np.dtype(np.int32 if dtype.kind in "iub" else np.float32)


def widened(type: TensorType) -> TensorType:
    """Return the type that `type` is computed in: float32 in the place of float16."""
    return TensorType(type.dims) if type.dtype is DType.float16 else type


class ArrayTypes:
    """The shapes and dtypes of a run's arrays, by name, to recognize runs with the same types."""

    __slots__ = ("_types",)

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._types = tuple([(name, one.shape, one.dtype) for name, one in arrays.items()])

    def match(self, arrays: Mapping[str, object]) -> bool:
        """Return True where `arrays` are NumPy arrays of exactly these names and types."""
        if len(arrays) != len(self._types):
            return False
        for name, shape, dtype in self._types:
            array = arrays.get(name)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return False
        return True


def as_float(array: Array) -> Array:
    """Return a float16 `array` as float32, for computation; any other unchanged."""
    return array.astype(np.float32) if array.dtype == FLOAT16 else array


def to_float16(array: Array) -> Array:
    """Round an `array` of floats to float16; numbers beyond 65504 become infinite."""
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def narrowed(name: str, array: Array) -> Array:
    """Return an int64 `array` as int32, for a GPU; any other unchanged.

    Raises ShapeError with the first number that int32 cannot represent.
    """
    if array.dtype != np.int64:
        return array
    result = array.astype(np.int32)
    if (wrong := result != array).any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ShapeError(
            f"{name} must have int64 numbers from {-MOST - 1} to {MOST}, "
            f"got {array[index]} at {list(index)}"
        )
    return result


FLOAT8_KINDS = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
MAX_SMALL = 1 << 20
"""Bound on indices, lengths and masks, so that sums of them along an axis fit in int32."""
NO_NUMPY = ("torch.bfloat16", *(f"torch.float8_{kind}" for kind in FLOAT8_KINDS))
"""PyTorch's dtypes that NumPy lacks and float32 represents exactly."""


def as_float32(name: str, array: object) -> Array:
    """Return `array` as a plain float32 array: see `as_one_of`."""
    return as_one_of(name, array, (DType.float32,))


def as_one_of(name: str, array: object, dtypes: Sequence[DType]) -> Array:
    """Return a NumPy `array` of one of `dtypes` as an ndarray of no subclass.

    int64 is accepted for int32 where all numbers fit. Raises ShapeError for anything else, and for
    a masked array with a masked value.
    """
    if type(array) is np.ndarray and any(array.dtype == one.numpy for one in dtypes):
        return array
    if not isinstance(array, np.ndarray) or array.dtype.name not in _accepted_names(dtypes):
        got = f"{array.dtype} array" if isinstance(array, np.ndarray) else type(array).__name__
        hint = _conversion_hint(array, dtypes)
        raise ShapeError(f"{name} must be {_dtype_text(dtypes)} NumPy array, got {got}{hint}")
    if np.ma.is_masked(array):
        raise ShapeError(f"{name} has masked values, which are no numbers: fill them first")
    plain = np.asarray(array).astype(array.dtype.newbyteorder("="), copy=False)
    return plain if DType.int64 in dtypes else narrowed(name, plain)


def _conversion_hint(array: object, dtypes: Sequence[DType]) -> str:
    """Return a hint how to convert the refused `array`; empty where there is none."""
    if is_tensor(array):
        return ": .numpy() makes one of a tensor"
    wide = isinstance(array, np.ndarray) and array.dtype in (np.float64, np.float16)
    return ": .astype(np.float32) makes one" if wide and DType.float32 in dtypes else ""


def _accepted_names(dtypes: Sequence[DType]) -> set[str]:
    names = {dtype.value for dtype in dtypes}
    return names | {"int64"} if "int32" in names else names


def _dtype_text(dtypes: Sequence[DType]) -> str:
    """`a float32`, `an int32 or a bool`."""
    return " or ".join(f"{'an' if one.kind == 'int' else 'a'} {one.value}" for one in dtypes)


def to_float32(name: str, array: object) -> Array:
    """Convert an `array` of any real numbers within float32's range to float32, rounding.

    It may also be a PyTorch tensor (see `of_tensor`), or of ml_dtypes' bfloat16.
    """
    array = of_tensor(name, array)
    real = isinstance(array, np.ndarray) and array.dtype.kind in "iuf"
    if isinstance(array, np.ndarray) and (real or array.dtype.name == "bfloat16"):
        if array.dtype == np.float32:
            return as_float32(name, array)
        with np.errstate(over="ignore"):
            result = as_float32(name, array.astype(np.float32))
        if real and (np.isinf(result) & np.isfinite(np.asarray(array))).any():
            raise ShapeError(f"{name} has numbers that float32 does not hold, got {array.dtype}")
        return result
    return as_float32(name, array)


def from_bfloat16(bits: Array) -> Array:
    """Convert bfloat16 numbers, passed as uint16 `bits` as NumPy lacks the type, to float32."""
    return np.asarray((bits.astype(np.uint32) << np.uint32(16)).view(np.float32))


def of_tensor(name: str, value: object) -> object:
    """Return a PyTorch tensor `value` as a NumPy array; anything else unchanged.

    The tensor may be on any device and may require gradients. Types that NumPy lacks, such as
    bfloat16, become float32. Memory is shared where possible. Raises ShapeError for a tensor
    without plain numbers: a sparse or quantised one, or one on the device meta.
    """
    if not is_tensor(value):
        return value
    tensor: Any = value
    try:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        if str(plain.dtype) in NO_NUMPY:
            plain = plain.float()
        result = plain.numpy()
    except Exception as error:  # PyTorch raises any
        kind = f"{getattr(tensor, 'dtype', 'tensor')} on {getattr(tensor, 'device', '?')}"
        raise ShapeError(f"{name} is no plain tensor ({kind}): {first_line(error)}") from None
    if not isinstance(result, np.ndarray):
        raise ShapeError(f"{name} must be a tensor of numbers, got {type(value).__name__}")
    return result


def is_tensor(value: object) -> bool:
    """Return True where `value` looks like a PyTorch tensor; PyTorch is not imported."""
    return not isinstance(value, np.ndarray) and all(
        callable(getattr(value, name, None)) for name in ("detach", "cpu", "numpy")
    )


def all_small(feeds: Mapping[str, Array]) -> bool:
    """Return True where `feeds` has int64 arrays and none has a number beyond `MAX_SMALL`."""
    wide = [array for array in feeds.values() if array.dtype == DType.int64.numpy]
    return bool(wide) and all(map(_is_small, wide))


def beyond_int32(feeds: Mapping[str, Array]) -> bool:
    """Return True where an int64 array in `feeds` has a number that int32 cannot represent."""
    wide = [array for array in feeds.values() if array.dtype == DType.int64.numpy]
    return not all(lies_within(array, -MOST - 1, MOST) for array in wide)


def lies_within(array: Array, least: float, most: float) -> bool:
    """Return True where no number of `array` is below `least` or above `most`."""
    if not array.size:
        return True
    # Faster than the array's methods `min` and `max`, which are written in Python.
    lowest, highest = np.minimum.reduce(array, None), np.maximum.reduce(array, None)
    return bool(lowest >= least and highest <= most)


class LargeNumbersError(ShapeError):
    """An input has numbers beyond MAX_SMALL, for a plan that takes small numbers only."""


def check_small(name: str, array: Array) -> None:
    """Raise LargeNumbersError where `array` of integers has a number beyond `MAX_SMALL`."""
    if not _is_small(array):
        raise LargeNumbersError(
            f"input {name!r} must have int64 numbers from {-MAX_SMALL} to {MAX_SMALL} for this "
            "plan; a session has another one for larger ones"
        )


def check_indices(called: str, array: Array, sizes: tuple[int, ...]) -> None:
    """Raise ShapeError where an index in `array` is out of range.

    called: the array's name in the error, as "input 'ids'".
    sizes: the sizes of the indexed tables: one for all numbers, or one for each position along the
    last dimension. Negative indices count from the end. Floats are converted as by a Cast to
    integers: rounded towards 0, and 0 for NaN.
    """
    if not array.size:
        return
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), 0, np.trunc(array))
    for i, size in enumerate(sizes):
        part = array if len(sizes) == 1 else array[..., i]
        if part.max() < size and part.min() >= -size:
            continue
        wrong = (part < -size) | (part >= size)
        position = [int(n) for n in np.argwhere(wrong)[0]]
        number = part[tuple(position)]
        position += [i] if len(sizes) > 1 else []
        where = f" at {position}" if position else ""
        raise ShapeError(
            f"{called} must be indices from {-size} to {size - 1}, of a table of {size}, "
            f"got {number}{where}"
        )


def _is_small(array: Array) -> bool:
    return lies_within(array, -MAX_SMALL, MAX_SMALL)
