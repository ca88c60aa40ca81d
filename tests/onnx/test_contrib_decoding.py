"""Decoders with GroupQueryAttention: caches that grow or are a shared buffer, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import glnn
from glnn.compiler.plan import Plan
from glnn.errors import DeviceError
from tests.onnx.contrib_cases import OLDER, resident

HEADS, GROUPS, WIDTH, ROWS = 4, 2, 16, 20
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def decoder(window: int = -1, *, sliding: bool = False) -> onnx.ModelProto:
    """As onnxruntime-genai's models have it: lengths come from the attention mask."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(-3, 3, (64, WIDTH // 2))
    weights = {
        "one": np.array(1),
        "last": np.array([1]),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }
    node = helper.make_node
    attended = node(
        *("GroupQueryAttention", ["q", "k", "v", "pk", "pv", "places", "total", "cos", "sin"]),
        ["y", "nk", "nv"],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=GROUPS,
        do_rotary=1,
        local_window_size=window,
        **({"sliding_window_cache": 1} if sliding else {}),
    )
    nodes = [
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "one"], ["longest"], axis=0),
        node("Cast", ["longest"], ["total"], to=TensorProto.INT32),
        node("ReduceSum", ["mask", "last"], ["lengths"], keepdims=0),
        node("Sub", ["lengths", "one"], ["ends"]),
        node("Cast", ["ends"], ["places"], to=TensorProto.INT32),
        attended,
    ]
    of_tokens = {"q": HEADS, "k": GROUPS, "v": GROUPS}
    inputs = [_info(name, FLOAT, "b", "s", n * WIDTH) for name, n in of_tokens.items()]
    inputs += [_info(name, FLOAT, "b", GROUPS, "past", WIDTH) for name in ("pk", "pv")]
    inputs.append(_info("mask", INT64, "b", "total"))
    outputs = [_info("y", FLOAT, "b", "s", HEADS * WIDTH)]
    outputs += [_info(name, FLOAT, "b", GROUPS, "present", WIDTH) for name in ("nk", "nv")]
    known = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, known)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _info(name: str, kind: int, *shape: str | int) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def steps(batch: int, *, shared: bool, count: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the inputs but the caches: a prompt whose samples are of other lengths, then tokens."""
    rng = np.random.default_rng(batch)
    lengths = np.arange(5, 5 - batch, -1) if shared else np.full(batch, 5)
    for number in range(count):
        new = 1 if number else 5
        mask = (np.arange(5 + number) < (lengths + number)[:, None]).astype(np.int64)
        of_tokens = {"q": HEADS, "k": GROUPS, "v": GROUPS}
        feeds = {
            name: rng.standard_normal((batch, new, n * WIDTH)).astype(np.float32)
            for name, n in of_tokens.items()
        }
        yield {**feeds, "mask": mask}


@pytest.mark.parametrize("backend", ["cpu", "compute"])
@pytest.mark.parametrize("cache", ["grows", "shared", "slides"])
@pytest.mark.parametrize(("batch", "window"), [(1, -1), (3, 4)])
def test_step_by_step(backend: str, cache: str, batch: int, window: int, monkeypatch: Any) -> None:
    """Each step is ONNX Runtime's; few of them make a plan, and nothing is the host's."""
    sliding, shared = cache == "slides", cache == "shared"
    if sliding and OLDER:
        pytest.skip("earlier versions of ONNX Runtime have no sliding caches")
    window = 4 if sliding else window
    model = decoder(window, sliding=sliding).SerializeToString()
    try:
        session = glnn.InferenceSession(model, backend)
    except DeviceError as error:
        pytest.skip(str(error))
    runtime = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    made: list[Any] = []
    create = Plan.__init__
    monkeypatch.setattr(Plan, "__init__", lambda *a, **k: (made.append(a[0]), create(*a, **k))[1])
    rows = {"grows": 0, "shared": ROWS, "slides": 6}[cache]
    empty = np.zeros((batch, GROUPS, rows, WIDTH), np.float32)
    caches, others = [empty, empty], [empty, empty]
    lengths = np.zeros(batch, int)
    for feeds in steps(batch, shared=shared, count=11):
        lengths = feeds["mask"].sum(1)
        y, *caches = session.run(None, {**feeds, "pk": caches[0], "pv": caches[1]})
        right, *others = runtime.run(None, {**feeds, "pk": others[0], "pv": others[1]})
        for number, length in enumerate(lengths):
            there = length if y.shape[1] > 1 else 1  # what is behind a prompt's end is open
            np.testing.assert_allclose(y[number, :there], right[number, :there], 1e-5, 1e-5)
            for got, wanted in zip(caches, others, strict=True):
                used = resident(length, rows, window) if sliding else length
                np.testing.assert_allclose(
                    got[number, :, :used], wanted[number, :, :used], 1e-5, 1e-5
                )
    assert not session.hosted
    assert len(made) <= 5, "a plan for nearly each step"


@pytest.mark.parametrize("backend", ["cpu", "compute"])
@pytest.mark.parametrize("sliding", [False, True])
def test_caches_stay_on_the_device(backend: str, sliding: bool) -> None:
    """As states of a session, steps are as with caches that are fed."""
    model = decoder(4 if sliding else -1, sliding=sliding).SerializeToString()
    try:
        session = glnn.InferenceSession(model, backend)
    except DeviceError as error:
        pytest.skip(str(error))
    empty = np.zeros((1, GROUPS, 6 if sliding else ROWS, WIDTH), np.float32)
    caches = [empty, empty]
    states = session.make_states({"pk": "nk", "pv": "nv"}, {"pk": empty, "pv": empty})
    for feeds in steps(1, shared=True, count=6):
        (kept,) = session.run(None, feeds, states=states)
        y, *caches = session.run(None, {**feeds, "pk": caches[0], "pv": caches[1]})
        np.testing.assert_allclose(kept, y, 1e-6, 1e-6)


def test_a_shared_buffer_is_written_in_place() -> None:
    """Each token is put into the caches where they lie, as ONNX Runtime does on its devices."""
    import glnn.onnxruntime as ort

    model = decoder().SerializeToString()
    try:
        session = ort.InferenceSession(
            model, providers=[("GlnnExecutionProvider", {"backend": "compute"})]
        )
    except ort.capi.onnxruntime_pybind11_state.EPFail as error:
        pytest.skip(str(error))
    runtime = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    shape = [2, GROUPS, ROWS, WIDTH]
    make = ort.OrtValue.ortvalue_from_shape_and_type
    caches = {name: make(shape, np.float32, "gpu", 0) for name in ("pk", "pv")}
    others = {name: np.zeros(shape, np.float32) for name in caches}
    binding = session.io_binding()
    for name, cache in caches.items():
        binding.bind_ortvalue_input(name, cache)
        binding.bind_ortvalue_output(name.replace("p", "n"), cache)
    binding.bind_output("y")
    for number, feeds in enumerate(steps(2, shared=True, count=8)):
        before = [cache._content.content._block for cache in caches.values()]
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        session.run_with_iobinding(binding)
        right, *new = runtime.run(None, {**feeds, **others})
        others = dict(zip(caches, new, strict=True))
        if number:
            after = [cache._content.content._block for cache in caches.values()]
            assert all(one is other for one, other in zip(before, after, strict=True))
            np.testing.assert_allclose(binding.get_outputs()[2].numpy(), right, 1e-5, 1e-5)
        for sample, length in enumerate(feeds["mask"].sum(1)):
            for name, cache in caches.items():
                got, wanted = (one[sample, :, :length] for one in (cache.numpy(), others[name]))
                np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)
