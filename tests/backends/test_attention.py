"""Attention as one kernel, against its definition in float64."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from itertools import permutations, product

import numpy as np
import pytest

from glnn.compiler import prepare
from glnn.compiler.emit import emit_schedule
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.operators.attention import Attention, PartialAttention, StridedView, Windows
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import why_not_device
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run, run_kernel

SIZES = (  # batch, heads, queries, keys, width, columns
    (1, 1, 1, 1, 1, 1),
    (1, 2, 3, 7, 3, 5),
    (2, 3, 7, 3, 8, 8),
    (1, 1, 127, 129, 20, 20),
    (2, 1, 33, 65, 64, 64),
    (1, 2, 129, 31, 80, 12),
    (1, 1, 5, 200, 128, 130),
    (1, 1, 2, 11, 3, 523),
    (1, 1, 2, 11, 4, 524),
    (3, 2, 49, 49, 32, 32),
    (1, 2, 197, 197, 33, 5),
    (1, 5, 1, 129, 64, 64),
    (2, 2, 3, 1, 4, 8),
    (1, 3, 127, 7, 12, 4),
)
KERNELS = kernels("attention")


def sizes_for(kernel):
    """Those of SIZES that `kernel` is for: keys in parts are whole vec4, as values are."""
    whole = "flash_split" in kernel
    return [sizes for sizes in SIZES if not (whole and (sizes[4] % 4 or sizes[5] % 4))]


def exact(q, k, v, scale=1.0, mask=0.0):
    """Of (batch, heads, tokens, numbers), in float64."""
    scores = scale * np.einsum("bhqd,bhkd->bhqk", q.astype(float), k.astype(float)) + mask
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return np.einsum("bhqk,bhkd->bhqd", weights, v.astype(float))


def skip_unless_masks_bind(backend) -> None:
    """Skip where a mask, which takes a fifth storage block, has none."""
    if backend.device.capabilities.max_compute_shader_storage_blocks < 5:
        pytest.skip("a mask takes a fifth storage block")


def dense(heads, tokens, numbers):
    """Of (batch, heads, tokens, numbers), one behind the other."""
    return StridedView(0, heads * tokens * numbers, tokens * numbers, numbers)


def given(rng, sizes):
    """Queries, keys and values, each by itself, and their views."""
    batch, heads, queries, keys, width, columns = sizes
    each = ((queries, width), (keys, width), (keys, columns))
    arrays = [rng((batch, heads, *one)) for one in each]
    views = tuple(dense(heads, *one) for one in each)
    return dict(zip("qkv", arrays, strict=True)), views


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_any_sizes(opened, rng, name, kernel) -> None:
    if "masked" in kernel:
        skip_unless_masks_bind(opened(name))
    for sizes in sizes_for(kernel):
        (operands, views), (batch, _, queries, keys, *_) = given(rng, sizes), sizes
        added = 0.0
        if "masked" in kernel:  # for each sample, for all heads
            operands["mask"] = mask = 4 * rng((batch, queries, keys))
            added, views = mask[:, None], (*views, StridedView(0, queries * keys, 0, keys))
        got = run(opened(name), Attention(*sizes, views, 0.7), operands, kernel)
        expected = exact(*(operands[one] for one in "qkv"), 0.7, added).transpose(0, 2, 1, 3)
        assert oracle.error(got, expected) <= TOLERANCE, sizes


@pytest.mark.parametrize(
    "values",
    [
        {"TM": 8, "TN": 8, "VN": 2},
        {"TM": 8, "TN": 8, "BK": 32},
        {"WG_Y": 16, "TM": 8, "TN": 8, "VN": 2, "BK": 8},
        {"WG_X": 16, "WG_Y": 4, "TM": 8},
        {"WG_X": 16, "TM": 8},
        {"WG_Y": 4, "TN": 8, "VN": 4},
        {"VN": 2, "SLICES": 2},
        {"WG_Y": 4, "VN": 2, "SLICES": 8},
        {"WG_X": 16, "WG_Y": 2, "TN": 4, "SLICES": 4},
        {"WG_X": 16, "SLICES": 4},
        {"TM": 8, "SLICES": 4},
        {"TM": 8, "VN": 2, "PN": 2},
        {"VN": 2, "PN": 2, "SLICES": 2},
        {"WG_Y": 16, "TN": 4, "PN": 2},
        {"TN": 4},
    ],
    ids=str,
)
def test_blocks_of_any_size(opened, rng, values) -> None:
    """Blocks whose edges lie elsewhere than those of the default: of queries, keys and columns."""
    backend = opened("compute")
    (kernel,) = (k for k in kernels_for("attention", "compute") if k.name == "flash")
    kernel = kernel.with_parameters(**values)
    assert kernel.why_not_parameters() is None
    if (why := why_not_device(kernel, backend.device.capabilities)) is not None:
        pytest.skip(why)
    for sizes in SIZES:
        operands, views = given(rng, sizes)
        got = run_kernel(backend, Attention(*sizes, views, 0.7), operands, kernel)
        expected = exact(*operands.values(), 0.7).transpose(0, 2, 1, 3)
        assert oracle.error(got, expected) <= TOLERANCE, sizes


@pytest.mark.parametrize(
    ("width", "kernel"),
    [(8, "flash_split"), *product([8, 7], ["flash", "direct"])],
)
def test_operands_are_read_where_they_lie_in_one_tensor(opened, rng, width, kernel) -> None:
    batch, heads, tokens = 2, 3, 37
    x = rng((batch, tokens, 3, heads, width))
    row = 3 * heads * width
    at = tuple(StridedView(i * heads * width, tokens * row, width, row) for i in range(3))
    q, k, v = np.moveaxis(x, (2, 3), (0, 2))
    op = Attention(batch, heads, tokens, tokens, width, width, at, 0.3)
    got = run(opened("compute"), op, dict.fromkeys("qkv", x), kernel)
    assert oracle.error(got, exact(q, k, v, 0.3).transpose(0, 2, 1, 3)) <= TOLERANCE


@pytest.mark.parametrize("kernel", ["flash", "direct"])
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_the_result_lies_in_any_order(opened, rng, order, kernel) -> None:
    sizes = (2, 3, 5, 9, 4, 4)
    operands, views = given(rng, sizes)
    got = run(opened("compute"), Attention(*sizes, views, order=order), operands, kernel)
    expected = exact(*operands.values()).transpose(*order, 3)
    assert got.shape == expected.shape and oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize("kernel", ["flash_masked", "flash_split_masked", "direct_masked"])
@pytest.mark.parametrize("zeros", [False, True])
def test_rows_without_a_softmax(opened, rng, zeros, kernel) -> None:
    backend = opened("compute")
    sizes = (1, 2, 6, 70, 4, 8)
    operands, views = given(rng, sizes)
    mask = np.zeros((6, 70), np.float32)
    mask[0, 1:] = mask[1, :69] = -np.inf  # what is left has it all
    mask[2], mask[3, 66], mask[4, 3] = -np.inf, np.nan, np.inf
    operands["mask"] = mask
    op = Attention(*sizes, (*views, StridedView(0, 0, 0, 70)), zeros=zeros)
    skip_unless_masks_bind(backend)
    got = run(backend, op, operands, kernel)
    v = operands["v"]
    assert oracle.error(got[0, 0], v[0, :, 0]) <= TOLERANCE
    assert oracle.error(got[0, 1], v[0, :, 69]) <= TOLERANCE
    bad = got[0, 2:5]
    assert (bad == 0).all() if zeros else np.isnan(bad).all()
    expected = exact(*(operands[one] for one in "qkv"))
    assert oracle.error(got[0, 5], expected[0, :, 5]) <= TOLERANCE


@pytest.mark.parametrize("kernel", ["flash_masked", "flash_split_masked", "direct_masked"])
def test_masks_of_the_least_float(opened, rng, kernel) -> None:
    """As exporters write them: the sum of two is beyond all floats, which is no infinite score."""
    backend = opened("compute")
    skip_unless_masks_bind(backend)
    sizes = (1, 2, 6, 70, 4, 8)
    operands, views = given(rng, sizes)
    mask = np.zeros((6, 70), np.float32)
    least = np.finfo(np.float32).min
    mask[0, 1:] = mask[1, :69] = mask[2, ::2] = mask[3, 20:] = least
    mask[3, :10], mask[4, 8:40], mask[5, 64:] = -np.inf, least, least
    operands["mask"] = mask
    got = run(backend, Attention(*sizes, (*views, StridedView(0, 0, 0, 70))), operands, kernel)
    with np.errstate(over="ignore"):
        expected = exact(*(operands[one] for one in "qkv"), 1.0, mask.astype(float))
    assert oracle.error(got, expected.transpose(0, 2, 1, 3)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_large_scores_do_not_overflow(opened, rng, name, kernel) -> None:
    if "masked" in kernel:
        return
    sizes = (1, 1, 5, 140, 4, 4)
    operands, views = given(rng, sizes)
    operands["q"] *= 1000
    got = run(opened(name), Attention(*sizes, views, 10.0), operands, kernel)
    exactly = exact(*operands.values(), 10.0).transpose(0, 2, 1, 3)
    assert oracle.error(got, exactly) <= 1e-3  # scores of 1e4 are rounded to 1e-3


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
@pytest.mark.parametrize("keys", [4, 49, 128, 140])
def test_scores_whose_sum_is_beyond_all_floats(opened, rng, name, kernel, keys) -> None:
    """Finite scores of 2e38 in each of its loops: their sum is no infinite score."""
    if "masked" in kernel:
        return
    operands, views = given(rng, (1, 1, 3, keys, 4, 4))
    query, key, value = (operands[one] for one in "qkv")
    query[:], key[:] = 0, 0
    query[..., 0], key[:, :, ::2, 0] = 1e19, 2e19
    got = run(opened(name), Attention(1, 1, 3, keys, 4, 4, views), operands, kernel)
    expected = np.broadcast_to(value[0, 0, ::2].astype(float).mean(0), (3, 4))
    assert oracle.error(got.reshape(3, 4), expected) <= TOLERANCE


WINDOWS = (  # of images, heads and numbers of a token
    (Windows(2, 3, 3, 2, 1, 4), 2, 2, 8),
    (Windows(1, 2, 7, 7, 0, 3), 1, 3, 32),
    (Windows(3, 1, 5, 4), 2, 1, 5),
    (Windows(2, 2, 7, 7, 3, 3), 3, 2, 12),
    (Windows(2, 1, 10, 13, 3, 5), 1, 1, 4),
)


def windowed(x: np.ndarray, windows: Windows) -> np.ndarray:
    """Tokens (images, tokens, ...) of rolled images by windows: (images windows, tokens, ...)."""
    high, wide = windows.rows * windows.height, windows.columns * windows.width
    grid = x.reshape(len(x), high, wide, *x.shape[2:])
    grid = np.roll(grid, (-windows.down, -windows.right), (1, 2))
    cut = [
        grid[:, i : i + windows.height, j : j + windows.width]
        for i in range(0, high, windows.height)
        for j in range(0, wide, windows.width)
    ]
    return np.stack(cut, 1).reshape(-1, windows.tokens, *x.shape[2:])


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_windows_of_images(opened, rng, name, kernel) -> None:
    if "flash_split" in kernel:
        pytest.skip("it takes no windows")
    for windows, images, heads, width in WINDOWS:
        count, tokens = windows.count, windows.tokens
        x = rng((images, count * tokens, 3, heads, width))
        row = 3 * heads * width
        views = tuple(
            StridedView(i * heads * width, count * tokens * row, width, row) for i in range(3)
        )
        operands, added, masks = dict.fromkeys("qkv", x), 0.0, 0
        if "masked" in kernel:  # for each window of an image, and each head
            operands["mask"] = mask = 4 * rng((count, heads, tokens, tokens))
            views = (*views, StridedView(0, heads * tokens**2, tokens**2, tokens))
            added, masks = np.tile(mask, (images, 1, 1, 1)), count
        sizes = (images * count, heads, tokens, tokens, width, width)
        op = Attention(*sizes, views, 0.3, masks=masks, windows=windows)
        got = run(opened(name), op, operands, kernel)
        assert got.shape == (images, count * tokens, heads, width)
        q, k, v = (windowed(x[:, :, i], windows).swapaxes(1, 2) for i in range(3))
        expected = exact(q, k, v, 0.3, added).swapaxes(1, 2)
        assert oracle.error(windowed(got, windows), expected) <= TOLERANCE, windows
        by_numpy = op.compute({n: one.astype(float) for n, one in operands.items()})
        assert oracle.error(windowed(by_numpy, windows), expected) <= 1e-13, windows


@pytest.mark.parametrize("masks", [1, 2, 3])
def test_masks_that_samples_share_in_turns(opened, rng, masks: int) -> None:
    backend, sizes = opened("compute"), (6, 2, 5, 9, 4, 4)
    skip_unless_masks_bind(backend)
    operands, views = given(rng, sizes)
    operands["mask"] = mask = 4 * rng((masks, 5, 9))
    op = Attention(*sizes, (*views, StridedView(0, 45, 0, 9)), 0.7, masks=masks)
    expected = exact(
        *(operands[one] for one in "qkv"), 0.7, np.tile(mask, (6 // masks, 1, 1))[:, None]
    )
    for kernel in ("flash_masked", "flash_split_masked", "direct_masked"):
        got = run(backend, op, operands, kernel)
        assert oracle.error(got, expected.transpose(0, 2, 1, 3)) <= TOLERANCE, kernel
    assert oracle.error(op.compute(operands), expected.transpose(0, 2, 1, 3)) <= TOLERANCE


@pytest.mark.parametrize("parts", [2, 8])
def test_a_kernel_of_stages_is_prepared_with_its_parameters(opened, rng, monkeypatch, parts):
    """As benchmarks time it: by its name alone it would have the parameters of the device."""
    backend, seen = opened("compute"), []
    (kernel,) = (k for k in kernels_for("attention", "compute") if k.name == "flash_split")
    sizes = (1, 2, 3, 9, 4, 4)
    operands, views = given(rng, sizes)

    def emitted(schedule, *others):
        seen.extend(entry.spec.op for entry in schedule.entries)
        return emit_schedule(schedule, *others)

    monkeypatch.setattr(import_module("glnn.compiler.evaluate"), "emit_schedule", emitted)
    launch, out = backend.perform(
        lambda: prepare(
            Attention(*sizes, views), operands, backend, kernel.with_parameters(PARTS=parts)
        )
    )
    backend.perform(launch)
    assert [op.parts for op in seen if isinstance(op, PartialAttention)] == [parts]
    expected = exact(*operands.values()).transpose(0, 2, 1, 3)
    assert oracle.error(backend.perform(out.pull), expected) <= TOLERANCE


def test_orders_of_dimensions_of_one_are_alike(opened, rng) -> None:
    """As in models whose only sample has no dimension, or one elsewhere."""
    for batch, heads, queries in ((1, 3, 5), (3, 1, 5), (3, 5, 1), (1, 1, 5)):
        sizes = (batch, heads, queries, 9, 4, 4)
        operands, views = given(rng, sizes)
        whole = exact(*operands.values()).transpose(0, 2, 1, 3)
        for order in permutations(range(3)):
            expected = exact(*operands.values()).transpose(*order, 3)
            op = Attention(*sizes, views, order=order)
            spec = OpSpec.create(op, {n: one.shape for n, one in operands.items()}, {})
            if (whole.ravel() != expected.ravel()).any():
                with pytest.raises(UnsupportedOpError, match="TOKENS_FIRST is 0"):
                    opened("compute").choose(spec, "flash_split")
                continue
            got = run(opened("compute"), op, operands, "flash_split")
            assert got.shape == expected.shape and oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize("parts", [2, 8, 32])
def test_keys_in_parts(opened, rng, parts) -> None:
    """More parts than keys among them, so that some have none."""
    backend = opened("compute")
    (kernel,) = (k for k in kernels_for("attention", "compute") if k.name == "flash_split")
    for sizes in sizes_for(kernel.name):
        operands, views = given(rng, sizes)
        op = Attention(*sizes, views, 0.7)
        got = run_kernel(backend, op, operands, kernel.with_parameters(PARTS=parts))
        expected = exact(*operands.values(), 0.7).transpose(0, 2, 1, 3)
        assert oracle.error(got, expected) <= TOLERANCE, sizes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"order": (0, 1, 2)}, "TOKENS_FIRST is 0, it needs 1"),
        ({"width": 3, "columns": 3}, "WIDE is 0, it needs 1"),
        ({"windows": Windows(1, 1, 1, 5)}, "WINDOWED is 1, it needs 0"),
    ],
    ids=str,
)
def test_what_is_not_attended_to_in_parts(opened, change, reason) -> None:
    op = replace(Attention(2, 2, 5, 5, 4, 4, (dense(2, 5, 4),) * 3), **change)
    spec = OpSpec.create(op, dict.fromkeys("qkv", (2, 2, 5, 4)), {})
    with pytest.raises(UnsupportedOpError, match=reason):
        opened("compute").choose(spec, "flash_split")


def test_the_reference_is_the_definition(rng) -> None:
    for sizes in SIZES:
        operands, views = given(rng, sizes)
        wide = [array.astype(np.float64) for array in operands.values()]
        (got,) = Attention(*sizes, views, 0.7).reference(*wide)
        assert oracle.error(got, exact(*wide, 0.7).transpose(0, 2, 1, 3)) <= 1e-14


def test_what_is_wrong_is_said() -> None:
    at = (dense(1, 3, 4),) * 3
    op = Attention(1, 1, 3, 3, 4, 4, at)
    with pytest.raises(ShapeError, match=r"v .* ends before"):
        op.shape_of({"q": (3, 4), "k": (3, 4), "v": (3, 3)})
    with pytest.raises(ShapeError, match="sizes must be 1 or more"):
        replace(op, keys=0)
    with pytest.raises(ShapeError, match="order must be"):
        replace(op, order=(0, 1, 1))
    with pytest.raises(ShapeError, match="of steps of 1"):
        replace(op, views=(*at[:2], replace(at[2], step=2)))
    with pytest.raises(ShapeError, match="scale must be finite"):
        replace(op, scale=float("nan"))
    with pytest.raises(ShapeError, match="strides of 0 or more"):
        shapes = dict.fromkeys("qkv", (3, 4))
        replace(op, views=(*at[:2], replace(at[2], token=-4, start=8))).shape_of(shapes)
    with pytest.raises(ShapeError, match="got 2 masks of 1 samples"):
        replace(op, masks=2)
    with pytest.raises(ShapeError, match=r"have other tokens than \(3, 3\)"):
        replace(op, windows=Windows(1, 1, 2, 2))
    with pytest.raises(ShapeError, match="1 samples are no images"):
        replace(op, windows=Windows(2, 1, 3, 1))
    with pytest.raises(ShapeError, match=r"must begin within 3 x 1"):
        Windows(1, 1, 3, 1, 0, 1)
    with pytest.raises(ShapeError, match="sizes must be 1 or more"):
        Windows(1, 1, 3, 0)
