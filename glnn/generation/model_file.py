"""Language models in files: the sizes of a model, and the check of its tensors by them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import math
from pathlib import Path

from glnn.errors import ModelError
from glnn.generation.architectures import (
    GEMMA3_LOCAL_BASE,
    Config,
    Rope,
    Weights,
    architecture_named,
    every_nth,
    yarn_magnitude,
)
from glnn.generation.gguf import MAGIC, GGUFFile
from glnn.generation.hugging_face import FolderWeights, folder_config, folder_tokenizer
from glnn.generation.settings import MOST_CONTEXT, MOST_LAYERS, Settings, whole_number
from glnn.generation.tokenizer import Tokenizer, gguf_tokenizer
from glnn.graph.operators.rotary import MOST_WIDTH

USUAL_CONTEXT = 4096
"""Tokens, where nobody asks for another number and the model was trained for more."""
GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6}  # each so many-th layer sees all tokens
LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}  # layers of those whose scores have another factor


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

    def context(self, asked: int | None) -> int:
        """Return the most tokens of a sequence. Raises ModelError where the model has fewer.

        asked: None for the model's own, at most USUAL_CONTEXT.
        """
        if asked is None:
            return min(self.config.context, USUAL_CONTEXT)
        return whole_number("context", asked, self.config.context)

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
    said = Settings(file.path, file.metadata, f"{name}.")
    layers = said.size("block_count", most=MOST_LAYERS)
    width, heads = said.size("embedding_length"), said.size("attention.head_count")
    head_width = said.size("attention.key_length", max(width // heads, 1))
    context = said.size("context_length", most=MOST_CONTEXT)
    eps_key = "attention.layer_norm_rms_epsilon"
    if f"{name}.{eps_key}" not in file.metadata:
        eps_key = "attention.layer_norm_epsilon"
    local_base = said.above(1, "rope.freq_base_swa", GEMMA3_LOCAL_BASE)
    window = said.size("attention.sliding_window", 0, MOST_CONTEXT, least=0)
    scale = math.sqrt(heads / width) if layers == LARGEST_GEMMA.get(name) else 0.0
    every = GLOBAL_EVERY.get(name)
    return Config(
        architecture=name,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=said.size("attention.head_count_kv", heads),
        head_width=head_width,
        vocabulary=file.entry("token_embd.weight").shape[0],
        context=context,
        eps=said.at_least(0, eps_key),
        rope=_rope(said, context, "rope_factors_long.weight" in file),
        rotary_width=said.size("rope.dimension_count", head_width) if name != "gpt2" else 0,
        local_rope=Rope(local_base) if name == "gemma3" else None,
        window=window if name in ("gemma2", "gemma3", "phi3", "mistral", "llama") else 0,
        global_layers=every_nth(every, layers) if every else frozenset(),
        scale=said.at_least(0, "attention.scale", scale),
        attention_cap=said.at_least(0, "attn_logit_softcapping", 0.0),
        logits_cap=said.at_least(0, "final_logit_softcapping", 0.0),
    )


def _rope(said: Settings, context: int, long_factors: bool) -> Rope:
    """Return the angles of a model that was trained for `context` tokens."""
    scaling = said.get("rope.scaling.type", str, "none")
    if long_factors:  # by which alone it is said
        scaling = "longrope"
    if scaling not in ("none", "linear", "yarn"):
        raise ModelError(
            f"{said.path}: rope.scaling.type {scaling!r:.60} does not run here: none, linear and "
            "yarn do"
        )
    factor = said.above(0, "rope.scaling.factor", 1.0)
    magnitude = yarn_magnitude(factor) if scaling == "yarn" else 1.0
    return Rope(
        said.above(1, "rope.freq_base", 10000.0),
        scaling,
        factor,
        said.size("rope.scaling.original_context_length", context, MOST_CONTEXT),
        beta_fast=said.above(0, "rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=said.above(0, "rope.scaling.yarn_beta_slow", 1.0),
        magnitude=said.above(0, "rope.scaling.attn_factor", 1.0) * magnitude,
    )


def _check_heads(path: Path, config: Config) -> None:
    """Raise ModelError where the sizes of heads do not fit each other, or do not run here."""
    heads, kv, head = config.heads, config.kv_heads, config.head_width
    if heads % kv:
        raise ModelError(f"{path}: {heads} heads must be a multiple of those of keys, got {kv}")
    if head > MOST_WIDTH:
        raise ModelError(f"{path}: a head must have {MOST_WIDTH} numbers at most, got {head}")
    rotated = config.rotary_width or head
    learned = architecture_named(config.architecture).learned_positions
    if not learned and (rotated % 2 or rotated > head):
        raise ModelError(
            f"{path}: an even number of a head's {head} numbers must be rotated, got {rotated}"
        )


def check_tensors(path: Path, config: Config, weights: Weights) -> None:
    """Raise ModelError where a tensor has other sizes than `config` says, before any is read."""
    _check_heads(path, config)
    width, head = config.width, config.head_width
    kv, heads = config.kv_heads * head, config.heads * head
    needed: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocabulary, width),
        "output_norm.weight": (width,),
    }
    known: dict[str, tuple[int, ...]] = {
        "output.weight": (config.vocabulary, width),
        "output_norm.bias": (width,),
    }
    for layer in range(config.layers):
        block = f"blk.{layer}"
        rows = {"attn_q": heads, "attn_k": kv, "attn_v": kv}
        if f"{block}.attn_qkv.weight" in weights:
            rows = {"attn_qkv": heads + 2 * kv}
        down = f"{block}.ffn_down.weight"
        hidden = weights.shape(down)[-1] if down in weights else 0
        if hidden < 1 and down in weights:
            raise ModelError(f"{path}: {down!r} must have numbers, got {weights.shape(down)}")
        both = f"{block}.ffn_gate.weight" in weights or config.architecture == "gpt2"
        rows["ffn_up"] = hidden if both else 2 * hidden
        needed |= {f"{block}.{name}.weight": (n, width) for name, n in rows.items()}
        needed |= {f"{block}.attn_output.weight": (width, heads), down: (width, hidden)}
        needed |= {f"{block}.{name}.weight": (width,) for name in ("attn_norm", "ffn_norm")}
        known |= {f"{block}.{name}.bias": (n,) for name, n in rows.items()}
        known |= {f"{block}.{name}.bias": (width,) for name in ("attn_output", "ffn_down")}
        known |= {f"{block}.{name}.bias": (width,) for name in ("attn_norm", "ffn_norm")}
        known |= {f"{block}.attn_{name}_norm.weight": (head,) for name in "qk"}
        known |= {f"{block}.post_{name}_norm.weight": (width,) for name in ("attention", "ffw")}
        known |= {f"{block}.ffn_gate.weight": (hidden, width), f"{block}.ffn_gate.bias": (hidden,)}
    wanted = needed | {name: shape for name, shape in known.items() if name in weights}
    for name, shape in wanted.items():
        if name not in weights:
            raise ModelError(f"{path}: there is no tensor {name!r}")
        if (got := weights.shape(name)) != shape:
            raise ModelError(f"{path}: {name!r} must be {shape}, got {got}")
    if config.architecture == "gpt2":
        name = "position_embd.weight"
        there = weights.shape(name) if name in weights else ()
        if len(there) != 2 or there[0] < config.context or there[1] != width:
            raise ModelError(f"{path}: {name!r} must be ({config.context}, {width}), got {there}")
