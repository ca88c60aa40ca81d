"""Tokenizers of files: tokens as others have them, and texts that come back as they were."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from glnn.errors import ModelError
from glnn.generation.gguf import GGUFFile
from glnn.generation.language_model import LanguageModel
from glnn.generation.tokenizer import PRE_TOKENIZERS, Tokenizer, gguf_tokenizer
from tests.generation.gguf_files import small_model, write

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
PIECES = [
    "he", "in", "th", "▁t", "▁h", "ll", "▁▁", "the", "▁the", "hell", "▁▁▁▁", "hello", "▁hello",
    "er", "▁wor", "ld", "or", "▁w", "▁world", "▁s", "日本", "éé", *"▁abcdefghilnorstuwé日本語",
    "\u0627", "\u0644", *".,12🙂",
]  # fmt: skip
"""Pieces by falling scores, below those of control and of bytes."""
FIRST = 259
TEXTS = {
    "hello world": [271, 277],
    "the hello  the": [267, 271, 281, 267],
    "    hello": [269, 271],
    "  ": [265, 281],
    "": [],
    "日本語": [281, 279, 302],
    "日x本": [281, 300, 123, 301],
    "éé é": [281, 280, 281, 299],
    "🙂🙂👍": [281, 309, 309, 243, 162, 148, 144],
    "a\u0301": [281, 282, 207, 132],
    "\0a\0": [281, 3, 282, 3],
    "السلام": [281, 303, 304, 219, 182, 304, 303, 220, 136],
    "\t\n": [281, 12, 13],
    "1 2 12": [281, 307, 281, 308, 281, 307, 308],
    "hellohello the": [271, 270, 267],
    "thell": [267, 264],
    " the": [281, 267],
}
"""Tokens by SentencePiece 0.2.3, with a space before the text."""
WITHOUT = {
    "hello world": [270, 277],
    "the hello  the": [266, 271, 281, 267],
    "    hello": [269, 270],
    "日本語": [279, 302],
    "🙂🙂👍": [309, 309, 243, 162, 148, 144],
    "thell": [266, 264],
    " the": [267],
}
"""The same without that space."""
ODD = (
    *TEXTS,
    "e\u0301e\u0302\u0303 a\u0308",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪",
    "\0\0\0",
    " " * 300 + "x" + " " * 17,
    "שלום עולם \u200f(a)\u200e",
    "中文,日本語、한국어。",
    "\ufeffbom\u200b\u00a0nbsp",
    "\r\n\n\r \t tab",
    "\U0010ffff\ue000",
    "a" * 500,
    "1234567890 3.14 10,000",
    "I'll she'd 'tis IT'S",
    "<s>not one</s>",
)


def sentence_piece(text: str, prefixed: bool) -> list[int]:
    """Tokens by SentencePiece's definition: the pair of the best score becomes one, over and over.

    Of pairs as good the first. Characters that are no piece are bytes.
    """
    symbols = list((" " * prefixed if text else "") + text)
    symbols = [one.replace(" ", "▁") for one in symbols]
    rank = {piece: i for i, piece in enumerate(PIECES)}
    while True:
        pairs = [a + b for a, b in pairwise(symbols)]
        known = [(rank[pair], i) for i, pair in enumerate(pairs) if pair in rank]
        if not known:
            break
        _, place = min(known)
        symbols[place : place + 2] = [pairs[place]]
    found: list[int] = []
    for one in symbols:
        found += [FIRST + rank[one]] if one in rank else [3 + byte for byte in one.encode()]
    return found


def pieces_file(path: Path, **more: Any) -> Tokenizer:
    """A GGUF file with SentencePiece's byte pairs, and what glnn reads of it."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *PIECES]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PIECES)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array([0] * FIRST + [-i for i in range(len(PIECES))], "f4"),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }
    write(path, metadata, {"token_embd.weight": np.zeros((len(tokens), 1), np.float32)})
    with GGUFFile(path) as file:
        return gguf_tokenizer(file)


def byte_letters() -> list[str]:
    """The letters by which GPT-2 writes the bytes 0 to 255: those that are seen, then others."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


LETTERS = byte_letters()
MERGES = ["1 2", "12 3", "123 4", "t h", "th e", "Ġ the", "Ġ Ġ", "ĠĠ ĠĠ", "' l", "'l l", "Ã ©"]


def byte_pairs_file(path: Path, name: str, merges: Sequence[str] = MERGES, **more: Any) -> Any:
    """A GGUF file with byte pairs, and what glnn reads of it."""
    tokens = ["<s>", "</s>", *LETTERS, *(merge.replace(" ", "") for merge in merges)]
    types = [CONTROL, CONTROL, *[NORMAL] * (len(tokens) - 2)]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        **more,
    }
    write(path, metadata, {"token_embd.weight": np.zeros((len(tokens), 1), np.float32)})
    with GGUFFile(path) as file:
        return gguf_tokenizer(file)


def test_pieces_are_those_of_sentence_piece(tmp_path: Path) -> None:
    tokenizer = pieces_file(tmp_path / "t.gguf")
    bare = pieces_file(tmp_path / "u.gguf", **{"tokenizer.ggml.add_space_prefix": False})
    for text, expected in TEXTS.items():
        assert sentence_piece(text, True) == expected  # the definition here is theirs
        assert tokenizer.encode(text) == [1, *expected]
        assert tokenizer.encode(text, begin=False) == expected
    for text, expected in WITHOUT.items():
        assert sentence_piece(text, False) == bare.encode(text, begin=False) == expected
    draw, letters = np.random.default_rng(0), [*"thelowrd  日é🙂x\0"]
    for _ in range(300):
        text = "".join(draw.choice(letters, draw.integers(1, 30)))
        assert tokenizer.encode(text, begin=False) == sentence_piece(text, True)
        assert bare.encode(text, begin=False) == sentence_piece(text, False)


@pytest.mark.parametrize("text", ODD)
def test_texts_come_back_as_they_were(tmp_path: Path, text) -> None:
    tokenizers = [
        pieces_file(tmp_path / "t.gguf"),
        pieces_file(tmp_path / "u.gguf", **{"tokenizer.ggml.add_space_prefix": False}),
        *(byte_pairs_file(tmp_path / "b.gguf", name) for name in PRE_TOKENIZERS),
    ]
    for tokenizer in tokenizers:
        tokens = tokenizer.encode(text, special=False, begin=False)
        assert tokenizer.decode(tokens) == text
        assert tokenizer.encode(tokenizer.decode(tokens), special=False, begin=False) == tokens


@pytest.mark.parametrize("text", [one for one in ODD if "<s>" not in one])
def test_pieces_of_a_stream_are_the_text_behind_the_prompt(tmp_path: Path, text) -> None:
    """A text that goes on with a space has it, and characters come whole."""
    tokenizers = [
        pieces_file(tmp_path / "t.gguf"),
        pieces_file(tmp_path / "u.gguf", **{"tokenizer.ggml.add_space_prefix": False}),
        byte_pairs_file(tmp_path / "b.gguf", "llama-bpe"),
    ]
    for tokenizer in tokenizers:
        prompt, tokens = (tokenizer.encode(one, begin=False) for one in ("the", text))
        stream = tokenizer.pieces(prompt)
        found = [stream.add(token) for token in tokens]
        assert "\ufffd" not in "".join(found)
        assert "the" + "".join(found) == tokenizer.decode([*prompt, *tokens])


def test_lone_bytes_are_marked(tmp_path: Path) -> None:
    pieces = pieces_file(tmp_path / "t.gguf")
    assert pieces.decode([271, 3 + 0xE6]) == "hello\ufffd"
    assert pieces.decode([3 + 0xE6, 3 + 0x97, 3 + 0xA5]) == "日"
    pairs = byte_pairs_file(tmp_path / "b.gguf", "gpt-2")
    high = [2 + byte for byte in "é".encode()]
    assert pairs.decode(high) == "é" and pairs.decode(high[:1]) == "\ufffd"


def test_special_tokens_are_found_where_that_is_asked_for(tmp_path: Path) -> None:
    for tokenizer, end in (
        (pieces_file(tmp_path / "t.gguf"), 2),
        (byte_pairs_file(tmp_path / "b.gguf", "smollm"), 1),
    ):
        assert tokenizer.ends == {end}
        assert tokenizer.encode("a</s>", begin=False)[-1] == end
        plain = tokenizer.encode("a</s>", special=False, begin=False)
        assert end not in plain and tokenizer.decode(plain) == "a</s>"
        assert tokenizer.decode([*plain, end]) == "a</s>"


def test_tokens_that_a_user_defined_are_found_first(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    tokenizer = byte_pairs_file(path, "gpt-2", ["t h", "th e"])
    types = np.array([CONTROL, CONTROL, *[NORMAL] * 257, USER_DEFINED], np.int32)
    assert tokenizer.encode("xthe", begin=False) == [2 + ord("x"), 259]
    tokenizer = byte_pairs_file(path, "gpt-2", ["t h", "q q"], **{
        "tokenizer.ggml.merges": ["t h"], "tokenizer.ggml.token_type": types,
    })  # fmt: skip
    assert tokenizer.encode("xqqq", begin=False) == [2 + ord("x"), 259, 2 + ord("q")]
    assert tokenizer.decode([259]) == "qq"


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("default", ["1234", "5"]),
        ("gpt-2", ["1234", "5"]),
        ("smollm", ["1", "2", "3", "4", "5"]),
        ("qwen2", ["1", "2", "3", "4", "5"]),
        ("llama-bpe", ["123", "4", "5"]),
    ],
)
def test_pre_tokenizers_part_digits_as_their_models_do(tmp_path: Path, name, split) -> None:
    tokenizer = byte_pairs_file(tmp_path / "b.gguf", name)
    tokens = tokenizer.encode("12345", begin=False)
    assert [tokenizer.token(one) for one in tokens] == split


@pytest.mark.parametrize(
    ("name", "text", "split"),
    [
        ("gpt-2", "the  the\n\n the", ["the", "Ġ", "Ġthe", "Ċ", "Ċ", "Ġthe"]),
        ("llama-bpe", "é'LL", ["Ã©", "'", "L", "L"]),
        ("gpt-2", "a'll", ["a", "'ll"]),
        ("qwen2", "     the", ["ĠĠĠĠ", "Ġthe"]),
        ("smollm", " the1the", ["Ġthe", "1", "the"]),
    ],
)
def test_pre_tokenizers_part_words(tmp_path: Path, name, text, split) -> None:
    tokenizer = byte_pairs_file(tmp_path / "b.gguf", name)
    assert [tokenizer.token(one) for one in tokenizer.encode(text, begin=False)] == split


@pytest.mark.parametrize(("asked", "begins"), [(None, True), (True, True), (False, False)])
def test_texts_begin_as_the_file_says(tmp_path: Path, asked, begins) -> None:
    more = {} if asked is None else {"tokenizer.ggml.add_bos_token": asked}
    tokenizer = pieces_file(tmp_path / "t.gguf", **more)
    assert tokenizer.encode("hello") == [1] * begins + [271]
    more.setdefault("tokenizer.ggml.add_bos_token", False)
    tokenizer = byte_pairs_file(tmp_path / "b.gguf", "gpt-2", **more)
    assert tokenizer.encode("a") == [0] * bool(asked) + [2 + ord("a")]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokenizer.ggml.scores": np.zeros(3, np.float32)}, "310 tokens and 3 scores"),
        ({"tokenizer.ggml.token_type": np.zeros(3, np.int32)}, "310 tokens and 3 types"),
        (
            {"tokenizer.ggml.tokens": ["a" * 200_000, *map(chr, range(97, 97 + 309))]},
            "a token has 200000 letters, more than 1024",
        ),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer 't5' does not run here: gpt2, llama do"),
    ],
)
def test_tokenizers_that_do_not_run_say_why(tmp_path: Path, change, says) -> None:
    with pytest.raises(ModelError, match=says):
        pieces_file(tmp_path / "t.gguf", **change)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    for tokenizer in (
        pieces_file(tmp_path / "t.gguf"),
        byte_pairs_file(tmp_path / "b.gguf", "gpt-2"),
    ):
        for text in (b"a", None, "a\ud800"):
            with pytest.raises(ModelError, match="text must be"):
                tokenizer.encode(text)


def test_models_tokenize_and_detokenize(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf", "llama")
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    tokens = lm.tokenize("ab Z9")
    assert tokens == [0, 2, 3, 28, 54, 64] and lm.detokenize(tokens) == "ab Z9"
    assert lm.detokenize(iter(tokens[:3])) == "ab" and lm.detokenize([]) == ""
    with pytest.raises(ModelError, match="a token must be from 0 to 64, got 65"):
        lm.detokenize([65])
