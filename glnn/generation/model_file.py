"""Language models in files: the sizes of a model, and the check of its tensors by them."""

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
"""Tokens, where nobody asks for another number and the model was trained for more."""
GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6}  # each so many-th layer sees all tokens
LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}  # layers of those whose scores have another factor
WINDOWED = "llama", "mistral", "gemma2", "gemma3", "phi3"
HARMLESS = {
    "vocab_size", "feed_forward_length", "tensor_data_layout", "rope.scaling.finetuned",
    "pooling_type", "attention.layer_norm_epsilon",
}  # fmt: skip
"""Keys that change no logits, or say what tensors and other keys say, too."""
NEUTRAL: Mapping[str, Any] = {
    "expert_count": 0, "expert_used_count": 0, "logit_scale": 1.0, "residual_scale": 1.0,
    "embedding_scale": 1.0, "attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0,
    "attention.causal": True, "attention.sliding_window": 0,
}  # fmt: skip
"""Values of keys with which they change nothing."""
LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
COMPUTED = ".attn_rot_embd.weight", ".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"
"""Ends of the names of tensors that files may have though they follow from the sizes."""

Shapes = dict[str, tuple[int, ...]]


class StoredWeights(WeightSource, Protocol):
    """Weights of a file that says which tensors it has."""

    def other_tensors(self, names: Iterable[str]) -> list[str]:
        """Return what the file calls the tensors that are none of `names`."""
        ...


def is_language_model(path: str | os.PathLike[str]) -> bool:
    """Return True for a GGUF file, and for a folder that has the settings of a model."""
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
    """A GGUF file or a folder of Hugging Face, whose tensors have the sizes that it says."""

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
    """Open the model in a file or folder; its weights can be read inside.

    Raises ModelError where it is none or is damaged, or its architecture does not run here.
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

    Raises ModelError where its architecture does not run here, a key is missing or odd, or a tensor
    is not as the sizes say.
    """
    name = file.value("general.architecture", str)
    architecture_named(name)
    said = ModelEntries(file.path, file.metadata, f"{name}.")
    layers = said.size("block_count", most=MOST_LAYERS)
    width, heads = said.size("embedding_length"), said.size("attention.head_count")
    head_width = said.size("attention.key_length", max(width // heads, 1))
    context = said.size("context_length", most=MOST_CONTEXT)
    eps_key = "attention.layer_norm_rms_epsilon"
    if f"{name}.{eps_key}" not in file.metadata:
        eps_key = "attention.layer_norm_epsilon"
    if said.size("attention.value_length", head_width) != head_width:
        raise ModelError(f"{file.path}: values of heads must be as long as keys, {head_width}")
    window, every, local, global_layers = 0, GLOBAL_EVERY.get(name), None, frozenset[int]()
    if name in WINDOWED:
        window = said.size("attention.sliding_window", 0, MOST_CONTEXT, least=0)
    if every is not None:
        every = said.size("attention.sliding_window_pattern", every, MOST_LAYERS)
        global_layers = every_nth(every, layers)
    if name == "gemma3":
        local = Rope(said.above(1, "rope.freq_base_swa", GEMMA3_LOCAL_BASE))
    scale = math.sqrt(heads / width) if layers == LARGEST_GEMMA.get(name) else 0.0
    config = Config(
        architecture=name,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=said.size("attention.head_count_kv", heads),
        head_width=head_width,
        vocabulary=file.entry("token_embd.weight").shape[0],
        context=context,
        eps=said.at_least(0, eps_key),
        rope=_rope(said, context, file),
        rotary_width=said.size("rope.dimension_count", head_width),
        local_rope=local,
        window=window,
        global_layers=global_layers,
        scale=said.at_least(0, "attention.scale", scale),
        attention_cap=said.at_least(0, "attn_logit_softcapping", 0.0),
        logits_cap=said.at_least(0, "final_logit_softcapping", 0.0),
    )
    _check_unread(said, file.metadata, f"{name}.")
    return config


def _check_unread(said: ModelEntries, metadata: Mapping[str, Any], prefix: str) -> None:
    """Raise ModelError for a key below `prefix` that nothing asked for and may change logits."""
    for key in said.unread():
        value = metadata[prefix + key]
        plain = isinstance(value, (int, float)) and value == NEUTRAL.get(key)
        if key not in HARMLESS and not plain:
            raise ModelError(
                f"{said.path}: {prefix + key!r:.60} {shown(value)} does not run here, and may "
                "change the numbers"
            )


def _rope(said: ModelEntries, context: int, file: GGUFFile) -> Rope:
    """Return the angles of a model that was trained for `context` tokens."""
    # A factor without a type is linear; so was scale_linear, before there were types.
    factor = said.above(0, "rope.scaling.factor", said.above(0, "rope.scale_linear", 1.0))
    short, long = (_factors(file, name) for name in LONG_FACTORS)
    default = "longrope" if short or long else "linear"
    scaling = said.get("rope.scaling.type", str, default)
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise ModelError(
            f"{said.path}: rope.scaling.type {scaling!r:.60} does not run here: none, linear, yarn "
            "and longrope do"
        )
    magnitude = yarn_magnitude(factor) if scaling == "yarn" else 1.0
    return Rope(
        said.above(1, "rope.freq_base", 10000.0),
        "longrope" if scaling == "none" and default == "longrope" else scaling,
        factor,
        said.size("rope.scaling.original_context_length", context, MOST_CONTEXT),
        beta_fast=said.above(0, "rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=said.above(0, "rope.scaling.yarn_beta_slow", 1.0),
        magnitude=said.above(0, "rope.scaling.attn_factor", 1.0) * magnitude,
        short=short,
        long=long,
    )


def _factors(file: GGUFFile, name: str) -> tuple[float, ...]:
    """Return a tensor of divisors of frequencies; empty where there is none."""
    if name not in file:
        return ()
    found = file.array(name).reshape(-1)
    if not (found > 0).all() or not np.isfinite(found).all():
        raise ModelError(f"{file.path}: {name!r} must be numbers above 0")
    return tuple(map(float, found))


def _check_heads(path: Path, config: Config) -> None:
    """Raise ModelError where the sizes of heads do not fit each other, or do not run here."""
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
    """Raise ModelError where a tensor has other sizes than `config` says, before any is read.

    And where one is missing, or there is one that nothing here reads.
    """
    _check_heads(path, config)
    architecture, width = architecture_named(config.architecture), config.width
    needed: Shapes = {
        "token_embd.weight": (config.vocabulary, width),
        "output_norm.weight": (width,),
    }
    optional: Shapes = {}
    logits = optional if config.tied is not False else needed
    logits["output.weight"] = config.vocabulary, width
    if architecture.norm == LAYER:
        optional["output_norm.bias"] = (width,)
    if architecture.learned_positions:
        needed["position_embd.weight"] = _positions(path, config, weights)
    elif config.local_rope is None:
        pairs = ((config.rotary_width or config.head_width) // 2,)
        optional["rope_freqs.weight"] = pairs
        if config.rope.scaling == "longrope":
            optional |= dict.fromkeys(LONG_FACTORS, pairs)
    for layer in range(config.layers):
        for shapes, own in zip((needed, optional), _block(path, layer, config, weights)):
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    wanted = needed | {name: shape for name, shape in optional.items() if name in weights}
    for name, shape in wanted.items():
        if name not in weights:
            raise ModelError(f"{path}: there is no tensor {name!r}")
        if (got := weights.shape(name)) != shape:
            raise ModelError(f"{path}: {name!r} must be {shape}, got {got}")
    others = [one for one in weights.other_tensors(wanted) if not one.endswith(COMPUTED)]
    if others:
        more = f" and {len(others) - 1} others" if len(others) > 1 else ""
        raise ModelError(
            f"{path}: there are tensors that {config.architecture} has no place for: "
            f"{others[0]!r:.60}{more}"
        )


def _positions(path: Path, config: Config, weights: StoredWeights) -> tuple[int, ...]:
    """Return the shape of the embeddings of positions, of which there may be more than needed."""
    name = "position_embd.weight"
    there = weights.shape(name) if name in weights else ()
    if len(there) != 2 or there[0] < config.context or there[1] != config.width:
        wanted = config.context, config.width
        raise ModelError(f"{path}: {name!r} must be {wanted}, got {there}")
    return there


def _block(path: Path, layer: int, config: Config, weights: StoredWeights) -> tuple[Shapes, Shapes]:
    """Return the shapes of the tensors that a block needs, and of those that it may have."""
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
    gate = architecture.gated and f"blk.{layer}.ffn_gate.weight" in weights
    if gate:
        rows["ffn_gate"] = hidden
    rows["ffn_up"] = 2 * hidden if architecture.gated and not gate else hidden
    needed: Shapes = {f"{name}.weight": (n, width) for name, n in rows.items()}
    needed |= {"attn_output.weight": (width, heads), "ffn_down.weight": (width, hidden)}
    needed |= {f"{name}.weight": (width,) for name in norms}
    optional: Shapes = {f"{name}.bias": (n,) for name, n in rows.items()}
    optional |= {f"{name}.bias": (width,) for name in ("attn_output", "ffn_down")}
    if architecture.norm == LAYER:
        optional |= {f"{name}.bias": (width,) for name in norms}
    optional |= {f"attn_{name}_norm.weight": (head,) for name in "qk"}
    return needed, optional
