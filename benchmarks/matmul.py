"""GFLOP/s of every matmul kernel on square matrices, beside the documents' own and other libraries.

Rovder 2017: table 7.1, figures 7.3, 7.4 and 7.7 (128 to 1152), table 8.2 and figure 8.3 (96 to
2880). Gronqvist: table 1.3. Cheng: figures 14 to 18. All of them counted on other GPUs; read ratios
between kernels, not between devices. Peers are measured where they are installed.

    python -m benchmarks.matmul --sizes 96,384,1152
    python -m benchmarks.matmul --kernels tiled,blocked,morton_4_2 --sizes 1024,4096 --json
    python -m benchmarks.matmul --plot matmul.png
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks.record import machine, milliseconds
from benchmarks.timing import kernel_time
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import console, progress, table
from glnn.errors import GlnnError
from glnn.kernels import kernels_for
from glnn.ops import Matmul

Array = NDArray[np.float32]
# GFLOP/s on the Mali-T628, Rovder 2017: table 7.1 (RM x RM, RM x CM) and table 8.2 (ARM's kernel
# as blocked_rm_cm, Morton 4-2, Morton 4-4).
ROVDER: dict[str, dict[int, float]] = {
    "cross_rm_rm": {128: 2.516, 256: 0.448, 384: 0.397, 512: 0.330, 640: 0.364, 768: 0.352,
                    896: 0.332, 1024: 0.304, 1152: 0.283},
    "cross_rm_cm": {128: 2.406, 256: 0.599, 384: 0.480, 512: 0.409, 640: 0.449, 768: 0.447,
                    896: 0.443, 1024: 0.428, 1152: 0.392},
    "blocked_rm_cm": {96: 11.65, 192: 13.65, 384: 13.08, 768: 12.90, 1440: 12.98, 2880: 2.14},
    "morton_4_2": {96: 13.04, 192: 14.86, 384: 14.19, 768: 13.67, 1440: 13.61, 2880: 13.65},
    "morton_4_4": {96: 12.05, 192: 13.93, 384: 12.94, 768: 12.45, 1440: 12.02, 2880: 11.98},
}  # fmt: skip
SIZES = "96,128,192,256,384,512,768,1024,1152"


def peers(a: Array, b: Array) -> Iterator[tuple[str, float]]:
    """(name, seconds) of NumPy and, where it is installed, of PyTorch without TF32."""
    yield "NumPy", milliseconds(lambda: a @ b, 5, 2)["median_ms"] / 1e3
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    left, right = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    out = torch.empty((len(a), b.shape[1]), device="cuda")
    count = 20

    def many() -> None:
        for _ in range(count):
            torch.mm(left, right, out=out)
        torch.cuda.synchronize()

    yield "PyTorch CUDA", milliseconds(many, 9, 5)["median_ms"] / 1e3 / count


def measure(backend: GlBackend, names: list[str], size: int) -> Iterator[dict[str, Any]]:
    """A row for each kernel that can run, and for each peer."""
    generator = np.random.default_rng(size)
    a, b = generator.random((2, size, size), dtype=np.float32) - np.float32(0.5)
    flops = 2 * size**3
    for name in names:
        row: dict[str, Any] = {"size": size, "name": name}
        row["rovder_gflops"] = ROVDER.get(name, {}).get(size)
        try:
            chosen = None if name == "default" else name
            timing = kernel_time(backend, Matmul(), {"x": a, "weight": b.T}, chosen)
        except GlnnError as error:
            yield {**row, "gflops": None, "reason": str(error)}
            continue
        row |= {"ms": 1e3 * timing.seconds, "by_timer": timing.by_timer, "error": timing.error}
        yield {**row, "gflops": flops / timing.seconds / 1e9}
    for name, seconds in peers(a, b):
        yield {"size": size, "name": name, "ms": 1e3 * seconds, "gflops": flops / seconds / 1e9}


@click.command()
@click.option("--sizes", default=SIZES, show_default=True, help="Sides of the matrices.")
@click.option("--kernels", help="Kernels to time, by commas; `default` is what glnn chooses.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(sizes: str, kernels: str | None, plot: Path | None, as_json: bool) -> None:
    """Time the matmul kernels of the compute backend on square matrices."""
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    known = [kernel.name for kernel in kernels_for("matmul", "compute")]
    names = kernels.split(",") if kernels else ["default", *(n for n in known if n != "matvec")]
    rows: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        for size in bar.track([int(s) for s in sizes.split(",")], description="timing"):
            rows += measure(backend, names, size)
    result = {**machine(backend.device), "rows": rows}
    if plot is not None:
        draw(rows, plot)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    out = console()
    out.print(", ".join(f"{k} {v}" for k, v in result.items() if k != "rows"))
    order = list(dict.fromkeys(row["size"] for row in rows))
    shown = table("GFLOP/s (Rovder's on the Mali-T628)", "kernel", *(f">{n}" for n in order))
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = {row["size"]: row for row in rows if row["name"] == name}
        shown.add_row(name, *(_cell(cells.get(size, {})) for size in order))
    out.print(shown)


def _cell(row: dict[str, Any]) -> str:
    if row.get("gflops") is None:
        return "-"
    theirs = row.get("rovder_gflops")
    return f"{row['gflops']:.4g}" + (f" ({theirs:g})" if theirs else "")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """GFLOP/s over the size, a line a kernel."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise GlnnError("--plot needs matplotlib: install glnn[bench]") from None
    figure, axes = pyplot.subplots(figsize=(9, 6))
    for name in dict.fromkeys(row["name"] for row in rows):
        points = [(r["size"], r["gflops"]) for r in rows if r["name"] == name and r.get("gflops")]
        if points:
            axes.loglog(*zip(*points, strict=True), marker="o", label=name)
    axes.set_xlabel("size")
    axes.set_ylabel("GFLOP/s")
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
