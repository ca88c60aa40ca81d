"""Small whisper models with seeded weights, as folders of Hugging Face and of CTranslate2."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

tokenizers = pytest.importorskip("tokenizers")

Array = NDArray[Any]
BINS, WIDTH, HEADS, HIDDEN, LAYERS = 80, 32, 2, 40, 2
FRAMES, CONTEXT = 40, 48  # a window is of 0.8 seconds
TEXT = 96  # the printable letters of ASCII, and one more
END, START, ENGLISH, GERMAN, FRENCH, TRANSLATE, TRANSCRIBE = range(TEXT, TEXT + 7)
LANGUAGE_MODEL, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS, FIRST = range(TEXT + 7, TEXT + 12)
VOCABULARY = FIRST + FRAMES + 1
NAMES = {
    END: "<|endoftext|>", START: "<|startoftranscript|>", ENGLISH: "<|en|>", GERMAN: "<|de|>",
    FRENCH: "<|fr|>", TRANSLATE: "<|translate|>", TRANSCRIBE: "<|transcribe|>",
    LANGUAGE_MODEL: "<|startoflm|>", PREVIOUS: "<|startofprev|>", NO_SPEECH: "<|nospeech|>",
    NO_TIMESTAMPS: "<|notimestamps|>",
}  # fmt: skip
SUPPRESSED, SUPPRESSED_FIRST = [3, 5], [0, END]
CONFIG: dict[str, Any] = {
    "model_type": "whisper", "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "num_mel_bins": BINS,
    "encoder_ffn_dim": HIDDEN, "decoder_ffn_dim": HIDDEN, "max_source_positions": FRAMES,
    "max_target_positions": CONTEXT, "vocab_size": VOCABULARY, "activation_function": "gelu",
    "scale_embedding": False, "decoder_start_token_id": START, "eos_token_id": END,
    "pad_token_id": END, "bos_token_id": END,
}  # fmt: skip
GENERATION: dict[str, Any] = {
    "suppress_tokens": SUPPRESSED, "begin_suppress_tokens": SUPPRESSED_FIRST,
    "is_multilingual": True,
}  # fmt: skip


def weights(seed: int = 0) -> dict[str, Array]:
    """The tensors by Hugging Face's names, float32, none of which is 0 or 1 as it begins."""
    generator = np.random.default_rng(seed)

    def drawn(*shape: int, scale: float | None = None) -> Array:
        scale = 1.5 / shape[-1] ** 0.5 if scale is None else scale
        return (generator.standard_normal(shape) * scale).astype(np.float32)

    result = {
        "model.encoder.conv1.weight": drawn(WIDTH, BINS, 3, scale=0.1),
        "model.encoder.conv2.weight": drawn(WIDTH, WIDTH, 3, scale=0.15),
        "model.encoder.embed_positions.weight": drawn(FRAMES, WIDTH, scale=0.3),
        "model.decoder.embed_positions.weight": drawn(CONTEXT, WIDTH, scale=0.3),
        "model.decoder.embed_tokens.weight": drawn(VOCABULARY, WIDTH, scale=0.5),
    }
    for name in ("conv1", "conv2"):
        result[f"model.encoder.{name}.bias"] = drawn(WIDTH, scale=0.3)

    def norm(name: str) -> None:
        result[f"{name}.weight"] = 1 + drawn(WIDTH, scale=0.3)
        result[f"{name}.bias"] = drawn(WIDTH, scale=0.3)

    for half in ("encoder", "decoder"):
        norm(f"model.{half}.layer_norm")
        for layer in range(LAYERS):
            block = f"model.{half}.layers.{layer}"
            for kind in ("self_attn", "encoder_attn")[: 1 + (half == "decoder")]:
                norm(f"{block}.{kind}_layer_norm")
                for part in "qkv":
                    result[f"{block}.{kind}.{part}_proj.weight"] = drawn(WIDTH, WIDTH)
                    if part != "k":
                        result[f"{block}.{kind}.{part}_proj.bias"] = drawn(WIDTH, scale=0.3)
                result[f"{block}.{kind}.out_proj.weight"] = drawn(WIDTH, WIDTH)
                result[f"{block}.{kind}.out_proj.bias"] = drawn(WIDTH, scale=0.3)
            norm(f"{block}.final_layer_norm")
            for name, shape in (("fc1", (HIDDEN, WIDTH)), ("fc2", (WIDTH, HIDDEN))):
                result[f"{block}.{name}.weight"] = drawn(*shape)
                result[f"{block}.{name}.bias"] = drawn(shape[0], scale=0.3)
    return result


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer of single letters."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({chr(32 + i): i for i in range(TEXT)}, []))
    inner.decoder = tokenizers.decoders.Fuse()
    inner.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in NAMES.values()])
    assert inner.token_to_id("<|notimestamps|>") == NO_TIMESTAMPS
    inner.save(str(folder / "tokenizer.json"))


def hugging_face(
    folder: Path,
    tensors: Mapping[str, Array],
    generation: Mapping[str, Any] = GENERATION,
    **config: Any,
) -> Path:
    """Write a folder as transformers does. config: entries that are others than CONFIG's."""
    folder.mkdir(exist_ok=True)
    save_file(
        {k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "generation_config.json").write_text(json.dumps(dict(generation)))
    save_tokenizer(folder)
    return folder


PARTS = {
    "self_attn_layer_norm": "self_attention/layer_norm", "final_layer_norm": "ffn/layer_norm",
    "encoder_attn_layer_norm": "attention/layer_norm", "fc1": "ffn/linear_0", "fc2": "ffn/linear_1",
    "self_attn.out_proj": "self_attention/linear_1", "encoder_attn.q_proj": "attention/linear_0",
    "encoder_attn.out_proj": "attention/linear_2",
}  # fmt: skip


def joined(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors as CTranslate2 has them: projections of one input lie one below the other."""
    result: dict[str, Array] = {}
    for half in ("encoder", "decoder"):
        whole = f"model.{half}"
        result[f"{half}/position_encodings/encodings"] = tensors[f"{whole}.embed_positions.weight"]
        norms = {f"{whole}.layer_norm": f"{half}/layer_norm"}
        for layer in range(LAYERS):
            block, theirs = f"{whole}.layers.{layer}", f"{half}/layer_{layer}"
            for ours, other in PARTS.items():
                if f"{block}.{ours}.weight" not in tensors:
                    continue
                if "norm" in ours:
                    norms[f"{block}.{ours}"] = f"{theirs}/{other}"
                    continue
                for kind in ("weight", "bias"):
                    result[f"{theirs}/{other}/{kind}"] = tensors[f"{block}.{ours}.{kind}"]
            for attention, letters, other in (
                ("self_attn", "qkv", "self_attention/linear_0"),
                ("encoder_attn", "kv", "attention/linear_1"),
            ):
                if f"{block}.{attention}.q_proj.weight" not in tensors:
                    continue
                names = [f"{block}.{attention}.{letter}_proj" for letter in letters]
                none = np.zeros(WIDTH, np.float32)  # keys have no bias
                result[f"{theirs}/{other}/weight"] = np.concatenate(
                    [tensors[f"{name}.weight"] for name in names]
                )
                result[f"{theirs}/{other}/bias"] = np.concatenate(
                    [tensors.get(f"{name}.bias", none) for name in names]
                )
        for ours, other in norms.items():
            result[f"{other}/gamma"] = tensors[f"{ours}.weight"]
            result[f"{other}/beta"] = tensors[f"{ours}.bias"]
        result[f"{half}/num_heads"] = np.array(HEADS, np.int16)
    for name in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            result[f"encoder/{name}/{kind}"] = tensors[f"model.encoder.{name}.{kind}"]
    result["decoder/embeddings/weight"] = tensors["model.decoder.embed_tokens.weight"]
    plain = {"activation": 3, "alibi": 0, "pre_norm": 1, "scale_embeddings": 0}
    plain |= {"start_from_zero_embedding": 0, "scale_alibi": 0, "alibi_use_positive_positions": 0}
    result |= {f"decoder/{key}": np.array(number, np.int8) for key, number in plain.items()}
    result["decoder/alignment_heads"] = np.array([[0, 1]], np.int16)
    result["decoder/alignment_layer"] = np.array(-1, np.int16)
    return result


CODES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}
ALIASES = {"decoder/projection/weight": "decoder/embeddings/weight"}


def binary(
    tensors: Mapping[str, Array],
    kind: str = "WhisperSpec",
    version: int = 6,
    aliases: Mapping[str, str] = ALIASES,
) -> bytes:
    """A model.bin of CTranslate2."""

    def text(value: str) -> bytes:
        raw = value.encode() + b"\0"
        return struct.pack("<H", len(raw)) + raw

    parts = [struct.pack("<I", version), text(kind), struct.pack("<II", 3, len(tensors))]
    for name, array in sorted(tensors.items()):
        sizes = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        numbers = struct.pack("<BI", CODES[array.dtype.name], array.nbytes)
        parts += [text(name), sizes, numbers, array.tobytes()]
    parts.append(struct.pack("<I", len(aliases)))
    parts += [text(part) for pair in aliases.items() for part in pair]
    return b"".join(parts)


def quantized(tensors: Mapping[str, Array], dtype: str) -> dict[str, Array]:
    """The tensors of `joined` with matrices and filters as int8 or int16, as CTranslate2 does.

    Those of int8 have a scale for each row, those of int16 have one.
    """
    result = dict(tensors)
    for name, array in tensors.items():
        if array.ndim < 2 or not name.endswith("/weight"):
            continue
        if dtype == "int8":
            scale = np.float32(127) / np.abs(array.reshape(len(array), -1)).max(1)
        else:
            scale = np.float32(1024) / np.abs(array).max()
        by_row = scale.reshape(-1, *[1] * (array.ndim - 1))
        result[name] = np.rint(array * by_row).reshape(array.shape).astype(dtype)
        result[f"{name}_scale"] = scale
    return result


def ctranslate2(folder: Path, tensors: Mapping[str, Array], dtype: str = "float16") -> Path:
    """Write a folder as CTranslate2's converter does, with numbers of `dtype`."""
    folder.mkdir(exist_ok=True)
    if dtype.startswith("int"):
        cast = quantized(joined(tensors), dtype)
    else:
        cast = {
            name: array.astype(dtype) if array.dtype == np.float32 else array
            for name, array in joined(tensors).items()
        }
    (folder / "model.bin").write_bytes(binary(cast))
    said = {"suppress_ids": SUPPRESSED, "suppress_ids_begin": SUPPRESSED_FIRST}
    (folder / "config.json").write_text(json.dumps(said))
    save_tokenizer(folder)
    return folder
