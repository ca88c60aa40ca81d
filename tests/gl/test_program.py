"""Programs: uniforms, dispatch, capture, and what a shader that does not build says."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from glnn.core.layout import parse
from glnn.errors import DeviceError, LimitError, ShaderError
from glnn.gl import Buffer, DataTexture, Device, Program, Source

MakeProgram = Callable[[Device], Program]
MakeSource = Callable[[Device, str, str], Source]

BROKEN = """layout(local_size_x = 4) in;
layout(std430, binding = 0) buffer Out { float b[]; };
void main() {
    b[0] = 1.0;
    b[1] = missing;
}
"""


def test_uniforms_are_the_plain_ones(
    device: Device, scale: MakeProgram, fetch: MakeProgram
) -> None:
    assert scale(device).uniforms == {"count", "factor"}
    assert fetch(device).uniforms == {"data", "factor"}


def run_scale(device: Device, program: Program, values: dict[str, int | float]) -> float:
    a, b = Buffer((4,), parse("R")), Buffer((4,), parse("R"))
    a.set(np.ones(4, np.float32))
    a.push(device).bind_to_storage_buffer(0)
    b.push(device).bind_to_storage_buffer(1)
    program.set(values)
    program.dispatch((1, 1, 1))
    device.barrier()
    b.mark_written()
    return float(b.pull()[0])


def test_uniforms_are_written_when_the_mapping_changes(device: Device, scale: MakeProgram) -> None:
    program = scale(device)
    two: dict[str, int | float] = {"count": 4, "factor": 2.0, "unused": 7}
    three: dict[str, int | float] = {"count": 4, "factor": 3}
    assert run_scale(device, program, two) == 2.0
    assert run_scale(device, program, three) == 3.0
    assert run_scale(device, program, two) == 2.0
    assert run_scale(device, program, two) == 2.0


def test_the_same_mapping_is_not_written_again(device: Device, scale: MakeProgram) -> None:
    program = scale(device)
    values: dict[str, int | float] = {"count": 4, "factor": 2.0}
    assert run_scale(device, program, values) == 2.0
    for function, arguments in program.changes({}, {"factor": 9.0}):  # it is the current one
        function(*arguments)
    assert run_scale(device, program, values) == 9.0


def test_a_compile_error_shows_file_line_and_text(device: Device, scale: MakeProgram) -> None:
    scale(device)  # skips where there is no compute
    header = device.capabilities.header("compute")
    origin = [("(header)", i) for i, _ in enumerate(header.splitlines(), 1)]
    origin += [("common/a.glsl", i) for i in (1, 2, 3, 4)] + [("op/b.comp", 17), ("op/b.comp", 18)]
    with pytest.raises(ShaderError) as caught:
        Program.compute(device, Source("op/b.comp", header + BROKEN, tuple(origin)))
    message = str(caught.value)
    assert message.startswith(f"compile: op/b.comp on {device.capabilities.renderer}")
    assert "op/b.comp:17: " in message and "    b[1] = missing;" in message
    assert f"{device.capabilities.max_compute_work_group_invocations} invocations" in message
    device.check_always("nothing left behind")


@pytest.mark.parametrize(
    "driver_says, expected",
    [
        ("0:2(7): error: `x' undeclared", "f:9: error: `x' undeclared\n    two"),  # Mesa
        ("0(2) : error C1503: undefined", "f:9: error C1503: undefined\n    two"),  # NVIDIA
        ("ERROR: 0:2: 'x' : undeclared", "f:9: 'x' : undeclared\n    two"),  # ANGLE, Mali, Adreno
        ("ERROR: 0:99: beyond the end", "ERROR: 0:99: beyond the end"),
        ("out of registers\n\n1 error", "out of registers\n1 error"),
    ],
)
def test_positions_in_the_messages_of_drivers(driver_says: str, expected: str) -> None:
    source = Source("f", "one\n  two\n", (("f", 8), ("f", 9)))
    assert source.explain(driver_says) == expected


def test_each_line_of_a_source_has_an_origin() -> None:
    with pytest.raises(ValueError, match="f: "):
        Source("f", "one\ntwo\n", (("f", 1),))


def test_a_link_failure(device: Device, source: MakeSource) -> None:
    body = "out highp vec4 result;\nvoid other();\nvoid main() { result = vec4(0.0); other(); }\n"
    with pytest.raises(ShaderError, match=r"^(compile|link): test\.glsl on "):  # driver's choice
        Program.feedback(device, source(device, "feedback", body), ("result",))
    plain = "out highp vec4 result;\nvoid main() { result = vec4(0.0); }\n"
    with pytest.raises(ShaderError, match=r"^link: test\.glsl on "):
        Program.feedback(device, source(device, "feedback", plain), ("nothing",))
    device.check_always("nothing left behind")


@pytest.mark.parametrize("size", ["local_size_x = 129", "local_size_x = 16, local_size_y = 9"])
def test_a_workgroup_over_the_lowered_limit(
    minimum_device: Device, source: MakeSource, size: str
) -> None:
    body = f"layout({size}) in;\nvoid main() {{}}\n"
    with pytest.raises(LimitError, match="128 invocations"):
        Program.compute(minimum_device, source(minimum_device, "compute", body))


def test_a_workgroup_too_large_for_the_driver(device: Device, source: MakeSource) -> None:
    body = "layout(local_size_x = 65536) in;\nvoid main() {}\n"
    with pytest.raises(ShaderError, match=r"test.glsl:1|link: "):
        Program.compute(device, source(device, "compute", body))


def test_more_storage_blocks_than_the_lowered_limit(
    minimum_device: Device, source: MakeSource
) -> None:
    blocks = [f"layout(std430, binding = {i}) buffer B{i} {{ float b{i}[]; }};" for i in range(5)]
    sums = " ".join(f"b0[0] += b{i}[0];" for i in range(1, 5))
    body = "\n".join(["layout(local_size_x = 1) in;", *blocks, f"void main() {{ {sums} }}\n"])
    with pytest.raises(LimitError, match="5 storage blocks, the device allows 4"):
        Program.compute(minimum_device, source(minimum_device, "compute", body))


def test_more_workgroups_than_allowed(device: Device, scale: MakeProgram) -> None:
    program = scale(device)
    most = device.capabilities.max_compute_work_group_count
    for axis in range(3):
        groups = [1, 1, 1]
        groups[axis] = most[axis] + 1
        with pytest.raises(LimitError, match="workgroups, the device allows"):
            program.dispatch((groups[0], groups[1], groups[2]))
    device.check_always("GL was not asked")


def test_capture_without_a_framebuffer_is_noticed(fetch: MakeProgram) -> None:
    with Device() as device:
        program, out = fetch(device), Buffer((4,), parse("R")).push(device)
        texture = DataTexture(device, 4, "rgba32f")
        texture.bind(0)
        program.set({"data": 0, "factor": 1.0})
        device.load("glBindFramebuffer", None, ctypes.c_uint, ctypes.c_uint)(0x8D40, 0)
        device.check_always("bind no framebuffer")
        if device.load("glCheckFramebufferStatus", ctypes.c_int, ctypes.c_uint)(0x8D40) == 0x8CD5:
            pytest.skip("a context with a framebuffer of its own")
        with pytest.raises(DeviceError, match=r"capture test\.glsl: GL_INVALID_FRAMEBUFFER"):
            program.capture(program.vertex_array(), 1, 1, out)


def test_the_first_capture_is_checked_outside_debug_mode(fetch: MakeProgram) -> None:
    with Device() as device:
        device.debug = False
        program, out = fetch(device), Buffer((4,), parse("R")).push(device)
        vertices = program.vertex_array()
        device.load("glEnable", None, ctypes.c_uint)(0x1234)
        with pytest.raises(DeviceError, match=r"capture test\.glsl: GL_INVALID_ENUM"):
            program.capture(vertices, 1, 1, out)


def test_capture_in_a_buffer_that_is_too_small(device: Device, fetch: MakeProgram) -> None:
    out = Buffer((8,), parse("R")).push(device)
    with pytest.raises(DeviceError, match="3 vertices of 16 bytes do not fit a buffer of 32 bytes"):
        program = fetch(device)
        program.capture(program.vertex_array(), 3, 1, out)


def test_two_varyings_are_captured_side_by_side(device: Device, source: MakeSource) -> None:
    body = (
        "out highp float one;\nout highp vec2 two;\n"
        "void main() { one = float(gl_VertexID); two = vec2(10.0, 20.0) + one; }\n"
    )
    program = Program.feedback(device, source(device, "feedback", body), ("one", "two"))
    out = Buffer((2, 4), parse("R"))
    out.set(np.full((2, 4), -1, np.float32))
    program.capture(program.vertex_array(), 2, 1, out.push(device))
    out.mark_written()
    expected = [0, 10, 20, 1, 11, 21, -1, -1]  # and nothing behind what was captured
    assert out.pull().reshape(-1).tolist() == expected


@pytest.mark.parametrize(
    ("declared", "floats"),
    [("float", 1), ("vec3", 3), ("vec4", 4), ("mat4", 16), ("int", 1), ("ivec3", 3), ("ivec4", 4)],
)
def test_what_a_vertex_captures(device, source, declared, floats) -> None:
    body = (
        f"flat out highp {declared} result;\nvoid main() {{ result = {declared}(gl_VertexID); }}\n"
    )
    program = Program.feedback(device, source(device, "feedback", body), ("result",))
    assert program.stride == 4 * floats
    whole = "flat out highp uvec2 result;\nvoid main() { result = uvec2(gl_VertexID); }\n"
    with pytest.raises(ShaderError, match="a captured varying of type 0x8DC6: no float or int"):
        Program.feedback(device, source(device, "feedback", whole), ("result",))


def test_instances_and_attributes(device: Device, source: MakeSource) -> None:
    body = (
        "in highp vec3 one;\nin highp float two;\nout highp float result;\n"
        "void main() {\n"
        "    result = one.x + one.y + one.z + 10.0 * two + 100.0 * float(gl_InstanceID);\n}"
    )
    program = Program.feedback(device, source(device, "feedback", body + "\n"), ("result",))
    one, two, out = Buffer((6,), parse("R")), Buffer((2,), parse("R")), Buffer((7,), parse("R"))
    one.set(np.array([1, 2, 3, 4, 5, 6], np.float32))
    two.set(np.array([1, 2], np.float32))
    out.set(np.full(7, -1, np.float32))
    array = program.vertex_array({"one": (one.push(device), 3), "two": (two.push(device), 1)})
    program.capture(array, 2, 3, out.push(device))
    out.mark_written()
    assert out.pull().tolist() == [16, 35, 116, 135, 216, 235, -1]


def test_instances_count_for_the_room(device: Device, fetch: MakeProgram) -> None:
    program, out = fetch(device), Buffer((20,), parse("R")).push(device)
    with pytest.raises(DeviceError, match="6 vertices of 16 bytes do not fit a buffer of 80 bytes"):
        program.capture(program.vertex_array(), 2, 3, out)


def test_more_captured_components_than_the_lowered_limit(
    minimum_device: Device, source: MakeSource
) -> None:
    names = [f"v{i}" for i in range(17)]  # 68 components
    body = "\n".join(f"out highp vec4 {name};" for name in names)
    body += "\nvoid main() { " + " ".join(f"{n} = vec4(gl_VertexID);" for n in names) + " }\n"
    with pytest.raises((LimitError, ShaderError), match=r"68 captured components|^link: "):
        Program.feedback(minimum_device, source(minimum_device, "feedback", body), tuple(names))


def test_a_compute_program_captures_nothing(device: Device, scale: MakeProgram) -> None:
    with pytest.raises(DeviceError, match="captures nothing"):
        scale(device).vertex_array()
