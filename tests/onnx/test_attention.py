"""Attention with what several attributes and operands say at once, and rows without a key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.onnx.single import BACKENDS, feeds, model, run

RNG = np.random.default_rng


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def attention(q, k, v, bias, softcap=0.0, scale=None) -> tuple[np.ndarray, np.ndarray]:
    """Y and the weights by plain loops over heads, in float64; rows of nothing but -inf are 0."""
    b, heads, length, size = q.shape
    groups = heads // k.shape[1]
    weights = np.zeros((b, heads, length, k.shape[2]))
    y = np.zeros((b, heads, length, v.shape[3]))
    for i in np.ndindex(b, heads):
        own = (i[0], i[1] // groups)
        scores = q[i].astype(np.float64) @ k[own].T * (size**-0.5 if scale is None else scale)
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        scores = scores + np.broadcast_to(bias, (*weights.shape,))[i]
        for row in range(length):
            if np.isfinite(scores[row]).any():
                powers = np.exp(scores[row] - scores[row].max())
                weights[(*i, row)] = powers / powers.sum()
        y[i] = weights[i] @ v[own]
    return y, weights


@dataclass(frozen=True)
class Case:
    """Sizes and what is asked for."""

    heads: int = 4
    groups: int = 2
    length: int = 5
    keys: int = 7
    past: int = 0
    causal: bool = False
    mask: str = ""
    """"bool", "float", "short" for one of fewer keys, or none."""
    softcap: float = 0.0
    packed: bool = False
    valid: bool = False
    window: tuple[int, int] = (-1, -1)
    opset: int = 24


CASES = [
    Case(),
    Case(groups=1, causal=True, past=3, packed=True),
    Case(heads=6, groups=3, mask="bool", softcap=2.0),
    Case(mask="float", causal=True, length=7, packed=True),
    Case(mask="short", causal=True, past=2, length=3, keys=3),
    Case(valid=True, causal=True, mask="bool"),
    Case(valid=True, window=(2, 1), opset=25),
    Case(window=(1, -1), causal=True, past=4, length=3, keys=3, opset=25),
    Case(length=1, keys=129, heads=3, groups=1),
]


def allowed(case: Case, total: int, valid: np.ndarray | None) -> np.ndarray:
    """Which keys (batch, 1, length, total) the places of a query let it look at."""
    found = np.ones((2, 1, case.length, total), bool)
    left, right = case.window
    right = 0 if case.causal else right
    for b, _, i, j in np.ndindex(*found.shape):
        place = i + (case.past if valid is None else int(valid[b]) - case.length)
        found[b, 0, i, j] = (
            (right < 0 or j <= place + right)
            and (left < 0 or j >= place - left)
            and (valid is None or j < valid[b])
        )
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(backend: str, case: Case) -> None:
    rng, size, extent = RNG(0), 8, 3
    total = case.past + case.keys
    q = floats(rng, 2, case.heads, case.length, size)
    k, v = (floats(rng, 2, case.groups, case.keys, n) for n in (size, extent))
    past = [floats(rng, 2, case.groups, case.past, n) for n in (size, extent)] if case.past else []
    valid = np.array([total, 3], np.int64) if case.valid else None
    bias = np.where(allowed(case, total, valid), 0.0, -np.inf)
    mask = None
    if case.mask == "float":
        mask = floats(rng, case.heads, case.length, total)
        bias = bias + mask
    elif case.mask:
        mask = rng.random((2, 1, case.length, total - 2 * (case.mask == "short"))) < 0.7
        mask[1, 0, 0] = False  # a row without a key
        wide = np.pad(mask, [*[(0, 0)] * 3, (0, total - mask.shape[-1])])
        bias = bias + np.where(wide, 0.0, -np.inf)
    whole = [np.concatenate([p, n], 2) for p, n in zip(past, (k, v))] if past else [k, v]
    expected, weights = attention(q, *whole, bias, case.softcap)
    arrays = [q, k, v]
    how = {"is_causal": int(case.causal), "softcap": case.softcap, "qk_matmul_output_mode": 3}
    if case.opset > 24:
        how |= {"left_window_size": case.window[0], "right_window_size": case.window[1]}
    if case.packed:
        arrays = [x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1) for x in arrays]
        how |= {"q_num_heads": case.heads, "kv_num_heads": case.groups}
    arrays += [mask, *(past or (None, None)), valid]
    while arrays[-1] is None:
        arrays.pop()
    proto = model("Attention", arrays, opset=case.opset, outputs=4, **how)
    found = run(proto, feeds(arrays), backend)
    y = found[0]
    if case.packed:
        y = y.reshape(2, case.length, case.heads, extent).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[3], weights, rtol=1e-4, atol=1e-6)
    for one, other in zip(found[1:3], whole, strict=True):
        np.testing.assert_array_equal(one, other)
    only = model("Attention", arrays, opset=case.opset, **how)
    np.testing.assert_allclose(run(only, feeds(arrays), backend)[0], found[0], atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("turned", [0, 6])
def test_rotary_embedding_is_a_product_of_complex_numbers(backend, interleaved, turned) -> None:
    rng, size, heads = RNG(1), 10, 3
    x = floats(rng, 2, heads, 7, size)
    count = turned or size
    angles = rng.uniform(-3, 3, (11, count // 2)).astype(np.float32)
    positions = rng.integers(0, 11, (2, 7))
    arrays = [x, np.cos(angles), np.sin(angles), positions]
    how = {"interleaved": interleaved, "rotary_embedding_dim": turned}
    (found,) = run(model("RotaryEmbedding", arrays, opset=23, **how), feeds(arrays), backend)
    pairs = (slice(0, count, 2), slice(1, count, 2))
    if not interleaved:
        pairs = (slice(count // 2), slice(count // 2, count))
    both = (x[..., pairs[0]] + 1j * x[..., pairs[1]]) * np.exp(1j * angles[positions])[:, None]
    expected = x.copy()
    expected[..., pairs[0]], expected[..., pairs[1]] = both.real, both.imag
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    arrays[0] = x.transpose(0, 2, 1, 3).reshape(2, 7, -1)
    how["num_heads"] = heads
    (packed,) = run(model("RotaryEmbedding", arrays, opset=23, **how), feeds(arrays), backend)
    packed = packed.reshape(2, 7, heads, size).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(packed, expected, rtol=1e-4, atol=1e-5)
