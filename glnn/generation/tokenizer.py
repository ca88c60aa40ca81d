"""Tokenizers of language models, built of what a GGUF file says, or read from tokenizer.json."""

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
MOST_PIECE = 1024  # letters of SentencePiece's tokens: those of Gemma have 31 at most
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
"""The letters that stand for bytes in vocabularies of byte pairs, GPT-2's."""
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")  # SentencePiece's tokens of one byte


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ModelError(f"language models need the package tokenizers: {extra('llm')}") from None
    return tokenizers


class Tokenizer:
    """Turns text into the numbers of tokens and back."""

    def __init__(
        self,
        inner: Any,
        begin: int | None,
        ends: frozenset[int],
        begins: bool,
        template: str,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """inner: of the package tokenizers. begin: the token that texts begin with; `begins`:
        whether they do. ends: tokens that end a text. template: of chats, in Jinja's language; may
        be empty. names: how tokens are written that templates have names for, as "eos_token".
        """
        self._inner, self.begin, self.ends = inner, begin, ends
        self._token_bytes = _TokenBytes(inner)
        self._begins, self.template = begins and begin is not None, template
        self._names = {"bos_token": "", "eos_token": "", **(names or {})}

    def encode(self, text: str, *, special: bool = True, begin: bool = True) -> list[int]:
        """Return the tokens of `text`.

        special: whether names of control tokens in it stand for these. begin: whether the token
        that texts begin with is put before, where the model wants that.
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
        first = [self.begin] if begin and self._begins and self.begin is not None else []
        return [*first, *ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, without control tokens."""
        pieces = self.pieces()
        return "".join([*map(pieces.add, tokens), pieces.flush()])

    def pieces(self, before: Sequence[int] = ()) -> Pieces:
        """Return what gives the text of one token after the other.

        before: tokens of the text that they continue. A text's first space, which SentencePiece
        puts before it, is left out; that of a continuation is not.
        """
        return Pieces(self._token_bytes, before)

    def token(self, number: int) -> str:
        """Return how a token is written; empty for a number that has none."""
        return self._inner.id_to_token(number) or ""

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text of a chat, by the model's own template, up to where an answer begins.

        messages: each with "role" and "content". Raises ModelError where the model has no template,
        a message is none, or the template refuses them.
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

    The package's decoders take whole texts only, and a token's bytes may be a part of a character.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        added = inner.get_added_tokens_decoder().items()
        self._special = frozenset(number for number, one in added if one.special)
        decode = "".join if inner.decoder is None else inner.decoder.decode
        self._letters = BYTE_LETTERS if decode(["Ã©"]) == "é" else {}
        self._fallback = decode(["<0x41>"]) == "A"

    def written(self, token: int) -> str:
        """Return how `token` is written; empty for one that adds nothing to a text."""
        return "" if token in self._special else self._inner.id_to_token(token) or ""

    def added(self, before: int | None, token: int) -> bytes:
        """Return the bytes that `token` adds behind `before`, or at the beginning of a text."""
        written = self.written(token)
        if self._letters and all(letter in self._letters for letter in written):
            return bytes(self._letters[letter] for letter in written)
        if self._letters or not written:
            return written.encode()
        if self._fallback and (found := BYTE_TOKEN.fullmatch(written)):
            return bytes([int(found[1], 16)])
        first = "" if before is None else self._inner.decode([before])
        text = self._inner.decode([token] if before is None else [before, token])
        return str(text).removeprefix(first).encode()


class Pieces:
    """The text of tokens as they come: whole characters only.

    What `add` gives for each token and `flush` at the end is the text of the tokens, whichever they
    are; bytes that are no UTF-8 are U+FFFD in it.
    """

    def __init__(self, token_bytes: _TokenBytes, before: Sequence[int] = ()) -> None:
        """before: tokens of the text that these continue."""
        self._bytes = token_bytes
        self._before = next((one for one in reversed(before) if token_bytes.written(one)), None)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Return the text that `token` completes; empty where a character goes on."""
        added = self._bytes.added(self._before, token)
        if self._bytes.written(token):
            self._before = token
        return self._utf8.decode(added)

    def flush(self) -> str:
        """Return the text of a character that no token completed."""
        return self._utf8.decode(b"", final=True)


def check_messages(messages: object) -> None:
    """Raise ModelError unless `messages` is a list of roles and contents."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ModelError(f"messages must be a list of dicts, got {shown(messages)}")
    for message in messages:
        fields = message if isinstance(message, Mapping) else {}
        if not all(isinstance(fields.get(key), str) for key in ("role", "content")):
            raise ModelError(f"a message must have a role and a content, got {shown(message)}")


def gguf_tokenizer(file: GGUFFile) -> Tokenizer:
    """Return the tokenizer in `file`. Raises ModelError for one that does not run here."""
    kind = file.value("tokenizer.ggml.model", str)
    makers = {"gpt2": _byte_pairs, "llama": _sentence_piece}
    if kind not in makers:
        known = ", ".join(makers)
        raise ModelError(f"{file.path}: tokenizer {kind!r} does not run here: {known} do")
    tokens = file.value("tokenizer.ggml.tokens", LazyTexts)
    size = file.entry("token_embd.weight").shape[0]
    if len(tokens) > size:
        raise ModelError(f"{file.path}: it has {len(tokens)} tokens, embeddings for {size}")
    types = file.value("tokenizer.ggml.token_type", np.ndarray, np.ones(len(tokens), np.int32))
    if len(types) != len(tokens):
        raise ModelError(f"{file.path}: it has {len(tokens)} tokens and {len(types)} types of them")
    try:
        inner = makers[kind](file, list(tokens))
        _add_special(inner, tokens, types)
    except Exception as error:  # the package raises Exception itself
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{file.path}: its tokenizer cannot be built: {error}") from None

    def number(key: str) -> int | None:
        token_id: int = file.value(f"tokenizer.ggml.{key}_token_id", int, -1)
        return token_id if 0 <= token_id < len(tokens) else None

    ends = {one for key in ("eos", "eot", "eom") if (one := number(key)) is not None}
    written = {"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>"}
    ends |= {int(i) for i in np.flatnonzero(types == CONTROL) if tokens[int(i)] in written}
    begins = file.value("tokenizer.ggml.add_bos_token", bool, kind == "llama")
    template = file.value("tokenizer.chat_template", str, "")
    names = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (one := number(key)) is not None:
            names[f"{name}_token"] = tokens[one]
    return Tokenizer(inner, number("bos"), frozenset(ends), begins, template, names)


def _add_special(inner: Any, tokens: LazyTexts, types: Any) -> None:
    """Have tokens of control, and those that a user defined, be found in texts as they are.

    The unknown token is one of control: nothing of a text is written as it.
    """
    added = _tokenizers().AddedToken
    controls = (types == CONTROL) | (types == UNKNOWN)
    of_control = [tokens[int(i)] for i in np.flatnonzero(controls)]
    defined = [tokens[int(i)] for i in np.flatnonzero(types == USER_DEFINED)]
    inner.add_special_tokens([added(one, normalized=False, special=True) for one in of_control])
    inner.add_tokens([added(one, normalized=False, special=False) for one in defined])


def _byte_pairs(file: GGUFFile, tokens: list[str]) -> Any:
    """Return a tokenizer of byte pairs, as GPT-2's."""
    lib = _tokenizers()
    name = file.value("tokenizer.ggml.pre", str, "default")
    if name not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise ModelError(f"{file.path}: pre-tokenizer {name!r} does not run here: {known} do")
    merges = file.value("tokenizer.ggml.merges", LazyTexts)
    pairs = [tuple(one.split(" ", 1)) for one in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise ModelError(f"{file.path}: tokenizer.ggml.merges must be pairs with a space between")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    inner = lib.Tokenizer(
        lib.models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=name == "llama-bpe")
    )
    split, regex = lib.pre_tokenizers.Split, lib.Regex
    rules = [split(regex(text), behavior="isolated") for text in PRE_TOKENIZERS[name]]
    by_byte = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = lib.pre_tokenizers.Sequence([*rules, by_byte])
    inner.decoder = lib.decoders.ByteLevel()
    return inner


def _sentence_piece(file: GGUFFile, tokens: list[str]) -> Any:
    """Return a tokenizer that merges pieces by their scores, as SentencePiece's byte pairs."""
    lib = _tokenizers()
    scores = file.value("tokenizer.ggml.scores", np.ndarray)
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path}: it has {len(tokens)} tokens and {len(scores)} scores")
    longest = max(map(len, tokens), default=0)
    if longest > MOST_PIECE:
        raise ModelError(f"{file.path}: a token has {longest} letters, more than {MOST_PIECE}")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = sorted(_merges(tokens, vocabulary, scores), key=lambda one: one[0])
    unknown = file.value("tokenizer.ggml.unknown_token_id", int, 0)
    inner = lib.Tokenizer(
        lib.models.BPE(
            vocab=vocabulary,
            merges=[pair for _, pair in pairs],
            unk_token=tokens[unknown] if 0 <= unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = file.value("tokenizer.ggml.add_space_prefix", bool, True)
    normalizers, decoders = lib.normalizers, lib.decoders
    first = [normalizers.Prepend(SPACE)] if prefixed else []
    inner.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", SPACE)])
    last = [decoders.Strip(" ", 1, 0)] if prefixed else []
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    inner.decoder = decoders.Sequence(parts)
    return inner


def _merges(
    tokens: Sequence[str], vocabulary: Mapping[str, int], scores: Any
) -> Iterator[tuple[tuple[float, int, int], tuple[str, str]]]:
    """Yield the pairs that make a piece, each with its rank: the best score first."""
    for whole, piece in enumerate(tokens):
        for cut in range(1, len(piece)):
            first, second = vocabulary.get(piece[:cut]), vocabulary.get(piece[cut:])
            if first is not None and second is not None:
                yield (-float(scores[whole]), first, second), (piece[:cut], piece[cut:])


def json_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of tokenizer.json in `folder`. Raises ModelError where there is none."""
    path = folder / "tokenizer.json"
    try:
        return _tokenizers().Tokenizer.from_file(str(path))
    except Exception as error:
        reason = fault(error) if isinstance(error, (OSError, ValueError)) else str(error)
        raise ModelError(f"{path}: cannot be read: {reason}") from None
