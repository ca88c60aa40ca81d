"""Models in folders of Hugging Face: the same as in GGUF files, and what is refused."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from safetensors.numpy import load_file, save_file

from glnn.errors import ModelError
from glnn.generation.language_model import LanguageModel
from glnn.validation.comparison import relative_error
from tests.generation import references
from tests.generation.gguf_files import (
    CONTEXT,
    HEAD,
    HEADS,
    HIDDEN,
    KV,
    LAYERS,
    WIDTH,
    WORDS,
    layers_of,
    small_model,
)

TOKENS = [0, 5, 9, 33, 2, 2, 60, 17]
KINDS = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt2")
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    **{f"attn_{one}": f"self_attn.{one}_proj" for one in "qkv"},
}


def theirs(kind: str, name: str) -> str:
    """What transformers calls a tensor, by its documentation of each model."""
    if kind == "gpt2":
        whole = {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f"}
        parts = {
            "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
        }  # fmt: skip
        first = "h"
    else:
        whole = {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
        }
        gemma = kind.startswith("gemma")
        parts = {
            **NAMES,
            "ffn_norm": "pre_feedforward_layernorm" if gemma else "post_attention_layernorm",
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        }
        if kind == "phi3":
            parts["ffn_up"] = "mlp.gate_up_proj"
        first = "model.layers"
    if name.startswith("blk."):
        _, layer, part, end = name.split(".")
        return f"{first}.{layer}.{parts[part]}.{end}"
    part, end = name.rsplit(".", 1)
    return f"{whole[part]}.{end}"


def folder(path: Path, kind: str, dtype: str = "float32") -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a folder; the metadata and tensors of the same model in GGUF's order."""
    name = {"gemma3_text": "gemma3"}.get(kind, kind)
    metadata, tensors = small_model(path / "m.gguf", name)
    (path / "m.gguf").unlink()
    written = {}
    for key, array in tensors.items():
        array = array.astype(dtype).astype(np.float32)
        tensors[key] = array
        if kind in ("llama", "mistral") and key.split(".")[-2] in ("attn_q", "attn_k"):
            pairs = array.reshape(-1, HEAD // 2, 2, WIDTH)  # GGUF's are in pairs
            array = pairs.swapaxes(1, 2).reshape(array.shape)
        if kind.startswith("gemma") and "norm" in key:
            array = array - 1
        if kind == "gpt2" and key.startswith("blk.") and array.ndim == 2:
            array = array.T
        written[theirs(kind, key)] = np.ascontiguousarray(array.astype(dtype))
    save_file(written, path / "model.safetensors")
    config: dict[str, Any] = {
        "model_type": kind, "hidden_size": WIDTH, "head_dim": HEAD,
        "num_hidden_layers": layers_of(name), "num_attention_heads": HEADS,
        "num_key_value_heads": KV, "vocab_size": len(WORDS), "intermediate_size": HIDDEN,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    if kind == "gpt2":
        config = {
            "model_type": kind, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS,
            "n_positions": CONTEXT, "vocab_size": len(WORDS), "head_dim": HEAD,
        }  # fmt: skip
    config |= {
        "gemma2": {
            "sliding_window": 5,
            "query_pre_attn_scalar": HEAD,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
        "gemma3_text": {"sliding_window": 5, "rope_theta": 1e6, "query_pre_attn_scalar": HEAD},
        "phi3": {"sliding_window": 7, "partial_rotary_factor": 0.5},
    }.get(kind, {})
    (path / "config.json").write_text(json.dumps(config))
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(WORDS)}, merges=[]))
    words.save(str(path / "tokenizer.json"))
    said = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "a"}
    (path / "tokenizer_config.json").write_text(json.dumps(said))
    return metadata, tensors


@pytest.mark.parametrize("kind", KINDS)
def test_folders_are_the_same_models(tmp_path: Path, kind) -> None:
    metadata, tensors = folder(tmp_path, kind)
    lm = LanguageModel(tmp_path, backend="cpu")
    expected = references.logits(metadata, tensors, TOKENS)
    assert np.linalg.norm(lm.logits(TOKENS) - expected) < 1e-5 * np.linalg.norm(expected)
    assert lm.tokenizer.ends == {1} and lm.tokenizer.template == "a"


LEFT_OUT = object()
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 3}
THE_SAME = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 3,
}  # fmt: skip
ENTRIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "linear": (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 3}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
    ),
    "llama3": (
        "llama",
        {
            "rope_scaling": {
                "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 9,
            }
        },
        {
            "rope.scaling.type": "llama3", "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 9,
        },
    ),
    "yarn": ("qwen3", {"rope_scaling": YARN}, THE_SAME),
    "yarn, its betas": (
        "qwen2",
        {"rope_scaling": {**YARN, "beta_fast": 2.0, "beta_slow": 0.1}},
        {
            **THE_SAME, "rope.scaling.yarn_beta_fast": 2.0, "rope.scaling.yarn_beta_slow": 0.1,
        },
    ),
    "yarn, its factor": (
        "llama",
        {"rope_scaling": {**YARN, "attention_factor": 0.1 * math.log(4) + 1}},
        THE_SAME,
    ),
    "yarn, its scales": (
        "llama",
        {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
        {**THE_SAME, "rope.scaling.attn_factor": 1 / (0.05 * math.log(4) + 1)},
    ),
    "yarn by the lengths": (
        "llama",
        {"rope_scaling": {**YARN, "factor": None}},
        {**THE_SAME, "rope.scaling.factor": CONTEXT / 3},
    ),
    "base": ("llama", {"rope_parameters": {"rope_theta": 77.0}}, {"rope.freq_base": 77.0}),
    "bases by type of layers": (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 77.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 33.0},
            }
        },
        {
            "rope.freq_base": 77.0, "rope.freq_base_swa": 33.0, "rope.scaling.type": "linear",
            "rope.scaling.factor": 2.0,
        },
    ),
    "windows by type of layers": (
        "gemma2",
        {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
        {"global_layers": [0]},
    ),
    "windows of a pattern": (
        "gemma3_text", {"sliding_window_pattern": 3}, {"global_layers": [2, 5]}
    ),
    "windows of later layers": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
        {"attention.sliding_window": 3, "global_layers": [0, 1]},
    ),
    "left out of Gemma 2's": (
        "gemma2",
        dict.fromkeys(
            ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"), LEFT_OUT
        ),
        {"attention.scale": 1 / 16, "attn_logit_softcapping": 50.0,
         "final_logit_softcapping": 30.0},
    ),
    "null in Gemma 2's": (
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        {"attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0},
    ),
    "left out of Gemma 3's": ("gemma3_text", {"rope_theta": LEFT_OUT}, {}),
    "no window": ("phi3", {"sliding_window": None}, {"attention.sliding_window": 0}),
    "a window of none": ("qwen2", {"use_sliding_window": False, "sliding_window": 3}, {}),
}  # fmt: skip
"""Entries of config.json, and what GGUF has in their place."""


@pytest.mark.parametrize("case", ENTRIES)
def test_entries_mean_what_transformers_means_by_them(tmp_path: Path, case) -> None:
    kind, entries, more = ENTRIES[case]
    metadata, tensors = folder(tmp_path, kind)
    plain = references.logits(metadata, tensors, TOKENS)
    config = json.loads((tmp_path / "config.json").read_text())
    said = {key: one for key, one in {**config, **entries}.items() if one is not LEFT_OUT}
    (tmp_path / "config.json").write_text(json.dumps(said))
    for key, one in more.items():
        metadata[f"{metadata['general.architecture']}.{key}"] = one
    expected = references.logits(metadata, tensors, TOKENS)
    assert (relative_error(plain, expected) > 1e-3) == bool(more)
    found = LanguageModel(tmp_path, backend="cpu").logits(TOKENS)
    assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize(("context", "kind"), [(8, "short"), (9, "long")])
@pytest.mark.parametrize("name", ["longrope", "su"])
def test_factors_of_longrope_are_those_of_the_context(tmp_path: Path, name, context, kind) -> None:
    metadata, tensors = folder(tmp_path, "phi3")
    factors = {"short": [1.5, 2, 3, 4], "long": [2, 5, 7.5, 9]}
    scaling = {"type": name, **{f"{key}_factor": one for key, one in factors.items()}}
    change_config(tmp_path, rope_scaling=scaling, original_max_position_embeddings=8)
    metadata["phi3.rope.scaling.attn_factor"] = math.sqrt(1 + math.log(CONTEXT / 8) / math.log(8))
    tensors["rope_freqs.weight"] = np.array(factors[kind], np.float32)
    expected = references.logits(metadata, tensors, TOKENS)
    found = LanguageModel(tmp_path, backend="cpu", context=context).logits(TOKENS)
    assert relative_error(found, expected) < 1e-5


def change_config(path: Path, **more: Any) -> None:
    """Put entries into the config.json of a folder."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **more}))


def test_the_entry_of_tied_embeddings_is_held_against_the_file(tmp_path: Path) -> None:
    metadata, tensors = folder(tmp_path, "llama")
    change_config(tmp_path, tie_word_embeddings=True)
    with pytest.raises(
        ModelError, match=r"'tie_word_embeddings' is true .* 'lm_head.weight' is not"
    ):
        LanguageModel(tmp_path, backend="cpu")
    written = load_file(tmp_path / "model.safetensors")
    written["lm_head.weight"] = written["model.embed_tokens.weight"].copy()
    save_file(written, tmp_path / "model.safetensors")
    del tensors["output.weight"]
    found = LanguageModel(tmp_path, backend="cpu").logits(TOKENS)
    assert relative_error(found, references.logits(metadata, tensors, TOKENS)) < 1e-5
    del written["lm_head.weight"]
    save_file(written, tmp_path / "model.safetensors")
    change_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"there is no tensor 'output.weight'"):
        LanguageModel(tmp_path, backend="cpu")


def test_activations_are_those_that_transformers_reads(tmp_path: Path) -> None:
    folder(tmp_path, "gemma2")
    expected = LanguageModel(tmp_path, backend="cpu").logits(TOKENS)
    change_config(tmp_path, hidden_act="silu")  # of which Gemma's model knows nothing
    np.testing.assert_array_equal(LanguageModel(tmp_path, backend="cpu").logits(TOKENS), expected)
    change_config(tmp_path, hidden_activation="silu")
    with pytest.raises(ModelError, match="'hidden_activation' 'silu' does not run here"):
        LanguageModel(tmp_path, backend="cpu")


def test_weights_are_of_the_files_that_transformers_reads(tmp_path: Path) -> None:
    folder(tmp_path, "llama")
    expected = LanguageModel(tmp_path, backend="cpu").logits(TOKENS)
    other = {"model.norm.weight": np.zeros(WIDTH, np.float32), "x": np.zeros(1, np.float32)}
    save_file(other, tmp_path / "consolidated.safetensors")
    np.testing.assert_array_equal(LanguageModel(tmp_path, backend="cpu").logits(TOKENS), expected)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-1-of-1.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "model-1-of-1.safetensors"}}))
    np.testing.assert_array_equal(LanguageModel(tmp_path, backend="cpu").logits(TOKENS), expected)
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "../x.safetensors"}}))
    with pytest.raises(ModelError, match=r"'weight_map' must name files beside it, got '../x.safe"):
        LanguageModel(tmp_path, backend="cpu")


def test_tensors_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    folder(tmp_path, "llama")
    written = load_file(tmp_path / "model.safetensors")
    written["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    save_file(written, tmp_path / "model.safetensors")
    LanguageModel(tmp_path, backend="cpu")
    written["model.layers.1.self_attn.sinks"] = np.zeros(8, np.float32)
    save_file(written, tmp_path / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"llama has no place for: 'model.layers.1.self_attn.sinks'"
    ):
        LanguageModel(tmp_path, backend="cpu")


def test_gpt2_may_have_a_matrix_for_logits(tmp_path: Path) -> None:
    metadata, tensors = folder(tmp_path, "gpt2")
    written = load_file(tmp_path / "model.safetensors")
    tensors["output.weight"] = written["lm_head.weight"] = 2 * written["wte.weight"][::-1].copy()
    save_file(written, tmp_path / "model.safetensors")
    found = LanguageModel(tmp_path, backend="cpu").logits(TOKENS)
    assert relative_error(found, references.logits(metadata, tensors, TOKENS)) < 1e-5


def test_weights_of_halves_stay_halves(tmp_path: Path) -> None:
    metadata, tensors = folder(tmp_path, "llama", "float16")
    lm = LanguageModel(tmp_path, backend="cpu")
    expected = references.logits(metadata, tensors, TOKENS)
    assert np.linalg.norm(lm.logits(TOKENS) - expected) < 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "head_dim"]
)
def test_sizes_are_bounded_before_anything_is_made(tmp_path: Path, key) -> None:
    folder(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: 1 << 24}))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=f"'{key}' must be from 1 to [0-9]+, got {1 << 24}"):
            LanguageModel(tmp_path, backend="cpu")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "rwkv"}, "model_type 'rwkv' does not run here: those that do are llama, "),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' must be from 1 to"),
        ({"num_hidden_layers": 9}, "there is no tensor 'blk.3.attn_q.weight'"),
        ({"hidden_size": "x"}, "'hidden_size' must be int, got 'x'"),
        ({"vocab_size": 9}, "'token_embd.weight' must be \\(9, 32\\)"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope type 'dynamic' does not run here"),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}},
            "longrope must have 8 short and long factors, got 1",
        ),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 0]}},
            "'short_factor' must be numbers above 0, got \\[1, 0\\]",
        ),
        ({"quantization_config": {"bits": 4}}, "'quantization_config' does not run here"),
        ({"rope_scaling": {"rope_type": "linear"}}, "it has no 'factor'"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 0}},
            "'factor' must be above 0",
        ),
        ({"hidden_act": "relu"}, "'hidden_act' 'relu' does not run here: 'silu' and 'swish' do"),
        ({"rope_theta": 0}, "'rope_theta' must be above 1, got 0.0"),
        ({"rope_parameters": {"rope_theta": "abc"}}, "'rope_theta' must be float, got 'abc'"),
        ({"rope_parameters": {"rope_theta": [1]}}, "'rope_theta' must be float, got \\[1\\]"),
        (
            {"rope_scaling": {**YARN, "original_max_position_embeddings": math.inf}},
            "'original_max_position_embeddings' must be int, got inf",
        ),
        (
            {"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 4}},
            "'high_freq_factor' must be above 4.0, got 4.0",
        ),
        ({"rms_norm_eps": -1}, "'rms_norm_eps' must be 0 or more, got -1.0"),
        ({"rms_norm_eps": math.nan}, "'rms_norm_eps' must be finite in float32, got nan"),
        ({"rms_norm_eps": 1e300}, "'rms_norm_eps' must be finite in float32, got 1e\\+300"),
        ({"partial_rotary_factor": 1e300}, "'partial_rotary_factor' must be finite"),
        ({"partial_rotary_factor": 2.0}, "even number of a head's 16 numbers .* got 32"),
        ({"partial_rotary_factor": 0.01}, "even number of a head's 16 numbers .* got 1"),
        ({"head_dim": 15}, "even number of a head's 15 numbers must be rotated, got 15"),
        ({"head_dim": 1024}, "a head must have 512 numbers at most, got 1024"),
        ({"num_key_value_heads": 3}, "4 heads must be a multiple of those of keys, got 3"),
        ({"query_pre_attn_scalar": 0}, "'query_pre_attn_scalar' must be above 0, got 0.0"),
        ({"final_logit_softcapping": -3}, "'final_logit_softcapping' must be 0 or more, got -3"),
        ({"model_type": "mistral", "sliding_window": -3}, "'sliding_window' must be from 0 to"),
        ({"use_bidirectional_attention": True}, "True does not run here: False does"),
        (
            {"model_type": "mistral", "sliding_window": 5, "layer_types": ["full_attention"]},
            "'layer_types' must be 3 of full_attention and sliding_attention",
        ),
    ],
)
def test_folders_that_do_not_run_say_why(tmp_path: Path, change, says) -> None:
    folder(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=says):
        LanguageModel(tmp_path, backend="cpu")
    for name in ("tokenizer.json", "model.safetensors", "config.json"):
        (tmp_path / name).unlink()
        with pytest.raises(ModelError):
            LanguageModel(tmp_path, backend="cpu")
