"""Files of language models: reads a model's sizes, and checks its tensors against them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from glnn.errors import ModelError, shown
from glnn.generation.architectures import (
    GEMMA3_LOCAL_BASE,
    LAYER,
    Config,
    Rope,
    WeightSource,
    architecture_named,
    every_nth,
    yarn_magnitude,
)
from glnn.generation.gguf import MAGIC, GGUFFile
from glnn.generation.hugging_face import FolderWeights, folder_config, folder_tokenizer
from glnn.generation.settings import MOST_CONTEXT, MOST_LAYERS, ModelEntries, whole_number
from glnn.generation.tokenizer import Tokenizer, gguf_tokenizer
from glnn.graph.operators.rotary import MOST_WIDTH

USUAL_CONTEXT = 4096
"""The default context in tokens, for a model that was trained for more."""
GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6}  # every n-th layer attends to all tokens
LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}  # layers of the models that scale scores otherwise
WINDOWED = "llama", "mistral", "gemma2", "gemma3", "phi3"
HARMLESS = {
    "vocab_size", "feed_forward_length", "tensor_data_layout", "rope.scaling.finetuned",
    "pooling_type", "attention.layer_norm_epsilon",
}  # fmt: skip
"""Keys that change no logits, or repeat what tensors and other keys say."""
NEUTRAL: Mapping[str, Any] = {
    "expert_count": 0, "expert_used_count": 0, "logit_scale": 1.0, "residual_scale": 1.0,
    "embedding_scale": 1.0, "attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0,
    "attention.causal": True, "attention.sliding_window": 0,
}  # fmt: skip
"""Values with which these keys change nothing."""
LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
COMPUTED = ".attn_rot_embd.weight", ".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"
"""Suffixes of tensors that files may have, and that are computed from the sizes here."""

Shapes = dict[str, tuple[int, ...]]


class StoredWeights(WeightSource, Protocol):
    """Weights of a file that can list its tensors."""

    def other_tensors(self, names: Iterable[str]) -> list[str]:
        """Return the names in the file of the tensors that are not in `names`."""
        ...


def is_language_model(path: str | os.PathLike[str]) -> bool:
    """Return True for a GGUF file, and for a folder that has a config.json."""
    path = Path(path)
    if path.is_dir():
        return (path / "config.json").is_file()
    if not path.is_file() or path.suffix == ".gguf":
        return path.suffix == ".gguf"
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file or a folder of Hugging Face, whose tensors have the sizes in its settings."""

    path: Path
    config: Config
    weights: GGUFFile | FolderWeights

    def context(self, requested: int | None) -> int:
        """Return the most tokens of a sequence. Raises ModelError where the model has fewer.

        requested: None for the model's own, at most USUAL_CONTEXT.
        """
        if requested is None:
            return min(self.config.context, USUAL_CONTEXT)
        return whole_number("context", requested, self.config.context)

    def tokenizer(self) -> Tokenizer:
        """Return its tokenizer. Raises ModelError for one that does not run here."""
        if isinstance(self.weights, GGUFFile):
            return gguf_tokenizer(self.weights)
        return folder_tokenizer(self.path, self.config.vocabulary)


@contextmanager
def open_model(path: Path) -> Iterator[ModelFile]:
    """Open the model in a file or folder; its weights can be read inside the context.

    Raises ModelError where it is no model, is damaged, or its architecture does not run here.
    """
    if path.is_dir():
        config = folder_config(path)
        weights = FolderWeights(path, config)
        check_tensors(path, config, weights)
        yield ModelFile(path, config, weights)
        return
    with GGUFFile(path) as file:
        config = gguf_config(file)
        check_tensors(file.path, config, file)
        yield ModelFile(path, config, file)


def gguf_config(file: GGUFFile) -> Config:
    """Return the sizes of the model in `file`.

    Raises ModelError where its architecture does not run here, or a key is missing or invalid.
    """
    name = file.value("general.architecture", str)
    architecture_named(name)
    entries = ModelEntries(file.path, file.metadata, f"{name}.")
    layers = entries.size("block_count", most=MOST_LAYERS)
    width, heads = entries.size("embedding_length"), entries.size("attention.head_count")
    head_width = entries.size("attention.key_length", max(width // heads, 1))
    context = entries.size("context_length", most=MOST_CONTEXT)
    eps_key = "attention.layer_norm_rms_epsilon"
    if f"{name}.{eps_key}" not in file.metadata:
        eps_key = "attention.layer_norm_epsilon"
    if entries.size("attention.value_length", head_width) != head_width:
        raise ModelError(f"{file.path}: values of heads must be as long as keys, {head_width}")
    window, local, global_layers = 0, None, frozenset[int]()
    if name in WINDOWED:
        window = entries.size("attention.sliding_window", 0, MOST_CONTEXT, least=0)
    if name in GLOBAL_EVERY:
        key = "attention.sliding_window_pattern"
        global_layers = every_nth(entries.size(key, GLOBAL_EVERY[name], MOST_LAYERS), layers)
    if name == "gemma3":
        local = Rope(entries.above(1, "rope.freq_base_swa", GEMMA3_LOCAL_BASE))
    scale = math.sqrt(heads / width) if layers == LARGEST_GEMMA.get(name) else 0.0
    config = Config(
        architecture=name,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=entries.size("attention.head_count_kv", heads),
        head_width=head_width,
        vocabulary=file.entry("token_embd.weight").shape[0],
        context=context,
        eps=entries.at_least(0, eps_key),
        rope=_rope(entries, context, file),
        rotary_width=entries.size("rope.dimension_count", head_width),
        local_rope=local,
        window=window,
        global_layers=global_layers,
        scale=entries.at_least(0, "attention.scale", scale),
        attention_cap=entries.at_least(0, "attn_logit_softcapping", 0.0),
        logits_cap=entries.at_least(0, "final_logit_softcapping", 0.0),
    )
    _check_unread(entries, file.metadata, f"{name}.")
    return config


def _check_unread(entries: ModelEntries, metadata: Mapping[str, Any], prefix: str) -> None:
    """Raise ModelError for a key below `prefix` that was not read and may change logits."""
    for key in entries.unread():
        value = metadata[prefix + key]
        is_neutral = isinstance(value, (int, float)) and value == NEUTRAL.get(key)
        if key not in HARMLESS and not is_neutral:
            raise ModelError(
                f"{entries.path}: {prefix + key!r:.60} {shown(value)} does not run here, and may "
                "change the numbers"
            )


def _rope(entries: ModelEntries, context: int, file: GGUFFile) -> Rope:
    """Return the angles of a model that was trained for `context` tokens."""
    # A factor without a type is linear, as is scale_linear of older files.
    factor = entries.above(0, "rope.scaling.factor", entries.above(0, "rope.scale_linear", 1.0))
    short, long = (_factors(file, name) for name in LONG_FACTORS)
    default = "longrope" if short or long else "linear"
    scaling = entries.get("rope.scaling.type", str, default)
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise ModelError(
            f"{entries.path}: rope.scaling.type {scaling!r:.60} does not run here: none, linear, "
            "yarn and longrope do"
        )
    magnitude = yarn_magnitude(factor) if scaling == "yarn" else 1.0
    return Rope(
        entries.above(1, "rope.freq_base", 10000.0),
        "longrope" if scaling == "none" and default == "longrope" else scaling,
        factor,
        entries.size("rope.scaling.original_context_length", context, MOST_CONTEXT),
        beta_fast=entries.above(0, "rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=entries.above(0, "rope.scaling.yarn_beta_slow", 1.0),
        magnitude=entries.above(0, "rope.scaling.attn_factor", 1.0) * magnitude,
        short=short,
        long=long,
    )


def _factors(file: GGUFFile, name: str) -> tuple[float, ...]:
    """Return a tensor of divisors of frequencies; empty where there is none."""
    if name not in file:
        return ()
    factors = file.array(name).reshape(-1)
    if not (factors > 0).all() or not np.isfinite(factors).all():
        raise ModelError(f"{file.path}: {name!r} must be numbers above 0")
    return tuple(map(float, factors))


def _check_heads(path: Path, config: Config) -> None:
    """Raise ModelError where the sizes of heads contradict each other, or do not run here."""
    heads, kv, head = config.heads, config.kv_heads, config.head_width
    if heads % kv:
        raise ModelError(f"{path}: {heads} heads must be a multiple of those of keys, got {kv}")
    if head > MOST_WIDTH:
        raise ModelError(f"{path}: a head must have {MOST_WIDTH} numbers at most, got {head}")
    rotated = config.rotary_width or head
    learned = architecture_named(config.architecture).learned_positions
    for factors in (config.rope.short, config.rope.long):
        if config.rope.scaling == "longrope" and len(factors) != rotated // 2:
            raise ModelError(
                f"{path}: longrope must have {rotated // 2} short and long factors, got "
                f"{len(factors)}"
            )
    if not learned and (rotated % 2 or rotated > head):
        raise ModelError(
            f"{path}: an even number of a head's {head} numbers must be rotated, got {rotated}"
        )


def check_tensors(path: Path, config: Config, weights: StoredWeights) -> None:
    """Raise ModelError where a tensor is missing, has another shape than `config` says, or is one
    that this architecture does not read. Reads no tensor's data.
    """
    _check_heads(path, config)
    architecture, width = architecture_named(config.architecture), config.width
    required: Shapes = {
        "token_embd.weight": (config.vocabulary, width),
        "output_norm.weight": (width,),
    }
    optional: Shapes = {}
    output = optional if config.tied is not False else required
    output["output.weight"] = config.vocabulary, width
    if architecture.norm == LAYER:
        optional["output_norm.bias"] = (width,)
    if architecture.learned_positions:
        required["position_embd.weight"] = _positions(path, config, weights)
    elif config.local_rope is None:
        pairs = ((config.rotary_width or config.head_width) // 2,)
        optional["rope_freqs.weight"] = pairs
        if config.rope.scaling == "longrope":
            optional |= dict.fromkeys(LONG_FACTORS, pairs)
    for layer in range(config.layers):
        for shapes, block in zip((required, optional), _block(path, layer, config, weights)):
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    expected = required | {name: shape for name, shape in optional.items() if name in weights}
    for name, shape in expected.items():
        if name not in weights:
            raise ModelError(f"{path}: there is no tensor {name!r}")
        if (got := weights.shape(name)) != shape:
            raise ModelError(f"{path}: {name!r} must be {shape}, got {got}")
    unread = [name for name in weights.other_tensors(expected) if not name.endswith(COMPUTED)]
    if unread:
        count = f" and {len(unread) - 1} others" if len(unread) > 1 else ""
        raise ModelError(
            f"{path}: there are tensors that {config.architecture} has no place for: "
            f"{unread[0]!r:.60}{count}"
        )


def _positions(path: Path, config: Config, weights: StoredWeights) -> tuple[int, ...]:
    """Return the shape of the embeddings of positions, which may be more than the context."""
    name = "position_embd.weight"
    shape = weights.shape(name) if name in weights else ()
    if len(shape) != 2 or shape[0] < config.context or shape[1] != config.width:
        expected = config.context, config.width
        raise ModelError(f"{path}: {name!r} must be {expected}, got {shape}")
    return shape


def _block(path: Path, layer: int, config: Config, weights: StoredWeights) -> tuple[Shapes, Shapes]:
    """Return the shapes of a block's required tensors, and of its optional ones."""
    architecture, width, head = (
        architecture_named(config.architecture), config.width, config.head_width
    )  # fmt: skip
    kv, heads = config.kv_heads * head, config.heads * head
    rows = {"attn_q": heads, "attn_k": kv, "attn_v": kv}
    if f"blk.{layer}.attn_qkv.weight" in weights:
        rows = {"attn_qkv": heads + 2 * kv}
    down = f"blk.{layer}.ffn_down.weight"
    hidden = (0, *weights.shape(down))[-1] if down in weights else 0
    if hidden < 1 and down in weights:
        raise ModelError(f"{path}: {down!r} must have numbers, got {weights.shape(down)}")
    norms = ["attn_norm", "ffn_norm"]
    if architecture.post_norms:
        norms += ["post_attention_norm", "post_ffw_norm"]
    has_gate = architecture.gated and f"blk.{layer}.ffn_gate.weight" in weights
    if has_gate:
        rows["ffn_gate"] = hidden
    rows["ffn_up"] = 2 * hidden if architecture.gated and not has_gate else hidden
    required: Shapes = {f"{name}.weight": (n, width) for name, n in rows.items()}
    required |= {"attn_output.weight": (width, heads), "ffn_down.weight": (width, hidden)}
    required |= {f"{name}.weight": (width,) for name in norms}
    optional: Shapes = {f"{name}.bias": (n,) for name, n in rows.items()}
    optional |= {f"{name}.bias": (width,) for name in ("attn_output", "ffn_down")}
    if architecture.norm == LAYER:
        optional |= {f"{name}.bias": (width,) for name in norms}
    optional |= {f"attn_{name}_norm.weight": (head,) for name in "qk"}
    return required, optional
