"""Tokens a second of language models' shapes with seeded weights, beside PyTorch's CUDA graph.

Each shape is decoded greedily: 64 tokens after a prompt of 32, everything counted that is between
two tokens on the host. The prompt's rate is that of 512 tokens. "share" is the bytes of weights
that the tokens a second read, of the bandwidth that a copy on the device reaches in the same run.

    python -m benchmarks.generation
    python -m benchmarks.generation smollm2 llama_1b --format q4_0 --backend compute
    python -m benchmarks.generation smollm2 --contexts 512,4096 --sequences 1,8 --no-peers --json
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks.bandwidth import copies
from benchmarks.command import run
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.generation.architectures import Config, Packed, Rope, decoder
from glnn.generation.engine import Engine, GenerationRequest
from glnn.generation.sampling import Sampling
from glnn.graph.operators.quantized_matmul import random_weight
from glnn.graph.quantization import GGML_FORMATS, QuantizedFormat

NEW, PROMPT, LONG = 64, 32, 512
GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=0)
COPIED = 1 << 26  # floats: beyond any cache
SHAPES = {
    "smollm2": Config("llama", 30, 576, 9, 3, 64, 49152, 8192, 1e-5, Rope(100000.0)),
    "qwen3_0_6b": Config("qwen3", 28, 1024, 16, 8, 128, 151936, 40960, 1e-6, Rope(1000000.0)),
    "llama_1b": Config("llama", 16, 2048, 32, 8, 64, 128256, 8192, 1e-5, Rope(500000.0)),
    "llama_8b": Config("llama", 32, 4096, 32, 8, 128, 128256, 8192, 1e-5, Rope(500000.0)),
}
HIDDEN = {"smollm2": 1536, "qwen3_0_6b": 3072, "llama_1b": 8192, "llama_8b": 14336}


@dataclass(frozen=True)
class SeededWeights:
    """Random weights in one format: a `glnn.generation.architectures.WeightSource`."""

    config: Config
    hidden: int
    format: QuantizedFormat

    def __contains__(self, name: str) -> bool:
        part = name.split(".")[-2]
        if part in ("attn_q_norm", "attn_k_norm"):
            return self.config.architecture == "qwen3"
        return not name.endswith(".bias") and part not in ("output", "rope_freqs", "attn_qkv")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        config, part = self.config, name.split(".")[-2]
        width, heads = config.width, config.heads * config.head_width
        kv = config.kv_heads * config.head_width
        return {
            "token_embd": (config.vocabulary, width), "attn_q": (heads, width),
            "attn_k": (kv, width), "attn_v": (kv, width), "attn_output": (width, heads),
            "ffn_gate": (self.hidden, width), "ffn_up": (self.hidden, width),
            "ffn_down": (width, self.hidden), "attn_q_norm": (config.head_width,),
            "attn_k_norm": (config.head_width,),
        }.get(part, (width,))  # fmt: skip

    def have_same_format(self, *names: str) -> bool:
        """Return True where all these matrices are of one format."""
        return True

    def array(self, name: str) -> NDArray[np.float32]:
        """Return a tensor's numbers."""
        return np.ones(self.shape(name), np.float32)

    def packed(self, *names: str) -> Packed:
        """Return matrices one below the other."""
        n, k = sum(self.shape(name)[0] for name in names), self.shape(names[0])[1]
        words = np.zeros(self.format.words(n, k), np.int32)
        return self.format, random_weight(self.format, words, n, k)

    @property
    def nbytes(self) -> int:
        """Return the bytes of weights that a token reads."""
        rows = [(f"blk.0.{one}.weight", self.config.layers) for one in (
            "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
        )]  # fmt: skip
        rows.append(("token_embd.weight", 1))
        return sum(4 * self.format.words(*self.shape(name)) * times for name, times in rows)


def measured(
    name: str, form: str, backend: str, context: int, sequences: int, repeat: int
) -> dict[str, Any]:
    """Time one shape: tokens a second of all sequences together, and those of a prompt."""
    config, format = SHAPES[name], GGML_FORMATS[form]
    weights = SeededWeights(config, HIDDEN[name], format)
    begun = perf_counter()
    graph = decoder(config, weights, context, sequences)
    engine = Engine(graph, context, sequences, backend, None, None)
    row: dict[str, Any] = {"shape": name, "format": form, "context": context}
    row |= {"sequences": sequences, "bytes": weights.nbytes}
    generator = np.random.default_rng(0)

    def prompt(count: int) -> list[int]:
        return [int(one) for one in generator.integers(0, config.vocabulary, count)]

    def decode(length: int, sampling: Sampling = GREEDY) -> float:
        requests = [
            GenerationRequest(prompt(length), NEW + 1, frozenset(), sampling)
            for _ in range(sequences)
        ]
        for request in requests:
            engine.add(request)
        tokens = [engine.tokens(request) for request in requests]
        for one in tokens:  # their prompts
            next(one)
        start = perf_counter()
        for _ in range(NEW):
            for one in tokens:
                next(one)
        return perf_counter() - start

    decode(PROMPT)
    row["first_s"] = perf_counter() - begun
    row["tokens_per_s"] = NEW * sequences / median(decode(PROMPT) for _ in range(repeat))
    decode(PROMPT, SAMPLED)
    spent = median(decode(PROMPT, SAMPLED) for _ in range(repeat))
    row["sampled_tokens_per_s"] = NEW * sequences / spent
    if context > LONG + NEW:
        times = []
        for _ in range(repeat + 1):
            request = GenerationRequest(prompt(LONG), 1, frozenset(), Sampling())
            engine.add(request)
            start = perf_counter()
            list(engine.tokens(request))
            times.append(perf_counter() - start)
        row["prompt_tokens_per_s"] = LONG / median(times[1:])
    deep = context - NEW - 2
    if deep > PROMPT:
        decode(deep)  # which makes a plan for such lengths
        row["tokens_per_s_at_end"] = NEW * sequences / decode(deep)
    return row


def torch_rate(name: str, context: int, repeat: int) -> dict[str, Any]:
    """Tokens a second of the same shape by PyTorch in FP16, with static cache, as a CUDA graph."""
    import torch

    config, hidden = SHAPES[name], HIDDEN[name]
    width, heads, kv, size = config.width, config.heads, config.kv_heads, config.head_width
    where: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}

    def matrix(n: int, k: int) -> Any:
        return torch.randn(n, k, **where) / k**0.5

    layers = [
        (
            matrix((heads + 2 * kv) * size, width), matrix(width, heads * size),
            matrix(2 * hidden, width), matrix(width, hidden),
            torch.zeros(2, kv, context, size, **where),
        )
        for _ in range(config.layers)
    ]  # fmt: skip
    table, ones = matrix(config.vocabulary, width), torch.ones(width, **where)
    token = torch.zeros(1, dtype=torch.int64, device="cuda")
    place = torch.full((1,), PROMPT, dtype=torch.int64, device="cuda")
    angles = torch.randn(context, size // 2, **where)
    rows = torch.arange(context, device="cuda")

    def step() -> None:
        x = table[token]
        norm = torch.nn.functional.rms_norm
        cosine, sine = angles[place].cos(), angles[place].sin()
        mask = torch.where(rows <= place, 0.0, -60000.0).half()
        for qkv, output, up, down, cache in layers:
            found = (norm(x, (width,), ones) @ qkv.T).view(heads + 2 * kv, size)
            rotated = found[: heads + kv]
            if config.architecture == "qwen3":
                rotated = norm(rotated, (size,), ones[:size])
            a, b = rotated.chunk(2, 1)
            turned = torch.cat((a * cosine - b * sine, a * sine + b * cosine), 1)
            cache[0].index_copy_(1, place, turned[heads:][:, None])
            cache[1].index_copy_(1, place, found[heads + kv :][:, None])
            asked = turned[:heads].view(kv, heads // kv, size)
            scores = asked @ cache[0].transpose(1, 2) / size**0.5 + mask
            seen = scores.softmax(2) @ cache[1]
            x = x + seen.reshape(1, -1) @ output.T
            gate, value = (norm(x, (width,), ones) @ up.T).chunk(2, 1)
            x = x + (torch.nn.functional.silu(gate) * value) @ down.T
        token.copy_((norm(x, (width,), ones) @ table.T).argmax(1))
        place.add_(1)

    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        place.fill_(PROMPT)
        with torch.cuda.graph(graph):
            step()
        times = []
        for _ in range(repeat + 1):
            place.fill_(PROMPT)
            start = perf_counter()
            for _ in range(NEW):
                graph.replay()
                int(token)
            times.append(perf_counter() - start)
    return {"shape": name, "format": "PyTorch f16", "tokens_per_s": NEW / median(times[1:])}


def in_process(name: str, context: int, repeat: int) -> dict[str, Any]:
    """Return what `torch_rate` gives in a process of its own; "failed" says why it fails."""
    script = "import json; from benchmarks.generation import torch_rate; print(json.dumps("
    script += f"torch_rate({name!r}, {context}, {repeat})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"shape": name, "format": "PyTorch f16", "failed": said[:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def copy_rate(backend: str) -> float | None:
    """Bytes a second that a copy on the device reads and writes; None without a device."""
    opened = open_backend(backend)
    if not isinstance(opened, GlBackend):
        return None
    return 1e9 * max(copies(opened, COPIED, 5).values())


@click.command(help=__doc__)
@click.argument("shapes", nargs=-1)
@click.option("--backend", default="compute", show_default=True)
@click.option("--format", "form", default="q4_0", show_default=True)
@click.option("--contexts", default="1024", show_default=True, help="Numbers, by commas.")
@click.option("--sequences", default="1", show_default=True, help="Numbers, by commas.")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True)
@click.option("--peers/--no-peers", default=True, help="Also time PyTorch.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    shapes: tuple[str, ...], backend: str, form: str, contexts: str, sequences: str, repeat: int,
    peers: bool, as_json: bool,
) -> None:  # fmt: skip
    if unknown := [one for one in shapes if one not in SHAPES]:
        raise GlnnError(f"no shape {unknown[0]!r}, expected some of {', '.join(SHAPES)}")
    if form not in GGML_FORMATS:
        raise GlnnError(f"--format: no {form!r}, expected one of {', '.join(GGML_FORMATS)}")
    sizes = [(int(c), int(s)) for c in contexts.split(",") for s in sequences.split(",")]
    about = {**machine(open_backend(backend).device), "backend": backend}
    bandwidth = copy_rate(backend)
    work: list[Callable[[], dict[str, Any]]] = [
        lambda name=name, c=c, s=s: measured(name, form, backend, c, s, repeat)  # type: ignore[misc]
        for name in shapes or SHAPES
        for c, s in sizes
    ]
    if peers:  # each in a process of its own: contexts of CUDA and OpenGL disturb each other
        context = sizes[0][0]
        work += [lambda name=name: in_process(name, context, repeat) for name in shapes or SHAPES]  # type: ignore[misc]
    rows = []
    with progress(not as_json) as bar:
        for one in bar.track(work, description="decoding"):
            row = one()
            if bandwidth and "bytes" in row:
                read = row["bytes"] * row["tokens_per_s"] / row["sequences"]
                row["share"] = read / bandwidth
            rows.append(row)
            if bar.disable:
                click.echo(json.dumps(row), err=True)
    if as_json:
        print(json.dumps({**about, "copy_bytes_per_s": bandwidth, "rows": rows}, indent=2))
        return
    out = Screen()
    out.say(", ".join(f"{k} {v}" for k, v in about.items()))
    keys = (
        "tokens_per_s",
        "sampled_tokens_per_s",
        "share",
        "prompt_tokens_per_s",
        "tokens_per_s_at_end",
        "first_s",
    )
    shown = table("shape", "format", ">context", ">sequences", *(f">{key}" for key in keys))
    for row in rows:
        cells = (str(row.get(key, "-")) for key in ("context", "sequences"))
        shown.add(row["shape"], row["format"], *cells, *(number(row.get(key)) for key in keys))
    out.show(shown, "tokens a second, of all sequences together")


if __name__ == "__main__":
    run(main)
