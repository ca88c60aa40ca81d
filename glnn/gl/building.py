"""Shaders compiled and linked while Python's other threads run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_uint, c_void_p
from typing import Any

from glnn.errors import ShaderError
from glnn.gl.device import Device
from glnn.gl.source import Source

VERTEX, FRAGMENT, COMPUTE = 0x8B31, 0x8B30, 0x91B9
COMPILED, LINKED, LOG_LENGTH = 0x8B81, 0x8B82, 0x8B84
INTERLEAVED, RETRIEVABLE = 0x8C8C, 0x8257
EMPTY = "void main() {}\n"
STUB = "layout(local_size_x = 1) in;\n" + EMPTY


def compute_program(device: Device, source: Source, keep: bool = False) -> int:
    """GL's name of the linked compute shader.

    keep: whether its binary is asked for later. Raises ShaderError with the driver's message.
    """
    return _program(device, source, {COMPUTE: source}, (), keep)


def feedback_program(
    device: Device, source: Source, varyings: Sequence[str], keep: bool = False
) -> int:
    """GL's name of the linked vertex shader whose `varyings` are captured, interleaved.

    Raises ShaderError with the driver's message.
    """
    header = device.capabilities.header("feedback")  # without a second stage none links
    stages = {VERTEX: source, FRAGMENT: _plain("(no pixels)", header + EMPTY)}
    return _program(device, source, stages, varyings, keep)


def any_shader(device: Device, stage: int) -> int:
    """GL's name of some shader of `stage` that compiled, for as long as the device."""
    kind, body = ("compute", STUB) if stage == COMPUTE else ("feedback", EMPTY)
    return _shader(device, stage, _plain("(nothing)", device.capabilities.header(kind) + body))


def _plain(name: str, text: str) -> Source:
    return Source(name, text, tuple((name, i) for i, _ in enumerate(text.splitlines(), 1)))


def _program(
    device: Device,
    source: Source,
    stages: dict[int, Source],
    varyings: Sequence[str],
    keep: bool,
) -> int:
    slow = device.functions.slow
    with owned(device, slow("glCreateProgram", c_uint)()) as program:
        shaders: list[int] = []
        try:
            for stage, text in stages.items():
                shaders.append(_shader(device, stage, text))
                slow("glAttachShader", None, c_uint, c_uint)(program, shaders[-1])
            if varyings:
                names = (c_char_p * len(varyings))(*(name.encode() for name in varyings))
                capture = slow("glTransformFeedbackVaryings", None, c_uint, c_int, c_void_p, c_uint)
                capture(program, len(varyings), names, INTERLEAVED)
            if keep:
                slow("glProgramParameteri", None, c_uint, c_uint, c_int)(program, RETRIEVABLE, 1)
            slow("glLinkProgram", None, c_uint)(program)
        finally:
            for shader in shaders:
                slow("glDetachShader", None, c_uint, c_uint)(program, shader)
                slow("glDeleteShader", None, c_uint)(shader)
        if not linked(device, program):
            raise _failed(device, "link", source, _log(device, "Program", program))
    return program


@contextmanager
def owned(device: Device, program: int) -> Iterator[int]:
    """GL's name of a program, which is deleted where what is done inside fails."""
    try:
        yield program
    except BaseException:
        device.functions.slow("glDeleteProgram", None, c_uint)(program)
        raise


def linked(device: Device, program: int) -> bool:
    """Return True where a program is linked and can be run."""
    return _asked(device, "glGetProgramiv", program, LINKED) != 0


def _asked(device: Device, function: str, name: int, what: int) -> int:
    found = c_int()
    device.functions.slow(function, None, c_uint, c_uint, c_void_p)(name, what, byref(found))
    return found.value


def _shader(device: Device, stage: int, source: Source) -> int:
    slow = device.functions.slow
    shader: int = slow("glCreateShader", c_uint, c_uint)(stage)
    try:
        raw = source.text.encode()
        text, length = c_char_p(raw), c_int(len(raw))
        put: Callable[..., Any]
        put = slow("glShaderSource", None, c_uint, c_int, c_void_p, c_void_p)
        put(shader, 1, byref(text), byref(length))
        slow("glCompileShader", None, c_uint)(shader)
        if not _asked(device, "glGetShaderiv", shader, COMPILED):
            raise _failed(device, "compile", source, _log(device, "Shader", shader))
    except BaseException:
        slow("glDeleteShader", None, c_uint)(shader)
        raise
    return shader


def _log(device: Device, kind: str, name: int) -> str:
    """Return the driver's info log of a shader or a program."""
    length = _asked(device, f"glGet{kind}iv", name, LOG_LENGTH)
    text = ctypes.create_string_buffer(max(length, 0) + 1)
    kinds = c_uint, c_int, c_void_p, c_void_p
    device.functions.slow(f"glGet{kind}InfoLog", None, *kinds)(name, len(text), None, text)
    return text.value.decode("utf-8", "replace")


def _failed(device: Device, step: str, source: Source, log: str) -> ShaderError:
    while device.context.error != "GL_NO_ERROR":
        device.check_reset(f"{step} {source.name}")  # a lost context fails at everything
    device.check_reset(f"{step} {source.name}")
    offers = device.capabilities
    limits = (
        f"; at most {offers.max_compute_work_group_invocations} invocations and "
        f"{offers.max_compute_shared_memory_size} bytes of shared memory a workgroup"
    )
    return ShaderError(
        f"{step}: {source.name} on {offers.renderer}"
        f"{limits if offers.compute else ''}\n{source.explain(log)}"
    )
