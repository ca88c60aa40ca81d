"""What Cheng measured besides products: what goes before them, workgroups, errors, first runs.

His version 3 transposes the second operand first, by MatTrans of the same width, and in FP16 both
operands are converted first. Each of these parts is timed by itself, and a time is their sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import sqrt
from statistics import fmean, median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import beside, documents
from benchmarks.arithmetic import rounds
from benchmarks.clblast import Clblast
from benchmarks.tables import table
from benchmarks.timing import kernel_time
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number
from glnn.compiler import evaluate
from glnn.core.layout import parse
from glnn.core.types import DType, TensorType
from glnn.errors import GlnnError
from glnn.gl import Buffer, Program, Source
from glnn.graph.operators import Matmul
from glnn.graph.operators.reorder import Reorder
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import why_not
from glnn.profiling import time_work
from glnn.validation.comparison import relative_error

Array = NDArray[Any]
Rows = list[dict[str, Any]]
VERSION_3 = re.compile(r"cheng_v3_w(\d+)")
IN_HALVES = " float16"  # behind the name of a kernel that is given them
WORKGROUPS = {"cheng_v3_w4": 16, "cheng_v3_w8": 16, "cheng_v3_w16": 64}  # his best, table 1
NO_FASTER = 0.95  # of the time: what takes less is faster
RUNS = 10  # of CLBlast, the first with its compilation
COMPILED_ANEW = {"CUDA_CACHE_DISABLE": "1", "POCL_KERNEL_CACHE": "0"}
"""Set before OpenCL is: drivers do not take what they compiled in an earlier process."""
FAR = 0.1  # the error of an element that he found
GROUP = 64
CONVERSION = """\
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { uvec2 result[]; };
uniform int quads;
void main() {
    int i = int(gl_GlobalInvocationID.y * gl_NumWorkGroups.x * 64u + gl_GlobalInvocationID.x);
    if (i < quads) result[i] = uvec2(packHalf2x16(x[i].xy), packHalf2x16(x[i].zw));
}
"""


def whole(backend: GlBackend, rows: Rows) -> Rows:
    """`rows` of products, with what goes before those of version 3 in time and rate.

    `parts_ms` has the product, the transposition and, of float16 operands, the conversion.
    """
    transposed: dict[tuple[str, int], float] = {}
    converted: dict[int, float] = {}
    found = []
    for row in rows:
        width, n = VERSION_3.match(row["name"]), int(row["size"])
        if width is None or not row["gflops"]:
            found.append(row)
            continue
        key = width[1], n
        if key not in transposed:
            transposed[key] = transposition(backend, *key)
        parts = {"product": row["ms"], "transposition": 1e3 * transposed[key]}
        if row["name"].endswith(IN_HALVES):
            if n not in converted:
                converted[n] = conversion(backend, 2 * n * n)
            parts["conversion"] = 1e3 * converted[n]
        total = sum(parts.values())
        rate = row["gflops"] * row["ms"] / total
        found.append({**row, "ms": total, "gflops": rate, "parts_ms": parts})
    return found


def transposition(backend: GlBackend, width: str, n: int) -> float:
    """Seconds that MatTrans of `width` takes of n x n numbers."""
    given = np.random.default_rng(n).random((n, n), dtype=np.float32).T
    op = Reorder("C", "R4")
    return kernel_time(backend, op, {"x": given}, f"cheng_trans_w{width}").seconds


def conversion(backend: GlBackend, count: int) -> float:
    """Seconds that a shader takes to round so many numbers, a multiple of 8, to FP16.

    Raises GlnnError where it rounds them otherwise.
    """
    device, quads = backend.device, count // 4
    given = np.random.default_rng(count).random(count, dtype=np.float32)
    source = Buffer((count,), parse("R"))
    source.set(given)
    text = device.capabilities.header("compute") + CONVERSION
    origin = tuple(("conversion", i) for i in range(1, len(text.splitlines()) + 1))
    checked, out = (Buffer((count // 2,), parse("R"), dtype=DType.int32) for _ in range(2))

    def prepared() -> Program:
        made = Program.compute(device, Source("conversion", text, origin))
        made.set({"quads": quads})
        return made

    program = backend.perform(prepared)

    def work(into: Buffer = out) -> None:
        source.push(device).bind_to_storage_buffer(0)
        into.push(device).bind_to_storage_buffer(1)
        program.dispatch((GROUP, -(-quads // GROUP // GROUP), 1))
        device.barrier()

    backend.perform(lambda: work(checked))
    checked.mark_written()
    got = backend.perform(checked.pull).view(np.float16)
    if not np.abs(got - given).max() <= 2**-11:
        raise GlnnError("the conversion to float16 is wrong, no time is given")
    return time_work(backend, work).seconds


def workgroups(backend: GlBackend, n: int) -> Rows:
    """The time of each width of version 3 in each of its workgroups, of n x n products."""
    generator = np.random.default_rng(n)
    operands = {name: generator.random((n, n), dtype=np.float32) for name in ("x", "weight")}
    expected = operands["x"].astype(np.float64) @ operands["weight"].T
    spec = OpSpec.create(Matmul(), {k: TensorType.of(v) for k, v in operands.items()}, {})
    rows: Rows = []
    for name in WORKGROUPS:
        declared = backend.choose(spec, name)
        layouts = backend.layouts(declared, spec)
        stores = {k: backend.keep(v, layouts[k]) for k, v in operands.items()}
        for size in declared.tune["WG_X"]:
            one = declared.with_parameters(WG_X=size)
            if why_not(one, spec, backend.device.capabilities):
                continue
            checked, out = (backend.allocate(spec.output, layouts["out"]) for _ in range(2))
            backend.prepare(one, spec, stores, checked)()
            if not (error := relative_error(checked.pull(), expected)) <= one.tolerance:
                raise GlnnError(f"{name}: the result is off by {error:.1e}, no time is given")
            timing = time_work(backend, backend.prepare(one, spec, stores, out), 5)
            rows.append({"kernel": name, "WG_X": size, "n": n, "ms": 1e3 * timing.seconds})
    return rows


def errors(backend: GlBackend, sizes: Iterable[int]) -> Rows:
    """The greatest error of an element by size, of operands between 0 and 1 in FP16.

    It grows with the square of the numbers: `reaches` is up to where they must go for FAR.
    """
    rows: Rows = []
    for n in sizes:
        generator = np.random.default_rng(n)
        x, weight = (generator.random((n, n), dtype=np.float32) for _ in range(2))
        halves = {"x": x.astype(np.float16), "weight": weight.astype(np.float16)}
        got = evaluate(Matmul(), halves, backend, "cheng_v3_w4_mediump")
        error = float(np.abs(got - x.astype(np.float64) @ weight.T.astype(np.float64)).max())
        rows.append({"n": n, "error": error, "reaches": sqrt(FAR / error)})
    return rows


def first_runs(sizes: Iterable[int]) -> Rows:
    """CLBlast's mean of RUNS runs with its compilation in the first, and a later one; as `rows`.

    Empty where CLBlast is not installed. Compiled anew only where COMPILED_ANEW was set in time.
    """
    rows: Rows = []
    try:
        for n in sizes:
            with Clblast() as blast:
                generator = np.random.default_rng(n)
                a, b = (blast.upload(generator.random((n, n), np.float32)) for _ in range(2))
                c = blast.upload(np.zeros((n, n), np.float32))
                times = []
                for _ in range(RUNS):
                    begun = perf_counter()
                    blast.gemm(a, b, c, (n, n, n))
                    blast.queue.finish()
                    times.append(perf_counter() - begun)
            row = {"size": str(n), "name": "clblast", "ms": 1e3 * fmean(times)}
            row |= {"first_ms": 1e3 * times[0], "later_ms": 1e3 * median(times[1:])}
            rows.append({**row, "gflops": 2 * n**3 / fmean(times) / 1e9})
    except GlnnError:
        return []
    return rows


def more(backend: GlBackend, rows: Rows) -> dict[str, Any]:
    """What else the document measures, beside it, for the JSON; `rows`: of the products."""
    sizes = sorted({int(row["size"]) for row in rows})
    tried, far = workgroups(backend, sizes[-1]), errors(backend, sizes)
    fastest = {
        name: min((row for row in tried if row["kernel"] == name), key=lambda row: row["ms"])
        for name in WORKGROUPS
    }
    best = {(name, "WG_X"): float(row["WG_X"]) for name, row in fastest.items()}
    highest = _highest(rows)
    honoured = backend.perform(lambda: rounds(backend.device))
    table_1, figure_26 = (documents.figure("cheng", key) for key in ("table_1", "figure_26"))
    firsts = [row for row in rows if row["name"] == "clblast"]
    return {
        "mediump": "computed in FP16" if honoured else "computed in FP32: products are rounded",
        "workgroups": tried,
        "errors": far,
        "beside": [
            *beside.rows(table_1, best, "work-items"),
            *beside.rows(figure_26, highest, "GFLOP/s"),
        ],
        "claims": [
            _said_of_workgroups(table_1, tried),
            *beside.claims(figure_26, highest),
            _said_of_errors(far),
            *(_said_of_compilation(row) for row in firsts[:1]),
        ],
    }


def show_parts(out: Screen, rows: Rows) -> None:
    """Print what the times of version 3 are the sums of."""
    shown = table("kernel", ">size", ">product", ">transposition", ">conversion", ">ms in all")
    for row in rows:
        if parts := row.get("parts_ms"):
            times = (parts.get(name) for name in ("product", "transposition", "conversion"))
            cells = ("-" if ms is None else number(ms) for ms in times)
            shown.add(row["name"], row["size"], *cells, number(row["ms"]))
    out.show(shown, "version 3 in parts, each timed by itself, ms")


def _highest(rows: Rows) -> dict[tuple[str, str], float]:
    """The highest rate of the CPU and of Cheng's kernels in FP32."""
    ours = [row for row in rows if row["gflops"] and "float16" not in row["name"]]
    sides = {"cpu": "NumPy", "gpu": "cheng_"}
    rates = {
        side: [row["gflops"] for row in ours if row["name"].startswith(name)]
        for side, name in sides.items()
    }
    return {(side, "highest"): max(found) for side, found in rates.items() if found}


def _said_of_workgroups(figure: documents.Figure, tried: Rows) -> dict[str, Any]:
    """Whether workgroups smaller than his best are slower, and larger ones no faster."""
    holds, told = 0, []
    for name, best in WORKGROUPS.items():
        times = {row["WG_X"]: row["ms"] for row in tried if row["kernel"] == name}
        own = times.get(best, 0.0)
        smaller = all(ms * NO_FASTER > own for size, ms in times.items() if size < best)
        larger = all(ms > own * NO_FASTER for size, ms in times.items() if size > best)
        holds += smaller and larger
        each = ", ".join(f"{size}: {ms:.3g}" for size, ms in sorted(times.items()))
        told.append(f"{name} {each}")
    verdict = {0: "no", len(WORKGROUPS): "yes"}.get(holds, "in part")
    here = f"ms by workgroup at {tried[0]['n']}: {'; '.join(told)}"
    return beside.answer(figure, "smaller workgroups are slower", here, verdict)


def _said_of_errors(found: Rows) -> dict[str, Any]:
    """Whether the error of an element reaches FAR beyond 64."""
    beyond = [row for row in found if row["n"] > 64]
    reached = bool(beyond) and all(row["error"] >= FAR for row in beyond)
    grows = bool(beyond) and found[-1]["error"] > found[0]["error"]
    errors_here = ", ".join(f"{row['error']:.2g} at {row['n']}" for row in found)
    last = found[-1]
    here = (
        f"of numbers between 0 and 1 {errors_here}; it grows with their square, and is {FAR} at "
        f"{last['n']} where they go up to {last['reaches']:.2g}"
    )
    figure = documents.figure("cheng", "figure_18")
    met = "yes" if reached else "in part" if grows else "no"
    return beside.answer(figure, "the error of an element", here, met)


def _said_of_compilation(row: Mapping[str, Any]) -> dict[str, Any]:
    """Whether CLBlast's first run is long for its compilation."""
    here = f"at {row['size']} the first run takes {1e3 * row['first_ms']:,.0f} us, "
    here += f"later ones {1e3 * row['later_ms']:,.0f} us"
    long = row["first_ms"] > RUNS * row["later_ms"]
    figure = documents.figure("cheng", "figure_12")
    return beside.answer(figure, "compilation of its kernels", here, "yes" if long else "no")
