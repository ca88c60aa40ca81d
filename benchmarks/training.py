"""One step of training from host arrays, by glnn and by PyTorch: forward, cross-entropy, backward,
SGD with momentum.

Every library runs in a process of its own, one after the other, --rounds times; they begin with the
same weights and get the same batches in turn. A step of PyTorch copies a batch of pageable memory
(page-locked with --pinned) to the GPU; "eager" then runs op by op, "CUDA graph" replays one graph
of the whole step, captured after warming up on a side stream. FP32, no TF32, cuDNN's algorithms
searched for. A step of glnn is Trainer.step. "ms" is the time of a step after which the host waits
for the device, without reading a result; "queued" is the time of many steps with one wait at their
end, divided by their number. The losses of the first steps are compared: where they differ, no time
is given.

--versus-numpy compares with glnn's cpu backend, for hosts whose GPU is software. --profile also
lists each step of a plan with its kernel's time.

    python -m benchmarks.training
    python -m benchmarks.training --only mlp --batch 64 --pinned --json
    python -m benchmarks.training --only lenet --profile --rounds 1 --no-peers
    python -m benchmarks.training --only mlp,lenet --versus-numpy --no-peers --seconds 0.2
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import rich_click as click

from benchmarks.command import run
from benchmarks.network_rows import last_answer
from benchmarks.tables import table
from benchmarks.training_process import TrainingRequest, select_works
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError

Row = dict[str, Any]
GLNN, TORCH = "training_glnn", "training_torch"
TOLERANCE = 1e-3
"""The largest relative difference of the losses of the first steps."""
NO_TORCH = "No module named 'torch'"


@click.command(help=__doc__)
@click.option("--only", help="Beginnings of networks' names, by commas.")
@click.option("--batch", type=click.IntRange(1), help="Samples a step, in place of several.")
@click.option("--backend", type=click.Choice(["compute", "feedback", "cpu"]), default="compute",
              show_default=True, help="Of glnn.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True,
              help="Processes of each library, which take turns.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0), default=0.3, show_default=True,
              help="Of each measure.")  # fmt: skip
@click.option("--pinned", is_flag=True, help="PyTorch's host arrays are page-locked.")
@click.option("--peers/--no-peers", default=True, help="Also time PyTorch.")
@click.option("--versus-numpy", is_flag=True, help="Also time glnn's cpu backend.")
@click.option("--profile", is_flag=True, help="Also time each step of glnn's plans.")
@click.option("--limit", type=click.FloatRange(1), default=300.0, show_default=True,
              help="Seconds that a process may take.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    only: str | None, batch: int | None, backend: str, rounds: int, seconds: float, pinned: bool,
    peers: bool, versus_numpy: bool, profile: bool, limit: float, as_json: bool,
) -> None:  # fmt: skip
    request = TrainingRequest(select_works(only, batch), backend, seconds, pinned, profile)
    turns = [(GLNN, request)]
    turns += [(GLNN, replace(request, backend="cpu", profile=False))] if versus_numpy else []
    turns += [(TORCH, request)] if peers else []
    about: dict[str, Any] = {}
    measured: list[Row] = []
    with progress(not as_json) as bar:
        for module, turn in bar.track(turns * rounds, description="timing"):
            answer = last_answer(module, turn.argument, limit=limit)
            if failed := answer.get("failed"):
                if module == TORCH and NO_TORCH in failed:
                    continue
                raise GlnnError(f"{module}: {failed}")
            measured += answer.pop("rows")
            about |= answer if turn is request else {}
    rows = list(_rows(request, measured))
    result = {
        **about, "backend": backend, "rounds": rounds,
        "host_memory": "page-locked" if pinned else "pageable", "rows": rows,
    }  # fmt: skip
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(result)


def _rows(request: TrainingRequest, measured: list[Row]) -> Iterator[Row]:
    """Yield a row for each work and library: the median over all rounds, and the least."""
    names = dict.fromkeys(row["name"] for row in measured)
    for work, batch in request.works:
        of_work = [row for row in measured if (row["work"], row["batch"]) == (work, batch)]
        by_name = {name: [row for row in of_work if row["name"] == name] for name in names}
        ours = by_name[f"glnn {request.backend}"]
        for name, rows in by_name.items():
            if rows:
                yield {"work": work, "batch": batch, "name": name, **_merge_rounds(ours, rows)}


def _merge_rounds(ours: list[Row], rows: list[Row]) -> Row:
    """Merge the rows of one library, one a round, and compare glnn's rows `ours` with them."""
    failed = [row["reason"] for row in (*rows, *ours) if "reason" in row]
    error = None if failed else _largest_difference(ours[0]["losses"], rows[0]["losses"])
    result: Row = {"loss_error": error}
    if error is None or not error <= TOLERANCE:
        differ = [] if error is None else [f"its losses differ by {error:.1e}, no time is given"]
        return {**result, "reason": (failed + differ)[0]}
    ratios = [a["median_ms"] / b["median_ms"] for a, b in zip(ours, rows, strict=True)]
    details = {key: value for key, value in rows[-1].items() if key in ("launches", "steps")}
    return {
        "median_ms": median(row["median_ms"] for row in rows),
        "least_ms": min(row["least_ms"] for row in rows),
        "queued_ms": median(row["queued_ms"] for row in rows),
        "runs": sum(row["runs"] for row in rows),
        "ours_over": median(ratios),
        "rounds": ratios,
        **result,
        **details,
    }


def _largest_difference(one: Iterable[float], other: Iterable[float]) -> float:
    """Return the largest relative difference of two lists of losses."""
    return max(abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in zip(one, other, strict=True))


def _print(result: Mapping[str, Any]) -> None:
    out = Screen()
    out.say(", ".join(f"{k} {v}" for k, v in result.items() if k != "rows"))
    heads = (">batch", "by", ">ms", ">least", ">queued", ">glnn's over it", ">launches")
    shown = table("network", *heads, ">losses apart")
    for row in result["rows"]:
        times = (row.get(key) for key in ("median_ms", "least_ms", "queued_ms", "ours_over"))
        shown.add(
            row["work"], str(row["batch"]), row["name"], *(number(time) for time in times),
            str(row.get("launches", "-")),
            "-" if row["loss_error"] is None else f"{row['loss_error']:.1e}",
        )  # fmt: skip
    out.show(shown, "one step of training from host arrays, ms")
    for row in result["rows"]:
        if "reason" in row:
            out.say(f"  {row['work']}, batch {row['batch']}, {row['name']}: {row['reason']}")
        if steps := row.get("steps"):
            shown = table("layer", "op", "kernel", ">kernel ms", ">wall ms")
            for step in steps:
                times = (number(step[key]) for key in ("kernel_ms", "wall_ms"))
                shown.add(step["layer"], step["op"], step["kernel"], *times)
            out.show(shown, f"{row['work']}, batch {row['batch']}: steps of a plan, each by itself")


if __name__ == "__main__":
    run(main)
