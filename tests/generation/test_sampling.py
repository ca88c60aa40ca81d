"""The choice of the next token: each rule by its definition, and the draws that follow from it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from glnn.errors import ModelError
from glnn.generation.language_model import LanguageModel
from glnn.generation.sampling import Sampling
from tests.generation import references
from tests.generation.gguf_files import WORDS, small_model

DRAWS, END, GRID = 4000, 1, 500
LOGITS = np.array([0.3, 2.0, -1.0, 1.6, 0.0, 1.1, -0.4, 1.9, -0.9, 0.7], np.float32)
BEFORE = [7, 2, 2, 7, 4]
RULES = {
    "temperature": {"temperature": 1.0},
    "a low temperature": {"temperature": 0.7},
    "a high temperature": {"temperature": 3.0},
    "top_k": {"temperature": 1.0, "top_k": 4},
    "top_k of all": {"temperature": 1.0, "top_k": 99},
    "top_p": {"temperature": 1.0, "top_p": 0.7},
    "top_p of one": {"temperature": 1.0, "top_p": 0.0},
    "min_p": {"temperature": 1.0, "min_p": 0.3},
    "min_p of the likeliest": {"temperature": 1.0, "min_p": 1.0},
    "repetition_penalty": {"temperature": 1.0, "repetition_penalty": 1.8},
    "a premium on repetition": {"temperature": 1.0, "repetition_penalty": 0.7},
    "top_k, then top_p of these": {"temperature": 1.0, "top_k": 5, "top_p": 0.7},
    "top_p and min_p, the first less": {"temperature": 1.0, "top_p": 0.5, "min_p": 0.1},
    "top_p and min_p, the second less": {"temperature": 1.0, "top_p": 0.95, "min_p": 0.5},
    "the temperature last": {"temperature": 2.5, "top_p": 0.7},
    "all": {
        "temperature": 0.8, "top_k": 7, "top_p": 0.9, "min_p": 0.12, "repetition_penalty": 1.3,
    },
}  # fmt: skip


def distribution(
    logits: list[float],
    before: list[int],
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
) -> dict[int, float]:
    """The probability of each token that may be drawn, rule after rule."""
    scores = dict(enumerate(map(float, logits)))
    for token in set(before):
        over = scores[token] > 0
        scores[token] *= 1 / repetition_penalty if over else repetition_penalty
    likely = sorted(scores, key=lambda token: -scores[token])
    likely = likely[: top_k or len(likely)]
    total = sum(math.exp(scores[token]) for token in likely)
    share = {token: math.exp(scores[token]) / total for token in likely}
    kept, together = [], 0.0
    for token in likely:
        if share[token] < min_p * share[likely[0]]:
            break
        kept.append(token)
        together += share[token]
        if together >= top_p:
            break
    powers = {token: math.exp(scores[token] / temperature) for token in kept}
    return {token: one / sum(powers.values()) for token, one in powers.items()}


def drawn(probabilities: dict[int, float], random: float) -> int:
    """The first token, in the order of their numbers, up to which there is more than `random`."""
    together = 0.0
    for token in sorted(probabilities):
        together += probabilities[token]
        if together > random:
            break
    return token


@pytest.mark.parametrize("rule", RULES)
def test_draws_are_as_often_as_the_definition_says(rule) -> None:
    sampling = Sampling(**RULES[rule], seed=1)
    expected = distribution(list(LOGITS), BEFORE, **RULES[rule])
    generator = sampling.generator()
    drawn = [sampling.choose(LOGITS, BEFORE, generator) for _ in range(DRAWS)]
    counts = np.bincount(drawn, minlength=len(LOGITS))
    # No token is so rare that it is never drawn, but for one time in e^12.
    assert min(expected.values()) * DRAWS > 12
    assert set(np.flatnonzero(counts)) == set(expected)
    away = sum((counts[i] - DRAWS * p) ** 2 / (DRAWS * p) for i, p in expected.items())
    free = len(expected) - 1
    assert away <= free + 5 * math.sqrt(2 * free) + 1e-9  # chi-square's mean, and five deviations


def test_rules_keep_what_the_definition_keeps() -> None:
    """By random logits: the tokens of every probability, exactly."""

    def recorded(sampling: Sampling, logits: np.ndarray, before: list[int]) -> dict[int, float]:
        """The tokens that numbers from 0 to 1 draw, each with its share of these."""
        numbers = (np.arange(GRID) + 0.5) / GRID
        steps = iter(numbers)
        source = SimpleNamespace(random=lambda: next(steps))
        found = [sampling.choose(logits, before, source) for _ in numbers]  # type: ignore[arg-type]
        assert found == sorted(found)  # in the order of tokens
        return {token: found.count(token) / GRID for token in dict.fromkeys(found)}

    draw, kept = np.random.default_rng(3), set()
    for _ in range(60):
        logits = draw.normal(0, draw.uniform(0.1, 4), 60).astype(np.float32)
        before = draw.integers(0, 60, draw.integers(0, 20)).tolist()
        options = {
            "temperature": float(draw.uniform(0.1, 4)),
            "top_k": int(draw.integers(0, 40)),
            "top_p": float(draw.uniform(0, 1)),
            "min_p": float(draw.uniform(0, 0.5)),
            "repetition_penalty": float(draw.uniform(0.5, 2)),
        }
        found = recorded(Sampling(**options), logits, before)
        expected = distribution(list(logits), before, **options)
        assert set(found) <= set(expected)
        for token, share in expected.items():
            assert abs(found.get(token, 0) - share) < 1.01 / GRID
        kept.add(len(expected))
    assert len(kept) > 10


def test_the_likeliest_is_taken_after_repetitions_count() -> None:
    found = Sampling(repetition_penalty=1.5)
    generator = found.generator()
    assert found.choose(LOGITS, [], generator) == 1
    assert found.choose(LOGITS, [1, 7], generator) == 3
    assert not found.greedy and Sampling().greedy and not Sampling(temperature=1.0).greedy


def test_logits_of_any_size_are_no_trouble() -> None:
    huge = np.array([1e30, -1e30, 3e38, -3e38], np.float32)
    for options in ({"temperature": 1.0}, {"temperature": 1e-6}, {"temperature": 1.0, "min_p": 1}):
        sampling = Sampling(**options, seed=0)
        assert {sampling.choose(huge, [], sampling.generator()) for _ in range(9)} == {2}


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.7},
        {"temperature": 1.2, "seed": 5},
        {"temperature": 1.2, "min_p": 0.2, "seed": 5},
        {"temperature": 1.2, "top_k": 3, "seed": 5},
        {"temperature": 1.2, "top_p": 0.6, "seed": 5},
        {"temperature": 1.2, "repetition_penalty": 1.7, "seed": 5},
    ],
)
def test_texts_are_drawn_by_the_rules(tmp_path: Path, options) -> None:
    """Those of the definition's logits, by the same random numbers."""
    metadata, tensors = small_model(tmp_path / "m.gguf", "llama", seed=6)
    tokens = [0, 5, 9, 33, 9]
    sampling = Sampling(**options)
    generator, there = sampling.generator(), list(tokens)
    for _ in range(12):
        logits = list(references.logits(metadata, tensors, there)[-1])
        named = {"temperature": 1.0, **options}
        named.pop("seed", None)
        likely = distribution(logits, there, **named)  # the likeliest first
        chosen = next(iter(likely))
        if sampling.temperature:
            chosen = drawn(likely, generator.random())
        if chosen == END:
            break
        there.append(chosen)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    expected = "".join(WORDS[i] for i in there[len(tokens) :] if i > END).replace("Ġ", " ")
    assert len(expected) > 2 and lm.generate(tokens, max_tokens=12, **options) == expected


@pytest.mark.parametrize("logits", [[0, math.nan, 1], [0, math.inf, 1], [-math.inf] * 3])
@pytest.mark.parametrize("rule", [{"temperature": 1.0}, {"repetition_penalty": 1.5}])
def test_logits_that_are_no_numbers_are_refused(logits, rule) -> None:
    sampling = Sampling(**rule)
    with pytest.raises(ModelError, match="the model's logits are no numbers: "):
        sampling.choose(np.array(logits, np.float32), [0], sampling.generator())


def test_logits_of_nothing_likely_are_numbers() -> None:
    sampling = Sampling(temperature=1e-320)
    logits = np.array([-math.inf, 2, 1], np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert sampling.choose(logits, [], sampling.generator()) == 1


def test_options_are_numbers_of_numpy_too(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf", "llama")
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    plain = {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "seed": 4, "max_tokens": 9}
    numpy = {
        "temperature": np.float32(0.5), "top_k": np.int64(3), "top_p": np.float16(0.5),
        "seed": np.uint8(4), "max_tokens": np.int32(9),
    }  # fmt: skip
    assert lm.generate("abc", **numpy) == lm.generate("abc", **plain)
    for key, one in (("temperature", np.bool_(True)), ("top_k", np.float32(3)), ("seed", True)):
        with pytest.raises(ModelError, match=f"{key} must be a"):
            lm.generate("abc", **{key: one})
