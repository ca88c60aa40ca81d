"""The choice of a window's tokens: rules, and the search for the likeliest text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from glnn.core.types import Array
from glnn.generation.sampling import logits_are_no_numbers
from glnn.generation.speech.whisper_files import SpecialTokens
from glnn.graph.operators.sample import draw

MOST_INITIAL = 50
"""Steps of 20 ms that the first timestamp of a window may be behind its beginning."""


class TokenRules:
    """Tokens that a text may go on with (openai/whisper, decoding.py), by what it has.

    Timestamps come in pairs, the end of one phrase and the beginning of the next; they never fall,
    and a phrase takes time; the first token is one, of 1 s at most; and where all timestamps
    together are likelier than any other token, one of them is next.
    """

    def __init__(self, special: SpecialTokens, timestamps: bool) -> None:
        """timestamps: whether texts have them."""
        self._special, self._timestamps = special, timestamps
        self._first = special.timestamps[0]
        never = {*special.suppressed, *((special.no_timestamps,) if timestamps else ())}
        self._never = np.array(sorted(never), np.int64)
        self._never_first = np.array(special.suppressed_first, np.int64)

    def log_probabilities(self, logits: Array, tokens: Sequence[int]) -> Array:
        """Return the logarithm of each token's probability, (vocabulary,) float32; -inf for none.

        logits: (vocabulary,) float32. tokens: those of this window's text. Raises ModelError where
        the logits are no numbers.
        """
        scores = np.array(logits, np.float32)
        if not np.isfinite(scores).all():
            raise logits_are_no_numbers()
        scores[self._never] = -np.inf
        if not tokens:
            scores[self._never_first] = -np.inf
        if self._timestamps:
            self._limit_timestamps(scores, tokens)
        total = _log_sum(scores)
        return scores if total == -np.inf else scores - np.float32(total)

    def _limit_timestamps(self, scores: Array, tokens: Sequence[int]) -> None:
        """Set scores of what timestamps exclude to -inf, in place."""
        first, end = self._first, self._special.end
        if not tokens:
            scores[:first] = -np.inf
            scores[first + MOST_INITIAL + 1 :] = -np.inf
            return
        times = [token for token in tokens if token >= first]
        ended = tokens[-1] >= first
        paired = ended and (len(tokens) < 2 or tokens[-2] >= first)
        if paired:
            scores[first:] = -np.inf
        elif ended:  # the end of a phrase: the next one's beginning, or the text's end
            scores[:end] = -np.inf
        if times:
            scores[first : times[-1] + (0 if ended else 1)] = -np.inf
        if _log_sum(scores[first:]) > scores[:first].max():
            scores[:first] = -np.inf


def _log_sum(scores: Array) -> float:
    """Return the logarithm of the sum of exponentials; -inf for none."""
    greatest = scores.max()
    if greatest == -np.inf:
        return -np.inf
    return float(greatest + np.log(np.exp(scores - greatest).sum(dtype=np.float64)))


@dataclass(frozen=True)
class Hypothesis:
    """A text of a window: its tokens, and the logarithm of its probability, its end's included."""

    tokens: tuple[int, ...]
    log_probability: float

    @property
    def mean(self) -> float:
        """Logarithm of the probability of a token, in the mean."""
        return self.log_probability / (len(self.tokens) + 1)

    @property
    def score(self) -> float:
        """Mean by which texts of several lengths are compared, as whisper has it."""
        return self.log_probability / max(len(self.tokens), 1)


class Texts(Protocol):
    """Texts whose caches lie somewhere; see `SpeechEngine`."""

    beams: int
    context: int

    def logits(self, tokens: Sequence[int], places: Sequence[int], rows: Sequence[int]) -> Array:
        """Add tokens to texts; return the logits behind some of them."""
        ...

    def order(self, parents: Sequence[int]) -> None:
        """Have text i go on from what text `parents[i]` was."""
        ...


@dataclass(frozen=True)
class WindowText:
    """The text of a window, how likely it is that nobody speaks in it, and what it was drawn by."""

    best: Hypothesis
    no_speech: float
    temperature: float = 0.0


def decode(
    texts: Texts,
    special: SpecialTokens,
    prompt: Sequence[int],
    rules: TokenRules,
    temperature: float = 0.0,
    generator: np.random.Generator | None = None,
) -> WindowText:
    """Return the likeliest text behind `prompt`, by a search of `texts.beams` texts at a time.

    One is greedy. Each step goes on with the likeliest continuations of all; the search ends once
    so many have ended, at half of the context, or where the context is full. With a `temperature`
    above 0 each text is drawn by itself, by probabilities of logits divided by it, with random
    numbers of `generator`; the likeliest is taken.
    """
    beams = texts.beams
    start = prompt.index(special.start)
    asked = [len(prompt) - 1] if special.no_speech is None else [len(prompt) - 1, start]
    first = texts.logits(prompt, range(len(prompt)), asked)
    no_speech = 0.0
    if special.no_speech is not None:
        no_speech = float(np.exp(first[1, special.no_speech] - _log_sum(first[1])))
    texts.order([0] * beams)
    drawn = generator if temperature > 0 else None
    active = [Hypothesis((), 0.0)] * (1 if drawn is None else beams)
    logits = np.repeat(first[:1], len(active), 0)
    ended: list[Hypothesis] = []
    most = min(texts.context // 2, texts.context - len(prompt))
    for count in range(1, most + 1):
        if drawn is None:
            found = _continuations(logits, active, rules, beams)
        else:
            found = _draws(logits, active, rules, temperature, drawn)
        if not found:  # the model's settings suppress all tokens
            break
        active, parents = [], []
        for parent, one in found:
            if one.tokens[-1] == special.end:
                ended.append(Hypothesis(one.tokens[:-1], one.log_probability))
            else:
                active.append(one)
                parents.append(parent)
            if len(active) == beams:
                break
        if len(ended) >= beams or not active or count == most:
            break
        texts.order([*parents, *range(len(parents), beams)])
        place = len(prompt) + count - 1
        places = [i * texts.context + place for i in range(len(active))]
        logits = texts.logits([one.tokens[-1] for one in active], places, range(len(active)))
    if len(ended) < beams:
        ended += active
    return WindowText(max(ended, key=lambda one: one.score), no_speech, temperature)


def _continuations(
    logits: Array, active: Sequence[Hypothesis], rules: TokenRules, beams: int
) -> list[tuple[int, Hypothesis]]:
    """Return the likeliest continuations of each text by a token, the likeliest of all first.

    Each with the number of the text that it continues.
    """
    found = []
    for i, one in enumerate(active):
        scores = rules.log_probabilities(logits[i], one.tokens)
        likeliest = np.argpartition(-scores, beams)[: beams + 1] if beams > 1 else [scores.argmax()]
        for token in likeliest:
            total = one.log_probability + float(scores[token])
            if total > -np.inf:
                found.append((i, Hypothesis((*one.tokens, int(token)), total)))
    return sorted(found, key=lambda pair: -pair[1].log_probability)


def _draws(
    logits: Array,
    active: Sequence[Hypothesis],
    rules: TokenRules,
    temperature: float,
    generator: np.random.Generator,
) -> list[tuple[int, Hypothesis]]:
    """Return for each text its number, and its continuation by a token that is drawn."""
    found = []
    for i, one in enumerate(active):
        scores = rules.log_probabilities(logits[i], one.tokens).astype(np.float64)
        allowed = np.flatnonzero(scores > -np.inf)
        if len(allowed):
            token = draw(scores, allowed, temperature, generator.random())
            total = one.log_probability + float(scores[token])
            found.append((i, Hypothesis((*one.tokens, token), total)))
    return found
