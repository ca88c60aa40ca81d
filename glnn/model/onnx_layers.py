"""Conversion of graphs of ONNX operators to models of layers, for formats that have only layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from glnn import layers as nn
from glnn.core.tensor_info import BATCH, TensorInfo, show
from glnn.core.types import Array, Dim, TensorType
from glnn.errors import ModelError, ShapeError, UnsupportedOpError
from glnn.graph.compose.resample import SamplePositions
from glnn.graph.function import Function
from glnn.graph.functions import FUNCTIONS
from glnn.graph.graph import Kind, Value
from glnn.graph.graph import Node as GraphNode
from glnn.layers import Layer
from glnn.layers.conv import same
from glnn.model.model import Model
from glnn.model.node import Node
from glnn.onnx.node import OnnxOperator


def convert_to_layers(model: Model) -> Model:
    """Return a model of layers equivalent to `model`, whose graph came from ONNX.

    Raises ModelError, which names the node, where no layer computes a node.
    """
    arrays = {
        value: value.data
        for node in model.graph.nodes
        for value in node.inputs
        if value is not None and isinstance(value.data, np.ndarray)
    }
    sizes: set[Value] = set()
    nodes: list[Node] = []
    for node in model.graph.nodes:
        try:
            _add_layer(node, arrays, sizes, nodes)
        except (ShapeError, UnsupportedOpError) as error:
            what = f"{model.name}: node {node.name!r}, {node.operator}"
            raise ModelError(f"{what}, is no layer of glnn's: {error}") from None
    try:
        inputs = tuple(map(_input, model.inputs))
        return Model(tuple(nodes), inputs, model.outputs, model.name, model.metadata)
    except (ModelError, ShapeError) as error:
        raise ModelError(f"{model.name} is no model of layers: {error}") from None


def _add_layer(
    node: GraphNode, arrays: dict[Value, Array], sizes: set[Value], nodes: list[Node]
) -> None:
    """Add the layer of `node` to `nodes`.

    Results that are constant are added to `arrays` instead, and those computed from shapes to
    `sizes`: a Reshape that reads these becomes a layer by its result's type.
    """
    operator = node.operator
    kind = operator.op_type if isinstance(operator, OnnxOperator) else ""
    if all(value in arrays for value in node.reads):
        output = operator.reference(*(None if v is None else arrays[v] for v in node.inputs))
        arrays.update(zip(node.outputs, output, strict=True))
        return
    if kind == "CastLike" and node.inputs[0] in arrays:  # its second operand only gives a type
        (result,) = node.outputs
        arrays[result] = arrays[node.inputs[0]].astype(result.type.dtype.numpy)
        return
    if kind == "Shape" or all(value in arrays or value in sizes for value in node.reads):
        sizes.update(node.outputs)
        return
    if kind not in ROWS or not isinstance(operator, OnnxOperator):
        raise UnsupportedOpError(f"there is none for {operator}")
    if len(node.outputs) != 1:
        raise UnsupportedOpError("a layer has one result")
    if kind != "Reshape" and any(value in sizes for value in node.reads):
        raise UnsupportedOpError("it computes with the batch's size")
    constants = tuple(None if v is None else arrays.get(v) for v in node.inputs)
    changing = [v for v in node.reads if v not in arrays and v not in sizes]
    types = tuple(v.type for v in changing)
    (result,) = node.outputs
    layer = ROWS[kind](LayerOperator(operator, types, constants, result.type))
    if layer.inputs != len(changing):
        raise UnsupportedOpError(f"of {len(changing)} tensors that a run changes")
    used_names = {one.name for one in nodes}
    names = (_parameters_prefix(node, layer), node.name, result.name)
    name = next(name for name in names if name and name not in used_names)
    nodes.append(Node(name, layer, tuple(v.name for v in changing), result.name))


def _parameters_prefix(node: GraphNode, layer: Layer) -> str:
    """Return the prefix of the parameters' names, `conv1` of `conv1.weight`, else ""."""
    matches = {v.name.rpartition(".")[::2] for v in node.reads if v.kind is Kind.CONSTANT}
    starts = {start for start, end in matches if end in layer.shapes}
    return starts.pop() if len(starts) == 1 else ""


def _input(info: TensorInfo) -> TensorInfo:
    """Return the input with no open size but the batch."""
    first: tuple[Any, ...] = info.shape[:1]
    if any(isinstance(n, str) for n in info.shape[1:]):
        raise ModelError(f"the input {info.name!r} must have known sizes, got {show(info.shape)}")
    batch = (BATCH,) if isinstance(first[0] if first else 0, str) else first
    return TensorInfo(info.name, (*batch, *info.shape[1:]), info.type)


@dataclass(frozen=True)
class LayerOperator:
    """An ONNX node that becomes a layer."""

    operator: OnnxOperator
    types: tuple[TensorType, ...]
    """Types of the operands that change in each run."""
    arrays: tuple[Array | None, ...]
    """Arrays of the operands; None where an operand changes in each run or is left out."""
    result: TensorType

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.operator.attributes.get(name, default)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions of the first operand that changes in each run."""
        return self.types[0].dims

    def array(self, index: int) -> Array:
        """Return the array of operand `index`. Raises UnsupportedOpError where it changes in each
        run.
        """
        array = self.arrays[index] if index < len(self.arrays) else None
        if array is None:
            raise UnsupportedOpError(f"a layer's parameter, operand {index}, must be constant")
        return array

    def optional(self, index: int) -> Array | None:
        """Return the array of operand `index`, or None where the operand is left out."""
        return self.array(index) if index < len(self.arrays) else None

    def only(self, **attributes: Any) -> None:
        """Raise UnsupportedOpError unless the attributes have these values, or are missing."""
        for name, value in attributes.items():
            if (got := self.get(name, value)) != value:
                raise UnsupportedOpError(f"its {name} must be {value}, got {got}")


Row = Callable[[LayerOperator], Layer]


def with_parameters(layer: Layer, **arrays: Array | None) -> Layer:
    """Assign the arrays that are not None to parameters of `layer`, and return it."""
    for name, array in arrays.items():
        if array is not None:
            setattr(layer, name, array)
    return layer


Sizes = tuple[int, ...]
Dims = tuple[Dim, ...]

CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
CONV_TRANSPOSE = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
MAX_POOL = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVG_POOL = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
LP_POOL = (nn.LPPool1d, nn.LPPool2d, nn.LPPool3d)
GLOBAL_AVERAGE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
GLOBAL_MAX = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
ZERO_PAD = (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)
CONSTANT_PAD = (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)
PADS: Mapping[str, tuple[type[Layer], ...]] = {
    "reflect": (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    "edge": (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
    "wrap": (nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
}
"""Padding layers by ONNX's modes, for one, two and three dimensions."""
LINEAR = ("linear", "bilinear", "trilinear")


def _by_rank(kinds: tuple[type[Any], ...], count: int) -> Any:
    """Return the layer class for `count` dimensions. Raises UnsupportedOpError where there is
    none.
    """
    if not 1 <= count <= len(kinds):
        raise UnsupportedOpError(f"it must have one to three dimensions of places, got {count}")
    return kinds[count - 1]


def _strides(node: LayerOperator, count: int) -> tuple[Sizes, Sizes]:
    """Return strides and dilations."""
    ones = (1,) * count
    return tuple(node.get("strides", ones)), tuple(node.get("dilations", ones))


def _padding(node: LayerOperator, count: int) -> Sizes:
    """Return the padding of each dimension. Raises UnsupportedOpError where its two ends differ."""
    auto = node.get("auto_pad", "NOTSET")
    pads = tuple(node.get("pads", (0,) * (2 * count)))
    if auto == "VALID":
        return (0,) * count
    if auto != "NOTSET":
        raise UnsupportedOpError(f"its auto_pad is {auto}")
    if len(pads) != 2 * count or pads[:count] != pads[count:]:
        raise UnsupportedOpError(f"its pads must be alike at both ends of an image, got {pads}")
    return pads[:count]


def _conv(node: LayerOperator) -> Layer:
    weight, bias = node.array(1), node.optional(2)
    out, share, *kernel = weight.shape
    count = len(kernel)
    kind, (stride, dilation) = _by_rank(CONV, count), _strides(node, count)
    around, auto = same(tuple(kernel), dilation), node.get("auto_pad", "NOTSET")
    is_same = auto == "SAME_UPPER" or (auto == "NOTSET" and node.get("pads") == around)
    uneven = is_same and around[:count] != around[count:] and set(stride) == {1}
    padding = "same" if uneven or auto == "SAME_UPPER" else _padding(node, count)
    groups = node.get("group", 1)
    options = {"groups": groups, "bias": bias is not None}
    layer = kind(share * groups, out, tuple(kernel), stride, padding, dilation, **options)
    return with_parameters(layer, weight=weight, bias=bias)


def _conv_transpose(node: LayerOperator) -> Layer:
    weight, bias = node.array(1), node.optional(2)
    if node.get("output_shape") is not None:
        raise UnsupportedOpError("it must be without output_shape")
    channels, share, *kernel = weight.shape
    count, groups = len(kernel), node.get("group", 1)
    kind, (stride, dilation) = _by_rank(CONV_TRANSPOSE, count), _strides(node, count)
    layer = kind(
        channels,
        share * groups,
        tuple(kernel),
        stride,
        _padding(node, count),
        node.get("output_padding", (0,) * count),
        groups,
        bias is not None,
        dilation,
    )
    return with_parameters(layer, weight=weight, bias=bias)


def _max_pool(node: LayerOperator) -> Layer:
    kernel = node.get("kernel_shape", ())
    kind, (stride, dilation) = _by_rank(MAX_POOL, len(kernel)), _strides(node, len(kernel))
    padding, ceil = _padding(node, len(kernel)), bool(node.get("ceil_mode", 0))
    layer: Layer = kind(kernel, stride, padding, dilation, ceil_mode=ceil)
    return layer


def _average_pool(node: LayerOperator) -> Layer:
    kernel = node.get("kernel_shape", ())
    kind, (stride, dilation) = _by_rank(AVG_POOL, len(kernel)), _strides(node, len(kernel))
    if set(dilation) != {1}:
        raise UnsupportedOpError(f"its dilations must be 1, got {dilation}")
    padding, counted = _padding(node, len(kernel)), bool(node.get("count_include_pad", 0))
    layer: Layer = kind(kernel, stride, padding, bool(node.get("ceil_mode", 0)), counted)
    return layer


def _lp_pool(node: LayerOperator) -> Layer:
    """Return a layer for an LpPool of even p, whose windows are all whole."""
    kernel, p = node.get("kernel_shape", ()), node.get("p", 2)
    kind, (stride, dilation) = _by_rank(LP_POOL, len(kernel)), _strides(node, len(kernel))
    node.only(ceil_mode=0)
    if p % 2 or set(dilation) != {1} or any(_padding(node, len(kernel))):
        raise UnsupportedOpError("it must be of an even p, with no pads and no dilations")
    layer: Layer = kind(p, kernel, stride)
    return layer


def _global_pool(kinds: tuple[type[Any], ...]) -> Row:
    """Return a function that makes an adaptive pool with one window."""

    def row(node: LayerOperator) -> Layer:
        layer: Layer = _by_rank(kinds, len(node.dims) - 2)(1)
        return layer

    return row


def _pad(node: LayerOperator) -> Layer:
    rank, mode = len(node.dims), node.get("mode", "constant")
    count = max(rank - 2, 1)
    widths = node.array(1) if len(node.arrays) > 1 else node.get("pads", ())
    has_axes = node.arrays[3:4] not in ((), (None,))
    axes = [axis % rank for axis in (node.array(3).tolist() if has_axes else range(rank))]
    sides = np.zeros((2, rank), np.int64)
    sides[:, axes] = np.asarray(widths, np.int64).reshape(2, -1)
    if sides[:, : rank - count].any():
        raise UnsupportedOpError(f"it must pad no samples and no channels, got {sides.tolist()}")
    padding = tuple(sides[:, rank - count :].T[::-1].ravel().tolist())
    if mode != "constant":
        if min(padding) < 0 and mode != "wrap":
            raise UnsupportedOpError(f"its pads must be at least 0 in mode {mode}, got {padding}")
        layer: Layer = _by_rank(PADS[mode], count)(padding)
        return layer
    old = node.get("value", 0.0)
    value = node.array(2).item() if node.arrays[2:3] not in ((), (None,)) else old
    layer = (
        _by_rank(CONSTANT_PAD, count)(padding, value)
        if value
        else _by_rank(ZERO_PAD, count)(padding)
    )
    return layer


def _depth_to_space(node: LayerOperator) -> Layer:
    if node.get("mode", "DCR") != "CRD":
        raise UnsupportedOpError("its mode must be CRD, got DCR")
    return nn.PixelShuffle(node.get("blocksize"))


def _col2im(node: LayerOperator) -> Layer:
    sizes, kernel = node.array(1).tolist(), node.array(2).tolist()
    if len(sizes) != 2:
        raise UnsupportedOpError(f"it must be of images, got {sizes}")
    stride, dilation = _strides(node, 2)
    return nn.Fold(sizes, kernel, dilation, _padding(node, 2), stride)


def _resize(node: LayerOperator) -> Layer:
    """Return an Upsample for a Resize that computes coordinates as PyTorch does, from opset 11
    on.
    """
    node.only(antialias=0, exclude_outside=0, keep_aspect_ratio_policy="stretch")
    dims, result = node.dims, node.result.dims
    count = len(dims) - 2
    axes = tuple(node.get("axes", range(2, len(dims))))
    if node.operator.version < 11 or axes != tuple(range(2, len(dims))):
        raise UnsupportedOpError(f"it must be of opset 11 on, of axes from 2 on, got {axes}")
    known_sizes = all(isinstance(dim, int) for dim in (*dims[2:], *result[2:]))
    if not 1 <= count <= len(LINEAR) or dims[:2] != result[:2] or not known_sizes:
        raise UnsupportedOpError(f"it must keep samples and channels, got {dims} and {result}")
    mode = node.get("mode", "nearest")
    coordinates = node.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        return _nearest(node, coordinates, dims[2:], result[2:])
    if coordinates not in ("half_pixel", "align_corners") or mode not in ("linear", "cubic"):
        raise UnsupportedOpError(f"there is none for {mode} and {coordinates}")
    node.only(cubic_coeff_a=-0.75)
    if mode == "cubic" and count != 2:
        raise UnsupportedOpError("cubic ones are of images")
    kind = "bicubic" if mode == "cubic" else LINEAR[count - 1]
    corners = True if coordinates == "align_corners" else None
    scales = _scales(node)
    if scales is None or corners:
        return nn.Upsample(_as_integers(result[2:]), mode=kind, align_corners=corners)
    return nn.Upsample(scale_factor=scales, mode=kind)


def _nearest(node: LayerOperator, coordinates: str, dims: Dims, result: Dims) -> Layer:
    """Return an Upsample that repeats each element equally often.

    Raises UnsupportedOpError for others, which depend on the rounding of coordinates.
    """
    rounding = node.get("nearest_mode", "round_prefer_floor")
    pairs = zip(_as_integers(dims), _as_integers(result), strict=True)
    if (
        coordinates != "asymmetric"
        or rounding != "floor"
        or not all(_repeats_evenly(*pair) for pair in pairs)
    ):
        what = f"{coordinates} and {rounding} of {dims} to {result}"
        raise UnsupportedOpError(f"there is none for {what}")
    return nn.Upsample(_as_integers(result))


def _as_integers(dims: Dims) -> Sizes:
    return tuple(int(dim) for dim in dims)


def _repeats_evenly(size: int, count: int) -> bool:
    """Return True where resizing a dimension to `count` repeats all elements equally often."""
    return np.array_equal(
        SamplePositions(size, count).nearest, np.repeat(np.arange(size), count // size)
    )


def _scales(node: LayerOperator) -> list[float] | None:
    """Return the scales of the spatial dimensions, None where sizes are given."""
    scales_array = node.arrays[2] if len(node.arrays) > 2 else None
    if scales_array is None or not scales_array.size:
        return None
    scales: list[float] = scales_array[2 - len(node.dims) :].tolist()
    return scales


WINDOWS: Mapping[str, Row] = {
    **{"Conv": _conv, "ConvTranspose": _conv_transpose, "Pad": _pad, "Resize": _resize},
    **{"MaxPool": _max_pool, "AveragePool": _average_pool, "LpPool": _lp_pool},
    **{
        "GlobalAveragePool": _global_pool(GLOBAL_AVERAGE),
        "GlobalMaxPool": _global_pool(GLOBAL_MAX),
    },
    **{"DepthToSpace": _depth_to_space, "Col2Im": _col2im},
}
"""Functions that make layers, by ONNX operator."""


def _gemm(node: LayerOperator) -> Layer:
    node.only(alpha=1.0, beta=1.0, transA=0)
    weight = node.array(1) if node.get("transB", 0) else node.array(1).T
    bias = node.optional(2)
    if bias is not None:
        bias = np.broadcast_to(bias, (1, len(weight)))[0]
    return _linear(weight, bias)


def _matmul(node: LayerOperator) -> Layer:
    weight = node.array(1)
    if weight.ndim != 2:
        raise UnsupportedOpError(f"its weight must be a matrix, got {weight.shape}")
    return _linear(weight.T, None)


def _linear(weight: Array, bias: Array | None) -> Layer:
    count, features = weight.shape
    layer = nn.Linear(features, count, bias is not None)
    return with_parameters(layer, weight=weight, bias=bias)


def _add(node: LayerOperator) -> Layer:
    if len(node.types) == 2:
        return nn.Add()
    array = next(one for one in node.arrays if one is not None)
    rank = len(node.dims)
    shape = (1,) * (rank - array.ndim) + array.shape
    if rank < 2 or len(shape) > rank or shape != (1, shape[1], *(1,) * (rank - 2)):
        raise UnsupportedOpError(f"what it adds must be of channels, got {array.shape}")
    count = node.dims[1]
    if not isinstance(count, int) or shape[1] not in (1, count):
        raise UnsupportedOpError(f"what it adds must be of channels, got {array.shape}")
    return with_parameters(nn.Bias(count), bias=np.broadcast_to(array.reshape(-1), (count,)))


def _batch_norm(node: LayerOperator) -> Layer:
    node.only(training_mode=0, spatial=1, is_test=1)
    weight, bias, mean, var = (node.array(i) for i in range(1, 5))
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 5: nn.BatchNorm3d}
    layer = kinds.get(len(node.dims), nn.BatchNorm2d)(len(mean), node.get("epsilon", 1e-5))
    parameters = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
    return with_parameters(layer, **parameters)


def _instance_norm(node: LayerOperator) -> Layer:
    weight, bias = node.array(1), node.array(2)
    kinds = {3: nn.InstanceNorm1d, 5: nn.InstanceNorm3d}
    kind = kinds.get(len(node.dims), nn.InstanceNorm2d)
    layer = kind(len(weight), node.get("epsilon", 1e-5), affine=True)
    return with_parameters(layer, weight=weight, bias=bias)


def _group_norm(node: LayerOperator) -> Layer:
    weight, bias = node.array(1), node.array(2)
    if node.dims[1:2] != weight.shape:
        raise UnsupportedOpError(f"its scale must be of channels, got {weight.shape}")
    layer = nn.GroupNorm(node.get("num_groups"), len(weight), node.get("epsilon", 1e-5))
    return with_parameters(layer, weight=weight, bias=bias)


def _layer_norm(node: LayerOperator) -> Layer:
    weight, bias = node.array(1), node.optional(2)
    axis = node.get("axis", -1)
    rank = len(node.dims) - axis if axis >= 0 else -axis
    if weight.ndim != rank:
        raise UnsupportedOpError(f"its scale must be of {rank} dimensions, got {weight.shape}")
    layer = nn.LayerNorm(weight.shape, node.get("epsilon", 1e-5), bias=bias is not None)
    return with_parameters(layer, weight=weight, bias=bias)


def _lrn(node: LayerOperator) -> Layer:
    size = node.get("size")
    if size % 2 == 0:
        raise UnsupportedOpError(f"its size must be odd, got {size}")
    numbers = node.get("alpha", 1e-4), node.get("beta", 0.75), node.get("bias", 1.0)
    return nn.LocalResponseNorm(size, *numbers)


def _flatten(node: LayerOperator) -> Layer:
    if node.get("axis", 1) not in (1, 1 - len(node.dims)):
        raise UnsupportedOpError(f"its axis must be 1, got {node.get('axis')}")
    return nn.Flatten()


def _reshape(node: LayerOperator) -> Layer:
    """Return a Flatten for a Reshape that keeps the batch and joins the other dimensions."""
    (batch, *sizes), dims = node.dims, node.result.dims
    known_sizes = len(dims) == 2 and all(isinstance(n, int) for n in sizes)
    joins = known_sizes and (not isinstance(dims[1], int) or dims[1] == prod(sizes))
    if not joins or dims[0] != batch:
        raise UnsupportedOpError(f"it must keep the batch and join the rest, got {dims}")
    return nn.Flatten()


def _reduce_mean(node: LayerOperator) -> Layer:
    """Return an adaptive pool for a mean over all spatial dimensions, as PyTorch writes it."""
    rank = len(node.dims)
    axes_array = node.optional(1) if len(node.arrays) > 1 else node.get("axes")
    axes = [] if axes_array is None else sorted(int(axis) % rank for axis in axes_array)
    kinds = {3: nn.AdaptiveAvgPool1d, 4: nn.AdaptiveAvgPool2d, 5: nn.AdaptiveAvgPool3d}
    if rank not in kinds or axes != list(range(2, rank)) or node.get("keepdims", 1) != 1:
        raise UnsupportedOpError(f"it must be over all behind the channels, and keep {rank} sizes")
    return kinds[rank](1)


def _softmax(kind: type[nn.Softmax]) -> Row:
    def row(node: LayerOperator) -> Layer:
        rank, old = len(node.dims), node.operator.version < 13
        axis = node.get("axis", 1 if old else -1)
        if old and axis not in (-1, rank - 1):
            raise UnsupportedOpError(f"its axis must be the last below opset 13, got {axis}")
        return kind(axis)

    return row


def _concat(node: LayerOperator) -> Layer:
    if node.get("axis") not in (1, 1 - len(node.dims)):
        raise UnsupportedOpError(f"its axis must be 1, got {node.get('axis')}")
    return nn.Concat(len(node.types))


def _prelu(node: LayerOperator) -> Layer:
    slope, rank = node.array(1), len(node.dims)
    shape = (1,) * (rank - slope.ndim) + slope.shape
    if slope.size > 1 and shape != (1, slope.size, *(1,) * (rank - 2)):
        raise UnsupportedOpError(f"its slope must be of channels, got {slope.shape}")
    return with_parameters(nn.PReLU(slope.size), weight=slope.reshape(-1))


def _clip(node: LayerOperator) -> Layer:
    largest = float(np.finfo(np.float32).max)
    if len(node.arrays) == 1:
        low, high = node.get("min", -largest), node.get("max", largest)
    else:
        low, high = (
            limit if node.arrays[i : i + 1] in ((), (None,)) else float(node.array(i))
            for i, limit in ((1, -largest), (2, largest))
        )
    return nn.Hardtanh(float(low), float(high))


def _plain(make: Callable[[], Layer]) -> Row:
    return lambda node: make()


def _numbers(make: Callable[..., Layer], **defaults: float) -> Row:
    """Return a function that makes a layer with the values of these attributes as arguments."""
    return lambda node: make(*(node.get(name, value) for name, value in defaults.items()))


def _gelu(node: LayerOperator) -> Layer:
    return nn.GELU(node.get("approximate", "none"))


def _pointwise(row: Function) -> Row:
    """Return a function that makes the layer for a row of FUNCTIONS."""
    if row.layer is None:
        return _numbers(lambda *numbers: nn.Pointwise(row.name, numbers), **row.attributes)
    kind: Callable[..., Layer] = nn.BY_NAME[row.layer]
    return _numbers(kind, **row.attributes)


ROWS: Mapping[str, Row] = {
    **{
        row.onnx.name: _pointwise(row)
        for row in FUNCTIONS.values()
        if row.onnx and (row.attributes or (row.layer and not row.onnx.attributes))
        if not (row.attributes and row.onnx.formula)
    },
    **{"Identity": _plain(nn.Identity), "Dropout": _plain(nn.Dropout)},
    **WINDOWS,
    **{"Gemm": _gemm, "MatMul": _matmul, "Add": _add, "LRN": _lrn},
    **{"BatchNormalization": _batch_norm, "InstanceNormalization": _instance_norm},
    **{"GroupNormalization": _group_norm, "LayerNormalization": _layer_norm, "Gelu": _gelu},
    **{"Flatten": _flatten, "Reshape": _reshape, "Concat": _concat, "PRelu": _prelu},
    "ReduceMean": _reduce_mean,
    **{"Softmax": _softmax(nn.Softmax), "LogSoftmax": _softmax(nn.LogSoftmax), "Clip": _clip},
}
"""Functions that make layers, by ONNX operator."""
