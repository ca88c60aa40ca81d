"""GFLOP/s of every matmul kernel, beside the documents' own and other libraries.

Each document's tables and figures come with one command: Rovder 2017, table 7.1, figures 7.3, 7.4
and 7.7, table 8.2 and figure 8.3; Gronqvist, tables 1.3 and 1.4; Cheng, table 1 and figures 11, 12,
14 to 19, 26 and 28. They were measured on other GPUs: read ratios between kernels, not between
devices. Peers are measured in the same run where they are installed. Gronqvist's products are
alpha A B + beta C, of 2 n^2 (n + 1) operations, and each kernel is run three times in each of its
workgroups, as his were: its best run counts, and the median of all is shown with it. Cheng's
version 3 counts with its transposition, and in FP16 with the conversion of both operands: parts
that are timed each by itself and added up.

    python -m benchmarks.matmul --sizes 96,384,1152
    python -m benchmarks.matmul --kernels default,morton_4_2 --sizes 1024,4096 --json
    python -m benchmarks.matmul --sizes 1x4096x25088 --alpha-beta
    python -m benchmarks.matmul --sizes 8x8x8,7x7x32 --batch 1000
    python -m benchmarks.matmul --document rovder_2017 --plot figures/
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks import beside, cheng, documents
from benchmarks.cheng import WorkgroupTimes, workgroup_times
from benchmarks.clblast import Clblast
from benchmarks.command import check_folder, check_picture, run
from benchmarks.record import machine, milliseconds
from benchmarks.roofline import peak_gflops
from benchmarks.tables import table
from benchmarks.timing import kernel_time
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, Table, progress
from glnn.errors import GlnnError
from glnn.graph.epilogue import gemm
from glnn.graph.operators import Matmul
from glnn.kernels import kernels_for
from glnn.validation.comparison import relative_error

Array = NDArray[np.float32]
Peer = Callable[[Array, Array, Array | None], "tuple[float, Array]"]
HALVES = " float16"  # behind a kernel's name: of operands of float16
MEDIAN = " median"  # behind a kernel's name: of its runs in all workgroups, not the best of them
IN_WORKGROUPS = ("gronqvist",)  # documents with alpha A B + beta C in several workgroups
SIZES = "96,128,192,256,384,512,768,1024,1152"
ALPHA, BETA = 1.5, 0.5
PEER_ROWS = {"cpu": "NumPy"}  # what a document calls it, and what is measured here


def numpy_peer(a: Array, b: Array, c: Array | None) -> tuple[float, Array]:
    """Seconds and result of NumPy's BLAS, of stacks matrix by matrix."""

    def work() -> Array:
        result: Array = a @ b
        if c is not None:
            result = np.float32(ALPHA) * result + np.float32(BETA) * c
        return result

    once = milliseconds(work, 1, 1)["median_ms"]
    return milliseconds(work, max(3, min(50, int(100 / once))), 0)["median_ms"] / 1e3, work()


def torch_peer() -> Peer | None:
    """PyTorch on CUDA without TF32, timed by CUDA's events; None where there is none."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = False

    def run(a: Array, b: Array, c: Array | None) -> tuple[float, Array]:
        left, right = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
        given = None if c is None else torch.from_numpy(c).cuda()
        out = torch.empty((*a.shape[:-1], b.shape[-1]), device="cuda")

        def work() -> None:
            if given is None:
                torch.matmul(left, right, out=out)
            else:
                add = torch.addmm if given.ndim == 2 else torch.baddbmm
                add(given, left, right, beta=BETA, alpha=ALPHA, out=out)

        def seconds(count: int) -> float:
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            for _ in range(count):
                work()
            end.record()
            torch.cuda.synchronize()
            return float(start.elapsed_time(end)) / 1e3 / count

        seconds(3)
        count = max(1, int(0.02 / seconds(10)))
        seconds(5 * count)  # a GPU that idles lowers its clocks
        return float(np.median([seconds(count) for _ in range(7)])), out.cpu().numpy()

    return run


def installed_peers() -> dict[str, Peer]:
    """What is installed here to compare with."""
    found: dict[str, Peer] = {"NumPy": numpy_peer}
    if (torch := torch_peer()) is not None:
        found["PyTorch CUDA"] = torch
    try:
        blast = Clblast()
    except GlnnError:
        return found

    def clblast(a: Array, b: Array, c: Array | None) -> tuple[float, Array]:
        if c is None:
            return blast.sgemm_seconds(a, b, 7)
        return blast.sgemm_seconds(a, b, 7, alpha=ALPHA, beta=BETA, c=c)

    found[f"CLBlast on {blast.device}"] = clblast
    return found


def measure(
    backend: GlBackend,
    names: list[str],
    size: str,
    others: dict[str, Peer],
    scaled: bool,
    workgroups: bool = False,
    batch: int = 1,
) -> Iterator[dict[str, Any]]:
    """A row for each kernel that can run on matrices of `size`, and for each peer.

    scaled: ALPHA A B + BETA C. workgroups: the best of each kernel's workgroups. batch: how many
    products of that size, where there are several.
    """
    m, n, k = shape_of(size)
    generator = np.random.default_rng(m + n + k)
    stack = (batch,) if batch > 1 else ()
    a = generator.random((*stack, m, k), dtype=np.float32) - np.float32(0.5)
    b = generator.random((*stack, k, n), dtype=np.float32) - np.float32(0.5)
    c = generator.random((*stack, m, n), dtype=np.float32) if scaled else None
    op, epilogue = Matmul(), gemm(ALPHA, BETA) if scaled else None
    operands = {"x": a.reshape(-1, k), "weight": b.swapaxes(-1, -2)}
    operands |= {"e1": c.reshape(-1, n)} if c is not None else {}
    halves = {n: v.astype(np.float16) if n != "e1" else v for n, v in operands.items()}
    flops = 2 * batch * m * n * (k + scaled)
    for name in names:
        row: dict[str, Any] = {"size": size, "name": name}
        plain = name.removesuffix(HALVES)
        try:
            kernel = None if plain == "default" else plain
            given = operands if plain == name else halves
            if workgroups and kernel is not None:
                row |= _best(workgroup_times(backend, op, given, kernel, epilogue), kernel, flops)
            else:
                timing = kernel_time(backend, op, given, kernel, epilogue=epilogue)
                row |= {"kernel": timing.kernel, "ms": 1e3 * timing.seconds}
                row |= {"by_timer": timing.by_timer, "error": timing.error}
                row["deviation"] = timing.deviation
                row["gflops"] = flops / timing.seconds / 1e9
        except GlnnError as error:
            row |= {"gflops": None, "reason": str(error)}
        yield row
    exact = None
    if others and flops <= 1 << 32:
        exact = a.astype(np.float64) @ b
        exact = exact if c is None else ALPHA * exact + BETA * c
    for name, peer in others.items():
        seconds, result = peer(a, b, c)
        off = None if exact is None else relative_error(result, exact)
        row = {"size": size, "name": name, "ms": 1e3 * seconds, "error": off}
        yield {**row, "gflops": flops / seconds / 1e9}


def _best(times: WorkgroupTimes, kernel: str, flops: int) -> dict[str, Any]:
    """What a row says of a kernel's runs in all of its workgroups."""
    return {
        "kernel": kernel,
        "ms": 1e3 * times.best,
        "by_timer": times.by_timer,
        "error": times.error,
        "gflops": flops / times.best / 1e9,
        "median_gflops": flops / times.median / 1e9,
        "runs": len(times.runs),
        "workgroup": list(times.workgroup),
    }


def shape_of(size: str) -> tuple[int, int, int]:
    """Rows, columns and the length of the sums of a size."""
    parts = [int(part) for part in size.split("x")]
    m, n, k = parts * 3 if len(parts) == 1 else parts
    return m, n, k


def sizes_of(text: str) -> list[str]:
    """The sizes in `text`, as 96 or 1x64x256, by commas. Raises GlnnError."""
    sizes = [part.strip() for part in text.split(",")]
    for size in sizes:
        parts = size.split("x")
        known = all(p.isascii() and p.isdecimal() and int(p) > 0 for p in parts)
        if len(parts) not in (1, 3) or not known:
            raise GlnnError(f"--sizes: expected numbers as 96 or 1x64x256, got {size!r}")
    return sizes


def _names(text: str | None) -> list[str]:
    known = ["default", *(kernel.name for kernel in kernels_for("matmul", "compute"))]
    names = text.split(",") if text else [n for n in known if n != "gemv"]
    if unknown := [name for name in names if name.removesuffix(HALVES) not in known]:
        raise GlnnError(f"--kernels: no kernel {unknown[0]!r}, expected {', '.join(known)}")
    return names


@click.command(help=__doc__)
@click.option("--sizes", help=f"N or MxNxK, by commas; {SIZES} unless a document says.")
@click.option("--kernels", help="Kernels to time, by commas; `default` is what glnn chooses.")
@click.option(
    "--document",
    type=click.Choice(documents.NAMES),
    help="Measure what this document measured, and print its numbers beside ours.",
)
@click.option("--alpha-beta", is_flag=True, help=f"{ALPHA} A B + {BETA} C instead of A B.")
@click.option("--batch", default=1, type=click.IntRange(1), help="So many products in a stack.")
@click.option("--peers/--no-peers", default=True, help="Also time other libraries.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw to this file, or folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    sizes: str | None,
    kernels: str | None,
    document: str | None,
    alpha_beta: bool,
    batch: int,
    peers: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    drawn = list(_products(document)) if document else []
    wanted = _wanted(drawn, sizes, kernels)
    (check_folder if drawn else check_picture)(plot)
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    if document == "cheng":
        os.environ |= cheng.COMPILED_ANEW
    others = installed_peers() if peers else {}
    if batch > 1:  # CLBlast is asked for one product at a time
        others = {name: peer for name, peer in others.items() if not name.startswith("CLBlast")}
    best = document in IN_WORKGROUPS
    rows: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        peak = peak_gflops(backend.device)
        for size, names in bar.track(wanted.items(), description="timing"):
            rows += measure(backend, names, size, others, alpha_beta or best, best, batch)
        if document == "cheng":
            rows = cheng.whole(backend, rows)
            rows += cheng.first_runs(map(int, wanted)) if peers else []
    for row in rows:
        row["utilisation"] = row["gflops"] / peak if row["gflops"] else None
    ours = _ours(rows)
    result = {**machine(backend.device), "peak_gflops": peak, "rows": rows}
    if drawn:
        result["beside"] = [entry for f in drawn for entry in beside.rows(f, ours, "GFLOP/s")]
        claims = [entry for f in drawn for entry in beside.claims(f, ours)]
        result["claims"] = [*claims, *(deviations(rows) if document == "rovder_2017" else ())]
    if document == "cheng":
        more = cheng.more(backend, rows)
        result["beside"] += more.pop("beside")
        result["claims"] += more.pop("claims")
        result |= more
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(result, drawn, ours)
    if plot is not None:
        _draw(plot, drawn, rows, ours)


def _print(result: dict[str, Any], drawn: list[documents.Figure], ours: documents.Ours) -> None:
    out = Screen()
    hidden = ("rows", "beside", "claims", "workgroups", "errors")
    out.say(", ".join(f"{k} {v}" for k, v in result.items() if k not in hidden))
    out.show(_table(result["rows"]), "GFLOP/s (share of the peak)")
    if any("parts_ms" in row for row in result["rows"]):
        cheng.show_parts(out, result["rows"])
    for figure in drawn:
        beside.show(out, figure, ours, "GFLOP/s")
    for entry in result.get("claims", ()):
        if "holds" in entry:
            out.say(f"  it says: {entry['claim']}; here, {entry['holds']}: {entry['here']}")


def deviations(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Whether those of table 7.1 are no greater than the document's greatest, if any is known."""
    figure = documents.figure("rovder_2017", "table_7_1")
    off = [row["deviation"] for row in rows if row["name"] in figure.rows and row["gflops"]]
    theirs = [
        figure.errors[row][size] / rate
        for row, rates in figure.rows.items()
        for size, rate in rates.items()
    ]
    if off:
        here = f"the standard error is {max(off):.2%} at most, the document's {max(theirs):.2%}; "
        here += "a run here has many launches"
        holds = "yes" if max(off) <= max(theirs) else "no"
        yield beside.answer(figure, "the deviations of ten runs", here, holds)


def _products(document: str) -> Iterator[documents.Figure]:
    """The tables and figures of a document that are of matrix products by size."""
    known = {kernel.name for kernel in kernels_for("matmul", "compute")} | set(PEER_ROWS)
    for figure in documents.figures(document):
        by_size = figure.columns_here and all(c.isdecimal() for c in figure.columns_here)
        if by_size and known & set(figure.rows_here) and figure.unit in ("GFLOP/s", "us"):
            yield figure


def _wanted(
    drawn: list[documents.Figure], sizes: str | None, kernels: str | None
) -> dict[str, list[str]]:
    """The kernels to time at each size."""
    if not drawn:
        return dict.fromkeys(sizes_of(sizes or SIZES), _names(kernels))
    if kernels is not None:
        raise GlnnError(f"--kernels: expected none beside --document, got {kernels}")
    columns = {column for figure in drawn for column in figure.columns_here}
    for size in sizes_of(sizes) if sizes is not None else ():
        if size not in columns:
            known_sizes = ", ".join(sorted(columns, key=int))
            raise GlnnError(f"--sizes: expected some of {known_sizes}, got {size}")
    known = {kernel.name for kernel in kernels_for("matmul", "compute")}
    wanted: dict[str, list[str]] = {}
    for figure in drawn:
        for column in figure.columns_here:
            if sizes is None or column in sizes_of(sizes):
                rows = (name.removesuffix(MEDIAN) for name in figure.rows_here)
                names = [n for n in rows if n.removesuffix(HALVES) in known]
                wanted[column] = list(dict.fromkeys([*wanted.get(column, []), *names]))
    return {size: wanted[size] for size in sorted(wanted, key=int)}


def _ours(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    ours = {(row["name"], row["size"]): row["gflops"] for row in rows if row["gflops"]}
    medians = [row for row in rows if "median_gflops" in row]
    ours |= {(row["name"] + MEDIAN, row["size"]): row["median_gflops"] for row in medians}
    for theirs, name in PEER_ROWS.items():
        ours |= {(theirs, size): rate for (row, size), rate in ours.items() if row == name}
    return ours


def _table(rows: list[dict[str, Any]]) -> Table:
    order = list(dict.fromkeys(row["size"] for row in rows))
    shown = table("kernel", *(f">{size}" for size in order))
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = {row["size"]: row for row in rows if row["name"] == name}
        shown.add(name, *(_cell(cells.get(size, {})) for size in order))
    return shown


def _cell(row: dict[str, Any]) -> str:
    if row.get("gflops") is None:
        return "-"
    return f"{row['gflops']:.4g} ({100 * row['utilisation']:.0f}%)"


def _draw(
    path: Path, drawn: list[documents.Figure], rows: list[dict[str, Any]], ours: documents.Ours
) -> None:
    if drawn:
        beside.draw(path, drawn, ours, "GFLOP/s")
        return
    names = tuple(dict.fromkeys(row["name"] for row in rows))
    sizes = tuple(dict.fromkeys(row["size"] for row in rows))
    whole = documents.Figure(
        path.stem, "matrix products", "this device", "", "GFLOP/s", {}, names, sizes
    )
    beside.picture(path, whole, ours, "GFLOP/s")


if __name__ == "__main__":
    run(main)
