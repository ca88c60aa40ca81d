"""What board GPUs' compilers make of the kernels: tables from an offline compiler's statistics.

Where each board's own driver opens, if only its compiler, write the sources that it admits; compile
them with what prints one JSON object a line (keys: target, file, ok; stats with registers, threads,
spills, fills, inst; loops with the instructions of each loop; where it failed log, and rc "timeout"
where it ran out of time), and give all lines to this script; it writes the tables in Markdown.

    for board in mali-t760 mali-t860 mali-g31 mali-g52 mali-g610 v3d-4.2 v3d-7.1 \\
                 adreno-630 adreno-306; do
        … run $board glnn kernels --export sources/$board --admissible >/dev/null
        … stats $board sources/$board/*
    done >lines
    python -m benchmarks.board_compilers <lines >benchmarks/board_compilers.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.documents import figure
from glnn.kernels import Kernel, library
from glnn.kernels.architecture import architecture_called
from glnn.kernels.manifest import SUITS, UNFIT, Range

HEAD = """\
# The kernels on board GPUs

Compiled by Mesa 25.0.7's own board drivers without the boards: static statistics, no speed and no
results. Every kernel with the parameters that it would run with on the board, convolutions as 3 x 3
with a bias and a ReLU. What is generated is there with each of the examples that its generator has,
as `gather-compute-rows`. What a board is not given is not compiled for it. It is `unfit` where its
declaration says so, as it would spill there; else it is refused for the device's limits, as those
of invocations, shared memory, storage blocks or texture buffers. Where there are no compute shaders
cells are empty. `python -m benchmarks.board_compilers` writes this page.
"""
CHOICE = """\
## Large matrix products: the default against the baseline

The inner loop of `gemm_blocked` and of `gemm_blocked_column_major`, which V3D is given, with the
architecture's parameters, and of Rovder's `cross_rm_rm`: multiply-adds and loads of up to four
floats for each time around, registers, threads in flight (waves on Adreno) and spills.
"""
SOBEL = """\
## Gronqvist's Sobel kernels on Midgard

Beside table 1.1, of a Mali-T604: words of arithmetic (A) and of loads and stores (LS) an item, and
the most items a core. Here the words are all of an invocation, and the items those that its
registers leave room for, by 64 for each of the compiler's threads. An invocation of `char` makes
four pixels, one after the other: its words are those of the loop, once, and of what is about it.
"""
ALL = """\
## All kernels

A cell gives instructions and registers (`r`) or, where the compiler counts those only, threads in
flight (`t`) or waves (`w`); `spills` are those of registers to memory, which should never happen.
A kernel behind a prologue is `not given` where the board has another one for that, as Mali has
`gemm_blocked_prologue`, not `gemm_blocked`.
"""
STAGES = ("COMPUTE", "VERTEX", "VERTEX_BIN", "VERT", "CL", "CS")
KERNELS = {f"{k.op}-{k.name}{k.path.suffix}": k for k in library()}
CHOSEN = "matmul-gemm_blocked.comp", "matmul-gemm_blocked_column_major.comp"
BASELINE = "matmul-cross_rm_rm.comp"
TIMEOUT = "timeout"
MIDGARD = "Midgard"
MIDGARD_ITEMS = 64  # a core, for each thread that the compiler counts
FOUR = 4  # Midgard counts a vec4 multiplication as one instruction


def kernel_of(file: str) -> Kernel:
    """The kernel whose source `file` is, an example of it perhaps."""
    path = Path(file)
    op, name, *_ = path.stem.split("-")
    return KERNELS[f"{op}-{name}{path.suffix}"]


def statistics(entry: dict[str, Any]) -> dict[str, Any]:
    """The statistics of the stage that matters; none where there are none."""
    found = [s for s in entry["stats"] if str(s.get("shader", "")).upper() in STAGES]
    # V3D captures while binning: the longest stage is the one.
    return max(found, key=lambda s: int(s.get("inst") or 0), default={})


def spills(stats: dict[str, Any]) -> int:
    """Registers moved to memory and back."""
    return sum(int(stats.get(key) or 0) for key in ("spills", "fills", "stp", "ldp"))


def replaced(entry: dict[str, Any]) -> bool:
    """Whether it is of a prologue, behind which the board is given another kernel."""
    if not Path(entry["file"]).stem.endswith("-prologue"):
        return False
    kernel, board = kernel_of(entry["file"]), architecture_called(entry["target"])
    return 1 not in kernel.suits.get("prologue", Range()) or any(
        other.path == kernel.path
        and other.layouts == kernel.layouts
        and other.priority > kernel.priority
        and "prologue" in other.suits
        and other.architectures.fit(board) == SUITS
        for other in KERNELS.values()
    )


def cell(entry: dict[str, Any]) -> str:
    """What one compiler says of one shader."""
    if entry.get("rc") == TIMEOUT:
        return "out of time"
    if not entry["ok"]:
        return f"does not compile: {entry.get('log', '')[:60]}"
    stats = statistics(entry)
    if not stats:
        return "compiles"
    text = str(stats.get("inst", "?"))
    for key, letter in (("registers", "r"), ("threads", "t"), ("waves", "w")):
        if stats.get(key) is not None:
            text += f" {stats[key]}{letter}"
            break
    return f"{text}, {spills(stats)} spills" if spills(stats) else text


def of_kernel(entry: dict[str, Any]) -> str:
    """What is said of a kernel that was compiled for a board."""
    return "not given" if replaced(entry) else cell(entry)


def absent(target: str, file: str, able: bool) -> str:
    """Why `file` was not compiled for `target`. able: whether any of its kind was."""
    if not able:
        return ""
    fit = kernel_of(file).architectures.fit(architecture_called(target))
    return "unfit" if fit == UNFIT else "refused"


def inner_loop(entry: dict[str, Any]) -> tuple[int, int]:
    """Multiply-adds and loads of up to four floats in the loop that multiplies the most."""
    loops = [loop for stage in entry.get("loops") or [] for loop in stage["loops"]]
    midgard = architecture_called(entry["target"]) == MIDGARD
    vectors = FOUR if midgard and entry["file"] in CHOSEN else 1
    counted = [
        (
            int(loop.get("fma") or loop.get("mad_f") or vectors * loop.get("fmul", 0)),
            int(loop.get("ld") or loop.get("ldib") or loop.get("tmua", 0)),
        )
        for loop in loops
        if loop.get("inner", True)
    ]
    return max(counted, default=(0, 0))


def choice(entries: dict[tuple[str, str], dict[str, Any]], targets: list[str]) -> list[str]:
    """The rows that set the default against the baseline."""
    heads = (
        "board",
        "kernel",
        "multiply-adds",
        "loads",
        "a load",
        "registers",
        "threads",
        "spills",
    )
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for target in targets:
        for file in (*CHOSEN, BASELINE):
            entry = entries.get((target, file))
            if entry is None or not entry["ok"]:
                continue
            kernel = kernel_of(file).for_architecture(architecture_called(target))
            values = " ".join(f"{k}={v}" for k, v in kernel.defaults.items())
            stats = statistics(entry)
            multiplied, loads = inner_loop(entry)
            ratio = f"{multiplied / loads:.1f}" if loads else "-"
            registers = stats.get("registers", stats.get("full", stats.get("max-temps", "-")))
            threads = stats.get("threads", stats.get("waves", "-"))
            cells = (
                target,
                f"{kernel.name} {values}",
                multiplied,
                loads,
                ratio,
                registers,
                threads,
                spills(stats),
            )
            rows.append(f"| {' | '.join(map(str, cells))} |")
    return rows


def sobel(entries: dict[tuple[str, str], dict[str, Any]], targets: list[str]) -> list[str]:
    """The rows that set the document's kernels beside its table; none where no Midgard is there."""
    boards = [target for target in targets if architecture_called(target) == MIDGARD]
    theirs = figure("gronqvist", "table_1_1").rows
    heads = ["kernel", "A", "LS", "items"]
    heads += [f"{board}: {what}" for board in boards for what in ("words", "registers", "items")]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, row in theirs.items():
        cells = [name, *(f"{row[key]:g}" for key in ("arithmetic", "load_store", "items"))]
        for board in boards:
            entry = entries.get((board, f"sobel-{name}.comp"), {"stats": []})
            stats = statistics(entry)
            threads = stats.get("threads")
            items = str(MIDGARD_ITEMS * int(threads)) if threads else "-"
            cells += [str(stats.get("bundles", "-")), str(stats.get("registers", "-")), items]
        rows.append(f"| {' | '.join(cells)} |")
    return rows if boards else []


def page(lines: Iterable[str]) -> str:
    """The page for statistics, one JSON object a line."""
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    targets = list(dict.fromkeys(e["target"] for e in entries))
    files = sorted({e["file"] for e in entries})
    known = {(e["target"], e["file"]): e for e in entries}
    kinds = {(target, Path(file).suffix) for target, file in known}
    rows = [f"| kernel | {' | '.join(targets)} |", "|---" * (len(targets) + 1) + "|"]
    for file in files:
        cells = [
            of_kernel(known[t, file])
            if (t, file) in known
            else absent(t, file, (t, Path(file).suffix) in kinds)
            for t in targets
        ]
        rows.append(f"| {file} | {' | '.join(cells)} |")
    spilling = sum("spills" in of_kernel(e) for e in entries)
    failures = sum("does not compile" in cell(e) for e in entries)
    late = sum(entry.get("rc") == TIMEOUT for entry in entries)
    summary = f"{len(entries)} compilations, {failures} failed, {late} out of time, "
    summary += f"{spilling} with spills."
    given = {kernel_of(file) for file in files}
    never = ", ".join(f"`{name}`" for name, kernel in KERNELS.items() if kernel not in given)
    never = f"No board is given {never}.\n\n" if never else ""
    chosen = "\n".join(choice(known, targets))
    beside = "\n".join(sobel(known, targets))
    beside = f"{SOBEL}\n{beside}\n\n" if beside else ""
    head = f"{HEAD}\n{summary}\n\n{CHOICE}\n{chosen}\n\n{beside}"
    return f"{head}{ALL}\n{never}" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(sys.stdin))
