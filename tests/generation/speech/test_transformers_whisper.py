"""Small whisper models that transformers saved: its own logits, and its own texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch: make check-transformers has it")
transformers = pytest.importorskip("transformers", reason="make check-transformers has it")

from glnn.errors import DeviceError  # noqa: E402
from glnn.generation.speech.decoding import TokenRules, decode  # noqa: E402
from glnn.generation.speech.log_mel import log_mel  # noqa: E402
from glnn.validation.comparison import relative_error  # noqa: E402
from tests.generation.speech.test_whisper import TOKENS, engine_of, features  # noqa: E402
from tests.generation.speech.whisper_folders import (  # noqa: E402
    CONFIG,
    END,
    ENGLISH,
    NO_TIMESTAMPS,
    START,
    SUPPRESSED,
    SUPPRESSED_FIRST,
    TRANSCRIBE,
    save_tokenizer,
    weights,
)


def saved(folder: Path, seed: int):
    """A model of transformers, which it saved in `folder`."""
    config = transformers.WhisperConfig(**CONFIG)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    tensors = {name: torch.tensor(one) for name, one in weights(seed).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"proj_out.weight"}
    model.tie_weights()
    model.generation_config.suppress_tokens = SUPPRESSED
    model.generation_config.begin_suppress_tokens = SUPPRESSED_FIRST
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


@pytest.mark.parametrize("backend", ["cpu", "compute"])
def test_logits_are_those_of_transformers(tmp_path: Path, backend) -> None:
    model = saved(tmp_path, 4)
    with torch.no_grad():
        expected = model(
            torch.tensor(features()[None]), decoder_input_ids=torch.tensor([TOKENS])
        ).logits[0]
    try:
        engine = engine_of(tmp_path, backend)
    except DeviceError as error:
        pytest.skip(str(error))
    engine.encode(features())
    found = engine.logits(TOKENS, range(len(TOKENS)), range(len(TOKENS)))
    assert relative_error(found, expected.numpy()) < 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_greedy_texts_are_those_of_transformers(tmp_path: Path, seed) -> None:
    from glnn.generation.speech.whisper_files import open_whisper

    model = saved(tmp_path, seed)
    prompt, special = [START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS], open_whisper(tmp_path).special
    engine = engine_of(tmp_path, "cpu")
    engine.encode(features(seed))
    found = decode(engine, special, prompt, TokenRules(special, timestamps=False)).best.tokens
    rules = [
        transformers.SuppressTokensLogitsProcessor(list(special.suppressed)),
        transformers.SuppressTokensAtBeginLogitsProcessor(SUPPRESSED_FIRST, len(prompt)),
    ]
    tokens = list(prompt)
    with torch.no_grad():
        for _ in found:
            ids = torch.tensor([tokens])
            scores = model(torch.tensor(features(seed)[None]), decoder_input_ids=ids).logits[:, -1]
            for rule in rules:
                scores = rule(ids, scores)
            tokens.append(int(scores.argmax()))
    assert list(found) == tokens[len(prompt) :]
    assert END not in found


@pytest.mark.parametrize("bins", [80, 128])
def test_features_are_those_of_transformers(bins) -> None:
    samples = np.random.default_rng(bins).standard_normal(480000).astype(np.float32) * 0.1
    samples[200000:] = 0
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins)
    expected = extractor._np_extract_fbank_features(samples[None], "cpu")[0]
    np.testing.assert_allclose(log_mel(samples, bins), expected, atol=1e-5)
