"""Measurement of a language model's speed: prompt tokens and generated tokens per second."""

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
    """Medians of a model's rates in wall-clock time, the host's work included.

    first_s: seconds of the first texts, in which kernels are chosen and compiled and weights
    uploaded. prompt_tokens_per_s: of one prompt. tokens_per_s: of all sequences together.
    step_bytes: bytes of weights and caches that a step reads; a step adds a token to each sequence.
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
    """Time prompts of `prompt_tokens` random tokens, and `tokens` greedy tokens after each.

    memory: the plan of `engine`. repeat: how many times to measure; medians are returned.
    """
    measure = _Measure(engine, config.vocabulary, prompt_tokens, tokens, sequences)
    start = perf_counter()
    measure.decode()
    measure.prompt()
    first = perf_counter() - start
    prompts = median(measure.prompt() for _ in range(repeat))
    decoded = median(measure.decode() for _ in range(repeat))
    length = prompt_tokens + tokens / 2  # of a sequence, on average over the steps
    rows = sum(
        min(length, config.window) if config.windowed(layer) else length
        for layer in range(config.layers)
    )
    cache_bytes = round(4 * rows * 2 * config.kv_heads * config.head_width)
    step_bytes = memory.matrices + sequences * cache_bytes
    return DecodingSpeed(first, prompt_tokens / prompts, decoded, step_bytes, sequences)


class _Measure:
    """Times prompts and the tokens generated after them. Each prompt is new, so none is cached."""

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
        """Return the tokens per second of all sequences, counted once each has its first."""
        requests = self._begin(self._sequences, self._tokens + 1)
        while any(len(request.tokens) == request.prompt_length for request in requests):
            self._engine.step()
        initial, start = sum(len(request.tokens) for request in requests), perf_counter()
        while not all(request.done for request in requests):
            self._engine.step()
        seconds = perf_counter() - start
        return (sum(len(request.tokens) for request in requests) - initial) / seconds

    def _begin(self, count: int, max_tokens: int) -> list[GenerationRequest]:
        draw = self._generator.integers
        shape = count, self._prompt_tokens
        prompts = draw(0, self._vocabulary, shape).tolist()
        requests = [
            GenerationRequest(prompt, max_tokens, frozenset(), Sampling()) for prompt in prompts
        ]
        for request in requests:
            self._engine.add(request)
        return requests
