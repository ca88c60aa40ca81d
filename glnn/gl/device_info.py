"""Capabilities of a GL context, queried once, and the memory that its device has free."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_ubyte, c_uint, c_uint64, c_void_p
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glnn.gl.context import Context

if TYPE_CHECKING:
    import moderngl


COMPUTE_ES, COMPUTE_GL = (3, 1), (4, 3)
BUFFERS_ES = (3, 2)  # textures that are buffers; GL has them from 3.1 on
FEEDBACK_ES, FEEDBACK_GL = (3, 0), (3, 3)
PRECISION = "".join(f"precision highp {kind};\n" for kind in ("float", "int", "sampler2D"))
BARRIER = "#define BARRIER_SUFFICES 1\n"  # read by common/barrier.glsl
SUBGROUPS = "#extension GL_KHR_shader_subgroup_arithmetic : require\n"

VENDOR, RENDERER, VERSION, GLSL_VERSION, EXTENSION = 0x1F00, 0x1F01, 0x1F02, 0x8B8C, 0x1F03
MAJOR_VERSION, MINOR_VERSION, NUM_EXTENSIONS = 0x821B, 0x821C, 0x821D
MAX_COMPUTE_WORK_GROUP_COUNT, MAX_COMPUTE_WORK_GROUP_SIZE = 0x91BE, 0x91BF
MAX_SHADER_STORAGE_BLOCK_SIZE = 0x90DE
LIMITS = {
    "max_vertex_texture_image_units": 0x8B4C,
    "max_texture_size": 0x0D33,
    "max_transform_feedback_interleaved_components": 0x8C8A,
    "max_transform_feedback_separate_attribs": 0x8C8B,
    "max_array_texture_layers": 0x88FF,
    "max_vertex_uniform_components": 0x8B4A,
}
MAX_TEXTURE_BUFFER_SIZE = 0x8C2B
COMPUTE_LIMITS = {
    "max_compute_work_group_invocations": 0x90EB,
    "max_compute_shared_memory_size": 0x8262,
    "max_compute_shader_storage_blocks": 0x90DB,
    "shader_storage_buffer_offset_alignment": 0x90DF,
    "max_compute_uniform_components": 0x8263,
}
SM_COUNT_NV = 0x933B  # of NV_shader_thread_group, which driver 580's ES knows but does not list
SUBGROUP_SIZE, SUBGROUP_STAGES, SUBGROUP_FEATURES = 0x9532, 0x9533, 0x9534
COMPUTE_STAGE, SUBGROUP_ARITHMETIC = 0x20, 0x4
Triple = tuple[int, int, int]
MINIMUM: dict[str, int | Triple] = {  # what OpenGL ES 3.1 guarantees, tables 20.40 to 20.48
    "max_compute_work_group_invocations": 128,
    "max_compute_work_group_size": (128, 128, 64),
    "max_compute_work_group_count": (65535, 65535, 65535),
    "max_compute_shared_memory_size": 16384,
    "max_compute_shader_storage_blocks": 4,
    "max_shader_storage_block_size": 2**27,
    "max_vertex_texture_image_units": 16,
    "max_texture_size": 2048,
    "max_transform_feedback_interleaved_components": 64,
    "max_transform_feedback_separate_attribs": 4,
    "max_array_texture_layers": 256,
    "max_texture_buffer_size": 0,  # from ES 3.2 on
    "max_vertex_uniform_components": 1024,
    "max_compute_uniform_components": 512,
}
MINIMUM_ALIGNMENT = 256
SOFTWARE = {  # software renderers, by a part of GL_RENDERER
    "swiftshader": "SwiftShader",
    "llvmpipe": "llvmpipe",
    "lavapipe": "lavapipe",
    "softpipe": "softpipe",
    "software rasterizer": "swrast",
    "swrast": "swrast",
    "basic render driver": "WARP",
    "apple software renderer": "Apple's software renderer",
}


@dataclass(frozen=True)
class Capabilities:
    """A context's version, names and limits.

    `api` is "es" or "gl". Limits have GL's names, are in bytes where they are sizes of memory, and
    0 where the version has no such limit. `minimum` is True where they were lowered on request.
    """

    api: str
    version: tuple[int, int]
    vendor: str
    renderer: str
    version_text: str
    glsl_text: str
    platform: str
    max_compute_work_group_invocations: int = 0
    max_compute_work_group_size: Triple = (0, 0, 0)
    max_compute_work_group_count: Triple = (0, 0, 0)
    max_compute_shared_memory_size: int = 0
    max_compute_shader_storage_blocks: int = 0
    max_shader_storage_block_size: int = 0
    shader_storage_buffer_offset_alignment: int = 0
    max_vertex_texture_image_units: int = 0
    max_texture_size: int = 0
    max_transform_feedback_interleaved_components: int = 0
    max_transform_feedback_separate_attribs: int = 0
    max_array_texture_layers: int = 0
    max_texture_buffer_size: int = 0
    max_vertex_uniform_components: int = 0
    max_compute_uniform_components: int = 0
    timer_query: bool = False
    buffer_storage: bool = False
    """True where buffers may stay mapped while they are used: EXT_buffer_storage."""
    dedicated_memory: bool = False
    """True where the GPU is known to have memory of its own, and not to share the host's."""
    multiprocessors: int = 0
    """The multiprocessors that share a launch's workgroups; 0 where unknown."""
    subgroup_size: int = 0
    """The invocations of a subgroup, where GL_KHR_shader_subgroup_arithmetic can sum over it; 0
    where it cannot."""
    minimum: bool = False

    def __post_init__(self) -> None:
        if self.api not in ("es", "gl"):
            raise ValueError(f"api must be es or gl, got {self.api!r}")

    def __hash__(self) -> int:  # of few fields, as capabilities are a key in many look-ups
        return hash((self.renderer, self.version, self.minimum))

    @property
    def compute(self) -> bool:
        """Return True where the context has compute shaders."""
        return self.version >= (COMPUTE_ES if self.api == "es" else COMPUTE_GL)

    @property
    def feedback(self) -> bool:
        """Return True where the context has transform feedback of the version that glnn uses."""
        return self.version >= (FEEDBACK_ES if self.api == "es" else FEEDBACK_GL)

    @property
    def software(self) -> str | None:
        """Return the name of the CPU renderer, as "llvmpipe", also behind zink or ANGLE; None for a
        GPU.
        """
        name = self.renderer.lower()
        return next((called for part, called in SOFTWARE.items() if part in name), None)

    def why_no_compute(self) -> str | None:
        """Return why there are no compute shaders, None where there are."""
        if self.compute:
            return None
        major, minor = self.version
        return (
            f"compute shaders need OpenGL ES 3.1 or OpenGL 4.3; {self.renderer} offers "
            f"OpenGL {'ES ' if self.api == 'es' else ''}{major}.{minor}"
        )

    @property
    def nvidia_driver(self) -> bool:
        """Return True for NVIDIA's own driver.

        Other drivers of the same GPUs, Mesa's and ANGLE, behave differently, and name another
        vendor first, as "Mesa" or "Google Inc. (NVIDIA Corporation)".
        """
        return self.vendor.startswith("NVIDIA")

    @property
    def barrier_suffices(self) -> bool:
        """Return True where barrier() alone orders accesses to shared memory, as GLSL specifies.

        NVIDIA's driver conforms (on an H200, 580); with others, shaders call memoryBarrierShared(),
        too.
        """
        return self.nvidia_driver

    @property
    def reorders_writes(self) -> bool:
        """Return True where writes and copies of buffers are not ordered with other commands.

        NVIDIA's driver (580) executes glBufferSubData before an earlier glCopyBufferSubData of the
        same buffer (in 19 or 20 of 20 tries on an H200, at any size, even after glFlush and a
        barrier), and now and then copies a buffer to a texture before an earlier shader wrote it.
        What glBufferSubData writes while an earlier dispatch reads it is seen by that dispatch, or
        by none but the next.
        """
        return self.nvidia_driver

    def header(self, stage: str, buffers: bool = False) -> str:
        """Return the first lines of a shader's source; `stage` is "compute" or "feedback".

        buffers: True where a compute shader fetches from buffer textures; shaders for feedback
        always may.
        """
        if stage not in ("compute", "feedback"):
            raise ValueError(f"stage must be compute or feedback, got {stage!r}")
        directives = BARRIER if stage == "compute" and self.barrier_suffices else ""
        if stage == "compute" and self.subgroup_size:
            directives = f"{SUBGROUPS}#define SUBGROUP_SIZE {self.subgroup_size}\n{directives}"
        if self.api == "gl":
            return f"#version {430 if stage == 'compute' else 330} core\n{directives}"
        buffers = (buffers or stage == "feedback") and self.max_texture_buffer_size > 0
        number = 320 if buffers else 310 if stage == "compute" else 300
        # #extension must precede all text but the preprocessor's.
        return f"#version {number} es\n{directives}{PRECISION}"

    def with_minimum(self) -> Capabilities:
        """Return a copy with every limit lowered to the minimum of OpenGL ES 3.1."""
        lowered = {name: _least(getattr(self, name), most) for name, most in MINIMUM.items()}
        alignment = self.compute * MINIMUM_ALIGNMENT
        return replace(
            self,
            minimum=True,
            shader_storage_buffer_offset_alignment=alignment,
            subgroup_size=0,
            **lowered,
        )

    def limits(self) -> dict[str, int | Triple]:
        """Return the limits by name."""
        names = [f.name for f in fields(self) if f.name.startswith(("max_", "shader_storage_"))]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def query(cls, context: Context) -> Capabilities:
        """Query the capabilities of `context`, which must be current."""
        gl = _Queries(context)
        text = gl.string(VERSION)
        version = (gl.integer(MAJOR_VERSION), gl.integer(MINOR_VERSION))
        extensions = {gl.string(EXTENSION, i) for i in range(gl.integer(NUM_EXTENSIONS))}
        limits: dict[str, Any] = {name: gl.integer(key) for name, key in LIMITS.items()}
        capabilities = cls(
            api="es" if text.startswith("OpenGL ES") else "gl",
            version=version,
            vendor=gl.string(VENDOR),
            renderer=gl.string(RENDERER),
            version_text=text,
            glsl_text=gl.string(GLSL_VERSION),
            platform=context.what,
            **limits,
        )
        timer = capabilities.api == "gl" or "GL_EXT_disjoint_timer_query" in extensions
        if capabilities.api == "gl" or version >= BUFFERS_ES:
            buffers = gl.integer(MAX_TEXTURE_BUFFER_SIZE)
            capabilities = replace(capabilities, max_texture_buffer_size=buffers)
        storage = "GL_EXT_buffer_storage" in extensions
        # By names, as ES does not have GL_NVX_gpu_memory_info, which tells the dedicated memory.
        dedicated = (
            "nvidia" in capabilities.vendor.lower() and "tegra" not in capabilities.renderer.lower()
        )
        multiprocessors = gl.integer_if_known(SM_COUNT_NV) if dedicated else 0
        capabilities = replace(
            capabilities,
            timer_query=timer,
            buffer_storage=storage,
            dedicated_memory=dedicated,
            multiprocessors=multiprocessors,
        )
        if not capabilities.compute:
            return capabilities
        limits = {name: gl.integer(key) for name, key in COMPUTE_LIMITS.items()}
        if capabilities.api == "es" and "GL_KHR_shader_subgroup" in extensions:
            arithmetic = gl.integer(SUBGROUP_FEATURES) & SUBGROUP_ARITHMETIC
            if arithmetic and gl.integer(SUBGROUP_STAGES) & COMPUTE_STAGE:
                limits["subgroup_size"] = gl.integer(SUBGROUP_SIZE)
        return replace(
            capabilities,
            max_compute_work_group_size=gl.triple(MAX_COMPUTE_WORK_GROUP_SIZE),
            max_compute_work_group_count=gl.triple(MAX_COMPUTE_WORK_GROUP_COUNT),
            max_shader_storage_block_size=gl.long(MAX_SHADER_STORAGE_BLOCK_SIZE),
            **limits,
        )


class _Queries:
    """glGet* of the current context, which moderngl does not ask of ES."""

    def __init__(self, context: Context) -> None:
        def load(name: str, result: Any, *arguments: Any) -> Any:
            address = context.load_opengl_function(name)
            return ctypes.CFUNCTYPE(result, *arguments)(address)

        self._string = load("glGetString", c_char_p, c_uint)
        self._string_at = load("glGetStringi", c_char_p, c_uint, c_uint)
        self._integer = load("glGetIntegerv", None, c_uint, ctypes.c_void_p)
        self._integer_at = load("glGetIntegeri_v", None, c_uint, c_uint, ctypes.c_void_p)
        self._long = load("glGetInteger64v", None, c_uint, ctypes.c_void_p)
        self._error = load("glGetError", c_uint)

    def string(self, key: int, index: int | None = None) -> str:
        text = self._string(key) if index is None else self._string_at(key, index)
        return (text or b"").decode("utf-8", "replace")

    def integer(self, key: int) -> int:
        value = c_int()
        self._integer(key, byref(value))
        return value.value

    def integer_if_known(self, key: int) -> int:
        """Return the integer `key`, 0 where the driver does not know it."""
        self._error()  # clears an earlier error
        value = self.integer(key)
        return 0 if self._error() else value

    def long(self, key: int) -> int:
        value = c_int64()
        self._long(key, byref(value))
        return value.value

    def triple(self, key: int) -> Triple:
        values = [c_int() for _ in range(3)]
        for index, value in enumerate(values):
            self._integer_at(key, index, byref(value))
        x, y, z = (_unsigned(value.value) for value in values)
        return x, y, z


def _unsigned(value: int) -> int:
    return value if value >= 0 else 2**31 - 1  # a driver's 2^32 - 1, read into a signed integer


def _least(limit: Any, most: Any) -> Any:
    if isinstance(limit, tuple):
        return tuple(min(a, b) for a, b in zip(limit, most, strict=True))
    return min(limit, most)


NVML_LIBRARY = "libnvidia-ml.so.1"


class _NvmlMemory(ctypes.Structure):
    """Bytes of a GPU's memory."""

    _fields_ = (("total", c_uint64), ("free", c_uint64), ("used", c_uint64))


@cache
def nvml_library() -> Any:
    """Return NVIDIA's management library, initialized; None without one."""
    try:
        library = ctypes.CDLL(NVML_LIBRARY)
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def nvml_free_memory(uuid: bytes) -> int | None:
    """Return the free bytes of the GPU with this UUID of 16 bytes; None where unknown."""
    nvml, handle, memory = nvml_library(), c_void_p(), _NvmlMemory()
    text = uuid.hex()
    name = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    if nvml is None or nvml.nvmlDeviceGetHandleByUUID(f"GPU-{name}".encode(), byref(handle)):
        return None
    if nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory)):
        return None
    return int(memory.free)


GPU_MEMORY_INFO_CURRENT_AVAILABLE_VIDMEM_NVX = 0x9049  # in KiB
DEVICE_UUID, UUID_SIZE = 0x9597, 16


def memory_available(
    context: moderngl.Context, load: Callable[..., Any], dedicated: bool
) -> int | None:
    """Return the free bytes of the GPU's memory, else of the machine's; None if unknown.

    load: returns GL's functions, as `Device.load` does. dedicated: True where the GPU has memory of
        its own, so that the machine's does not count.
    """
    results = [_free_by_gl(context, load), _free_by_nvml(context, load) if dedicated else None]
    if known := [free for free in results if free is not None]:
        return min(known)
    try:
        lines = [] if dedicated else Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    kib = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith("kB")}
    return 1024 * int(kib["MemAvailable"]) if "MemAvailable" in kib else None


def _free_by_gl(context: moderngl.Context, load: Callable[..., Any]) -> int | None:
    """Return the free bytes by GL_NVX_gpu_memory_info, None where the driver lacks it."""
    if "GL_NVX_gpu_memory_info" not in context.extensions:
        return None
    kibibytes = c_int(0)
    get = load("glGetIntegerv", None, c_uint, POINTER(c_int))
    get(GPU_MEMORY_INFO_CURRENT_AVAILABLE_VIDMEM_NVX, ctypes.byref(kibibytes))
    return (
        1024 * kibibytes.value if context.error == "GL_NO_ERROR" and kibibytes.value > 0 else None
    )


def _free_by_nvml(context: moderngl.Context, load: Callable[..., Any]) -> int | None:
    """Return the free bytes by NVIDIA's management library, for the GPU with the UUID that GL
    reports.
    """
    if "GL_EXT_memory_object" not in context.extensions:
        return None
    uuid = (c_ubyte * UUID_SIZE)()
    get = load("glGetUnsignedBytei_vEXT", None, c_uint, c_uint, POINTER(c_ubyte))
    get(DEVICE_UUID, 0, uuid)
    return nvml_free_memory(bytes(uuid)) if context.error == "GL_NO_ERROR" else None
