"""What a device says it can do."""

from __future__ import annotations

import ctypes
import dataclasses
from ctypes import c_uint
from typing import Any

import pytest

from glnn.gl import Capabilities, Device, device_info

ES31 = Capabilities("es", (3, 1), "V", "R", "", "", "here", max_texture_size=4096)
GUARANTEED: dict[str, Any] = {  # OpenGL ES 3.1, tables of implementation-dependent values
    "max_compute_work_group_invocations": 128,
    "max_compute_work_group_size": (128, 128, 64),
    "max_compute_work_group_count": (65535, 65535, 65535),
    "max_compute_shared_memory_size": 16384,
    "max_compute_shader_storage_blocks": 4,
    "max_shader_storage_block_size": 134217728,
    "shader_storage_buffer_offset_alignment": 256,
    "max_vertex_texture_image_units": 16,
    "max_texture_size": 2048,
    "max_transform_feedback_interleaved_components": 64,
    "max_transform_feedback_separate_attribs": 4,
    "max_array_texture_layers": 256,
    "max_texture_buffer_size": 0,
    "max_vertex_uniform_components": 1024,
    "max_compute_uniform_components": 512,
}


def test_a_device_reports_at_least_what_es_guarantees(device: Device) -> None:
    found = device.capabilities
    assert found.api == "es" and found.version >= (3, 0) and found.feedback
    assert found.renderer and found.vendor and found.version_text.startswith("OpenGL ES 3.")
    if not found.compute:
        pytest.skip("no compute shaders here")
    for name, least in GUARANTEED.items():
        value = getattr(found, name)
        if name == "shader_storage_buffer_offset_alignment":
            assert 0 < value <= least
        elif isinstance(value, tuple):
            assert all(a >= b for a, b in zip(value, least, strict=True)), name
        else:
            assert value >= least, name


def test_minimum_limits_are_those_of_the_specification(minimum_device: Device) -> None:
    found = minimum_device.capabilities
    assert found.minimum
    if not found.compute:
        pytest.skip("no compute shaders here")
    assert {name: getattr(found, name) for name in GUARANTEED} == GUARANTEED
    assert found.limits().keys() == GUARANTEED.keys()


def test_every_limit_is_lowered() -> None:
    huge: dict[str, Any] = {
        name: tuple(2 * n for n in least) if isinstance(least, tuple) else 2 * least
        for name, least in GUARANTEED.items()
    }
    assert dataclasses.replace(ES31, **huge).with_minimum().limits() == GUARANTEED


def test_minimum_never_raises_a_limit() -> None:
    assert ES31.with_minimum().max_texture_size == 2048
    small = dataclasses.replace(ES31, max_texture_size=1024)
    assert small.with_minimum().max_texture_size == 1024
    es30 = dataclasses.replace(ES31, version=(3, 0)).with_minimum()
    assert es30.max_compute_work_group_invocations == 0
    assert es30.shader_storage_buffer_offset_alignment == 0


@pytest.mark.parametrize(
    "api, version, compute, feedback",
    [
        ("es", (3, 0), False, True),
        ("es", (3, 1), True, True),
        ("es", (3, 2), True, True),
        ("gl", (3, 2), False, False),
        ("gl", (3, 3), False, True),
        ("gl", (4, 2), False, True),
        ("gl", (4, 3), True, True),
    ],
)
def test_features_follow_from_the_version(
    api: str, version: tuple[int, int], compute: bool, feedback: bool
) -> None:
    found = dataclasses.replace(ES31, api=api, version=version)
    assert (found.compute, found.feedback) == (compute, feedback)
    reason = found.why_no_compute()
    assert (reason is None) == compute
    if reason is not None:
        assert "3.1" in reason and f"{version[0]}.{version[1]}" in reason and "R" in reason


def test_headers() -> None:
    precision = ["precision highp float;", "precision highp int;", "precision highp sampler2D;"]
    assert ES31.header("compute").splitlines() == ["#version 310 es", *precision]
    assert ES31.header("feedback").splitlines() == ["#version 300 es", *precision]
    desktop = dataclasses.replace(ES31, api="gl", version=(4, 3))
    assert desktop.header("compute") == "#version 430 core\n"
    assert desktop.header("feedback") == "#version 330 core\n"
    with pytest.raises(ValueError, match="stage"):
        ES31.header("fragment")


@pytest.mark.parametrize("api", ["es", "gl"])
def test_only_a_driver_known_to_needs_no_barrier_for_shared_memory(api: str) -> None:
    one, line = dataclasses.replace(ES31, api=api, version=(4, 3)), "#define BARRIER_SUFFICES 1"
    angle = "Google Inc. (NVIDIA Corporation)"
    vendors = {"NVIDIA Corporation": True, angle: False, "ARM": False, "Mesa": False}
    for vendor, suffices in vendors.items():
        made = dataclasses.replace(one, vendor=vendor)
        assert made.barrier_suffices == suffices
        assert (line in made.header("compute").splitlines()) == suffices
        assert line not in made.header("feedback")


def test_capabilities_are_frozen_and_checked() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ES31.renderer = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="api"):
        dataclasses.replace(ES31, api="vulkan")


@pytest.mark.parametrize(("vendor", "processors"), [("NVIDIA Corporation", 46), ("Mesa", 0)])
def test_nvidias_drivers_tell_how_many_processors_there_are(vendor, processors) -> None:
    asked = Capabilities.query(Told(vendor, {device_info.SM_COUNT_NV: 46}))
    assert asked.multiprocessors == processors


def test_a_driver_that_does_not_know_its_processors_leaves_no_error() -> None:
    context = Told("NVIDIA Corporation", {})
    assert Capabilities.query(context).multiprocessors == 0
    assert context.errors == []


class Told:
    """A context whose GL knows the integers `known` beside OpenGL ES 3.0's, which are all 1."""

    what = "nowhere"

    def __init__(self, vendor: str, known: dict[int, int]) -> None:
        own = (device_info.MAJOR_VERSION, device_info.MINOR_VERSION, device_info.NUM_EXTENSIONS)
        self.integers = dict(zip(own, (3, 0, 0), strict=True))
        self.integers |= dict.fromkeys(device_info.LIMITS.values(), 1) | known
        self.strings = {device_info.VENDOR: vendor, device_info.VERSION: "OpenGL ES 3.0"}
        self.errors: list[int] = []
        self.kept: list[Any] = []

    def load_opengl_function(self, name: str) -> int | None:
        functions: dict[str, tuple[Any, Any]] = {
            "glGetString": (ctypes.CFUNCTYPE(ctypes.c_void_p, c_uint), self.string),
            "glGetIntegerv": (ctypes.CFUNCTYPE(None, c_uint, ctypes.c_void_p), self.integer),
            "glGetError": (ctypes.CFUNCTYPE(c_uint), self.error),
        }
        if name not in functions:
            return ctypes.cast(ctypes.CFUNCTYPE(None)(lambda: None), ctypes.c_void_p).value
        kind, function = functions[name]
        self.kept.append(kind(function))
        return ctypes.cast(self.kept[-1], ctypes.c_void_p).value

    def string(self, key: int) -> int | None:
        self.kept.append(ctypes.create_string_buffer(self.strings.get(key, "").encode()))
        return ctypes.addressof(self.kept[-1])

    def integer(self, key: int, place: int) -> None:
        if key in self.integers:
            ctypes.cast(place, ctypes.POINTER(ctypes.c_int))[0] = self.integers[key]
        else:
            self.errors.append(0x0500)

    def error(self) -> int:
        return self.errors.pop() if self.errors else 0
