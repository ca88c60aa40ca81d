"""Decoding of a window: rules for its tokens, and the beam search for the likeliest text."""

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
"""The latest first timestamp of a window, in steps of 20 ms."""


class TokenRules:
    """Rules that exclude next tokens, given those of a text (openai/whisper, decoding.py).

    Timestamps come in pairs, the end of one phrase and the beginning of the next; they never
    decrease, and a phrase's end is after its beginning; the first token is one, of 1 s at most; and
    where all timestamps together are likelier than any other token, the next token is one.
    """

    def __init__(self, special: SpecialTokens, timestamps: bool) -> None:
        """timestamps: whether texts have timestamps."""
        self._special, self._timestamps = special, timestamps
        self._first = special.timestamps[0]
        suppressed = {*special.suppressed, *((special.no_timestamps,) if timestamps else ())}
        self._suppressed = np.array(sorted(suppressed), np.int64)
        self._suppressed_first = np.array(special.suppressed_first, np.int64)

    def log_probabilities(self, logits: Array, tokens: Sequence[int]) -> Array:
        """Return the log-probability of each token, (vocabulary,) float32; -inf for excluded ones.

        logits: (vocabulary,) float32. tokens: of this window's text. Raises ModelError where a
        logit is not finite.
        """
        scores = np.array(logits, np.float32)
        if not np.isfinite(scores).all():
            raise logits_are_no_numbers()
        scores[self._suppressed] = -np.inf
        if not tokens:
            scores[self._suppressed_first] = -np.inf
        if self._timestamps:
            self._limit_timestamps(scores, tokens)
        total = _log_sum(scores)
        return scores if total == -np.inf else scores - np.float32(total)

    def _limit_timestamps(self, scores: Array, tokens: Sequence[int]) -> None:
        """Set the scores of tokens that the rules of timestamps exclude to -inf, in place."""
        first, end = self._first, self._special.end
        if not tokens:
            scores[:first] = -np.inf
            scores[first + MOST_INITIAL + 1 :] = -np.inf
            return
        times = [token for token in tokens if token >= first]
        after_timestamp = tokens[-1] >= first
        after_pair = after_timestamp and (len(tokens) < 2 or tokens[-2] >= first)
        if after_pair:
            scores[first:] = -np.inf
        elif after_timestamp:  # a phrase's end: the next one's beginning follows, or the text's end
            scores[:end] = -np.inf
        if times:
            scores[first : times[-1] + (0 if after_timestamp else 1)] = -np.inf
        if _log_sum(scores[first:]) > scores[:first].max():
            scores[:first] = -np.inf


def _log_sum(scores: Array) -> float:
    """Return the logarithm of the sum of exponentials, -inf where all scores are."""
    greatest = scores.max()
    if greatest == -np.inf:
        return -np.inf
    return float(greatest + np.log(np.exp(scores - greatest).sum(dtype=np.float64)))


@dataclass(frozen=True)
class Hypothesis:
    """A text of a window: its tokens, and its log-probability, including that of the end token."""

    tokens: tuple[int, ...]
    log_probability: float

    @property
    def mean(self) -> float:
        """Mean log-probability of its tokens, including the end token."""
        return self.log_probability / (len(self.tokens) + 1)

    @property
    def score(self) -> float:
        """Mean by which texts of several lengths are compared, as in whisper."""
        return self.log_probability / max(len(self.tokens), 1)


class Texts(Protocol):
    """Texts whose tokens are in caches; see `SpeechEngine`."""

    beams: int
    context: int

    def logits(self, tokens: Sequence[int], places: Sequence[int], rows: Sequence[int]) -> Array:
        """Add tokens to texts; return the logits after some of them."""
        ...

    def order(self, parents: Sequence[int]) -> None:
        """Replace each text i by what text `parents[i]` was."""
        ...


@dataclass(frozen=True)
class WindowText:
    """The text of a window, the probability that nobody speaks in it, and its temperature."""

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
    """Return the likeliest text after `prompt`, by a beam search of width `texts.beams`.

    A width of 1 is greedy. Each step keeps the likeliest continuations of all texts. The search
    ends once `texts.beams` texts have ended, at half of the context, or where the context is full.
    With a `temperature` above 0 each text is drawn independently, by the probabilities of logits
    divided by it, with random numbers of `generator`; the likeliest is returned.
    """
    beams = texts.beams
    start = prompt.index(special.start)
    rows = [len(prompt) - 1] if special.no_speech is None else [len(prompt) - 1, start]
    first = texts.logits(prompt, range(len(prompt)), rows)
    no_speech = 0.0
    if special.no_speech is not None:
        no_speech = float(np.exp(first[1, special.no_speech] - _log_sum(first[1])))
    texts.order([0] * beams)
    draw_generator = generator if temperature > 0 else None
    active = [Hypothesis((), 0.0)] * (1 if draw_generator is None else beams)
    logits = np.repeat(first[:1], len(active), 0)
    ended: list[Hypothesis] = []
    max_tokens = min(texts.context // 2, texts.context - len(prompt))
    for count in range(1, max_tokens + 1):
        if draw_generator is None:
            candidates = _continuations(logits, active, rules, beams)
        else:
            candidates = _draws(logits, active, rules, temperature, draw_generator)
        if not candidates:  # the model's settings suppress all tokens
            break
        active, parents = [], []
        for parent, hypothesis in candidates:
            if hypothesis.tokens[-1] == special.end:
                ended.append(Hypothesis(hypothesis.tokens[:-1], hypothesis.log_probability))
            else:
                active.append(hypothesis)
                parents.append(parent)
            if len(active) == beams:
                break
        if len(ended) >= beams or not active or count == max_tokens:
            break
        texts.order([*parents, *range(len(parents), beams)])
        position = len(prompt) + count - 1
        places = [i * texts.context + position for i in range(len(active))]
        logits = texts.logits([h.tokens[-1] for h in active], places, range(len(active)))
    if len(ended) < beams:
        ended += active
    return WindowText(max(ended, key=lambda h: h.score), no_speech, temperature)


def _continuations(
    logits: Array, active: Sequence[Hypothesis], rules: TokenRules, beams: int
) -> list[tuple[int, Hypothesis]]:
    """Return the likeliest continuations of all texts by one token, in descending order.

    Each with the index in `active` of the text that it continues.
    """
    continuations = []
    for i, hypothesis in enumerate(active):
        scores = rules.log_probabilities(logits[i], hypothesis.tokens)
        likeliest = np.argpartition(-scores, beams)[: beams + 1] if beams > 1 else [scores.argmax()]
        for token in likeliest:
            total = hypothesis.log_probability + float(scores[token])
            if total > -np.inf:
                continuations.append((i, Hypothesis((*hypothesis.tokens, int(token)), total)))
    return sorted(continuations, key=lambda pair: -pair[1].log_probability)


def _draws(
    logits: Array,
    active: Sequence[Hypothesis],
    rules: TokenRules,
    temperature: float,
    generator: np.random.Generator,
) -> list[tuple[int, Hypothesis]]:
    """Return for each text its index in `active`, and its continuation by a drawn token."""
    continuations = []
    for i, hypothesis in enumerate(active):
        scores = rules.log_probabilities(logits[i], hypothesis.tokens).astype(np.float64)
        allowed = np.flatnonzero(scores > -np.inf)
        if len(allowed):
            token = draw(scores, allowed, temperature, generator.random())
            total = hypothesis.log_probability + float(scores[token])
            continuations.append((i, Hypothesis((*hypothesis.tokens, token), total)))
    return continuations
