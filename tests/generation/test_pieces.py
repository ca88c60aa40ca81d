"""The text of tokens as they come, of any rows of tokens, by every kind of decoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from glnn.generation.language_model import LanguageModel
from glnn.generation.tokenizer import Tokenizer
from tests.generation.gguf_files import small_model, write

BYTES = [f"<0x{i:02X}>" for i in range(256)]
PIECES = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "b", "▁a", "▁b", "ab", "▁▁", "é", "。"]
BYTE_OF = {i: PIECES.index(token) for i, token in enumerate(BYTES)}


def sentence_piece(path: Path) -> LanguageModel:
    """A small model with SentencePiece's tokens, among them one for each byte."""
    metadata, tensors = small_model(path, "llama")
    generator = np.random.default_rng(0)
    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = generator.standard_normal((len(PIECES), 32)).astype(np.float32)
    metadata |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": PIECES,
        "tokenizer.ggml.scores": np.linspace(-1, -100, len(PIECES)).astype(np.float32),
        "tokenizer.ggml.token_type": np.array(
            [2, 3, 3, *[6] * 256, *[1] * (len(PIECES) - 259)], np.int32
        ),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    write(path, metadata, tensors)
    return LanguageModel(path, backend="cpu")


def numbers(*tokens: str) -> list[int]:
    return [PIECES.index(token) for token in tokens]


def following(lm: LanguageModel, tokens: list[int], prompt: str = "ab", **options) -> str:
    """The text that the model adds where it goes on with `tokens`."""
    rows, compute = iter(tokens), lm._engine.compute

    def forced(*inputs):
        return {**compute(*inputs), "next": np.array([next(rows, 2)])}

    lm._engine.compute = forced  # type: ignore[method-assign]
    return str(lm.generate(prompt, **options))


def test_a_continuation_keeps_its_first_space(tmp_path: Path) -> None:
    lm = sentence_piece(tmp_path / "m.gguf")
    assert following(lm, numbers("▁a", "▁b")) == " a b"
    assert lm.detokenize(lm.tokenize("a b")) == "a b"
    assert lm.detokenize(numbers("<s>", "▁▁", "a")) == " a"


def test_a_text_of_its_own_has_no_first_space(tmp_path: Path) -> None:
    lm = sentence_piece(tmp_path / "m.gguf")
    assert following(lm, numbers("▁a", "▁b"), prompt=[1]) == "a b"


def test_bytes_at_the_end_are_not_lost(tmp_path: Path) -> None:
    lm = sentence_piece(tmp_path / "m.gguf")
    cut = [*numbers("a"), *(BYTE_OF[byte] for byte in "é😀".encode()[:-1])]
    assert following(lm, cut) == "aé\ufffd" == lm.detokenize(cut)
    assert following(lm, cut, stop="\ufffd") == "aé"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([*"é".encode(), 0xF0, "b"], "é\ufffdb"),
        ([0xFF, 0xFF, "a"], "\ufffd\ufffda"),
        ([0xC3, "é", 0xA9], "\ufffdé\ufffd"),
        ([0xE2, 0x82, "</s>", 0xAC], "€"),
    ],
)
def test_bytes_that_are_no_characters(tmp_path: Path, row, text) -> None:
    lm = sentence_piece(tmp_path / "m.gguf")
    tokens = [BYTE_OF[one] if isinstance(one, int) else PIECES.index(one) for one in row]
    assert following(lm, [one for one in tokens if one != 2]) == text
    assert lm.detokenize(tokens) == text


def test_unknown_tokens_are_no_text(tmp_path: Path) -> None:
    lm = sentence_piece(tmp_path / "m.gguf")
    assert following(lm, numbers("a", "<unk>", "b")) == "ab" == lm.detokenize([0, *numbers("ab")])


def decoders() -> dict[str, tuple[object, list[str]]]:
    """Decoders as files of tokenizers have them, with a vocabulary each."""
    from tokenizers import decoders as parts

    # The package takes a byte that is a space for the one that SentencePiece puts first.
    words = [word for word in PIECES[3:] if word != "<0x20>"]
    sentence = [parts.Replace("▁", " "), parts.ByteFallback(), parts.Fuse()]
    letters = ["Ã", "©", "Ġa", "b", "Ġ", "ðŁĺ", "Ģ", "日"]
    return {
        "bytes": (parts.ByteLevel(), letters),
        "sentence": (parts.Sequence([*sentence, parts.Strip(" ", 1, 0)]), words),
        "no prefix": (parts.Sequence(sentence), words),
        "metaspace": (parts.Metaspace(), ["▁", "▁a", "b", "▁▁", "é"]),
        "suffix": (parts.BPEDecoder(), ["a</w>", "b", "c</w>", "</w>"]),
        "words": (parts.WordPiece(), ["a", "##b", "c", "##", "."]),
        "none": (None, ["a", "b", "é"]),
    }


@pytest.mark.parametrize("name", decoders())
def test_pieces_are_the_text_for_any_tokens(name) -> None:
    from tokenizers import Tokenizer as Inner
    from tokenizers import models

    decoder, words = decoders()[name]
    vocabulary = {word: i for i, word in enumerate(words)}
    inner = Inner(models.BPE(vocab=vocabulary, merges=[]))
    if decoder is not None:
        inner.decoder = decoder
    inner.add_special_tokens(["<end>"])
    inner.add_tokens(["<user>"])
    tokenizer = Tokenizer(inner, None, frozenset(), False, "")
    generator, whole = np.random.default_rng(0), 0
    for _ in range(2000):
        # The last number has no token: models may have more rows than tokenizers.
        row = generator.integers(0, len(words) + 3, generator.integers(1, 9)).tolist()
        pieces = tokenizer.pieces()
        found = "".join([*map(pieces.add, row), pieces.flush()])
        assert found == tokenizer.decode(row)
        expected = inner.decode(row, skip_special_tokens=True)
        if "\ufffd" not in expected:
            whole += 1
            assert found == expected, [inner.id_to_token(one) for one in row]
        before, rest = row[: len(row) // 2], row[len(row) // 2 :]
        pieces = tokenizer.pieces(before)
        rest_text = "".join([*map(pieces.add, rest), pieces.flush()])
        if "\ufffd" not in tokenizer.decode(before) + rest_text:
            assert tokenizer.decode(before) + rest_text == found
    assert whole > 100
