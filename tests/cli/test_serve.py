"""`glnn serve`: how it begins, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from glnn.core.settings import Settings, describe_environment
from tests.generation.gguf_files import small_model

Process = subprocess.Popen[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    small_model(path, "llama")
    return path


def command(model: Path, *words: object) -> list[str]:
    return [sys.executable, "-m", "glnn", "serve", str(model), "--backend", "cpu", *map(str, words)]


@contextmanager
def serving(model: Path, *words: object, **environment: str) -> Iterator[tuple[Process, dict]]:
    """The process, and what it says of itself once it listens."""
    process = subprocess.Popen(
        command(model, "--port", 0, "--json", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        lines = iter(process.stdout.readline, "}\n")
        yield process, json.loads("".join(lines) + "}")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_until_it_is_stopped(model: Path, number) -> None:
    with serving(model, "--sequences", 2, "--queue", 3) as (process, said):
        assert said["url"].startswith("http://127.0.0.1:")
        assert (said["context"], said["sequences"], said["queue"]) == (24, 2, 3)
        body = json.dumps({"prompt": "abc", "max_tokens": 3}).encode()
        with urlopen(f"{said['url']}/v1/completions", body, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] <= 3
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    first, last = errors.splitlines()
    assert f"at {said['url']}/v1; Ctrl-C ends" in first and last == "glnn: stopped"


@pytest.mark.parametrize("key", ["option", "environment"])
def test_a_key_comes_from_an_option_or_the_environment(model: Path, key) -> None:
    words = ("--api-key", "option") if key == "option" else ()
    with serving(model, *words, GLNN_API_KEY="environment") as (_, said):
        url = f"{said['url']}/v1/models"
        with pytest.raises(HTTPError, match="401"):
            urlopen(url, timeout=60)
        asked = Request(url, headers={"Authorization": f"Bearer {key}"})
        with urlopen(asked, timeout=60) as answer:
            assert json.load(answer)["data"][0]["id"] == "small"


def test_a_key_is_in_no_report() -> None:
    environment = {"GLNN_API_KEY": "secret", "GLNN_TRUST": "1"}
    assert describe_environment(environment) == {"GLNN_TRUST": "1"}
    settings = Settings.from_environment(environment)
    assert settings.api_key == "secret" and "secret" not in repr(settings)


def test_listening_to_others_without_a_key_is_pointed_out(model: Path) -> None:
    with serving(model, "--host", "0.0.0.0") as (process, _):
        process.send_signal(signal.SIGINT)
        assert "--api-key keeps others out" in process.communicate(timeout=30)[1]


def failing(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    return done.stderr


def test_an_address_that_is_taken_or_unknown(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = failing(*command(model, "--port", port))
    assert f"cannot listen at 127.0.0.1 port {port}: Address already in use" in said
    assert "--host: cannot listen at 'no.such.host.invalid'" in failing(
        *command(model, "--host", "no.such.host.invalid")
    )


def test_a_package_that_is_missing_is_named(model: Path) -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from glnn.__main__ import main; main()"
    said = failing(sys.executable, "-c", code, "serve", str(model))
    assert "a server needs the package uvicorn" in said and "glnn[serve]" in said


def test_help_has_examples() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "glnn", "serve", "--help"], capture_output=True, text=True
    )
    assert "glnn serve model.gguf" in done.stdout.partition("Examples:")[2]
