"""GB/s of the generated kernels, and of the fused ones of rows, beside a copy in the same run.

What is counted are the bytes of the operands and of the result, each once. The mark is the faster
of two copies of as many bytes: glCopyBufferSubData and a shader that copies vec4s. Every piece of
work has two sets of buffers, run in turn, so that little of one is in a cache when its turn comes.
Results are checked before anything is timed. Absolute numbers mean something on a GPU only.
First come transfers between host and device and on the device, beside Cheng's figure 3.

    python -m benchmarks.bandwidth
    python -m benchmarks.bandwidth --backend feedback --mib 64 --json
    python -m benchmarks.bandwidth --only softmax,concat
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks import beside, documents
from benchmarks.command import run
from benchmarks.record import machine, synchronized_seconds
from benchmarks.tables import table
from benchmarks.timing import kernel_time
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number, progress
from glnn.core.layout import parse
from glnn.errors import GlnnError
from glnn.gl import Buffer, Device, Program, Source
from glnn.graph.expression import SCALE_AND_SHIFT, SUM, Arg, call
from glnn.graph.operator import Operator
from glnn.graph.operators import Concat, Normalize, Pointwise, Reduce, Softmax
from glnn.graph.operators.gather import Gather
from glnn.graph.operators.move import Transpose
from glnn.profiling import time_work

MEBIBYTES = (1, 4, 16, 64)
WAYS = ("host_to_device", "device_to_host", "device_to_device")
WARM, REPEAT = 3, 15


def transfers(device: Device, most: int) -> list[dict[str, Any]]:
    """GB/s of each way at each size up to `most` MiB, by the clock on the wall.

    As the document has it, a copy on the device counts its bytes once, though they are read and
    written. Raises GlnnError where what arrives is not what was sent.
    """
    rows = []
    for mib in MEBIBYTES:
        if mib > most:
            break
        floats = mib << 18
        array = np.random.default_rng(mib).random(floats, dtype=np.float32)
        buffers = [Buffer((floats,), parse("R")) for _ in range(3)]
        sent, copied, brought = (buffer.push(device) for buffer in buffers)
        read = np.empty(floats, np.float32)
        works: tuple[Callable[[], object], ...] = (
            partial(sent.write, array),
            # Of its own: what was read back may stay on the host, and slow what writes it.
            partial(brought.read_into, read),
            partial(device.context.copy_buffer, copied, sent),
        )
        row: dict[str, Any] = {"mib": mib}
        for way, work in zip(WAYS, works, strict=True):
            for _ in range(WARM):
                work()
            times = [synchronized_seconds(work, device.finish) for _ in range(REPEAT)]
            row[way] = 4 * floats / median(times) / 1e9
        copied.read_into(read)
        if not np.array_equal(read, array):
            raise GlnnError(f"{mib} MiB do not arrive as they were sent, no bandwidth is given")
        for buffer in buffers:
            buffer.release()
        rows.append(row)
    return rows


def by_way(rows: list[dict[str, Any]]) -> documents.Ours:
    """The bandwidths by way and size."""
    return {(way, str(row["mib"])): row[way] for row in rows for way in WAYS}


def show(out: Screen, rows: list[dict[str, Any]]) -> None:
    """Print what `transfers` found."""
    shown = table(">MiB", *(f">{way.replace('_', ' ')}" for way in WAYS))
    for row in rows:
        shown.add(str(row["mib"]), *(number(row[way]) for way in WAYS))
    out.show(shown, "transfers, GB/s by the clock")


Array = NDArray[Any]
Way = Callable[[GlBackend, Buffer, Buffer], Callable[[], None]]
COLUMNS = 1024
ROWS = (64, 256, 1024, 4096, 16384)  # lengths of rows that are normalised
SETS = 2
GROUP = 64  # invocations
COPY = {
    "compute": """\
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
void main() {
    int i = int(gl_GlobalInvocationID.y * gl_NumWorkGroups.x * 64u + gl_GlobalInvocationID.x);
    result[i] = x[i];
}
""",
    "feedback": """\
in highp vec4 x;
out highp vec4 result;
void main() { result = x; }
""",
}


@dataclass(frozen=True)
class Case:
    """What is measured: an operator on operands of these shapes."""

    name: str
    op: Operator
    shapes: dict[str, tuple[int, ...]]

    def operands(self) -> dict[str, Array]:
        """Random numbers; an index is a permutation of the first operand's rows."""
        generator = np.random.default_rng(0)
        return {
            name: generator.permutation(shape[0]).astype(np.int32)
            if name == "index"
            else generator.random(shape, np.float32)
            for name, shape in self.shapes.items()
        }


def cases(floats: int) -> Iterator[Case]:
    """All of them; the largest operand or the result has `floats` numbers, a multiple of 65,536."""
    matrix, half = (floats // COLUMNS, COLUMNS), (floats // COLUMNS // 2, COLUMNS)
    images = (floats // 65536, 64, 32, 32)
    yield Case("relu", Pointwise(call("relu", Arg(0))), {"x0": matrix})
    yield Case("sum of two", Pointwise(SUM), {"x0": matrix, "x1": matrix})
    channels = {"x1": (64, 1, 1), "x2": (64, 1, 1)}
    yield Case("scale, shift", Pointwise(SCALE_AND_SHIFT), {"x0": images, **channels})
    yield Case("sum of rows", Reduce("sum", (1,)), {"x0": matrix})
    yield Case("sum of columns", Reduce("sum", (0,)), {"x0": matrix})
    yield Case("max of rows", Reduce("max", (1,)), {"x0": matrix})
    yield Case("max of columns", Reduce("max", (0,)), {"x0": matrix})
    yield Case("transpose", Transpose((1, 0)), {"x": matrix})
    yield Case("NCHW to NHWC", Transpose((0, 2, 3, 1)), {"x": images})
    yield Case("concat, axis 0", Concat(0), {"x0": half, "x1": half})
    halves = (matrix[0], COLUMNS // 2)
    yield Case("concat, axis 1", Concat(1), {"x0": halves, "x1": halves})
    yield Case("gather of rows", Gather(0), {"x": matrix, "index": matrix[:1]})
    for length in ROWS:
        rows, row = (max(1, floats // length), length), (length,)
        yield Case("softmax", Softmax(), {"x": rows})
        yield Case("LayerNorm", Normalize(dims=1), {"x": rows, "weight": row, "bias": row})


def copies(backend: GlBackend, floats: int, repeat: int) -> dict[str, float]:
    """GB/s of each way to copy so many floats, read and written."""
    pairs = [(_buffer(backend, floats, i), _buffer(backend, floats, None)) for i in range(SETS)]
    ways: dict[str, Way] = {
        "glCopyBufferSubData": _by_command,
        "shader": partial(_by_shader, floats),
    }
    found: dict[str, float] = {}
    for name, way in ways.items():
        works = [backend.perform(partial(way, backend, *pair)) for pair in pairs]

        def work(works: list[Callable[[], None]] = works) -> None:
            for one in works:
                one()

        seconds = time_work(backend, work, repeat).seconds
        found[name] = SETS * 8 * floats / seconds / 1e9
        for source, out in pairs:
            out.mark_written()
            if not np.array_equal(out.pull(), source.pull()):
                raise GlnnError(f"a copy by {name} is wrong, no time is given")
    return found


def _buffer(backend: GlBackend, floats: int, seed: int | None) -> Buffer:
    made = Buffer((floats,), parse("R"))
    if seed is not None:
        made.set(np.random.default_rng(seed).random(floats, np.float32))
    made.push(backend.device)
    return made


def _by_command(backend: GlBackend, source: Buffer, out: Buffer) -> Callable[[], None]:
    device = backend.device
    read, written = source.push(device), out.push(device)
    return partial(device.context.copy_buffer, written, read, source.nbytes)


def _by_shader(floats: int, backend: GlBackend, source: Buffer, out: Buffer) -> Callable[[], None]:
    device = backend.device
    text = device.capabilities.header(backend.name) + COPY[backend.name]
    origin = tuple(("copy", i) for i in range(1, len(text.splitlines()) + 1))
    made = Source("copy", text, origin)
    if backend.name == "feedback":
        program = Program.feedback(device, made, ("result",))
        array = program.vertex_array({"x": (source.push(device), 4)})
        return partial(program.capture, array, floats // 4, 1, out.push(device))
    program = Program.compute(device, made)

    def work() -> None:
        source.push(device).bind_to_storage_buffer(0)
        out.push(device).bind_to_storage_buffer(1)
        program.dispatch((floats // 4 // GROUP // GROUP, GROUP, 1))
        device.barrier()

    return work


def measure(backend: GlBackend, case: Case, mark: float, repeat: int) -> dict[str, Any]:
    """GB/s of a case and its share of `mark`, or the reason why there is none."""
    operands = case.operands()
    first = next(iter(case.shapes.values()))
    row: dict[str, Any] = {"name": case.name, "shape": "x".join(map(str, first))}
    try:
        timing = kernel_time(backend, case.op, operands, None, repeat, sets=SETS)
    except GlnnError as error:
        return {**row, "gb_s": None, "share": None, "reason": str(error)}
    speed = timing.nbytes / timing.seconds / 1e9
    row |= {"kernel": timing.kernel, "us": 1e6 * timing.seconds, "by_timer": timing.by_timer}
    return {**row, "error": timing.error, "gb_s": speed, "share": speed / mark}


def _wanted(found: list[Case], only: str | None) -> list[Case]:
    """Those of `found` whose names begin with one of `only`, by commas."""
    if only is None:
        return found
    chosen = tuple(part.strip() for part in only.split(","))
    for name in chosen:
        if not any(case.name.startswith(name) for case in found):
            known = ", ".join(dict.fromkeys(case.name for case in found))
            raise GlnnError(f"--only: no {name!r}, expected beginnings of {known}")
    return [case for case in found if case.name.startswith(chosen)]


@click.command(help=__doc__)
@click.option("--backend", "name", type=click.Choice(list(COPY)), default="compute")
@click.option("--mib", type=click.IntRange(1, 1024), default=64, show_default=True, help="Size.")
@click.option("--only", help="Beginnings of names, by commas.")
@click.option("--repeat", type=click.IntRange(1), default=7, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(name: str, mib: int, only: str | None, repeat: int, as_json: bool) -> None:
    floats = mib << 18
    wanted = _wanted(list(cases(floats)), only)
    backend = open_backend(name)
    assert isinstance(backend, GlBackend)
    with progress(not as_json) as bar:
        task = bar.add_task("copying", total=1 + len(wanted))
        moved = backend.perform(partial(transfers, backend.device, mib))
        copied = copies(backend, floats, repeat)
        mark = max(copied, key=lambda way: copied[way])
        rows: list[dict[str, Any]] = []
        for case in wanted:
            bar.update(task, description=case.name, advance=1)
            rows.append(measure(backend, case, copied[mark], repeat))
    figure = documents.figure("cheng", "figure_3")
    result = {
        **machine(backend.device),
        "backend": name,
        "mib": mib,
        "transfers": moved,
        "beside": beside.rows(figure, by_way(moved), "GB/s"),
        "claims": beside.claims(figure, by_way(moved), "GB/s"),
        "copies": copied,
        "mark": mark,
        "rows": rows,
    }
    if as_json:
        print(json.dumps(result, indent=2))
        return
    _print(result, figure)


def _print(result: dict[str, Any], figure: documents.Figure) -> None:
    """Print what was measured as tables."""
    out = Screen()
    hidden = ("transfers", "beside", "claims", "copies", "mark", "rows")
    out.say(", ".join(f"{k} {v}" for k, v in result.items() if k not in hidden))
    show(out, result["transfers"])
    beside.show(out, figure, by_way(result["transfers"]), "GB/s")
    told = ", ".join(f"{way} {number(speed)} GB/s" for way, speed in result["copies"].items())
    out.say(f"copies: {told}; the mark is {result['mark']}")
    shown = table("", "shape", "kernel", ">GB/s", ">of the copy", "by", ">error")
    for row in result["rows"]:
        if row["gb_s"] is None:
            shown.add(row["name"], row["shape"], row["reason"], "-", "-", "", "-")
            continue
        shown.add(
            row["name"], row["shape"], row["kernel"], number(row["gb_s"]),
            f"{100 * row['share']:.0f}%", "timer" if row["by_timer"] else "clock",
            "-" if row["error"] is None else f"{row['error']:.1e}",
        )  # fmt: skip
    out.show(shown, f"{result['mib']} MiB")


if __name__ == "__main__":
    run(main)
