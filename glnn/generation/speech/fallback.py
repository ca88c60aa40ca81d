"""Fallback to higher temperatures for windows whose text repeats itself or is unlikely."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from glnn.generation.speech.decoding import WindowText

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The temperatures that whisper tries, in order."""


def compression_ratio(text: str) -> float:
    """Return how many times smaller zlib makes a text; high for one that repeats itself."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw))


@dataclass(frozen=True)
class Fallback:
    """Rules by which the text of a window is accepted, or decoded again (openai/whisper).

    temperatures: of `decode`, tried in order until a text is accepted: zlib compresses it by at
    most `most_compression`, and the mean log-probability of its tokens is at least
    `least_log_probability`. A less likely text is accepted where the probability that nobody speaks
    exceeds `no_speech`.
    """

    temperatures: tuple[float, ...]
    most_compression: float
    least_log_probability: float
    no_speech: float

    def silent(self, window: WindowText) -> bool:
        """Return True where nobody speaks in a window."""
        unlikely = window.best.mean <= self.least_log_probability
        return unlikely and window.no_speech > self.no_speech

    def choose(
        self, decode: Callable[[float], WindowText], text: Callable[[WindowText], str]
    ) -> WindowText:
        """Return the first accepted window of `decode`, which is called with each temperature.

        Where none is accepted, returns the likeliest of those that do not repeat themselves, or
        else of all, marked with the last temperature. text: returns the text of a window.
        """
        rejected: list[tuple[bool, WindowText]] = []
        for temperature in self.temperatures:
            window = decode(temperature)
            repeats = compression_ratio(text(window)) > self.most_compression
            unlikely = window.best.mean < self.least_log_probability
            if self.silent(window) or not (repeats or unlikely):
                return window
            rejected.append((not repeats, window))
        _, best = max(rejected, key=lambda pair: (pair[0], pair[1].best.mean))
        return replace(best, temperature=self.temperatures[-1])
