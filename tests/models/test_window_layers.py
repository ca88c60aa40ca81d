"""Layers of one to three dimensions against loops in float64, on every backend."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from math import floor
from typing import Any

import numpy as np
import pytest

from glnn import layers as nn
from glnn.backends import Backend, open_backend
from glnn.errors import DeviceError, GlnnError
from glnn.layers import BY_NAME, Layer
from glnn.model import Model
from tests import window_references

Array = Any
LINE, IMAGE, VOLUME = (2, 4, 11), (2, 4, 7, 5), (1, 4, 5, 3, 7)
PLACE: dict[str, Any] = {"device": None, "dtype": None}
CONV = {
    **{"in_channels": ..., "out_channels": ..., "kernel_size": ..., "stride": 1, "padding": 0},
    **{"dilation": 1, "groups": 1, "bias": True, "padding_mode": "zeros", **PLACE},
}
TRANSPOSED = {
    **{"in_channels": ..., "out_channels": ..., "kernel_size": ..., "stride": 1, "padding": 0},
    **{"output_padding": 0, "groups": 1, "bias": True, "dilation": 1, "padding_mode": "zeros"},
    **PLACE,
}
MAX = {
    **{"kernel_size": ..., "stride": None, "padding": 0, "dilation": 1},
    **{"return_indices": False, "ceil_mode": False},
}
MEAN = {
    **{"kernel_size": ..., "stride": None, "padding": 0},
    **{"ceil_mode": False, "count_include_pad": True},
}
NORM = {"norm_type": ..., "kernel_size": ..., "stride": None, "ceil_mode": False}
FOLD = {"kernel_size": ..., "dilation": 1, "padding": 0, "stride": 1}
SIGNATURES: dict[str, dict[str, Any]] = {
    **{f"Conv{n}d": CONV for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": TRANSPOSED for n in (1, 2, 3)},
    **{f"MaxPool{n}d": MAX for n in (1, 2, 3)},
    **{"AvgPool1d": MEAN, "AvgPool2d": {**MEAN, "divisor_override": None}},
    "AvgPool3d": {**MEAN, "divisor_override": None},
    **{f"LPPool{n}d": NORM for n in (1, 2, 3)},
    **{f"AdaptiveAvgPool{n}d": {"output_size": ...} for n in (1, 2, 3)},
    **{f"AdaptiveMaxPool{n}d": {"output_size": ..., "return_indices": False} for n in (1, 2, 3)},
    **{
        f"{kind}Pad{n}d": {"padding": ...}
        for kind in ("Zero", "Reflection", "Replication", "Circular")
        for n in (1, 2, 3)
    },
    **{f"ConstantPad{n}d": {"padding": ..., "value": ...} for n in (1, 2, 3)},
    **{"PixelShuffle": {"upscale_factor": ...}, "PixelUnshuffle": {"downscale_factor": ...}},
    **{"ChannelShuffle": {"groups": ...}, "Unfold": FOLD, "Fold": {"output_size": ..., **FOLD}},
    **{
        f"Upsampling{kind}2d": {"size": None, "scale_factor": None}
        for kind in ("Nearest", "Bilinear")
    },
}
"""As PyTorch's documentation gives them; ... stands for a required argument."""


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_those_of_pytorch(name: str) -> None:
    found = {
        name: ... if parameter.default is parameter.empty else parameter.default
        for name, parameter in inspect.signature(BY_NAME[name]).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }
    assert list(found.items()) == list(SIGNATURES[name].items())


def each(layer: Any, name: str) -> tuple[int, ...]:
    """An argument for each dimension."""
    value = getattr(layer, name)
    return value if isinstance(value, tuple) else (value,) * layer.count


def convolved(layer: Any, x: Array) -> Array:
    """With what lies around x put there by NumPy."""
    edges = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    before = tuple(layer.padding) if layer.padding not in ("same", "valid") else (0,) * layer.count
    after = before
    if layer.padding == "same":
        totals = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        before = tuple(floor(n / 2) for n in totals)
        after = tuple(n - b for n, b in zip(totals, before, strict=True))
    if layer.padding_mode != "zeros":
        sides = ((0, 0), (0, 0), *zip(before, after, strict=True))
        x = np.pad(x, sides, mode=edges[layer.padding_mode])
        before = after = (0,) * layer.count
    weight = layer.weight.astype(np.float64)
    y = window_references.conv(x, weight, layer.stride, before, after, layer.dilation, layer.groups)
    return y if layer.bias is None else y + layer.bias.reshape(-1, *(1,) * layer.count)


def turned(layer: Any, x: Array) -> Array:
    weight, dilation = layer.weight.astype(np.float64), layer.dilation
    lie = layer.stride, layer.padding, layer.output_padding, dilation, layer.groups
    y = window_references.conv_transpose(x, weight, *lie)
    return y if layer.bias is None else y + layer.bias.reshape(-1, *(1,) * layer.count)


def largest(layer: Any, x: Array) -> Array:
    lie = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    return window_references.pool(x, "max", *lie, hanging=layer.ceil_mode)


def mean(layer: Any, x: Array) -> Array:
    lie = layer.kernel_size, layer.stride, layer.padding, (1,) * layer.count
    how = {"counted": layer.count_include_pad, "divisor": layer.divisor_override}
    return window_references.pool(x, "average", *lie, hanging=layer.ceil_mode, **how)


def norm(layer: Any, x: Array) -> Array:
    """The mean of the powers times as many as a whole window has, as PyTorch computes it."""
    p, none, ones = layer.norm_type, (0,) * layer.count, (1,) * layer.count
    lie = layer.kernel_size, layer.stride, none, ones
    means = window_references.pool(
        x.astype(np.float64) ** p, "average", *lie, hanging=layer.ceil_mode
    )
    with np.errstate(invalid="ignore"):
        return (means * np.prod(layer.kernel_size)) ** (1 / p)


def shared(layer: Any, x: Array) -> Array:
    mode = "max" if "Max" in type(layer).__name__ else "average"
    return window_references.adaptive(x, mode, layer.output_size)


def padded(layer: Any, x: Array) -> Array:
    """By NumPy, then cut; the circle closes behind what is left."""
    edges = {"Reflection": "reflect", "Replication": "edge", "Circular": "wrap"}
    edge = next((e for kind, e in edges.items() if kind in type(layer).__name__), "constant")
    sides = np.zeros((x.ndim, 2), int)
    for i in range(layer.count):
        sides[-1 - i] = layer.padding[2 * i : 2 * i + 2]
    more, less = np.maximum(sides, 0), np.maximum(-sides, 0)
    fill = {"constant_values": layer.value} if edge == "constant" else {}

    def cut(array: Array) -> Array:
        ends = zip(less, array.shape, strict=True)
        return array[tuple(slice(before, n - after) for (before, after), n in ends)]

    if edge == "wrap":
        return np.pad(cut(x), more, mode="wrap")
    return cut(np.pad(x, more, mode=edge, **fill))  # type: ignore[call-overload]


CASES: list[tuple[Callable[[Any, Array], Array], Layer, tuple[int, ...]]] = [
    (convolved, nn.Conv1d(4, 6, 3), LINE),
    (convolved, nn.Conv1d(4, 2, 2, 3, 1, 2, 2, False), LINE),
    (convolved, nn.Conv1d(4, 4, 4, padding="same", groups=4, padding_mode="circular"), LINE),
    (convolved, nn.Conv1d(4, 1, 1, 5, "valid"), LINE),
    (convolved, nn.Conv1d(4, 3, np.array([3]), padding=[np.int64(2)]), (1, 4, 1)),
    (convolved, nn.Conv2d(4, 2, (4, 1), padding="same", dilation=2, bias=False), IMAGE),
    (convolved, nn.Conv3d(4, 6, (2, 1, 3), (1, 4, 2), (1, 0, 2), (2, 1, 1), 2), VOLUME),
    (convolved, nn.Conv3d(4, 3, 2, padding="same", bias=False), (3, 4, 1, 2, 3)),
    (convolved, nn.Conv3d(4, 2, 3, 2, (2, 1, 1), padding_mode="replicate"), VOLUME),
    (convolved, nn.Conv3d(4, 1, (1, 3, 2), padding=(0, 2, 1), padding_mode="reflect"), VOLUME),
    (turned, nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2), LINE),
    (turned, nn.ConvTranspose1d(4, 3, 2, 3, bias=False, dilation=2), (1, 4, 1)),
    (
        turned,
        nn.ConvTranspose3d(4, 6, (1, 2, 3), (2, 1, 3), (0, 1, 1), (1, 0, 2), 2),
        (1, 4, 2, 3, 1),
    ),
    (turned, nn.ConvTranspose3d(4, 2, 2, 1, 0, 1, bias=False, dilation=2), (2, 4, 1, 2, 3)),
    (largest, nn.MaxPool1d(3, 2, 1, 2, ceil_mode=True), LINE),
    (largest, nn.MaxPool1d(2, 5), LINE),
    (largest, nn.MaxPool2d(2, 1, 1, 3), IMAGE),  # more padding than Pool2d takes
    (largest, nn.MaxPool3d((2, 3, 2), (1, 2, 3), (1, 0, 1), (1, 1, 2), ceil_mode=True), VOLUME),
    (largest, nn.MaxPool3d(1, 3), VOLUME),
    (mean, nn.AvgPool1d(3, 2, 1, True), LINE),
    (mean, nn.AvgPool1d(4, 3, 2, True, False), (1, 4, 7)),
    (mean, nn.AvgPool3d((3, 1, 2), (2, 2, 1), (1, 0, 1), True), VOLUME),
    (mean, nn.AvgPool3d(2, 2, 1, False, False), VOLUME),
    (mean, nn.AvgPool3d((2, 3, 3), 2, 1, True, False, 7), VOLUME),
    (norm, nn.LPPool1d(2, 3, 2, True), LINE),
    (norm, nn.LPPool1d(3.0, 2), LINE),  # whose sums may be negative: NaN
    (norm, nn.LPPool2d(1, (2, 3)), IMAGE),
    (norm, nn.LPPool3d(4, (2, 1, 3), 2, ceil_mode=True), VOLUME),
    (shared, nn.AdaptiveAvgPool1d(3), LINE),
    (shared, nn.AdaptiveMaxPool1d([13]), LINE),
    (shared, nn.AdaptiveAvgPool3d((2, None, 5)), VOLUME),
    (shared, nn.AdaptiveAvgPool3d(1), VOLUME),
    (shared, nn.AdaptiveMaxPool3d((7, 1, np.int8(3))), VOLUME),
    (padded, nn.ZeroPad1d((1, -2)), LINE),
    (padded, nn.ZeroPad2d(2), IMAGE),
    (padded, nn.ZeroPad3d((1, 0, 2, 0, 0, 3)), VOLUME),
    (padded, nn.ConstantPad1d(np.int32(3), -1.5), LINE),
    (padded, nn.ConstantPad2d((1, 2, -1, 0), 7), IMAGE),
    (padded, nn.ConstantPad3d((0, 1, 1, 0, -2, 1), float("-inf")), VOLUME),
    (padded, nn.ReflectionPad1d((10, 3)), LINE),
    (padded, nn.ReflectionPad2d((4, -1, 0, 2)), IMAGE),
    (padded, nn.ReflectionPad3d(1), VOLUME),
    (padded, nn.ReplicationPad1d(13), (2, 4, 1)),
    (padded, nn.ReplicationPad2d((-2, 3, 1, 0)), IMAGE),
    (padded, nn.ReplicationPad3d((1, 2, 3, 0, 1, 4)), VOLUME),
    (padded, nn.CircularPad1d((11, 4)), LINE),
    (padded, nn.CircularPad2d((2, -1, -2, 3)), IMAGE),
    (padded, nn.CircularPad3d((7, 1, 0, 3, 2, 5)), VOLUME),
]
"""How it is computed, a layer of one to three dimensions, and the shape of x."""


@pytest.fixture(params=["cpu", "compute", "feedback"])
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        return open_backend(request.param)
    except DeviceError as failure:
        pytest.skip(str(failure))


@pytest.mark.parametrize("kind", sorted({how.__name__ for how, _, _ in CASES}))
def test_layers_of_windows(backend, rng, kind: str) -> None:
    for how, layer, shape in CASES:
        if how.__name__ == kind:
            for name, own in layer.shapes.items():
                setattr(layer, name, rng(own))
            x = rng(shape)
            model = Model.sequential([layer], shape[1:])
            expected = how(layer, x)
            assert model.tensors[model.outputs[0]].shape == ("N", *expected.shape[1:]), layer
            got = layer(x, backend=backend.name)
            assert got.shape == expected.shape and got.dtype == np.float32, layer
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=str(layer))


def test_they_come_through_json() -> None:
    for _, layer, _ in CASES:
        again = BY_NAME[type(layer).__name__](**json.loads(json.dumps(layer.config())))
        assert (again.shapes, str(again)) == (layer.shapes, str(layer))
        assert vars(again).get("windows") == vars(layer).get("windows")


def test_pads_move_any_numbers(backend) -> None:
    x = np.arange(12, dtype=np.int32).reshape(1, 2, 2, 3)
    for given in (x, x.astype(np.int8), x > 5):
        got = nn.ReplicationPad2d((1, 0, 0, 1))(given, backend=backend.name)
        wanted = np.pad(given, ((0, 0), (0, 0), (0, 1), (1, 0)), mode="edge")
        assert got.dtype == given.dtype and np.array_equal(got, wanted)
        got = nn.ConstantPad1d(1, 1)(given, backend=backend.name)
        wanted = np.pad(given, ((0, 0), (0, 0), (0, 0), (1, 1)), constant_values=1)
        assert got.dtype == given.dtype and np.array_equal(got, wanted)


def test_shuffles(backend) -> None:
    """By their definition, number by number, exactly."""
    x = np.arange(2 * 12 * 4 * 6, dtype=np.float32).reshape(2, 12, 4, 6)
    wide = np.empty((2, 3, 8, 12), np.float32)
    for n, c, h, w in np.ndindex(*wide.shape):
        wide[n, c, h, w] = x[n, c * 4 + h % 2 * 2 + w % 2, h // 2, w // 2]
    assert np.array_equal(nn.PixelShuffle(2)(x, backend=backend.name), wide)
    assert np.array_equal(nn.PixelUnshuffle(2)(wide, backend=backend.name), x)
    assert np.array_equal(nn.PixelShuffle(2)(x[None], backend=backend.name), wide[None])
    assert np.array_equal(nn.PixelUnshuffle(2)(wide[1], backend=backend.name), x[1])
    mixed = nn.ChannelShuffle(3)(x, backend=backend.name)
    assert np.array_equal(mixed, x[:, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]])
    line = np.ascontiguousarray(x[:, :, 0])
    assert np.array_equal(nn.ChannelShuffle(12)(line, backend=backend.name), line)


def test_columns_and_images(backend, rng) -> None:
    x = rng((2, 3, 5, 7))
    for lie in ((3, 1, 1, 2), ((2, 3), (2, 1), (0, 1), (1, 3)), (1, 1, 0, 4)):
        layer = nn.Unfold(*lie)  # type: ignore[arg-type]
        given = layer.kernel_size, layer.dilation, layer.padding, layer.stride
        found = layer(x, backend=backend.name)
        assert np.array_equal(found, window_references.columns(x, *given).astype(np.float32))
        back = nn.Fold((5, 7), *lie)(found, backend=backend.name)  # type: ignore[arg-type]
        np.testing.assert_allclose(back, window_references.image(found, (5, 7), *given), 1e-6, 1e-6)
    one = np.zeros((1, 4, 4), np.float32)
    one[0, 3, 0], one[0, 0, 3] = np.inf, 2.0  # windows that meet at the middle
    got = nn.Fold(3, 2)(one, backend=backend.name)[0, 0]
    assert got[1, 1] == np.inf and np.isfinite(np.delete(got.ravel(), 4)).all()


def cubic(x: Array, axis: int, count: int, *, corners: bool) -> Array:
    """Each place of four: Keys 1981, with a of -0.75 and the edge's numbers beyond the edge."""
    size, a, found = x.shape[axis], -0.75, []
    for i in range(count):
        step = (size - 1) / max(count - 1, 1) if corners else size / count
        at = i * step if corners else (i + 0.5) * step - 0.5
        total = 0.0
        for tap in range(floor(at) - 1, floor(at) + 3):
            d = abs(at - tap)
            near, far = (a + 2) * d**3 - (a + 3) * d**2 + 1, a * (d**3 - 5 * d**2 + 8 * d - 4)
            weight = near if d <= 1 else far if d < 2 else 0.0
            total = total + weight * x.take(min(max(tap, 0), size - 1), axis)
        found.append(total)
    return np.stack(found, axis)  # type: ignore[arg-type]


def test_upsampling_between_four(backend, rng) -> None:
    x = rng((2, 3, 4, 1))
    wide = x.astype(np.float64)
    for size, corners in (((9, 5), False), ((3, 1), True), ((1, 2), False)):
        layer = nn.Upsample(np.array(size), mode="bicubic", align_corners=corners or None)
        expected = wide
        for axis, count in enumerate(size, 2):
            expected = cubic(expected, axis, count, corners=corners)
        got = Model.sequential([layer], x.shape[1:])(x, backend.name)
        np.testing.assert_allclose(got, expected, 1e-5, 1e-5)


def test_upsampling_by_older_names(backend, rng) -> None:
    x = rng((1, 2, 3, 4))
    for layer, same in (
        (nn.UpsamplingNearest2d(scale_factor=2), x.repeat(2, 2).repeat(2, 3)),
        (
            nn.UpsamplingBilinear2d((5, 4)),
            np.stack([(x[:, :, r // 2] + x[:, :, (r + 1) // 2]) / 2 for r in range(5)], 2),
        ),
    ):
        np.testing.assert_allclose(layer(x, backend=backend.name), same, 1e-6, 1e-6)
        again = BY_NAME[type(layer).__name__](**json.loads(json.dumps(layer.config())))
        assert str(again) == str(layer) and len(layer.config()) == 1


LINES = np.ones((1, 4, 5), np.float32)
VOLUMES = np.ones((1, 4, 2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Conv1d(1, 1, (3, 3)), "Conv1d kernel_size must be an integer or a list of one"),
        (lambda: nn.Conv3d(1, 1, (3, 3)), "Conv3d kernel_size must be an integer or three of them"),
        (lambda: nn.Conv3d(1, 1, 3, 2, "same"), r"'same' needs a stride of 1, got \(2, 2, 2\)"),
        (lambda: nn.Conv1d(1, 1, 3, padding="all"), "a list of one, 'same' or 'valid', got 'all'"),
        (lambda: nn.Conv1d(3, 1, 1)(LINES), r"Conv1d: x must have shape \(n, 3, l\), got \(1, 4"),
        (lambda: nn.Conv1d(5, 1, 1)(LINES), r"channels come first here, where x.transpose\(0, 2,"),
        (lambda: nn.Conv3d(4, 1, 1)(LINES), r"Conv3d: x must have shape \(n, 4, d, h, w\), got"),
        (lambda: nn.Conv3d(4, 1, 3)(VOLUMES), "the kernel of .* is larger than the padded x"),
        (lambda: nn.Conv1d(4, 1, 7)(LINES), "larger than"),
        (
            lambda: nn.Conv3d(4, 1, 3, padding=2, padding_mode="reflect")(VOLUMES),
            r"Conv3d: padding \(2, 2, 2, 2, 2, 2\) reaches beyond x",
        ),
        (lambda: nn.ConvTranspose1d(1, 1, 3, 2, 0, 2), "output_padding must be smaller than the"),
        (lambda: nn.ConvTranspose3d(1, 1, 3, padding_mode="circular"), "must be 'zeros', got 'ci"),
        (lambda: nn.ConvTranspose1d(3, 1, 3)(LINES), r"x must have shape \(n, 3, "),
        (lambda: nn.MaxPool1d(2, return_indices=True), "MaxPool1d return_indices must be false"),
        (lambda: nn.MaxPool3d(2, padding=2), r"padding must be at most half of what .*\(2, 2, 2\)"),
        (lambda: nn.MaxPool3d(2)(LINES), r"MaxPool3d: x must have shape \(n, c, d, h, w\), got"),
        (lambda: nn.MaxPool1d(7)(LINES), "is larger than"),
        (lambda: nn.AvgPool1d(2, 1, 0, "no"), "AvgPool1d ceil_mode must be true or false"),
        (lambda: nn.AvgPool3d(2, divisor_override=0), "divisor_override must be an integer of at"),
        (lambda: nn.AvgPool3d((2, 2)), "AvgPool3d kernel_size must be an integer or three of them"),
        (lambda: nn.LPPool2d(0, 2), "LPPool2d norm_type must be a number above 0, got 0"),
        (lambda: nn.LPPool1d(float("inf"), 2), "must be a number that float32 holds, got inf"),
        (lambda: nn.AdaptiveAvgPool1d((1, 2)), "an integer or None, or a list of one, got"),
        (lambda: nn.AdaptiveMaxPool3d(1, True), "AdaptiveMaxPool3d return_indices must be false"),
        (lambda: nn.AdaptiveAvgPool3d(1)(LINES), r"x must have shape \(n, c, d, h, w\), got"),
        (lambda: nn.ZeroPad2d((1, 2)), "ZeroPad2d padding must be an integer or 4 of them, got"),
        (lambda: nn.ZeroPad1d(2**31), "ZeroPad1d padding must be integers of at most 2147483647"),
        (lambda: nn.ZeroPad1d(1.0), "ZeroPad1d padding must be an integer, got 1.0"),
        (lambda: nn.ZeroPad3d(1)(LINES), r"ZeroPad3d: x must have shape \(n, c, d, h, w\), got"),
        (lambda: nn.ConstantPad1d(1, "x"), "ConstantPad1d value must be a number, got 'x'"),
        (lambda: nn.ConstantPad1d(1, np.nan), "ConstantPad1d value must be a number, got nan"),
        (
            lambda: nn.ConstantPad1d(1, 0.5)(LINES.astype(np.int32)),
            "value 0.5 is no number of x, int32",
        ),
        (
            lambda: nn.ConstantPad1d(1, float("inf"))(LINES.astype(np.int32)),
            "value inf is no number of x, int32",
        ),
        (
            lambda: nn.ConstantPad1d(1, 300)(LINES.astype(np.uint8)),
            "value 300 is no number of x, uint8",
        ),
        (lambda: nn.ConstantPad1d((-3, -2), 0)(LINES), "leaves nothing of x"),
        (lambda: nn.ReflectionPad1d(5)(LINES), r"padding \(5, 5\) reaches beyond x of shape"),
        (lambda: nn.CircularPad1d((5, -1))(LINES), r"padding \(5, -1\) reaches beyond x"),
        (lambda: nn.ReplicationPad1d(1)(VOLUMES), r"x must have shape \(n, c, l\), got"),
        (lambda: nn.PixelShuffle(0), "upscale_factor must be an integer of at least 1"),
        (lambda: nn.PixelShuffle(3)(VOLUMES), r"3 \* 3 must divide the channels of x"),
        (lambda: nn.PixelUnshuffle(2)(LINES), "2 must divide the height and width of x"),
        (lambda: nn.PixelShuffle(2)(LINES[0]), r"x must have shape \(\.\.\., c, h, w\), got"),
        (lambda: nn.ChannelShuffle(3)(LINES), "groups 3 must divide the channels of x"),
        (lambda: nn.Unfold(2)(LINES), r"Unfold: x must have shape \(n, c, h, w\), got"),
        (lambda: nn.Unfold(9)(VOLUMES[0]), r"the window \(9, 9\) is larger than the padded"),
        (lambda: nn.Fold(3, 4), r"the window \(4, 4\) is larger than the padded \(3, 3\)"),
        (lambda: nn.Fold(3, 2)(LINES), r"is not of windows \(2, 2\) on \(3, 3\): it must have sh"),
        (lambda: nn.Fold(3, 2)(VOLUMES), "x must have shape"),
        (lambda: nn.Upsample(3, mode="bicubic")(LINES), "x must have 4 dimensions, got"),
        (lambda: nn.UpsamplingNearest2d(), "UpsamplingNearest2d: it has either size or"),
        (lambda: nn.UpsamplingBilinear2d(scale_factor=-1), "UpsamplingBilinear2d scale_factor mu"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(GlnnError, match=message):
        make()
