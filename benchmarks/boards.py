"""What board GPUs' compilers make of the kernels: a table from an offline compiler's statistics.

Write the sources with `glnn kernels --export DIR`, compile them for each board with a compiler that
prints one JSON object a line (keys: target, file, ok, stats with registers, threads, spills, fills,
inst), and give the lines to this script; it writes the table in Markdown.

    glnn kernels --export sources
    … stats main sources/* | python -m benchmarks.boards > benchmarks/boards.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from math import prod
from typing import Any

from glnn.kernels import library

HEAD = """\
# The kernels on board GPUs

Compiled by Mesa 25.0.7's own board drivers without the boards: static statistics, no speed and no
results. Every kernel with its default parameters, convolutions as 3 x 3 with a bias. A cell gives
instructions and registers (`r`) or, where the compiler counts those only, threads in flight (`t`)
or waves (`w`); `spills` are those of registers to memory, which should never happen. A kernel that
is not admissible on a board says so in its declaration (`unfit`): it would spill there. Where a
default workgroup has too many invocations, glnn takes a smaller one if the kernel has one.
`python -m benchmarks.boards` writes this page.
"""
STAGES = ("COMPUTE", "VERTEX", "VERTEX_BIN", "VERT", "CL", "CS")


KERNELS = {f"{k.op}-{k.name}{k.path.suffix}": k for k in library()}
MIDGARD_INVOCATIONS = 128


def cell(entry: dict[str, Any]) -> str:
    """What one compiler says of one kernel."""
    kernel = KERNELS[entry["file"]]
    if kernel.is_unfit(entry["target"]):
        return "not admissible"
    invocations = prod(kernel.local_size(kernel.defaults))
    if "mali-t" in entry["target"] and invocations > MIDGARD_INVOCATIONS:
        return f"{invocations} invocations: too many"
    if not entry["ok"]:
        return f"does not compile: {entry.get('error', '')[:60]}"
    found = [s for s in entry["stats"] if str(s.get("shader", "")).upper() in STAGES]
    if not found:
        return "compiles"
    stats = max(found, key=lambda s: int(s.get("inst") or 0))  # V3D captures while binning
    text = str(stats.get("inst", "?"))
    for key, letter in (("registers", "r"), ("threads", "t"), ("waves", "w")):
        if stats.get(key) is not None:
            text += f" {stats[key]}{letter}"
            break
    spilled = sum(int(stats.get(key) or 0) for key in ("spills", "fills", "stp", "ldp"))
    return f"{text}, {spilled} spills" if spilled else text


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
    spills = sum("spills" in cell(e) for e in entries)
    failures = sum("does not compile" in cell(e) for e in entries)
    summary = f"{len(entries)} compilations, {failures} failed, {spills} with spills."
    return f"{HEAD}\n{summary}\n\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(sys.stdin))
