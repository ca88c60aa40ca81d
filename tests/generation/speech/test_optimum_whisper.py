"""Whisper models that Optimum exported: ONNX Runtime's logits, and texts of what was exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optimum.exporters.onnx", reason="make check-optimum has it")

import onnxruntime
from optimum.exporters.onnx import onnx_export_from_model
from transformers import WhisperFeatureExtractor

import glnn
from glnn.errors import DeviceError
from glnn.validation.comparison import relative_error
from tests.generation.speech.test_speech_to_text import noise
from tests.generation.speech.test_transformers_whisper import saved
from tests.generation.speech.test_whisper import TOKENS, engine_of, features
from tests.generation.speech.whisper_folders import FRAMES, save_tokenizer

KEPT = {
    "two": ["decoder_model.onnx", "decoder_with_past_model.onnx"],
    "merged": ["decoder_model_merged.onnx"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of transformers, and its export."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "target"))
    model = saved(source, 6)
    extractor = WhisperFeatureExtractor(chunk_length=FRAMES / 50)
    onnx_export_from_model(
        model, target, task="automatic-speech-recognition-with-past", do_validation=False,
        preprocessors=[extractor], nb_max_frames=2 * FRAMES,
    )  # fmt: skip
    extractor.save_pretrained(target)
    save_tokenizer(target)
    return source, target


@pytest.fixture(params=KEPT)
def export(request, folders, tmp_path: Path) -> Path:
    """The export with the decoder in one of its forms."""
    others = {name for names in KEPT.values() for name in names} - set(KEPT[request.param])
    for path in folders[1].iterdir():
        if path.name not in others:
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.mark.parametrize("backend", ["cpu", "compute"])
def test_logits_are_those_of_onnx_runtime(folders, export: Path, backend) -> None:
    encoder, decoder = (
        onnxruntime.InferenceSession(folders[1] / f"{half}_model.onnx")
        for half in ("encoder", "decoder")
    )
    (encoded,) = encoder.run(None, {"input_features": features()[None]})
    feeds = {"input_ids": np.array([TOKENS]), "encoder_hidden_states": encoded}
    (expected,) = decoder.run(["logits"], feeds)
    try:
        engine = engine_of(export, backend)
    except DeviceError as error:
        pytest.skip(str(error))
    engine.encode(features())
    found = engine.logits(TOKENS, range(len(TOKENS)), range(len(TOKENS)))
    assert relative_error(found, expected[0]) < 1e-5


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("backend", ["cpu", "compute"])
def test_texts_are_those_of_the_folder_that_was_exported(
    folders, export: Path, backend, beams
) -> None:
    try:
        found, expected = (
            glnn.SpeechToText(folder, backend=backend, beams=beams).transcribe(
                noise(2.5, 3), temperature=0
            )
            for folder in (export, folders[0])
        )
    except DeviceError as error:
        pytest.skip(str(error))
    assert [one.tokens for one in found.segments] == [one.tokens for one in expected.segments]
    assert len(found.segments) > 1 and found.language == expected.language
