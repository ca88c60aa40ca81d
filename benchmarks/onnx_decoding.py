"""Milliseconds a token of an exported decoder, beside glnn's own language models.

The model has SmolLM2-135M's shape, seeded float32 weights and the graph that Optimum exports. It is
decoded greedily, as programs for ONNX Runtime do it: `present` is bound to the device and is the
next run's `past`, logits come to the host, NumPy takes the likeliest token. Beside it the engine of
`glnn.LanguageModel` continues the same prompt with the same weights; the tokens must be the same.
Rounds are in turn, each of 64 tokens after a prompt of 32, another one each time; the first makes
plans, and is not counted.

    python -m benchmarks.onnx_decoding
    python -m benchmarks.onnx_decoding --layers 2 --vocabulary 2048 --rounds 3 --backend compute
    python -m benchmarks.onnx_decoding --profile
"""

from __future__ import annotations

import cProfile
import json
import pstats
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import rich_click as click

import glnn.onnxruntime as ort
from benchmarks.command import run
from benchmarks.exported_decoder import FloatWeights, write_decoder
from benchmarks.generation import GREEDY, HIDDEN, NEW, PROMPT, SHAPES
from benchmarks.record import machine
from glnn.backends import open_backend
from glnn.compiler.plan import Plan
from glnn.errors import GlnnError
from glnn.generation.architectures import Config, decoder
from glnn.generation.engine import Engine, GenerationRequest
from glnn.graph.operators.rotary import HALVES

SHAPE, CONTEXT, MARK = "smollm2", 1024, 2.0
GPU = "gpu"


@dataclass(frozen=True)
class Round:
    """The tokens that were added to a prompt, and what they took.

    prompt_ms: until the first was there. wall_ms: of each token after it, on the clock on the wall.
    cpu_ms: of all threads of the process, for a token.
    """

    tokens: list[int]
    prompt_ms: float
    wall_ms: list[float]
    cpu_ms: float


def timed(tokens: Iterator[int], count: int) -> Round:
    """Take the first and then `count` more of `tokens`."""
    start = perf_counter()
    taken, times, cpu = [next(tokens)], [perf_counter()], process_time()
    for _ in range(count):
        taken.append(next(tokens))
        times.append(perf_counter())
    spent = 1e3 * (process_time() - cpu) / count
    return Round(taken, 1e3 * (times[0] - start), list(1e3 * np.diff(times)), spent)


def bound_tokens(session: ort.InferenceSession, config: Config, prompt: list[int]) -> Iterator[int]:
    """Yield the likeliest tokens behind a prompt; caches are bound to the device."""
    binding = session.io_binding()
    caches = [f"{i}.{part}" for i in range(config.layers) for part in ("key", "value")]
    empty = np.zeros((1, config.kv_heads, 0, config.head_width), np.float32)
    for name in caches:
        past = ort.OrtValue.ortvalue_from_numpy(empty, GPU, 0)
        binding.bind_ortvalue_input(f"past_key_values.{name}", past)
    new, length = np.array([prompt]), 0
    while True:
        length += new.shape[1]
        binding.bind_cpu_input("input_ids", new)
        binding.bind_cpu_input("attention_mask", np.ones((1, length), np.int64))
        binding.bind_cpu_input("position_ids", np.arange(length - new.shape[1], length)[None])
        binding.bind_output("logits")
        for name in caches:
            binding.bind_output(f"present.{name}", GPU)
        session.run_with_iobinding(binding)
        logits, *present = binding.get_outputs()
        for name, value in zip(caches, present, strict=True):
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
        binding.clear_binding_outputs()
        token = int(logits.numpy()[0, -1].argmax())
        yield token
        new = np.array([[token]])


def engine_tokens(engine: Engine, prompt: list[int]) -> Iterator[int]:
    """Yield the likeliest tokens behind a prompt by glnn's own language model."""
    request = GenerationRequest(list(prompt), CONTEXT, frozenset(), GREEDY)
    engine.add(request)
    return engine.tokens(request)


class PlanCount:
    """Counts the plans that are made."""

    def __init__(self) -> None:
        self.made = 0
        init = Plan.__init__

        def counted(plan: Plan, *args: Any, **options: Any) -> None:
            self.made += 1
            init(plan, *args, **options)

        Plan.__init__ = counted  # type: ignore[assignment, method-assign]


@click.command(help=__doc__)
@click.option("--backend", default="compute", show_default=True)
@click.option("--layers", type=click.IntRange(1), help="Layers; those of the shape unless given.")
@click.option("--vocabulary", type=click.IntRange(64), help="Tokens that there are, likewise.")
@click.option("--rounds", type=click.IntRange(2), default=6, show_default=True)
@click.option("--tokens", type=click.IntRange(1), default=NEW, show_default=True)
@click.option("--profile", is_flag=True, help="Also print where a round spends the host's time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def main(
    backend: str, layers: int | None, vocabulary: int | None, rounds: int, tokens: int,
    profile: bool, as_json: bool,
) -> None:  # fmt: skip
    config = SHAPES[SHAPE]
    config = replace(
        config,
        layers=layers or config.layers,
        vocabulary=vocabulary or config.vocabulary,
        order=HALVES,
    )
    device = open_backend(backend).device
    about = {**machine(device), "backend": backend, "layers": config.layers}
    say: Callable[[str], None] = lambda text: click.echo(text, err=as_json)  # noqa: E731
    say(", ".join(f"{key} {value}" for key, value in about.items()))
    weights, plans = FloatWeights(config, HIDDEN[SHAPE]), PlanCount()
    generator = np.random.default_rng(1)
    graph = decoder(config, weights, CONTEXT, 1)
    engine = Engine(graph, CONTEXT, 1, backend, None, None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_decoder(path, config, weights)
        del weights
        options = [("GlnnExecutionProvider", {"backend": backend})]
        session = ort.InferenceSession(str(path), providers=options)
        ways: dict[str, Callable[[list[int]], Iterator[int]]] = {
            "onnx": lambda prompt: bound_tokens(session, config, prompt),
            "language model": lambda prompt: engine_tokens(engine, prompt),
        }
        rows: dict[str, list[float]] = {name: [] for name in ways}
        ratios = []
        for number in range(rounds):
            made, said = {}, []
            prompt = [int(n) for n in generator.integers(0, config.vocabulary, PROMPT)]
            for name, begin in ways.items():
                before = plans.made
                made[name] = one = timed(begin(prompt), tokens)
                ms = median(one.wall_ms)
                said.append(
                    f"{name} {ms:.3f} ms a token (slowest {max(one.wall_ms):.2f}, CPU "
                    f"{one.cpu_ms:.2f}), prompt {one.prompt_ms:.1f} ms, "
                    f"{plans.made - before} plans"
                )
                if number:
                    rows[name].append(ms)
            ours, theirs = made.values()
            if ours.tokens != theirs.tokens:
                place = next(
                    i
                    for i, (a, b) in enumerate(zip(ours.tokens, theirs.tokens, strict=True))
                    if a != b
                )
                raise GlnnError(
                    f"token {place} differs: the exported model has {ours.tokens[place]}, the "
                    f"language model {theirs.tokens[place]}"
                )
            ratio = median(ours.wall_ms) / median(theirs.wall_ms)
            if number:
                ratios.append(ratio)
            say(f"{'round ' + str(number) if number else 'first'}: {'; '.join(said)}; {ratio:.2f}")
        found = {name: median(times) for name, times in rows.items()}
        result = {**about, "ms_a_token": found, "ratio": median(ratios), "mark": MARK}
        hosted = session.get_provider_options()["GlnnExecutionProvider"] if device else {}
        result["hosted"] = hosted.get("hosted", "")
        say(
            f"medians: {found['onnx']:.3f} and {found['language model']:.3f} ms a token, ratio "
            f"{result['ratio']:.2f} (mark: at most {MARK:g}); hosted: {result['hosted'] or 'none'}"
        )
        if profile:
            for name, begin in ways.items():
                say(f"{name}, a round:")
                profiler = cProfile.Profile()
                profiler.runcall(timed, begin(prompt), tokens)
                pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
    if as_json:
        print(json.dumps(result))


if __name__ == "__main__":
    run(main)
