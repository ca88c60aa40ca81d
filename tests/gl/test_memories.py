"""Buffers in plain, mapped and staged memory: what goes up and comes down, and what is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glnn.backends.backend import Transfer
from glnn.backends.compute import Compute
from glnn.backends.feedback import Feedback
from glnn.core.layout import parse
from glnn.core.types import DType
from glnn.errors import DeviceError
from glnn.gl import (
    Buffer,
    BufferBlock,
    Device,
    MappedBlock,
    Program,
    StagedBlock,
    transfer,
)
from glnn.gl.probe import moves_mapped_buffers, refuses_mapped_captures
from glnn.gl.transfer import COPY_POOL, allocate_buffer

KINDS = [BufferBlock, MappedBlock, StagedBlock]
DTYPES = [DType.float32, DType.int32, DType.uint8, DType.int8, DType.bool]
SHAPES = [
    ("R", (0, 3)),
    ("R", (1,)),
    ("R", (3,)),
    ("R", (7, 1)),
    ("R", (127,)),
    ("R", (3, 129)),
    ("R", (2**18 + 3,)),
    ("R4", (1, 1)),
    ("R4", (2, 3, 7)),
    ("R4", (129, 129)),
    ("nChw4c", (2, 7, 3, 5)),
]


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the smallest are copied in parts by several threads."""
    monkeypatch.setattr(transfer, "MIN_PART", 1024)
    monkeypatch.setattr(COPY_POOL, "most", 4)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest, device: Device) -> Iterator[type[BufferBlock]]:
    offers = device.capabilities
    if request.param is not BufferBlock and not offers.buffer_storage:
        pytest.skip("no memory stays mapped here")
    if request.param is StagedBlock and not offers.compute:
        pytest.skip(offers.why_no_compute() or "")
    yield request.param
    device.finish()


def numbers(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(7)
    if dtype is DType.float32:
        return rng.standard_normal(shape, np.float32)
    if dtype is DType.bool:
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def stored(x: np.ndarray, layout: str) -> np.ndarray:
    """The words of `x` as they are to lie in memory, what pads them being zeros."""
    words = x if x.dtype == np.float32 else x.astype(np.int32)
    if layout == "R4":
        words = words.reshape(len(x), -1)
        words = np.pad(words, ((0, 0), (0, -words.shape[1] % 4)))
    elif layout == "nChw4c":
        n, c, h, w = x.shape
        words = np.pad(words, ((0, 0), (0, -c % 4), (0, 0), (0, 0)))
        words = words.reshape(n, -1, 4, h, w).transpose(0, 1, 3, 4, 2)
    return words.ravel()


def seen(device: Device, memory: BufferBlock) -> np.ndarray:
    """What the device has, as no host sees mapped memory: by way of another buffer."""
    plain = device.context.buffer(reserve=memory.nbytes)
    device.context.copy_buffer(plain, memory.copy, memory.nbytes)
    return np.frombuffer(plain.read(), np.uint32)


def compute(device: Device, buffer: Buffer, memory: BufferBlock, words: np.ndarray) -> None:
    """What a kernel does: write the device's copy."""
    if words.size:
        device.write_buffer(memory.copy, np.ascontiguousarray(words))
    device.barrier()
    buffer.mark_written()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize(("layout", "shape"), SHAPES)
def test_up_and_down(
    device: Device, kind: type[BufferBlock], layout: str, shape: tuple[int, ...], dtype: DType
) -> None:
    x = numbers(shape, dtype)
    real = stored(np.ones(shape, bool), layout) == 1  # and no padding, whose content is open
    words = stored(x, layout)
    words[~real] = 77

    def work() -> None:
        memory = kind(Buffer(shape, parse(layout), dtype=dtype).size, device)
        buffer = Buffer(shape, parse(layout), memory=memory, dtype=dtype)
        for source in (x, x[::-1], x.T.copy().T):
            buffer.put(source)
            there = seen(device, memory)[: words.size][real]
            expected = np.ascontiguousarray(stored(source, layout)[real])
            np.testing.assert_array_equal(there, expected.view(np.uint32))
            np.testing.assert_array_equal(buffer.fetch(), source)
        compute(device, buffer, memory, words)
        first = buffer.fetch()
        compute(device, buffer, memory, stored(x[::-1], layout))
        buffer.start_download()
        buffer.start_download()
        second = buffer.fetch()
        for found, right in ((first, x), (second, x[::-1])):
            assert found.dtype == x.dtype
            np.testing.assert_array_equal(found, right)
        compute(device, buffer, memory, words)
        for out in outs(x):
            assert buffer.fetch(out) is out
            np.testing.assert_array_equal(out, x.astype(out.dtype))
        np.testing.assert_array_equal(buffer.pull(), x)

    device.perform(work)


def outs(x: np.ndarray) -> list[np.ndarray]:
    """Arrays like `x`: contiguous, with gaps, column major, and of a wider type."""
    wide = np.float64 if x.dtype.kind == "f" else np.int64
    gaps = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
    return [np.zeros_like(x), gaps, np.zeros(x.shape, x.dtype, order="F"), np.zeros(x.shape, wide)]


def test_parts_as_large_as_they_are(
    device: Device, kind: type[BufferBlock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    x = numbers((2**19 + 3,), DType.float32)

    def work() -> np.ndarray:
        memory = kind(x.size + 1, device)
        one, other = (Buffer(x.shape, parse("R"), memory=memory) for _ in range(2))
        one.put(x)
        other.mark_written()
        return other.fetch()

    np.testing.assert_array_equal(device.perform(work), x)


def test_staged_results_wait_for_their_fence_alone(device: Device, monkeypatch) -> None:
    """Waiting for all commands would wait for the next run, too."""
    if not (device.capabilities.buffer_storage and device.capabilities.compute):
        pytest.skip("no memory is staged here")
    x, waits = numbers((129,), DType.float32), []
    memory = device.perform(lambda: StagedBlock(132, device))
    buffer = Buffer(x.shape, parse("R"), memory=memory)

    def work() -> np.ndarray:
        compute(device, buffer, memory, x)
        buffer.start_download()
        monkeypatch.setattr(device, "wait", lambda: waits.append(0))
        return buffer.fetch()

    np.testing.assert_array_equal(device.perform(work), x)
    assert not waits


def test_padded_rows_come_in_parts_too(device: Device, monkeypatch) -> None:
    """The host copies the first rows while the others are on their way."""
    if not (device.capabilities.buffer_storage and device.capabilities.compute):
        pytest.skip("no memory is staged here")
    x, asked = numbers((40, 129), DType.float32), []
    memory = device.perform(lambda: StagedBlock(40 * 132, device))
    buffer = Buffer(x.shape, parse("R4"), memory=memory)
    monkeypatch.setattr(memory, "to_host", lambda cuts: asked.extend(cuts) or to_host(cuts))
    to_host = type(memory).to_host.__get__(memory)

    def work() -> np.ndarray:
        compute(device, buffer, memory, stored(x, "R4"))
        return buffer.fetch()

    np.testing.assert_array_equal(device.perform(work), x)
    assert asked == [(132 * row, 132 * (row + 5)) for row in range(0, 40, 5)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_device_that_is_gone(kind: type[BufferBlock], lost: bool, device: Device) -> None:
    x = numbers((129,), DType.float32)
    gone = Device()
    memory = gone.perform(lambda: kind(132, gone))
    buffer = Buffer(x.shape, parse("R"), memory=memory)
    gone.perform(lambda: buffer.put(x))
    gone.perform(lambda: (buffer.mark_written(), buffer.start_download()))
    if lost:
        gone._reset_status = lambda: 0x8253
        with pytest.raises(DeviceError, match=r"reset by its driver \(guilty\)"):
            gone.perform(buffer.fetch)
    gone.close()
    with pytest.raises(DeviceError, match="lost: its device was closed"):
        buffer.fetch()
    buffer.start_download()
    buffer.put(2 * x)
    np.testing.assert_array_equal(buffer.fetch(), 2 * x)
    plain = buffer.push(device)
    assert np.frombuffer(plain.read(), np.float32)[:129].tolist() == (2 * x).tolist()


def test_nobody_reads_what_a_lost_device_unmaps(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reset is told of while threads are still copying parts out of mapped memory."""
    if not (device.capabilities.buffer_storage and device.capabilities.compute):
        pytest.skip("no memory is staged here")
    closed, copyto, late = threading.Event(), np.copyto, []
    gone = Device()
    memory = gone.perform(lambda: StagedBlock(1024, gone))
    buffer = Buffer((1024,), parse("R"), memory=memory)
    end = gone._end

    def slow(target: Any, source: Any, **options: Any) -> None:
        if threading.current_thread().name == "glnn copies":
            late.append(closed.wait(0.05))
        copyto(target, source, **options)

    def ends() -> None:
        closed.set()
        end()

    gone.perform(buffer.mark_written)
    monkeypatch.setattr(gone, "_end", ends)
    monkeypatch.setattr(gone, "_reset_status", lambda: 0x8253)
    monkeypatch.setattr(np, "copyto", slow)
    with pytest.raises(DeviceError, match="reset by its driver"):
        gone.perform(buffer.fetch)
    assert closed.is_set() and late and not any(late)


def test_what_does_not_fit_is_refused(device: Device, kind: type[BufferBlock]) -> None:
    memory = device.perform(lambda: kind(8, device))
    assert memory.nbytes == 32
    with pytest.raises(DeviceError, match="64 bytes do not fit into 32"):
        Buffer((16,), parse("R"), memory=memory)


@pytest.mark.parametrize("kind", [MappedBlock, StagedBlock])
def test_a_device_without_mapped_memory_says_so(device: Device, kind, monkeypatch) -> None:
    load = Device.load
    none = {"glMapBufferRange": lambda *_: None, "glBufferStorageEXT": lambda *_: None}
    monkeypatch.setattr(
        Device, "load", lambda self, name, *types: none.get(name) or load(self, name, *types)
    )
    with pytest.raises(DeviceError, match="map 32 bytes: no memory on "):
        device.perform(lambda: kind(8, device))


@pytest.mark.parametrize("layout", ["R", "R4"])
def test_several_that_lie_beside_one_another(device: Device, layout) -> None:
    """Each is written, read and copied, and leaves the others as they are."""
    shapes = ((3, 5), (64,), (1,), (7, 129))
    memory = BufferBlock(4 * 1024, device)
    rng, parts = np.random.default_rng(0), list[Buffer]()
    for i, shape in enumerate(shapes):
        parts.append(Buffer(shape, parse(layout), memory=memory, offset=i * 1024))
    arrays = [rng.random(shape, np.float32) for shape in shapes]
    for part, array in zip(parts, arrays, strict=True):
        part.set(array)
        part.push(device)
        part.mark_written()  # the host's is forgotten
    for part, array in zip(parts, arrays, strict=True):
        np.testing.assert_array_equal(part.fetch(), array)
        alone = Buffer(array.shape, parse(layout))
        alone.copy_from(part, device)
        np.testing.assert_array_equal(alone.pull(), array)
        alone.set(-array)
        part.copy_from(alone, device)
    for part, array in zip(parts, arrays, strict=True):
        np.testing.assert_array_equal(part.fetch(), -array)
    row = Buffer((129,), parse("R"))
    row.set(np.arange(129, dtype=np.float32))
    parts[3].copy_row(2, row, device)
    np.testing.assert_array_equal(parts[3].fetch()[2], np.arange(129))
    np.testing.assert_array_equal(parts[3].fetch()[3:], -arrays[3][3:])
    assert parts[1].byte_range == (4096, 256)
    with pytest.raises(DeviceError, match="do not fit"):
        Buffer((65,), parse(layout), memory=memory, offset=4 * 1024 - 64)


def test_what_the_host_sees_begins_where_its_memory_does(device: Device) -> None:
    if not device.capabilities.buffer_storage:
        pytest.skip("no memory that both see")
    with pytest.raises(DeviceError, match="begins where that does"):
        Buffer((3,), parse("R"), memory=MappedBlock(128, device), offset=64)


@pytest.mark.parametrize("words", [4, 7, 256, 257, 511, 512, 1025])
@pytest.mark.parametrize("given", [None, 0, 1, 3, 255, 256, 1025])
def test_large_content_comes_by_mapped_memory(
    device: Device, monkeypatch: pytest.MonkeyPatch, words: int, given: int | None
) -> None:
    if not device.capabilities.buffer_storage:
        pytest.skip("no memory stays mapped here")
    if (given or 0) > words:
        pytest.skip("there is no room for so many")
    monkeypatch.setattr(device, "capabilities", replace(device.capabilities, dedicated_memory=True))
    monkeypatch.setattr(device, "staging", None)
    monkeypatch.setattr(transfer, "MIN_STAGED", 16)
    monkeypatch.setattr(transfer, "STAGING_WORDS", 256)
    device.activate()
    dirty = allocate_buffer(device, words, np.full(words, 0xDEADBEEF, np.uint32))
    rng = np.random.default_rng(words)
    content = None if given is None else rng.integers(0, 2**32, given, np.uint32)
    made = [allocate_buffer(device, words, content) for _ in range(5)]  # by both halves
    wanted = np.zeros(words, np.uint32)
    wanted[: given or 0] = 0 if content is None else content
    for buffer in made:
        np.testing.assert_array_equal(np.frombuffer(buffer.read(), np.uint32), wanted)
    np.testing.assert_array_equal(np.frombuffer(dirty.read(), np.uint32), 0xDEADBEEF)


def test_captures_go_to_plain_memory_where_mapped_memory_is_refused(device, monkeypatch) -> None:
    """ANGLE: glBeginTransformFeedback raises GL_INVALID_OPERATION for a buffer that is mapped."""
    if not device.capabilities.buffer_storage:
        pytest.skip("buffers do not stay mapped here")

    def refused(*given):
        raise DeviceError("GL_INVALID_OPERATION")

    monkeypatch.setattr(device, "probe_results", {"moves_mapped_buffers": False})
    monkeypatch.setattr(Program, "capture", refused)
    assert device.perform(lambda: refuses_mapped_captures(device))
    kinds = {
        backend: type(device.perform(lambda b=backend: b(device).memory(64, Transfer.TO_HOST)))
        for backend in (Feedback, Compute)
    }
    assert kinds[Feedback] is BufferBlock
    assert not device.capabilities.compute or kinds[Compute] is MappedBlock


def test_memory_is_not_mapped_where_copies_to_it_are_lost(device, monkeypatch) -> None:
    """ANGLE: a copy to a mapped buffer that is in use gives it other memory; the map is stale."""
    if not device.capabilities.buffer_storage:
        pytest.skip("buffers do not stay mapped here")

    def lost(device: Device, nbytes: int):
        return device.context.buffer(reserve=nbytes), np.zeros(nbytes // 4, np.uint32)

    monkeypatch.setattr(device, "probe_results", {})
    monkeypatch.setattr("glnn.gl.probe.map_buffer", lost)
    assert device.perform(lambda: moves_mapped_buffers(device))
    backend = Feedback(device)
    for own in (False, True):
        monkeypatch.setattr(
            device, "capabilities", replace(device.capabilities, dedicated_memory=own)
        )
        for way in Transfer:
            made = device.perform(lambda way=way: backend.memory(1 << 22, way))
            assert type(made) is BufferBlock
