"""Angles of rotary embeddings, as their authors' texts have them, and models that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from glnn.core import process
from glnn.errors import LimitError, ModelError
from glnn.generation.architectures import Rope, yarn_magnitude
from glnn.generation.language_model import LanguageModel
from glnn.validation.comparison import relative_error
from tests.generation import references
from tests.generation.gguf_files import HEAD, small_model, write

TOKENS = np.random.default_rng(0).integers(2, 60, 24).tolist()
CONTEXT, COUNT = 300, 32
DIVISORS = np.linspace(1, 9, COUNT // 2).astype(np.float32)
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"type": "linear", "factor": 3.0},
    "YaRN": {"type": "yarn", "factor": 4.0, "original_context_length": 12},
    "YaRN, narrow": {
        "type": "yarn", "factor": 4.0, "original_context_length": 12, "yarn_beta_fast": 1.5,
        "yarn_beta_slow": 0.2, "attn_factor": 0.8,
    },
    "YaRN, the model's context": {"type": "yarn", "factor": 2.0},
}  # fmt: skip
"""Entries of GGUF files below rope.scaling."""


def table(row: list[float], size: float = 1.0) -> np.ndarray:
    angles = np.outer(np.arange(CONTEXT), row)
    return size * np.concatenate((np.cos(angles), np.sin(angles)), axis=1)


@pytest.mark.parametrize("divisors", [None, DIVISORS], ids=["", "divided"])
@pytest.mark.parametrize("base", [10.0, 10000.0, 5e5])
@pytest.mark.parametrize(
    ("scaling", "factor", "original"),
    [
        ("none", 1.0, 0), ("linear", 8.0, 0), ("llama3", 8.0, 64), ("llama3", 32.0, 8192),
        ("yarn", 4.0, 128), ("yarn", 40.0, 4096), ("yarn", 2.0, 1 << 15),
    ],
)  # fmt: skip
def test_angles_are_those_of_the_texts(scaling, factor, original, base, divisors) -> None:
    rope = Rope(base, scaling, factor, original)
    row = references.frequencies(COUNT, base, scaling, factor, original, divisors=divisors)
    found = rope.table(CONTEXT, COUNT, divisors)
    np.testing.assert_allclose(found, table(row), rtol=0, atol=1e-6)


def test_parameters_of_scalings_are_used() -> None:
    for scaling, more, theirs in (
        ("llama3", {"low_frequency": 2.0, "high_frequency": 3.0}, {"low": 2.0, "high": 3.0}),
        ("yarn", {"beta_fast": 8.0, "beta_slow": 2.0}, {"fast": 8.0, "slow": 2.0}),
    ):
        found = Rope(100.0, scaling, 4.0, 128, **more).table(CONTEXT, COUNT)
        row = references.frequencies(COUNT, 100.0, scaling, 4.0, 128, **theirs)
        np.testing.assert_allclose(found, table(row), rtol=0, atol=1e-6)
        without = Rope(100.0, scaling, 4.0, 128).table(CONTEXT, COUNT)
        assert relative_error(found, without) > 0.01
    found = Rope(100.0, magnitude=1.5).table(CONTEXT, COUNT)
    np.testing.assert_allclose(found, table(references.frequencies(COUNT, 100.0), 1.5), atol=1e-6)


def test_yarns_magnitude_is_that_of_the_text() -> None:
    assert yarn_magnitude(1.0) == yarn_magnitude(0.5) == 1
    assert yarn_magnitude(40.0) == pytest.approx(1.3688879454113936, rel=1e-12)
    assert yarn_magnitude(40.0, 0.707) == pytest.approx(1.2608037774058553, rel=1e-12)


@pytest.mark.parametrize("case", SCALED)
def test_scaled_angles_of_files_are_used(tmp_path: Path, backend, case) -> None:
    more = {f"llama.rope.scaling.{key}": one for key, one in SCALED[case].items()}
    more["llama.rope.freq_base"] = 50.0
    metadata, tensors = small_model(tmp_path / "m.gguf", "llama", **more)
    expected = references.logits(metadata, tensors, TOKENS)
    plain = {key: one for key, one in metadata.items() if "scaling" not in key}
    assert relative_error(references.logits(plain, tensors, TOKENS), expected) > 0.01
    found = LanguageModel(tmp_path / "m.gguf", backend=backend).logits(TOKENS)
    assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize("scaling", ["none", "linear"])
def test_divisors_of_files_are_used(tmp_path: Path, backend, scaling) -> None:
    """Llama 3.1's files have its scaling so, beside which there may be another."""
    more = {"llama.rope.scaling.type": scaling, "llama.rope.scaling.factor": 2.0}
    metadata, tensors = small_model(tmp_path / "m.gguf", "llama", **more)
    plain = references.logits(metadata, tensors, TOKENS)
    tensors["rope_freqs.weight"] = DIVISORS[: HEAD // 2]
    write(tmp_path / "m.gguf", metadata, tensors)
    expected = references.logits(metadata, tensors, TOKENS)
    assert relative_error(plain, expected) > 0.01
    found = LanguageModel(tmp_path / "m.gguf", backend=backend).logits(TOKENS)
    assert relative_error(found, expected) < 1e-5


def test_bases_of_layers_with_a_window_are_their_own(tmp_path: Path) -> None:
    more = {"gemma3.rope.freq_base_swa": 30.0}
    metadata, tensors = small_model(tmp_path / "m.gguf", "gemma3", **more)
    found = LanguageModel(tmp_path / "m.gguf", backend="cpu").logits(TOKENS)
    assert relative_error(found, references.logits(metadata, tensors, TOKENS)) < 1e-5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"llama.rope.scaling.factor": 0.0}, "'llama.rope.scaling.factor' must be above 0, got 0"),
        ({"llama.rope.freq_base": 1.0}, "'llama.rope.freq_base' must be above 1, got 1"),
        ({"llama.rope.scaling.type": "llama3"}, "'llama3' does not run here: none, linear, yarn"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope must have 8 short and long factors"),
    ],
)
def test_angles_that_do_not_run_say_why(tmp_path: Path, change, says) -> None:
    small_model(tmp_path / "m.gguf", "llama", **change)
    with pytest.raises(ModelError, match=says):
        LanguageModel(tmp_path / "m.gguf", backend="cpu")


@pytest.mark.parametrize(("context", "kind"), [(8, "short"), (9, "long"), (24, "long")])
def test_factors_of_longrope_are_those_of_the_context(
    tmp_path: Path, backend, context, kind
) -> None:
    """Phi-3's files have divisors for contexts up to the original one, and for longer ones."""
    original = {
        "phi3.rope.scaling.original_context_length": 8,
        "phi3.rope.scaling.attn_factor": 1.2,
    }
    metadata, tensors = small_model(tmp_path / "m.gguf", "phi3", **original)
    factors = {"short": DIVISORS[:4], "long": 3 * DIVISORS[:4]}
    named = {f"rope_factors_{name}.weight": one for name, one in factors.items()}
    write(tmp_path / "m.gguf", metadata, {**tensors, **named})
    expected = references.logits(
        metadata, {**tensors, "rope_freqs.weight": factors[kind]}, TOKENS[:context]
    )
    assert relative_error(references.logits(metadata, tensors, TOKENS[:context]), expected) > 0.01
    lm = LanguageModel(tmp_path / "m.gguf", backend=backend, context=context)
    assert relative_error(lm.logits(TOKENS[:context]), expected) < 1e-5


def test_divisors_that_no_angle_has_are_refused(tmp_path: Path) -> None:
    metadata, tensors = small_model(tmp_path / "m.gguf", "phi3")
    for more, says in (
        ({"rope_factors_long.weight": DIVISORS[:4]}, "longrope must have 4 short and long factors"),
        ({"rope_factors_short.weight": 0 * DIVISORS[:4]}, "must be numbers above 0"),
        ({"rope_freqs.weight": DIVISORS[:3]}, "'rope_freqs.weight' must be \\(4,\\), got"),
    ):
        write(tmp_path / "m.gguf", metadata, {**tensors, **more})
        with pytest.raises(ModelError, match=says):
            LanguageModel(tmp_path / "m.gguf", backend="cpu")


@pytest.mark.parametrize(
    ("more", "same"),
    [
        ({"rope.scaling.factor": 3.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}),
        ({"rope.scale_linear": 3.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 3.0}, {}),
    ],
)
def test_a_factor_without_a_type_is_linear(tmp_path: Path, more, same) -> None:
    more, same = ({f"llama.{key}": one for key, one in row.items()} for row in (more, same))
    small_model(tmp_path / "m.gguf", "llama", **more)
    metadata, tensors = small_model(tmp_path / "n.gguf", "llama", **same)
    found = LanguageModel(tmp_path / "m.gguf", backend="cpu").logits(TOKENS)
    assert relative_error(found, references.logits(metadata, tensors, TOKENS)) < 1e-5


def test_angles_of_more_tokens_than_memory_are_refused(tmp_path: Path, monkeypatch) -> None:
    small_model(tmp_path / "m.gguf", "llama", **{"llama.context_length": 1 << 24})
    LanguageModel(tmp_path / "m.gguf", backend="cpu")
    monkeypatch.setattr(process, "free_memory", lambda: 1 << 30)
    with pytest.raises(
        LimitError, match=r"table of angles of 16777216 tokens needs [0-9]+ bytes of the"
    ):
        LanguageModel(tmp_path / "m.gguf", backend="cpu", context=1 << 24)
