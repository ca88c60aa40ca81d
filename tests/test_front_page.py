"""What README.md has a reader do: its samples run, and it stays a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import glnn
from tests.generation.gguf_files import small_model

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


def test_a_picture_is_classified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    image = pytest.importorskip("PIL.Image")
    from glnn.layers import AdaptiveAvgPool2d, Flatten

    layers = [AdaptiveAvgPool2d(1), Flatten()]  # the mean of each channel
    glnn.Model.sequential(layers, (3, 224, 224)).save(tmp_path / "net.onnx")
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


def test_the_names_of_onnx_runtime() -> None:
    assert SAMPLES[2].count("\n") == 1
    names: dict[str, object] = {}
    exec(SAMPLES[2], names)
    assert names["ort"] is glnn.onnxruntime
