"""Shaders of nothing but multiply-adds, in FP32, FP16 and integers, whose results are known.

Two numbers follow each other: a = f a + b, b = f b + a. With f = -1 they come round after three
turns, so every step is exact in all three, however many there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glnn.core.layout import parse
from glnn.core.types import DType
from glnn.errors import GlnnError
from glnn.gl import Buffer, Device, Program, Source

Array = NDArray[np.float64]
FACTOR = -1
PERIOD = 64  # numbers that differ
SHADER = """\
#define STEPS {steps}
{declarations}
VECTOR worked(VECTOR a) {{
    VECTOR b = a + ONE;
    // Two chains, so that one need not wait for itself.
    for (int step = 0; step < STEPS / 2; ++step) {{
        a = a * FACTOR + b;
        b = b * FACTOR + a;
    }}
    return a + b;
}}
"""
MAINS = {
    "compute": """\
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer X { MEMORY x[]; };
layout(std430, binding = 1) buffer Out { MEMORY result[]; };
void main() {
    int i = int(gl_GlobalInvocationID.y * gl_NumWorkGroups.x * 64u + gl_GlobalInvocationID.x);
    result[i] = STORED(worked(LOADED(x[i])));
}
""",
    "feedback": """\
in highp MEMORY x;
out highp MEMORY result;
void main() { result = STORED(worked(LOADED(x))); }
""",
}
PLAIN = """\
uniform {scalar} factor;
#define FACTOR factor
#define ONE {one}
#define VECTOR {vector}
#define MEMORY {vector}
#define LOADED(v) v
#define STORED(v) v
"""
HALVES = """\
uniform mediump float factor;
#define FACTOR {scalar}(factor)
#define ONE {scalar}(1.0)
#define VECTOR {vector}
#define MEMORY uvec2
#define LOADED(v) {made}(vec4(unpackHalf2x16(v.x), unpackHalf2x16(v.y)))
#define STORED(v) words(vec4(v))
uvec2 words(vec4 v) {{ return uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw)); }}
"""
PROBE = """\
layout(local_size_x = 1) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
void main() {
    mediump float one = x[0], little = x[1];
    mediump float sum = one + little;
    mediump float found = sum - one;
    result[0] = found;
}
"""


@dataclass(frozen=True)
class Arithmetic:
    """A way to compute, and what its shader declares for it."""

    name: str
    """fp32, fp16 or int32."""
    said: str
    """What it is on this device, in words."""
    declarations: str
    """GLSL in front of the shader."""
    number_bytes: int = 4
    """Bytes of a number in memory."""
    dtype: DType = DType.float32
    """Of a word in memory."""
    extension: str = ""
    """The GLSL extension that it needs; none where empty."""

    def program(self, device: Device, steps: int, backend: str) -> Program:
        """The program of `steps` multiply-adds a number. Raises GlnnError where there is none."""
        version, _, rest = device.capabilities.header(backend).partition("\n")
        asked = f"#extension {self.extension} : require\n" if self.extension else ""
        body = SHADER.format(steps=steps, declarations=self.declarations) + MAINS[backend]
        made = _compiled(device, f"{version}\n{asked}{rest}{body}", backend)
        made.set({"factor": FACTOR})
        return made

    def numbers(self, count: int) -> Buffer:
        """So many numbers, from 0 up to PERIOD, over and over; fractions where it has them."""
        given = np.resize(self._given(), count)
        if self.name == "fp16":
            words = given.astype(np.float16).view(np.int32)
        else:
            words = given.astype(self.dtype.numpy)
        made = Buffer(words.shape, parse("R"), dtype=self.dtype)
        made.set(words)
        return made

    def room(self, count: int) -> Buffer:
        """Memory for as many results."""
        return Buffer((count * self.number_bytes // 4,), parse("R"), dtype=self.dtype)

    def check(self, out: Buffer, steps: int) -> None:
        """Raise GlnnError unless `out` has what `steps` multiply-adds give."""
        a = self._given()
        b = a + 1
        for _ in range(steps // 2):
            a = a * FACTOR + b
            b = b * FACTOR + a
        got = out.pull().view(np.float16) if self.name == "fp16" else out.pull()
        if not (got.reshape(-1, PERIOD) == a + b).all():
            raise GlnnError(f"{self.said}: {steps} multiply-adds are wrong, no rate is given")

    def _given(self) -> Array:
        return np.arange(PERIOD) / (1 if self.name == "int32" else PERIOD)


FP32 = Arithmetic("fp32", "FP32", PLAIN.format(scalar="highp float", one="1.0", vector="vec4"))
INT32 = Arithmetic(
    "int32",
    "32-bit integers",
    PLAIN.format(scalar="highp int", one="1", vector="ivec4"),
    dtype=DType.int32,
)
MEDIUMP = HALVES.format(scalar="", vector="mediump vec4", made="")
PACKED = HALVES.format(scalar="float16_t", vector="f16vec4", made="f16vec4")
EXTENSIONS = (
    "GL_EXT_shader_explicit_arithmetic_types_float16",
    "GL_AMD_gpu_shader_half_float",
    "GL_NV_gpu_shader5",
)


def halves(device: Device) -> Arithmetic:
    """FP16 in compute shaders of `device`: by an extension, else what mediump is there."""
    for name in EXTENSIONS:
        packed = Arithmetic("fp16", f"FP16 by {name}", PACKED, 2, DType.int32, name)
        try:
            packed.program(device, 0, "compute")
        except GlnnError:
            continue
        return packed
    kind = "FP16" if rounds(device) else "FP32"
    return Arithmetic("fp16", f"mediump, computed in {kind}", MEDIUMP, 2, DType.int32)


def rounds(device: Device) -> bool:
    """Whether a mediump sum of the driver's compute shaders is an FP16 one."""
    x, out = Buffer((2,), parse("R")), Buffer((1,), parse("R"))
    x.set(np.asarray([1, 2**-12], np.float32))
    made = _compiled(device, device.capabilities.header("compute") + PROBE, "compute")
    x.push(device).bind_to_storage_buffer(0)
    out.push(device).bind_to_storage_buffer(1)
    made.dispatch((1, 1, 1))
    device.barrier()
    out.mark_written()
    return float(out.pull()[0]) != 2**-12


def _compiled(device: Device, text: str, backend: str) -> Program:
    origin = tuple(("arithmetic", i) for i in range(1, len(text.splitlines()) + 1))
    source = Source("arithmetic", text, origin)
    if backend == "compute":
        return Program.compute(device, source)
    return Program.feedback(device, source, ("result",))
