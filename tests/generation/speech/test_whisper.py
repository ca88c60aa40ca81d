"""Whisper's graphs on each backend, held against the definition in float64."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from glnn.errors import DeviceError, LimitError
from glnn.generation.speech import whisper
from glnn.generation.speech.engine import SpeechEngine
from glnn.generation.speech.whisper_files import open_whisper
from glnn.graph.operators import QuantizedMatmul
from glnn.validation.comparison import relative_error
from tests.generation.speech.whisper_folders import (
    BINS,
    CONTEXT,
    FRAMES,
    HEADS,
    LAYERS,
    VOCABULARY,
    ctranslate2,
    hugging_face,
    weights,
)
from tests.generation.speech.whisper_reference import Definition

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 20).tolist()


def features(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((BINS, 2 * FRAMES)).astype(np.float32)


def engine_of(folder: Path, backend: str, beams: int = 1) -> SpeechEngine:
    files = open_whisper(folder)
    return SpeechEngine(
        whisper.encoder(files.config, files.encoder, files.decoder),
        whisper.decoder(files.config, files.decoder, beams),
        beams,
        backend,
        None,
        None,
        files.nbytes,
    )


def test_logits_are_those_of_the_definition(tmp_path: Path, backend) -> None:
    tensors = weights()
    engine = engine_of(hugging_face(tmp_path, tensors), backend)
    definition = Definition(tensors, HEADS, LAYERS)
    for seed in (0, 1):  # the second window's results take the first one's place
        engine.encode(features(seed))
        expected = definition.logits(definition.encode(features(seed)), TOKENS)
        found = engine.logits(TOKENS[:7], range(7), range(7))
        assert relative_error(found, expected[:7]) < 1e-5
        for i in range(7, len(TOKENS)):
            found = engine.logits([TOKENS[i]], [i], [0])
            assert relative_error(found, expected[i : i + 1]) < 1e-5


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_models_of_ctranslate2_have_joined_projections(tmp_path: Path, dtype) -> None:
    tensors = {name: one.astype(dtype).astype(np.float32) for name, one in weights(1).items()}
    engine = engine_of(ctranslate2(tmp_path, tensors, dtype), "cpu")
    engine.encode(features())
    definition = Definition(tensors, HEADS, LAYERS)
    expected = definition.logits(definition.encode(features()), TOKENS)
    found = engine.logits(TOKENS, range(len(TOKENS)), range(len(TOKENS)))
    assert relative_error(found, expected) < 1e-5


def scaled(tensors: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """The tensors as they are once CTranslate2 has made them whole numbers, in float64."""
    result: dict[str, np.ndarray] = dict(tensors)
    groups = {}  # of matrices that share a scale, which those one below the other do in int16
    for name, array in tensors.items():
        if array.ndim > 1 and "embed_positions" not in name:
            key = re.sub(r"self_attn\.[qkv]_proj", "self_attn.qkv", name)
            key = re.sub(r"encoder_attn\.[kv]_proj", "encoder_attn.kv", key)
            groups.setdefault(key, []).append(name)
    for names in groups.values():
        most = max(float(np.abs(tensors[name]).max()) for name in names)
        for name in names:
            array = tensors[name].astype(np.float64)
            axes = tuple(range(1, array.ndim))
            step = np.abs(array).max(axes, keepdims=True) / 127 if dtype == "int8" else most / 1024
            result[name] = np.rint(array / step) * step
    return result


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_models_of_ctranslate2_in_whole_numbers(tmp_path: Path, backend, dtype) -> None:
    tensors = weights(5)
    engine = engine_of(ctranslate2(tmp_path, tensors, dtype), backend)
    formats = {
        node.operator.format
        for node in engine._decoder.graph.nodes
        if isinstance(node.operator, QuantizedMatmul)
    }
    assert formats == ({"int8_32", "int8_64"} if dtype == "int8" else {"f32"})
    engine.encode(features())
    definition = Definition(scaled(tensors, dtype), HEADS, LAYERS)
    expected = definition.logits(definition.encode(features()), TOKENS)
    found = engine.logits(TOKENS[:9], range(9), range(9))
    assert relative_error(found, expected[:9]) < 1e-5
    for i in range(9, len(TOKENS)):
        found = engine.logits([TOKENS[i]], [i], [0])
        assert relative_error(found, expected[i : i + 1]) < 1e-5


def test_texts_go_on_from_others(tmp_path: Path, backend) -> None:
    tensors = weights(2)
    engine = engine_of(hugging_face(tmp_path, tensors), backend, beams=3)
    definition = Definition(tensors, HEADS, LAYERS)
    engine.encode(features())
    encoded = definition.encode(features())
    texts = [TOKENS[:4], TOKENS[:4], TOKENS[:4]]
    engine.logits(TOKENS[:4], range(4), [3])  # of the first text alone
    generator = np.random.default_rng(0)
    for parents in ([0, 0, 0], [2, 1, 0], [0, 1, 2], [1, 1, 0], [2, 2, 2]):
        engine.order(parents)
        texts = [texts[parent] for parent in parents]
        new = generator.integers(0, VOCABULARY, 3).tolist()
        places = [i * CONTEXT + len(texts[0]) for i in range(3)]
        found = engine.logits(new, places, range(3))
        texts = [[*text, token] for text, token in zip(texts, new)]
        expected = [definition.logits(encoded, text)[-1] for text in texts]
        assert relative_error(found, np.array(expected)) < 1e-5


def test_too_little_memory_is_said_before_anything_is_uploaded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GLNN_MEMORY", "100000")
    folder = hugging_face(tmp_path, weights())
    try:
        with pytest.raises(LimitError, match=r"caches for 1 texts .*, 100000 are free"):
            engine_of(folder, "compute")
    except DeviceError as error:
        pytest.skip(str(error))
