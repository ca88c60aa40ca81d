"""What board GPUs' compilers make of the kernels: tables from an offline compiler's statistics.

Write the sources with `glnn kernels --export DIR --architecture NAME`, compile them for its
boards with a compiler that prints one JSON object a line (keys: target, renderer, driver, file, ok,
stats with registers, threads, spills, fills, inst; loops with the instructions of each loop), and
give all lines to this script; it writes the tables in Markdown.

    for pair in Midgard:mali-t760,mali-t860 Bifrost:mali-g31,mali-g52 Valhall:mali-g610 \\
                V3D:v3d-4.2,v3d-7.1 Adreno:adreno-630; do
        glnn kernels --export sources/${pair%:*} --architecture ${pair%:*} >/dev/null
        … stats ${pair#*:} sources/${pair%:*}/*
    done >lines
    … stats adreno-306 sources/Adreno/*.vert >>lines    # it has no compute shaders
    python -m benchmarks.boards <lines >benchmarks/boards.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.documents import figure
from glnn.kernels import Kernel, library
from glnn.kernels.architecture import architecture_called
from glnn.kernels.declaration import UNFIT

HEAD = """\
# The kernels on board GPUs

Compiled by Mesa 25.0.7's own board drivers without the boards: static statistics, no speed and no
results. Every kernel with the parameters of the board's architecture, convolutions as 3 x 3 with a
bias and a ReLU. What is generated is there with each of the examples that its generator has, as
`gather-compute-rows`. A kernel that is not admissible on a board says so in its declaration
(`unfit`): it would spill there. `python -m benchmarks.boards` writes this page.
"""
CHOICE = """\
## Large matrix products: the default against the baseline

The inner loop of `blocked`, with its architecture's parameters, and of Rovder's `cross_rm_rm`:
multiply-adds and loads of up to four floats for each time around, registers, threads in flight
(waves on Adreno) and spills.
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
Where a default workgroup has too many invocations, glnn takes a smaller one if the kernel has one.
"""
STAGES = ("COMPUTE", "VERTEX", "VERTEX_BIN", "VERT", "CL", "CS")
KERNELS = {f"{k.op}-{k.name}{k.path.suffix}": k for k in library()}
CHOSEN, BASELINE = "matmul-blocked.comp", "matmul-cross_rm_rm.comp"
MIDGARD_INVOCATIONS = 128
MIDGARD_ITEMS = 64  # a core, for each thread that the compiler counts
FOUR = 4  # Midgard counts a vec4 multiplication as one instruction


def architecture(entry: dict[str, Any]) -> str | None:
    """The architecture of the board that `entry` is of."""
    return architecture_called(
        f"{entry.get('driver', '')} {entry.get('renderer', '')} {entry['target']}"
    )


def kernel_of(entry: dict[str, Any]) -> Kernel:
    """The kernel that `entry` is of, an example of it where it is generated."""
    path = Path(entry["file"])
    op, name, *_ = path.stem.split("-")
    return KERNELS[f"{op}-{name}{path.suffix}"].for_architecture(architecture(entry))


def statistics(entry: dict[str, Any]) -> dict[str, Any]:
    """The statistics of the stage that matters; none where there are none."""
    found = [s for s in entry["stats"] if str(s.get("shader", "")).upper() in STAGES]
    # V3D captures while binning: the longest stage is the one.
    return max(found, key=lambda s: int(s.get("inst") or 0), default={})


def spills(stats: dict[str, Any]) -> int:
    """Registers moved to memory and back."""
    return sum(int(stats.get(key) or 0) for key in ("spills", "fills", "stp", "ldp"))


def cell(entry: dict[str, Any]) -> str:
    """What one compiler says of one kernel."""
    kernel = kernel_of(entry)
    if kernel.architectures.fit(architecture(entry)) == UNFIT:
        return "not admissible"
    invocations = prod(kernel.launch.local_size(kernel.defaults))
    if architecture(entry) == "Midgard" and invocations > MIDGARD_INVOCATIONS:
        return f"{invocations} invocations: too many"
    if not entry["ok"]:
        return f"does not compile: {entry.get('error', '')[:60]}"
    stats = statistics(entry)
    if not stats:
        return "compiles"
    text = str(stats.get("inst", "?"))
    for key, letter in (("registers", "r"), ("threads", "t"), ("waves", "w")):
        if stats.get(key) is not None:
            text += f" {stats[key]}{letter}"
            break
    return f"{text}, {spills(stats)} spills" if spills(stats) else text


def inner_loop(entry: dict[str, Any]) -> tuple[int, int]:
    """Multiply-adds and loads of up to four floats in the loop that multiplies the most."""
    loops = [loop for stage in entry.get("loops") or [] for loop in stage["loops"]]
    vectors = FOUR if architecture(entry) == "Midgard" and entry["file"] == CHOSEN else 1
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
        for file in (CHOSEN, BASELINE):
            entry = entries.get((target, file))
            if entry is None or not entry["ok"]:
                continue
            kernel = kernel_of(entry)
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
    boards = [
        target
        for target in targets
        if any(key[0] == target and architecture(e) == "Midgard" for key, e in entries.items())
    ]
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
    rows = [f"| kernel | {' | '.join(targets)} |", "|---" * (len(targets) + 1) + "|"]
    for file in files:
        cells = [cell(known[t, file]) if (t, file) in known else "" for t in targets]
        rows.append(f"| {file} | {' | '.join(cells)} |")
    spilling = sum("spills" in cell(e) for e in entries)
    failures = sum("does not compile" in cell(e) for e in entries)
    summary = f"{len(entries)} compilations, {failures} failed, {spilling} with spills."
    chosen = "\n".join(choice(known, targets))
    beside = "\n".join(sobel(known, targets))
    beside = f"{SOBEL}\n{beside}\n\n" if beside else ""
    head = f"{HEAD}\n{summary}\n\n{CHOICE}\n{chosen}\n\n{beside}"
    return f"{head}{ALL}\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(sys.stdin))
