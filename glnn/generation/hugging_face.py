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
"""Transformers' defaults of entries that config.json leaves out; null is a value of its own."""
ACTIVATIONS = {"silu": ("silu", "swish"), "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new")}
"""The names in config.json of each activation of an architecture."""
ACTIVATION_ENTRIES = {
    "gemma2": "hidden_activation",
    "gemma3_text": "hidden_activation",
    "gpt2": "activation_function",
}
"""The entry that names the activation, where that is not hidden_act."""
SUPPORTED_VALUES: Mapping[str, tuple[bool | str, ...]] = {
    "use_bidirectional_attention": (False,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
"""The values that run here of entries that change what is computed, the default first."""
ORIGINAL_CONTEXT = "original_max_position_embeddings"
FORMAT_OF = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
BLOCK_TENSORS = {
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
"""Names of a block's tensors by GGUF's names; those below differ in some architectures."""
GEMMA_BLOCK = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PHI_BLOCK = {"ffn_up": "mlp.gate_up_proj"}
GPT2_BLOCK = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
MODEL_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""Names of the tensors outside of blocks, by GGUF's names."""
GPT2_MODEL = {
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
    """Return the entries of a JSON file. Raises ModelError where it is not one."""
    return parse_json(_bytes(path), str(path))


def optional_entries(path: Path) -> dict[str, Any]:
    """Return the entries of a JSON file; none where there is no such file."""
    return json_entries(path) if path.exists() else {}


def folder_config(folder: Path) -> Config:
    """Return the sizes of the model in `folder`.

    Raises ModelError where its architecture does not run here, or an entry is missing or invalid.
    """
    path = folder / "config.json"
    entries = ModelEntries(path, json_entries(path))
    kind = entries.get("model_type", str)
    entries = entries.with_defaults(DEFAULTS.get(kind, {}))
    if kind not in ARCHITECTURES:
        raise ModelError(
            f"{entries.path}: model_type {kind!r:.60} does not run here: those that do are "
            f"{', '.join(ARCHITECTURES)}"
        )
    name = ARCHITECTURES[kind]
    activations = ACTIVATIONS[architecture_named(name).activation]
    key = ACTIVATION_ENTRIES.get(kind, "hidden_act")
    _check_supported(entries, {**SUPPORTED_VALUES, key: activations})
    if kind == "gpt2":
        width, heads = entries.size("n_embd"), entries.size("n_head")
        return Config(
            name, entries.size("n_layer", most=MOST_LAYERS), width, heads, heads,
            max(width // heads, 1), entries.size("vocab_size", most=MOST_VOCABULARY),
            entries.size("n_positions", most=MOST_CONTEXT),
            entries.at_least(0, "layer_norm_epsilon", 1e-5),
            tied=entries.optional("tie_word_embeddings", bool),
        )  # fmt: skip
    width, heads = entries.size("hidden_size"), entries.size("num_attention_heads")
    layers = entries.size("num_hidden_layers", most=MOST_LAYERS)
    head_width = entries.size("head_dim", max(width // heads, 1))
    windowed = kind in ("gemma2", "gemma3_text", "phi3", "mistral")
    if kind.startswith("qwen"):
        windowed = entries.get("use_sliding_window", bool, False)
    rotary = entries.part("rope_parameters") or entries.part("rope_scaling")
    key = "partial_rotary_factor"
    rotary_share = rotary.above(0, key, entries.above(0, key, 1.0))
    local = None
    if kind == "gemma3_text":
        base = entries.above(1, "rope_local_base_freq", GEMMA3_LOCAL_BASE)
        local = _rope(entries, rotary.part("sliding_attention"), base)
        rotary = rotary.part("full_attention") or rotary
    return Config(
        architecture=name,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=entries.size("num_key_value_heads", heads),
        head_width=head_width,
        vocabulary=entries.size("vocab_size", most=MOST_VOCABULARY),
        context=entries.size("max_position_embeddings", most=MOST_CONTEXT),
        eps=entries.at_least(0, "rms_norm_eps", 1e-6),
        rope=_rope(entries, rotary, entries.above(1, "rope_theta", 10000.0)),
        rotary_width=max(int(head_width * rotary_share), 1),  # 0 would be all
        local_rope=local,
        window=entries.size("sliding_window", 0, MOST_CONTEXT, least=0) if windowed else 0,
        global_layers=_global_layers(entries, kind, layers) if windowed else frozenset(),
        scale=1 / math.sqrt(entries.above(0, "query_pre_attn_scalar", head_width)),
        attention_cap=entries.at_least(0, "attn_logit_softcapping", 0.0),
        logits_cap=entries.at_least(0, "final_logit_softcapping", 0.0),
        tied=entries.optional("tie_word_embeddings", bool),
        order=HALVES,
    )


def _check_supported(entries: ModelEntries, allowed: Mapping[str, tuple[bool | str, ...]]) -> None:
    """Raise ModelError where an entry has a value that does not run here.

    allowed: see SUPPORTED_VALUES. Entries that transformers does not read either are ignored.
    """
    for key, values in allowed.items():
        value = entries.get(key, type(values[0]), values[0])
        if value not in values:
            raise ModelError(
                f"{entries.path}: {key!r} {shown(value)} does not run here: "
                f"{' and '.join(map(repr, values))} {'do' if len(values) > 1 else 'does'}"
            )
    if entries.get("quantization_config", dict, {}):
        raise ModelError(
            f"{entries.path}: 'quantization_config' does not run here: weights of folders are F32, "
            "F16 or BF16, those of GGUF files may be quantized"
        )


def _global_layers(entries: ModelEntries, kind: str, layers: int) -> frozenset[int]:
    """Return the layers without a window."""
    types, known = entries.get("layer_types", list, []), ("full_attention", "sliding_attention")
    if types:
        if len(types) != layers or not all(type in known for type in types):
            raise ModelError(
                f"{entries.path}: 'layer_types' must be {layers} of {' and '.join(known)}, got "
                f"{shown(types)}"
            )
        return frozenset(i for i, type in enumerate(types) if type == known[0])
    if kind.startswith("qwen"):
        first = entries.size("max_window_layers", 28, MOST_LAYERS, least=0)
        return frozenset(range(min(first, layers)))
    pattern = entries.size("sliding_window_pattern", 6, MOST_LAYERS)
    n = {"gemma2": 2, "gemma3_text": pattern}.get(kind)
    return every_nth(n, layers) if n else frozenset()


def _rope(entries: ModelEntries, rotary: ModelEntries, base: float) -> Rope:
    """Return the angles that `rotary`, a part of `entries`, describes. base: its default."""
    base = rotary.above(1, "rope_theta", base)
    kind = rotary.get("rope_type", str, rotary.get("type", str, "default"))
    if kind in ("su", "yarn") and rotary.optional("long_factor", list):
        kind = "longrope"  # Phi-3's first files called it so
    if kind not in ("default", "linear", "llama3", "yarn", "longrope"):
        raise ModelError(
            f"{entries.path}: rope type {kind!r:.60} does not run here: default, linear, llama3, "
            "yarn and longrope do"
        )
    if kind == "default":
        return Rope(base)
    context, key = entries.size("max_position_embeddings", most=MOST_CONTEXT), ORIGINAL_CONTEXT
    original = entries.size(key, rotary.size(key, context, MOST_CONTEXT), MOST_CONTEXT)
    default_factor = context / original if kind in ("yarn", "longrope") else None
    factor = rotary.above(0, "factor", default_factor)
    if kind == "longrope":
        magnitude = rotary.above(0, "attention_factor", longrope_magnitude(factor, original))
        short, long = rotary.numbers("short_factor"), rotary.numbers("long_factor")
        return Rope(
            base, kind, original_context=original, magnitude=magnitude, short=short, long=long
        )
    low = rotary.above(0, "low_freq_factor", 1.0)
    return Rope(
        base,
        kind,
        factor,
        original,
        low,
        rotary.above(low, "high_freq_factor", 4.0) if kind == "llama3" else 4.0,
        rotary.above(0, "beta_fast", 32.0),
        rotary.above(0, "beta_slow", 1.0),
        _yarn_magnitude(rotary, factor) if kind == "yarn" else 1.0,
        rotary.get("truncate", bool, True),
    )


def _yarn_magnitude(rotary: ModelEntries, factor: float) -> float:
    """Return YaRN's `Rope.magnitude`: attention_factor, by default computed from other factors."""
    mscale, mscale_all = rotary.get("mscale", float, 0.0), rotary.get("mscale_all_dim", float, 0.0)
    default = yarn_magnitude(factor)
    if mscale and mscale_all:
        default = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all)
    return rotary.above(0, "attention_factor", default)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights that transformers reads, or else all files of safetensors.

    Raises ModelError where there is none, or the index names a file outside of `folder`.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        if not (files := sorted(folder.glob("*.safetensors"))):
            raise ModelError(f"{folder}: there is no file of safetensors")
        return files
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
            self._layers, self._block, self._model = "h", GPT2_BLOCK, GPT2_MODEL
        else:
            blocks = {"gemma2": GEMMA_BLOCK, "gemma3": GEMMA_BLOCK, "phi3": PHI_BLOCK}
            self._layers, self._model = "model.layers", MODEL_TENSORS
            self._block = {**BLOCK_TENSORS, **blocks.get(self._name, {})}
        files = map(SafetensorsFile, weight_files(folder))
        self._files = {name: file for file in files for name in file.entries}
        if config.tied:
            self._drop_tied_output()

    def _drop_tied_output(self) -> None:
        """Remove the matrix of logits where the files have it, too: it is that of the embeddings.

        Raises ModelError where the two differ.
        """
        if "output.weight" in self:
            output_file, output = self._file("output.weight")
            table_file, table = self._file("token_embd.weight")
            if not np.array_equal(output_file.raw(output), table_file.raw(table)):
                raise ModelError(
                    f"{self._folder}: 'tie_word_embeddings' is true in config.json, but {output!r} "
                    f"is not {table!r}: it must be left out, or the entry must be false"
                )
            del self._files[output]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(
            file.entries[name].end - file.entries[name].start for name, file in self._files.items()
        )

    def _stored_name(self, name: str) -> str:
        """Return the name of a tensor in the files; empty where it has none."""
        if name.startswith("blk."):
            _, layer, part, kind = name.split(".")
            if part not in self._block:
                return ""
            stored = f"{self._layers}.{layer}.{self._block[part]}.{kind}"
        else:
            part, kind = name.rsplit(".", 1)
            module = self._model.get(part)
            stored = f"{module}.{kind}" if module else ""
        prefixed = f"transformer.{stored}"
        return prefixed if self._name == "gpt2" and prefixed in self._files else stored

    def __contains__(self, name: str) -> bool:
        return self._stored_name(name) in self._files

    def other_tensors(self, names: Iterable[str]) -> list[str]:
        """Return the names in the folder of the tensors that are not in `names`."""
        stored = set(map(self._stored_name, names))
        return [name for name in self._files if name not in stored]

    def _file(self, name: str) -> tuple[SafetensorsFile, str]:
        stored = self._stored_name(name)
        if stored not in self._files:
            raise ModelError(f"{self._folder}: there is no tensor {stored or name!r}")
        return self._files[stored], stored

    def _is_transposed(self, name: str) -> bool:
        """Return True for a matrix that the files have transposed, as all of GPT-2's blocks."""
        return (
            self._name == "gpt2"
            and name.startswith("blk.")
            and name.endswith(".weight")
            and ("norm" not in name)
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        file, stored = self._file(name)
        shape = file.entries[stored].shape
        return shape[::-1] if self._is_transposed(name) else shape

    def have_same_format(self, *names: str) -> bool:
        """Return True where all these matrices are of one format."""
        return len({file.entries[stored].kind for file, stored in map(self._file, names)}) == 1

    def array(self, name: str) -> Array:
        """Return a tensor as float32."""
        file, stored = self._file(name)
        content = file.read(stored).astype(np.float32)
        content = np.ascontiguousarray(content.T) if self._is_transposed(name) else content
        is_gemma_norm = name.endswith("norm.weight") and self._name.startswith("gemma")
        return content + 1 if is_gemma_norm else content  # Gemma's norms multiply by 1 + w

    def packed(self, *names: str) -> Packed:
        """Return matrices of one format, stacked by rows, as one packed weight."""
        file, stored = self._file(names[0])
        kind = file.entries[stored].kind
        if kind not in FORMAT_OF:
            raise ModelError(
                f"{self._folder}: {stored!r} is {kind}; weights must be {', '.join(FORMAT_OF)}"
            )
        format = GGML_FORMATS[FORMAT_OF[kind]]
        parts: list[NDArray[np.uint8]] = []
        for name in names:
            file, stored = self._file(name)
            raw = file.raw(stored)
            if self._is_transposed(name):
                n, k = self.shape(name)
                raw = np.ascontiguousarray(raw.reshape(k, n, format.block_bytes).swapaxes(0, 1))
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
    entries = ModelEntries(path, optional_entries(path))
    names = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token", "eot_token"):
        token = entries.any(key)
        token = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(token, str):
            names[key] = token

    def token_id(key: str) -> int | None:
        number = inner.token_to_id(names[key]) if key in names else None
        return None if number is None else int(number)

    ends = {i for key in ("eos_token", "eot_token") if (i := token_id(key)) is not None}
    config_ends = _end_tokens(folder / "config.json", vocabulary)
    ends |= set(_end_tokens(folder / "generation_config.json", vocabulary) or config_ends)
    if config_ends:
        names.setdefault("eos_token", inner.id_to_token(config_ends[0]) or "")
    bos = token_id("bos_token")
    adds_bos = entries.get("add_bos_token", bool, bos in _first_tokens(inner))
    return Tokenizer(inner, bos, frozenset(ends), adds_bos, _template(folder, entries), names)


def _end_tokens(path: Path, vocabulary: int) -> list[int]:
    """Return the tokens that end texts by the entry eos_token_id; none where it is missing."""
    value = ModelEntries(path, optional_entries(path)).any("eos_token_id")
    tokens = [] if value is None else value if isinstance(value, list) else [value]
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise ModelError(
                f"{path}: 'eos_token_id' must be from 0 to {vocabulary - 1}, got {shown(token)}"
            )
    return tokens


def _template(folder: Path, entries: ModelEntries) -> str:
    """Return the chat template; empty where there is none."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return _bytes(path).decode("utf-8", "replace")
    template = entries.any("chat_template")
    if isinstance(template, list):  # several, with names
        named = {str(e.get("name")): e.get("template") for e in template if isinstance(e, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else ""


def _first_tokens(inner: Any) -> list[int]:
    """Return the first token that the tokenizer itself puts before a text, if it does."""
    return list(inner.encode("", add_special_tokens=True).ids)[:1]
