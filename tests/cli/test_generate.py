"""`glnn generate` and `glnn chat`: texts, conversations, and what a script reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from glnn.generation.language_model import LanguageModel
from tests.generation.gguf_files import small_model

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}a"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "m.gguf"
    small_model(path, "llama", **{"tokenizer.chat_template": TEMPLATE})
    return path


def glnn(*words: object, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "glnn", *map(str, words), "--backend", "cpu"]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, env={**os.environ}
    )


def test_a_text_is_continued(model: Path) -> None:
    done = glnn("generate", model, "-p", "abc", "--max-tokens", 6, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and 1 <= found["tokens"] <= 6 and found["first_token_s"] > 0
    plain = glnn("generate", model, "-p", "-", "--max-tokens", 6, given="abc")
    assert plain.stdout == found["text"] + "\n"
    assert "tokens/s" in plain.stderr and "cpu" in plain.stderr


def test_the_count_is_that_of_the_generated_tokens(model: Path) -> None:
    found = json.loads(glnn("generate", model, "-p", "abc", "--max-tokens", 6, "--json").stdout)
    generation = LanguageModel(model, backend="cpu").start("abc", max_tokens=6)
    assert found["text"] == "".join(generation) and found["tokens"] == len(generation.tokens)


def test_a_conversation_goes_on_and_is_forgotten(model: Path) -> None:
    done = glnn("chat", model, "--max-tokens", 3, "--json", given="ab\nab\n/reset\nab\n/exit\nab\n")
    first, second, third = (json.loads(line)["text"] for line in done.stdout.splitlines())
    assert first == third != second


def test_a_conversation_beyond_the_context_says_so(model: Path) -> None:
    done = glnn("chat", model, "--context", 8, "--max-tokens", 3, given="ab\n" * 5)
    assert done.returncode == 2 and "tokens, the context 8" in done.stderr


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"no model")
    done = glnn("generate", tmp_path / "x.gguf", "-p", "a")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "x.gguf" in done.stderr
