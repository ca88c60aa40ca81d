"""Preprocessing from a model's metadata or a configuration file.

Metadata are glnn's, ONNX's and those of exports by Ultralytics; files are glnn's, Hugging Face's
and timm's.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glnn.core.fileio import check_file, read_bytes
from glnn.core.tensor_info import TensorInfo
from glnn.errors import ModelError, ShapeError, shown
from glnn.images.labels import Labels, labels_of
from glnn.images.preprocessing import ImageInput, Preprocessing

TASKS = ("detect", "segment", "pose", "classify")
"""The tasks whose outputs glnn reads; others, as oriented boxes (obb), it does not."""
FRAME = (640, 640)
"""The default size of frames, in pixels."""
BORDER = 114
"""The grey value around a picture in its frame."""
CLASSIFIER_PREPROCESSING = Preprocessing.imagenet()
LONGEST = 1 << 16  # characters of a metadata entry
SIDES = (1, 1 << 15)
Shapes = Collection[Sequence[int | str]]
"""The shapes of a model's outputs."""


@dataclass(frozen=True)
class UltralyticsExport:
    """The metadata of an export."""

    task: str | None
    """One of TASKS or another; None where the metadata lack it, as YOLOv5's detectors."""
    labels: Labels
    """Names by the numbers of classes."""
    size: tuple[int, int] | None = None
    """Height and width of the pictures that the model was exported for."""
    stride: int = 1
    """Heights and widths must be multiples of this number."""
    keypoints: tuple[int, int] = (0, 0)
    """The number of keypoints of an object, and of values of each: x, y, and maybe a score."""
    compared: bool | None = None
    """Whether the model contains non-maximum suppression (end2end, nms); None where unknown."""
    yolov5: bool = False
    """Whether it is a classifier of YOLOv5, whose colours are normalised by ImageNet's."""

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, str], outputs: Shapes = ()
    ) -> UltralyticsExport | None:
        """Read a model's metadata; None where they are not those of an export by Ultralytics.

        outputs: shapes, which distinguish classifiers from detectors where the metadata have no
        task.
        """
        task, labels = metadata.get("task"), labels_of(metadata)
        stride = _value(metadata, "stride")
        is_export = stride is not None if task is None else task in (*TASKS, "obb")
        if "names" not in metadata or labels is None or not is_export:
            return None
        size, keypoints = _pair(_value(metadata, "imgsz")), _pair(_value(metadata, "kpt_shape"))
        step = stride if _is_side(stride) else 1
        yolov5 = task is None and _is_scores(outputs, len(labels))
        task = "classify" if yolov5 else task
        return cls(task, labels, size, step, keypoints or (0, 0), _compares_boxes(metadata), yolov5)

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of pictures: letterboxed, except for classifiers."""
        if self.task == "classify":
            is_square = self.size is not None and self.size[0] == self.size[1]
            resize = self.size[0] if self.size is not None and is_square else self.size
            if self.yolov5:
                mean, std = CLASSIFIER_PREPROCESSING.mean, CLASSIFIER_PREPROCESSING.std
                return Preprocessing(resize, resize, antialias=False, mean=mean, std=std)
            return Preprocessing(resize, resize)
        return Preprocessing(self.size or FRAME, antialias=False, letterbox=BORDER)


def stride_of(metadata: Mapping[str, str], outputs: Shapes = ()) -> int:
    """Return the number whose multiples heights and widths must be, by a model's metadata."""
    result = UltralyticsExport.from_metadata(metadata, outputs)
    return 1 if result is None or result.task == "classify" else result.stride


def check_multiples(size: tuple[int, int], stride: int, what: str) -> None:
    """Raise ShapeError where a side is no multiple of `stride`; it names the nearest sizes."""
    if not any(side % stride for side in size):
        return
    below = [max(stride, side // stride * stride) for side in size]
    above = [-(-side // stride) * stride for side in size]
    nearest = " or ".join(dict.fromkeys(f"{h} x {w}" for h, w in (below, above)))
    raise ShapeError(
        f"{what} is {size[0]} x {size[1]}: the model takes heights and widths that are multiples "
        f"of {stride}, as {nearest}"
    )


def _is_scores(outputs: Shapes, classes: int) -> bool:
    """Return True where the only output is (n, classes), scores and no boxes."""
    shapes = [tuple(shape) for shape in outputs]
    return len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][1] == classes


def _compares_boxes(metadata: Mapping[str, str]) -> bool | None:
    """Return `UltralyticsExport.compared`.

    It is unknown without `end2end`: YOLOv10 needs no nms, and its exports have nms=False.
    """
    end2end, options = _value(metadata, "end2end"), _value(metadata, "args")
    if end2end is True or (isinstance(options, dict) and options.get("nms") is True):
        return True
    return False if end2end is False else None


def _value(metadata: Mapping[str, str], key: str) -> Any:
    """Parse the Python literal of an entry; return None for any other text."""
    text = metadata.get(key, "")
    if not 0 < len(text) <= LONGEST:
        return None
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _pair(value: object) -> tuple[int, int] | None:
    """Return two sides; one number stands for both. None for any other value."""
    sides = [value, value] if _is_side(value) else value
    if isinstance(sides, (list, tuple)) and len(sides) == 2 and all(map(_is_side, sides)):
        return int(sides[0]), int(sides[1])
    return None


def _is_side(value: object) -> bool:
    return type(value) is int and SIDES[0] <= value <= SIDES[1]


KEY = "preprocessing"
"""The key of the preprocessing, as JSON, in a model's metadata."""
MOST = 1 << 24  # bytes of a configuration file
IMAGENET = Preprocessing.imagenet()
SHORTEST = ("bit", "chineseclip", "clip", "convnext", "levit", "mobile", "poolformer")
"""Prefixes of Hugging Face's processors for which a size of one number is the shorter side; for all
others it is the side of a square."""
IGNORED = frozenset({"do_convert_rgb", "do_reduce_labels"})
KNOWN = frozenset(
    {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_flip_channel_order"}
)
"""The `do_` entries that glnn applies; those of IGNORED have no effect."""
HUGGING_FACE = KNOWN | {"image_mean", "image_processor_type", "feature_extractor_type"}
"""Entries that only preprocessing files have; image_size is also in a model's configuration."""
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
"""ONNX's pixel ranges, in lower case."""


def described(metadata: Mapping[str, str], outputs: Shapes = ()) -> Preprocessing | None:
    """Return the preprocessing in a model's metadata; None where there is none.

    metadata: glnn's `preprocessing`, ONNX's `Image.` entries, or those of Ultralytics' exports.
    outputs: the shapes of the model's outputs.
    Raises ModelError for metadata that glnn does not understand.
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
    lower_case = {key.lower(): text.lower() for key, text in metadata.items()}
    result = _onnx({key: text for key, text in lower_case.items() if key.startswith("image.")})
    export = None if result is not None else UltralyticsExport.from_metadata(metadata, outputs)
    return result if export is None else export.preprocessing


def _onnx(metadata: Mapping[str, str]) -> Preprocessing | None:
    """Return the preprocessing in ONNX's `Image.` entries; None without any."""
    keys = {"image.bitmappixelformat": FORMATS, "image.nominalpixelrange": RANGES}
    options: dict[str, Any] = {}
    for key, values in keys.items():
        if key not in metadata:
            continue
        if metadata[key] not in values:
            listed = ", ".join(values)
            raise ModelError(f"metadata {key!r}: expected {listed}, got {shown(metadata[key])}")
        options |= values[metadata[key]]
    if metadata.get("image.colorspacegamma", "srgb") != "srgb":
        gamma = metadata["image.colorspacegamma"]
        raise ModelError(f"metadata 'image.colorspacegamma': expected srgb, got {shown(gamma)}")
    return Preprocessing(**options) if keys.keys() & metadata.keys() else None


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

    Raises ModelError for any other.
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
    """Convert timm's pretrained_cfg, whose crop is crop_pct of the resized picture."""
    size, fraction = cfg["input_size"], cfg.get("crop_pct") or 0.875
    is_valid = isinstance(fraction, (int, float)) and 0.1 <= fraction <= 1
    if not _are_positive_integers(size, 3) or not is_valid:
        raise ModelError(f"input_size and crop_pct: got {shown(size)} and {shown(fraction)}")
    channels, height, width = size
    resized = [int(n / fraction) for n in (height, width)]
    mode = cfg.get("crop_mode") or "center"
    if mode not in ("center", "squash") or channels not in (1, 3):
        raise ModelError(f"crop_mode {shown(mode)} of {channels} channels is none that glnn knows")
    if mode == "center" and resized[0] != resized[1]:
        raise ModelError(f"crop_mode center of {height} x {width}: expected as high as wide")
    name = cfg.get("interpolation") or "bicubic"
    is_rgb = channels == 3
    resize: Any = resized if mode == "squash" else resized[0]
    return Preprocessing(
        resize,
        (height, width),
        "bilinear" if name == "random" else name,
        mean=cfg.get("mean") or (IMAGENET.mean if is_rgb else ()),
        std=cfg.get("std") or (IMAGENET.std if is_rgb else ()),
        colours="RGB" if is_rgb else "L",
    )


def _hugging_face(config: Mapping[str, Any]) -> Preprocessing:
    """Convert a preprocessor_config.json: the operations of its `do_` entries, with defaults."""
    factor = config.get("rescale_factor", 1 / 255)
    normalises = config.get("do_normalize", True)
    operations = [key for key, value in config.items() if key.startswith("do_") and value]
    operations += [key for key in ("offset", "rescale_offset", "include_top") if config.get(key)]
    if unknown := [key for key in operations if key not in KNOWN | IGNORED]:
        raise ModelError(f"{shown(unknown[0])} is not known here")
    if not isinstance(factor, (int, float)):
        raise ModelError(f"rescale_factor: expected a number, got {shown(factor)}")
    if config.get("do_normalize") and not (config.get("image_mean") and config.get("image_std")):
        raise ModelError("do_normalize: expected image_mean and image_std")
    crop = config.get("do_center_crop", "crop_size" in config) or None
    resize = _resize(config) if config.get("do_resize", True) else None
    crop = crop and _edges(config.get("crop_size"))
    fraction = config.get("crop_pct")
    if (
        isinstance(resize, int)
        and not crop
        and isinstance(fraction, (int, float))
        and 0.1 <= fraction <= 1
    ):
        # ConvNeXt's: below 384 pixels the centre is cropped, from there on all is resized.
        resize, crop = (int(resize / fraction), resize) if resize < 384 else ((resize,) * 2, None)
    number = config.get("resample", 2)
    if number not in range(len(RESAMPLE)):
        raise ModelError(f"resample: expected 0 to {len(RESAMPLE) - 1}, got {shown(number)}")
    return Preprocessing(
        resize,
        crop,
        RESAMPLE[number],
        scale=255 * factor if config.get("do_rescale", True) else 255.0,
        mean=(config.get("image_mean") or ()) if normalises else (),
        std=(config.get("image_std") or ()) if normalises else (),
        colours="BGR" if config.get("do_flip_channel_order") else "RGB",
    )


def _resize(config: Mapping[str, Any]) -> Any:
    """Return the size to which pictures are resized.

    One number, in old files, is the side of a square, but for the processors SHORTEST the shorter
    side.
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
    elif size is None or _are_positive_integers([size], 1):
        return size
    raise ModelError(f"a size has shortest_edge, or height and width, got {shown(size)}")


def _are_positive_integers(values: object, count: int) -> bool:
    return (
        isinstance(values, (list, tuple))
        and len(values) == count
        and all(type(n) is int and n > 0 for n in values)
    )


@dataclass(frozen=True)
class PreprocessingChoice:
    """A preprocessing, and whether it is a guess."""

    preprocessing: Preprocessing
    assumed: bool = False
    """True where neither the model nor the user specifies any of it."""

    @classmethod
    def for_input(
        cls,
        info: TensorInfo,
        metadata: Mapping[str, str],
        overrides: Mapping[str, Any] | None = None,
        instead: Preprocessing | None = None,
        outputs: Shapes = (),
    ) -> PreprocessingChoice:
        """Choose the preprocessing of pictures for the input `info`.

        metadata: the model's metadata, which may describe it. outputs: the shapes of the model's
        outputs, which some metadata need. instead: a preprocessing to use instead of the
        metadata's. overrides: fields of the preprocessing to replace. The input decides the rest:
        its size, and grey where it has one channel; without a size, pictures are resized to the
        input's shorter side and cropped to the centre. Raises ModelError for options that do not
        fit, ShapeError where the input takes no such pictures.
        """
        overrides = dict(overrides or {})
        place = ImageInput.from_info(info)
        base = instead or described(metadata, outputs)
        if base is None:
            base = Preprocessing(colours="L" if place.channels == 1 else "RGB")
            assumed = not overrides
        else:
            assumed = False
        if overrides.get("interpolation", base.interpolation) == "nearest":
            overrides.setdefault("antialias", base.antialias)
        if overrides.get("letterbox", base.letterbox) is not None and place.fixed_size is not None:
            overrides.setdefault("resize", place.fixed_size)
        preprocessing = _fit_size(replace(base, **overrides), place.fixed_size)
        if isinstance(preprocessing.resize, tuple) and preprocessing.letterbox is not None:
            stride = stride_of(metadata, outputs)
            check_multiples(preprocessing.resize, stride, "the frame of pictures")
        preprocessing.check(info)
        _check_fixed_size(preprocessing, place.fixed_size)
        return cls(preprocessing, assumed)


def _check_fixed_size(preprocessing: Preprocessing, size: tuple[int, int] | None) -> None:
    """Raise ShapeError where no picture gets the input's `size`."""
    resize, crop = preprocessing.resize, preprocessing.crop
    result_size = resize if crop is None else crop
    if size is None or result_size is None:
        return
    result = result_size if isinstance(result_size, tuple) else (result_size, result_size)
    if result != size:
        raise ShapeError(
            f"pictures become {result[0]} x {result[1]}, the input takes {size[0]} x {size[1]}: "
            "expected another resize or crop"
        )


def _fit_size(preprocessing: Preprocessing, size: tuple[int, int] | None) -> Preprocessing:
    """Return `preprocessing` with the input's `size` where it does not specify a full size."""
    resize = preprocessing.resize
    if size is None or preprocessing.crop is not None or isinstance(resize, tuple):
        return preprocessing
    side = size[0] if size[0] == size[1] else None
    if resize is None:
        return replace(preprocessing, resize=side or size, crop=side)
    if resize < min(size):
        raise ModelError(
            f"resize {resize}: the input takes {size[0]} x {size[1]}: expected no less, "
            "or height and width"
        )
    return replace(preprocessing, crop=size)
