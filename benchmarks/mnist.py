"""Training on handwritten digits, by the CPU and by the GPU: Cheng's experiments, and LeNet.

His networks are not in his text. His tables say how long they took, and his figure 26 how fast his
CPU was: in that time it can take 60,000 digits at most one and a half times through 784-256-10 and
sixteen times through 784-512-512-10, forward and back. These are taken as his MLP (batches of 100,
SGD, stopped near his accuracy) and as his DNN (batches of 1000, Adam). Both are trained from one
seed by NumPy, by each width of his version 3, which does all products, and by the kernels that glnn
chooses. He had 60,000 digits; here are 8,000 of the 10,000 that MNIST tests with, and the other
2,000 are tested with. --data takes the whole set: a folder with MNIST's four files.

Seconds are those of the steps: the first, with which programs are compiled, and tests are not in
them. Loss curves of the CPU and the GPU are compared step by step, final accuracies over --seeds.
LeNet (ReLU, max pooling) is trained from nothing on the GPU, on the CPU only with --lenet-on-cpu.

    python -m benchmarks.mnist
    python -m benchmarks.mnist --only mlp --seeds 1 --json
    python -m benchmarks.mnist --only lenet --seeds 5
    python -m benchmarks.mnist --data ~/mnist --only dnn
    python -m benchmarks.mnist --share 0.05 --agree 10 --backend feedback --kernels ""
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import rich_click as click
from rich.progress import Progress

from benchmarks import beside, documents
from benchmarks.command import run
from benchmarks.digits import Digits, digits
from benchmarks.documents import Figure, Ours
from benchmarks.mnist_training import POINTS, RECIPES, Recipe, Row, apart, losses, trained
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError, UnsupportedOpError

KERNELS = ("cheng_v3_w4", "cheng_v3_w8", "cheng_v3_w16")
CPU, OURS = "cpu", "glnn"
CURVES = {"mlp": "figures_20_22_24", "dnn": "figures_21_23_25"}
"""Cheng's networks, and the figures of his that they are."""
EQUAL = 0.5
"""Percent: accuracies that are no further apart are taken as the same."""
AGREE = 1e-3
"""Relative: how far two loss curves may be apart."""


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="A folder with MNIST's four IDX files.")  # fmt: skip
@click.option("--backend", type=click.Choice(["compute", "feedback"]), default="compute",
              show_default=True, help="Beside the CPU.")  # fmt: skip
@click.option("--only", default=",".join(RECIPES), show_default=True, help="By commas.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True,
              help="Trainings of each, for the mean.")  # fmt: skip
@click.option("--agree", type=click.IntRange(1), default=100, show_default=True,
              help="Steps of which the losses are compared.")  # fmt: skip
@click.option("--share", type=click.FloatRange(0, 1, min_open=True), default=1.0,
              show_default=True, help="Of the steps of each training.")  # fmt: skip
@click.option("--kernels", default=",".join(KERNELS), show_default=True,
              help="Of Cheng's, by commas; empty for none.")  # fmt: skip
@click.option("--lenet-on-cpu", is_flag=True, help="Also train LeNet by NumPy: minutes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    data: Path | None, backend: str, only: str, seeds: int, agree: int, share: float,
    kernels: str, lenet_on_cpu: bool, as_json: bool,
) -> None:  # fmt: skip
    forced = some(kernels, "--kernels", KERNELS)
    names = some(only, "--only", tuple(RECIPES))
    recipes = [
        replace(one, steps=max(2, round(share * one.steps)))
        for one in (RECIPES[name] for name in names)
    ]
    given = digits(data)
    on_cpu = {recipe.name for recipe in recipes if recipe.flat or lenet_on_cpu}
    with progress(not as_json) as bar:
        rows = list(_rows(bar, recipes, given, backend, seeds, forced, on_cpu))
        agreement = list(_agreement(bar, recipes, given, backend, agree))
    result: dict[str, Any] = {
        **machine(open_backend(backend).device),
        "backend": backend,
        "data": given.name,
        "chosen": {recipe.name: recipe.said() for recipe in recipes},
        "rows": rows,
        "agreement": agreement,
        "accuracies": list(_accuracies(rows)),
    }
    compared = list(_compared(rows))
    result["beside"] = [one for which in compared for one in beside.rows(*which)]
    result["claims"] = [one for which in compared for one in beside.claims(*which)]
    result["claims"] += list(_answers(rows))
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(result, compared)


def some(asked: str, option: str, known: tuple[str, ...]) -> list[str]:
    """Those of `known` that `asked` names, by commas. Raises GlnnError for another."""
    names = [name.strip() for name in asked.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise GlnnError(f"{option}: no {unknown[0]!r}, expected some of {', '.join(known)}")
    return names


def _rows(
    bar: Progress,
    recipes: list[Recipe],
    given: Digits,
    backend: str,
    seeds: int,
    kernels: list[str],
    on_cpu: set[str],
) -> Iterator[Row]:
    """Every training: each recipe on the CPU and by the default kernels with every seed, and by
    Cheng's kernels with the first.
    """
    for recipe in recipes:
        ways: list[tuple[str, int]] = [(OURS, seed) for seed in range(seeds)]
        ways += [(CPU, seed) for seed in range(seeds if recipe.name in on_cpu else 0)]
        ways += [(kernel, 0) for kernel in kernels if recipe.name in CURVES]
        for name, seed in ways:
            task = bar.add_task(f"{recipe.name}, {name}, seed {seed}", total=recipe.steps)
            forced = None if name in (OURS, CPU) else {"matmul": name}
            where = CPU if name == CPU else backend
            row: Row = {"model": recipe.name, "name": name, "seed": seed}
            try:
                yield row | trained(recipe, given, where, forced, seed, partial(bar.advance, task))
            except UnsupportedOpError as error:
                if forced is None:
                    raise
                yield row | {"reason": str(error)}
            bar.update(task, visible=False)


def _agreement(
    bar: Progress, recipes: list[Recipe], given: Digits, backend: str, steps: int
) -> Iterator[Row]:
    """How far the loss curves of the CPU and of `backend` are apart over their first steps."""
    for recipe in bar.track(recipes, description="loss curves"):
        curves = [losses(recipe, given, where, steps) for where in (CPU, backend)]
        difference = apart(*curves)
        yield {
            "model": recipe.name, "steps": steps, "apart": difference,
            "agree": difference <= AGREE, "cpu": curves[0], backend: curves[1],
        }  # fmt: skip


def _accuracies(rows: list[Row]) -> Iterator[Row]:
    """The mean of the final accuracies over the seeds, on the CPU and by the default kernels."""
    for model in dict.fromkeys(row["model"] for row in rows):
        found = {
            name: [row["accuracy"] for row in rows if (row["model"], row["name"]) == (model, name)]
            for name in (CPU, OURS)
        }
        means = {name: fmean(values) for name, values in found.items() if values}
        both = len(means) == 2
        yield {
            "model": model, "seeds": len(found[OURS]), "cpu": means.get(CPU), "gpu": means[OURS],
            "least_gpu": min(found[OURS]), "apart": abs(means[CPU] - means[OURS]) if both else None,
        }  # fmt: skip


def _compared(rows: list[Row]) -> Iterator[tuple[Figure, Ours, str]]:
    """Tables 3 to 6 and figures 20 to 25: ours by row and column, and their unit."""
    found = [r for r in rows if r["model"] in CURVES and not r["seed"] and "reason" not in r]
    times = {(row["name"], row["model"]): row["seconds"] for row in found}
    accuracies = {(row["name"], row["model"]): row["accuracy"] for row in found}
    if found:
        yield documents.figure("cheng", "tables_3_to_6"), times, "s"
        yield documents.figure("cheng", "tables_3_to_6_accuracy"), accuracies, "%"
    for model in dict.fromkeys(row["model"] for row in found):
        curves = {
            (row["name"], str(100 * i // POINTS)): accuracy
            for row in found
            if row["model"] == model
            for i, accuracy in enumerate(row["curve"], 1)
        }
        yield documents.figure("cheng", CURVES[model]), curves, "%"


def _answers(rows: list[Row]) -> Iterator[Row]:
    """Whether training by the GPU ends with the CPU's accuracy, each of Cheng's networks."""
    for model, key in CURVES.items():
        found = {
            row["name"]: row["accuracy"]
            for row in rows
            if row["model"] == model and not row["seed"] and "reason" not in row
        }
        if CPU in found and len(found) > 1:
            gpu = {name: value for name, value in found.items() if name != CPU}
            most = max(abs(value - found[CPU]) for value in gpu.values())
            each = ", ".join(f"{name} {value:.2f}%" for name, value in gpu.items())
            here = f"CPU {found[CPU]:.2f}%; GPU by {each}"
            text = "training on the mobile GPU ends with the accuracy"
            verdict = "yes" if most <= EQUAL else "no"
            yield beside.answer(documents.figure("cheng", key), text, here, verdict)


def _print(result: dict[str, Any], compared: list[tuple[Figure, Ours, str]]) -> None:
    out = Screen()
    plain = {k: v for k, v in result.items() if isinstance(v, str)}
    out.say(", ".join(f"{k} {v}" for k, v in plain.items()))
    for name, said in result["chosen"].items():
        out.say(f"  {name}: {said}")
    shown = table("", "by", ">seed", ">accuracy, %", ">s", ">first step, s", ">ms a step")
    for row in result["rows"]:
        if reason := row.get("reason"):
            out.say(f"  {row['model']} by {row['name']}: {reason}")
            continue
        each = 1e3 * row["seconds"] / max(1, row["steps"] - 1)
        shown.add(
            row["model"], row["name"], str(row["seed"]), f"{row['accuracy']:.2f}",
            number(row["seconds"]), number(row["first_s"]), number(each),
        )  # fmt: skip
    out.show(shown, "trainings from nothing; seconds without the first step")
    shown = table("", ">steps", ">CPU and GPU apart at the most")
    for row in result["agreement"]:
        shown.add(row["model"], str(row["steps"]), f"{row['apart']:.1e}")
    out.show(shown, "loss curves, relative")
    shown = table("", ">seeds", ">CPU", ">GPU", ">apart", ">the GPU's least")
    for row in result["accuracies"]:
        keys = ("cpu", "gpu", "apart", "least_gpu")
        shown.add(row["model"], str(row["seeds"]), *(number(row[key]) for key in keys))
    out.show(shown, "final accuracies, %, means over the seeds")
    for which in compared:
        beside.show(out, *which)
    beside.say(out, (one for one in result["claims"] if "here" in one))


if __name__ == "__main__":
    run(main)
