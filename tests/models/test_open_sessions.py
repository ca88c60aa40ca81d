"""Sessions whose shapes change: from several threads, in flight, many of them, and after a failure.

GLNN_EXHAUSTIVE=1 has 10,000 shapes and many more places at which a run fails.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import glnn
from glnn.backends import NAMES
from glnn.errors import DeviceError, GlnnError, LimitError, NoRoomError, UnsupportedOpError
from glnn.gl import Device
from glnn.gl.command_buffer import BoundCommands
from glnn.gl.device import pop_errors
from glnn.gl.window import WindowContext
from glnn.runtime.buffer_set import BufferSet
from tests.models.test_threads import available, in_threads
from tests.test_stress import MEGABYTE, objects, resident

pytest.importorskip("onnx")

Array = NDArray[Any]
EXHAUSTIVE = bool(os.environ.get("GLNN_EXHAUSTIVE"))
WIDTH = 8
COPY_READ, SIZE = 0x8F36, 0x8764
RELEASES = ("__exit__", "give", "release", "end", "_end")
"""Functions that let go of what a run held: what fails there is beyond any program."""


def weights() -> tuple[Array, Array]:
    draw = np.random.default_rng(7)
    w, b = (draw.standard_normal(shape, np.float32) for shape in ((WIDTH, WIDTH), WIDTH))
    return w / 4, b / 4


def model() -> bytes:
    """Scores of each position for all others: y (B, L, L) and their sum, of x (B, L, WIDTH)."""
    from onnx import numpy_helper, parser

    made = parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17]>
        open (float[B, L, {WIDTH}] x) => (float[B, L, L] y, float[B, {WIDTH}] total) {{
            p = MatMul (x, w)
            q = Add (p, b)
            r = Relu (q)
            t = Transpose <perm = [0, 2, 1]> (r)
            s = MatMul (r, t)
            y = Tanh (s)
            total = ReduceSum <keepdims = 0> (r, one)
        }}""")
    w, b = weights()
    arrays = {"w": w, "b": b, "one": np.array([1])}
    made.graph.initializer.extend(numpy_helper.from_array(a, k) for k, a in arrays.items())
    content: bytes = made.SerializeToString()
    return content


def given(batch: int, length: int) -> dict[str, Array]:
    draw = np.random.default_rng(batch * 1000 + length)
    return {"x": draw.standard_normal((batch, length, WIDTH), np.float32)}


def check(found: list[Array], feeds: dict[str, Array]) -> None:
    """Hold results against float64."""
    w, b = (array.astype(np.float64) for array in weights())
    r = np.maximum(feeds["x"].astype(np.float64) @ w + b, 0)
    for got, right in zip(found, (np.tanh(r @ r.transpose(0, 2, 1)), r.sum(1)), strict=True):
        assert got.shape == right.shape
        assert np.abs(got - right).max(initial=0) <= 1e-5 * max(1, np.abs(right).max(initial=0))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return available(request.param)


@pytest.fixture
def device(name: str) -> Iterator[Device | None]:
    """A device that a test may lose, None for the cpu."""
    if name == "cpu":
        yield None
        return
    opened = Device()
    if opened.capabilities.platform == WindowContext.what:
        pytest.skip("the next window would have to be opened in the main thread")
    yield opened
    opened.close()


def test_eight_threads_with_shapes_of_their_own(name: str) -> None:
    session = glnn.InferenceSession(model(), name)

    def work(number: int) -> None:
        draw = random.Random(number)
        for _ in range(30 if EXHAUSTIVE else 6):
            feeds = given(draw.randrange(1, 4), draw.randrange(1, 90))
            check(session.run(None, feeds), feeds)

    assert in_threads(work, 8) == [None] * 8


def test_two_shapes_in_flight(name: str) -> None:
    """Larger ones among them, whose memory grows while another is under way."""
    session, draw = glnn.InferenceSession(model(), name), random.Random(1)
    asked = []
    for i in range(40 if EXHAUSTIVE else 12):
        for feeds in (given(2, 20 + i), given(1, draw.randrange(1, 40 + 5 * i))):
            asked.append((feeds, session.run_async(None, feeds)))
    for feeds, future in asked:
        check(future.result(60), feeds)


def gl_bytes(device: Device) -> int:
    """The bytes of all of GL's buffers, as GL tells them."""

    def work() -> int:
        exists = device.load("glIsBuffer", ctypes.c_ubyte, ctypes.c_uint)
        bind = device.load("glBindBuffer", None, ctypes.c_uint, ctypes.c_uint)
        pointer = ctypes.POINTER(ctypes.c_int)
        ask = device.load("glGetBufferParameteriv", None, ctypes.c_uint, ctypes.c_uint, pointer)
        total = 0
        for buffer in range(1, 4096):
            if exists(buffer):
                size = ctypes.c_int()
                bind(COPY_READ, buffer)
                ask(COPY_READ, SIZE, ctypes.byref(size))
                total += size.value
        bind(COPY_READ, 0)
        return total

    return device.perform(work)


def growth(backend: str, shapes: int, most: int) -> dict[str, int] | None:
    """By how much bytes and objects have grown with so many shapes, all below ones before.

    None where the backend does not open. most: the greatest size.
    """
    with Device() as device:
        try:
            session = glnn.InferenceSession(
                model(), backend, device=None if backend == "cpu" else device
            )
        except DeviceError:
            return None

        def run(batch: int, length: int) -> None:
            feeds = given(batch, length)
            check(session.run(None, feeds), feeds)

        def seen() -> dict[str, int]:
            """After the same shapes each time, the largest of each range among them."""
            for pair in (*product((1, 7, 31, most), repeat=2), (most, most - 1), (most, most)):
                run(*pair)
            gc.collect()
            names = device.perform(lambda: objects(device))
            return {
                "GL bytes": gl_bytes(device),
                "GL objects": sum(names.values()),
                "objects": len(gc.get_objects()),
                "resident": resident(),
            }

        seen()
        before = seen()
        pairs = list(product(range(1, most + 1), repeat=2))
        random.Random(3).shuffle(pairs)
        for pair in pairs[:shapes]:
            run(*pair)
        after = seen()
        return {what: after[what] - before[what] for what in after}


@cache
def grown(backend: str) -> dict[str, int]:
    """`growth` in a process of its own, as in tests/test_stress.py. Skips a closed backend."""
    shapes, most = (10_000, 100) if EXHAUSTIVE else (250, 60)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        found = processes.submit(growth, backend, shapes, most).result()
    if found is None:
        pytest.skip(f"{backend} does not open")
    return found


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("backend", NAMES)
def test_many_shapes_take_no_more_of_the_device(backend: str) -> None:
    assert grown(backend)["GL bytes"] <= 0 and grown(backend)["GL objects"] <= 0, grown(backend)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("backend", NAMES)
def test_many_shapes_leave_nothing_in_python(backend: str) -> None:
    found = grown(backend)
    assert found["objects"] < 400 and found["resident"] < 8 * MEGABYTE, found


class Failing:
    """Raises an error at the n-th call of a function of glnn's by this thread, as a signal would.

    calls: how many there were. Where n is None none fails. place: where it failed.
    """

    def __init__(self, error: type[BaseException], n: int | None) -> None:
        self._error, self._n, self.calls = error, n, 0
        self.place, self.ended = "", False

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if "/glnn/" not in code.co_filename or code.co_name in RELEASES:
            return
        self.calls += 1
        if self.calls == self._n:
            self.place = f"{code.co_filename}:{code.co_name}"
            raise self._error("in the middle")

    def __enter__(self) -> Failing:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)


def interrupted(run: Callable[[], object], error: type[BaseException], n: int | None) -> Failing:
    """What happens to `run` where its n-th call fails; it may also have got round that."""
    with Failing(error, n) as failing:
        try:
            run()
        except KeyboardInterrupt:
            assert error is KeyboardInterrupt
            failing.ended = True
        except (GlnnError, MemoryError):
            assert error is not KeyboardInterrupt, failing.place
            failing.ended = True
    return failing


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("step", ["first", "new", "larger", "again", "elsewhere"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_that_is_interrupted_leaves_a_session_that_works(
    name: str, step: str, error: type[BaseException]
) -> None:
    """While it is planned, bound to a new shape, its memory grows, or nothing of that.

    elsewhere: a new shape, by the device's own thread where it has one.
    """
    content = model()
    shapes = {"first": (2, 20), "larger": (3, 120), "again": (2, 20)}
    feeds, other = given(*shapes.get(step, (2, 25))), given(2, 20)

    def prepared() -> glnn.InferenceSession:
        session = glnn.InferenceSession(content, name)
        if step != "first":
            check(session.run(None, other), other)
        if step == "elsewhere":
            in_threads(lambda _: session.run(None, other), 2)
        return session

    for _ in range(2):  # what a process does once is not counted
        session = prepared()
        calls = interrupted(lambda: session.run(None, feeds), error, None).calls  # noqa: B023
    assert calls > 10
    draw, ended = random.Random(step), list[bool]()
    for n in sorted(draw.sample(range(1, calls), min(calls - 1, 100 if EXHAUSTIVE else 5))):
        session = prepared()
        failing = interrupted(lambda: session.run(None, feeds), error, n)  # noqa: B023
        ended.append(failing.ended)
        if not failing.place:  # others had done some of it
            continue
        try:
            for one in (feeds, other, feeds, given(1, 33)):
                check(session.run(None, one), one)
        except Exception as after:
            after.add_note(f"{error.__name__} at call {n} of {calls}: {failing.place}")
            raise
        answers = in_threads(lambda _: session.run(None, feeds), 2)  # noqa: B023
        for answer in answers:  # no lock is held
            assert isinstance(answer, list), (answer, failing.place)
            check(answer, feeds)
    assert any(ended) or error is MemoryError  # where less memory may do


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("largest", [40, None])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_binding_that_is_interrupted_is_made_again(name: str, largest: int | None) -> None:
    """For the same shape in the next run, wherever it was; largest: None where memory grows."""
    bind = BufferSet.bind

    def interrupt(n: int | None) -> Callable[..., None]:
        def failing(buffers: BufferSet, *arguments: object) -> None:
            calls.append(interrupted(lambda: bind(buffers, *arguments), KeyboardInterrupt, n).calls)
            if n is not None:
                raise KeyboardInterrupt

        return failing

    calls = list[int]()
    session = glnn.InferenceSession(model(), name)
    for length in (40, 33):
        check(session.run(None, given(2, length)), given(2, length))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BufferSet, "bind", interrupt(None))
        session.run(None, given(2, 37))
    every = range(1, calls[0] + 1)
    some = every if EXHAUSTIVE else sorted(random.Random(5).sample(every, min(40, len(every))))
    for i, n in enumerate(some):
        if largest is None:
            session = glnn.InferenceSession(model(), name)
            check(session.run(None, given(2, 33)), given(2, 33))
        feeds = given(2, 34 + i % 6 if largest else 120)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BufferSet, "bind", interrupt(n))
            with pytest.raises(KeyboardInterrupt):
                session.run(None, feeds)
        check(session.run(None, feeds), feeds)
        check(session.run(None, given(2, 33)), given(2, 33))


def test_a_shape_beyond_the_memory_that_is_allowed(name: str, monkeypatch: Any) -> None:
    if name == "cpu":
        pytest.skip("GLNN_MEMORY is a device's")
    session = glnn.InferenceSession(model(), name)
    small, large = given(2, 20), given(4, 200)
    check(session.run(None, small), small)
    monkeypatch.setenv("GLNN_MEMORY", "256K")  # the large one's scores are 640 KB
    for _ in range(2):
        with pytest.raises(LimitError, match="GLNN_MEMORY allows"):
            session.run(None, large)
        check(session.run(None, small), small)
        check(session.run(None, given(2, 21)), given(2, 21))
    monkeypatch.setenv("GLNN_MEMORY", "")
    check(session.run(None, large), large)
    check(session.run(None, small), small)


def test_shapes_that_are_refused_do_not_end_plans_for_open_sizes(name: str) -> None:
    """As of inputs that do not fit one another: whoever gives them is told, and goes on."""
    from onnx import parser

    made = parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        open (float[?, ?] x, float[?, ?] y) => (float[?, ?] z) {
            s = Add (x, y)
            z = Tanh (s)
        }""")
    session = glnn.InferenceSession(made.SerializeToString(), name)

    def run(rows: int, others: int) -> None:
        x, y = np.ones((rows, 5), np.float32), np.ones((others, 5), np.float32)
        (found,) = session.run(None, {"x": x, "y": y})
        np.testing.assert_allclose(found, np.tanh(x + y), 1e-5)

    for rows in (3, 4, 5, 6):
        with pytest.raises(GlnnError):
            run(rows, rows + 1)
    run(9, 9)
    executor: Any = session._executor
    before = executor.range_plans
    run(10, 10)
    assert before and executor.range_plans == before


def fail_allocations(device: Device, monkeypatch: Any, from_: int, fails: Callable[[], Any]) -> Any:
    """Have `fails` called at allocations of buffers of so many bytes and more; returns those."""
    made, seen = device.context.buffer, list[int]()

    def buffer(data: Any = None, *, reserve: int = 0, dynamic: bool = False) -> Any:
        size = reserve or len(memoryview(data).cast("B"))
        if size >= from_:
            seen.append(size)
            fails()
        return (
            made(data, dynamic=dynamic)
            if data is not None
            else made(reserve=reserve, dynamic=dynamic)
        )

    monkeypatch.setattr(device.context, "buffer", buffer)
    return seen


@pytest.mark.parametrize("kind", [DeviceError, MemoryError])
def test_an_allocation_that_fails(
    name: str, device: Device | None, kind: type[Exception], monkeypatch: Any
) -> None:
    """While memory grows, once and in a run that is asked for again."""
    if device is None:
        pytest.skip("the host's memory is NumPy's")
    session = glnn.InferenceSession(model(), name, device=device)
    small, large = given(2, 20), given(3, 150)
    check(session.run(None, small), small)

    def fails() -> None:
        raise kind("GL_OUT_OF_MEMORY")

    with monkeypatch.context() as patch:
        seen = fail_allocations(device, patch, 100_000, fails)
        for _ in range(2):
            with pytest.raises((DeviceError, LimitError)):
                session.run(None, large)
            check(session.run(None, small), small)
    assert len(seen) >= 2
    for feeds in (large, small, given(3, 151)):
        check(session.run(None, feeds), feeds)


def test_a_device_that_is_lost_while_memory_grows(
    name: str, device: Device | None, monkeypatch: Any
) -> None:
    if device is None:
        pytest.skip("a processor is not lost")
    session = glnn.InferenceSession(model(), name, device=device)
    small, large = given(2, 20), given(3, 150)
    check(session.run(None, small), small)

    def lost() -> None:
        device._reset_status = lambda: 0x8254

    seen = fail_allocations(device, monkeypatch, 100_000, lost)
    with pytest.raises(DeviceError, match="was reset by its driver"):
        session.run(None, large)
    assert seen
    for feeds in (small, large, given(3, 151)):
        check(session.run(None, feeds), feeds)
    fresh = session.backend.device
    assert fresh is not None and fresh is not device
    fresh.close()


class Little:
    """Memory of a device that has so many bytes for buffers and textures, and says not how many.

    GL makes what is more than that of no size, and has an error. failed: how often it had.
    """

    def __init__(self, device: Device, most: int, patch: pytest.MonkeyPatch) -> None:
        self.taken, self.failed, self._most, self._errors = 0, 0, most, list[str]()
        context: Any = device.context
        for name in ("buffer", "texture", "texture_array"):
            patch.setattr(context, name, partial(self._made, getattr(context, name)))
        self._sizes, self._dropped = dict[int, int](), context._objects
        patch.setattr(context, "gc", partial(self._freed, context.gc))
        patch.setattr("glnn.gl.device.pop_errors", self._drained)
        patch.setattr(device, "memory_available", lambda: None)

    def _made(self, make: Callable[..., Any], *size: Any, **options: Any) -> Any:
        made = make(*size, **options)
        nbytes = getattr(made, "size", 0)
        nbytes = nbytes if isinstance(nbytes, int) else 16 * int(np.prod(nbytes))
        self.taken += nbytes
        self._sizes[id(made.mglo)] = nbytes
        if self.taken > self._most:
            self.failed += 1
            self._errors.append("GL_OUT_OF_MEMORY")
        return made

    def _freed(self, free: Callable[[], None]) -> None:
        self.taken -= sum(self._sizes.pop(id(one), 0) for one in self._dropped)
        free()

    def _drained(self, context: Any) -> list[str]:
        found, self._errors = [*self._errors, *pop_errors(context)], []
        return found


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_driver_without_memory_to_grow(
    name: str, device: Device | None, asynchronous: bool, monkeypatch: Any
) -> None:
    """What other plans have is given back; where that does not help it is an error, and no more."""
    if device is None:
        pytest.skip("the host's memory is NumPy's")
    session = glnn.InferenceSession(model(), name, device=device)

    def run(batch: int, length: int) -> None:
        feeds = given(batch, length)
        found = session.run_async(None, feeds).result(60) if asynchronous else None
        check(found or session.run(None, feeds), feeds)

    run(2, 20)
    little = Little(device, 440_000, monkeypatch)
    for length in (40, 100, 20, 150, 21, 150, 99, 151):
        run(2, length)
    assert little.failed
    for _ in range(2):
        before = little.failed
        with pytest.raises(NoRoomError, match="GL_OUT_OF_MEMORY"):
            run(3, 400)
        assert little.failed > before
        for length in (20, 100):
            run(2, length)


LEAST = [
    {"max_compute_work_group_count": (40, 40, 40)},
    {"max_shader_storage_block_size": 1 << 15},
    {"max_texture_buffer_size": 1 << 10},
    {"max_texture_buffer_size": 0, "max_texture_size": 2048, "max_array_texture_layers": 1},
]
"""Limits that sizes of a range may exceed where those at hand did not."""


@pytest.mark.parametrize("limits", LEAST, ids=lambda one: next(iter(one)))
def test_sizes_beyond_a_limit_of_the_device(
    name: str, device: Device | None, limits: dict[str, Any], monkeypatch: Any
) -> None:
    """They have another plan or are refused: GL meets no error and no block that is too large."""
    if device is None:
        pytest.skip("NumPy has no limits")
    device.capabilities = lowered = replace(device.capabilities, **limits)
    bind, bound = BoundCommands._bind, list[int]()

    def noted(commands: Any, buffer: int, binding: int, first: int, nbytes: int) -> Any:
        bound.append(commands.buffer(buffer).size - first if nbytes == -1 else nbytes)
        return bind(commands, buffer, binding, first, nbytes)

    monkeypatch.setattr(BoundCommands, "_bind", noted)
    session = glnn.InferenceSession(model(), name, device=device)
    refused = list[int]()
    for length in (33, 127, 40, 126, 34, 140, 500, 130, 511, 36):
        feeds = given(2, length)
        try:
            check(session.run(None, feeds), feeds)
        except (LimitError, UnsupportedOpError) as error:
            assert not isinstance(error, DeviceError), error
            refused.append(length)
    assert not {33, 40, 34, 36}.intersection(refused), refused
    assert max(bound, default=0) <= lowered.max_shader_storage_block_size
    assert session._executor.range_plans  # type: ignore[union-attr]


def in_parts() -> bytes:
    """What `model` computes, of the rows of x (N, WIDTH) that `chosen` is not 0 for."""
    from onnx import numpy_helper, parser

    made = parser.parse_model(f"""<ir_version: 9, opset_import: ["": 18]>
        parts (float[N, {WIDTH}] x, float[N] chosen) => (float[L, L] y, float[{WIDTH}] total) {{
            found = NonZero (chosen)
            places = Squeeze (found, zero)
            rows = Gather <axis = 0> (x, places)
            p = MatMul (rows, w)
            q = Add (p, b)
            r = Relu (q)
            t = Transpose <perm = [1, 0]> (r)
            s = MatMul (r, t)
            y = Tanh (s)
            total = ReduceSum <keepdims = 0> (r, zero)
        }}""")
    w, b = weights()
    arrays = {"w": w, "b": b, "zero": np.array([0])}
    made.graph.initializer.extend(numpy_helper.from_array(a, k) for k, a in arrays.items())
    content: bytes = made.SerializeToString()
    return content


def test_a_part_that_cannot_be_bound_has_a_plan_of_its_own(
    name: str, device: Device | None
) -> None:
    """A limit that one part meets is no more to its user than one that a whole graph meets."""
    if device is None or name != "compute":
        pytest.skip("no other backend has workgroups")
    session = glnn.InferenceSession(in_parts(), name, device=device)

    def run(length: int) -> None:
        x = given(1, 600)["x"][0]
        chosen = np.zeros(600, np.float32)
        chosen[:length] = 1
        y, total = session.run(None, {"x": x, "chosen": chosen})
        check([y[None], total[None]], {"x": x[None, :length]})

    run(33)
    (cut,) = session._executor.range_plans  # type: ignore[union-attr]
    (of_range,) = cut._tail._range_plans.plans  # type: ignore[union-attr]
    device.capabilities = replace(device.capabilities, max_compute_work_group_count=(3, 3, 3))
    for length in (127, 33, 127):
        run(length)
    (own,) = cut._tail._plans.values()  # type: ignore[union-attr]
    assert cut._tail._range_plans.plans == [of_range] and own is not of_range  # type: ignore[union-attr]
