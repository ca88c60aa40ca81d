"""`glnn transcribe`: text, subtitles, and what a script reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import wave
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from glnn import SpeechToText
from glnn.generation.speech.subtitles import srt, vtt
from tests.generation.speech.whisper_folders import hugging_face, weights


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return hugging_face(tmp_path_factory.mktemp("models"), weights())


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "a.wav"
    noise = np.random.default_rng(0).standard_normal(24000) * 3000
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(noise.astype("<i2").tobytes())
    return path


def glnn(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "glnn", "transcribe", *map(str, words), "--backend", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ})


def test_what_is_said_is_written_in_each_form(model: Path, recording: Path) -> None:
    expected = SpeechToText(model, backend="cpu").transcribe(recording, language="de")
    assert len(expected.segments) > 1
    plain = glnn(model, recording, "--language", "de")
    assert plain.stdout.splitlines() == [one.text.strip() for one in expected.segments]
    assert "1.5 s in" in plain.stderr and "de, cpu" in plain.stderr
    assert glnn(model, recording, "--language", "de", "--srt").stdout == srt(expected.segments)
    assert glnn(model, recording, "--language", "de", "--vtt").stdout == vtt(expected.segments)
    found = json.loads(glnn(model, recording, "--language", "de", "--json").stdout)
    assert (found["text"], found["language"]) == (expected.text, "de")
    assert (found["duration_s"], found["backend"]) == (1.5, "cpu")
    for one, segment in zip(found["segments"], expected.segments, strict=True):
        assert (one["start"], one["end"], one["text"]) == (segment.start, segment.end, segment.text)


def test_options_are_those_of_python(model: Path, recording: Path) -> None:
    speech = SpeechToText(model, backend="cpu", beams=3)
    expected = speech.transcribe(
        recording, task="translate", prompt="ab", condition_on_previous_text=True,
        temperature=[0.4, 0.8],
    )  # fmt: skip
    found = glnn(
        model, recording, "--beams", 3, "--task", "translate", "--prompt", "ab",
        "--condition-on-previous-text", "--temperature", "0.4,0.8", "--json",
    )  # fmt: skip
    assert json.loads(found.stdout)["text"] == expected.text


def test_times_of_words_are_in_json(model: Path, recording: Path) -> None:
    speech = SpeechToText(model, backend="cpu")
    expected = speech.transcribe(recording, language="de", words=True)
    found = json.loads(glnn(model, recording, "--language", "de", "--words", "--json").stdout)
    for one, segment in zip(found["segments"], expected.segments, strict=True):
        assert one["words"] == [asdict(word) for word in segment.words]
    assert any(one["words"] for one in found["segments"])
    plain = json.loads(glnn(model, recording, "--language", "de", "--json").stdout)
    assert not any(one["words"] for one in plain["segments"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--srt", "--vtt"), "--srt, --vtt and --json exclude each other"),
        (("--language", "xx"), "language must be one of en, de, fr, got 'xx'"),
        (("--beams", 0), "--beams"),
        (("--temperature", "0,x"), "must be numbers with commas between, got '0,x'"),
        (("--temperature", "-1"), "temperature must be a number of 0 or more, or several, got"),
    ],
)
def test_what_cannot_be(model: Path, recording: Path, words, message) -> None:
    done = glnn(model, recording, *words)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_files_that_are_not_there(model: Path, tmp_path: Path) -> None:
    done = glnn(model, tmp_path / "a.wav")
    assert done.returncode == 2 and "a.wav: no such file" in done.stderr
    done = glnn(tmp_path, tmp_path / "a.wav", "--json")
    assert done.returncode == 2 and "config.json" in json.loads(done.stdout)["error"]
