"""What Cheng measured besides products: what goes before them, workgroups, errors, first runs.

His version 3 transposes the second operand first, by MatTrans of the same width, and in FP16 both
operands are converted first. Each of these parts is timed by itself, and a time is their sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod, sqrt
from statistics import fmean, median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import beside, documents
from benchmarks.arithmetic import rounds
from benchmarks.clblast import Clblast
from benchmarks.tables import table
from benchmarks.timing import CHECKED, TOLERANCE, exact, kernel_time
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number
from glnn.compiler import evaluate
from glnn.core.layout import parse
from glnn.core.types import DType, TensorType
from glnn.errors import GlnnError
from glnn.gl import Buffer, Program, Source
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Operator
from glnn.graph.operators import Matmul
from glnn.graph.operators.reorder import Reorder
from glnn.kernels import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import why_not
from glnn.profiling import time_work
from glnn.validation.comparison import relative_error

RUNS = 3  # of each workgroup
WARM_SECONDS = 0.03  # of each: the device is kept busy by those before


@dataclass(frozen=True)
class WorkgroupTimes:
    """Seconds of one launch in every run, whatever the workgroup, and the greatest error.

    workgroup: of the fastest run, invocations along x, y and z. error: None where the product is
    too large to be checked.
    """

    runs: tuple[float, ...]
    by_timer: bool
    workgroup: tuple[int, int, int]
    error: float | None

    @property
    def best(self) -> float:
        """Seconds of the fastest run."""
        return min(self.runs)

    @property
    def median(self) -> float:
        """Seconds of the median of all runs."""
        return median(self.runs)


def in_workgroups(kernel: Kernel) -> Iterator[Kernel]:
    """`kernel` in each of the workgroups that it declares with as many invocations as its own."""
    names = {name for quantity in kernel.launch.workgroup for name in quantity.names}
    tuned = {name: kernel.tune[name] for name in kernel.tune if name in names}
    size = prod(kernel.launch.local_size(kernel.defaults))
    for values in product(*tuned.values()):
        found = kernel.with_parameters(**dict(zip(tuned, values, strict=True)))
        if prod(found.launch.local_size(found.defaults)) == size:
            yield found


def workgroup_times(
    backend: GlBackend,
    op: Operator,
    operands: Mapping[str, NDArray[Any]],
    kernel: str,
    epilogue: Epilogue | None = None,
) -> WorkgroupTimes:
    """Time the kernel called `kernel` on `operands`, RUNS times in each workgroup.

    Raises GlnnError where it cannot run or a result is wrong.
    """
    types = {name: TensorType.from_array(array) for name, array in operands.items()}
    spec = OpSpec.create(op, types, {}, epilogue)
    declared = backend.choose(spec, kernel)
    layouts = backend.layouts(declared, spec)
    stores = {}
    for name, array in operands.items():
        stores[name] = backend.allocate(array.shape, layouts[name], dtype=DType.from_array(array))
        stores[name].set(np.ascontiguousarray(array))
        backend.upload(stores[name])
    expected = None
    if spec.cost.flops <= 2 * CHECKED:
        expected = spec.compute({name: exact(array) for name, array in operands.items()})
    runs: list[tuple[float, tuple[int, int, int]]] = []
    by_timer, worst = True, 0.0
    for one in in_workgroups(declared):
        if reason := why_not(one, spec, backend.device.capabilities):
            raise GlnnError(f"{kernel}: {reason}")
        if expected is not None:
            out = backend.allocate(spec.result_shape, layouts["out"])
            backend.prepare(one, spec, stores, out)()
            worst = max(worst, relative_error(out.pull(), expected))
            if not worst <= TOLERANCE:
                raise GlnnError(f"{kernel}: the result is off by {worst:.1e}, no time is given")
        # A result that was read back may stay on the host: another is timed.
        out = backend.allocate(spec.result_shape, layouts["out"])
        work = backend.prepare(one, spec, stores, out)
        timing = time_work(backend, work, RUNS, WARM_SECONDS)
        runs += [(seconds, one.launch.local_size(one.defaults)) for seconds in timing.runs]
        by_timer = by_timer and timing.by_timer
    error = None if expected is None else worst
    return WorkgroupTimes(tuple(seconds for seconds, _ in runs), by_timer, min(runs)[1], error)


Array = NDArray[Any]
Rows = list[dict[str, Any]]
VERSION_3 = re.compile(r"cheng_v3_w(\d+)")
IN_HALVES = " float16"  # behind the name of a kernel that is given them
WORKGROUPS = {"cheng_v3_w4": 16, "cheng_v3_w8": 16, "cheng_v3_w16": 64}  # his best, table 1
NO_FASTER = 0.95  # of the time: what takes less is faster
CLBLAST_RUNS = 10  # the first with its compilation
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
    spec = OpSpec.create(Matmul(), {k: TensorType.from_array(v) for k, v in operands.items()}, {})
    rows: Rows = []
    for name in WORKGROUPS:
        declared = backend.choose(spec, name)
        layouts = backend.layouts(declared, spec)
        stores = {k: backend.keep(v, layouts[k]) for k, v in operands.items()}
        for size in declared.tune["WG_X"]:
            one = declared.with_parameters(WG_X=size)
            if why_not(one, spec, backend.device.capabilities):
                continue
            checked, out = (backend.allocate(spec.result_shape, layouts["out"]) for _ in range(2))
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
    """CLBlast's mean of its runs with its compilation in the first, and a later one; as `rows`.

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
                for _ in range(CLBLAST_RUNS):
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
    long = row["first_ms"] > CLBLAST_RUNS * row["later_ms"]
    figure = documents.figure("cheng", "figure_12")
    return beside.answer(figure, "compilation of its kernels", here, "yes" if long else "no")
