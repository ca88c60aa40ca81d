"""The processes of `benchmarks.generation_cpu`: each continues prompts by one library.

    python -m benchmarks.generation_process NAME FILE CONTEXT THREADS

First it says what it is. Then each line of its input has the tokens of a prompt and how many are to
be added, and it answers with their text and the seconds that they took.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import GlnnError
from glnn.generation.architectures import decoder
from glnn.generation.engine import Engine, GenerationRequest
from glnn.generation.gguf import GGUFFile
from glnn.generation.model_file import open_model
from glnn.generation.sampling import Sampling
from glnn.generation.tokenizer import Tokenizer

Array = NDArray[np.float32]
NUMPY, PEER = "NumPy", "xllamacpp"


@dataclass(frozen=True)
class Continuation:
    """The text of greedy tokens that were added to a prompt.

    prompt_s: seconds until the first was there. decode_s: from then until the last was. cpu_s:
    those of all threads of the process, of both together.
    """

    text: str
    prompt_s: float
    decode_s: float
    cpu_s: float


Continue = Callable[[list[int], int], Continuation]


def timed(tokens: Iterator[int], count: int, tokenizer: Tokenizer) -> Continuation:
    """Time the first `count` of `tokens`."""
    cpu, start = process_time(), perf_counter()
    added = [next(tokens)]
    first = perf_counter()
    added += [next(tokens) for _ in range(count - 1)]
    end, spent = perf_counter(), process_time() - cpu
    return Continuation(tokenizer.decode(added), first - start, end - first, spent)


class PlainLlama:
    """A model of the architecture llama in NumPy: matrices of float32, and a cache of keys and
    values.
    """

    def __init__(self, path: Path, context: int) -> None:
        """Read the weights as float32."""
        with open_model(path) as file:
            weights, self.config, self.tokenizer = file.weights, file.config, file.tokenizer()
            plain = self.config.architecture == "llama" and self.config.rope.factor == 1
            if not plain or not isinstance(weights, GGUFFile) or "rope_freqs.weight" in weights:
                raise GlnnError(f"{path}: expected a GGUF file of llama with plain angles")
            self.weights = {name: weights.array(name) for name in weights.tensors}
        head = self.config.head_width
        inverse = self.config.rope.base ** (-np.arange(0, head, 2) / head)
        angles = np.arange(context)[:, None] * inverse
        self.rotation = np.exp(1j * angles).astype(np.complex64)
        shape = self.config.layers, self.config.kv_heads, context, head
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def norm(self, x: Array, name: str) -> Array:
        """Normalise rows."""
        mean = np.mean(x * x, axis=1, keepdims=True)
        normed: Array = x / np.sqrt(mean + np.float32(self.config.eps))
        return normed * self.weights[f"{name}.weight"]

    def product(self, x: Array, name: str) -> Array:
        """Multiply by a matrix."""
        y: Array = x @ self.weights[f"{name}.weight"].T
        return y

    def rotated(self, x: Array, first: int) -> Array:
        """Rotate pairs of numbers of (tokens, heads, head) by their positions from `first` on."""
        turned = x.view(np.complex64) * self.rotation[first : first + len(x), None]
        numbers: Array = turned.view(np.float32)
        return numbers

    def attention(self, layer: int, x: Array, first: int) -> Array:
        """Attention of tokens from `first` on, whose keys and values are put into the cache."""
        end, head, name = first + len(x), self.config.head_width, f"blk.{layer}.attn"
        q, k, v = (self.product(x, f"{name}_{part}").reshape(len(x), -1, head) for part in "qkv")
        keys, values = self.keys[layer], self.values[layer]
        keys[:, first:end] = self.rotated(k, first).transpose(1, 0, 2)
        values[:, first:end] = v.transpose(1, 0, 2)
        queries = self.rotated(q, first).transpose(1, 0, 2) / np.float32(head**0.5)
        queries = queries.reshape(self.config.kv_heads, -1, len(x), head)
        scores = queries @ keys[:, None, :end].swapaxes(2, 3)
        if len(x) > 1:
            hidden = np.arange(end) > np.arange(first, end)[:, None]
            scores[..., hidden] = -np.inf
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        mean = powers @ values[:, None, :end] / powers.sum(-1, keepdims=True)
        joined = mean.reshape(-1, len(x), head).transpose(1, 0, 2)
        return self.product(joined.reshape(len(x), -1), f"{name}_output")

    def next_token(self, tokens: Sequence[int], first: int) -> int:
        """Return the likeliest token behind `tokens`, which lie from `first` on."""
        x = self.weights["token_embd.weight"][list(tokens)]
        for layer in range(self.config.layers):
            block = f"blk.{layer}"
            x = x + self.attention(layer, self.norm(x, f"{block}.attn_norm"), first)
            h = self.norm(x, f"{block}.ffn_norm")
            gate = self.product(h, f"{block}.ffn_gate")
            h = gate / (1 + np.exp(-gate)) * self.product(h, f"{block}.ffn_up")
            x = x + self.product(h, f"{block}.ffn_down")
        table = "output" if "output.weight" in self.weights else "token_embd"
        return int(self.product(self.norm(x[-1:], "output_norm"), table).argmax())

    def tokens(self, prompt: list[int]) -> Iterator[int]:
        """Yield the tokens behind a prompt."""
        token, place = self.next_token(prompt, 0), len(prompt)
        while True:
            yield token
            token, place = self.next_token([token], place), place + 1


def numpy_contender(path: Path, context: int) -> tuple[str, Continue]:
    """A plain implementation in NumPy."""
    model = PlainLlama(path, context)

    def run(prompt: list[int], count: int) -> Continuation:
        return timed(model.tokens(prompt), count, model.tokenizer)

    return f"NumPy {np.__version__} float32", run


def peer_contender(path: Path, context: int, threads: int) -> tuple[str, Continue]:
    """llama.cpp by xllamacpp."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx, parameters.n_parallel = context, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.verbosity = -1
    server = xllamacpp.Server(parameters)

    def run(prompt: list[int], count: int) -> Continuation:
        answers: list[Any] = []
        asked = {
            "prompt": prompt, "n_predict": count, "temperature": 0, "cache_prompt": False,
            "ignore_eos": True,
        }  # fmt: skip
        cpu = process_time()
        server.handle_completions(asked, answers.append)
        spent = process_time() - cpu
        answer = answers[-1]
        if not isinstance(answer, dict):
            answer = json.loads(answer)
        times = answer["timings"]  # of tokens those behind the first, which the prompt gives
        if times["prompt_n"] != len(prompt) or times["predicted_n"] != count:
            raise RuntimeError(f"{PEER} computed other tokens than it was asked for: {times}")
        seconds = 1e-3 * times["prompt_ms"], 1e-3 * times["predicted_ms"]
        return Continuation(answer["choices"][0]["text"], *seconds, spent)

    return f"{PEER} {version(PEER)}", run


def own_contender(path: Path, context: int, backend: str) -> tuple[str, Continue]:
    """The backend of glnn that is called so."""
    with open_model(path) as file:
        graph, tokenizer = decoder(file.config, file.weights, context), file.tokenizer()
    engine = Engine(graph, context, 1, backend, None, None)
    device = engine.backend.device
    where = f" ({device.capabilities.renderer})" if device else ""

    def run(prompt: list[int], count: int) -> Continuation:
        request = GenerationRequest(prompt, count, frozenset(), Sampling())
        engine.add(request)
        return timed(engine.tokens(request), count, tokenizer)

    return f"glnn {backend}{where}", run


def main(name: str, path: str, context: str, threads: str) -> None:
    """Answer lines of input."""
    if name == NUMPY:
        title, run = numpy_contender(Path(path), int(context))
    elif name == PEER:
        title, run = peer_contender(Path(path), int(context), int(threads))
    else:
        title, run = own_contender(Path(path), int(context), name)
    print(json.dumps({"title": title}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        done = run(asked["prompt"], asked["count"])
        print(json.dumps(done.__dict__), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
