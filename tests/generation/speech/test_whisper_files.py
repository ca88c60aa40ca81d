"""Folders of speech models: what is read of them, and files made to harm."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.errors import GlnnError, ModelError
from glnn.generation.speech.ctranslate2 import CTranslate2File
from glnn.generation.speech.whisper_files import open_whisper
from tests.generation.speech.whisper_folders import (
    ALIASES,
    BINS,
    CONTEXT,
    END,
    FIRST,
    FRAMES,
    GENERATION,
    HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    binary,
    ctranslate2,
    hugging_face,
    joined,
    quantized,
    weights,
)
from tests.generation.test_gguf import ROOM, forget_peak, peak

COUNT = 10_000 if os.environ.get("GLNN_EXHAUSTIVE") else 1000
TENSORS = weights()


def test_both_kinds_of_folders_say_the_same(tmp_path: Path) -> None:
    first = open_whisper(hugging_face(tmp_path / "a", TENSORS))
    second = open_whisper(ctranslate2(tmp_path / "b", TENSORS, "float32"))
    third = open_whisper(tmp_path / "b" / "model.bin")
    for one in (first, second, third):
        config = one.config
        assert (config.bins, config.frames, config.decoder.context) == (BINS, FRAMES, CONTEXT)
        for half in (config.encoder, config.decoder):
            assert (half.layers, half.width, half.heads) == (LAYERS, WIDTH, HEADS)
        assert one.config.decoder.vocabulary == VOCABULARY
        assert (one.special.end, one.special.timestamps) == (END, (FIRST, VOCABULARY))
    assert first.special.suppressed == second.special.suppressed
    assert first.special.languages and not second.special.languages  # of fewer than 51865 tokens
    for name in ("blk.1.ffn_up.weight", "output_norm.bias", "blk.0.cross_q.bias"):
        np.testing.assert_array_equal(first.decoder.array(name), second.decoder.array(name))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_was_written_is_read(tmp_path: Path, dtype) -> None:
    tensors = {
        "a": np.arange(6, dtype=dtype).reshape(2, 3), "b/c": np.array(-3, np.int16),
        "none": np.zeros((0, 5), np.int32), "é": np.array([1, -1], np.int8),
    }  # fmt: skip
    (tmp_path / "model.bin").write_bytes(binary(tensors, "ASpec", aliases={"d": "a"}))
    file = CTranslate2File(tmp_path / "model.bin")
    assert (file.kind, file.aliases) == ("ASpec", {"d": "a"})
    assert set(file.entries) == set(tensors)
    for name, array in tensors.items():
        found = file.read(name)
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype


def test_every_shorter_file_is_refused(tmp_path: Path) -> None:
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.array(3, np.int8)}
    raw, path = binary(tensors, aliases={"c": "a"}), tmp_path / "model.bin"
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(ModelError, match=r"cannot be read as CTranslate2's model\.bin"):
            CTranslate2File(path)
    path.write_bytes(raw + b"\0")
    with pytest.raises(ModelError, match="1 bytes are behind its end"):
        CTranslate2File(path)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    one = {"a": np.ones(2, np.float32)}
    count = struct.pack("<I", 1)  # how many tensors, behind the kind and the revision
    good = binary(one, aliases={})
    place = good.index(b"\x03\x00\x00\x00" + count) + 4
    tensor = good[place + 4 :]
    for raw, message in (
        (binary(one, version=3), "it has version 3, known is 6"),
        (b"GGUF" + bytes(100), "it has version"),
        (good[:place] + b"\xff" * 4 + tensor, "4294967295 tensors, more than 65536"),
        (good[:place] + b"\xff\xff\0\0" + tensor, "65535 tensors takes 655350 bytes, "),
        (good[:place] + b"\x02\0\0\0" + tensor[:22] + tensor, "it has the tensor 'a' twice"),
        (binary(one, aliases={"b": "c"}), "'b' stands for 'c', which cannot be"),
        (binary(one, aliases={"a": "a"}), "'a' stands for 'a', which cannot be"),
        (
            good.replace(b"\x01\x02\0\0\0", b"\x01\xff\xff\xff\xff"),
            "of F32 takes 17179869180 bytes",
        ),
        (good.replace(b"a\0\x01", b"a\0\x09"), "'a' has 9 dimensions, more than 8"),
        (good.replace(b"\0\x08\0\0\0", b"\x07\x08\0\0\0"), "'a' is of type 7, which is none"),
        (good.replace(b"a\0", b"ab"), "must be UTF-8 that ends with a zero"),
        (good.replace(b"a\0", b"\xff\0"), "must be UTF-8 that ends with a zero"),
    ):
        path.write_bytes(raw)
        with pytest.raises(ModelError, match=message) as caught:
            CTranslate2File(path)
        assert str(path) in str(caught.value)
    path.write_bytes(binary(one, "OtherSpec", aliases={}))
    with pytest.raises(ModelError, match="of kind 'OtherSpec' does not run here: WhisperSpec"):
        open_whisper(path)


def test_files_made_to_harm(tmp_path: Path) -> None:
    folder = ctranslate2(tmp_path, TENSORS)
    path = folder / "model.bin"
    raw, generator = path.read_bytes(), random.Random(0)
    names = [i for i in range(len(raw)) if raw.startswith((b"encoder/", b"decoder/"), i)]
    forget_peak()
    before, opened = peak(), 0
    for i in range(COUNT):
        changed = bytearray(raw)
        for _ in range(generator.randint(1, 3)):
            # Most of the numbers that a file says of itself are behind and before names.
            place = max(generator.choice(names) + generator.randint(-12, 60), 0)
            changed[min(place, len(raw) - 1)] = generator.choice(
                (0, 1, 127, 128, 255, generator.randint(0, 255))
            )
        if i % 5 == 0:
            changed = changed[: generator.randint(0, len(changed))]
        path.write_bytes(changed)
        try:
            open_whisper(folder).encoder.array("conv1.weight")
            opened += 1
        except GlnnError as error:
            assert str(folder) in str(error) and "\n" not in str(error)
    assert 0 < opened < COUNT
    assert peak() - before < ROOM


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("decoder/layer_1/ffn/linear_1/weight", None, "there is no tensor 'decoder/layer_1"),
        ("decoder/layer_0/attention/linear_1/weight", np.zeros((3, 5), np.float32),
         r"must be \(64, 32\), got \(3, 5\)"),
        ("encoder/conv1/weight", np.zeros((WIDTH, 40, 3), np.float32),
         "must have 80 or 128 bins, got 40"),
        ("encoder/conv1/weight", np.zeros(3, np.float32), r"must have 3 dimensions, got \(3,\)"),
        ("encoder/num_heads", np.array(5, np.int16), "heads must divide the width"),
        ("encoder/num_heads", np.array(-2, np.int16), "heads must divide the width"),
        ("encoder/num_heads", np.zeros(2, np.int16), "must be a whole number"),
        ("decoder/activation", np.array(0, np.int8), "'decoder/activation' 0 does not run here: 3"),
        ("decoder/alibi", np.array(1, np.int8), "'decoder/alibi' 1 does not run here: 0 does"),
        ("decoder/more", np.zeros(2, np.float32), "no place for: 'decoder/more'"),
        ("decoder/layer_0/ffn/linear_0/weight", np.zeros((40, WIDTH), np.int8),
         "is I8, so that there must be 'decoder/layer_0/ffn/linear_0/weight_scale', F32 "
         r"\(40,\), got none"),
        ("decoder/layer_0/ffn/linear_0/weight", np.zeros((40, WIDTH), np.int32),
         "is I32; weights must be F32, F16, BF16, I8, I16"),
        ("decoder/layer_0/ffn/linear_0/weight_scale", np.ones(40, np.float32),
         "no place for: 'decoder/layer_0/ffn/linear_0/weight_scale'"),
    ],
)  # fmt: skip
def test_models_of_ctranslate2_that_do_not_run(tmp_path: Path, name, array, message) -> None:
    folder = ctranslate2(tmp_path, TENSORS)
    tensors = {**joined(TENSORS), name: array}
    found = {key: one for key, one in tensors.items() if one is not None}
    (folder / "model.bin").write_bytes(binary(found, aliases=ALIASES))
    with pytest.raises(ModelError, match=message):
        open_whisper(folder)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        ("int8", np.ones(39, np.float32)),
        ("int8", np.ones(40, np.float16)),
        ("int8", np.array(1, np.float32)),
        ("int16", np.ones(40, np.float32)),
    ],
)
def test_scales_that_do_not_fit(tmp_path: Path, dtype, scale) -> None:
    folder, name = ctranslate2(tmp_path, TENSORS), "decoder/layer_0/ffn/linear_0/weight"
    tensors = {**quantized(joined(TENSORS), dtype), f"{name}_scale": scale}
    (folder / "model.bin").write_bytes(binary(tensors, aliases=ALIASES))
    with pytest.raises(ModelError, match=f"'{name}_scale', F32 .*, got F"):
        open_whisper(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama' is no speech to text: whisper is"),
        ({"activation_function": "relu"}, "'activation_function' 'relu' does not run here: 'gelu'"),
        ({"scale_embedding": True}, "'scale_embedding' True does not run here"),
        ({"d_model": "wide"}, "'d_model' must be int, got 'wide'"),
        ({"d_model": 1 << 40}, "'d_model' must be from 1 to"),
        ({"encoder_layers": 3}, "there is no tensor 'model.encoder.layers.2.fc1.weight'"),
        ({"encoder_layers": 1}, "no place for: 'model.encoder.layers.1"),
        ({"decoder_attention_heads": 3}, "heads must divide the width"),
        ({"num_mel_bins": 128}, r"'model.encoder.conv1.weight' must be \(32, 128, 3\), got"),
        ({"num_mel_bins": 81}, "features must have 80 or 128 bins, got 81"),
        ({"max_target_positions": 1}, r"must be \(1, 32\), got \(48, 32\)"),
        ({"vocab_size": END}, "it has no token '<|endoftext|>' below"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, config, message) -> None:
    tensors = dict(TENSORS)
    if "vocab_size" in config:
        name = "model.decoder.embed_tokens.weight"
        tensors[name] = tensors[name][: config["vocab_size"]]
    folder = hugging_face(tmp_path, tensors, **config)
    with pytest.raises(ModelError, match=message.replace("|", r"\|")):
        open_whisper(folder)


def test_other_files_of_a_folder(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path, TENSORS)
    (folder / "preprocessor_config.json").write_text(json.dumps({"hop_length": 128}))
    with pytest.raises(ModelError, match="'hop_length' 128 does not run here: 160 does"):
        open_whisper(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"feature_size": BINS}))
    said = {**GENERATION, "suppress_tokens": [VOCABULARY]}
    (folder / "generation_config.json").write_text(json.dumps(said))
    with pytest.raises(ModelError, match=f"'suppress_tokens' must be from 0 to {VOCABULARY - 1}"):
        open_whisper(folder)
    (folder / "generation_config.json").unlink()
    assert 3 not in open_whisper(folder).special.suppressed
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: cannot be read"):
        open_whisper(folder)
    with pytest.raises(ModelError, match="a speech model lies in a folder, expected its path"):
        glnn.SpeechToText(3)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="no such file"):
        glnn.SpeechToText(tmp_path / "none")
    (empty := tmp_path / "empty").mkdir()
    for path in (empty, folder / "tokenizer.json"):
        with pytest.raises(ModelError, match=f"^{path}: expected the folder of a whisper model"):
            glnn.SpeechToText(path)
