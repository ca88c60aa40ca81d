"""What README.md has a reader do: its samples run, and it stays a page."""

from __future__ import annotations

import json
import re
import shlex
import sys
import wave
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich_click as click

import glnn
from glnn.cli import VERBS
from glnn.cli import cli as command_line
from glnn.layers import AdaptiveAvgPool2d, Flatten
from tests.cli.conftest import Glnn, cli
from tests.generation.gguf_files import small_model
from tests.generation.speech.whisper_folders import hugging_face, weights

__all__ = ["cli"]  # a fixture

README = Path(__file__).parents[1] / "README.md"
if not README.exists():
    pytest.skip("README.md is not part of the package", allow_module_level=True)
TEXT = README.read_text("utf-8")
SAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_it_is_a_page() -> None:
    assert TEXT.count("\n") <= 150
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert len(links) <= 10
    assert not [link for link in links if not (README.parent / link).exists()]


COMMANDS = sorted(
    line
    for block in re.findall(r"```sh\n(.*?)```|`(glnn [a-z]+ [^`]+)`", TEXT, re.DOTALL)
    for line in "\n".join(block).splitlines()
    if re.match(r"(~/glnn/bin/)?glnn ", line)
)
LONG = ("doctor", "bench --suite")
"""Commands of minutes, which tests of their own run in parts: their options are looked at."""


def test_commands_are_found() -> None:
    verbs = {line.split("glnn ")[1].split()[0] for line in COMMANDS}
    assert verbs == {"info", "run", "chat", "transcribe", "bench", "doctor"}
    makefile = (README.parent / "Makefile").read_text("utf-8")
    for target in re.findall(r"^make (\S+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Glnn
) -> None:
    for package in ("onnx", "tokenizers", "PIL"):
        pytest.importorskip(package)
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLNN_BACKEND", "cpu")
    monkeypatch.setattr(sys, "stdin", StringIO("hello\n"))
    layers = [AdaptiveAvgPool2d(1), Flatten()]
    glnn.Model.sequential(layers, (3, 32, 32)).save("net.onnx")
    Path("photos").mkdir()
    Image.new("RGB", (40, 30), (20, 30, 200)).save("photos/a.jpg")
    Path("classes.txt").write_text("red\ngreen\nblue\n")
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}a"
    more = {"llama.context_length": 512, "tokenizer.chat_template": template}
    small_model(Path("model.gguf"), "llama", **more)
    hugging_face(Path("whisper-folder"), weights(0))
    with wave.open("talk.wav", "wb") as talk:
        talk.setparams((1, 2, 16000, 0, "NONE", ""))
        talk.writeframes(bytes(3200))
    words = shlex.split(line, comments=True)[1:]
    if " ".join(words).startswith(LONG):
        parent = click.Context(command_line, **command_line.context_settings)
        command = command_line.get_command(parent, words[0])
        assert command is not None
        command.make_context(words[0], words[1:], parent)  # which refuses what it does not know
    else:
        done = cli(*words)
        assert done.code == 0, done


def test_its_numbers_are_those_of_its_pages() -> None:
    docs = README.parent / "docs"
    number = r"Of the ([\d,]+) node tests of ONNX's own suite ([\d,]+) pass"
    (nodes,) = re.findall(number, TEXT)
    assert f"| node, {nodes[0]} | {nodes[1]} |" in (docs / "onnx.md").read_text("utf-8")
    tried = (README.parent / "tests/programs/check.py").read_text("utf-8").count("\n    Program(")
    assert f"{tried} by others" in TEXT
    rows = (docs / "programs.md").read_text("utf-8").split("## Programs that were tried")[1]
    assert len(re.findall(r"^\| \S+ \d", rows, re.MULTILINE)) == tried


@pytest.mark.parametrize("size", [(224, 224), (299, 299), (96, 128)])
def test_a_picture_is_classified(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    size: tuple[int, int],
) -> None:
    pytest.importorskip("onnx")
    image = pytest.importorskip("PIL.Image")
    layers = [AdaptiveAvgPool2d(1), Flatten()]  # the mean of each channel
    glnn.Model.sequential(layers, (3, *size)).save(tmp_path / "net.onnx")
    image.new("RGB", (320, 240), (20, 30, 200)).save(tmp_path / "photo.jpg")
    (tmp_path / "classes.txt").write_text("red\ngreen\nblue\n")
    monkeypatch.chdir(tmp_path)
    assert SAMPLES[0].count("\n") == 6
    exec(SAMPLES[0], {})
    assert capsys.readouterr().out == "blue\n"


def test_a_language_model_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    small_model(tmp_path / "model.gguf", "llama", **{"llama.context_length": 64})
    monkeypatch.chdir(tmp_path)
    assert SAMPLES[1].count("\n") == 2
    exec(SAMPLES[1], {"glnn": glnn})
    model = glnn.LanguageModel("model.gguf", backend="cpu")
    expected = model.generate("The capital of France is", max_tokens=16)
    assert capsys.readouterr().out == f"{expected}\n" and expected


def test_all_verbs_are_named() -> None:
    """In the block of commands, or the sentences behind it."""
    section = TEXT.split("## On the command line")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z]+)`|glnn ([a-z]+)", section))
    assert {one or other for one, other in named} >= set(VERBS)


def test_the_names_of_onnx_runtime() -> None:
    assert SAMPLES[2].count("\n") == 1
    names: dict[str, object] = {}
    exec(SAMPLES[2], names)
    assert names["ort"] is glnn.onnxruntime


def test_a_network_of_pytorch_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten())
    images = np.random.default_rng(0).random((1, 1, 28, 28), np.float32)
    assert SAMPLES[3].count("\n") == 3
    names: dict[str, Any] = {"glnn": glnn, "torch": torch, "net": net, "images": images}
    exec(SAMPLES[3], names)
    expected = net(torch.tensor(images)).detach().numpy()
    np.testing.assert_allclose(names["y"], expected, atol=1e-5)
    np.testing.assert_allclose(glnn.load("net.onnx")(images), expected, atol=1e-5)


def test_networks_beside_the_graph_are_as_many_as_were_measured() -> None:
    rows = json.loads((README.parent / "benchmarks/measured/networks.json").read_text())["rows"]
    times: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        pair = times.setdefault((row["network"], row["batch"]), {})
        pair[row["name"]] = row["median_ms"]
    ratios = [pair["glnn"] / pair["PyTorch CUDA graph"] for pair in times.values()]
    said = re.search(r"graph in (\d+) of (\d+) cases, and at most ([\d.]+) times that", TEXT)
    assert said is not None
    good, pairs, worst = said.groups()
    assert (int(good), int(pairs)) == (sum(one <= 1 for one in ratios), len(ratios))
    assert float(worst) - 0.01 < max(ratios) <= float(worst)
