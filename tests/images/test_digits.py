"""Image files as input: grey, upright, the model's size, white on black."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from glnn import data
from glnn.errors import ModelError, ShapeError
from glnn.images.preprocessing import read_image
from glnn.model import TensorInfo, load

Image = pytest.importorskip("PIL.Image")
INFO = TensorInfo("image", ("N", 1, 28, 28))


def test_digit_comes_back_bit_for_bit(tmp_path: Path) -> None:
    digit = data.digits()[0][0]
    Image.fromarray(digit).save(tmp_path / "digit.png")
    array, notes = read_image(tmp_path / "digit.png", INFO)
    assert notes == []
    assert array.shape == (1, 1, 28, 28)
    assert np.array_equal(array[0, 0], digit.astype(np.float32) / np.float32(255))


def test_dark_on_light_is_inverted(tmp_path: Path) -> None:
    digit = data.digits()[0][1]
    Image.fromarray(255 - digit).save(tmp_path / "digit.png")
    array, notes = read_image(tmp_path / "digit.png", INFO)
    assert notes == ["inverted, because the background is light"]
    assert np.array_equal(array[0, 0], digit.astype(np.float32) / np.float32(255))


def test_large_coloured_photo_is_recognised(tmp_path: Path) -> None:
    images, labels = data.digits()
    right = 0
    for number in range(10):
        paper = Image.new("RGB", (640, 480), (240, 235, 220))
        ink = Image.fromarray(images[number]).resize((480, 480))
        paper.paste((20, 20, 90), (80, 0), ink)
        paper.save(tmp_path / "photo.jpg")
        array, notes = read_image(tmp_path / "photo.jpg", INFO)
        right += int(load("lenet")(array, backend="cpu").argmax() == labels[number])
    assert notes == [
        "turned to grey",
        "resized from 640x480 to 28x28",
        "inverted, because the background is light",
    ]
    assert right >= 9


def test_transparent_background(tmp_path: Path) -> None:
    pixels = np.zeros((28, 28, 4), np.uint8)
    pixels[10:20, 10:20, 3] = 255  # an opaque black square on nothing
    Image.fromarray(pixels).save(tmp_path / "square.png")
    array, notes = read_image(tmp_path / "square.png", INFO)
    assert notes[0] == "put on white where it is transparent"
    assert array[0, 0, 15, 15] == 1
    assert array[0, 0, 0, 0] == 0


def test_photo_is_turned_as_the_camera_says(tmp_path: Path) -> None:
    pixels = np.zeros((28, 28), np.uint8)
    pixels[2, 10] = 255
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "photo.png", exif=exif)
    array, _ = read_image(tmp_path / "photo.png", INFO)
    assert np.argwhere(array[0, 0]).tolist() == [[25, 17]]


def test_sixteen_bits_are_scaled(tmp_path: Path) -> None:
    pixels = np.zeros((28, 28), np.uint16)
    pixels[5, 5] = 0x80FF
    Image.fromarray(pixels).save(tmp_path / "deep.png")
    array, _ = read_image(tmp_path / "deep.png", INFO)
    assert array[0, 0, 5, 5] == np.float32(0x80) / np.float32(255)


NO_IMAGE = r"x\.png: expected an image \(PNG, JPEG, WEBP, BMP, GIF, TIFF, PPM\)"
DAMAGED = r"x\.png: cannot be read as an image"


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", NO_IMAGE), (b"no image", NO_IMAGE), (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", DAMAGED)],
)
def test_file_that_is_no_image(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(ModelError, match=says):
        read_image(tmp_path / "x.png", INFO)


def test_truncated_image(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)
    Image.fromarray(noise).save(tmp_path / "x.png")
    content = (tmp_path / "x.png").read_bytes()
    (tmp_path / "x.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=r"x\.png: cannot be read as an image"):
        read_image(tmp_path / "x.png", INFO)


def test_missing_image(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"x\.png: no such file"):
        read_image(tmp_path / "x.png", INFO)


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        ModelError, match=r"needs Pillow: .*-m pip install 'pillow>=10.1' .*glnn\[images\]"
    ):
        read_image(tmp_path / "x.png", INFO)


@pytest.mark.parametrize("shape", [("N", 3), ("N", 3, 28, 28)])
def test_model_that_takes_no_images(tmp_path: Path, shape: tuple[int | str, ...]) -> None:
    with pytest.raises(ShapeError, match="takes no image"):
        read_image(tmp_path / "x.png", TensorInfo("x", shape))
