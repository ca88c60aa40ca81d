"""ONNX operators without kernels as NumPy functions; casts to 2, 4 and 8 bits."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glnn.core.array_functions import make_cast
from glnn.core.process import check_memory
from glnn.core.types import Array, DType
from glnn.errors import ShapeError, UnsupportedOpError, first_line, shown
from glnn.onnx.detection import NODES as DETECTION
from glnn.onnx.ml_nodes import NODES as ML
from glnn.onnx.operators.call import MICROSOFT
from glnn.onnx.operators.dtypes import dtype_of
from glnn.onnx.text_nodes import NODES as TEXTS
from glnn.onnx.training_nodes import NODES as TRAINING

Attributes = Mapping[str, Any]
MOST = {
    DType.float8_e4m3fn: 448.0,
    DType.float8_e4m3fnuz: 240.0,
    DType.float8_e5m2: 57344.0,
    DType.float8_e5m2fnuz: 57344.0,
    DType.float4_e2m1fn: 6.0,
}
"""The greatest finite number of each dtype."""
BITS = {DType.int4: 4, DType.uint4: 4, DType.int2: 2, DType.uint2: 2}


def cast_node(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return x as the type `to`."""
    dtype = dtype_of(attributes["to"], "Cast")
    saturate = bool(attributes.get("saturate", 1))
    return [converted(x, dtype, saturate, attributes.get("round_mode", b"up").decode())]


def cast_like(attributes: Attributes, version: int, x: Array, like: Array) -> list[Array]:
    """Return x as the type of `like`."""
    saturate = bool(attributes.get("saturate", 1))
    return [
        converted(x, DType.from_array(like), saturate, attributes.get("round_mode", b"up").decode())
    ]


def converted(x: Array, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Array:
    """Return x as `dtype`.

    saturate: numbers beyond a float8 type become its greatest one, else an infinity or NaN. Floats
    beyond an integer type become the nearest integer, and NaN becomes 0. Casts from integers, and
    to integers of 2 or 4 bits, keep the low bits, as in ONNX's own test cases.
    """
    if x.dtype.hasobject or dtype is DType.object:
        return _parse_texts(x, dtype) if x.dtype.hasobject else _format_texts(x)
    source = DType.from_array(x)
    if source.kind == "float" and x.dtype.kind != "f":  # ml_dtypes'
        x = x.astype(np.float32)
    if source in BITS:
        x = x.astype(np.int8)
    if dtype in BITS:
        return _as_few_bits(x, dtype)
    if dtype is DType.float8_e8m0fnu:
        return _as_powers(x, saturate, round_mode)
    if dtype in MOST:
        wide = x.astype(np.float64)
        if saturate or dtype is DType.float4_e2m1fn:
            wide = np.clip(wide, -MOST[dtype], MOST[dtype])
        # ml_dtypes goes from float64 to float8 in one step, to nearest even.
        return wide.astype(dtype.numpy)
    return make_cast(dtype.numpy)(x)


def _as_few_bits(x: Array, dtype: DType) -> Array:
    bits = BITS[dtype]
    low = 0 if dtype.value.startswith("u") else -(1 << (bits - 1))
    if x.dtype.kind == "f":
        x = np.clip(np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0)), -(2.0**62), 2.0**62)
    wrapped = ((x.astype(np.int64) - low) & ((1 << bits) - 1)) + low
    return wrapped.astype(np.int8).astype(dtype.numpy)


def _as_powers(x: Array, saturate: bool, round_mode: str) -> Array:
    """Return positive numbers as powers of 2, float8_e8m0fnu: 2^-127 to 2^127, NaN."""
    wide = x.astype(np.float64)
    fraction, exponent = np.frexp(wide)  # fraction * 2 ** exponent, from 0.5 on
    exponent = exponent - 1
    thresholds = {"up": 0.5, "nearest": 0.75, "down": 1.0}
    if round_mode not in thresholds:
        raise ShapeError(f"Cast: round_mode must be up, down or nearest, got {round_mode!r}")
    rounds_up = fraction >= 0.75 if round_mode == "nearest" else fraction > thresholds[round_mode]
    exponent = exponent + rounds_up
    finite = np.isfinite(wide)
    in_range = finite & (wide > 0) & (exponent >= -127) & (exponent <= 127)
    codes = np.where(in_range, np.clip(exponent, -127, 127) + 127, 255).astype(np.uint8)
    if saturate:
        codes = np.where(wide >= 2.0**127, 254, codes)
        codes = np.where((wide >= 0) & (exponent < -127) | (wide == 0), 0, codes)
    return codes.astype(np.uint8).view(DType.float8_e8m0fnu.numpy)


def _parse_texts(x: Array, dtype: DType) -> Array:
    """Return the numbers in texts: decimal and in ASCII, without Python's `_`."""
    if dtype is DType.object:
        return x
    texts = x.reshape(-1).tolist()
    for text in texts:
        if "_" in text or not text.isascii():
            raise ShapeError(f"Cast: {shown(text)} is no number")
    try:
        numbers = [int(text) if dtype.kind == "int" else float(text) for text in texts]
    except ValueError as error:
        raise ShapeError(f"Cast: {error}") from None
    if dtype is DType.bool:
        raise UnsupportedOpError("Cast: ONNX does not say which texts are true")
    array = np.array(numbers, np.float64 if dtype.kind == "float" else object)
    if dtype.kind == "int":
        limits = np.iinfo(dtype.numpy)
        if any(not limits.min <= one <= limits.max for one in numbers):
            raise ShapeError(f"Cast: texts are beyond {dtype.value}")
    return array.astype(dtype.numpy).reshape(x.shape)


def _format_texts(x: Array) -> Array:
    """Return numbers as texts, floats with as many digits as ONNX Runtime writes."""
    result = np.empty(x.size, object)
    for i, number in enumerate(x.reshape(-1).tolist()):
        if isinstance(number, float):
            text = f"{number:.8g}"
            result[i] = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}.get(text, text)
        else:
            result[i] = str(int(number))
    return result.reshape(x.shape)


def _broadcast_parameter(operator: str, parameter: Array, x: Array, axis: int, block: int) -> Array:
    """Return a scale or zero point in a shape that broadcasts to x.

    parameter: one number, one for each index along `axis`, or one for each block of `block` indices
    along it.
    """
    if parameter.size == 1 and not block:
        return parameter.reshape(())
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"{operator}: axis must be from {-x.ndim} to {x.ndim - 1}, got {axis}")
    axis %= x.ndim
    if block:
        result = np.repeat(parameter, block, axis) if parameter.ndim == x.ndim else parameter
        result = (
            result[(slice(None),) * axis + (slice(x.shape[axis]),)]
            if parameter.ndim == x.ndim
            else parameter
        )
        shape = x.shape
    else:
        result, shape = parameter, (x.shape[axis],)
    if result.shape != shape:
        raise ShapeError(
            f"{operator}: x {x.shape} has other scales or zero points than {parameter.shape}"
        )
    return result if block else result.reshape(-1, *(1,) * (x.ndim - 1 - axis))


def _wide(x: Array) -> Array:
    return x.astype(np.float64)


def dequantize_linear(
    attributes: Attributes, version: int, x: Array, scale: Array, zero: Array | None = None
) -> list[Array]:
    """Return (x - zero) * scale, with one scale, one for each index of an axis, or block of it.

    Computed in 64 bits and rounded once, to `output_dtype` or the scale's dtype.
    """
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    numbers = _wide(x)
    if zero is not None:
        numbers = numbers - _broadcast_parameter("DequantizeLinear", _wide(zero), x, axis, block)
    numbers = numbers * _broadcast_parameter("DequantizeLinear", _wide(scale), x, axis, block)
    code = attributes.get("output_dtype", 0)
    dtype = dtype_of(code, "DequantizeLinear").numpy if code else scale.dtype
    return [numbers.astype(dtype)]


def quantize_linear(
    attributes: Attributes, version: int, x: Array, scale: Array, zero: Array | None = None
) -> list[Array]:
    """Return x / scale + zero as float8 or float4. The quotient has the scale's dtype, or
    `precision`.
    """
    code = attributes.get("output_dtype", 0)
    dtype = DType.from_array(zero) if zero is not None else dtype_of(code or 2, "QuantizeLinear")
    if dtype not in MOST:
        raise UnsupportedOpError(f"QuantizeLinear: to {dtype.value} of such operands")
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    precision = attributes.get("precision", 0)
    quotient_dtype = dtype_of(precision, "QuantizeLinear").numpy if precision else scale.dtype
    divisor = _broadcast_parameter("QuantizeLinear", scale.astype(quotient_dtype), x, axis, block)
    numbers = (
        _wide(_wide(x.astype(quotient_dtype)) / _wide(divisor))
        .astype(quotient_dtype)
        .astype(np.float64)
    )
    if zero is not None:
        numbers = numbers + _broadcast_parameter("QuantizeLinear", _wide(zero), x, axis, block)
    return [converted(numbers, dtype, bool(attributes.get("saturate", 1)))]


CASTS: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("", "Cast"): cast_node,
    ("", "CastLike"): cast_like,
    ("", "DequantizeLinear"): dequantize_linear,
    ("", "QuantizeLinear"): quantize_linear,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""


REDUCTIONS: Mapping[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def scatter_elements(
    attributes: Attributes, version: int, x: Array, index: Array, updates: Array
) -> list[Array]:
    """Return x with each of `updates` reduced into the element of `index` along an axis."""
    axis = attributes.get("axis", 0)
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(
            f"ScatterElements: axis must be from {-x.ndim} to {x.ndim - 1}, got {axis}"
        )
    if index.shape != updates.shape or index.ndim != x.ndim:
        raise ShapeError(
            f"ScatterElements: indices and updates must have one shape of {x.ndim} dimensions, "
            f"got {index.shape} and {updates.shape}"
        )
    axis %= x.ndim
    if any(n > m for i, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)) if i != axis):
        raise ShapeError(f"ScatterElements: indices {index.shape} are more than x {x.shape} has")
    positions: list[Array] = list(np.indices(index.shape, sparse=True))
    positions[axis] = _in_range("ScatterElements", index, x.shape[axis])
    result = x.copy()
    _reduction("ScatterElements", attributes, x).at(result, tuple(positions), updates)
    return [result]


def scatter_nd(
    attributes: Attributes, version: int, x: Array, index: Array, updates: Array
) -> list[Array]:
    """Return x with slices of `updates` reduced into those that the rows of `index` select."""
    depth = index.shape[-1] if index.ndim else 0
    if not index.ndim or depth > x.ndim:
        raise ShapeError(
            f"ScatterND: indices must have rows of at most {x.ndim} numbers, got {index.shape}"
        )
    shape = index.shape[:-1] + x.shape[depth:]
    if updates.shape != shape:
        raise ShapeError(f"ScatterND: updates must be {shape}, got {updates.shape}")
    positions = tuple(
        _in_range("ScatterND", index[..., i], size) for i, size in enumerate(x.shape[:depth])
    )
    result = x.copy()
    _reduction("ScatterND", attributes, x).at(result, positions, updates)
    return [result]


def one_hot(
    attributes: Attributes, version: int, index: Array, depth: Array, values: Array
) -> list[Array]:
    """Return values[1] at each index along a new axis, values[0] elsewhere."""
    axis, rank = attributes.get("axis", -1), index.ndim + 1
    if not -rank <= axis < rank or depth.size != 1 or values.shape != (2,) or int(depth.item()) < 0:
        raise ShapeError(
            f"OneHot: axis must be from {-rank} to {rank - 1}, depth one number of at least 0 and "
            f"values two, got {axis}, {depth.tolist()} and the shape {values.shape}"
        )
    count, indices = int(depth.item()), np.expand_dims(index, axis)
    result = np.full([*index.shape[: axis % rank], count, *index.shape[axis % rank :]], values[0])
    in_range = (
        (indices >= -count) & (indices < count) if index.dtype.kind != "u" else indices < count
    )
    wrapped = np.where(in_range, indices, 0).astype(np.int64) % max(count, 1)
    positions = np.arange(count).reshape(-1, *(1,) * (rank - 1 - axis % rank))
    result[in_range & (wrapped == positions)] = values[1]
    return [result]


def _reduction(operator: str, attributes: Attributes, x: Array) -> np.ufunc:
    """Return the ufunc of a node's reduction. Raises UnsupportedOpError for other dtypes."""
    name = attributes.get("reduction", b"none").decode()
    if name not in REDUCTIONS or x.dtype.kind not in "iuf":
        raise UnsupportedOpError(f"{operator}: the reduction {name!r} of {x.dtype}")
    return REDUCTIONS[name]


def _in_range(operator: str, index: Array, size: int) -> Array:
    """Return `index`, which may be negative. Raises ShapeError where it is out of range."""
    if index.size and not (-size <= index.min() and index.max() < size):
        raise ShapeError(
            f"{operator}: indices must be from {-size} to {size - 1}, "
            f"got {index.min()} to {index.max()}"
        )
    return index


INDICES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("", "OneHot"): one_hot,
    ("", "ScatterElements"): scatter_elements,
    ("", "ScatterND"): scatter_nd,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""


Reduction = Callable[..., Array]


def _length(x: Array, **options: Any) -> Array:
    return np.asarray(np.sqrt(np.square(x).sum(**options)))


def _log_sum(x: Array, **options: Any) -> Array:
    return np.asarray(np.log(x.sum(**options)))


def _log_sum_exp(x: Array, **options: Any) -> Array:
    """Subtract the maximum first, so that no exponential overflows, and add it to the result."""
    if not x.size:
        return np.asarray(np.log(x.sum(**options)))
    maximum = x.max(options["axis"], keepdims=True)
    total = np.log(np.exp(x - maximum).sum(**options))
    return np.asarray(
        total + (maximum if options["keepdims"] else maximum.squeeze(options["axis"]))
    )


def _integer_reduction(operator: str, function: Reduction) -> Callable[..., list[Array]]:
    """Return the NumPy function of a reduction of integers, whose results are truncated."""

    def reduce(
        attributes: Attributes, version: int, x: Array, axes: Array | None = None
    ) -> list[Array]:
        if x.dtype.kind not in "iu":
            raise UnsupportedOpError(f"{operator}: of {x.dtype}")
        given_axes = attributes.get("axes", ()) if axes is None else axes.tolist()
        default_axes = () if attributes.get("noop_with_empty_axes", 0) else tuple(range(x.ndim))
        reduced_axes = tuple(given_axes) if len(given_axes) and x.ndim else default_axes
        keepdims = bool(attributes.get("keepdims", 1))
        result = function(x.astype(np.float64), axis=reduced_axes, keepdims=keepdims)
        return [make_cast(x.dtype)(result)]

    return reduce


INTEGER_REDUCTIONS: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("", "ReduceL2"): _integer_reduction("ReduceL2", _length),
    ("", "ReduceLogSum"): _integer_reduction("ReduceLogSum", _log_sum),
    ("", "ReduceLogSumExp"): _integer_reduction("ReduceLogSumExp", _log_sum_exp),
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""


# Bytes of temporary arrays for each number of a Fourier transform, and of a window.
TRANSFORMED, WINDOWED = 64, 48
DEFAULTS = {"strings": "_Unused", "int64s": -1, "floats": np.float32(-0.0)}
"""LabelEncoder's default values by their kind."""


def dft(
    attributes: Attributes,
    version: int,
    x: Array,
    length: Array | None = None,
    axis: Array | None = None,
) -> list[Array]:
    """Return the discrete Fourier transform along an axis, or its inverse, in 64 bits.

    x: real (..., 1) or complex (..., 2). length: numbers along the axis, to which x is cut or
    padded with zeros. `onesided`: the result is the first half of the spectrum of real x, (..., 2),
    or the inverse of such a half, (..., 1).
    """
    along = attributes.get("axis", 1) if version < 20 else -2
    along = along if axis is None else int(_one("DFT", axis, "axis"))
    if not -x.ndim <= along < x.ndim or along % x.ndim == x.ndim - 1:
        raise ShapeError(
            f"DFT: axis must name one of {x.ndim} dimensions but the last, got {along}"
        )
    along %= x.ndim
    onesided, inverse = bool(attributes.get("onesided", 0)), bool(attributes.get("inverse", 0))
    size = x.shape[along]
    n = 2 * (size - 1) if onesided and inverse else size
    n = n if length is None else int(_one("DFT", length, "dft_length"))
    if n < 1:
        raise ShapeError(f"DFT: dft_length must be at least 1, got {n}")
    count = x.size // max(size, 1) * n
    check_memory(count * TRANSFORMED, lambda: f"DFT: to transform {count} numbers")
    numbers = _complex("DFT", x)
    if onesided and inverse:
        return [np.fft.irfft(numbers, n, along)[..., None].astype(x.dtype)]
    if onesided and x.shape[-1] == 2:
        raise ShapeError(f"DFT: only real numbers (..., 1) have one half, got {x.shape}")
    function = np.fft.ifft if inverse else np.fft.fft
    result = function(numbers, n, along)
    if onesided:
        result = np.take(result, np.arange(n // 2 + 1), along)
    return [_parts(result, x.dtype)]


def stft(
    attributes: Attributes,
    version: int,
    x: Array,
    step: Array,
    window: Array | None = None,
    length: Array | None = None,
) -> list[Array]:
    """Return the Fourier transforms (batch, frames, numbers, 2) of frames, in 64 bits.

    x: real (batch, n), (batch, n, 1) or complex (batch, n, 2). step: the hop from frame to frame.
    """
    numbers = _complex("STFT", x) if x.ndim == 3 else x.astype(np.float64)
    hop = int(_one("STFT", step, "frame_step"))
    size = numbers.shape[-1] if window is None else len(window)
    size = size if length is None else int(_one("STFT", length, "frame_length"))
    if window is not None and len(window) != size:
        raise ShapeError(f"STFT: frames of {size} numbers need such a window, got {len(window)}")
    if hop < 1 or not 1 <= size <= numbers.shape[-1]:
        raise ShapeError(
            f"STFT: frame_step must be at least 1, got {hop}; frame_length must be from 1 to "
            f"{numbers.shape[-1]}, got {size}"
        )
    frames = np.lib.stride_tricks.sliding_window_view(numbers, size, -1)[:, ::hop]
    if window is not None:
        frames = frames * window.astype(np.float64)
    result = np.fft.fft(frames)
    if attributes.get("onesided", 1):
        if np.iscomplexobj(numbers):
            raise ShapeError(f"STFT: only real numbers have one half, got {x.shape}")
        result = result[..., : size // 2 + 1]
    return [_parts(result, x.dtype)]


def _complex(operator: str, x: Array) -> Array:
    """Return real numbers (..., 1), or complex ones (..., 2), in 64 bits without the last axis."""
    if not x.ndim or x.shape[-1] not in (1, 2):
        raise ShapeError(f"{operator}: the last of the dimensions must be 1 or 2, got {x.shape}")
    wide = x.astype(np.float64)
    return wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]


def _parts(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Return the real and imaginary parts along a last axis."""
    return np.stack([numbers.real, numbers.imag], -1).astype(dtype)


def _one(operator: str, array: Array, name: str) -> Any:
    """Return the one number of an operand of any rank."""
    if array.size != 1:
        raise ShapeError(f"{operator}: {name} must be one number, got the shape {array.shape}")
    return array.reshape(()).item()


def _window(parts: Sequence[float]) -> Callable[..., list[Array]]:
    """Return the NumPy function of a window, a sum of cosines with coefficients `parts`, in 64
    bits.
    """

    def window(attributes: Attributes, version: int, size: Array) -> list[Array]:
        count = int(size.item())
        if count < 0:
            raise ShapeError(f"a window must have at least 0 numbers, got {count}")
        check_memory(count * WINDOWED, lambda: f"a window of {count} numbers")
        length = count if attributes.get("periodic", 1) else count - 1
        turns = np.arange(count) * (2 * np.pi / max(length, 1))
        result = np.zeros(count)
        for i, part in enumerate(parts):
            result += part * np.cos(i * turns)
        return [result.astype(dtype_of(attributes.get("output_datatype", 1), "window").numpy)]

    return window


def image_decoder(attributes: Attributes, version: int, encoded: Array) -> list[Array]:
    """Return an image (height, width, 3), or (height, width, 1) for greyscale, uint8."""
    try:
        from PIL import Image
    except ImportError:
        raise UnsupportedOpError("ImageDecoder: needs Pillow, of the extra images") from None
    order = attributes.get("pixel_format", b"RGB").decode()
    modes = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}
    if order not in modes:
        raise ShapeError(f"ImageDecoder: pixel_format must be {', '.join(modes)}, got {order!r}")
    try:
        with Image.open(io.BytesIO(encoded.tobytes())) as image:
            pixels = np.array(image.convert(modes[order]))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        what = f"the {encoded.size} bytes of its operand are no image that Pillow reads"
        raise ShapeError(f"ImageDecoder: {what}: {first_line(error)}") from None
    if order == "Grayscale":
        return [pixels[..., None]]
    return [np.ascontiguousarray(pixels[..., ::-1]) if order == "BGR" else pixels]


def unique(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the distinct elements of x, or slices along an axis; the index of each one's first
    occurrence; for each of x its index among the distinct ones; and their counts.

    The distinct ones are in ascending order, or unless `sorted` in order of first occurrence.
    """
    axis = attributes.get("axis")
    if axis is not None and not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"Unique: axis must be from {-x.ndim} to {x.ndim - 1}, got {axis}")
    elements = x.reshape(-1) if axis is None else x
    unique_axis = 0 if axis is None else axis
    # Ranks in place of elements: NumPy does not sort rows of some dtypes.
    codes = np.unique(x, return_inverse=True)[1].reshape(elements.shape)
    count = elements.shape[unique_axis]
    if codes.size:
        rows = np.moveaxis(codes, unique_axis, 0).reshape(count, -1)
    else:
        rows = np.zeros((count, 1), np.int64)
    _, first, inverse, counts = np.unique(
        rows, return_index=True, return_inverse=True, return_counts=True, axis=0
    )
    inverse = inverse.reshape(-1)
    if not attributes.get("sorted", 1):
        order = np.argsort(first)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    indices = (one.astype(np.int64) for one in (first, inverse, counts))
    return [np.take(elements, first, unique_axis), *indices]


def unique_unsorted(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the distinct elements of x in order of first occurrence, the index of each of x's
    among them, and their counts.
    """
    y, _, inverse, counts = unique({"sorted": 0}, version, x)
    return [y, inverse, counts]


def non_zero(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the indices of non-zero elements, a column for each: (rank, n), (0, n) of a scalar."""
    if x.dtype.hasobject:
        raise UnsupportedOpError("NonZero: texts are no numbers")
    if not x.ndim:
        return [np.zeros((0, int(bool(x))), np.int64)]
    return [np.array(np.nonzero(x), np.int64)]


def label_encoder(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the value of each key in x, the default for unknown keys.

    NaN is a key from version 4 on.
    """
    if "classes_strings" in attributes:  # of version 1: from texts to their indices, or back
        texts = np.array([one.decode() for one in attributes["classes_strings"]], object)
        keys, values = texts, np.arange(len(texts))
        default: Any = attributes.get("default_int64", -1)
        if not x.dtype.hasobject:
            keys, values = values, texts
            default = attributes.get("default_string", b"_Unused").decode()
    else:
        _, keys = _label_values(attributes, "keys")
        kind, values = _label_values(attributes, "values")
        default = _default(attributes, kind, values)
    if len(keys) != len(values):
        raise ShapeError(f"LabelEncoder: {len(keys)} keys have {len(values)} values")
    table: dict[Any, Any] = {}
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        if version >= 4 or key == key:
            table.setdefault(_key(key), value)
    result = np.empty(x.size, values.dtype)
    for i, one in enumerate(x.reshape(-1).tolist()):
        result[i] = table.get(_key(one), default)
    return [result.reshape(x.shape)]


def _key(label: Any) -> Any:
    """Return a dictionary key for a label: all NaN are one, and texts differ from numbers."""
    return "NaN" if isinstance(label, float) and label != label else (type(label) is str, label)


def _label_values(attributes: Attributes, name: str) -> tuple[str, Array]:
    """Return the kind of LabelEncoder's keys or values, as "floats", and the array of them."""
    from onnx import numpy_helper

    if f"{name}_strings" in attributes:
        return "strings", np.array([one.decode() for one in attributes[f"{name}_strings"]], object)
    if f"{name}_int64s" in attributes:
        return "int64s", np.array(attributes[f"{name}_int64s"], np.int64)
    if f"{name}_floats" in attributes:
        return "floats", np.array(attributes[f"{name}_floats"], np.float32)
    if f"{name}_tensor" not in attributes:
        raise ShapeError(f"LabelEncoder: {name} are missing")
    labels = numpy_helper.to_array(attributes[f"{name}_tensor"]).reshape(-1)
    kinds = {"f": "floats", "i": "int64s", "O": "strings", "S": "strings", "U": "strings"}
    kind = kinds.get(labels.dtype.kind)
    if kind is None:
        what = "must be floats, signed integers or texts"
        raise ShapeError(f"LabelEncoder: {name}_tensor {what}, got {labels.dtype}")
    return kind, _texts(labels) if kind == "strings" else labels


def _texts(array: Array) -> Array:
    """Return an array of str, of the bytes of a tensor."""
    result = [one.decode() if isinstance(one, bytes) else str(one) for one in array.tolist()]
    return np.array(result, object)


def _default(attributes: Attributes, kind: str, values: Array) -> Any:
    """Return LabelEncoder's value for unknown keys. kind: of its values."""
    from onnx import numpy_helper

    if "default_tensor" in attributes:
        array = numpy_helper.to_array(attributes["default_tensor"]).reshape(-1)
        return (_texts(array) if kind == "strings" else array)[0]
    default = attributes.get(f"default_{kind.removesuffix('s')}", DEFAULTS[kind])
    return default.decode() if isinstance(default, bytes) else default


WINDOWS: Mapping[str, Sequence[float]] = {
    "BlackmanWindow": (0.42, -0.5, 0.08),
    "HammingWindow": (25 / 46, -21 / 46),
    "HannWindow": (0.5, -0.5),
}
"""Coefficients of the cosines of each window."""
NODES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    **{("", name): function for name, function in DETECTION.items()},
    **INDICES,
    **ML,
    **CASTS,
    **INTEGER_REDUCTIONS,
    **TEXTS,
    **TRAINING,
    **{("", name): _window(parts) for name, parts in WINDOWS.items()},
    ("", "DFT"): dft,
    ("", "ImageDecoder"): image_decoder,
    ("", "NonZero"): non_zero,
    ("", "STFT"): stft,
    ("", "Unique"): unique,
    (MICROSOFT, "Unique"): unique_unsorted,
    ("ai.onnx.ml", "LabelEncoder"): label_encoder,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""
