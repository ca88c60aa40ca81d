"""Tokenizers of language models, built from a GGUF file's entries or read from tokenizer.json."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glnn.errors import ModelError, extra, fault, shown
from glnn.generation.gguf import GGUFFile, LazyTexts
from glnn.registry import module_for

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens in GGUF files."""
MOST_PIECE = 1024  # characters of a SentencePiece token: those of Gemma have 31 at most
SPACE = "\u2581"  # SentencePiece's sign for a space
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CASED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
ENDS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PRE_TOKENIZERS: Mapping[str, tuple[str, ...]] = {
    "default": (WORDS,),
    "gpt-2": (WORDS,),
    "smollm": (r"\p{N}", WORDS),
    "llama-bpe": (rf"{CASED}|\p{{N}}{{1,3}}|{ENDS}",),
    "qwen2": (rf"{CASED}|\p{{N}}|{ENDS}",),
}
"""Regular expressions by which text is split before byte pairs are merged, by GGUF's names."""
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_LETTERS: Mapping[str, int] = {
    **{chr(byte): byte for byte in _PRINTABLE},
    **{chr(256 + i): byte for i, byte in enumerate(_OTHERS)},
}
"""The characters that stand for bytes in byte-pair vocabularies, as in GPT-2."""
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")  # a SentencePiece token of one byte


END_TOKENS = {"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>"}
"""Control tokens that end a text, whether or not a file names them so."""


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ModelError(f"language models need the package tokenizers: {extra('llm')}") from None
    return tokenizers


class Tokenizer:
    """Encodes text as numbers of tokens, and decodes them."""

    def __init__(
        self,
        inner: Any,
        begin: int | None,
        ends: frozenset[int],
        adds_begin: bool,
        template: str,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """inner: a tokenizer of the package tokenizers. begin: the token that begins texts (BOS);
        adds_begin: whether `encode` puts it before them. ends: tokens that end a text. template: of
        chats, in Jinja's language; may be empty. names: the texts of special tokens by the names
        that templates have for them, as "eos_token".
        """
        self._inner, self.begin, self.ends = inner, begin, ends
        self._token_bytes = _TokenBytes(inner)
        self._adds_begin, self.template = adds_begin and begin is not None, template
        self._names = {"bos_token": "", "eos_token": "", **(names or {})}

    def encode(self, text: str, *, special: bool = True, begin: bool = True) -> list[int]:
        """Return the tokens of `text`.

        special: whether control tokens are recognised in it, as "<|im_end|>". begin: whether to put
        the token that begins texts before it, where the model wants that.
        """
        if not isinstance(text, str):
            raise ModelError(f"text must be a str, got {shown(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = shown(text[error.start])
            raise ModelError(f"text must be Unicode, got {half}, half of a character") from None
        self._inner.encode_special_tokens = not special
        ids = self._inner.encode(text, add_special_tokens=False).ids
        prefix = [self.begin] if begin and self._adds_begin and self.begin is not None else []
        return [*prefix, *ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, without control tokens."""
        pieces = self.pieces()
        return "".join([*map(pieces.add, tokens), pieces.flush()])

    def pieces(self, prefix: Sequence[int] = ()) -> Pieces:
        """Return a streaming decoder of tokens.

        prefix: the tokens before them. Without any, the space that SentencePiece puts before a text
        is left out.
        """
        return Pieces(self._token_bytes, prefix)

    def token(self, number: int) -> str:
        """Return a token as the vocabulary has it; empty for a number without a token."""
        return self._inner.id_to_token(number) or ""

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text of a chat, by the model's own template, up to where the answer begins.

        messages: each with "role" and "content". Raises ModelError where the model has no template,
        a message has other fields, or the template refuses them.
        """
        check_messages(messages)
        if not self.template:
            raise ModelError("the model has no chat template: use generate")
        try:
            templates = module_for("write chats")
        except ImportError:
            raise ModelError(f"chats need the package jinja2: {extra('llm')}") from None
        return str(templates.render(self.template, messages, self._names))


class _TokenBytes:
    """The bytes that each token adds to a text.

    The package's decoders decode whole texts only, and a token may end inside a character.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        added = inner.get_added_tokens_decoder().items()
        self._special = frozenset(number for number, entry in added if entry.special)
        decode = "".join if inner.decoder is None else inner.decoder.decode
        self._letters = BYTE_LETTERS if decode(["Ã©"]) == "é" else {}
        """Bytes by the characters of symbols; empty unless these stand for bytes."""
        self._fallback = decode(["<0x41>"]) == "A"
        """True where the vocabulary has tokens of one byte; see BYTE_TOKEN."""

    def symbol(self, token: int) -> str:
        """Return `token` as the vocabulary has it; empty for one that adds nothing to a text."""
        return "" if token in self._special else self._inner.id_to_token(token) or ""

    def after(self, previous: int | None, token: int) -> bytes:
        """Return the bytes that `token` adds after the token `previous`; None: it begins a text."""
        symbol = self.symbol(token)
        if self._letters and all(letter in self._letters for letter in symbol):
            return bytes(self._letters[letter] for letter in symbol)
        if self._letters or not symbol:
            return symbol.encode()
        if self._fallback and (match := BYTE_TOKEN.fullmatch(symbol)):
            return bytes([int(match[1], 16)])
        prefix = "" if previous is None else self._inner.decode([previous])
        text = self._inner.decode([token] if previous is None else [previous, token])
        return str(text).removeprefix(prefix).encode()


class Pieces:
    """A streaming decoder: the text of one token after the other, in whole characters.

    The results of `add` for each token and of `flush` at the end are together the text of the
    tokens; bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self, token_bytes: _TokenBytes, prefix: Sequence[int] = ()) -> None:
        """prefix: the tokens before those that are added."""
        self._bytes = token_bytes
        self._previous = next((t for t in reversed(prefix) if token_bytes.symbol(t)), None)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Return the text that `token` completes; empty where it ends inside a character."""
        new_bytes = self._bytes.after(self._previous, token)
        if self._bytes.symbol(token):
            self._previous = token
        return self._utf8.decode(new_bytes)

    def flush(self) -> str:
        """Return the text of the bytes of an unfinished character."""
        return self._utf8.decode(b"", final=True)


def check_messages(messages: object) -> None:
    """Raise ModelError unless `messages` is a list of dicts with a role and a content each."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ModelError(f"messages must be a list of dicts, got {shown(messages)}")
    for message in messages:
        fields = message if isinstance(message, Mapping) else {}
        if not all(isinstance(fields.get(key), str) for key in ("role", "content")):
            raise ModelError(f"a message must have a role and a content, got {shown(message)}")


def gguf_tokenizer(file: GGUFFile) -> Tokenizer:
    """Return the tokenizer in `file`. Raises ModelError for one that does not run here."""
    kind = file.value("tokenizer.ggml.model", str)
    builders = {"gpt2": _byte_pairs, "llama": _sentence_piece}
    if kind not in builders:
        known = ", ".join(builders)
        raise ModelError(f"{file.path}: tokenizer {kind!r} does not run here: {known} do")
    tokens = file.value("tokenizer.ggml.tokens", LazyTexts)
    size = file.entry("token_embd.weight").shape[0]
    if len(tokens) > size:
        raise ModelError(f"{file.path}: it has {len(tokens)} tokens, embeddings for {size}")
    types = file.value("tokenizer.ggml.token_type", np.ndarray, np.ones(len(tokens), np.int32))
    if len(types) != len(tokens):
        raise ModelError(f"{file.path}: it has {len(tokens)} tokens and {len(types)} types of them")
    try:
        inner = builders[kind](file, list(tokens))
        _add_special(inner, tokens, types)
    except Exception as error:  # the package raises Exception itself
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{file.path}: its tokenizer cannot be built: {error}") from None

    def token_id(key: str) -> int | None:
        number: int = file.value(f"tokenizer.ggml.{key}_token_id", int, -1)
        return number if 0 <= number < len(tokens) else None

    ends = {i for key in ("eos", "eot", "eom") if (i := token_id(key)) is not None}
    ends |= {int(i) for i in np.flatnonzero(types == CONTROL) if tokens[int(i)] in END_TOKENS}
    adds_bos = file.value("tokenizer.ggml.add_bos_token", bool, kind == "llama")
    template = file.value("tokenizer.chat_template", str, "")
    names = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (i := token_id(key)) is not None:
            names[f"{name}_token"] = tokens[i]
    return Tokenizer(inner, token_id("bos"), frozenset(ends), adds_bos, template, names)


def _add_special(inner: Any, tokens: LazyTexts, types: Any) -> None:
    """Add control tokens and user-defined ones to `inner`, which recognises them verbatim in texts.

    The unknown token counts as a control token: decoded texts do not have it.
    """
    added = _tokenizers().AddedToken
    control = [tokens[int(i)] for i in np.flatnonzero((types == CONTROL) | (types == UNKNOWN))]
    defined = [tokens[int(i)] for i in np.flatnonzero(types == USER_DEFINED)]
    inner.add_special_tokens([added(text, normalized=False, special=True) for text in control])
    inner.add_tokens([added(text, normalized=False, special=False) for text in defined])


def _byte_pairs(file: GGUFFile, tokens: list[str]) -> Any:
    """Return a byte-pair tokenizer, as GPT-2's."""
    lib = _tokenizers()
    name = file.value("tokenizer.ggml.pre", str, "default")
    if name not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise ModelError(f"{file.path}: pre-tokenizer {name!r} does not run here: {known} do")
    merges = file.value("tokenizer.ggml.merges", LazyTexts)
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise ModelError(f"{file.path}: tokenizer.ggml.merges must be pairs with a space between")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    inner = lib.Tokenizer(
        lib.models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=name == "llama-bpe")
    )
    split, regex = lib.pre_tokenizers.Split, lib.Regex
    splits = [split(regex(text), behavior="isolated") for text in PRE_TOKENIZERS[name]]
    byte_level = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = lib.pre_tokenizers.Sequence([*splits, byte_level])
    inner.decoder = lib.decoders.ByteLevel()
    return inner


def _sentence_piece(file: GGUFFile, tokens: list[str]) -> Any:
    """Return a tokenizer that merges pieces by their scores, as SentencePiece's BPE."""
    lib = _tokenizers()
    scores = file.value("tokenizer.ggml.scores", np.ndarray)
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path}: it has {len(tokens)} tokens and {len(scores)} scores")
    longest = max(map(len, tokens), default=0)
    if longest > MOST_PIECE:
        raise ModelError(f"{file.path}: a token has {longest} letters, more than {MOST_PIECE}")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = sorted(_merges(tokens, vocabulary, scores), key=lambda merge: merge[0])
    unknown = file.value("tokenizer.ggml.unknown_token_id", int, 0)
    inner = lib.Tokenizer(
        lib.models.BPE(
            vocab=vocabulary,
            merges=[pair for _, pair in merges],
            unk_token=tokens[unknown] if 0 <= unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    adds_space = file.value("tokenizer.ggml.add_space_prefix", bool, True)
    normalizers, decoders = lib.normalizers, lib.decoders
    prepend = [normalizers.Prepend(SPACE)] if adds_space else []
    inner.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    inner.decoder = decoders.Sequence(steps)
    return inner


def _merges(
    tokens: Sequence[str], vocabulary: Mapping[str, int], scores: Any
) -> Iterator[tuple[tuple[float, int, int], tuple[str, str]]]:
    """Yield the pairs of pieces that merge to a piece, each with a key by which to sort them."""
    for i, piece in enumerate(tokens):
        for cut in range(1, len(piece)):
            left, right = vocabulary.get(piece[:cut]), vocabulary.get(piece[cut:])
            if left is not None and right is not None:
                yield (-float(scores[i]), left, right), (piece[:cut], piece[cut:])


def json_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of tokenizer.json in `folder`. Raises ModelError where there is none."""
    path = folder / "tokenizer.json"
    try:
        return _tokenizers().Tokenizer.from_file(str(path))
    except Exception as error:
        reason = fault(error) if isinstance(error, (OSError, ValueError)) else str(error)
        raise ModelError(f"{path}: cannot be read: {reason}") from None
