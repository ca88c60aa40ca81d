"""Preprocessing in metadata and configuration files: glnn's, ONNX's, Hugging Face's, timm's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glnn.errors import ModelError, shown
from glnn.fileio import check_file, read_bytes
from glnn.images.preprocessing import Preprocessing
from glnn.images.ultralytics import Export, Shapes

KEY = "preprocessing"
"""Under which a model's metadata have it, as JSON."""
MOST = 1 << 24  # bytes of a file that describes
IMAGENET = Preprocessing.imagenet()
SHORTEST = ("bit", "chineseclip", "clip", "convnext", "levit", "mobile", "poolformer")
"""How the names of Hugging Face's processors begin to which a size of one number is the shorter
side; to all others it is that of a square."""
IGNORED = frozenset({"do_convert_rgb", "do_reduce_labels"})
KNOWN = frozenset(
    {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_flip_channel_order"}
)
"""The `do_` entries that glnn follows, besides those of IGNORED, which change nothing."""
HUGGING_FACE = KNOWN | {"image_mean", "image_processor_type", "feature_extractor_type"}
"""The entries that only preprocessing files have: a model's file, too, has an image_size."""
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
FORMATS: Mapping[str, dict[str, Any]] = {
    "gray8": {"colours": "L"},
    "rgb8": {"colours": "RGB"},
    "bgr8": {"colours": "BGR"},
}
RANGES: Mapping[str, dict[str, Any]] = {
    "nominalrange_0_255": {"scale": 255.0},
    "normalized_0_1": {},
    "normalized_1_1": {"mean": (0.5,), "std": (0.5,)},
}
"""The ranges of ONNX, in small letters."""


def described(metadata: Mapping[str, str], outputs: Shapes = ()) -> Preprocessing | None:
    """Return the preprocessing in a model's metadata; None where there is none.

    metadata: glnn's `preprocessing`, ONNX's `Image.` entries, or those of Ultralytics' exports.
    outputs: the shapes of the model's outputs.
    Raises ModelError where these cannot be understood.
    """
    if KEY in metadata:
        try:
            document = json.loads(metadata[KEY])
        except (ValueError, RecursionError):
            raise ModelError(
                f"metadata {KEY!r}: expected JSON, got {shown(metadata[KEY])}"
            ) from None
        try:
            return from_config(document)
        except ModelError as error:
            raise ModelError(f"metadata {KEY!r}: {error}") from None
    small = {key.lower(): text.lower() for key, text in metadata.items()}
    found = _onnx({key: text for key, text in small.items() if key.startswith("image.")})
    export = None if found is not None else Export.of(metadata, outputs)
    return found if export is None else export.preprocessing


def _onnx(said: Mapping[str, str]) -> Preprocessing | None:
    """Return the preprocessing in ONNX's `Image.` entries; None without any."""
    known = {"image.bitmappixelformat": FORMATS, "image.nominalpixelrange": RANGES}
    asked: dict[str, Any] = {}
    for key, values in known.items():
        if key not in said:
            continue
        if said[key] not in values:
            listed = ", ".join(values)
            raise ModelError(f"metadata {key!r}: expected {listed}, got {shown(said[key])}")
        asked |= values[said[key]]
    if said.get("image.colorspacegamma", "srgb") != "srgb":
        gamma = said["image.colorspacegamma"]
        raise ModelError(f"metadata 'image.colorspacegamma': expected srgb, got {shown(gamma)}")
    return Preprocessing(**asked) if known.keys() & said.keys() else None


def read_preprocessing(text: str) -> Preprocessing:
    """Return the preprocessing that `text` names: `imagenet`, or a file of `Preprocessing.to_json`,
    Hugging Face (`preprocessor_config.json`) or timm (`config.json`).

    Raises ModelError for anything else.
    """
    if text == "imagenet":
        return Preprocessing.imagenet()
    path = Path(text)
    document = read_json(path)
    try:
        return from_config(document)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def read_json(path: Path) -> Any:
    """Read a .json file. Raises ModelError where it is none."""
    check_file(path)
    try:
        return json.loads(read_bytes(path, MOST))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: expected JSON") from None


def from_config(document: object) -> Preprocessing:
    """Convert the JSON object of a preprocessing, of glnn, Hugging Face or timm.

    Raises ModelError for one that nobody of these writes.
    """
    if not isinstance(document, dict):
        raise ModelError(f"a preprocessing is a JSON object, got {shown(document)}")
    timm = document.get("pretrained_cfg", document)
    if isinstance(timm, dict) and "input_size" in timm:
        return _timm(timm)
    if not document.keys().isdisjoint(HUGGING_FACE):
        return _hugging_face(document)
    return Preprocessing.from_json(document)


def _timm(cfg: Mapping[str, Any]) -> Preprocessing:
    """Convert timm's pretrained_cfg: pictures are resized so that the crop is crop_pct of them."""
    size, part = cfg["input_size"], cfg.get("crop_pct") or 0.875
    if not _whole(size, 3) or not isinstance(part, (int, float)) or not 0.1 <= part <= 1:
        raise ModelError(f"input_size and crop_pct: got {shown(size)} and {shown(part)}")
    channels, height, width = size
    larger = [int(n / part) for n in (height, width)]
    mode = cfg.get("crop_mode") or "center"
    if mode not in ("center", "squash") or channels not in (1, 3):
        raise ModelError(f"crop_mode {shown(mode)} of {channels} channels is none that glnn knows")
    if mode == "center" and larger[0] != larger[1]:
        raise ModelError(f"crop_mode center of {height} x {width}: expected as high as wide")
    name = cfg.get("interpolation") or "bicubic"
    coloured = channels == 3
    resize: Any = larger if mode == "squash" else larger[0]
    return Preprocessing(
        resize,
        (height, width),
        "bilinear" if name == "random" else name,
        mean=cfg.get("mean") or (IMAGENET.mean if coloured else ()),
        std=cfg.get("std") or (IMAGENET.std if coloured else ()),
        colours="RGB" if coloured else "L",
    )


def _hugging_face(config: Mapping[str, Any]) -> Preprocessing:
    """Convert a preprocessor_config.json: the operations of its `do_` entries, each with its
    default.
    """
    factor = config.get("rescale_factor", 1 / 255)
    normalised = config.get("do_normalize", True)
    asked = [key for key, value in config.items() if key.startswith("do_") and value]
    asked += [key for key in ("offset", "rescale_offset", "include_top") if config.get(key)]
    if unknown := [key for key in asked if key not in KNOWN | IGNORED]:
        raise ModelError(f"{shown(unknown[0])} is not known here")
    if not isinstance(factor, (int, float)):
        raise ModelError(f"rescale_factor: expected a number, got {shown(factor)}")
    if config.get("do_normalize") and not (config.get("image_mean") and config.get("image_std")):
        raise ModelError("do_normalize: expected image_mean and image_std")
    crop = config.get("do_center_crop", "crop_size" in config) or None
    resize = _resize(config) if config.get("do_resize", True) else None
    crop = crop and _edges(config.get("crop_size"))
    part = config.get("crop_pct")
    if isinstance(resize, int) and isinstance(part, (int, float)) and not crop and 0.1 <= part <= 1:
        # As for ConvNeXt: of small pictures the centre, larger ones in whole.
        resize, crop = (int(resize / part), resize) if resize < 384 else ((resize,) * 2, None)
    number = config.get("resample", 2)
    if number not in range(len(RESAMPLE)):
        raise ModelError(f"resample: expected 0 to {len(RESAMPLE) - 1}, got {shown(number)}")
    return Preprocessing(
        resize,
        crop,
        RESAMPLE[number],
        scale=255 * factor if config.get("do_rescale", True) else 255.0,
        mean=(config.get("image_mean") or ()) if normalised else (),
        std=(config.get("image_std") or ()) if normalised else (),
        colours="BGR" if config.get("do_flip_channel_order") else "RGB",
    )


def _resize(config: Mapping[str, Any]) -> Any:
    """The size that pictures get. One number, as old files have it, is that of a square, but to
    some processors that of the shorter side.
    """
    size = _edges(config.get("size"))
    if size is None or isinstance(config.get("size"), dict):
        return size
    names = (config.get(f"{kind}_type") for kind in ("image_processor", "feature_extractor"))
    name = next((one for one in names if isinstance(one, str)), None)
    if name is None:
        raise ModelError(
            f"size {size}: expected shortest_edge, or height and width, or an image_processor_type"
        )
    return size if name.lower().startswith(SHORTEST) else (size, size)


def _edges(size: object) -> Any:
    """Convert a size of Hugging Face: a number, or an object of edges."""
    if isinstance(size, dict):
        if "shortest_edge" in size and size.get("longest_edge") is None:
            return size["shortest_edge"]
        if {"height", "width"} <= set(size):
            return (size["height"], size["width"])
    elif size is None or _whole([size], 1):
        return size
    raise ModelError(f"a size has shortest_edge, or height and width, got {shown(size)}")


def _whole(values: object, count: int) -> bool:
    return (
        isinstance(values, (list, tuple))
        and len(values) == count
        and all(type(n) is int and n > 0 for n in values)
    )
