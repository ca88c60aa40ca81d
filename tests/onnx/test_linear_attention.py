"""Linear attention: every rule, token by token in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.onnx.single import BACKENDS, feeds, model, run

RULES = ("linear", "gated", "delta", "gated_delta")


def recurrence(rule, q, k, v, state, decay, beta, scale) -> tuple[np.ndarray, np.ndarray]:
    """What is read, (batch, heads, length, e), of the state (batch, heads, d, e), and the state.

    q, k: (batch, heads, length, d). Queries have as many heads as keys.
    """
    read = np.zeros(v.shape)
    state = state.copy()
    for b, h, t in np.ndindex(*v.shape[:3]):
        own = state[b, h]
        if "gated" in rule:
            own = own * np.exp(decay[b, h, t])[:, None]
        new = v[b, h, t]
        if "delta" in rule:
            new = beta[b, h, t] * (new - own.T @ k[b, h, t])
        own = own + np.outer(k[b, h, t], new)
        state[b, h] = own
        read[b, h, t] = scale * (own.T @ q[b, h, t])
    return read, state


def packed(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("past", [False, True])
def test_rules(backend: str, rule: str, length: int, past: bool) -> None:
    rng = np.random.default_rng(length)
    batch, heads, group, d, e = 2, 3, 2 if past else 1, 4, 5

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    q, k = draw(batch, heads * group, length, d), draw(batch, heads, length, d)
    v = draw(batch, heads, length, e)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    decay = -np.abs(draw(batch, heads, length, d if past else 1)) if "gated" in rule else None
    beta = rng.random((batch, heads, length, 1), np.float32) if "delta" in rule else None
    state = draw(batch, heads, d, e) if past else None
    first = np.zeros((batch, heads, d, e)) if state is None else state
    wide = None if decay is None else np.broadcast_to(decay, k.shape)
    repeated = (None if x is None else np.repeat(x, group, 1) for x in (k, v, first, wide, beta))
    k2, v2, first2, wide2, beta2 = repeated
    read, after = recurrence(rule, q, k2, v2, first2.astype(np.float64), wide2, beta2, d**-0.5)
    arrays = [packed(q), packed(k), packed(v), state]
    arrays += [None if x is None else packed(x) for x in (decay, beta)]
    while arrays[-1] is None:
        arrays.pop()
    how = {"update_rule": rule, "q_num_heads": heads * group, "kv_num_heads": heads}
    proto = model("LinearAttention", arrays, opset=27, outputs=2, **how)
    found = run(proto, feeds(arrays), backend)
    np.testing.assert_allclose(found[0], packed(read), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], after[:, ::group], rtol=1e-4, atol=1e-5)
