"""What is done to pictures, by numbers that torchvision 0.29 gave for the same picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.core.tensor_info import TensorInfo
from glnn.errors import ModelError, ShapeError
from glnn.images import (
    Preprocessing,
    PreprocessingChoice,
    from_config,
    metadata,
    read_preprocessing,
)
from glnn.images.preprocessing_config import described

Image = pytest.importorskip("PIL.Image")
PICTURE = (np.arange(9 * 11 * 3, dtype=np.int64) ** 2 * 7 % 251).astype(np.uint8).reshape(9, 11, 3)
BYTES: list[tuple[dict[str, Any], Any]] = [
    (
        {"resize": 4, "crop": 3},
        [
            [[74, 88, 93], [105, 132, 159], [99, 141, 144]],
            [[92, 113, 121], [148, 120, 148], [119, 110, 120]],
            [[133, 139, 105], [143, 99, 102], [150, 120, 94]],
        ],
    ),
    (
        {"resize": (3, 2), "interpolation": "bicubic"},
        [
            [[95, 104], [123, 145], [117, 121]],
            [[108, 142], [128, 150], [105, 126]],
            [[130, 121], [131, 109], [68, 58]],
        ],
    ),
    (
        {"crop": (2, 3)},
        [
            [[74, 161, 123], [180, 147, 240]],
            [[89, 218, 222], [155, 164, 48]],
            [[118, 38, 84], [144, 195, 121]],
        ],
    ),
    (
        {"resize": 3, "crop": (5, 2), "interpolation": "lanczos"},
        [
            [[0, 0], [85, 109], [108, 158], [104, 130], [0, 0]],
            [[0, 0], [105, 120], [131, 128], [102, 106], [0, 0]],
            [[0, 0], [139, 108], [152, 100], [71, 63], [0, 0]],
        ],
    ),
    (
        {"resize": (2, 3), "interpolation": "nearest"},
        [
            [[195, 245, 52], [181, 68, 214]],
            [[164, 131, 106], [241, 45, 108]],
            [[147, 31, 174], [64, 36, 16]],
        ],
    ),
]
NORMALISED = [
    [[0.14256364107131958, 0.6049319505691528], [0.29668641090393066, 0.348060667514801]],
    [[0.06512605398893356, 0.5553222298622131], [-0.10994395613670349, 0.06512605398893356]],
    [[-0.07895416766405106, -0.026666589081287384], [0.28705888986587524, -0.1661001294851303]],
]
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.mark.parametrize(("arguments", "expected"), BYTES, ids=lambda a: str(a)[:30])
def test_sizes_are_those_of_torchvision(arguments: dict[str, Any], expected: Any) -> None:
    found = Preprocessing(**arguments, scale=255)(PICTURE)
    assert found.dtype == np.float32
    assert found.tolist() == expected


def test_numbers_are_those_of_torchvision() -> None:
    found = Preprocessing(4, 2, **IMAGENET)(PICTURE)
    assert np.array_equal(found, np.array(NORMALISED, np.float32))


def test_the_channels_may_be_in_the_other_order_and_last() -> None:
    how = Preprocessing(4, 2, **IMAGENET)
    expected = np.array(NORMALISED, np.float32)
    first = how.sample(PICTURE, TensorInfo("x", ("N", 3, 2, 2)))
    last = how.sample(PICTURE, TensorInfo("x", ("N", 2, 2, 3)))
    assert np.array_equal(first, expected[None])
    assert np.array_equal(last, expected.transpose(1, 2, 0)[None])
    bgr = Preprocessing(4, 2, colours="BGR", mean=(0.406, 0.456, 0.485), std=(0.225, 0.224, 0.229))
    assert np.array_equal(bgr(PICTURE), expected[::-1])


def test_bytes_for_an_input_of_bytes() -> None:
    how, info = Preprocessing(crop=(2, 3)), TensorInfo("x", (1, 2, 3, 3), "tensor(uint8)")
    found = how.sample(PICTURE, info)
    assert found.dtype == np.uint8
    assert found[0].transpose(2, 0, 1).tolist() == BYTES[2][1]
    with pytest.raises(ShapeError, match="takes bytes"):
        Preprocessing(crop=(2, 3), mean=(0.5,)).sample(PICTURE, info)


def test_without_antialias_four_pixels_count() -> None:
    ramp = np.repeat(np.arange(0, 160, 10, dtype=np.uint8)[None], 16, 0)
    found = Preprocessing((2, 4), antialias=False, scale=255, colours="L")(ramp)
    # Between pixels 1 and 2, 5 and 6, ..., half way: 15, 55, 95, 135.
    assert found.tolist() == [[[15, 55, 95, 135]] * 2]
    dots = np.zeros((16, 16), np.uint8)
    dots[::4, ::4] = 255  # which is between none of those
    assert not Preprocessing((4, 4), antialias=False, colours="L")(dots).any()
    assert Preprocessing((4, 4), colours="L")(dots).any()


def test_what_is_transparent_is_put_on_white(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[1, 1] = 10, 20, 30, 255
    Image.fromarray(pixels).save(tmp_path / "x.png")
    found = Preprocessing(scale=255).read(tmp_path / "x.png", TensorInfo("x", ("N", 3, 4, 4)))
    assert found[0, :, 1, 1].tolist() == [10, 20, 30]
    assert found[0, :, 0, 0].tolist() == [255, 255, 255]


def test_a_photo_is_turned_as_the_camera_says(tmp_path: Path) -> None:
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[0, 0] = 9
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6  # the camera lay on its side
    image.save(tmp_path / "x.png", exif=exif)
    found = Preprocessing(scale=255).read(tmp_path / "x.png", TensorInfo("x", ("N", 3, 3, 2)))
    assert np.argwhere(found[0, 0] == 9).tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"resize": 0}, "resize: expected 1 to 32768 pixels"),
        ({"resize": True}, "resize: expected"),
        ({"crop": (1, 2, 3)}, "crop: expected"),
        ({"crop": 1 << 20}, "crop: expected"),
        ({"crop": "224"}, "crop: expected"),
        ({"interpolation": "cubic"}, "interpolation: expected nearest"),
        ({"interpolation": "bicubic", "antialias": False}, "always antialiased"),
        ({"antialias": "no"}, "antialias: expected a bool"),
        ({"mean": (1, 2)}, "mean: expected 3 numbers"),
        ({"mean": (0.5, float("nan"), 0.5)}, "mean: expected numbers"),
        ({"mean": ("a",)}, "mean: expected numbers"),
        ({"std": (0.5, 0, 0.5)}, "must be positive"),
        ({"std": (10**400,)}, "std: expected numbers"),
        ({"scale": -1}, "must be positive"),
        ({"std": 1e-50}, "must be positive"),  # 0 to float32
        ({"scale": None}, "scale: expected"),
        ({"colours": "CMYK"}, "colours: expected RGB, BGR, L"),
        ({"colours": "L", "mean": (1, 2, 3)}, "mean: expected one number"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        Preprocessing(**arguments)


@pytest.mark.parametrize(
    "picture", [PICTURE.astype(np.float32), PICTURE[..., :2], np.zeros((0, 3, 3), np.uint8), "x"]
)
def test_what_is_no_picture_is_refused(picture: Any) -> None:
    with pytest.raises(ShapeError, match="a picture is uint8 H x W"):
        Preprocessing()(picture)


def test_a_long_picture_does_not_fill_the_memory() -> None:
    with pytest.raises(ShapeError, match="at most"):
        Preprocessing(resize=30000)(np.zeros((1, 3000), np.uint8))


def test_json_and_back() -> None:
    for how in (Preprocessing(), Preprocessing((3, 4), 2, "nearest", False, 2.0, 0.5, (1, 2, 3))):
        assert Preprocessing.from_json(json.loads(json.dumps(how.to_json()))) == how
        assert described(metadata(how)) == how
    with pytest.raises(ModelError, match="has no 'size'"):
        Preprocessing.from_json({"size": 3})


HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
CONFIGS: list[tuple[dict[str, Any], Preprocessing]] = [
    (
        {  # Hugging Face: ViT
            **{"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3},
            **{"image_std": [0.5] * 3, "resample": 2, "size": {"height": 224, "width": 224}},
        },
        Preprocessing((224, 224), **HALF),
    ),
    (
        {  # ConvNeXt: of small pictures the centre
            **{"crop_pct": 0.875, "do_normalize": True, "do_rescale": True, "resample": 3},
            **{"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
            **{"rescale_factor": 0.00392156862745098, "size": {"shortest_edge": 224}},
        },
        Preprocessing(256, 224, "bicubic", **IMAGENET),
    ),
    (
        {"crop_pct": 0.875, "do_normalize": False, "resample": 3, "size": {"shortest_edge": 384}},
        Preprocessing((384, 384), None, "bicubic"),
    ),
    (
        {  # CLIP, all turned off
            **{"crop_size": {"height": 768, "width": 768}, "do_center_crop": False},
            **{"do_normalize": False, "do_rescale": False, "do_resize": False, "resample": 3},
        },
        Preprocessing(None, None, "bicubic", scale=255),
    ),
    (
        {  # timm
            "architecture": "vit",
            "pretrained_cfg": {
                **{"input_size": [3, 112, 112], "interpolation": "bicubic", "crop_pct": 0.9},
                **{"crop_mode": "center", "mean": [0.5] * 3, "std": [0.5] * 3},
            },
        },
        Preprocessing(124, (112, 112), "bicubic", **HALF),
    ),
    (
        {"input_size": [3, 96, 64], "crop_pct": 1.0, "crop_mode": "squash"},
        Preprocessing((96, 64), (96, 64), "bicubic", **IMAGENET),
    ),
    (
        {"input_size": [1, 64, 64], "crop_pct": 1.0, "interpolation": "random"},
        Preprocessing(64, (64, 64), colours="L"),
    ),
    (
        {"do_resize": True, "size": 224, "feature_extractor_type": "ViTFeatureExtractor"},
        Preprocessing((224, 224)),
    ),
    (
        {
            **{"do_resize": True, "size": 224, "resample": 3, "image_mean": [0.5] * 3},
            **{"image_std": [0.5] * 3, "image_processor_type": "CLIPImageProcessor"},
            **{"crop_size": 224, "do_center_crop": True, "do_convert_rgb": True},
        },
        Preprocessing(224, 224, "bicubic", **HALF),
    ),
    (
        {  # MobileViT: blue comes first
            **{"do_flip_channel_order": True, "do_center_crop": True, "crop_size": 256},
            "size": {"shortest_edge": 288},
        },
        Preprocessing(288, 256, colours="BGR"),
    ),
]


@pytest.mark.parametrize(("config", "expected"), CONFIGS)
def test_what_others_say(config: dict[str, Any], expected: Preprocessing, tmp_path: Path) -> None:
    assert from_config(config) == expected
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_preprocessing(str(tmp_path / "config.json")) == expected


@pytest.mark.parametrize(
    "config",
    [
        [],
        {"unknown": 1},
        {"do_resize": True, "size": {"longest_edge": 3}},
        {"do_resize": True, "size": 224, "resample": 9},
        {"do_pad": True},
        {"do_resize": True, "size": {"height": 8, "width": 8}, "do_pad": True},
        {"image_size": 224, "num_channels": 3, "model_type": "vit"},  # of a model
        {"do_resize": True, "size": 224},  # of a square, or of the shorter side
        {"do_color_quantize": True},
        {"do_resize": True, "size": {"shortest_edge": 8}, "rescale_offset": True},
        {"do_normalize": True, "image_mean": [0.5] * 3},
        {"input_size": [3, 96, 64], "crop_pct": 1.0},
        {"do_rescale": True, "rescale_factor": "1/255"},
        {"input_size": [3, 224]},
        {"input_size": [3, 224, 224], "crop_pct": 7},
        {"input_size": [3, 224, 224], "crop_mode": "border"},
    ],
)
def test_what_nobody_says_is_refused(config: Any) -> None:
    with pytest.raises(ModelError):
        from_config(config)


def test_what_onnx_says() -> None:
    said = {"Image.BitmapPixelFormat": "Bgr8", "Image.NominalPixelRange": "NominalRange_0_255"}
    assert described(said) == Preprocessing(scale=255, colours="BGR")
    assert described({"Image.NominalPixelRange": "Normalized_1_1"}) == Preprocessing(
        mean=(0.5,), std=(0.5,)
    )
    assert described({"author": "nobody"}) is None
    for wrong in ({"Image.BitmapPixelFormat": "Rgba8"}, {"preprocessing": "{"}):
        with pytest.raises(ModelError, match="metadata"):
            described(wrong)


def test_what_is_left_open_is_the_inputs() -> None:
    square, wide = TensorInfo("x", ("N", 3, 64, 64)), TensorInfo("x", ("N", 48, 64, 3))
    assert PreprocessingChoice.for_input(square, {}) == PreprocessingChoice(
        Preprocessing(64, 64), assumed=True
    )
    assert PreprocessingChoice.for_input(wide, {}) == PreprocessingChoice(
        Preprocessing((48, 64)), assumed=True
    )
    assert PreprocessingChoice.for_input(square, {}, {"resize": 72}).preprocessing == Preprocessing(
        72, (64, 64)
    )
    assert PreprocessingChoice.for_input(square, {}, {"crop": 64}) == PreprocessingChoice(
        Preprocessing(crop=64)
    )
    grey = TensorInfo("x", ("N", 1, 8, 8))
    assert PreprocessingChoice.for_input(grey, {}, {"mean": 0.5}).preprocessing == Preprocessing(
        8, 8, mean=0.5, colours="L"
    )
    free = TensorInfo("x", ("n", 3, "h", "w"), free=True)
    assert PreprocessingChoice.for_input(free, {}).preprocessing == Preprocessing()
    said = metadata(Preprocessing(9, 8, "bicubic", mean=0.5, colours="L"))
    assert PreprocessingChoice.for_input(grey, said, {"mean": (0.25,)}).preprocessing.mean == (
        0.25,
    )
    assert (
        PreprocessingChoice.for_input(grey, said, {"mean": (0.25,)}).preprocessing.interpolation
        == "bicubic"
    )
    with pytest.raises(ShapeError, match="takes 3 channels, L has 1"):
        PreprocessingChoice.for_input(square, said)
    with pytest.raises(ModelError, match="expected no less"):
        PreprocessingChoice.for_input(square, {}, {"resize": 32})


def test_imagenets_is_as_large_as_the_input() -> None:
    """By the proportion of 256 to 224; what is kept lies within what was resized."""
    square, wide = TensorInfo("x", ("N", 3, 299, 299)), TensorInfo("x", ("N", 96, 128, 3))
    free = TensorInfo("x", ("n", 3, "h", "w"), free=True)
    for info, resize, crop in ((square, 341, 299), (wide, 146, (96, 128)), (free, 256, 224)):
        how = Preprocessing.imagenet(info)
        assert (how.resize, how.crop) == (resize, crop)
        assert how.mean == Preprocessing.imagenet().mean
        how.sample(PICTURE, info)
    with pytest.raises(ShapeError, match="takes no image"):
        Preprocessing.imagenet(TensorInfo("x", ("N", 64)))


@pytest.mark.parametrize("shape", [("N", 64), ("N", 4, 8, 8), ("N", 2, 8, 5)])
def test_inputs_that_take_no_pictures(shape: tuple[Any, ...]) -> None:
    with pytest.raises(ShapeError, match="takes no image"):
        PreprocessingChoice.for_input(TensorInfo("x", shape), {})


def test_a_picture_that_becomes_another_size_is_refused() -> None:
    with pytest.raises(ShapeError, match="becomes 9 x 11"):
        Preprocessing().sample(PICTURE, TensorInfo("x", ("N", 3, 8, 8)))
