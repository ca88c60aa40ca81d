"""Whisper models in folders of CTranslate2, Hugging Face or Optimum: sizes, weights, tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from glnn.core.fileio import check_file
from glnn.core.types import Array
from glnn.errors import ModelError, shown
from glnn.generation.architectures import Config, Packed
from glnn.generation.hugging_face import (
    FORMAT_OF,
    json_entries,
    optional_entries,
    weight_files,
)
from glnn.generation.settings import MOST_CONTEXT, MOST_LAYERS, MOST_VOCABULARY, ModelEntries
from glnn.generation.speech.ctranslate2 import CTranslate2File
from glnn.generation.speech.log_mel import BINS, HOP, RATE, WINDOW
from glnn.generation.speech.onnx_weights import (
    DECODER_FILES,
    ENCODER_FILE,
    OnnxWeights,
    find_onnx_files,
)
from glnn.generation.tokenizer import Tokenizer, json_tokenizer
from glnn.graph.operators.rotary import MOST_WIDTH
from glnn.graph.quantization import (
    GGML_FORMATS,
    Blocks,
    Bytes,
    IntegerBlocks,
    JoinedBlocks,
    integer_format,
)
from glnn.model.weight_files import SafetensorsFile, TensorEntry

ENCODER, DECODER = "encoder", "decoder"
EPS = 1e-5  # of whisper's norms
GELU = 3  # in CTranslate2's files
SCALED = ("I8", "I16")
"""CTranslate2's quantized types. I8 has a scale for each row, I16 one for the tensor."""
MULTILINGUAL = 51865  # tokens of multilingual models; those of English have fewer
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
TASKS = ("transcribe", "translate")


@dataclass(frozen=True)
class Naming:
    """The names of tensors in one kind of files.

    block_prefix: of a block's tensors. block_tensors: names within a block, by the names here.
    model_tensors: names outside of blocks. norm_suffixes: the last part of the names of a norm's
    weight and bias.
    """

    block_prefix: str
    block_tensors: Mapping[str, str]
    model_tensors: Mapping[str, str]
    norm_suffixes: Mapping[str, str]

    def stored_name(self, half: str, name: str) -> str:
        """Return the name in the file of the tensor `name` of a half; empty where it has none."""
        prefix, layer = "", ""
        if name.startswith("blk."):
            _, layer, part, kind = name.split(".")
            prefix = self.block_prefix.format(half=half, layer=layer)
            part = self.block_tensors.get(part, "")
        else:
            part, _, kind = name.rpartition(".")
            part = self.model_tensors.get(part, "").format(half=half)
        if not part:
            return ""
        suffix = self.norm_suffixes.get(kind, kind) if "norm" in name else kind
        separator = "/" if "/" in self.block_prefix else "."
        return prefix + (part if part.endswith("encodings") else f"{part}{separator}{suffix}")


HUGGING_FACE = Naming(
    "model.{half}.layers.{layer}.",
    {
        "attn_norm": "self_attn_layer_norm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.out_proj",
        "cross_norm": "encoder_attn_layer_norm",
        "cross_q": "encoder_attn.q_proj",
        "cross_k": "encoder_attn.k_proj",
        "cross_v": "encoder_attn.v_proj",
        "cross_output": "encoder_attn.out_proj",
        "ffn_norm": "final_layer_norm",
        "ffn_up": "fc1",
        "ffn_down": "fc2",
    },
    {
        "conv1": "model.{half}.conv1",
        "conv2": "model.{half}.conv2",
        "position_embd": "model.{half}.embed_positions",
        "token_embd": "model.{half}.embed_tokens",
        "output_norm": "model.{half}.layer_norm",
        "output": "proj_out",
    },
    {},
)
CTRANSLATE2 = Naming(
    "{half}/layer_{layer}/",
    {
        "attn_norm": "self_attention/layer_norm",
        "attn_qkv": "self_attention/linear_0",
        "attn_output": "self_attention/linear_1",
        "cross_norm": "attention/layer_norm",
        "cross_q": "attention/linear_0",
        "cross_kv": "attention/linear_1",
        "cross_output": "attention/linear_2",
        "ffn_norm": "ffn/layer_norm",
        "ffn_up": "ffn/linear_0",
        "ffn_down": "ffn/linear_1",
    },
    {
        "conv1": "{half}/conv1",
        "conv2": "{half}/conv2",
        "position_embd": "{half}/position_encodings/encodings",
        "token_embd": "{half}/embeddings",
        "output_norm": "{half}/layer_norm",
        "output": "{half}/projection",
    },
    {"weight": "gamma", "bias": "beta"},
)


@dataclass(frozen=True)
class WhisperConfig:
    """Sizes of a model.

    bins: mel bands of its features. encoder, decoder: the sizes of each half. The context of the
    encoder is in frames, each of two frames of features; that of the decoder in tokens.
    """

    bins: int
    encoder: Config
    decoder: Config

    @property
    def frames(self) -> int:
        """Frames of the encoder's results, for one window of a recording."""
        return self.encoder.context


class StoredTensors(Protocol):
    """Tensors of a file by the names in it; see `glnn.model.weight_files.TensorFile`."""

    path: Path
    entries: dict[str, TensorEntry]

    def read(self, name: str) -> Array:
        """Return a tensor, bfloat16 as float32."""
        ...

    def raw(self, name: str) -> Bytes:
        """Return the bytes of a tensor's numbers."""
        ...


class HalfWeights:
    """The weights of the encoder or the decoder; see `architectures.WeightSource`.

    Names are GGUF's of a language model; those of the cross-attention are `blk.N.cross_...`.
    """

    def __init__(self, files: Mapping[str, StoredTensors], naming: Naming, half: str) -> None:
        """files: the file of each tensor, by the tensor's name in it. half: ENCODER or DECODER."""
        self._files, self._naming, self._half = files, naming, half

    def __contains__(self, name: str) -> bool:
        return self.stored_name(name) in self._files

    def stored_name(self, name: str) -> str:
        """Return the name of a tensor in the file; empty where it has none."""
        return self._naming.stored_name(self._half, name)

    def _file(self, name: str) -> tuple[StoredTensors, str]:
        stored = self.stored_name(name)
        if stored not in self._files:
            where = next(iter(self._files.values())).path if self._files else "the model"
            raise ModelError(f"{where}: there is no tensor {stored or name!r}")
        return self._files[stored], stored

    def kind(self, name: str) -> str:
        """Return the type of a tensor's numbers."""
        file, stored = self._file(name)
        return file.entries[stored].kind

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        file, stored = self._file(name)
        return file.entries[stored].shape

    def have_same_format(self, *names: str) -> bool:
        """Return True where all these matrices are of one format."""
        return len(set(map(self.kind, names))) == 1

    def scale_name(self, name: str) -> str:
        """Return the name in the file of the scales of a tensor whose type is in SCALED."""
        return f"{self.stored_name(name)}_scale"

    def scales(self, name: str) -> Array:
        """Return the factor of each row of a tensor whose type is in SCALED, (rows,) float32."""
        stored = self.scale_name(name)
        with np.errstate(divide="ignore"):  # a scale of 0 makes logits infinite, which raises later
            factors = 1 / self._files[stored].read(stored)
        return np.broadcast_to(factors, self.shape(name)[:1])

    def array(self, name: str) -> Array:
        """Return a tensor as float32."""
        file, stored = self._file(name)
        numbers = file.read(stored).astype(np.float32)
        if self.kind(name) in SCALED:
            with np.errstate(invalid="ignore", over="ignore"):
                numbers *= self.scales(name).reshape(-1, *[1] * (numbers.ndim - 1))
        return numbers

    def packed(self, *names: str) -> Packed:
        """Return matrices of one format, stacked by rows, as one packed weight."""
        kind = self.kind(names[0])
        n, k = sum(self.shape(name)[0] for name in names), self.shape(names[0])[1]
        format = GGML_FORMATS[FORMAT_OF.get(kind, "f32")]
        if kind == "I8":
            format = integer_format(8, k, np.dtype(np.float32), n, k, zeros=False) or format
        parts: list[Blocks | Bytes] = []
        for name in names:
            file, stored = self._file(name)
            if kind == "I8":
                scales = self.scales(name)[:, None]
                parts.append(IntegerBlocks(format, file.read(stored), 128, k, scales))
            else:
                raw = self.array(name).view(np.uint8) if kind in SCALED else file.raw(stored)
                parts.append(raw.reshape(-1, format.block_bytes))
        return format, format.pack(JoinedBlocks(parts), n, k)


@dataclass(frozen=True)
class SpecialTokens:
    """Numbers of the control tokens, and of the tokens that are never chosen.

    end: ends a text. start: precedes language and task in a prompt. previous: precedes the text of
    earlier windows. no_speech: likely where nobody speaks; None where the model has no such token.
    timestamps: the first one, of 0 s, and one past the last. languages: by their codes; empty for a
    model of English alone. suppressed: never chosen. suppressed_first: not as a window's first.
    """

    end: int
    start: int
    previous: int
    no_speech: int | None
    no_timestamps: int
    timestamps: tuple[int, int]
    tasks: Mapping[str, int]
    languages: Mapping[str, int]
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]


@dataclass(frozen=True)
class WhisperFiles:
    """A model's folder, whose tensors were checked against its sizes."""

    config: WhisperConfig
    encoder: HalfWeights
    decoder: HalfWeights
    tokenizer: Tokenizer
    special: SpecialTokens
    alignment_heads: tuple[tuple[int, int], ...]
    """The decoder's heads, as (layer, head), whose attention aligns tokens with frames."""
    nbytes: int
    """Bytes of all tensors on a device, on which the encoder's are float32."""


def open_whisper(path: Path) -> WhisperFiles:
    """Open the model in a folder. path: the folder, or the model.bin in it.

    Raises ModelError where it is no model, is damaged, or does not run here.
    """
    folder = path if path.is_dir() else path.parent
    if not path.is_dir():
        check_file(path)
        if path.suffix == ".onnx":
            raise ModelError(
                f"{path}: an ONNX file alone has no tokenizer and no settings: expected a folder "
                f"of {ENCODER_FILE}, {' or '.join(DECODER_FILES)}, config.json and tokenizer.json"
            )
    binary = folder / "model.bin"
    if path not in (folder, binary) or not (binary.exists() or (folder / "config.json").exists()):
        raise ModelError(
            f"{path}: expected the folder of a whisper model, with a model.bin of CTranslate2 or "
            "Hugging Face's config.json, or such a model.bin"
        )
    if binary.exists() and (path == binary or not (folder / "model.safetensors").exists()):
        files, config = _binary_config(binary)
        naming = CTRANSLATE2
    else:
        config = _folder_config(folder)
        files = {name: file for file in _open_folder(folder) for name in file.entries}
        naming = HUGGING_FACE
    encoder, decoder = (HalfWeights(files, naming, half) for half in (ENCODER, DECODER))
    _check_tensors(folder, config, files, encoder, decoder)
    inner = json_tokenizer(folder)
    special = _special_tokens(folder, inner, config.decoder.vocabulary)
    tokenizer = Tokenizer(inner, None, frozenset({special.end}), False, "")
    nbytes = 0
    for name, file in files.items():
        entry = file.entries[name]
        is_float32 = name.startswith((f"{ENCODER}/", f"model.{ENCODER}.")) or entry.kind == "I16"
        nbytes += 4 * prod(entry.shape) if is_float32 else entry.end - entry.start
    heads = _alignment_heads(folder, config.decoder)
    return WhisperFiles(config, encoder, decoder, tokenizer, special, heads, nbytes)


def _open_folder(folder: Path) -> Sequence[StoredTensors]:
    """Open the files of weights in a folder: safetensors where there are any, else ONNX files."""
    onnx = None if any(folder.glob("*.safetensors")) else find_onnx_files(folder)
    if onnx is None:
        return [SafetensorsFile(path) for path in weight_files(folder)]
    return [OnnxWeights(path, half) for path, half in zip(onnx, (ENCODER, DECODER))]


def _binary_config(path: Path) -> tuple[dict[str, StoredTensors], WhisperConfig]:
    """Return the file of each tensor of a CTranslate2 model, by its name, and the model's sizes."""
    file = CTranslate2File(path)
    if file.kind != "WhisperSpec":
        raise ModelError(
            f"{path}: a model of kind {file.kind!r:.60} does not run here: WhisperSpec does"
        )
    files: dict[str, StoredTensors] = dict.fromkeys(file.entries, file)

    def shape(name: str, rank: int) -> tuple[int, ...]:
        sizes = file.entries[name].shape if name in file.entries else ()
        if len(sizes) != rank:
            raise ModelError(f"{path}: {name!r} must have {rank} dimensions, got {sizes}")
        return sizes

    def pop_scalar(name: str) -> int:
        if (
            name not in file.entries
            or file.entries[name].shape
            or file.entries[name].kind[0] != "I"
        ):
            raise ModelError(f"{path}: {name!r} must be a whole number")
        del files[name]
        return int(file.read(name))

    supported = {  # scale_alibi and alibi_use_positive_positions: in newer files only
        "activation": GELU, "pre_norm": 1, "scale_embeddings": 0, "alibi": 0, "scale_alibi": 0,
        "alibi_use_positive_positions": 0, "start_from_zero_embedding": 0,
    }  # fmt: skip
    for key, value in supported.items():
        name = f"{DECODER}/{key}"
        if name in file.entries and (got := pop_scalar(name)) != value:
            raise ModelError(f"{path}: {name!r} {got} does not run here: {value} does")
    for name in ("decoder/alignment_heads", "decoder/alignment_layer"):
        files.pop(name, None)  # read from the JSON files instead, see `_alignment_heads`
    width, bins, _ = shape("encoder/conv1/weight", 3)
    vocabulary, _ = shape("decoder/embeddings/weight", 2)
    halves = []
    for half in (ENCODER, DECODER):
        context, _ = shape(f"{half}/position_encodings/encodings", 2)
        layers = 0
        while f"{half}/layer_{layers}/ffn/linear_0/weight" in file.entries:
            layers += 1
        heads = pop_scalar(f"{half}/num_heads")
        halves.append(_half_config(path, layers, width, heads, vocabulary, context))
    return files, WhisperConfig(_bins(path, bins), *halves)


def _folder_config(folder: Path) -> WhisperConfig:
    """Return the sizes of a Hugging Face model."""
    path = folder / "config.json"
    entries = ModelEntries(path, json_entries(path))
    if (kind := entries.get("model_type", str)) != "whisper":
        raise ModelError(f"{path}: model_type {kind!r:.60} is no speech to text: whisper is")
    if (activation := entries.get("activation_function", str, "gelu")) != "gelu":
        raise ModelError(
            f"{path}: 'activation_function' {activation!r:.60} does not run here: 'gelu' does"
        )
    if entries.get("scale_embedding", bool, False):
        raise ModelError(f"{path}: 'scale_embedding' True does not run here: False does")
    width, vocabulary = entries.size("d_model"), entries.size("vocab_size", most=MOST_VOCABULARY)
    halves = [
        _half_config(
            path,
            entries.size(f"{half}_layers", most=MOST_LAYERS),
            width,
            entries.size(f"{half}_attention_heads"),
            vocabulary,
            entries.size(context, most=MOST_CONTEXT),
        )
        for half, context in (
            (ENCODER, "max_source_positions"),
            (DECODER, "max_target_positions"),
        )
    ]
    return WhisperConfig(_bins(path, entries.size("num_mel_bins", 80)), *halves)


def _bins(path: Path, bins: int) -> int:
    """Return `bins`. Raises ModelError where the features are not those of `log_mel`.

    path: a file of the model's folder.
    """
    if bins not in BINS:
        raise ModelError(
            f"{path}: features must have {' or '.join(map(str, BINS))} bins, got {bins}"
        )
    settings_path = path.parent / "preprocessor_config.json"
    entries = ModelEntries(settings_path, optional_entries(settings_path))
    supported = {"feature_size": bins, "sampling_rate": RATE, "hop_length": HOP, "n_fft": WINDOW}
    for key, number in supported.items():
        if (got := entries.get(key, int, number)) != number:
            raise ModelError(f"{settings_path}: {key!r} {got} does not run here: {number} does")
    return bins


def _half_config(
    path: Path, layers: int, width: int, heads: int, vocabulary: int, context: int
) -> Config:
    if not 1 <= layers <= MOST_LAYERS or not 1 <= context <= MOST_CONTEXT:
        raise ModelError(
            f"{path}: a model must have 1 to {MOST_LAYERS} layers and up to {MOST_CONTEXT} places, "
            f"got {layers} and {context}"
        )
    if heads < 1 or width % heads or width // heads > MOST_WIDTH:
        raise ModelError(
            f"{path}: heads must divide the width and have up to {MOST_WIDTH} numbers, got {heads} "
            f"of {width}"
        )
    return Config("whisper", layers, width, heads, heads, width // heads, vocabulary, context, EPS)


def _check_tensors(
    folder: Path,
    config: WhisperConfig,
    files: Mapping[str, StoredTensors],
    encoder: HalfWeights,
    decoder: HalfWeights,
) -> None:
    """Raise ModelError unless the tensors have the shapes of `config`. Reads no tensor's data."""
    width, expected = config.encoder.width, set[str]()
    half_shapes: Mapping[str, Mapping[str, tuple[int, ...]]] = {
        ENCODER: {
            "conv1.weight": (width, config.bins, 3),
            "conv2.weight": (width, width, 3),
            "conv1.bias": (width,),
            "conv2.bias": (width,),
        },
        DECODER: {
            "token_embd.weight": (config.decoder.vocabulary, width),
            "output.weight": (config.decoder.vocabulary, width),
        },
    }
    for half, weights, sizes in (
        (ENCODER, encoder, config.encoder),
        (DECODER, decoder, config.decoder),
    ):
        shapes = {
            **half_shapes[half],
            "position_embd.weight": (sizes.context, width),
            "output_norm.weight": (width,),
            "output_norm.bias": (width,),
        }
        for layer in range(sizes.layers):
            block = _block_shapes(weights, layer, width, half == DECODER)
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
        for name, shape in shapes.items():
            if name not in weights and (name == "output.weight" or name.endswith(".bias")):
                continue
            if (got := weights.shape(name)) != shape:
                raise ModelError(
                    f"{folder}: {weights.stored_name(name)!r} must be {shape}, got {got}"
                )
            if (kind := weights.kind(name)) in SCALED:
                _check_scales(folder, files, weights, name)
                expected.add(weights.scale_name(name))
            elif kind not in FORMAT_OF:
                raise ModelError(
                    f"{folder}: {weights.stored_name(name)!r} is {kind}; weights must be "
                    f"{', '.join((*FORMAT_OF, *SCALED))}"
                )
            expected.add(weights.stored_name(name))
    if unread := [name for name in files if name not in expected]:
        count = f" and {len(unread) - 1} others" if len(unread) > 1 else ""
        raise ModelError(
            f"{folder}: there are tensors that whisper has no place for: {unread[0]!r:.60}{count}"
        )


def _check_scales(
    folder: Path, files: Mapping[str, StoredTensors], weights: HalfWeights, name: str
) -> None:
    """Raise ModelError unless a tensor whose type is in SCALED has scales of the right shape."""
    kind, scale = weights.kind(name), weights.scale_name(name)
    shape = weights.shape(name)[:1] if kind == "I8" else ()
    entry = files[scale].entries[scale] if scale in files else None
    if entry is None or (entry.kind, entry.shape) != ("F32", shape):
        got = "none" if entry is None else f"{entry.kind} {entry.shape}"
        raise ModelError(
            f"{folder}: {weights.stored_name(name)!r} is {kind}, so that there must be {scale!r}, "
            f"F32 {shape}, got {got}"
        )


def _block_shapes(
    weights: HalfWeights, layer: int, width: int, has_cross: bool
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a block's tensors. has_cross: True for a block with cross-attention."""
    up = f"blk.{layer}.ffn_up.weight"
    hidden = (*weights.shape(up), 0)[0]
    rows = {"attn_output": width, "ffn_up": hidden}
    rows |= _projection_rows(weights, layer, "attn", "qkv", width)
    norms = ["attn_norm", "ffn_norm"]
    if has_cross:
        rows |= {"cross_q": width, "cross_output": width}
        rows |= _projection_rows(weights, layer, "cross", "kv", width)
        norms.append("cross_norm")
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (n, width) for name, n in rows.items()}
    shapes |= {f"{name}.bias": (n,) for name, n in rows.items()}
    shapes |= {"ffn_down.weight": (width, hidden), "ffn_down.bias": (width,)}
    shapes |= {f"{name}.{kind}": (width,) for name in norms for kind in ("weight", "bias")}
    return shapes


def _projection_rows(
    weights: HalfWeights, layer: int, kind: str, parts: str, width: int
) -> dict[str, int]:
    """Return the rows of projection matrices, which some files have stacked as one."""
    if f"blk.{layer}.{kind}_{parts}.weight" in weights:
        return {f"{kind}_{parts}": len(parts) * width}
    return {f"{kind}_{part}": width for part in parts}


def _special_tokens(folder: Path, inner: Any, vocabulary: int) -> SpecialTokens:
    """Return the tokens that the folder's tokenizer and settings name."""
    path = folder / "tokenizer.json"

    def optional_token(*names: str) -> int | None:
        ids = (inner.token_to_id(name) for name in names)
        return next((int(i) for i in ids if i is not None and i < vocabulary), None)

    def token(name: str) -> int:
        number = optional_token(name)
        if number is None:
            raise ModelError(f"{path}: it has no token {name!r} below {vocabulary}")
        return number

    end, start = token("<|endoftext|>"), token("<|startoftranscript|>")
    tasks = {task: token(f"<|{task}|>") for task in TASKS}
    previous, no_timestamps = token("<|startofprev|>"), token("<|notimestamps|>")
    first = no_timestamps + 1
    others = (start, previous, *tasks.values(), no_timestamps)
    if not end < min(others) or not max(others) < first < vocabulary:
        raise ModelError(
            f"{path}: '<|endoftext|>' must be behind all tokens of text, and timestamps behind all "
            f"others, got {end}, and {first} of {vocabulary} tokens"
        )
    settings = _settings(folder)
    no_speech = optional_token("<|nospeech|>", "<|nocaptions|>")
    control = {start, previous, *tasks.values(), no_speech, optional_token("<|startoflm|>")}
    suppressed = _token_list(settings, ("suppress_tokens", "suppress_ids"), vocabulary)
    first_keys = ("begin_suppress_tokens", "suppress_ids_begin")
    languages = {}
    if _is_multilingual(settings, vocabulary):
        added = inner.get_added_tokens_decoder()
        matches = ((LANGUAGE.fullmatch(entry.content), i) for i, entry in added.items())
        languages = {match[1]: int(i) for match, i in matches if match and i < first}
    return SpecialTokens(
        end=end,
        start=start,
        previous=previous,
        no_speech=no_speech,
        no_timestamps=no_timestamps,
        timestamps=(first, vocabulary),
        tasks=tasks,
        languages=languages,
        suppressed=tuple(sorted({*suppressed, *(i for i in control if i is not None)} - {end})),
        suppressed_first=_token_list(settings, first_keys, vocabulary),
    )


def _settings(folder: Path) -> list[ModelEntries]:
    """Return the files that have settings of generation; the first one takes precedence."""
    names = ("generation_config.json", "config.json")
    return [ModelEntries(folder / name, optional_entries(folder / name)) for name in names]


def _alignment_heads(folder: Path, config: Config) -> tuple[tuple[int, int], ...]:
    """Return the alignment heads in the settings, else all heads of the last half of layers."""
    for entries in _settings(folder):
        pairs = entries.optional("alignment_heads", list)
        for pair in pairs or ():
            bounds = zip(pair, (config.layers, config.heads)) if _is_pair(pair) else ()
            if not _is_pair(pair) or not all(0 <= i < bound for i, bound in bounds):
                raise ModelError(
                    f"{entries.path}: 'alignment_heads' must be pairs of a layer below "
                    f"{config.layers} and a head below {config.heads}, got {shown(pair)}"
                )
        if pairs:
            return tuple((layer, head) for layer, head in pairs)
    layers = range(config.layers // 2, config.layers)
    return tuple((layer, head) for layer in layers for head in range(config.heads))


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(i) is int for i in value)


def _is_multilingual(settings: Sequence[ModelEntries], vocabulary: int) -> bool:
    """Return True for a multilingual model, by its settings or else its number of tokens."""
    for entries in settings:
        if (flag := entries.optional("is_multilingual", bool)) is not None:
            return bool(flag)
    return vocabulary >= MULTILINGUAL


def _token_list(
    settings: Iterable[ModelEntries], keys: Sequence[str], vocabulary: int
) -> tuple[int, ...]:
    """Return the tokens listed in the first entry with one of `keys`; empty where there is none."""
    for entries in settings:
        for key in keys:
            tokens = entries.optional(key, list)
            if tokens is None:
                continue
            for i in tokens:
                if type(i) is not int or not 0 <= i < vocabulary:
                    raise ModelError(
                        f"{entries.path}: {key!r} must be from 0 to {vocabulary - 1}, got "
                        f"{shown(i)}"
                    )
            return tuple(tokens)
    return ()
