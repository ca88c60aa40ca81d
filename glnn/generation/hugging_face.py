"""Language models in folders of Hugging Face: config.json, safetensors and tokenizer.json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.core.fileio import check_file, read_bytes
from glnn.core.types import Array
from glnn.errors import ModelError, fault, shown
from glnn.generation.architectures import (
    GEMMA3_LOCAL_BASE,
    Config,
    Packed,
    Rope,
    architecture_named,
    every_nth,
    longrope_magnitude,
    yarn_magnitude,
)
from glnn.generation.settings import MOST_CONTEXT, MOST_LAYERS, MOST_VOCABULARY, ModelEntries
from glnn.generation.tokenizer import Tokenizer, json_tokenizer
from glnn.graph.operators.rotary import HALVES
from glnn.graph.quantization import GGML_FORMATS, JoinedBlocks
from glnn.model.files import MOST_JSON, parse_json
from glnn.model.weight_files import SafetensorsFile

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "gpt2": "gpt2",
}
"""GGUF's architecture for each `model_type`."""
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mistral": {"sliding_window": 4096},
    "qwen2": {"sliding_window": 4096},
    "qwen3": {"sliding_window": 4096, "head_dim": 128},
    "gemma2": {
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
    },
    "gemma3_text": {
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1e6,
        "head_dim": 256,
    },
    "phi3": {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
}
"""What entries of config.json are where they are left out, and null is something else."""
ACTIVATIONS = {"silu": ("silu", "swish"), "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new")}
"""What config.json calls the activation of an architecture."""
ACTIVATION_ENTRIES = {
    "gemma2": "hidden_activation",
    "gemma3_text": "hidden_activation",
    "gpt2": "activation_function",
}
"""The entry that says it, where that is not hidden_act."""
PLAIN: Mapping[str, tuple[bool | str, ...]] = {
    "use_bidirectional_attention": (False,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
"""Entries that change what is computed, with the values that run here, the default first."""
ORIGINAL_CONTEXT = "original_max_position_embeddings"
FORMAT_OF = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PHI = {"ffn_up": "mlp.gate_up_proj"}
GPT2 = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
GPT2_WHOLE = {
    "token_embd": "wte",
    "position_embd": "wpe",
    "output_norm": "ln_f",
    "output": "lm_head",
}


def _bytes(path: Path) -> bytes:
    check_file(path)
    try:
        return read_bytes(path, MOST_JSON)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {fault(error)}") from None


def json_entries(path: Path) -> dict[str, Any]:
    """Return the entries of a file of JSON. Raises ModelError where it is none."""
    return parse_json(_bytes(path), str(path))


def optional_entries(path: Path) -> dict[str, Any]:
    """Return the entries of a file of JSON; none where there is no such file."""
    return json_entries(path) if path.exists() else {}


def folder_config(folder: Path) -> Config:
    """Return the sizes of the model in `folder`.

    Raises ModelError where its architecture does not run here or an entry is missing or odd.
    """
    path = folder / "config.json"
    said = ModelEntries(path, json_entries(path))
    kind = said.get("model_type", str)
    said = said.with_defaults(DEFAULTS.get(kind, {}))
    if kind not in ARCHITECTURES:
        raise ModelError(
            f"{said.path}: model_type {kind!r:.60} does not run here: those that do are "
            f"{', '.join(ARCHITECTURES)}"
        )
    name = ARCHITECTURES[kind]
    activations = ACTIVATIONS[architecture_named(name).activation]
    _check_plain(said, {**PLAIN, ACTIVATION_ENTRIES.get(kind, "hidden_act"): activations})
    if kind == "gpt2":
        width, heads = said.size("n_embd"), said.size("n_head")
        return Config(
            name, said.size("n_layer", most=MOST_LAYERS), width, heads, heads,
            max(width // heads, 1), said.size("vocab_size", most=MOST_VOCABULARY),
            said.size("n_positions", most=MOST_CONTEXT),
            said.at_least(0, "layer_norm_epsilon", 1e-5),
            tied=said.optional("tie_word_embeddings", bool),
        )  # fmt: skip
    width, heads = said.size("hidden_size"), said.size("num_attention_heads")
    layers = said.size("num_hidden_layers", most=MOST_LAYERS)
    head = said.size("head_dim", max(width // heads, 1))
    windowed = kind in ("gemma2", "gemma3_text", "phi3", "mistral")
    if kind.startswith("qwen"):
        windowed = said.get("use_sliding_window", bool, False)
    rotary = said.part("rope_parameters") or said.part("rope_scaling")
    partial = rotary.above(0, "partial_rotary_factor", said.above(0, "partial_rotary_factor", 1.0))
    local = None
    if kind == "gemma3_text":
        base = said.above(1, "rope_local_base_freq", GEMMA3_LOCAL_BASE)
        local = _rope(said, rotary.part("sliding_attention"), base)
        rotary = rotary.part("full_attention") or rotary
    return Config(
        architecture=name,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=said.size("num_key_value_heads", heads),
        head_width=head,
        vocabulary=said.size("vocab_size", most=MOST_VOCABULARY),
        context=said.size("max_position_embeddings", most=MOST_CONTEXT),
        eps=said.at_least(0, "rms_norm_eps", 1e-6),
        rope=_rope(said, rotary, said.above(1, "rope_theta", 10000.0)),
        rotary_width=max(int(head * partial), 1),  # 0 would be all
        local_rope=local,
        window=said.size("sliding_window", 0, MOST_CONTEXT, least=0) if windowed else 0,
        global_layers=_global_layers(said, kind, layers) if windowed else frozenset(),
        scale=1 / math.sqrt(said.above(0, "query_pre_attn_scalar", head)),
        attention_cap=said.at_least(0, "attn_logit_softcapping", 0.0),
        logits_cap=said.at_least(0, "final_logit_softcapping", 0.0),
        tied=said.optional("tie_word_embeddings", bool),
        order=HALVES,
    )


def _check_plain(said: ModelEntries, allowed: Mapping[str, tuple[bool | str, ...]]) -> None:
    """Raise ModelError where entries ask for what does not run here. allowed: see PLAIN.

    Entries that transformers' own model does not read are not looked at.
    """
    for key, values in allowed.items():
        found = said.get(key, type(values[0]), values[0])
        if found not in values:
            raise ModelError(
                f"{said.path}: {key!r} {shown(found)} does not run here: "
                f"{' and '.join(map(repr, values))} {'do' if len(values) > 1 else 'does'}"
            )
    if said.get("quantization_config", dict, {}):
        raise ModelError(
            f"{said.path}: 'quantization_config' does not run here: weights of folders are F32, "
            "F16 or BF16, those of GGUF files may be quantized"
        )


def _global_layers(said: ModelEntries, kind: str, layers: int) -> frozenset[int]:
    """Return the layers that have no window though others may have one."""
    types, known = said.get("layer_types", list, []), ("full_attention", "sliding_attention")
    if types:
        if len(types) != layers or not all(one in known for one in types):
            raise ModelError(
                f"{said.path}: 'layer_types' must be {layers} of {' and '.join(known)}, got "
                f"{shown(types)}"
            )
        return frozenset(i for i, one in enumerate(types) if one == known[0])
    if kind.startswith("qwen"):
        first = said.size("max_window_layers", 28, MOST_LAYERS, least=0)
        return frozenset(range(min(first, layers)))
    pattern = said.size("sliding_window_pattern", 6, MOST_LAYERS)
    every = {"gemma2": 2, "gemma3_text": pattern}.get(kind)
    return every_nth(every, layers) if every else frozenset()


def _rope(said: ModelEntries, more: ModelEntries, base: float) -> Rope:
    """Return the angles that the entries `more` describe. base: where they do not say theirs."""
    base = more.above(1, "rope_theta", base)
    kind = more.get("rope_type", str, more.get("type", str, "default"))
    if kind in ("su", "yarn") and more.optional("long_factor", list):
        kind = "longrope"  # as Phi-3's first files called it
    if kind not in ("default", "linear", "llama3", "yarn", "longrope"):
        raise ModelError(
            f"{said.path}: rope type {kind!r:.60} does not run here: default, linear, llama3, yarn "
            "and longrope do"
        )
    if kind == "default":
        return Rope(base)
    context, key = said.size("max_position_embeddings", most=MOST_CONTEXT), ORIGINAL_CONTEXT
    original = said.size(key, more.size(key, context, MOST_CONTEXT), MOST_CONTEXT)
    by_length = context / original if kind in ("yarn", "longrope") else None
    factor = more.above(0, "factor", by_length)
    if kind == "longrope":
        magnitude = more.above(0, "attention_factor", longrope_magnitude(factor, original))
        short, long = more.numbers("short_factor"), more.numbers("long_factor")
        return Rope(
            base, kind, original_context=original, magnitude=magnitude, short=short, long=long
        )
    low = more.above(0, "low_freq_factor", 1.0)
    return Rope(
        base,
        kind,
        factor,
        original,
        low,
        more.above(low, "high_freq_factor", 4.0) if kind == "llama3" else 4.0,
        more.above(0, "beta_fast", 32.0),
        more.above(0, "beta_slow", 1.0),
        _yarn_magnitude(more, factor) if kind == "yarn" else 1.0,
        more.get("truncate", bool, True),
    )


def _yarn_magnitude(more: ModelEntries, factor: float) -> float:
    """Return what YaRN multiplies rotated numbers by: as it is said, or follows from factors."""
    share, shared = more.get("mscale", float, 0.0), more.get("mscale_all_dim", float, 0.0)
    found = yarn_magnitude(factor)
    if share and shared:
        found = yarn_magnitude(factor, share) / yarn_magnitude(factor, shared)
    return more.above(0, "attention_factor", found)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights: those that transformers reads, or else all there are.

    Raises ModelError where there is none, or the index names another than of `folder`.
    """
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.exists():
        return [whole]
    if not index.exists():
        if not (found := sorted(folder.glob("*.safetensors"))):
            raise ModelError(f"{folder}: there is no file of safetensors")
        return found
    names = ModelEntries(index, json_entries(index)).get("weight_map", dict).values()
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(f"{index}: 'weight_map' must name files beside it, got {shown(name)}")
    return [folder / name for name in sorted(set(names))]


class FolderWeights:
    """The weights of a folder, by GGUF's names; see `architectures.WeightSource`."""

    def __init__(self, folder: Path, config: Config) -> None:
        """Raises ModelError where there is no file of safetensors, or one is damaged."""
        self._folder, self._name = folder, config.architecture
        if self._name == "gpt2":
            self._layers, self._parts, self._whole = "h", GPT2, GPT2_WHOLE
        else:
            more = {"gemma2": GEMMA, "gemma3": GEMMA, "phi3": PHI}.get(self._name, {})
            self._layers, self._parts, self._whole = "model.layers", {**PARTS, **more}, WHOLE
        files = map(SafetensorsFile, weight_files(folder))
        self._files = {name: file for file in files for name in file.entries}
        if config.tied:
            self._drop_copy()

    def _drop_copy(self) -> None:
        """Leave out the matrix of logits, a copy of the embeddings.

        Raises ModelError where it is another.
        """
        if "output.weight" in self:
            (one, own), (other, embeddings) = map(
                self._file, ("output.weight", "token_embd.weight")
            )
            if not np.array_equal(one.raw(own), other.raw(embeddings)):
                raise ModelError(
                    f"{self._folder}: 'tie_word_embeddings' is true in config.json, but {own!r} is "
                    f"not {embeddings!r}: it must be left out, or the entry must be false"
                )
            del self._files[own]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(
            file.entries[name].end - file.entries[name].start for name, file in self._files.items()
        )

    def _their(self, name: str) -> str:
        """Return what a tensor is called there."""
        if name.startswith("blk."):
            _, layer, part, kind = name.split(".")
            if part not in self._parts:
                return ""
            theirs = f"{self._layers}.{layer}.{self._parts[part]}.{kind}"
        else:
            part, kind = name.rsplit(".", 1)
            whole = self._whole.get(part)
            theirs = f"{whole}.{kind}" if whole else ""
        prefixed = f"transformer.{theirs}"
        return prefixed if self._name == "gpt2" and prefixed in self._files else theirs

    def __contains__(self, name: str) -> bool:
        return self._their(name) in self._files

    def other_tensors(self, names: Iterable[str]) -> list[str]:
        """Return what the folder calls the tensors that are none of `names`."""
        theirs = set(map(self._their, names))
        return [name for name in self._files if name not in theirs]

    def _file(self, name: str) -> tuple[SafetensorsFile, str]:
        theirs = self._their(name)
        if theirs not in self._files:
            raise ModelError(f"{self._folder}: there is no tensor {theirs or name!r}")
        return self._files[theirs], theirs

    def _is_transposed(self, name: str) -> bool:
        """Return True for matrices that lie transposed there, as all of GPT-2's blocks."""
        return (
            self._name == "gpt2"
            and name.startswith("blk.")
            and name.endswith(".weight")
            and ("norm" not in name)
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        file, theirs = self._file(name)
        shape = file.entries[theirs].shape
        return shape[::-1] if self._is_transposed(name) else shape

    def have_same_format(self, *names: str) -> bool:
        """Return True where all these matrices are of one format."""
        return len({file.entries[theirs].kind for file, theirs in map(self._file, names)}) == 1

    def array(self, name: str) -> Array:
        """Return a tensor's numbers as float32."""
        file, theirs = self._file(name)
        content = file.read(theirs).astype(np.float32)
        content = np.ascontiguousarray(content.T) if self._is_transposed(name) else content
        norm = name.endswith("norm.weight") and self._name.startswith("gemma")
        return content + 1 if norm else content  # Gemma's norms multiply by 1 + w

    def packed(self, *names: str) -> Packed:
        """Return matrices one below the other, as one packed weight; they are of one format."""
        file, theirs = self._file(names[0])
        kind = file.entries[theirs].kind
        if kind not in FORMAT_OF:
            raise ModelError(
                f"{self._folder}: {theirs!r} is {kind}; weights must be {', '.join(FORMAT_OF)}"
            )
        format = GGML_FORMATS[FORMAT_OF[kind]]
        parts: list[NDArray[np.uint8]] = []
        for name in names:
            file, theirs = self._file(name)
            raw = file.raw(theirs)
            if self._is_transposed(name):
                n, k = self.shape(name)
                wide = raw.reshape(k, n, format.block_bytes).swapaxes(0, 1)
                raw = np.ascontiguousarray(wide)
            parts.append(raw.reshape(-1, format.block_bytes))
        n, k = sum(self.shape(name)[0] for name in names), self.shape(names[0])[1]
        return format, format.pack(JoinedBlocks(parts), n, k)


def folder_tokenizer(folder: Path, vocabulary: int) -> Tokenizer:
    """Return the tokenizer of `folder`. Raises ModelError where it has none that runs here."""
    inner = json_tokenizer(folder)
    if inner.get_vocab_size() > vocabulary:
        raise ModelError(
            f"{folder}: tokenizer.json has {inner.get_vocab_size()} tokens, the model {vocabulary}"
        )
    path = folder / "tokenizer_config.json"
    said = ModelEntries(path, optional_entries(path))
    names = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token", "eot_token"):
        token = said.any(key)
        token = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(token, str):
            names[key] = token

    def number(key: str) -> int | None:
        token_id = inner.token_to_id(names[key]) if key in names else None
        return None if token_id is None else int(token_id)

    ends = {one for key in ("eos_token", "eot_token") if (one := number(key)) is not None}
    config = _end_tokens(folder / "config.json", vocabulary)
    ends |= set(_end_tokens(folder / "generation_config.json", vocabulary) or config)
    if config:
        names.setdefault("eos_token", inner.id_to_token(config[0]) or "")
    begins = said.get("add_bos_token", bool, number("bos_token") in _first_tokens(inner))
    return Tokenizer(
        inner, number("bos_token"), frozenset(ends), begins, _template(folder, said), names
    )


def _end_tokens(path: Path, vocabulary: int) -> list[int]:
    """Return the tokens that end texts by the entry eos_token_id; none where it is not there."""
    found = ModelEntries(path, optional_entries(path)).any("eos_token_id")
    numbers = [] if found is None else found if isinstance(found, list) else [found]
    for one in numbers:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < vocabulary:
            raise ModelError(
                f"{path}: 'eos_token_id' must be from 0 to {vocabulary - 1}, got {shown(one)}"
            )
    return numbers


def _template(folder: Path, said: ModelEntries) -> str:
    """Return the template of chats; empty where there is none."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return _bytes(path).decode("utf-8", "replace")
    found = said.any("chat_template")
    if isinstance(found, list):  # several by their names
        named = {
            str(one.get("name")): one.get("template") for one in found if isinstance(one, Mapping)
        }
        found = named.get("default")
    return found if isinstance(found, str) else ""


def _first_tokens(inner: Any) -> list[int]:
    """Return the tokens that the tokenizer itself puts before a text."""
    return list(inner.encode("", add_special_tokens=True).ids)[:1]
