"""`glnn run` of detectors as Ultralytics exports them, against ONNX Runtime and plain loops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cli.conftest import Glnn
from tests.images.detection_reference import (
    frame_by_opencv,
    kept_of,
    mask_of,
    rows_of,
    to_picture,
)

Image = pytest.importorskip("PIL.Image")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
cv2 = pytest.importorskip("cv2")
FRAME, PICTURE = (64, 96), (40, 96)  # the picture needs no other size, but a border
NAMES = {0: "cat", 1: "dog", 2: "owl"}
CPU = ("--backend", "cpu")


def save(
    path: Path, task: str, more: int, sides: tuple[Any, Any] = ("h", "w"), half: bool = False
) -> Path:
    """A detector of seeded weights: one convolution gives boxes, classes and `more` numbers.

    half: whether its input and its output are float16.
    """
    helper, random = onnx.helper, np.random.default_rng(4)
    count = 4 + len(NAMES) + more
    scale = np.full((1, count, 1), 1, np.float32)
    scale[0, :4, 0] = (96, 64, 60, 50)
    scale[0, 7:] = 60
    weights = {
        "w": random.normal(0, 0.1, (count, 3, 16, 16)),
        "b": random.normal(0, 1, count),
        "scale": scale,
        "shape": np.array((0, count, -1)),
    }
    nodes = [
        helper.make_node("Conv", ["images", "w", "b"], ["c"], strides=[16, 16]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Reshape", ["s", "shape"], ["r"]),
        helper.make_node("Mul", ["r", "scale"], ["output0"]),
    ]
    single, number = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT
    if half:
        number = onnx.TensorProto.FLOAT16
        nodes[0].input[0], nodes[-1].output[0] = "wide", "y"
        nodes.insert(0, helper.make_node("Cast", ["images"], ["wide"], to=single))
        nodes.append(helper.make_node("Cast", ["y"], ["output0"], to=number))
    outputs = [helper.make_tensor_value_info("output0", number, ("N", count, "n"))]
    if task == "segment":
        weights["m"] = random.normal(0, 0.3, (more, 3, 4, 4))
        nodes.append(helper.make_node("Conv", ["images", "m"], ["output1"], strides=[4, 4]))
        outputs.append(helper.make_tensor_value_info("output1", number, ("N", more, "mh", "mw")))
    graph = helper.make_graph(
        nodes,
        task,
        [helper.make_tensor_value_info("images", number, ("N", 3, *sides))],
        outputs,
        [
            onnx.numpy_helper.from_array(
                array if name == "shape" else array.astype(np.float32), name
            )
            for name, array in weights.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    said = {"task": task, "stride": "32", "imgsz": "[64, 96]", "names": str(NAMES)}
    said |= {"batch": "1", "kpt_shape": "[2, 3]"} if task == "pose" else {"batch": "1"}
    helper.set_model_props(model, said)
    onnx.save(model, path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.default_rng(9)
    for i in range(3):
        coarse = random.integers(0, 256, (5, 12, 3), dtype=np.uint8)
        Image.fromarray(coarse.repeat(8, 0).repeat(8, 1)).save(folder / f"{i}.png")
    return folder


def expected(path: Path, picture: Path, confidence: float, overlap: float) -> list[dict[str, Any]]:
    """What is in a picture, by ONNX Runtime, OpenCV and plain loops."""
    pixels = np.asarray(Image.open(picture))
    x = frame_by_opencv(pixels, *FRAME).transpose(2, 0, 1)[None] / np.float32(255)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    if session.get_inputs()[0].type == "tensor(float16)":
        x = x.astype(np.float16)
    output, *prototypes = session.run(None, {"images": x})
    found = []
    for number, score, box, more in kept_of(rows_of(output[0], "v8", 3, confidence), overlap):
        corners = (*to_picture(*box[:2], PICTURE, FRAME), *to_picture(*box[2:], PICTURE, FRAME))
        clipped = np.clip(corners, 0, PICTURE[::-1] * 2).tolist()
        if clipped[0] >= clipped[2] or clipped[1] >= clipped[3]:
            continue
        one = {"class": number, "label": NAMES[number], "score": score, "box": clipped}
        if prototypes:
            mask = mask_of(more, prototypes[0][0], tuple(clipped), PICTURE, FRAME)
            one["area"] = int(mask.sum())
        elif more:
            points = np.array(more).reshape(2, 3)
            points[:, 1] -= 12
            one["keypoints"] = points.tolist()
        found.append(one)
    return found


def check(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            if key == "area":
                assert abs(one[key] - value) <= 2
            elif key == "keypoints":
                assert np.array(one[key]) == pytest.approx(np.array(value), abs=1e-2)
            elif key in ("score", "box"):
                assert one[key] == pytest.approx(value, abs=1e-3)
            else:
                assert one[key] == value


@pytest.mark.parametrize("backend", ["cpu", "compute"])
@pytest.mark.parametrize(("task", "more"), [("detect", 0), ("segment", 4), ("pose", 6)])
def test_objects(
    cli: Glnn, tmp_path: Path, photos: Path, task: str, more: int, backend: str
) -> None:
    net = save(tmp_path / "net.onnx", task, more)
    limits = ("--confidence", 0.4, "--overlap", 0.3)
    found = cli("run", net, photos, "--backend", backend, *limits, "--json").json
    assert found["task"] == task and len(found["inputs"]) == 3 and found["notes"] == []
    assert found["preprocessing"]["letterbox"] == 114
    for picture, objects in zip(sorted(photos.iterdir()), found["objects"], strict=True):
        check(objects, expected(net, picture, 0.4, 0.3))


@pytest.mark.parametrize("top", [1, 2, 1000])
def test_the_best_objects_of_each_picture(
    cli: Glnn, tmp_path: Path, photos: Path, top: int
) -> None:
    net, limits = save(tmp_path / "net.onnx", "detect", 0), ("--confidence", 0.25, "--overlap", 0.9)
    found = cli("run", net, photos, *CPU, *limits, "--top", top, "--json").json["objects"]
    for picture, objects in zip(sorted(photos.iterdir()), found, strict=True):
        wanted = expected(net, picture, 0.25, 0.9)
        assert len(wanted) > 2
        check(objects, wanted[:top])


@pytest.mark.parametrize("backend", ["cpu", "compute"])
def test_objects_of_halves(cli: Glnn, tmp_path: Path, photos: Path, backend: str) -> None:
    net = save(tmp_path / "net.onnx", "detect", 0, half=True)
    found = cli("run", net, photos / "0.png", "--backend", backend, "--json").json
    wanted = expected(net, photos / "0.png", 0.25, 0.7)
    assert len(found["objects"][0]) == len(wanted) > 0
    for one, other in zip(found["objects"][0], wanted, strict=True):
        assert (one["class"], one["label"]) == (other["class"], other["label"])
        assert one["score"] == pytest.approx(other["score"], abs=2e-3)
        assert one["box"] == pytest.approx(other["box"], abs=0.2)


def test_oriented_boxes_are_not_decoded(cli: Glnn, tmp_path: Path, photos: Path) -> None:
    """Nor are objects of a task whose outputs are no boxes; both are said."""
    net = save(tmp_path / "net.onnx", "obb", 1)
    why = "oriented boxes (task obb) are not decoded: the outputs are those of the model"
    found = cli("run", net, photos / "0.png", *CPU, "--json").json
    assert found["notes"] == [why] and found["outputs"][0]["shape"] == [1, 8, 24]
    assert why in cli("run", net, photos / "0.png", *CPU).out.replace("\n", " ")
    refusal = cli("run", net, photos / "0.png", *CPU, "--confidence", 0.5).refusal
    assert f"--confidence is for detectors: {why}" in refusal


def test_a_table_and_pictures_with_boxes(cli: Glnn, tmp_path: Path, photos: Path) -> None:
    net, drawn = save(tmp_path / "net.onnx", "segment", 4), tmp_path / "drawn"
    shown = cli("run", net, photos / "0.png", *CPU, "--drawn", drawn).out
    wanted = expected(net, photos / "0.png", 0.25, 0.7)
    rows = [line.split() for line in shown.splitlines() if line.startswith(str(photos))]
    assert [row[1] for row in rows] == [one["label"] for one in wanted]
    assert [float(row[3]) for row in rows] == pytest.approx(
        [one["box"][0] for one in wanted], abs=0.06
    )
    assert "area" in shown and f"{len(wanted)} objects in 1 sample on cpu" in shown
    before, after = (np.asarray(Image.open(p / "0.png")) for p in (photos, drawn))
    assert before.shape == after.shape and (before != after).any()
    nothing = cli("run", net, photos / "0.png", *CPU, "--confidence", 1).out
    assert "nothing" in nothing and "0 objects in 1 sample" in nothing


def test_arrays_are_frames(cli: Glnn, tmp_path: Path, photos: Path) -> None:
    net = save(tmp_path / "net.onnx", "detect", 0, FRAME)
    pixels = np.asarray(Image.open(photos / "1.png"))
    x = frame_by_opencv(pixels, *FRAME).transpose(2, 0, 1)[None] / np.float32(255)
    np.save(tmp_path / "x.npy", x)
    (found,) = cli("run", net, tmp_path / "x.npy", *CPU, "--json").json["objects"]
    output = onnxruntime.InferenceSession(net).run(None, {"images": x})[0][0]
    rows = kept_of(rows_of(output, "v8", 3, 0.25), 0.7)
    assert len(found) == len(rows) > 0
    for one, row in zip(found, rows, strict=True):
        assert one["box"] == pytest.approx(np.clip(row[2], 0, (96, 64, 96, 64)), abs=1e-3)


def test_names_of_ones_own(cli: Glnn, tmp_path: Path, photos: Path) -> None:
    net = save(tmp_path / "net.onnx", "detect", 0)
    (tmp_path / "names.txt").write_text("chat\nchien\nhibou\n")
    asked = ("run", net, photos / "0.png", *CPU, "--labels", tmp_path / "names.txt", "--json")
    (found,) = cli(*asked).json["objects"]
    assert {one["label"] for one in found} <= {"chat", "chien", "hibou"}
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\n")
    assert "4 names, the model has 3 classes" in cli(*asked).refusal


def test_what_does_not_fit(cli: Glnn, tmp_path: Path, photos: Path) -> None:
    net, photo = save(tmp_path / "net.onnx", "detect", 0), photos / "0.png"
    said = cli("run", net, photo, "--resize", "100x64").refusal
    assert "multiples of 32, as 96 x 64 or 128 x 64" in said
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 64, 70), np.float32))
    said = cli("run", net, tmp_path / "x.npy", *CPU).refusal
    assert "'images' is 64 x 70" in said and "as 64 x 64 or 64 x 96" in said
    said = cli("run", "lenet", "--confidence", 0.5).refusal
    assert said == "--confidence is for detectors: lenet does not say that it is one"
    model = onnx.load(net)
    onnx.helper.set_model_props(model, {"task": "detect", "names": "['a']", "stride": "32"})
    onnx.save(model, tmp_path / "other.onnx")
    said = cli("run", tmp_path / "other.onnx", photo, "--resize", "64x96", *CPU).refusal
    assert "boxes of 1 classes: expected an output of (5, n), (n, 6) or (n, 6)" in said


def save_classifier(path: Path, said: dict[str, str]) -> Any:
    """Save a classifier by the mean colour, and return its weights."""
    helper, random = onnx.helper, np.random.default_rng(3)
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["s"]),
        helper.make_node("Softmax", ["s"], ["output0"]),
    ]
    value, number = helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    weights = random.normal(0, 3, (3, 3)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "classify",
        [value("images", number, (1, 3, 32, 32))],
        [value("output0", number, (1, 3))],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, said)
    onnx.save(model, path)
    return weights


def test_classes_of_yolov5(cli: Glnn, tmp_path: Path) -> None:
    """Its exports state no task, its pictures are the centre, and normalised as ImageNet's."""
    weights = save_classifier(tmp_path / "net.onnx", {"stride": "32", "names": str(NAMES)})
    coarse = np.random.default_rng(9).integers(0, 256, (5, 10, 3), dtype=np.uint8)
    picture = coarse.repeat(8, 0).repeat(8, 1)
    Image.fromarray(picture).save(tmp_path / "photo.png")
    found = cli("run", tmp_path / "net.onnx", tmp_path / "photo.png", *CPU, "--json").json
    centre = np.ascontiguousarray(picture[:, 20:60])
    small = cv2.resize(centre, (32, 32), interpolation=cv2.INTER_LINEAR)
    x = (small / 255.0 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    powers = np.exp(x.mean((0, 1)) @ weights)
    best = int(powers.argmax())
    (top,) = found["top"][0]
    assert (top["class"], top["label"]) == (best, NAMES[best])
    assert top["probability"] == pytest.approx(powers[best] / powers.sum(), rel=1e-2)
    assert found["notes"] == [] and found["preprocessing"]["letterbox"] is None


def test_classes_of_an_export(cli: Glnn, tmp_path: Path, photos: Path) -> None:
    """Pictures are resized and cropped then, not put in a frame."""
    said = {"task": "classify", "stride": "1", "imgsz": "[32, 32]", "names": str(NAMES)}
    weights = save_classifier(tmp_path / "net.onnx", said)
    found = cli("run", tmp_path / "net.onnx", photos / "0.png", *CPU, "--json").json
    small = Image.open(photos / "0.png").resize((76, 32), Image.Resampling.BILINEAR)
    x = np.asarray(small.crop((22, 0, 54, 32)), np.float64).mean((0, 1)) / 255
    powers = np.exp(x @ weights)
    best = int(powers.argmax())
    (top,) = found["top"][0]
    assert (top["class"], top["label"]) == (best, NAMES[best])
    assert top["probability"] == pytest.approx(powers[best] / powers.sum(), rel=1e-4)
    assert found["notes"] == [] and found["preprocessing"]["crop"] == 32


def test_frames_of_a_camera(
    cli: Glnn, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> Fake:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __iter__(self) -> Iterator[NDArray[np.uint8]]:
            return (np.asarray(Image.open(one)) for one in sorted(photos.iterdir()))

    monkeypatch.setattr("glnn.cli.run.Camera", Fake)
    net, drawn = save(tmp_path / "net.onnx", "detect", 0), tmp_path / "drawn"
    asked = ("run", net, "/dev/video0", *CPU, "--frames", 2)
    done = cli(*asked, "--json", "--drawn", drawn)
    assert (done.code, done.err) == (0, "")
    first, *lines = map(json.loads, done.out.splitlines())
    assert first["preprocessing"]["letterbox"] == 114 and len(lines) == 2
    for i, line in enumerate(lines):
        check(line["objects"], expected(net, photos / f"{i}.png", 0.25, 0.7))
    assert len(list(drawn.iterdir())) == 2
    assert f"frame 0: {lines[0]['objects'][0]['label']} " in cli(*asked).out
