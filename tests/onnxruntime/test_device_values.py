"""OrtValues on glnn's device, and bindings: a cache there goes from run to run without the host."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from glnn.gl import Device
from glnn.gl.device import SHARED
from glnn.runtime.device_array import DeviceArray
from tests.onnxruntime.models import I64, F, proto
from tests.traffic import Traffic, count_traffic

GPU = "gpu"
BACKENDS = ["compute", "feedback", "cpu"]


@pytest.fixture(params=BACKENDS)
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def traffic() -> Iterator[Traffic]:
    with pytest.MonkeyPatch.context() as patch:
        yield count_traffic(patch)


def opened(ours: Any, model: Any, where: str, **options: Any) -> Any:
    provider = ("GlnnExecutionProvider", {"backend": where, **options})
    state = ours.capi.onnxruntime_pybind11_state
    try:
        return ours.InferenceSession(model.SerializeToString(), providers=[provider])
    except state.EPFail as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def decoder() -> Any:
    """Two caches that grow by x and 2 x, and the sum of both."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node("Concat", ["past.k", "x"], ["present.k"], axis=1),
        helper.make_node("Concat", ["past.v", "twice"], ["present.v"], axis=1),
        helper.make_node("Add", ["present.k", "present.v"], ["both"]),
        helper.make_node("ReduceSum", ["both", "axis"], ["sum"], keepdims=0),
    ]
    axis = helper.make_tensor("axis", I64, [1], [1])
    caches = [(f"past.{name}", F, ["n", "p", 8]) for name in "kv"]
    grown = [(f"present.{name}", F, ["n", "t", 8]) for name in "kv"]
    inputs, outputs = [("x", F, ["n", "s", 8]), *caches], [("sum", F, ["n", 8]), *grown]
    return proto(nodes, inputs, outputs, initializer=[axis])


@pytest.fixture(scope="session")
def fixed() -> Any:
    """A cache of 40 rows, in which x takes the place of some: past and present can share it."""
    nodes = [
        helper.make_node("Where", ["at", "x", "past"], ["present"]),
        helper.make_node("ReduceSum", ["present"], ["sum"], keepdims=0),
    ]
    inputs = [("past", F, [40, 8]), ("at", TensorProto.BOOL, [40, 1]), ("x", F, [1, 8])]
    return proto(nodes, inputs, [("sum", F, []), ("present", F, [40, 8])])


def test_values(ours, rng) -> None:
    x = rng((2, 3))
    value = ours.OrtValue.ortvalue_from_numpy(x, GPU, 0)
    assert (value.device_name(), value.shape(), value.data_type()) == (GPU, [2, 3], "tensor(float)")
    assert (value.element_type(), value.tensor_size_in_bytes(), value.is_tensor()) == (1, 24, True)
    before, x = x.copy(), x.__imul__(0)
    np.testing.assert_array_equal(value.numpy(), before)  # it is a copy
    value.numpy()[:] = 7
    np.testing.assert_array_equal(np.asarray(value), before)
    same = ours.OrtValue(value)
    more = before + 1
    value.update_inplace(more)
    more[:] = 0  # what it was updated by was copied
    np.testing.assert_array_equal(same.numpy(), before + 1)
    value.update_inplace(ours.OrtValue.ortvalue_from_numpy(before + 2))
    host = ours.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    host.update_inplace(value)
    np.testing.assert_array_equal(host.numpy(), before + 2)
    zeros = ours.OrtValue.ortvalue_from_shape_and_type([3, 2], 1, GPU, 0)
    np.testing.assert_array_equal(zeros.numpy(), np.zeros((3, 2), np.float32))
    ours.capi.onnxruntime_inference_collection.copy_tensors([value], [zeros])
    np.testing.assert_array_equal(zeros.numpy(), (before + 2).reshape(3, 2))
    for wrong, text in ((before[:1], "does not match the size"), (before.astype(np.float64), "64")):
        with pytest.raises(RuntimeError, match=text):
            value.update_inplace(wrong)
    for call in (value.to_dlpack, value.__dlpack__, value.__dlpack_device__):
        with pytest.raises(RuntimeError, match="is on 'gpu': numpy"):
            call()
    whole = ours.OrtValue.ortvalue_from_numpy(np.array([3, 4]), GPU)
    assert (whole.data_type(), whole.numpy().tolist()) == ("tensor(int64)", [3, 4])


@pytest.mark.parametrize("name", ["cuda", "dml", "npu", "webgpu"])
def test_no_other_device(ours, decoder, name) -> None:
    x, text = np.zeros((1, 1, 8), np.float32), f"memory of '{name}'.* 'cpu'.* 'gpu'"
    binding = ours.InferenceSession(decoder.SerializeToString()).io_binding()
    with pytest.raises(RuntimeError, match=text):
        ours.OrtValue.ortvalue_from_numpy(x, name, 0)
    with pytest.raises(RuntimeError, match=text):
        ours.OrtValue.ortvalue_from_shape_and_type([1], np.float32, name, 0)
    with pytest.raises(RuntimeError, match=f"output 'sum' .*{text}"):
        binding.bind_output("sum", name)
    with pytest.raises(RuntimeError, match=f"input 'x' .*{text}"):
        binding.bind_input("x", name, 0, np.float32, [1, 1, 8], x.ctypes.data)
    with pytest.raises(Exception, match="Unsupported device type: glnn"):
        binding.bind_output("sum", "glnn")


def test_a_decoder_of_growing_caches(ours, decoder, where, rng, traffic) -> None:
    session = opened(ours, decoder, where)
    binding, start = session.io_binding(), rng((2, 30, 8))
    for name in "kv":
        past = ours.OrtValue.ortvalue_from_numpy(start, GPU, 0)
        binding.bind_ortvalue_input(f"past.{name}", past)
    keys = values = start.astype(np.float64)
    for step in range(40):
        x = rng((2, 1, 8))
        traffic.reset()
        binding.bind_cpu_input("x", x)
        binding.bind_output("sum", "cpu")
        for name in "kv":
            binding.bind_output(f"present.{name}", GPU)
        session.run_with_iobinding(binding)
        total, *caches = binding.get_outputs()
        assert [one.device_name() for one in (total, *caches)] == ["cpu", GPU, GPU]
        for name, cache in zip("kv", caches, strict=True):
            binding.bind_ortvalue_input(f"past.{name}", cache)
        binding.clear_binding_outputs()
        keys = np.concatenate([keys, x], axis=1)
        values = np.concatenate([values, 2.0 * x], axis=1)
        np.testing.assert_allclose(total.numpy(), (keys + values).sum(1), rtol=1e-4, atol=1e-4)
        if step and where != "cpu":  # x goes there and the sum comes back: 64 bytes each
            assert (traffic.up, traffic.down) == (64, 64)
    for cache, expected in zip(caches, (keys, values), strict=True):
        assert cache.shape() == [2, 70, 8]
        np.testing.assert_array_equal(cache.numpy(), expected.astype(np.float32))


def test_one_memory_for_past_and_present(ours, fixed, where, rng, traffic) -> None:
    session = opened(ours, fixed, where)
    cache = ours.OrtValue.ortvalue_from_shape_and_type([40, 8], np.float32, GPU, 0)
    address, expected = cache.data_ptr(), np.zeros((40, 8), np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("past", cache)
    binding.bind_ortvalue_output("present", cache)
    binding.bind_output("sum")
    for step in range(8):
        x, at = rng((1, 8)), np.arange(40)[:, None] == step % 5
        traffic.reset()
        binding.bind_cpu_input("x", x)
        binding.bind_cpu_input("at", at)
        before = memory(cache)
        session.run_with_iobinding(binding)
        assert where != "compute" or not step or memory(cache) is before  # it is written in place
        expected[step % 5] = x
        total = binding.get_outputs()[1].numpy()
        assert total == pytest.approx(float(expected.sum(dtype=np.float64)), rel=1e-4, abs=1e-4)
        if step and where != "cpu":
            assert (traffic.up, traffic.down) == (32 + 40, 16)  # a number, and what it is padded to
    np.testing.assert_array_equal(cache.numpy(), expected)
    assert cache.data_ptr() == address


def test_threads_read_a_memory_that_is_written_in_place(ours, fixed, where) -> None:
    session = opened(ours, fixed, where)
    cache = ours.OrtValue.ortvalue_from_shape_and_type([40, 8], np.float32, GPU, 0)
    binding, done, wrong = session.io_binding(), threading.Event(), list[Any]()
    binding.bind_ortvalue_input("past", cache)
    binding.bind_ortvalue_output("present", cache)
    binding.bind_cpu_input("at", np.ones((40, 1), bool))
    other = opened(ours, fixed, where)
    feeds = {"past": cache, "at": np.zeros((40, 1), bool), "x": np.zeros((1, 8), np.float32)}
    for name, array in feeds.items():
        if name != "past":
            feeds[name] = ours.OrtValue.ortvalue_from_numpy(array)

    def read(content: Any) -> None:
        try:
            while not done.is_set():
                assert len(np.unique(content())) == 1
        except BaseException as error:
            wrong.append(error)

    def run() -> Any:
        return other.run_with_ort_values(["present"], feeds)[0].numpy()

    def run_async() -> Any:
        ended: Future[Any] = Future()
        other.run_async(["present"], feeds, lambda *given: ended.set_result(given), None)
        outputs, _, error = ended.result(60)
        assert not error
        return outputs[0]

    threads = [threading.Thread(target=read, args=(one,)) for one in (cache.numpy, run, run_async)]
    for one in threads:
        one.start()
    try:
        for step in range(200):
            binding.bind_cpu_input("x", np.full((1, 8), step, np.float32))
            session.run_with_iobinding(binding)
    finally:
        done.set()
        for one in threads:
            one.join(60)
    assert not wrong
    np.testing.assert_array_equal(cache.numpy(), 199)


def test_run_async_reads_values_before_it_returns(ours, fixed, where, rng) -> None:
    """What is written to them behind that is not seen, nor is the moment between."""
    session, past = opened(ours, fixed, where), rng((40, 8))
    cache = ours.OrtValue.ortvalue_from_numpy(past, GPU, 0)
    feeds = {"past": cache, "at": np.zeros((40, 1), bool), "x": np.zeros((1, 8), np.float32)}
    ended: Future[Any] = Future()
    arguments = ["present"], feeds, lambda *given: ended.set_result(given), None
    thread = threading.Thread(target=session.run_async, args=arguments)
    content = cache._content
    with content.lock:  # as a run that writes in its place
        before = content.content
        content.content = DeviceArray(past)
        content.content.give_up()
        thread.start()
        thread.join(0.2)
        content.content = before
    thread.join(60)
    cache.update_inplace(np.zeros_like(past))
    outputs, _, error = ended.result(60)
    assert not error
    np.testing.assert_array_equal(outputs[0], past)


def memory(value: Any) -> Any:
    """What a value on the device lies in."""
    return value._content.content._block


def test_one_memory_with_a_profile(ours, fixed, where, rng, tmp_path) -> None:
    """A run is done several times for its times: its inputs are there for all of them."""
    options = ours.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "times")
    provider = ("GlnnExecutionProvider", {"backend": where})
    try:
        session = ours.InferenceSession(fixed.SerializeToString(), options, [provider])
    except ours.capi.onnxruntime_pybind11_state.EPFail as error:
        pytest.skip(str(error))
    start, at = rng((40, 8)), np.arange(40)[:, None] == 3
    cache, expected = ours.OrtValue.ortvalue_from_numpy(start, GPU, 0), start.copy()
    for _ in range(2):
        binding, x = session.io_binding(), rng((1, 8))
        binding.bind_cpu_input("x", x)
        binding.bind_cpu_input("at", at)
        binding.bind_ortvalue_input("past", cache)
        binding.bind_ortvalue_output("present", cache)
        session.run_with_iobinding(binding)
        expected[3] = x
        np.testing.assert_array_equal(cache.numpy(), expected)
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    others = ("session_initialization", "model_run")
    assert len([one for one in events if one.get("name") not in others]) > 2  # steps were timed


def test_memory_that_another_value_has_is_not_written(ours, fixed, where, rng) -> None:
    session, start = opened(ours, fixed, where), rng((40, 8))
    cache = ours.OrtValue.ortvalue_from_numpy(start, GPU, 0)
    other = ours.OrtValue.ortvalue_from_shape_and_type([40, 8], np.float32, GPU, 0)
    at, expected = np.arange(40)[:, None] == 3, start.copy()
    for step in range(3):
        if step < 2:
            other.update_inplace(cache)
            kept = expected.copy()
        binding, x = session.io_binding(), rng((1, 8))
        binding.bind_cpu_input("x", x)
        binding.bind_cpu_input("at", at)
        binding.bind_ortvalue_input("past", cache)
        binding.bind_ortvalue_output("present", cache)
        session.run_with_iobinding(binding)
        expected[3] = x
        np.testing.assert_array_equal(cache.numpy(), expected)
        np.testing.assert_array_equal(other.numpy(), kept)


def test_a_value_outlives_a_run_whose_other_output_does_not_fit(ours, where, rng) -> None:
    """The run may have written in its place before anybody sees that: it has what that wrote."""
    nodes = [
        helper.make_node("Add", ["past", "x"], ["present"]),
        helper.make_node("Mul", ["past", "x"], ["y"]),
    ]
    inputs, outputs = [[(name, F, ["n", 8]) for name in names] for names in (("past", "x"), "y")]
    model = proto(nodes, inputs, [*outputs, ("present", F, ["n", 8])])
    session, expected, x = opened(ours, model, where), rng((50, 8)), rng((50, 8))
    cache = ours.OrtValue.ortvalue_from_numpy(expected, GPU, 0)
    read_only = np.zeros((50, 8), np.float32)
    read_only.flags.writeable = False
    fitting = ours.OrtValue.ortvalue_from_shape_and_type([50, 8], np.float32)
    for order in (1, -1):
        for target, text in (
            (ours.OrtValue.ortvalue_from_shape_and_type([51, 8], np.float32), "Got: 51 .*: 50"),
            (ours.OrtValue.ortvalue_from_shape_and_type([51, 8], np.float32, GPU), "Got: 51 .*: 5"),
            (ours.OrtValue.ortvalue_from_numpy(read_only), "read-only"),
            (fitting, ""),
        ):
            binding = session.io_binding()
            binding.bind_cpu_input("x", x)
            binding.bind_ortvalue_input("past", cache)
            for name, value in [("present", cache), ("y", target)][::order]:
                binding.bind_ortvalue_output(name, value)
            if text:
                with pytest.raises(RuntimeError, match=f"(?s)Error in execution: .*{text}"):
                    session.run_with_iobinding(binding)
                assert not target.numpy().any()
            else:
                session.run_with_iobinding(binding)
                np.testing.assert_allclose(target.numpy(), expected.astype("f8") * x, 1e-6)
            expected = expected + x
            np.testing.assert_array_equal(cache.numpy(), expected)


def test_what_is_read_elsewhere_is_not_written_in_place(ours, where, rng) -> None:
    """past is read by another step, which may come after the one that makes present."""
    nodes = [
        helper.make_node("Add", ["past", "x"], ["present"]),
        helper.make_node("MatMul", ["present", "past"], ["y"]),
    ]
    inputs = [("past", F, [8, 8]), ("x", F, [8, 8])]
    model = proto(nodes, inputs, [("y", F, [8, 8]), ("present", F, [8, 8])])
    session, start = opened(ours, model, where), rng((8, 8))
    cache, past = ours.OrtValue.ortvalue_from_numpy(start, GPU, 0), start.astype(np.float64)
    for _ in range(4):
        binding, x = session.io_binding(), rng((8, 8))
        binding.bind_cpu_input("x", x)
        binding.bind_ortvalue_input("past", cache)
        binding.bind_ortvalue_output("present", cache)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        expected = (past + x) @ past
        past = (past.astype(np.float32) + x).astype(np.float64)
        np.testing.assert_allclose(binding.get_outputs()[1].numpy(), expected, 1e-4, 1e-4)
        np.testing.assert_array_equal(cache.numpy(), past.astype(np.float32))


def test_addresses_stand_for_values(ours, decoder, where, rng) -> None:
    session, x, start = opened(ours, decoder, where), rng((1, 1, 8)), rng((1, 3, 8))
    there = [ours.OrtValue.ortvalue_from_numpy(one, GPU, 0) for one in (x, start, start)]
    result = ours.OrtValue.ortvalue_from_shape_and_type([1, 8], np.float32, GPU, 0)
    binding = session.io_binding()
    for name, one in zip(("x", "past.k", "past.v"), there, strict=True):
        place = one.device_name(), 0, np.float32, one.shape(), one.data_ptr()
        binding.bind_input(name, *place)
    binding.bind_output("sum", GPU, 0, np.float32, result.shape(), result.data_ptr())
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    expected = 3.0 * x[:, 0] + 2.0 * start.sum(1, dtype=np.float64)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-4)
    there[0].update_inplace(2 * x)  # what is bound is read anew
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(result.numpy(), expected + 3.0 * x[:, 0], rtol=1e-4, atol=1e-4)
    address = result.data_ptr()
    with pytest.raises(RuntimeError, match=r"output 'sum' .*\(1, 9\): the OrtValue .*\(1, 8\)"):
        binding.bind_output("sum", GPU, 0, np.float32, [1, 9], address)
    with pytest.raises(RuntimeError, match="input 'x' of float64"):
        binding.bind_input("x", GPU, 0, np.float64, [1, 8], address)
    binding.clear_binding_outputs()
    del result
    gc.collect()
    with pytest.raises(RuntimeError, match=f"no memory of 'gpu' at {address}"):
        binding.bind_output("sum", GPU, 0, np.float32, [1, 8], address)


def test_who_holds_a_value_keeps_it(ours, decoder, where, rng) -> None:
    session = opened(ours, decoder, where)
    binding, kept, expected = session.io_binding(), [], []
    binding.bind_output("present.k", GPU)
    for length in (3, 5, 5, 2):
        x, past = rng((1, 1, 8)), rng((1, length, 8))
        for name, one in (("x", x), ("past.k", past), ("past.v", past)):
            binding.bind_cpu_input(name, one)
        session.run_with_iobinding(binding)
        kept += binding.get_outputs()
        expected.append(np.concatenate([past, x], axis=1))
    del session, binding
    gc.collect()
    for one, wanted in zip(kept, expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), wanted)
    other = opened(ours, decoder, where)
    for one, wanted in zip(kept, expected, strict=True):
        feeds = {"x": kept[0], "past.k": one, "past.v": one}
        names = ["present.k"]
        for got in (other.run(names, feeds)[0], other.run_with_ort_values(names, feeds)[0].numpy()):
            np.testing.assert_array_equal(got, np.concatenate([wanted, expected[0]], axis=1))


def test_threads_and_sessions_share_a_value(ours, decoder, where, rng) -> None:
    sessions = [opened(ours, decoder, one) for one in (where, "compute")]
    x = rng((1, 4, 8))
    shared, wrong = ours.OrtValue.ortvalue_from_numpy(x, GPU, 0), list[Any]()

    def work(session: Any) -> None:
        try:
            binding = session.io_binding()
            for name in ("x", "past.k", "past.v"):
                binding.bind_ortvalue_input(name, shared)
            binding.bind_output("present.k", GPU)
            for _ in range(15):
                session.run_with_iobinding(binding)
                (got,) = binding.get_outputs()
                np.testing.assert_array_equal(got.numpy(), np.concatenate([x, x], axis=1))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(sessions[i % 2],)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert not wrong
    np.testing.assert_array_equal(shared.numpy(), x)


def test_what_does_not_fit(ours, decoder, where, rng) -> None:
    session = opened(ours, decoder, where)
    state = ours.capi.onnxruntime_pybind11_state
    x = rng((1, 1, 8))
    good = ours.OrtValue.ortvalue_from_numpy(x, GPU, 0)
    feeds = dict.fromkeys(("x", "past.k", "past.v"), good)
    for array, text in (
        (x[0], "Invalid rank for input: x Got: 2 Expected: 3"),
        (x[..., :7], "index: 2 Got: 7 Expected: 8"),
        (x.astype(np.float16), r"Actual: \(tensor\(float16\)\) , expected: \(tensor\(float\)\)"),
    ):
        value = ours.OrtValue.ortvalue_from_numpy(array, GPU, 0)
        with pytest.raises(state.InvalidArgument, match=text):
            session.run(None, {**feeds, "x": value})
    binding = session.io_binding()
    for name in feeds:
        binding.bind_ortvalue_input(name, good)
    with pytest.raises(RuntimeError, match="Failed to find NodeArg with name: z"):
        binding.bind_ortvalue_input("z", good)
    for bind in (binding.bind_ortvalue_input, binding.bind_ortvalue_output):
        with pytest.raises(TypeError, match=r"'x' must be an OrtValue of .*, got numpy\.ndarray"):
            bind("x", x)
    for sizes in ("ab", None, [1, 2.5]):
        with pytest.raises(TypeError, match="a tensor's sizes must be integers, got"):
            ours.OrtValue.ortvalue_from_shape_and_type(sizes, np.float32, GPU, 0)
    for shape, dtype, text in (
        ([1, 9], np.float32, "index: 1 Got: 9 Expected: 8"),
        ([2, 8], np.float32, "index: 0 Got: 2 Expected: 1"),
        ([1, 8], np.float64, r"Actual: \(tensor\(double\)\) , expected: \(tensor\(float\)\)"),
    ):
        target = ours.OrtValue.ortvalue_from_shape_and_type(shape, dtype, GPU, 0)
        binding.bind_ortvalue_output("sum", target)
        with pytest.raises(RuntimeError, match=f"(?s)Error in execution: .*{text}"):
            session.run_with_iobinding(binding)
        np.testing.assert_array_equal(target.numpy(), np.zeros(shape, dtype))
    binding.clear_binding_outputs()
    binding.bind_output("other", GPU)
    with pytest.raises(RuntimeError, match="Invalid output name:other"):
        session.run_with_iobinding(binding)


def test_caches_that_do_not_fit_like_others(ours, decoder, where, rng) -> None:
    """What is known of one cache is known of another: only of the same shape, and once it fits."""
    session, state = opened(ours, decoder, where), ours.capi.onnxruntime_pybind11_state
    feeds = {"x": rng((1, 1, 8)), "past.k": rng((1, 3, 8)), "past.v": rng((1, 3, 8))}
    wrong = rng((1, 3, 7))
    for convert in (lambda array: array, lambda a: ours.OrtValue.ortvalue_from_numpy(a, GPU, 0)):
        for _ in range(2):
            some = {name: convert(array) for name, array in feeds.items()}
            for name in ("past.k", "past.v"):
                text = f"(?s)Got invalid dimensions for input: {name} .*index: 2 Got: 7 Expected: 8"
                with pytest.raises(state.InvalidArgument, match=text):
                    session.run(None, {**some, name: convert(wrong)})
            text = "(?s)Got invalid dimensions for input: past.k .*index: 2 Got: 7 Expected: 8"
            for _ in range(2):
                with pytest.raises(state.InvalidArgument, match=text):
                    session.run(
                        None, {**some, **dict.fromkeys(("past.k", "past.v"), convert(wrong))}
                    )
            total = feeds["x"] * 3 + feeds["past.k"].sum(1) + feeds["past.v"].sum(1)
            np.testing.assert_allclose(session.run(["sum"], some)[0], total[0], 1e-5, 1e-5)


def test_a_closed_device_is_said(ours, fixed, rng) -> None:
    session = opened(ours, fixed, "compute", limits="es31-minimum")
    binding, past, at = session.io_binding(), rng((40, 8)), np.arange(40)[:, None] < 1
    binding.bind_cpu_input("past", past)
    binding.bind_cpu_input("x", past[:1])
    binding.bind_cpu_input("at", at)
    binding.bind_output("present", GPU)
    session.run_with_iobinding(binding)
    (value,) = binding.get_outputs()
    other = opened(ours, fixed, "compute")
    moved = ours.OrtValue.ortvalue_from_numpy(past, GPU, 0)
    SHARED.open(None, "es31-minimum").close()
    state, text = ours.capi.onnxruntime_pybind11_state, "are lost: its device was closed"
    for call in (value.numpy, binding.copy_outputs_to_cpu, binding.synchronize_outputs):
        with pytest.raises(state.EPFail, match=text):
            call()
    feeds = {"past": value, "x": past[:1], "at": at}
    with pytest.raises(state.EPFail, match=rf"float32 \(40, 8\) {text}"):
        other.run(None, feeds)
    np.testing.assert_array_equal(other.run(["present"], {**feeds, "past": moved})[0], past)


def test_other_devices_are_reached_by_the_host(ours, decoder, rng, traffic) -> None:
    here = opened(ours, decoder, "compute")
    there = opened(ours, decoder, "compute", limits="es31-minimum")
    x = rng((1, 4, 8))
    names, binding = ("x", "past.k", "past.v"), here.io_binding()
    for name in names:
        binding.bind_cpu_input(name, x)
    binding.bind_output("present.k", GPU)
    here.run_with_iobinding(binding)
    (value,) = binding.get_outputs()
    feeds = dict.fromkeys(names, value)
    for crossing in (True, False):
        traffic.reset()
        (got,) = there.run(["sum"], feeds)
        expected = 2.0 * np.concatenate([x] * 4, axis=1).sum(1, dtype=np.float64)
        np.testing.assert_allclose(got, expected + expected / 4, rtol=1e-4, atol=1e-4)
        assert (traffic.down >= 8 * 4 * 8) == crossing  # once: it is there from then on
    assert isinstance(SHARED.open(), Device)


def test_values_that_are_no_tensors_of_numbers(ours, where) -> None:
    node = helper.make_node("SequenceConstruct", ["x", "x"], ["y"])
    outputs = [helper.make_tensor_sequence_value_info("y", F, ["n"])]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", F, ["n"])], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session, x = opened(ours, model, where), np.array([1, 2], np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ours.OrtValue.ortvalue_from_numpy(x, GPU, 0))
    binding.bind_output("y", GPU)
    session.run_with_iobinding(binding)
    (value,) = binding.get_outputs()
    assert value.is_tensor_sequence()
    assert value.device_name() == "cpu"
