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
GELU = 3  # CTranslate2's number of it
SCALED = ("I8", "I16")
"""Types of CTranslate2's numbers that are divided by a scale: of each row, or of a whole tensor."""
MULTILINGUAL = 51865  # tokens of the smallest model of several languages
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
TASKS = ("transcribe", "translate")


@dataclass(frozen=True)
class Naming:
    """The names that files of one kind have for tensors.

    block: what those of a block begin with. parts: of a block, by their names here. whole: the
    other tensors. kinds: the last part of the name of a norm's weight and bias.
    """

    block: str
    parts: Mapping[str, str]
    whole: Mapping[str, str]
    kinds: Mapping[str, str]

    def stored_name(self, half: str, name: str) -> str:
        """Return the name in the file of the tensor `name` of a half; empty where it has none."""
        prefix, layer = "", ""
        if name.startswith("blk."):
            _, layer, part, kind = name.split(".")
            prefix, part = self.block.format(half=half, layer=layer), self.parts.get(part, "")
        else:
            part, _, kind = name.rpartition(".")
            part = self.whole.get(part, "").format(half=half)
        if not part:
            return ""
        kinds = self.kinds if "norm" in name else {}
        end = kinds.get(kind, kind)
        separator = "/" if "/" in self.block else "."
        return prefix + (part if part.endswith("encodings") else f"{part}{separator}{end}")


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

    bins: of its features. frames: of its encoder's results, each of two frames of features.
    encoder, decoder: of the halves; their context is `frames`, and the most tokens.
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
    """The tensors of the encoder or the decoder, by GGUF's names of a language model's.

    Those of the cross-attention are `blk.N.cross_...`; see `architectures.WeightSource`.
    """

    def __init__(self, files: Mapping[str, StoredTensors], naming: Naming, half: str) -> None:
        """files: those that have the tensors, by the names in them."""
        self._files, self._naming, self._half = files, naming, half

    def __contains__(self, name: str) -> bool:
        return self.stored_name(name) in self._files

    def stored_name(self, name: str) -> str:
        """Return what the file calls a tensor."""
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
        """Return what the file calls the scales of a tensor of one of SCALED."""
        return f"{self.stored_name(name)}_scale"

    def scales(self, name: str) -> Array:
        """Return what each row of a tensor of one of SCALED is multiplied by, (rows,) float32."""
        stored = self.scale_name(name)
        with np.errstate(divide="ignore"):  # a scale of 0 shows in logits that are no numbers
            factors = 1 / self._files[stored].read(stored)
        return np.broadcast_to(factors, self.shape(name)[:1])

    def array(self, name: str) -> Array:
        """Return a tensor's numbers as float32."""
        file, stored = self._file(name)
        numbers = file.read(stored).astype(np.float32)
        if self.kind(name) in SCALED:
            with np.errstate(invalid="ignore", over="ignore"):
                numbers *= self.scales(name).reshape(-1, *[1] * (numbers.ndim - 1))
        return numbers

    def packed(self, *names: str) -> Packed:
        """Return matrices one below the other, as one packed weight; they are of one format."""
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
    """Numbers of the tokens that are no text, and of those that are never chosen.

    end: of a text. start: what prompts have before the language and the task. previous: what text
    of earlier windows begins with. no_speech: what is likely where nobody speaks; None where the
    model has no such token. timestamps: the first one, of 0 s, and the place behind the last.
    languages: by their codes; empty for a model of English alone. suppressed: never chosen.
    suppressed_first: not as a window's first.
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
    """A folder whose tensors have the sizes that it says."""

    config: WhisperConfig
    encoder: HalfWeights
    decoder: HalfWeights
    tokenizer: Tokenizer
    special: SpecialTokens
    alignment_heads: tuple[tuple[int, int], ...]
    """Layers and heads of the decoder whose attention says when a token is spoken."""
    nbytes: int
    """Bytes of all tensors on a device, where the encoder's are float32."""


def open_whisper(path: Path) -> WhisperFiles:
    """Open the model in a folder, or the folder of a model.bin.

    Raises ModelError where it is none, is damaged, or does not run here.
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
        unpacked = name.startswith((f"{ENCODER}/", f"model.{ENCODER}.")) or entry.kind == "I16"
        nbytes += 4 * prod(entry.shape) if unpacked else entry.end - entry.start
    heads = _alignment_heads(folder, config.decoder)
    return WhisperFiles(config, encoder, decoder, tokenizer, special, heads, nbytes)


def _open_folder(folder: Path) -> Sequence[StoredTensors]:
    """Open the weights in a folder: safetensors where there are any, else ONNX files."""
    onnx = None if any(folder.glob("*.safetensors")) else find_onnx_files(folder)
    if onnx is None:
        return [SafetensorsFile(path) for path in weight_files(folder)]
    return [OnnxWeights(path, half) for path, half in zip(onnx, (ENCODER, DECODER))]


def _binary_config(path: Path) -> tuple[dict[str, StoredTensors], WhisperConfig]:
    """Return the tensors and sizes of a model of CTranslate2."""
    file = CTranslate2File(path)
    if file.kind != "WhisperSpec":
        raise ModelError(
            f"{path}: a model of kind {file.kind!r:.60} does not run here: WhisperSpec does"
        )
    files: dict[str, StoredTensors] = dict.fromkeys(file.entries, file)

    def shape(name: str, rank: int) -> tuple[int, ...]:
        found = file.entries[name].shape if name in file.entries else ()
        if len(found) != rank:
            raise ModelError(f"{path}: {name!r} must have {rank} dimensions, got {found}")
        return found

    def scalar(name: str) -> int:
        if (
            name not in file.entries
            or file.entries[name].shape
            or file.entries[name].kind[0] != "I"
        ):
            raise ModelError(f"{path}: {name!r} must be a whole number")
        del files[name]
        return int(file.read(name))

    plain = {"activation": GELU, "pre_norm": 1, "scale_embeddings": 0, "alibi": 0}
    plain |= {"scale_alibi": 0, "alibi_use_positive_positions": 0}  # which newer files have
    for half, more in ((ENCODER, {}), (DECODER, {**plain, "start_from_zero_embedding": 0})):
        for key, wanted in more.items():
            if f"{half}/{key}" in file.entries and (got := scalar(f"{half}/{key}")) != wanted:
                raise ModelError(f"{path}: '{half}/{key}' {got} does not run here: {wanted} does")
    for name in ("decoder/alignment_heads", "decoder/alignment_layer"):
        files.pop(name, None)  # which heads tell the times of words
    width, bins, _ = shape("encoder/conv1/weight", 3)
    vocabulary, _ = shape("decoder/embeddings/weight", 2)
    halves = []
    for half in (ENCODER, DECODER):
        context, _ = shape(f"{half}/position_encodings/encodings", 2)
        layers = 0
        while f"{half}/layer_{layers}/ffn/linear_0/weight" in file.entries:
            layers += 1
        heads = scalar(f"{half}/num_heads")
        halves.append(_half_config(path, layers, width, heads, vocabulary, context))
    return files, WhisperConfig(_bins(path, bins), *halves)


def _folder_config(folder: Path) -> WhisperConfig:
    """Return the sizes of a model of Hugging Face."""
    path = folder / "config.json"
    said = ModelEntries(path, json_entries(path))
    if (kind := said.get("model_type", str)) != "whisper":
        raise ModelError(f"{path}: model_type {kind!r:.60} is no speech to text: whisper is")
    if (activation := said.get("activation_function", str, "gelu")) != "gelu":
        raise ModelError(
            f"{path}: 'activation_function' {activation!r:.60} does not run here: 'gelu' does"
        )
    if said.get("scale_embedding", bool, False):
        raise ModelError(f"{path}: 'scale_embedding' True does not run here: False does")
    width, vocabulary = said.size("d_model"), said.size("vocab_size", most=MOST_VOCABULARY)
    halves = [
        _half_config(
            path,
            said.size(f"{half}_layers", most=MOST_LAYERS),
            width,
            said.size(f"{half}_attention_heads"),
            vocabulary,
            said.size(context, most=MOST_CONTEXT),
        )
        for half, context in (
            (ENCODER, "max_source_positions"),
            (DECODER, "max_target_positions"),
        )
    ]
    return WhisperConfig(_bins(path, said.size("num_mel_bins", 80)), *halves)


def _bins(path: Path, bins: int) -> int:
    """Return the number of bands of features. Raises ModelError for features of another kind."""
    if bins not in BINS:
        raise ModelError(
            f"{path}: features must have {' or '.join(map(str, BINS))} bins, got {bins}"
        )
    beside = path.parent / "preprocessor_config.json"
    said = ModelEntries(beside, optional_entries(beside))
    wanted = {"feature_size": bins, "sampling_rate": RATE, "hop_length": HOP, "n_fft": WINDOW}
    for key, number in wanted.items():
        if (got := said.get(key, int, number)) != number:
            raise ModelError(f"{beside}: {key!r} {got} does not run here: {number} does")
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
    """Raise ModelError unless the tensors are those of `config`, before any is read."""
    width, known = config.encoder.width, set[str]()
    more: Mapping[str, Mapping[str, tuple[int, ...]]] = {
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
            **more[half],
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
                known.add(weights.scale_name(name))
            elif kind not in FORMAT_OF:
                raise ModelError(
                    f"{folder}: {weights.stored_name(name)!r} is {kind}; weights must be "
                    f"{', '.join((*FORMAT_OF, *SCALED))}"
                )
            known.add(weights.stored_name(name))
    if others := [name for name in files if name not in known]:
        count = f" and {len(others) - 1} others" if len(others) > 1 else ""
        raise ModelError(
            f"{folder}: there are tensors that whisper has no place for: {others[0]!r:.60}{count}"
        )


def _check_scales(
    folder: Path, files: Mapping[str, StoredTensors], weights: HalfWeights, name: str
) -> None:
    """Raise ModelError unless a tensor of one of SCALED has the scales that its type has."""
    kind, scale = weights.kind(name), weights.scale_name(name)
    wanted = weights.shape(name)[:1] if kind == "I8" else ()
    found = files[scale].entries[scale] if scale in files else None
    if found is None or (found.kind, found.shape) != ("F32", wanted):
        got = "none" if found is None else f"{found.kind} {found.shape}"
        raise ModelError(
            f"{folder}: {weights.stored_name(name)!r} is {kind}, so that there must be {scale!r}, "
            f"F32 {wanted}, got {got}"
        )


def _block_shapes(
    weights: HalfWeights, layer: int, width: int, crossed: bool
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a block. crossed: True for one that reads the encoder."""
    up = f"blk.{layer}.ffn_up.weight"
    hidden = (*weights.shape(up), 0)[0]
    rows = {"attn_output": width, "ffn_up": hidden}
    rows |= _projection_rows(weights, layer, "attn", "qkv", width)
    norms = ["attn_norm", "ffn_norm"]
    if crossed:
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
    """Return the rows of matrices that lie one below the other in some files."""
    if f"blk.{layer}.{kind}_{parts}.weight" in weights:
        return {f"{kind}_{parts}": len(parts) * width}
    return {f"{kind}_{part}": width for part in parts}


def _special_tokens(folder: Path, inner: Any, vocabulary: int) -> SpecialTokens:
    """Return the tokens that the folder's tokenizer and settings name."""
    path = folder / "tokenizer.json"

    def optional(*names: str) -> int | None:
        found = (inner.token_to_id(name) for name in names)
        return next((int(one) for one in found if one is not None and one < vocabulary), None)

    def number(*names: str) -> int:
        found = optional(*names)
        if found is None:
            raise ModelError(f"{path}: it has no token {names[0]!r} below {vocabulary}")
        return found

    end, start = number("<|endoftext|>"), number("<|startoftranscript|>")
    tasks = {task: number(f"<|{task}|>") for task in TASKS}
    previous, no_timestamps = number("<|startofprev|>"), number("<|notimestamps|>")
    first = no_timestamps + 1
    others = (start, previous, *tasks.values(), no_timestamps)
    if not end < min(others) or not max(others) < first < vocabulary:
        raise ModelError(
            f"{path}: '<|endoftext|>' must be behind all tokens of text, and timestamps behind all "
            f"others, got {end}, and {first} of {vocabulary} tokens"
        )
    settings = _settings(folder)
    no_speech = optional("<|nospeech|>", "<|nocaptions|>")
    own = [start, previous, *tasks.values(), no_speech, optional("<|startoflm|>")]
    suppressed = _token_list(settings, ("suppress_tokens", "suppress_ids"), vocabulary)
    first_too = ("begin_suppress_tokens", "suppress_ids_begin")
    languages = {}
    if _is_multilingual(settings, vocabulary):
        added = inner.get_added_tokens_decoder()
        found = ((LANGUAGE.fullmatch(one.content), token) for token, one in added.items())
        languages = {match[1]: int(token) for match, token in found if match and token < first}
    return SpecialTokens(
        end=end,
        start=start,
        previous=previous,
        no_speech=no_speech,
        no_timestamps=no_timestamps,
        timestamps=(first, vocabulary),
        tasks=tasks,
        languages=languages,
        suppressed=tuple(sorted({*suppressed, *(one for one in own if one is not None)} - {end})),
        suppressed_first=_token_list(settings, first_too, vocabulary),
    )


def _settings(folder: Path) -> list[ModelEntries]:
    """Return the files that say how texts are chosen, the first of which is believed first."""
    names = ("generation_config.json", "config.json")
    return [ModelEntries(folder / name, optional_entries(folder / name)) for name in names]


def _alignment_heads(folder: Path, config: Config) -> tuple[tuple[int, int], ...]:
    """Return the heads that a folder names, else all of the later half of the layers."""
    for said in _settings(folder):
        found = said.optional("alignment_heads", list)
        for pair in found or ():
            sizes = zip(pair, (config.layers, config.heads)) if _is_pair(pair) else ()
            if not _is_pair(pair) or not all(0 <= one < most for one, most in sizes):
                raise ModelError(
                    f"{said.path}: 'alignment_heads' must be pairs of a layer below "
                    f"{config.layers} and a head below {config.heads}, got {shown(pair)}"
                )
        if found:
            return tuple((layer, head) for layer, head in found)
    layers = range(config.layers // 2, config.layers)
    return tuple((layer, head) for layer in layers for head in range(config.heads))


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) is int for one in value)


def _is_multilingual(settings: Sequence[ModelEntries], vocabulary: int) -> bool:
    """Return True for a model of several languages: as its settings say, else by its tokens."""
    for said in settings:
        if (found := said.optional("is_multilingual", bool)) is not None:
            return bool(found)
    return vocabulary >= MULTILINGUAL


def _token_list(
    settings: Iterable[ModelEntries], keys: Sequence[str], vocabulary: int
) -> tuple[int, ...]:
    """Return the tokens that the first such entry lists; none where there is none."""
    for said in settings:
        for key in keys:
            found = said.optional(key, list)
            if found is None:
                continue
            for one in found:
                if type(one) is not int or not 0 <= one < vocabulary:
                    raise ModelError(
                        f"{said.path}: {key!r} must be from 0 to {vocabulary - 1}, got {shown(one)}"
                    )
            return tuple(found)
    return ()
