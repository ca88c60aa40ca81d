"""Objects from detectors' outputs, held against plain loops; letterboxing, against OpenCV."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn.core.tensor_info import TensorInfo
from glnn.errors import ModelError, ShapeError
from glnn.images import Preprocessing, described
from glnn.images.detection import (
    MOST,
    YOLOV8,
    Candidates,
    DetectedObject,
    Detector,
    decode,
    suppress,
)
from glnn.images.drawing import draw_objects
from glnn.images.preprocessing import ImageInput, Letterbox
from glnn.images.preprocessing_config import (
    PreprocessingChoice,
    UltralyticsExport,
    check_multiples,
    stride_of,
)
from tests.images.detection_reference import (
    Row,
    frame_by_opencv,
    kept_of,
    mask_of,
    rows_of,
    to_picture,
)

pytest.importorskip("PIL")
FRAME, NAMES = (64, 96), {0: "cat", 1: "dog", 2: "owl"}
PICTURES = [(64, 96), (32, 96), (100, 51), (7, 200), (480, 640)]
SAID = {"task": "detect", "stride": "32", "imgsz": "[64, 96]", "names": str(NAMES)}


def boxes(layout: str, classes: int, more: int, count: int, seed: int) -> NDArray[np.float32]:
    """Random boxes in clusters, so that many overlap, as a detector of that layout gives them."""
    random = np.random.default_rng(seed)
    middle = random.choice(random.random((6, 2)) * FRAME[::-1], count)
    middle = middle + random.normal(0, 3, (count, 2))
    size = random.uniform(5, 40, (count, 2))
    scores, rest = random.random((count, classes)), random.normal(0, 1, (count, more))
    if layout == "v8":
        found = np.concatenate((middle, size, scores, rest), 1).T
    elif layout == "v5":
        found = np.concatenate((middle, size, random.random((count, 1)), scores, rest), 1)
    else:
        corners = np.concatenate((middle - size / 2, middle + size / 2), 1)
        number = random.integers(0, classes, (count, 1))
        found = np.concatenate((corners, scores[:, :1], number, rest), 1)
    return found.astype(np.float32)


def detector(task: str | None, **said: Any) -> Detector:
    metadata = {**SAID, "task": str(task), **{k: str(v) for k, v in said.items()}}
    if task is None:  # as of YOLOv5
        del metadata["task"]
    outputs = {"boxes": (1, 9, 9)} | ({"masks": (1, 9, 9, 9)} if task == "segment" else {})
    found = Detector.from_metadata(outputs, metadata)
    assert found is not None
    return found


def expected_rows(
    output: NDArray[Any], layout: str, classes: int, picture: tuple[int, int]
) -> list[Row]:
    """The objects in the picture's pixels, the best first, by plain loops."""
    rows = rows_of(output, layout, classes, 0.25)
    rows = sorted(rows, key=lambda row: -row[1]) if layout == "end" else kept_of(rows, 0.7)
    found: list[Row] = []
    for number, score, box, more in rows[:MOST]:
        corners = (*to_picture(*box[:2], picture, FRAME), *to_picture(*box[2:], picture, FRAME))
        left, top, right, bottom = np.clip(corners, 0, picture[::-1] * 2).tolist()
        if right > left and bottom > top:  # else it is beside the picture
            found.append((number, score, (left, top, right, bottom), more))
    return found


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("layout", ["v5", "v8", "end"])
@pytest.mark.parametrize("classes", [1, 3])
def test_boxes(layout: str, classes: int, picture: tuple[int, int]) -> None:
    names = {i: NAMES[i] for i in range(classes)}
    count = {"end": 40, "v8": 126, "v5": 378}[layout]  # of a frame of 64 x 96
    output = boxes(layout, classes, 0, count, classes)
    task = None if layout == "v5" else "detect"
    (found,) = detector(task, names=names).detect({"boxes": output[None]}, FRAME, [picture])
    rows = expected_rows(output, layout, classes, picture)
    assert len(found) == len(rows) > 5
    for one, (number, score, box, _) in zip(found, rows, strict=True):
        assert (one.number, one.label) == (number, names[number])
        assert one.score == pytest.approx(score, rel=1e-5)
        assert one.box == pytest.approx(box, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize(
    ("layout", "classes", "count", "frame", "said"),
    [
        ("v5", 1, 252, (64, 64), {"task": None}),
        ("v5", 1, 255, (64, 64), {"task": None, "stride": 64}),
        ("v8", 2, 84, (64, 64), {"task": "detect"}),
        ("v8", 2, 84, (64, 64), {"task": "detect", "end2end": False}),
        ("end", 1, 1000, (64, 64), {"task": "detect", "args": {"nms": True, "batch": 1}}),
        ("end", 1, 1000, (64, 64), {"task": "detect"}),
        ("end", 1, 252, (64, 64), {"task": "detect", "end2end": True}),
        ("end", 2, 6, (64, 64), {"task": "detect", "args": {"nms": True}}),
        ("end", 2, 6, (64, 64), {"task": "detect", "end2end": True, "args": {"nms": False}}),
        ("end", 3, 400, (64, 64), {"task": "detect", "args": {"nms": False}}),
    ],
)
def test_layouts_by_metadata(
    layout: str, classes: int, count: int, frame: tuple[int, int], said: dict[str, Any]
) -> None:
    names = {i: NAMES[i] for i in range(classes)}
    output = boxes(layout, classes, 0, count, 11)
    made = detector(names=names, **said)
    (found,) = made.detect({"boxes": output[None]}, frame, [None])
    rows = rows_of(output, layout, classes, 0.25)
    rows = sorted(rows, key=lambda row: -row[1]) if layout == "end" else kept_of(rows, 0.7)
    expected = []
    for number, score, box, _ in rows[:MOST]:
        left, top, right, bottom = np.clip(box, 0, (*frame[::-1], *frame[::-1])).tolist()
        if right > left and bottom > top:
            expected.append((number, score, (left, top, right, bottom)))
    assert len(found) == len(expected) > 2
    for one, (number, score, place) in zip(found, expected, strict=True):
        assert (one.number, one.label) == (number, names[number])
        assert one.score == pytest.approx(score, rel=1e-5)
        assert one.box == pytest.approx(place, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize(
    ("shape", "classes", "said", "fits"),
    [
        ((300, 6), 1, {"task": None}, "yolov5 or nms"),
        ((252, 6), 1, {"task": "detect"}, "yolov5 or nms"),
        ((6, 6), 2, {"task": "detect"}, "yolov8 or nms"),
    ],
)
def test_a_layout_that_cannot_be_told_is_asked_for(
    shape: tuple[int, int], classes: int, said: dict[str, Any], fits: str
) -> None:
    made = detector(names={i: NAMES[i] for i in range(classes)}, **said)
    output = np.zeros((1, *shape), np.float32)
    output[0, 0] = 4, 8, 44, 48, 0.5, 0
    with pytest.raises(ModelError, match=rf"{fits}, and the metadata do not say.*--boxes"):
        made.detect({"boxes": output}, (64, 64), [None])
    (found,) = replace(made, layout="nms").detect({"boxes": output}, (64, 64), [None])
    assert [(one.number, one.score, one.box) for one in found] == [(0, 0.5, (4, 8, 44, 48))]
    with pytest.raises(ModelError, match="layout: expected yolov5, yolov8, nms, got 'v9'"):
        replace(made, layout="v9")


@pytest.mark.parametrize("layout", ["v5", "v8", "end"])
@pytest.mark.parametrize("least", [0.25, 0.3, 1.0])
def test_a_score_of_the_confidence_is_enough(layout: str, least: float) -> None:
    row = {
        "v5": [32, 32, 20, 20, 1, least, 0, 0],
        "v8": [32, 32, 20, 20, least, 0, 0],
        "end": [22, 22, 42, 42, least, 0],
    }[layout]
    output = np.array([row], np.float32)
    output = output.T if layout == "v8" else output
    made = replace(detector(None if layout == "v5" else "detect"), confidence=least)
    (found,) = made.detect({"boxes": output[None]}, (64, 64), [None])
    assert [one.box for one in found] == [(22, 22, 42, 42)]


def test_overlapping_boxes_of_many_blocks() -> None:
    """Of one class each, more than are compared at once; of different classes none goes."""
    output = boxes("v8", 3, 0, 900, 12)
    found = suppress(decode(output, YOLOV8, 3, 0, 0.25), 0.3, 10000)
    rows = kept_of(rows_of(output, "v8", 3, 0.25), 0.3)
    assert len(rows) > 64 and found.scores == pytest.approx([row[1] for row in rows])
    assert found.classes.tolist() == [row[0] for row in rows]
    same = np.tile(np.array([[0, 0, 9, 9]], np.float32), (3, 1))
    three = Candidates(same, np.ones(3, np.float32), np.array([0, 1, 1]), same[:, :0], False)
    assert suppress(three, 0.7).classes.tolist() == [0, 1]


@pytest.mark.parametrize("layout", ["v5", "v8", "end"])
@pytest.mark.parametrize("picture", [(64, 96), (32, 48), (128, 96)])
def test_masks(layout: str, picture: tuple[int, int]) -> None:
    output = boxes(layout, 3, 4, 30, 5)
    prototypes = np.random.default_rng(6).normal(0, 1, (4, 16, 24)).astype(np.float32)
    results = {"boxes": output[None], "masks": prototypes[None]}
    (found,) = detector("segment").detect(results, FRAME, [picture])
    rows = expected_rows(output, layout, 3, picture)
    assert len(found) == len(rows) > 5
    for one, row in zip(found, rows, strict=True):
        expected = mask_of(row[3], prototypes, one.box, picture, FRAME)
        whole = np.zeros(picture, bool)
        mask = one.mask
        assert mask is not None
        tall, wide = mask.inside.shape
        whole[mask.top : mask.top + tall, mask.left : mask.left + wide] = mask.inside
        assert (whole != expected).sum() <= 1  # where a sum is 0 but for rounding
        assert one.to_json()["area"] == mask.area == whole.sum()


@pytest.mark.parametrize("shape", [(4, 3), (4, 2)])
@pytest.mark.parametrize("layout", ["v8", "end"])
def test_keypoints(layout: str, shape: tuple[int, int]) -> None:
    output = boxes(layout, 1, 4 * shape[1], 60, 7)
    pose = detector("pose", names={0: "person"}, kpt_shape=list(shape))
    (found,) = pose.detect({"boxes": output[None]}, FRAME, [(128, 192)])
    rows = expected_rows(output, layout, 1, (128, 192))
    assert len(found) == len(rows) > 5
    for one, row in zip(found, rows, strict=True):
        points = np.array(row[3]).reshape(shape)
        points[:, :2] *= 2
        assert np.array(one.keypoints) == pytest.approx(points, rel=1e-5)
        assert np.array(one.to_json()["keypoints"]).shape == shape


def test_what_is_no_number_or_too_much() -> None:
    output = boxes("v8", 3, 0, 5000, 1)
    output[4:, :] *= 0.2
    output[4:, :900] = 0.9 - np.arange(900, dtype=np.float32) / 1e4
    output[:2, :900] = np.random.default_rng(2).random((2, 900)) * 1e6  # far from each other
    output[0, 0], output[5, 1], output[2, 2] = np.nan, np.nan, np.inf
    found = suppress(decode(output, YOLOV8, 3, 0, 0.25), 0.7)
    assert len(found.scores) == MOST and np.isfinite(found.boxes).all()
    assert found.scores[0] == pytest.approx(0.9 - 3e-4)
    assert not len(suppress(decode(output, YOLOV8, 3, 0, 0.95), 0.7).scores)


@pytest.mark.parametrize("most", [0, -1, 1.5, True])
def test_how_many_objects_is_a_positive_int(most: Any) -> None:
    with pytest.raises(ModelError, match=f"most: expected a positive int, got {most}"):
        replace(detector("detect"), most=most)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ModelError, match=r"3 classes: .*\(7, n\), \(n, 8\) or \(n, 6\).*\(9, 20\)"):
        detector("detect").detect({"boxes": np.zeros((1, 9, 20), np.float32)}, FRAME, [None])
    with pytest.raises(ModelError, match="gives no boxes, but"):
        detector("detect").detect({"boxes": np.zeros((3, 4), np.float32)}, FRAME, [None])


@pytest.mark.parametrize("picture", PICTURES)
def test_letterboxed_as_opencv_has_it(picture: tuple[int, int]) -> None:
    pytest.importorskip("cv2")
    pixels = np.random.default_rng(3).integers(0, 256, (*picture, 3), dtype=np.uint8)
    how = Preprocessing(FRAME, antialias=False, letterbox=114)
    found, expected = how.bytes_of(pixels), frame_by_opencv(pixels, *FRAME)
    assert found.shape == expected.shape == (*FRAME, 3)
    assert np.abs(found.astype(int) - expected).max() <= 1
    place = Letterbox.fit(picture, FRAME)
    corners = np.array([[0, 0], [place.width, place.height]], np.float32)
    back = place.to_picture(corners + np.array((place.left, place.top), np.float32))
    assert back == pytest.approx(np.array([[0, 0], picture[::-1]]))


def test_metadata() -> None:
    export = UltralyticsExport.from_metadata(SAID)
    assert export == UltralyticsExport("detect", NAMES, (64, 96), 32)
    assert UltralyticsExport.from_metadata({**SAID, "imgsz": "320"}).size == (320, 320)  # type: ignore[union-attr]
    assert stride_of(SAID) == 32 and stride_of({}) == 1
    for broken in ({"imgsz": "[64"}, {"imgsz": "['a', 3]"}, {"stride": "-3"}, {"stride": "x"}):
        assert UltralyticsExport.from_metadata({**SAID, **broken}) is not None
    assert UltralyticsExport.from_metadata({"task": "text-generation", "names": str(NAMES)}) is None
    assert UltralyticsExport.from_metadata({"task": "detect"}) is None
    yolov5 = {"stride": "32", "names": str(NAMES)}
    assert UltralyticsExport.from_metadata(yolov5) == UltralyticsExport(None, NAMES, None, 32)
    classes = len(NAMES)
    assert UltralyticsExport.from_metadata(yolov5, [("N", classes)]).task == "classify"  # type: ignore[union-attr]
    # Boxes that the model has compared, of any number: no scores.
    for shapes in ([("N", 7)], [("N", "M")], [(1, classes), ("N", 4)], [(1, 9, 7)], [(classes,)]):
        assert UltralyticsExport.from_metadata(yolov5, shapes) == UltralyticsExport(
            None, NAMES, None, 32
        )
    assert described(SAID) == Preprocessing(FRAME, antialias=False, letterbox=114)
    classify = {**SAID, "task": "classify", "imgsz": "[224, 224]"}
    assert described(classify) == Preprocessing(224, 224)
    assert Preprocessing.from_json(described(SAID).to_json()) == described(SAID)  # type: ignore[union-attr]


def test_sizes_that_would_do() -> None:
    info = TensorInfo("x", ("N", 3, "h", "w"), free=True)
    assert PreprocessingChoice.for_input(info, SAID).preprocessing.resize == (64, 96)
    assert PreprocessingChoice.for_input(info, SAID, {"resize": 128}).preprocessing.resize == (
        128,
        128,
    )
    with pytest.raises(ShapeError, match=r"100 x 64: .* multiples of 32, as 96 x 64 or 128 x 64"):
        PreprocessingChoice.for_input(info, SAID, {"resize": (100, 64)})
    with pytest.raises(ShapeError, match=r"as 32 x 32$"):
        check_multiples((20, 32), 32, "x")
    fixed = TensorInfo("x", (1, 3, 128, 128))
    assert PreprocessingChoice.for_input(fixed, SAID).preprocessing.resize == (128, 128)
    with pytest.raises(ModelError, match="letterboxed picture is kept whole"):
        PreprocessingChoice.for_input(info, SAID, {"crop": 32})
    with pytest.raises(ModelError, match="letterbox: expected 0 to 255, got 300"):
        Preprocessing(64, letterbox=300)
    with pytest.raises(ModelError, match=r"letterbox: expected resize, too, .* got None"):
        Preprocessing(letterbox=114)
    assert PreprocessingChoice.for_input(fixed, {}, {"letterbox": 114}).preprocessing.resize == (
        128,
        128,
    )


def test_channels_of_an_input_three_pixels_high() -> None:
    place = ImageInput.in_shape(("N", "h", "w", 3))
    assert place is not None and not place.first
    assert ImageInput.in_shape((1, 4, 32, 8)) is None and ImageInput.in_shape((1, 3)) is None


def test_objects_are_drawn_where_they_are() -> None:
    picture = np.full((120, 160, 3), 255, np.uint8)
    mask = np.zeros((40, 60), bool)
    mask[10:20, 5:50] = True
    from glnn.images.detection import Mask

    one = DetectedObject(0, "cat", 0.9, (20, 50, 80, 90), Mask(50, 20, mask))
    drawn = draw_objects(picture, [one])
    changed = (drawn != picture).any(2)
    assert changed[60:70, 25:70].all() and not changed[72:88, 25:75].any()
    assert changed[50, 20:80].all() and changed[50:90, 20].all() and not changed[:, 100:].any()
    points = tuple((10.0 + 8 * i, 60.0, 0.9 if i else 0.1) for i in range(4))
    seen = (
        draw_objects(picture, [DetectedObject(1, "x", 0.5, (0, 0, 40, 20), None, points)])
        != picture
    ).any(2)
    assert not seen[60, 10] and seen[60, 18] and seen[60, 26] and seen[60, 34]
    edge = DetectedObject(2, "owl", 0.5, (0, 0, 160, 120))
    assert (draw_objects(picture, [edge]) != picture).any(2)[-1, :].all()
    assert np.array_equal(draw_objects(picture, []), picture) and (picture == 255).all()
