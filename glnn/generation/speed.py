"""Measurement of the tokens a second that a language model reads and adds."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from glnn.generation.architectures import Config
from glnn.generation.engine import Engine, GenerationRequest
from glnn.generation.memory import MemoryPlan
from glnn.generation.sampling import Sampling


@dataclass(frozen=True)
class DecodingSpeed:
    """Medians of a model's rates by the clock on the wall, with all that the host does.

    first_s: seconds of the first texts, in which kernels are chosen and compiled and weights
    uploaded. prompt_tokens_per_s: of one prompt. tokens_per_s: of all sequences together.
    step_bytes: bytes of weights and caches that a step reads, which adds a token to each sequence.
    """

    first_s: float
    prompt_tokens_per_s: float
    tokens_per_s: float
    step_bytes: int
    sequences: int

    @property
    def bytes_per_token(self) -> float:
        """Bytes that are read for a token."""
        return self.step_bytes / self.sequences

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second that steps read."""
        return self.bytes_per_token * self.tokens_per_s


def measure_decoding(
    engine: Engine,
    config: Config,
    memory: MemoryPlan,
    *,
    prompt_tokens: int,
    tokens: int,
    sequences: int,
    repeat: int,
) -> DecodingSpeed:
    """Time prompts of so many tokens at random, and as many greedy tokens after each.

    memory: the plan of what `engine` takes. repeat: how often; the medians count.
    """
    measure = _Measure(engine, config.vocabulary, prompt_tokens, tokens, sequences)
    start = perf_counter()
    measure.decode()
    measure.prompt()
    first = perf_counter() - start
    prompts = median(measure.prompt() for _ in range(repeat))
    decoded = median(measure.decode() for _ in range(repeat))
    seen = prompt_tokens + tokens / 2  # in the mean, of which some layers see a window only
    rows = sum(
        min(seen, config.window) if config.windowed(layer) else seen
        for layer in range(config.layers)
    )
    cached = round(4 * rows * 2 * config.kv_heads * config.head_width)
    read = memory.matrices + sequences * cached
    return DecodingSpeed(first, prompt_tokens / prompts, decoded, read, sequences)


class _Measure:
    """Times prompts and the tokens behind them, each of other tokens: none lies in the caches."""

    def __init__(
        self, engine: Engine, vocabulary: int, prompt_tokens: int, tokens: int, sequences: int
    ) -> None:
        self._engine, self._vocabulary = engine, vocabulary
        self._prompt_tokens, self._tokens, self._sequences = prompt_tokens, tokens, sequences
        self._generator = np.random.default_rng(2026)

    def prompt(self) -> float:
        """Return the seconds of a prompt."""
        (request,) = self._begin(1, 1)
        start = perf_counter()
        while not request.done:
            self._engine.step()
        return perf_counter() - start

    def decode(self) -> float:
        """Return the tokens a second of all sequences, once all have their first."""
        requests = self._begin(self._sequences, self._tokens + 1)
        while any(len(request.tokens) == request.prompt for request in requests):
            self._engine.step()
        before, start = sum(len(request.tokens) for request in requests), perf_counter()
        while not all(request.done for request in requests):
            self._engine.step()
        spent = perf_counter() - start
        return (sum(len(request.tokens) for request in requests) - before) / spent

    def _begin(self, count: int, most: int) -> list[GenerationRequest]:
        draw = self._generator.integers
        shape = count, self._prompt_tokens
        prompts = draw(0, self._vocabulary, shape).tolist()
        requests = [GenerationRequest(one, most, frozenset(), Sampling()) for one in prompts]
        for request in requests:
            self._engine.add(request)
        return requests
