"""GGUF files written by the format's description, and small models of every architecture."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
CODES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_of(value: Any) -> bytes:
    """The type of a value, and the value."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<IQ", 10, value) if value >= 0 else struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, np.ndarray):
        code = {"float32": 6, "int32": 5}[value.dtype.name]
        return struct.pack("<IIQ", 9, code, value.size) + value.tobytes()
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))


def quantized(array: Array, name: str) -> bytes:
    """`array` in a format, rounded plainly."""
    if name in ("f32", "f16"):
        return array.astype({"f32": np.float32, "f16": np.float16}[name]).tobytes()
    blocks = array.reshape(-1, 32)
    most = np.abs(blocks).max(axis=1, keepdims=True)
    steps = {"q4_0": 7, "q8_0": 127}[name]
    scales = (most / steps).astype(np.float16)
    wide = np.maximum(scales.astype(np.float32), 1e-8)
    numbers = np.clip(np.round(blocks / wide), -steps, steps).astype(np.int8)
    if name == "q8_0":
        parts = np.concatenate((scales.view(np.uint8), numbers.view(np.uint8)), axis=1)
        return parts.tobytes()
    nibbles = (numbers + 8).astype(np.uint8)
    packed = nibbles[:, :16] | (nibbles[:, 16:] << 4)
    return np.concatenate((scales.view(np.uint8), packed), axis=1).tobytes()


def write(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Array],
    formats: Mapping[str, str] | None = None,
) -> None:
    """Write a file of version 3. formats: of tensors by name, f32 unless said."""
    formats, offset, infos, data = formats or {}, 0, b"", b""
    for name, array in tensors.items():
        form = formats.get(name, "f32")
        raw = quantized(array, form)
        dims = struct.pack(f"<I{array.ndim}Q", array.ndim, *reversed(array.shape))
        infos += text(name) + dims + struct.pack("<IQ", CODES[form], offset)
        raw += b"\0" * (-len(raw) % 32)
        data, offset = data + raw, offset + len(raw)
    entries = b"".join(text(key) + value_of(one) for key, one in metadata.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + entries + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


WORDS = ["<s>", "</s>", *map(chr, range(97, 123)), *"ĠABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"]
"""A vocabulary of single letters and the space."""


def tokenizer() -> dict[str, Any]:
    """The metadata of a tokenizer without merges."""
    types = np.array([3, 3, *[1] * (len(WORDS) - 2)], np.int32)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": WORDS,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
    }


WIDTH, HEADS, KV, HEAD, HIDDEN, LAYERS, CONTEXT = 32, 4, 2, 16, 96, 3, 24
"""Sizes of the small models; Gemma 3's have as many layers as one that sees all tokens takes."""


def layers_of(architecture: str) -> int:
    """How many layers a small model has."""
    return 7 if architecture == "gemma3" else LAYERS


def small_model(
    path: Path, architecture: str, form: str = "f32", seed: int = 0, **more: Any
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Write a small model of an architecture; its metadata and tensors."""
    generator = np.random.default_rng(seed)

    def matrix(*shape: int) -> Array:
        return (generator.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    def vector(count: int, around: float = 1.0) -> Array:
        return (around + 0.2 * generator.standard_normal(count)).astype(np.float32)

    layers = layers_of(architecture)
    biased, layered = architecture in ("qwen2", "gpt2"), architecture == "gpt2"
    kv, head = (HEADS, WIDTH // HEADS) if layered else (KV, HEAD)
    tensors = {"token_embd.weight": 0.5 * matrix(len(WORDS), WIDTH) * WIDTH**0.5}
    if layered:
        tensors["position_embd.weight"] = 0.3 * matrix(CONTEXT, WIDTH)
    for layer in range(layers):
        block = f"blk.{layer}"
        sizes = {"q": HEADS * head, "k": kv * head, "v": kv * head}
        if architecture in ("phi3", "gpt2"):
            sizes = {"qkv": sum(sizes.values())}
        for name, n in sizes.items():
            tensors[f"{block}.attn_{name}.weight"] = 1.5 * matrix(n, WIDTH)
            if biased:
                tensors[f"{block}.attn_{name}.bias"] = vector(n, 0.0)
        tensors[f"{block}.attn_output.weight"] = matrix(WIDTH, HEADS * head)
        if architecture in ("qwen3", "gemma3"):
            tensors[f"{block}.attn_q_norm.weight"] = vector(head)
            tensors[f"{block}.attn_k_norm.weight"] = vector(head)
        ups = {"phi3": ("up",), "gpt2": ("up",)}.get(architecture, ("gate", "up"))
        for name in ups:
            n = 2 * HIDDEN if architecture == "phi3" else HIDDEN
            tensors[f"{block}.ffn_{name}.weight"] = matrix(n, WIDTH)
        tensors[f"{block}.ffn_down.weight"] = matrix(WIDTH, HIDDEN)
        if layered:
            tensors[f"{block}.attn_output.bias"] = vector(WIDTH, 0.0)
            tensors[f"{block}.ffn_up.bias"] = vector(HIDDEN, 0.0)
            tensors[f"{block}.ffn_down.bias"] = vector(WIDTH, 0.0)
        norms = ["attn_norm", "ffn_norm"]
        if architecture in ("gemma2", "gemma3"):
            norms += ["post_attention_norm", "post_ffw_norm"]
        for name in norms:
            tensors[f"{block}.{name}.weight"] = vector(WIDTH)
            if layered:
                tensors[f"{block}.{name}.bias"] = vector(WIDTH, 0.0)
    tensors["output_norm.weight"] = vector(WIDTH)
    if layered:
        tensors["output_norm.bias"] = vector(WIDTH, 0.0)
    if architecture in ("llama", "phi3", "qwen2"):
        tensors["output.weight"] = matrix(len(WORDS), WIDTH)
    eps = "layer_norm_epsilon" if layered else "layer_norm_rms_epsilon"
    metadata: dict[str, Any] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": CONTEXT,
        f"{architecture}.embedding_length": WIDTH,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": kv,
        f"{architecture}.attention.key_length": head,
        f"{architecture}.attention.{eps}": 1e-5,
        **{
            "gemma2": {
                "gemma2.attention.sliding_window": 5,
                "gemma2.attn_logit_softcapping": 2.0,
                "gemma2.final_logit_softcapping": 3.0,
            },
            "gemma3": {"gemma3.attention.sliding_window": 5, "gemma3.rope.freq_base": 1e6},
            "phi3": {"phi3.attention.sliding_window": 7, "phi3.rope.dimension_count": 8},
        }.get(architecture, {}),
        **tokenizer(),
        **more,
    }
    formats = {name: form for name, one in tensors.items() if one.ndim == 2}
    write(path, metadata, tensors, formats)
    return metadata, tensors
