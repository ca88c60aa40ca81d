"""Reports on the kernels without running one: the table, and their complete GLSL sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from glnn.core.fileio import atomic_write, make_folder
from glnn.core.layout import parse
from glnn.errors import LimitError, ShaderError, UnsupportedOpError
from glnn.gl import Capabilities, Device, Program, Source
from glnn.gl.texture import PLANE, TEXELS
from glnn.graph.epilogue import BIASED, Epilogue, Prologue
from glnn.graph.expression import Arg, call
from glnn.kernels.architecture import architecture
from glnn.kernels.binding import textures, written
from glnn.kernels.capability_check import fitted, why_not_device, why_not_spec
from glnn.kernels.codegen.expression import Bound, generated_before
from glnn.kernels.codegen.generators import GENERATORS
from glnn.kernels.kernel import Kernel
from glnn.kernels.library import declared, library
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.source import assemble
from glnn.kernels.verdicts import VerdictRecord, Verdicts

BLOCKS = 4  # storage blocks that every device binds
SCALED = Prologue(call("relu", call("mul", Arg(0), Arg(1))), ("image",))

ES_HEADERS = {"compute": "#version 310 es", "feedback": "#version 300 es"}
_PRECISION = "\nprecision highp float;\nprecision highp int;\nprecision highp sampler2D;"


@dataclass(frozen=True)
class KernelRow:
    """A kernel in the table. reason: why it cannot run on the device; None where it can.

    parameters: the parameters it would run with here. defaults: the origin of these. stages: the
    lowering of `graph.compose.decompositions` by which it computes the op, where it has no shader.
    document: True for a kernel of the documents' folder, which runs only if named. seen: remarks on
    its results here; None without any. folder: the user's folder that it comes from; None where it
    ships with glnn. priority: by which it is chosen among those that suit.
    """

    name: str
    op: str
    backend: str
    ok: bool
    reason: str | None
    summary: str
    parameters: Mapping[str, int]
    defaults: str | None
    stages: str | None
    document: bool = False
    seen: str | None = None
    folder: str | None = None
    priority: int = 0


@dataclass(frozen=True)
class Example:
    """A kernel with the macros and generated texts by which it is compiled without a spec."""

    name: str
    kernel: Kernel
    defines: Mapping[str, int]
    texts: Mapping[str, str]

    @classmethod
    def all_of(cls, kernel: Kernel) -> Iterator[Example]:
        """Yield the examples of a kernel.

        The first has the parameters' defaults and the attributes that it needs, with a bias and a
        ReLU where it takes them; others have a prologue, and each operand that may be float16 or
        int8. A generated kernel has the examples of its generator.
        """
        if not kernel.generate:
            name, texts = f"{kernel.op}-{kernel.name}", _epilogue_texts(kernel)
            defines = {**kernel.defaults, **kernel.requires.least, **_layout_macros(kernel)}
            yield cls(name, kernel, defines, texts)
            if kernel.prologue is not None and not kernel.stages:
                filled_in = {**written(kernel, None, Bound()), **_prologue_texts(kernel)}
                yield cls(f"{name}-prologue", kernel, defines, filled_in)
            for operand in kernel.fp16_operands:
                half = {**defines, f"{operand.upper()}_HALF": 1}
                yield cls(f"{name}-float16-{operand}", kernel, half, texts)
            for operand in kernel.int8_operands:
                packed = {**defines, f"{operand.upper()}_BYTES": 1}
                yield cls(f"{name}-int8-{operand}", kernel, packed, texts)
            return
        for name, (op, types) in GENERATORS[kernel.generate].examples().items():
            narrow = (name for name, one in types.items() if one.dtype.narrow)
            spec = OpSpec.create(op, types, dict.fromkeys(narrow, "packed"))
            try:
                adapted, made = spec.adapted(kernel), spec.generated(kernel)
            except UnsupportedOpError:
                continue
            if why_not_spec(adapted, spec):
                continue
            defines = {**kernel.defaults, **spec.defines(kernel)}
            if any(defines[key] != value for key, value in kernel.requires.values.items()):
                continue
            texts = {**_epilogue_texts(adapted), **({} if made is None else made.texts)}
            yield cls(f"{kernel.op}-{kernel.name}-{name}", adapted, defines, texts)


def _layout_macros(kernel: Kernel) -> dict[str, int]:
    """Return the macros by which operands are in the first of the layouts that `kernel` accepts."""
    several = ((n, texts) for n, texts in kernel.layouts.items() if len(texts) > 1)
    in_macros = ((n, texts) for n, texts in several if not all(parse(t).in_rows for t in texts))
    return {f"{name.upper()}_IN_{texts[0].replace(' ', '_')}": 1 for name, texts in in_macros}


def _prologue_texts(kernel: Kernel) -> dict[str, str]:
    """Return the prologue's text for compiling `kernel` alone.

    The prologue scales each channel of each image and applies a ReLU; only the ReLU where no
    storage block is left for the scales.
    """
    binding = max(kernel.bindings.values(), default=0) + 1
    prologue = SCALED if binding < BLOCKS else Prologue(call("relu", Arg(0)))
    return generated_before(prologue, {"p1": binding})


def _epilogue_texts(kernel: Kernel) -> dict[str, str]:
    """Return the epilogue's text for compiling `kernel` alone: a ReLU, after a bias if possible."""
    epilogue = Epilogue(call("relu", Arg(0)))
    binding = max(kernel.bindings.values(), default=0) + 1
    if kernel.epilogue and "channel" in kernel.epilogue.extents and binding < BLOCKS:
        epilogue = BIASED.then(epilogue)
    bound = Bound({"e1": binding})
    if kernel.backend == "feedback":
        bound = Bound(samplers={"e1": "sampler2D"})
    return written(kernel, epilogue, bound)


def table(
    device: Device | None = None,
    op: str | None = None,
    *,
    compile: bool = False,
    verdicts: Verdicts | None = None,
) -> list[KernelRow]:
    """List all kernels, or those of `op`, and whether each can run on `device`.

    compile: True to also compile and link each admissible shader with its default parameters.
    verdicts: comparisons with NumPy on that device.
    """
    return list(rows(device, op, compile=compile, verdicts=verdicts))


def rows(
    device: Device | None,
    op: str | None = None,
    *,
    compile: bool = False,
    verdicts: Verdicts | None = None,
) -> Iterator[KernelRow]:
    """Yield the rows of `table` one at a time."""
    records = list(verdicts.seen()) if verdicts else []
    for kernel in declared():
        if op is None or kernel.op == op:
            reason = _reason(kernel, device, compile) if device else None
            of_kernel = _records_of(kernel, records)
            wrong = [one.verdict.wrong for one in of_kernel]
            if reason is None and of_kernel and None not in wrong:
                reason = f"wrong: {wrong[0]}"
            fitting = (fitted(kernel, device.capabilities) if device else None) or kernel
            yield KernelRow(
                kernel.name,
                kernel.op,
                kernel.backend,
                reason is None,
                reason,
                kernel.summary,
                fitting.defaults,
                _origin(kernel, fitting, device) if device and kernel.tune else None,
                kernel.stages or None,
                kernel.document,
                "; ".join(sorted({one.notable for one in of_kernel if one.notable})) or None,
                str(kernel.folder) if kernel.folder else None,
                kernel.priority,
            )


def _records_of(kernel: Kernel, records: Iterable[VerdictRecord]) -> list[VerdictRecord]:
    """Return the verdicts on `kernel` among `records`."""
    key = kernel.backend, kernel.op, kernel.name
    return [one for one in records if (one.backend, one.op, one.kernel) == key]


def _origin(kernel: Kernel, fitted: Kernel, device: Device) -> str:
    """Return the origin of the parameters of `fitted`, for people."""
    name = architecture(device.capabilities)
    if fitted.defaults == kernel.defaults and name not in kernel.architectures.rows:
        return "any device"
    return str(name) if fitted == kernel.for_architecture(name) else "within the limits"


def _reason(kernel: Kernel, device: Device, compile: bool) -> str | None:
    admitted = fitted(kernel, device.capabilities)
    if admitted is None:
        return f"not admissible: {why_not_device(kernel, device.capabilities)}"
    if not compile or kernel.stages:
        return None
    offers = device.capabilities
    for one in Example.all_of(admitted):
        if fault := why_not_device(one.kernel, offers):
            return f"not admissible: {fault}"
        fetched = textures(one.kernel, BIASED)
        samplers = {name: one.kernel.sampler(texel, 4, offers) for name, texel in fetched.items()}
        header = offers.header(kernel.backend, kernel.texture_buffers)
        source = assemble(one.kernel, header, one.defines, samplers, one.texts)
        try:
            device.perform(partial(link, device, kernel, source))
        except LimitError as error:
            return f"not admissible: {error}"
        except ShaderError as error:
            return str(error)
    return None


def link(device: Device, kernel: Kernel, source: Source) -> Program:
    """Compile and link `source` into a program for the backend of `kernel`."""
    if kernel.backend == "compute":
        return Program.compute(device, source)
    return Program.feedback(device, source, ("result",))


def export(
    directory: Path,
    kernels: tuple[Kernel, ...] | None = None,
    architecture: str | None = None,
    device: Capabilities | None = None,
) -> list[Path]:
    """Write what `complete_sources` returns into a folder, and return the paths."""
    return write_sources(directory, complete_sources(kernels, architecture, device))


def write_sources(directory: Path, sources: Mapping[str, str]) -> list[Path]:
    """Write each source to the file of its name in a folder, and return the paths.

    Raises OSError.
    """
    make_folder(directory)
    for name, text in sources.items():
        with atomic_write(directory / name) as stream:
            stream.write(text.encode())
    return [directory / name for name in sources]


def complete_sources(
    kernels: tuple[Kernel, ...] | None = None,
    architecture: str | None = None,
    device: Capabilities | None = None,
) -> dict[str, str]:
    """Return the complete GLSL ES source of every kernel, for compilers that need no device.

    Each is for a file, `OP-NAME.comp` or `.vert`, with includes expanded and the default
    parameters, those of that `architecture` where a kernel has some. device: only kernels that it
    admits, with the parameters that they would run with there.
    """
    sources: dict[str, str] = {}
    for shader in library() if kernels is None else kernels:
        chosen = fitted(shader, device) if device else shader.for_architecture(architecture)
        for one in Example.all_of(chosen) if chosen else ():
            if device and why_not_device(one.kernel, device):
                continue
            header = ES_HEADERS[shader.backend] + _PRECISION
            planes = {k: TEXELS[v].prefix + PLANE for k, v in one.kernel.textures.items()}
            samplers = planes if shader.generate else {}
            source = assemble(one.kernel, header, one.defines, samplers, one.texts)
            sources[f"{one.name}{shader.path.suffix}"] = source.text
    return sources
