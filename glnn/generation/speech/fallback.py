"""Texts of windows that are drawn anew where the likeliest repeats itself or is unlikely."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from glnn.generation.speech.decoding import WindowText

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""What whisper tries one after the other."""


def compression_ratio(text: str) -> float:
    """Return how many times smaller zlib makes a text: much for one that repeats itself."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw))


@dataclass(frozen=True)
class Fallback:
    """When the text of a window is taken, and when it is chosen anew (openai/whisper).

    temperatures: of `decode`, tried one after the other until a text is compressed by less than
    `most_compression` and has tokens likelier, in the mean of logarithms, than
    `least_log_probability`; unlikely ones are taken, too, where `no_speech` is exceeded by the
    probability that nobody speaks.
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
        """Return what `decode` gives at the first temperature whose text is taken.

        Where none is, the likeliest of those that do not repeat themselves, or else of all, with
        the last temperature. text: of a window.
        """
        tried: list[tuple[bool, WindowText]] = []
        for temperature in self.temperatures:
            window = decode(temperature)
            repeats = compression_ratio(text(window)) > self.most_compression
            unlikely = window.best.mean < self.least_log_probability
            if self.silent(window) or not (repeats or unlikely):
                return window
            tried.append((not repeats, window))
        _, best = max(tried, key=lambda pair: (pair[0], pair[1].best.mean))
        return replace(best, temperature=self.temperatures[-1])
