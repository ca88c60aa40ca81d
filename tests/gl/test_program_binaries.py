"""Programs from binaries: as good as compiled ones, and compiled anew where they are not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from ctypes import c_ubyte, c_uint
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.core.disk_cache import DiskCache
from glnn.core.layout import parse
from glnn.core.settings import Settings
from glnn.errors import LimitError
from glnn.gl import Buffer, Device, Program, Source
from tests.gl.conftest import FETCH, SCALE

MakeSource = Callable[[Device, str, str], Source]
STAGES = ["compute", "feedback"]
BODIES = {"compute": SCALE, "feedback": FETCH}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Device]]:
    """Opens devices that keep their programs in one folder; skips where drivers give none."""
    devices: list[Device] = []

    def open(**more: str) -> Device:
        devices.append(Device(settings=Settings(cache=tmp_path, debug=True), **more))
        devices[-1].activate()
        if not devices[-1].binaries.is_supported:
            pytest.skip("this driver gives no binaries")
        return devices[-1]

    yield open
    for device in devices:
        device.close()


def made(device: Device, source: MakeSource, stage: str) -> Program:
    one = source(device, stage, BODIES[stage])
    return (
        Program.compute(device, one)
        if stage == "compute"
        else Program.feedback(device, one, ("result",))
    )


def scaled(device: Device, program: Program) -> list[float]:
    """What a compute program makes of ones."""
    a, b = Buffer((4,), parse("R")), Buffer((4,), parse("R"))
    a.set(np.ones(4, np.float32))
    a.push(device).bind_to_storage_buffer(0)
    b.push(device).bind_to_storage_buffer(1)
    program.set({"count": 4, "factor": 2.5})
    program.dispatch((1, 1, 1))
    device.barrier()
    b.mark_written()
    return b.pull().tolist()


def numbered(device: Device, source: MakeSource) -> tuple[Program, list[float]]:
    """A program that captures two varyings, and what it makes of attributes."""
    body = (
        "in highp vec3 x;\nuniform highp float factor;\n"
        "out highp float one;\nout highp vec2 two;\n"
        "void main() { one = factor * x.z; two = x.xy + float(gl_InstanceID); }\n"
    )
    program = Program.feedback(device, source(device, "feedback", body), ("one", "two"))
    x, out = Buffer((6,), parse("R")), Buffer((12,), parse("R"))
    x.set(np.arange(6, dtype=np.float32))
    program.set({"factor": 10.0})
    program.capture(program.vertex_array({"x": (x.push(device), 3)}), 2, 2, out.push(device))
    out.mark_written()
    return program, out.pull().tolist()


@pytest.mark.parametrize("stage", STAGES)
def test_the_second_time_nothing_is_compiled(opened, source, stage) -> None:
    device = opened()
    first = made(device, source, stage)
    again = made(opened(), source, stage)
    assert (first.compiled, again.compiled) == (True, False)
    assert first.key == again.key is not None
    assert (first.name, first.uniforms, first.stride) == (again.name, again.uniforms, again.stride)
    by_key = Program.load_stored(device, first.key)
    assert by_key is not None and by_key.uniforms == first.uniforms


@pytest.mark.parametrize("stage", STAGES)
def test_programs_have_the_name_of_their_own_shader(opened, source, stage) -> None:
    """Two files may have one text: an error names the one that the program is of."""

    def renamed(*arguments: Any) -> Source:
        return replace(source(*arguments), name="other")

    first = made(opened(), source, stage)
    names = {made(opened(), one, stage).name for one in (source, renamed)}
    assert names == {first.name, "other"}


def test_a_compute_program_from_a_binary(opened, source) -> None:
    device = opened()
    assert scaled(device, made(device, source, "compute")) == [2.5] * 4
    device = opened()
    restored = made(device, source, "compute")
    assert not restored.compiled and scaled(device, restored) == [2.5] * 4


def test_a_vertex_shader_from_a_binary(opened, source) -> None:
    expected = [20, 0, 1, 50, 3, 4, 20, 1, 2, 50, 4, 5]
    program, found = numbered(opened(), source)
    assert program.compiled and found == expected
    program, found = numbered(opened(), source)
    assert not program.compiled and found == expected and program.stride == 12


def linked(device: Device, known: bytes, binary: bytes) -> bool:
    """Whether the driver itself makes a program of `binary`: ANGLE looks at its beginning only."""
    program = device.binaries._link(int(json.loads(known)["form"]), binary)
    if program is not None:
        device.binaries._delete(program)
    return program is not None


@pytest.mark.parametrize("stage", STAGES)
def test_what_the_driver_refuses_is_compiled(opened, source, stage, tmp_path) -> None:
    """Well under its checksum, as after an update of the driver."""
    device = opened()
    key = made(device, source, stage).key
    disk, name = DiskCache(tmp_path), f"programs/{key}"
    kept = disk.read(name)
    assert kept is not None
    binary, known = kept["binary"], kept["known"]
    cut = [] if linked(device, kept["known"], binary[:-9]) else [binary[:-9]]
    odd = [{**kept, "binary": other} for other in (b"", b"\0", binary[::-1], *cut)]
    odd += [{**kept, "known": other} for other in (b"", b"[]", b"{}", known.replace(b"m", b"n"))]
    odd += [{"known": known}, {}, {**kept, "known": known.replace(b"varyings", b"[")}]
    for parts in odd:
        assert disk.write(name, parts)
        assert Program.load_stored(device, key) is None
        assert disk.read(name) is None, "it is removed"
        device.check_always("nothing left behind")
    assert made(device, source, stage).compiled and disk.read(name) is not None


def test_binaries_count_what_they_capture(opened, source, tmp_path) -> None:
    device = opened()
    key = made(device, source, "feedback").key
    kept = DiskCache(tmp_path).read(f"programs/{key}")
    assert kept is not None
    other = kept["known"].replace(b'["result"]', b'["result", "more"]')
    assert other != kept["known"]
    DiskCache(tmp_path).write(f"programs/{key}", {**kept, "known": other})
    assert Program.load_stored(device, key) is None
    device.check_always("nothing left behind")


def test_limits_hold_for_binaries_too(opened, source) -> None:
    body = "layout(local_size_x = 256) in;\nvoid main() {}\n"
    device = opened()
    if device.capabilities.max_compute_work_group_size[0] < 256:
        pytest.skip("the device has no such workgroups")
    key = Program.compute(device, source(device, "compute", body)).key
    least = opened(limits="es31-minimum")
    with pytest.raises(LimitError, match="128 invocations"):
        Program.compute(least, source(least, "compute", body))
    assert key is not None
    with pytest.raises(LimitError, match="128 invocations"):
        Program.load_stored(least, key)


def test_programs_are_freed_whoever_drops_them(opened, source) -> None:
    device = opened()
    exists = device.load("glIsProgram", c_ubyte, c_uint)
    names = [made(device, source, stage).glo for stage in STAGES for _ in range(2)]
    device.perform(device.flush)
    device.activate()
    device.release()
    device.activate()
    assert not any(exists(name) for name in names)


def test_nothing_is_kept_where_nothing_may_be(source, tmp_path) -> None:
    for settings in (Settings(cache=tmp_path, cache_size=0), Settings()):
        with Device(settings=settings) as device:
            device.activate()
            assert made(device, source, "feedback").key is None
    assert not any(tmp_path.iterdir())


def test_a_key_has_all_that_a_binary_depends_on(opened) -> None:
    binaries = opened().binaries
    keys = {
        binaries.key("compute", "name", "text"),
        binaries.key("feedback", "name", "text"),
        binaries.key("compute", "name", "text "),
        binaries.key("feedback", "name", "text", ("a",)),
        binaries.key("feedback", "name", "text", ("a", "b")),
        binaries.key("feedback", "name", "text", ("ab",)),
        binaries.key("feedback", "other", "text", ("ab",)),
    }
    assert len(keys) == 7 and None not in keys


def test_two_processes_keep_the_same(opened, source, python, tmp_path) -> None:
    """One after the other: what another process kept, this one takes."""
    device = opened()
    first = made(device, source, "feedback")
    code = (
        "from glnn.gl import Device, Program\n"
        "device = Device()\n"
        f"found = Program.load_stored(device, {first.key!r})\n"
        "print(found.name, found.stride, found.compiled)\n"
    )
    done = python(code, GLNN_CACHE=str(tmp_path), GLNN_CACHE_SIZE="1G")
    assert done.stdout.split() == ["test.glsl", "16", "False"], done.stderr
    assert os.listdir(tmp_path) == ["programs"]
