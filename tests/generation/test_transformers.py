"""Folders that transformers saved: its own models, small, with all that each may have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch: make check-transformers has it")
transformers = pytest.importorskip("transformers", reason="make check-transformers has it")

from tokenizers import Tokenizer, models  # noqa: E402

from glnn.errors import DeviceError  # noqa: E402
from glnn.generation.language_model import LanguageModel  # noqa: E402
from glnn.validation.comparison import relative_error  # noqa: E402

VOCABULARY, LENGTH = 96, 40
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 1.5,
    "beta_slow": 0.25,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True, "rope_theta": 5e5}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "llama, llama3": ("llama", {"rope_scaling": LLAMA3, "rope_theta": 1000.0}),
    "llama, yarn": ("llama", {"rope_scaling": YARN, "rope_theta": 50.0}),
    "llama, yarn's own betas": (
        "llama",
        {
            "rope_scaling": {
                "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024
            },
            "max_position_embeddings": 2048,
        },
    ),
    "llama, yarn with an attention factor": (
        "llama", {"rope_scaling": {**YARN, "attention_factor": 0.7}, "rope_theta": 50.0}
    ),
    "llama, yarn with mscales": (
        "llama",
        {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}, "rope_theta": 50.0},
    ),
    "llama, yarn not truncated": (
        "llama", {"rope_scaling": {**YARN, "truncate": False}, "rope_theta": 50.0}
    ),
    "llama, yarn by the lengths": (
        "llama", {"rope_scaling": {**YARN, "factor": None}, "rope_theta": 50.0}
    ),
    "mistral": ("mistral", {"sliding_window": 7}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2, windows": (
        "qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
    ),
    "qwen2, windows in all layers": (
        "qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}
    ),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3, biases and yarn": ("qwen3", {"attention_bias": True, "rope_scaling": YARN}),
    "gemma2": (
        "gemma2",
        {
            "sliding_window": 5, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma2, entries left out": ("gemma2", {"rms_norm_eps": None}),
    "gemma2, no caps": (
        "gemma2",
        {
            "sliding_window": 5, "query_pre_attn_scalar": 24, "attn_logit_softcapping": None,
            "final_logit_softcapping": None, "attention_bias": True,
        },
    ),
    "gemma3, entries left out": ("gemma3_text", {"rms_norm_eps": None}),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 7, "sliding_window": 5, "query_pre_attn_scalar": 24,
            "rope_theta": 5e5, "rope_local_base_freq": 500.0,
        },
    ),
    "gemma3, every third layer, linear, cap": (
        "gemma3_text",
        {
            "num_hidden_layers": 4, "sliding_window": 5, "query_pre_attn_scalar": 24,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window_pattern": 3,
            "final_logit_softcapping": 3.0,
        },
    ),
    "phi3": ("phi3", {"head_dim": None, "rms_norm_eps": None}),
    "phi3, partial": (
        "phi3", {"head_dim": None, "sliding_window": 7, "partial_rotary_factor": 0.5}
    ),
    "phi3, partial by rope_parameters": (
        "phi3",
        {
            "head_dim": None,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5
            },
        },
    ),
    **{
        f"phi3, longrope, {name}": (
            "phi3",
            {
                "head_dim": None, "original_max_position_embeddings": original,
                "rope_scaling": {
                    "type": "longrope", "short_factor": [1.5, 2.0, 3.0, 4.0],
                    "long_factor": [2.0, 5.0, 7.5, 9.0],
                },
            },
        )
        for name, original in (("short", 64), ("long", 32))
    },
    "gpt2": ("gpt2", {"layer_norm_epsilon": 1e-4}),
    "gpt2, untied": ("gpt2", {"tie_word_embeddings": False, "n_inner": 40}),
}  # fmt: skip
"""Models by what they have: the `model_type`, and the entries of config.json that are not SIZES."""


def entries(kind: str, more: dict[str, Any]) -> dict[str, Any]:
    """The entries of a config.json, as those on Hugging Face's hub have been written for years."""
    sizes = SIZES
    if kind == "gpt2":
        sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4,
                 "n_positions": 64, "bos_token_id": 0, "eos_token_id": 1}  # fmt: skip
    found = {"model_type": kind, **sizes, **more}
    left_out = {key for key in ("head_dim", "rms_norm_eps") if found.get(key) is None}
    return {key: one for key, one in found.items() if key not in left_out}


def model_of(kind: str, more: dict[str, Any]) -> Any:
    """A model of transformers with seeded weights, none of which is 0 or 1 as it begins."""
    said = entries(kind, more)
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(said)))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(len(json.dumps(said)))
    with torch.no_grad():
        for name, one in model.named_parameters():
            drawn = torch.randn(one.shape, generator=generator)
            wide = one.ndim > 1 and "embed" not in name and "wte" not in name
            one.copy_(drawn * (1.5 / one.shape[-1] ** 0.5 if wide else 0.3))
            if "norm" in name or "ln_" in name:
                one += 0.0 if "gemma" in kind or name.endswith("bias") else 1.0
    return model.eval()


def save_tokenizer(folder: Path) -> None:
    words = {chr(33 + i): i for i in range(VOCABULARY)}
    Tokenizer(models.BPE(vocab=words, merges=[])).save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("backend", ["cpu", "compute"])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(tmp_path: Path, case, backend) -> None:
    kind, more = CASES[case]
    model = model_of(kind, more)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    tokens = np.random.default_rng(1).integers(2, VOCABULARY, LENGTH).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    saved = (tmp_path / "config.json").read_text()
    for config in (saved, json.dumps(entries(kind, more))):  # as version 5 has them, and earlier
        (tmp_path / "config.json").write_text(config)
        try:
            found = LanguageModel(tmp_path, backend=backend).logits(tokens)
        except DeviceError as error:
            pytest.skip(str(error))
        assert relative_error(found, expected) < 1e-4
