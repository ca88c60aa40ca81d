"""Every example runs, from a folder that is not the repository."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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
}
"""What they say, and the picture that they write."""
ENGINES = ("12_ray_data", "13_ray_serve", "14_http_service")
"""Those on engines that have an environment of their own: `make check-engines` runs them."""
ARGUMENTS = {"10_train_lenet": ("--epochs", "1")}
"""What makes an example shorter."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example_runs(path, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path), *ARGUMENTS.get(path.stem, ())])
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as stop:
        assert stop.code == 0, capsys.readouterr().out
    except ModuleNotFoundError as missing:
        if path.stem in ENGINES:
            pytest.skip(f"{missing.name}: make check-engines has it")
        skip(missing)
    said = capsys.readouterr().out
    *texts, picture = FOUND.get(path.stem, ("", ""))
    assert said and all(text in said for text in texts), said
    if picture:
        with Image.open(tmp_path / picture) as image:
            assert np.ptp(np.asarray(image.convert("L"))) > 100  # something is drawn


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8 and {path.stem for path in EXAMPLES} > set(FOUND)
