"""The choice of tokens: rules of timestamps one by one, searches by whole texts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from glnn.errors import ModelError
from glnn.generation.speech.decoding import TokenRules, decode
from glnn.generation.speech.whisper_files import SpecialTokens
from tests.generation.speech.whisper_folders import (
    CONTEXT,
    END,
    ENGLISH,
    FIRST,
    FRAMES,
    LANGUAGE_MODEL,
    NO_SPEECH,
    NO_TIMESTAMPS,
    PREVIOUS,
    START,
    SUPPRESSED,
    SUPPRESSED_FIRST,
    TRANSCRIBE,
    TRANSLATE,
    VOCABULARY,
)

NEVER = sorted({*SUPPRESSED, START, PREVIOUS, TRANSCRIBE, TRANSLATE, NO_SPEECH, LANGUAGE_MODEL})
SPECIAL = SpecialTokens(
    END, START, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS, (FIRST, VOCABULARY),
    {"transcribe": TRANSCRIBE, "translate": TRANSLATE}, {"en": ENGLISH}, tuple(NEVER),
    tuple(SUPPRESSED_FIRST),
)  # fmt: skip
PROMPT = [START, ENGLISH, TRANSCRIBE]
A, B = 40, 41  # tokens of text


def is_time(token: int) -> bool:
    return token >= FIRST


def may_follow(tokens: Sequence[int], token: int) -> bool:
    """Whether a text with timestamps may go on with `token`, one rule after the other."""
    if token in NEVER or token == NO_TIMESTAMPS:
        return False
    if not tokens:
        return token not in SUPPRESSED_FIRST and is_time(token) and token - FIRST <= 50
    last = tokens[-1]
    ends_phrase = is_time(last) and len(tokens) > 1 and not is_time(tokens[-2])
    if is_time(last) and not ends_phrase and is_time(token):
        return False
    if ends_phrase and token < END:
        return False
    times = [one for one in tokens if is_time(one)]
    if is_time(token) and times:
        return token >= times[-1] if ends_phrase else token > times[-1]
    return True


def log_probabilities(logits: np.ndarray, tokens: Sequence[int]) -> list[float]:
    """By loops, in float64."""
    powers = [math.exp(x) if may_follow(tokens, i) else 0.0 for i, x in enumerate(logits)]
    if sum(powers[FIRST:]) > max(powers[:FIRST]):
        powers = [0.0] * FIRST + powers[FIRST:]
    total = sum(powers)
    return [math.log(power / total) if power else -math.inf for power in powers]


@pytest.mark.parametrize(
    "tokens",
    [
        [], [FIRST], [FIRST + 3], [FIRST, A], [FIRST, A, B], [FIRST, A, FIRST + 5],
        [FIRST, A, FIRST + 5, FIRST + 5], [FIRST, A, FIRST + 5, FIRST + 7],
        [FIRST, A, FIRST + 5, FIRST + 7, B], [FIRST, A, FIRST + 5, FIRST + 7, B, FIRST + 30],
        [FIRST, A, FIRST + FRAMES],
    ],
)  # fmt: skip
@pytest.mark.parametrize("louder", [0.0, 3.0, -8.0])
def test_rules_of_timestamps(tokens, louder) -> None:
    generator = np.random.default_rng(len(tokens))
    logits = generator.standard_normal(VOCABULARY).astype(np.float32)
    logits[FIRST:] += louder
    found = TokenRules(SPECIAL, timestamps=True).log_probabilities(logits, tokens)
    np.testing.assert_allclose(found, log_probabilities(logits, tokens), rtol=1e-5)


def test_rules_without_timestamps() -> None:
    logits = np.random.default_rng(0).standard_normal(VOCABULARY).astype(np.float32)
    rules = TokenRules(SPECIAL, timestamps=False)
    for tokens, never in (([], {*NEVER, *SUPPRESSED_FIRST}), ([A], set(NEVER))):
        found = rules.log_probabilities(logits, tokens)
        assert {int(i) for i in np.flatnonzero(found == -np.inf)} == never
        assert abs(np.exp(found).sum() - 1) < 1e-5


def test_first_timestamps_are_of_the_first_second() -> None:
    wide = SpecialTokens(**{**vars(SPECIAL), "timestamps": (FIRST, FIRST + 200)})
    found = TokenRules(wide, timestamps=True).log_probabilities(np.zeros(FIRST + 200), [])
    assert np.flatnonzero(found > -np.inf).tolist() == list(range(FIRST, FIRST + 51))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_no_numbers(wrong) -> None:
    logits = np.zeros(VOCABULARY, np.float32)
    logits[7] = wrong
    with pytest.raises(ModelError, match="logits are no numbers"):
        TokenRules(SPECIAL, timestamps=True).log_probabilities(logits, [])


class SeededTexts:
    """Texts whose logits are drawn by their tokens: what caches must be right for."""

    def __init__(self, beams: int, seed: int, likely_end: float = 0.0) -> None:
        self.beams, self.context, self.seed, self.end = beams, CONTEXT, seed, likely_end
        self.rows: list[list[int]] = [[] for _ in range(beams)]
        self.runs = 0

    def of(self, tokens: Sequence[int]) -> np.ndarray:
        generator = np.random.default_rng([self.seed, *tokens])
        found = generator.standard_normal(VOCABULARY) * 2
        found[END] += self.end
        return found

    def logits(
        self, tokens: Sequence[int], places: Sequence[int], rows: Sequence[int]
    ) -> np.ndarray:
        self.runs += 1
        found = []
        for token, place in zip(tokens, places, strict=True):
            text, position = divmod(place, self.context)
            self.rows[text][position:] = [token]
            assert len(self.rows[text]) == position + 1
            found.append(self.of(self.rows[text]))
        return np.array(found, np.float32)[list(rows)]

    def order(self, parents: Sequence[int]) -> None:
        assert len(parents) == self.beams
        self.rows = [list(self.rows[parent]) for parent in parents]


@pytest.mark.parametrize("seed", range(6))
def test_greedy_texts(seed) -> None:
    texts = SeededTexts(1, seed, likely_end=3.0)
    expected: list[int] = []
    total = 0.0
    while len(expected) < CONTEXT // 2:
        scores = log_probabilities(texts.of([*PROMPT, *expected]), expected)
        token = int(np.argmax(scores))
        total += scores[token]
        if token == END:
            break
        expected.append(token)
    found = decode(texts, SPECIAL, PROMPT, TokenRules(SPECIAL, timestamps=True))
    assert list(found.best.tokens) == expected
    assert abs(found.best.log_probability - total) < 1e-4
    assert abs(found.best.mean - total / (len(expected) + 1)) < 1e-4
    first = np.exp(texts.of(PROMPT[:1]))
    assert abs(found.no_speech - first[NO_SPEECH] / first.sum()) < 1e-6


def beam_search(texts: SeededTexts, beams: int) -> tuple[list[int], float]:
    """The best text, by whole texts: as whisper's own decoder searches (patience 1)."""
    active: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for _ in range(CONTEXT // 2):
        found = []
        for total, tokens in active:
            scores = log_probabilities(texts.of([*PROMPT, *tokens]), tokens)
            best = sorted(range(VOCABULARY), key=lambda i: -scores[i])[: beams + 1]
            found += [(total + scores[i], [*tokens, i]) for i in best if scores[i] > -math.inf]
        found.sort(key=lambda pair: -pair[0])
        active = []
        for total, tokens in found:
            (ended if tokens[-1] == END else active).append((total, tokens))
            if len(active) == beams:
                break
        if len(ended) >= beams:
            break
    if len(ended) < beams:
        ended += active
    texts_only = [(total, [one for one in tokens if one != END]) for total, tokens in ended]
    total, tokens = max(texts_only, key=lambda pair: pair[0] / max(len(pair[1]), 1))
    return tokens, total


@pytest.mark.parametrize("beams", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_beam_search(seed, beams) -> None:
    texts = SeededTexts(beams, seed, likely_end=2.0)
    found = decode(texts, SPECIAL, PROMPT, TokenRules(SPECIAL, timestamps=True)).best
    tokens, total = beam_search(texts, beams)
    assert list(found.tokens) == tokens
    assert abs(found.log_probability - total) < 1e-4


class OneToken(SeededTexts):
    """Texts that end behind their first token."""

    def of(self, tokens: Sequence[int]) -> np.ndarray:
        found = super().of(PROMPT)
        if len(tokens) > len(PROMPT):
            found[END] = 50.0
        return found


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_tokens_are_drawn_by_their_probabilities(temperature) -> None:
    generator, count = np.random.default_rng(0), 3000
    rules = TokenRules(SPECIAL, timestamps=False)
    found = np.zeros(VOCABULARY)
    for _ in range(count):
        texts = OneToken(1, 0)
        best = decode(texts, SPECIAL, PROMPT, rules, temperature, generator).best
        assert len(best.tokens) == 1
        found[best.tokens[0]] += 1
    never = [*NEVER, *SUPPRESSED_FIRST]
    powers = np.exp(texts.of(PROMPT) / temperature)
    powers[never] = 0.0
    expected = count * powers / powers.sum()
    assert not found[never].any()
    likely = expected > 5
    variance = ((found - expected) ** 2 / np.maximum(expected, 1e-9))[likely].sum()
    assert variance < likely.sum() + 5 * np.sqrt(2 * likely.sum())


@pytest.mark.parametrize("beams", [1, 4])
def test_the_likeliest_of_drawn_texts_is_taken(beams) -> None:
    texts, rules = SeededTexts(beams, 1, likely_end=4.0), TokenRules(SPECIAL, timestamps=True)
    found = decode(texts, SPECIAL, PROMPT, rules, 0.7, np.random.default_rng(2))
    assert found.temperature == 0.7
    generator = np.random.default_rng(2)
    active: dict[int, tuple[list[int], float]] = {i: ([], 0.0) for i in range(beams)}
    ended = []
    for _ in range(CONTEXT // 2):
        for i, (tokens, total) in list(active.items()):
            scores = np.array(log_probabilities(texts.of([*PROMPT, *tokens]), tokens))
            powers = np.exp(scores / 0.7).cumsum()
            token = int((powers > generator.random() * powers[-1]).argmax())
            active[i] = ([*tokens, token], total + scores[token])
            if token == END:
                ended.append((tokens, active.pop(i)[1]))
    ended += active.values()
    best = max(ended, key=lambda pair: pair[1] / max(len(pair[0]), 1))
    assert list(found.best.tokens) == best[0]
    assert abs(found.best.log_probability - best[1]) < 1e-4


def test_texts_end_at_half_of_the_context_or_where_it_is_full() -> None:
    for prompt, most in ((PROMPT, CONTEXT // 2), ([PREVIOUS, *[A] * 30, *PROMPT], CONTEXT - 34)):
        texts = SeededTexts(1, 0, likely_end=-50.0)
        found = decode(texts, SPECIAL, prompt, TokenRules(SPECIAL, timestamps=False))
        assert len(found.best.tokens) == most
        assert texts.runs == most  # the last token's logits are needed by nobody


def test_models_may_suppress_all_tokens() -> None:
    never = SpecialTokens(**{**vars(SPECIAL), "suppressed": tuple(range(VOCABULARY))})
    found = decode(SeededTexts(2, 0), never, PROMPT, TokenRules(never, timestamps=True))
    assert found.best.tokens == ()
