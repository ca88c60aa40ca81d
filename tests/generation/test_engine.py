"""What is computed for sequences, and when: counted by the tokens of each run of the graph."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from glnn.errors import ModelError
from glnn.generation import engine
from glnn.generation.language_model import LanguageModel
from glnn.validation.comparison import relative_error
from tests.generation import references
from tests.generation.gguf_files import WORDS, small_model

ENDS = 2  # tokens below it are none of a text


def text_of(tokens: list[int]) -> str:
    return "".join(WORDS[one] for one in tokens if one >= ENDS).replace("Ġ", " ")


def continued(model: tuple[Any, Any], tokens: list[int], count: int) -> list[int]:
    """The likeliest tokens by the definition, up to one that ends the text."""
    found = list(tokens)
    for _ in range(count):
        token = int(references.logits(*model, found)[-1].argmax())
        if token == 1:
            break
        found.append(token)
    return found[len(tokens) :]


def runs_of(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens of each run that follows."""
    found: list[list[int]] = []
    compute = lm._engine.compute

    def recorded(tokens, places, logit_rows, outputs):
        found.append(list(tokens))
        return compute(tokens, places, logit_rows, outputs)

    monkeypatch.setattr(lm._engine, "compute", recorded)
    return found


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(ENDS, len(WORDS), count).tolist()


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_long_prompts_are_computed_in_parts(
    tmp_path: Path, monkeypatch, backend, architecture
) -> None:
    count = max(600, engine.CHUNK + 88)
    more = {f"{architecture}.context_length": count + 4}
    model = small_model(tmp_path / "m.gguf", architecture, **more)
    tokens = random_tokens(count)
    lm = LanguageModel(tmp_path / "m.gguf", backend=backend)
    definition = references.Definition(*model)
    hidden = definition.hidden(tokens)
    runs = runs_of(lm, monkeypatch)
    parts = [engine.CHUNK] * (count // engine.CHUNK) + [count % engine.CHUNK]
    assert len(parts) > 1
    found, expected = lm.logits(tokens), definition.scores(hidden)
    assert found.shape == expected.shape and relative_error(found, expected) < 1e-5
    assert [len(run) for run in runs] == parts and list(chain(*runs)) == tokens
    mean = hidden.mean(axis=0)
    embedded = lm.embed(tokens)
    assert embedded.dtype == np.float32 and embedded.shape == mean.shape
    assert relative_error(embedded, mean / np.linalg.norm(mean)) < 1e-5
    runs.clear()
    fresh = random_tokens(count, seed=1)
    assert lm.generate(fresh, max_tokens=2) == text_of(continued(model, fresh, 2))
    assert [len(run) for run in runs[: len(parts)]] == parts


def test_a_text_and_its_tokens_are_embedded_alike(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m.gguf", "qwen3", seed=4)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    found = [lm.embed(one) for one in ("ab c", [0, 2, 3, 28, 4], [0, 2, 3, 28, 5])]
    mean = references.Definition(*model).hidden([0, 2, 3, 28, 4]).mean(axis=0)
    assert relative_error(found[0], mean / np.linalg.norm(mean)) < 1e-5
    np.testing.assert_array_equal(found[0], found[1])
    assert relative_error(found[2], found[1]) > 0.01


def test_a_prefix_in_the_caches_is_not_computed_again(tmp_path: Path, monkeypatch) -> None:
    model = small_model(tmp_path / "m.gguf", "llama", seed=3)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    runs = runs_of(lm, monkeypatch)
    tokens = [0, *random_tokens(12)]

    def computed(prompt: list[int], count: int) -> list[int]:
        """The tokens of all runs that generating `count` takes."""
        expected = continued(model, prompt, count)
        assert len(expected) == count  # none that ends it
        assert lm.generate(prompt, max_tokens=count) == text_of(expected)
        found = list(chain(*runs))
        runs.clear()
        return found

    added = continued(model, tokens, 4)
    assert computed(tokens, 4) == [*tokens, *added[:3]]  # the last one's logits nobody needs
    assert computed(tokens, 4) == [tokens[-1], *added[:3]]
    longer = [*tokens, *added, 7, 9]
    assert computed(longer, 1) == [added[-1], 7, 9]
    other = [*tokens[:6], 5, 6]
    assert computed(other, 1) == [5, 6]
    assert computed(tokens, 1) == tokens[6:]  # the other took their place
    lm.logits(tokens)
    runs.clear()
    assert computed(tokens, 1) == tokens[-1:]


def test_prompts_go_on_from_what_lies_in_the_caches(tmp_path: Path, backend) -> None:
    model = small_model(tmp_path / "m.gguf", "llama", seed=3)
    lm = LanguageModel(tmp_path / "m.gguf", backend=backend)
    tokens = [0, *random_tokens(12)]
    for prompt in (tokens, tokens, [*tokens[:4], 7, 7], [*tokens[:4], 7, 7, 9]):
        assert lm.generate(prompt, max_tokens=6) == text_of(continued(model, prompt, 6))


def test_a_sequence_begins_where_the_most_of_it_lies(tmp_path: Path, monkeypatch) -> None:
    small_model(tmp_path / "m.gguf", "llama")
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu", sequences=3)
    first, second = [0, 5, 6, 7, 8], [0, 5, 9, 10, 11]
    streams = [lm.generate(one, max_tokens=1, stream=True) for one in (first, second)]
    for stream in streams:
        list(stream)
    runs = runs_of(lm, monkeypatch)
    for prompt, expected in (
        ([*second, 20], [20]),
        ([*first, 20], [20]),
        ([0, 5, 9, 30], [30]),
        ([*first, 20, 21], [21]),
    ):
        lm.generate(prompt, max_tokens=1)
        assert runs.pop() == expected and not runs


def test_no_run_has_more_tokens_than_a_chunk(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(engine, "CHUNK", 8)
    model = small_model(tmp_path / "m.gguf", "llama", seed=1)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu", sequences=4)
    runs = runs_of(lm, monkeypatch)
    prompts = [[0, *random_tokens(17 - i, seed=i)] for i in range(4)]
    streams = [lm.generate(one, max_tokens=3, stream=True) for one in prompts]
    for prompt, stream in zip(prompts, streams, strict=True):
        assert "".join(stream) == text_of(continued(model, prompt, 3))
    assert max(map(len, runs)) == 8
    assert len(runs) < 4 * 3 + sum(map(len, prompts)) // 8  # and they are used


def test_a_text_under_way_does_not_wait_for_the_prompts_of_others(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(engine, "CHUNK", 6)
    model = small_model(tmp_path / "m.gguf", "llama", seed=2)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu", sequences=2)
    short, long = [0, 5, 9], [0, *random_tokens(19)]
    expected = continued(model, short, 5)
    assert len(expected) == 5
    stream = lm.generate(short, max_tokens=5, stream=True)
    found, others = next(stream), lm.generate(long, max_tokens=1, stream=True)
    runs = runs_of(lm, monkeypatch)
    for i in range(3):
        found += next(stream)
        assert len(runs) == i + 1  # one run a token
        assert len(runs[i]) == 6 and runs[i][0] == expected[i]  # the prompt has the rest of it
    assert found + next(stream) == text_of(expected)
    assert "".join(others) == text_of(continued(model, long, 1))


def test_a_token_that_ends_texts_is_left_out(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m.gguf", "llama", seed=2)
    expected = continued(model, [0, 5, 9], 6)
    assert expected.index(expected[4]) == 4
    more = {"tokenizer.ggml.eos_token_id": expected[4]}
    small_model(tmp_path / "m.gguf", "llama", seed=2, **more)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    assert lm.generate([0, 5, 9], max_tokens=6) == text_of(expected[:4])


def test_a_full_context_ends_a_text(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m.gguf", "llama")
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu", context=8)
    with pytest.raises(ModelError, match="the prompt has 9 tokens, the context 8"):
        lm.generate([2] * 9)
    for count in (6, 7, 8):
        tokens = [0, 2, 3, 4, 5, 6, 7, 8][:count]
        expected = continued(model, tokens, 9)
        assert len(expected) == 9
        found = lm.generate(tokens, max_tokens=99)
        assert len(found) == max(8 - count, 1)  # at the least the token that was computed
        assert found == text_of(expected[: len(found)])
