"""`glnn generate` and `glnn chat`: texts, conversations, and what a script reads."""

from __future__ import annotations

import io
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


@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_what_was_written_before_ctrl_c_is_printed(model: Path, verb, monkeypatch, capsys) -> None:
    import click

    from glnn.cli.generate import chat, generate
    from glnn.generation.engine import Engine

    compute, count = Engine.compute, 0

    def interrupted(self, *inputs):
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return compute(self, *inputs)

    whole = json.loads(glnn("generate", model, "-p", "aba", "--max-tokens", 9, "--json").stdout)
    monkeypatch.setattr(Engine, "compute", interrupted)
    options = [str(model), "--backend", "cpu", "--max-tokens", "9"]
    if verb == "generate":
        with pytest.raises(click.Abort):
            generate.main([*options, "-p", "aba"], standalone_mode=False)
        assert capsys.readouterr().out == whole["text"][:3]
        count = 0
        code = generate.main([*options, "-p", "aba", "--json"], standalone_mode=False)
        assert code == 130
    else:
        monkeypatch.setattr("sys.stdin", io.StringIO("ab\n"))
        chat.main([*options, "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["interrupted"] is True and found["text"] and found["tokens"] == 3
    assert verb == "chat" or whole["text"].startswith(found["text"])


@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_input_that_is_no_text_is_refused(model: Path, verb) -> None:
    more = ["-p", "-"] if verb == "generate" else []
    command = [sys.executable, "-m", "glnn", verb, str(model), *more, "--backend", "cpu"]
    env = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, input=b"ab\xff\n", capture_output=True, timeout=60, env=env)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"glnn: standard input must be utf-8, got b'\\xff\\n'\n"
    done = glnn("generate", model, "-p", "a\udcff")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "text must be Unicode" in done.stderr


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"no model")
    done = glnn("generate", tmp_path / "x.gguf", "-p", "a")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "x.gguf" in done.stderr
