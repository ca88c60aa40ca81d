"""Buffers: what is transferred when, and that it arrives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from glnn.core.layout import parse
from glnn.core.types import DType
from glnn.errors import DeviceError, ShapeError
from glnn.gl import Buffer, Device, Program

Counts = tuple[int, int]


def counts(buffer: Buffer) -> Counts:
    return buffer.pushes, buffer.pulls


def numbers(*shape: int) -> np.ndarray:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def overwrite(buffer: Buffer, device: Device, flat: np.ndarray) -> None:
    """What a kernel does: write the device's copy."""
    device.write_buffer(buffer.push(device), np.ascontiguousarray(flat, np.float32))
    buffer.mark_written()


@pytest.mark.parametrize(
    "layout, shape, stored",
    [
        ("R", (2, 4), [1, 2, 3, 4, 5, 6, 7, 8]),
        ("R", (2, 3), [1, 2, 3, 4, 5, 6, 0, 0]),
        ("R4", (2, 3), [1, 2, 3, 0, 4, 5, 6, 0]),
        ("R4", (2, 1, 3), [1, 2, 3, 0, 4, 5, 6, 0]),
        ("R", (3,), [1, 2, 3, 0]),
        ("nChw2c", (1, 3, 1, 2), [1, 3, 2, 4, 5, 0, 6, 0]),
        ("R", (0, 3), []),
    ],
)
def test_arrays_lie_on_the_device_as_the_layout_says(
    device: Device, layout: str, shape: tuple[int, ...], stored: list[float]
) -> None:
    buffer = Buffer(shape, parse(layout))
    buffer.set(numbers(*shape))
    copy = buffer.push(device)
    assert copy.size == buffer.nbytes == 4 * buffer.size
    assert np.frombuffer(copy.read(), np.float32)[: len(stored)].tolist() == stored
    overwrite(buffer, device, 2 * np.array(stored, np.float32) if stored else np.zeros(4))
    np.testing.assert_array_equal(buffer.pull(), 2 * numbers(*shape))


def test_only_what_is_stale_is_transferred(device: Device) -> None:
    buffer = Buffer((2, 4), parse("R"))
    first = numbers(2, 4)
    buffer.set(first)
    assert buffer.pull() is first and counts(buffer) == (0, 0)
    copy = buffer.push(device)
    assert buffer.push(device) is copy and counts(buffer) == (1, 0)
    assert buffer.pull() is first and counts(buffer) == (1, 0)
    overwrite(buffer, device, 5 * first)
    assert counts(buffer) == (1, 0)
    pulled = buffer.pull()
    np.testing.assert_array_equal(pulled, 5 * first)
    assert buffer.pull() is pulled and buffer.push(device) is copy and counts(buffer) == (1, 1)
    buffer.set(7 * first)
    assert buffer.push(device) is copy and counts(buffer) == (2, 1)
    np.testing.assert_array_equal(np.frombuffer(copy.read(), np.float32).reshape(2, 4), 7 * first)


def test_what_was_set_last_wins(device: Device) -> None:
    buffer = Buffer((4,), parse("R"))
    overwrite(buffer, device, numbers(4))
    buffer.set(3 * numbers(4))
    np.testing.assert_array_equal(buffer.pull(), 3 * numbers(4))
    buffer.push(device)
    overwrite(buffer, device, 4 * numbers(4))
    np.testing.assert_array_equal(buffer.pull(), 4 * numbers(4))


def test_a_pulled_array_is_not_overwritten_by_the_next(device: Device) -> None:
    buffer = Buffer((2, 4), parse("R"))
    overwrite(buffer, device, numbers(8))
    first = buffer.pull()
    overwrite(buffer, device, 2 * numbers(8))
    second = buffer.pull()
    np.testing.assert_array_equal(first, numbers(2, 4))
    np.testing.assert_array_equal(second, 2 * numbers(2, 4))


def test_before_anything_is_set_all_is_zero(device: Device) -> None:
    buffer = Buffer((3, 5), parse("R"), capacity=100)
    assert (buffer.size, buffer.nbytes) == (100, 400)
    assert not np.frombuffer(buffer.push(device).read(), np.float32).any()
    np.testing.assert_array_equal(buffer.pull(), np.zeros((3, 5)))


def test_what_lies_beyond_the_layout_is_zero(device: Device) -> None:
    for _ in range(3):  # memory that was in use before
        dirty = Buffer((100,), parse("R"))
        dirty.set(np.full(100, np.nan, np.float32))
        dirty.push(device)
        del dirty
        device.activate()
    buffer = Buffer((2, 3), parse("R"), capacity=100)
    buffer.set(numbers(2, 3))
    assert np.frombuffer(buffer.push(device).read(), np.float32)[8:].tolist() == [0] * 92


def test_the_smallest_buffer_holds_a_vec4(device: Device) -> None:
    assert Buffer((0,), parse("R")).push(device).size == 16


def test_views_and_read_only_arrays_are_taken(device: Device) -> None:
    whole = numbers(4, 8)
    for view in (whole[:, ::2], whole.T, whole[::-1], np.broadcast_to(whole[0], (3, 8))):
        view = view.view()
        view.flags.writeable = False
        buffer = Buffer(view.shape, parse("R"))
        buffer.set(view)
        overwrite(buffer, device, np.frombuffer(buffer.push(device).read(), np.float32))
        np.testing.assert_array_equal(buffer.pull(), view)


@pytest.mark.parametrize("layout", ["R", "R4", "nChw2c", "C 4 2 C"])
@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (DType.int32, [-(2**31), -1, 0, 1, 2**31 - 1, 123456789]),
        (DType.uint8, [0, 1, 127, 128, 254, 255]),
        (DType.int8, [-128, -1, 0, 1, 2, 127]),
        (DType.bool, [True, False, False, True, True, False]),
    ],
)
def test_integers_take_a_word_each(device: Device, layout, dtype, numbers) -> None:
    shape = (1, 3, 1, 2) if layout == "nChw2c" else (3, 2)
    x = np.array(numbers, dtype.numpy).reshape(shape)
    buffer, copy = (Buffer(shape, parse(layout), dtype=dtype) for _ in range(2))
    assert buffer.pull().dtype == dtype.numpy and not buffer.pull().any()
    buffer.set(x)
    used = parse(layout).size(shape)
    stored = np.frombuffer(buffer.push(device).read(), np.int32)[:used]
    assert sorted(stored) == sorted([*x.astype(np.int32).flat, *[0] * (used - 6)])
    copy.copy_from(buffer, device)
    assert copy.pull().dtype == dtype.numpy
    np.testing.assert_array_equal(copy.pull(), x)
    with pytest.raises(ShapeError, match=f"a {dtype.value} NumPy array, got float32 array"):
        buffer.set(x.astype(np.float32))


@pytest.mark.parametrize("dtype", [DType.int64, DType.float64])
def test_what_no_gpu_holds_is_refused(dtype) -> None:
    with pytest.raises(DeviceError, match=f"holds no {dtype.value} numbers"):
        Buffer((3,), parse("R"), dtype=dtype)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (np.zeros((2, 3)), "float32 NumPy array, got float64 array"),
        ([[1.0, 2.0, 3.0]] * 2, "float32 NumPy array, got list"),
        (np.zeros((3, 2), np.float32), r"shape \(2, 3\) was given shape \(3, 2\)"),
        (np.zeros(6, np.float32), r"shape \(2, 3\) was given shape \(6,\)"),
    ],
)
def test_wrong_arrays(wrong: object, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Buffer((2, 3), parse("R")).set(wrong)


def test_a_copy_on_the_device(device: Device) -> None:
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    source, target = Buffer(x.shape, parse("R")), Buffer(x.shape, parse("R"), capacity=64)
    source.set(x)
    target.copy_from(source, device)
    assert (source.pushes, source.pulls) == (1, 0)  # nothing went back to the host
    np.testing.assert_array_equal(target.pull(), x)
    target.copy_from(target, device)
    np.testing.assert_array_equal(target.pull(), x)


def test_another_device_gets_what_is_newest(device: Device) -> None:
    with Device() as other:
        buffer = Buffer((4,), parse("R"))
        buffer.set(numbers(4))
        buffer.push(device)
        overwrite(buffer, device, 2 * numbers(4))
        copy = buffer.push(other)
        assert counts(buffer) == (2, 1)
        assert np.frombuffer(copy.read(), np.float32).tolist() == [2, 4, 6, 8]
        overwrite(buffer, other, 3 * numbers(4))
        np.testing.assert_array_equal(buffer.pull(), 3 * numbers(4))
        device.activate()
        other.activate()
        assert np.frombuffer(buffer.push(other).read(), np.float32).tolist() == [3, 6, 9, 12]


def test_a_closed_device_is_mirrored_anew(device: Device) -> None:
    buffer = Buffer((4,), parse("R"))
    with Device() as closing:
        buffer.set(numbers(4))
        buffer.push(closing)
    assert np.frombuffer(buffer.push(device).read(), np.float32).tolist() == [1, 2, 3, 4]
    assert buffer.pushes == 2


@pytest.mark.parametrize("use", ["pull", "push"])
def test_content_lost_with_a_closed_device_is_an_error(device: Device, use: str) -> None:
    buffer = Buffer((4,), parse("R"))
    with Device() as closing:
        buffer.set(numbers(4))
        overwrite(buffer, closing, 2 * numbers(4))
    actions: dict[str, Callable[[], object]] = {
        "pull": buffer.pull,
        "push": lambda: buffer.push(device),
    }
    with pytest.raises(DeviceError, match="lost"):
        actions[use]()
    buffer.set(3 * numbers(4))
    np.testing.assert_array_equal(buffer.pull(), 3 * numbers(4))
    assert buffer.push(device).size == 16


def test_release_gives_up_the_device_copy_only(device: Device) -> None:
    buffer = Buffer((4,), parse("R"))
    buffer.set(numbers(4))
    first = buffer.push(device)
    buffer.release()
    buffer.release()
    second = buffer.push(device)
    assert second is not first
    assert np.frombuffer(second.read(), np.float32).tolist() == [1, 2, 3, 4]


def test_shaders_see_the_last_of_several_writes(
    device: Device, scale: Callable[[Device], Program]
) -> None:
    source, out = Buffer((8,), parse("R")), Buffer((8,), parse("R"))
    source.push(device)  # zeros first
    for value in range(1, 4):
        for content in (np.nan, value):
            source.set(np.full(8, content, np.float32))
            source.push(device).bind_to_storage_buffer(0)
        out.push(device).bind_to_storage_buffer(1)
        program = scale(device)
        program.set({"count": 8, "factor": 1.0})
        program.dispatch((2, 1, 1))
        device.barrier()
        out.mark_written()
        np.testing.assert_array_equal(out.pull(), np.full(8, value))


@pytest.mark.parametrize(("vendor", "waits"), [("NVIDIA Corporation", 1), ("Mesa", 0)])
def test_a_write_waits_for_copies_of_its_buffer_where_it_would_come_first(
    device: Device, monkeypatch: pytest.MonkeyPatch, vendor: str, waits: int
) -> None:
    reorders = device.capabilities.reorders_writes  # whatever vendor it is taken for
    told = replace(device.capabilities, vendor=vendor)
    monkeypatch.setattr(device, "capabilities", told)
    waited: list[bool] = []
    wait = device.wait
    monkeypatch.setattr(device, "wait", lambda: (waited.append(True), wait()))
    origin, target, other = (Buffer((2, 4), parse("R")) for _ in range(3))
    for buffer, first in ((origin, 1), (target, 2), (other, 3)):
        buffer.set(first * numbers(2, 4))
        buffer.push(device)
    target.copy_from(origin, device)
    target.set(5 * numbers(2, 4))
    other.set(7 * numbers(2, 4))
    for buffer in (other, target):  # nothing was copied to or from the first
        buffer.push(device)
        assert len(waited) == (waits if buffer is target else 0)
    origin.set(9 * numbers(2, 4))  # by now its copy is known to be over
    origin.push(device)
    assert len(waited) == waits
    other.copy_from(target, device)
    target.set(6 * numbers(2, 4))  # what was copied from it is not what comes later
    target.push(device)
    assert len(waited) == 2 * waits
    if waits or not reorders:  # else the write may come first
        np.testing.assert_array_equal(other.pull(), 5 * numbers(2, 4))


def test_what_is_known_of_a_buffers_copies_goes_with_it(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GL gives its name to another buffer, which would wait for nothing."""
    told = replace(device.capabilities, vendor="NVIDIA Corporation")
    monkeypatch.setattr(device, "capabilities", told)
    device.activate()
    monkeypatch.setattr(device, "wait", lambda: pytest.fail("nothing was copied to it"))
    origin, copied = device.context.buffer(numbers(4)), device.context.buffer(reserve=16)
    device.copy_buffer(copied, origin, 16)
    name = copied.glo
    del copied
    device.collect_garbage()
    later = device.context.buffer(reserve=16)
    later._glo = name  # as by drivers that give names again, which Mesa does not
    device.write_buffer(later, numbers(4))
    assert later.read() == numbers(4).tobytes()
