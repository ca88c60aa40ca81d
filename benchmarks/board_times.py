"""How long networks would take on boards, by a model of what their compilers say of the shaders.

    time = launches x launch + max(issue, loads, lines, memory, depth)

issue: the instructions of all invocations over what the GPU issues a second. loads: theirs of up
to four floats, likewise. lines: of cache that workgroups of a product read (Gronqvist's model,
`glnn kernels --cache`). memory: the bytes of the operands and the result over the bandwidth. depth:
the instructions of one invocation, one after the other. Each loop counts as often as the step says
that it is walked; where it does not, an inner loop as often as its multiply-adds are needed, or, of
a kernel that has none, its loads. It is for ranking kernels and finding what a board would spend
its time on, and no measurement: rates are vendors' public figures or, for bandwidth and launches,
rough.

`benchmarks.board_plan` and `benchmarks.board_decoders` write the steps and the shaders, an offline
compiler the statistics, one JSON object a line (see `benchmarks.board_compilers`). --measured: are
kernels ranked as they were timed?

    python -m benchmarks.board_times v3d-7.1 --steps steps --statistics lines
    python -m benchmarks.board_times v3d-7.1 --steps steps --statistics lines --totals \\
        --bandwidth 17
    python -m benchmarks.board_times H200 --steps steps --statistics lines \\
        --measured benchmarks/measured/rovder_2017.json
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click

from benchmarks.board_compilers import FOUR, statistics
from benchmarks.board_plan import Work
from benchmarks.command import run
from benchmarks.record import json_lines
from benchmarks.tables import table
from glnn.cli.options import print_json
from glnn.cli.screen import Screen, number
from glnn.errors import GlnnError

MULTIPLY_ADDS = ("fma", "mad_f", "fmul", "mul_f")
LOADS = ("ld", "ldib", "tmua")
PARTS = ("launch", "issue", "loads", "lines", "memory", "depth")


@dataclass(frozen=True)
class Machine:
    """What a GPU does in a second, roughly."""

    compiler: str
    """The target whose statistics are taken."""
    unit: str
    """What that compiler counts instructions in."""
    clock: float
    """Hz."""
    issues: float
    """Instructions of single invocations a clock, of the whole GPU."""
    loads: float
    """Loads of four floats of single invocations a clock, of the whole GPU."""
    memory: float
    """Bytes a second."""
    launch: float
    """Seconds of a launch that does nothing."""
    lines: float = 0.0
    """Cache lines of 64 bytes a second; 0 where loads say it all."""
    latency: float = 4.0
    """Clocks from an instruction to the next one of the same invocation."""
    vector: int = 1
    """Multiply-adds of an instruction."""


MACHINES = {
    "mali-t760": Machine("mali-t760", "bundles", 0.6e9, 8, 4, 6e9, 1e-4, vector=FOUR),
    "mali-t860": Machine("mali-t860", "bundles", 0.8e9, 8, 4, 8e9, 1e-4, vector=FOUR),
    "mali-g31": Machine("mali-g31", "tuples", 0.65e9, 8, 2, 4e9, 1e-4),
    "mali-g52": Machine("mali-g52", "tuples", 0.8e9, 48, 8, 8e9, 1e-4),
    "mali-g610": Machine("mali-g610", "inst", 0.95e9, 256, 32, 20e9, 1e-4),
    "v3d-4.2": Machine("v3d-4.2", "inst", 0.5e9, 32, 2, 4e9, 1e-4),
    "v3d-7.1": Machine("v3d-7.1", "inst", 0.8e9, 48, 3, 8e9, 1e-4),
    "adreno-630": Machine("adreno-630", "inst", 0.7e9, 512, 32, 25e9, 1e-4),
    "H200": Machine("adreno-630", "inst", 1.98e9, 16896, 1056, 4.3e12, 3e-6, 3e10),
    "llvmpipe": Machine("adreno-630", "inst", 2.5e9, 16, 2, 10e9, 4e-5, latency=1.0),
}
"""By name. An H200's compiler and llvmpipe's say nothing of the kind: an Adreno's, which counts
operations of single numbers as they do, stands for them."""


@dataclass(frozen=True)
class Time:
    """What a launch would take, in seconds, each part by itself."""

    launch: float
    issue: float
    loads: float
    lines: float
    memory: float
    depth: float

    @property
    def longest(self) -> str:
        """The part that takes the longest once it is launched."""
        parts = {name: value for name, value in asdict(self).items() if name != "launch"}
        return max(parts, key=lambda name: parts[name])

    @property
    def bound(self) -> str:
        """What it is bound by."""
        return "launch" if self.launch > self.seconds - self.launch else self.longest

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.launch + max(self.issue, self.loads, self.lines, self.memory, self.depth)


@dataclass(frozen=True)
class Total:
    """What all launches of a network would take, one after the other.

    shares: of its seconds, those of launches, and those that each part binds.
    """

    model: str
    launches: int
    seconds: float
    shares: Mapping[str, float]

    @classmethod
    def of_models(cls, times: Sequence[tuple[Work, Time]]) -> list[Total]:
        """The total of each network, in their order."""
        found = []
        for model in dict.fromkeys(work.model for work, _ in times):
            own = [(work, time) for work, time in times if work.model == model]
            seconds = sum(time.seconds for _, time in own)
            parts = dict.fromkeys(PARTS, 0.0)
            for _, time in own:
                parts["launch"] += time.launch
                parts[time.longest] += time.seconds - time.launch
            shares = {name: part / seconds for name, part in parts.items()}
            found.append(cls(model, sum(work.launches for work, _ in own), seconds, shares))
        return found


def time_of(work: Work, entry: Mapping[str, Any], machine: Machine, taps: int = 1) -> Time:
    """What `work` would take, of whose shader a compiler says `entry`."""
    found = statistics(dict(entry))
    loops = [loop for stage in entry.get("loops") or [] for loop in stage["loops"]]
    whole = float(found.get(machine.unit) or found.get("inst") or 0)
    if work.loops:
        each, loaded = _walked(work, loops, machine, whole)
    else:
        inner, outer, trips = _loops(work, loops, machine)
        around = float(outer.get(machine.unit, 0)) - float(inner.get(machine.unit, 0))
        each = whole - float(outer.get(machine.unit, 0)) + taps * around
        each += trips * float(inner.get(machine.unit, 0))
        loaded = trips * _first(inner, LOADS)
    return Time(
        work.launches * machine.launch,
        work.invocations * each / (machine.issues * machine.clock),
        work.invocations * loaded / (machine.loads * machine.clock),
        work.lines / machine.lines if machine.lines else 0.0,
        work.bytes / machine.memory,
        each * machine.latency / machine.clock,
    )


def _walked(
    work: Work, loops: Sequence[Mapping[str, Any]], machine: Machine, whole: float
) -> tuple[float, float]:
    """The instructions and the loads in loops of an invocation that walks loops as `work` says.

    whole: the instructions of the shader, each once. Raises GlnnError where the compiler has other
    loops than the shader.
    """
    if len(loops) != len(work.loops):
        raise GlnnError(
            f"{work.source}: expected {len(work.loops)} loops, {machine.compiler}'s compiler "
            f"has {len(loops)}"
        )
    instructions, loaded = whole, 0.0
    times = [1.0]  # how often the loops around are walked, by depth
    for loop, trips in zip(loops, work.loops, strict=True):
        depth = int(loop["depth"])
        around = times[depth - 1]
        times[depth:] = [around * trips]
        # Once for each time around it is counted with what is around already.
        instructions += (times[depth] - around) * float(loop.get(machine.unit, 0))
        loaded += (times[depth] - (around if depth > 1 else 0.0)) * _first(loop, LOADS)
    return instructions, loaded


def _loops(
    work: Work, loops: Sequence[Mapping[str, Any]], machine: Machine
) -> tuple[Mapping[str, Any], Mapping[str, Any], float]:
    """The loop that matters, the outermost around it, and how often an invocation walks it."""
    kind = MULTIPLY_ADDS if work.multiply_adds else LOADS
    most = max((_first(loop, kind) for loop in loops), default=0)
    many = (loop for loop in loops if 2 * _first(loop, kind) >= most)
    inner: Mapping[str, Any] = max(many, key=lambda loop: int(loop["depth"]), default={})
    depth = min(inner.get("depth", 1), 2 if work.strided else 1)  # of the outermost that repeats
    around = (loop for loop in loops if int(loop["depth"]) >= depth)
    outer = max(around, key=lambda loop: float(loop.get(machine.unit, 0)), default=inner)
    done = _first(inner, kind)
    if work.multiply_adds:
        needed, done = work.multiply_adds, done * machine.vector
    else:
        needed = work.bytes // 16  # four floats
    return inner, outer, max(needed / max(work.invocations * done, 1), 1.0) if done else 1.0


def _first(loop: Mapping[str, Any], keys: Iterable[str]) -> int:
    """The first of the counts `keys` that is there."""
    return next((int(loop[key]) for key in keys if loop.get(key)), 0)


def ranks(numbers: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The place of each of `numbers` in their order; equal ones have the mean of their places."""
    values = np.asarray(numbers)
    below = (values[:, None] > values).sum(1)
    same = (values[:, None] == values).sum(1)
    return np.asarray(below + (same - 1) / 2, np.float64)


def correlation(some: Sequence[float], others: Sequence[float]) -> float:
    """Spearman's rank correlation (1904): 1 where both are in the same order."""
    return float(np.corrcoef(ranks(some), ranks(others))[0, 1])


def ranking(times: Mapping[tuple[str, str], float], paths: Iterable[Path]) -> list[dict[str, Any]]:
    """For each size in the measured rows of the files `paths` how well kernels are ranked.

    times: seconds by model and step.
    """
    rows = [row for path in paths for row in json.loads(path.read_text("utf-8"))["rows"]]
    sizes = sorted({str(row["size"]) for row in rows}, key=lambda size: (len(size), size))
    found: list[dict[str, Any]] = []
    for size in sizes:
        pairs = [
            (times[f"matmul {size}", row["kernel"]], float(row["ms"]))
            for row in rows
            if str(row["size"]) == size and row.get("ms") and row.get("name") == row.get("kernel")
            if (f"matmul {size}", row["kernel"]) in times
        ]
        if len(pairs) > 2:
            ranked = correlation([one for one, _ in pairs], [ms for _, ms in pairs])
            found.append({"size": size, "kernels": len(pairs), "correlation": ranked})
    return found


@click.command(help=__doc__)
@click.argument("name", type=click.Choice(list(MACHINES)))
@click.option("--steps", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--statistics", "lines", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--measured", multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--top", default=8, help="Steps of each network that are shown.")
@click.option("--totals", is_flag=True, help="Show a row for each network and none for its steps.")
@click.option(
    "--bandwidth", type=click.FloatRange(0, min_open=True), help="GB/s, in place of the machine's."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    name: str, steps: Path, lines: Path, measured: tuple[Path, ...], top: int, totals: bool,
    bandwidth: float | None, as_json: bool,
) -> None:  # fmt: skip
    """See above."""
    machine = MACHINES[name]
    if bandwidth is not None:
        machine = replace(machine, memory=1e9 * bandwidth)
    said = {e["file"]: e for e in json_lines(lines) if e["target"] == machine.compiler and e["ok"]}
    works = [Work(**one) for one in json_lines(steps)]
    if missing := {work.source for work in works} - set(said):
        raise GlnnError(f"--statistics: {lines} has nothing of {sorted(missing)[0]}")
    times = [(work, time_of(work, said[work.source], machine, work.taps)) for work in works]
    by_name = {(work.model, work.step): time.seconds for work, time in times}
    ranked = ranking(by_name, measured)
    if as_json:
        rows = [{**asdict(w), **asdict(t), "seconds": t.seconds} for w, t in times]
        models = [asdict(one) for one in Total.of_models(times)]
        what = {"machine": name, "bandwidth": machine.memory, "predicted": True}
        print_json({**what, "models": models, "steps": rows, "ranking": ranked})
        return
    out = Screen()
    if ranked:
        shown = table("size", ">kernels", ">rank correlation")
        for row in ranked:
            shown.add(row["size"], str(row["kernels"]), number(row["correlation"]))
        out.show(shown)
        return
    if totals:
        shown = table("network", ">launches", ">a second", ">ms", *(f">of {p}" for p in PARTS))
        for total in Total.of_models(times):
            shares = (f"{total.shares[part]:.0%}" for part in PARTS)
            rates = number(1 / total.seconds), number(1e3 * total.seconds)
            shown.add(total.model, str(total.launches), *rates, *shares)
        title = f"predicted for {name} by a model, not measured; {machine.memory / 1e9:g} GB/s"
        out.show(shown, title)
        return
    for model in dict.fromkeys(work.model for work in works):
        own = [(work, time) for work, time in times if work.model == model]
        whole = sum(time.seconds for _, time in own)
        shown = table("step", "kernel", "bound by", ">ms", ">share")
        for work, time in sorted(own, key=lambda each: -each[1].seconds)[:top]:
            share = f"{time.seconds / whole:.0%}"
            shown.add(work.step, work.kernel, time.bound, number(1e3 * time.seconds), share)
        title = f"{model} on {name}: {number(1e3 * whole)} ms in {len(own)} steps"
        out.show(shown, title)


if __name__ == "__main__":
    run(main)
