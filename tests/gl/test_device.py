"""Opening, choosing, using and closing devices."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable
from subprocess import CompletedProcess

import numpy as np
import pytest

from glnn.core.layout import parse
from glnn.core.settings import Settings
from glnn.errors import DeviceError
from glnn.gl import Buffer, DataTexture, Device, NoDeviceError, Program, Timer, gpus
from glnn.gl.egl import Egl

Run = Callable[..., CompletedProcess[str]]
MakeProgram = Callable[[Device], Program]


def in_thread(work: Callable[[], object]) -> object:
    """What `work` gives in another thread: its result, or the error it raised."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except DeviceError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def test_a_fresh_device_has_no_error_pending(device: Device) -> None:
    with Device() as fresh:
        assert fresh.context.error == "GL_NO_ERROR"
    device.activate()


def test_a_chosen_gpu_by_index_and_by_name(device: Device) -> None:
    offered = [gpu for gpu in gpus() if gpu.error is None]
    if not offered:
        pytest.skip("EGL lists no devices here")
    first = offered[0]
    for choice in (first.index, str(first.index)):
        with Device(gpu=choice) as chosen:
            assert chosen.capabilities.platform == f"EGL device {first.index}"
            assert chosen.capabilities.renderer == first.renderer
    for name in (first.renderer[1:6].upper(), first.vendor[:4].lower()):
        with Device(gpu=name) as chosen:
            text = chosen.capabilities.renderer + chosen.capabilities.vendor
            assert name.lower() in text.lower()


@pytest.mark.parametrize("wrong", [99, "99", -1])
def test_an_index_that_is_not_there(wrong: int | str) -> None:
    if not gpus():
        pytest.skip("EGL lists no devices here")
    with pytest.raises(NoDeviceError, match=f"EGL device {wrong}.*indices are 0 to") as caught:
        Device(gpu=wrong)
    assert [attempt.what for attempt in caught.value.attempts] == [f"EGL device {wrong}"]


def test_a_name_that_no_gpu_has_tells_the_names_there_are(device: Device) -> None:
    with pytest.raises(NoDeviceError, match="no usable GPU 'voodoo'") as caught:
        Device(gpu="voodoo")
    assert device.capabilities.renderer in str(caught.value)
    assert any(attempt.step == "its name" for attempt in caught.value.attempts)


def test_settings_choose_where_arguments_do_not() -> None:
    settings = Settings(gpu="voodoo", limits="es31-minimum", debug=False)
    with pytest.raises(NoDeviceError, match="voodoo"):
        Device(settings=settings)
    with Device(gpu="", settings=settings) as opened:
        assert opened.capabilities.minimum and not opened.debug


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"limits": "es20"}, "limits must be 'es31-minimum'"),
        ({"platform": "wayland"}, "platform must be one of"),
        ({"version": (2, 0)}, "version must be one of"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        Device(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("platform", ["device", "surfaceless", "default"])
def test_each_egl_platform_computes(platform: str, scale: MakeProgram) -> None:
    try:
        opened = Device(platform=platform)
    except NoDeviceError as error:
        pytest.skip(str(error))
    with opened:
        assert opened.capabilities.platform.startswith(f"EGL {platform}")
        check_scale(opened, scale(opened))


@pytest.mark.parametrize("version", [(3, 3), (4, 3)])
def test_desktop_gl(version: tuple[int, int], scale: MakeProgram, fetch: MakeProgram) -> None:
    try:
        opened = Device(version=version)
    except NoDeviceError as error:
        pytest.skip(str(error))
    with opened:
        assert opened.capabilities.api == "gl" and opened.capabilities.version >= version
        check_fetch(opened, fetch(opened))
        if opened.capabilities.compute:
            check_scale(opened, scale(opened))


def check_scale(device: Device, program: Program, factor: float = 2.0) -> None:
    values = np.arange(10, dtype=np.float32).reshape(2, 5)
    a, b = Buffer((2, 5), parse("R")), Buffer((2, 5), parse("R"))
    a.set(values)
    a.push(device).bind_to_storage_buffer(0)
    b.push(device).bind_to_storage_buffer(1)
    device.activate()
    program.set({"count": 16, "factor": factor})
    program.dispatch((4, 1, 1))
    device.barrier()
    b.mark_written()
    np.testing.assert_array_equal(b.pull(), factor * values)


def check_fetch(device: Device, program: Program) -> None:
    values = np.arange(12, dtype=np.float32)
    a, b = Buffer((12,), parse("R")), Buffer((12,), parse("R"))
    a.set(values)
    texture = DataTexture(device, 12, "rgba32f")
    texture.copy_from(a.push(device))
    out = b.push(device)
    device.activate()
    texture.bind(0)
    program.set({"data": 0, "factor": 3.0})
    program.capture(program.vertex_array(), 3, 1, out)
    b.mark_written()
    np.testing.assert_array_equal(b.pull(), 3 * values)


def test_two_devices_used_alternately(scale: MakeProgram, fetch: MakeProgram) -> None:
    with Device() as one, Device() as two:
        programs = {one: scale(one), two: scale(two)}
        captures = {one: fetch(one), two: fetch(two)}
        for factor in (2.0, 3.0, 4.0):
            for device in (one, two):
                check_scale(device, programs[device], factor)
                check_fetch(device, captures[device])
        one.close()
        check_scale(two, programs[two])
        assert two.context.error == "GL_NO_ERROR"


def test_dropped_objects_are_freed_on_their_own_device() -> None:
    with Device() as one, Device() as two:
        dropped, kept = Buffer((4,), parse("R")), Buffer((4,), parse("R"))
        names = dropped.push(one).glo, kept.push(two).glo
        kept.set(np.ones(4, np.float32))
        kept.push(two)
        del dropped  # while the other device is current
        two.activate()
        assert is_alive(two, "Buffer", names[1])
        one.activate()
        assert not is_alive(one, "Buffer", names[0])


def is_alive(device: Device, kind: str, name: int) -> bool:
    ask = device.load(f"glIs{kind}", ctypes.c_ubyte, ctypes.c_uint)
    return bool(ask(name))


def count_alive(device: Device, kind: str) -> int:
    return sum(is_alive(device, kind, name) for name in range(1, 4096))


def test_dropping_things_leaves_no_gl_objects(scale: MakeProgram, fetch: MakeProgram) -> None:
    kinds = ("Buffer", "Program", "Shader", "Texture", "VertexArray", "Query")
    with Device() as device:

        def use_and_drop(times: int) -> list[int]:
            for _ in range(times):
                check_fetch(device, fetch(device))
                check_scale(device, scale(device))
                Timer(device).prove(lambda: None)
            gc.collect()
            device.activate()
            return [count_alive(device, kind) for kind in kinds]

        assert use_and_drop(1) == use_and_drop(10)


def test_the_wrong_thread_gets_an_error(device: Device, fetch: MakeProgram) -> None:
    buffer = Buffer((4,), parse("R"))
    buffer.set(np.ones(4, np.float32))
    buffer.push(device)
    buffer.mark_written()
    other = Buffer((4,), parse("R"))
    for work in (
        device.activate,
        buffer.pull,
        lambda: other.push(device),
        lambda: fetch(device),
        lambda: DataTexture(device, 4, "rgba32f"),
    ):
        error = in_thread(work)
        assert isinstance(error, DeviceError) and "thread" in str(error)
    np.testing.assert_array_equal(buffer.pull(), np.ones(4))


def test_a_device_in_another_thread(fetch: MakeProgram) -> None:
    def work() -> str:
        with Device() as device:
            check_fetch(device, fetch(device))
            return "right"

    assert in_thread(work) == "right"


def test_use_after_close(scale: MakeProgram, fetch: MakeProgram) -> None:
    device = Device()
    program, capture = scale(device), fetch(device)
    vertices = capture.vertex_array()
    buffer = Buffer((4,), parse("R"))
    out = buffer.push(device)
    device.close()
    device.close()
    assert device.closed and "closed" in repr(device)
    for use in (
        device.activate,
        device.finish,
        lambda: device.check_always("x"),
        lambda: device.context,
        lambda: program.set({"factor": 1.0}),
        lambda: program.dispatch((1, 1, 1)),
        lambda: capture.capture(vertices, 1, 1, out),
        lambda: scale(device),
        lambda: buffer.push(device),
        lambda: DataTexture(device, 4, "rgba32f"),
    ):
        with pytest.raises(DeviceError, match="closed"):
            use()


def test_closing_in_another_thread_leaves_the_others_alone(scale: MakeProgram) -> None:
    device, other = Device(), Device()
    in_thread(device.close)
    with pytest.raises(DeviceError, match="closed"):
        device.activate()
    with other:
        check_scale(other, scale(other))


def current_context() -> int | None:
    context: int | None = Egl().eglGetCurrentContext()
    return context


def test_dropping_a_device_destroys_its_context(fetch: MakeProgram) -> None:
    count = 30 if os.environ.get("GLNN_EXHAUSTIVE") else 10
    for _ in range(count):  # a driver that keeps contexts would run out of something
        device = Device()
        check_fetch(device, fetch(device))
        assert current_context() is not None
        del device
        gc.collect()
        assert current_context() is None


def test_contexts_opened_to_look_are_destroyed() -> None:
    gpus()
    assert current_context() is None
    with pytest.raises(NoDeviceError):
        Device(gpu="voodoo", platform="device")
    assert current_context() is None


def test_errors_name_the_step(device: Device) -> None:
    device.activate()
    enable = device.load("glEnable", None, ctypes.c_uint)
    enable(0x1234)
    with pytest.raises(DeviceError, match="the step: GL_INVALID_ENUM"):
        device.check("the step")
    device.check("the next step")
    with Device(settings=Settings(debug=False)) as quiet:
        quiet.load("glEnable", None, ctypes.c_uint)(0x1234)
        quiet.check("the step")
        with pytest.raises(DeviceError, match="GL_INVALID_ENUM"):
            quiet.check_always("the step")


def test_a_function_that_the_driver_lacks(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device._gl, "load_opengl_function", lambda name: 0)
    with pytest.raises(DeviceError, match=r"has no glTexBuffer$"):
        device.load("glTexBuffer", None)


EXIT = """
import glnn.gl, numpy as np
from glnn.core.layout import parse
devices = [glnn.gl.Device() for _ in range(2)]
buffer = glnn.gl.Buffer((1000,), parse("R"))
buffer.set(np.ones(1000, np.float32))
copy = buffer.push(devices[0])
print("done")
"""


@pytest.mark.parametrize(
    "end", ["", "raise SystemExit(0)", "import gc; devices.append(devices); del devices"]
)
def test_no_crash_at_exit_without_close(python: Run, end: str) -> None:
    result = python(EXIT + end)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_importing_opens_no_gl(python: Run) -> None:
    code = "import sys, glnn.gl; print({'moderngl', 'glfw'} & set(sys.modules))"
    result = python(code)
    assert result.stdout == "set()\n", result
