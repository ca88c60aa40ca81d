"""Small seeded models of transformers, exported to ONNX by Optimum once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # they are made here

import torch
import transformers
from optimum.exporters.onnx import onnx_export_from_model

SIZES = {"vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LAYERS = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "decoder_start_token_id": 3,
    "init_std": 0.3,
}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": (
        "LlamaForCausalLM",
        "text-generation-with-past",
        {
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            "tie_word_embeddings": True,
            "initializer_range": 0.3,
        },
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "text-generation-with-past",
        {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.3},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "text2text-generation-with-past",
        {
            "d_model": 48,
            "d_kv": 12,
            "d_ff": 96,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 3,
            "initializer_factor": 4.0,
        },
    ),
    "bart": (
        "BartForConditionalGeneration",
        "text2text-generation-with-past",
        {**LAYERS, "max_position_embeddings": 64, "forced_eos_token_id": None},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "automatic-speech-recognition-with-past",
        {**LAYERS, "max_target_positions": 64, "suppress_tokens": None, "num_mel_bins": 16}
        | {"begin_suppress_tokens": None},
    ),
    "bert": (
        "BertModel",
        "feature-extraction",
        {
            "hidden_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "initializer_range": 0.3,
        },
    ),
}
"""By name the class, Optimum's task, and the configuration."""


def exported(name: str, folder: Path) -> Path:
    """Return the folder of the ONNX files of a model, exported unless they are there."""
    target = folder / "optimum" / name
    if not (target / "done").exists():
        kind, task, options = MODELS[name]
        made = getattr(transformers, kind)
        torch.manual_seed(0)
        model = made(made.config_class(**SIZES, **options)).eval()
        onnx_export_from_model(model, target, task=task, do_validation=False, device="cpu")
        (target / "done").touch()
    return target


def tokens(count: int, length: int) -> torch.Tensor:
    """Return some numbers of tokens."""
    return torch.randint(5, 300, (count, length), generator=torch.Generator().manual_seed(1))
