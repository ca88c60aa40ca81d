"""`glnn run` on cameras and videos: a line a frame, one that is renewed, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn.cli.results import RankedClass
from glnn.cli.run import FrameClasses, FrameResult, StatusLine
from glnn.data import digits
from glnn.errors import ModelError
from tests.cli.conftest import Glnn

pytest.importorskip("PIL")
Frames = Iterator[NDArray[np.uint8]]


def shown(digit: int) -> NDArray[np.uint8]:
    """A digit of data.digits(), grey, as a camera would give it."""
    grey = digits()[0][digit].repeat(4, axis=0).repeat(4, axis=1)
    return np.stack([grey] * 3, axis=2)


@pytest.fixture
def camera(monkeypatch: pytest.MonkeyPatch) -> Callable[[Frames], list[str]]:
    """Puts a camera that gives some frames in place of all; what was opened and closed."""
    done: list[str] = []

    def put(frames: Frames) -> list[str]:
        class Fake:
            def __init__(self, name: str) -> None:
                self.name = name
                done.append(f"open {name}")

            def __enter__(self) -> Fake:
                return self

            def __exit__(self, *error: object) -> None:
                done.append("close")

            def __iter__(self) -> Frames:
                return frames

        monkeypatch.setattr("glnn.cli.run.Camera", Fake)
        return done

    return put


def test_a_line_of_json_a_frame(cli: Glnn, camera: Callable[[Frames], list[str]]) -> None:
    done = camera(shown(i % 1000) for i in count())
    asked = ("run", "lenet", "/dev/video2", "--backend", "cpu", "--frames", 4, "--top", 2)
    result = cli(*asked, "--json")
    assert (result.code, result.err) == (0, "")
    first, *lines = map(json.loads, result.out.splitlines())
    about = {"input": "/dev/video2", "model": "lenet", "backend": "cpu", "notes": []}
    assert about.items() <= first.items()
    assert [line["frame"] for line in lines] == [0, 1, 2, 3]
    assert [line["top"][0]["class"] for line in lines] == digits()[1][:4].tolist()
    assert [len(line["top"]) for line in lines] == [2] * 4
    assert lines[0]["seconds"] == 0 and lines[0]["frames_per_second"] is None
    assert 0 < lines[1]["seconds"] < lines[2]["seconds"] < lines[3]["seconds"]
    rate = lines[3]["frames_per_second"]
    assert rate == pytest.approx(3 / lines[3]["seconds"], rel=1e-3)  # as long as there are few
    assert done == ["open /dev/video2", "close"]


def test_a_line_a_frame(cli: Glnn, camera: Callable[[Frames], list[str]]) -> None:
    camera(shown(i) for i in range(3))
    result = cli("run", "lenet", 5, "--backend", "cpu")
    assert (result.code, result.err) == (0, "")
    *lines, last = result.out.splitlines()
    right = digits()[1][:3]
    assert [line.partition(": ")[2].split()[0] for line in lines] == [str(n) for n in right]
    assert "\r" not in result.out and "\x1b" not in result.out
    assert last.startswith("3 frames, ") and last.endswith(" a second on cpu: CPU (NumPy)")


def test_ctrl_c_ends_it(cli: Glnn, camera: Callable[[Frames], list[str]]) -> None:
    def frames() -> Frames:
        yield from map(shown, range(2))
        raise KeyboardInterrupt

    done = camera(frames())
    result = cli("run", "lenet", "0", "--backend", "cpu")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1].startswith("2 frames, ")
    assert done[-1] == "close"

    def none() -> Frames:
        raise KeyboardInterrupt
        yield

    camera(none())
    result = cli("run", "lenet", "0", "--backend", "cpu")
    assert (result.code, result.out, result.err) == (130, "", "glnn: interrupted\n")


def test_a_camera_that_stops(cli: Glnn, camera: Callable[[Frames], list[str]]) -> None:
    def frames() -> Frames:
        yield shown(0)
        raise ModelError("/dev/video0: it gives no frames")

    done = camera(frames())
    result = cli("run", "lenet", "0", "--backend", "cpu", "--json")
    assert (result.code, result.err) == (2, "glnn: /dev/video0: it gives no frames\n")
    lines = [json.loads(line) for line in result.out.splitlines()]  # the failure is a line, too
    assert "frame" in lines[1] and lines[2]["error"] == "/dev/video0: it gives no frames"
    assert len(lines) == 3 and done[-1] == "close"


def test_frames_with_their_classes_drawn(
    cli: Glnn, camera: Callable[[Frames], list[str]], tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image")
    camera(shown(i) for i in range(2))
    result = cli("run", "lenet", "0", "--backend", "cpu", "--drawn", tmp_path / "new" / "drawn")
    assert "drawn: 2 pictures in " in result.out
    found = sorted((tmp_path / "new" / "drawn").iterdir())
    assert [path.name for path in found] == ["frame-000000.png", "frame-000001.png"]
    second = np.asarray(image.open(found[1]))
    assert second.shape == (112, 112, 3)
    assert np.array_equal(second[60:], shown(1)[60:]) and (second != shown(1)).any()


def test_a_video(cli: Glnn, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    path = str(tmp_path / "film.avi")
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"MJPG"), 10, (112, 112))
    for i in range(6):
        writer.write(shown(i))
    writer.release()
    result = cli("run", "lenet", path, "--json")
    assert (result.code, result.err) == (0, "")
    first, *lines = map(json.loads, result.out.splitlines())
    assert first["input"] == path
    assert [line["top"][0]["class"] for line in lines] == digits()[1][:6].tolist()


def test_a_model_of_a_fixed_batch(
    cli: Glnn, camera: Callable[[Frames], list[str]], tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)
    graph = onnx.helper.make_graph(
        [node],
        "mean",
        [onnx.helper.make_tensor_value_info("x", 1, [4, 3, 2, 2])],
        [onnx.helper.make_tensor_value_info("y", 1, [4, 3])],
        [onnx.numpy_helper.from_array(np.array([2, 3]), "axes")],
    )
    opset = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "m.onnx")
    camera(np.full((2, 2, 3), (10, 20, i), np.uint8) for i in (5, 15, 25))
    result = cli("run", tmp_path / "m.onnx", "0", "--json")
    lines = [json.loads(line) for line in result.out.splitlines()[1:]]
    best = [line["top"][0] for line in lines]
    assert [one["class"] for one in best] == [1, 1, 2]  # the greenest, the greenest, the bluest
    assert [one["score"] for one in best] == pytest.approx([20 / 255, 20 / 255, 25 / 255])


def seen(number: int, label: str, rate: float | None = 12.3) -> FrameResult:
    best = FrameClasses([RankedClass(3, 0.5, 0.75, label)])
    return FrameResult(number, 1.0, rate, best, np.zeros((1, 1, 3), np.uint8))


def test_one_line_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    line = StatusLine(30)
    line.report(seen(0, "cat", None))
    line.report(seen(1, "a label longer than any terminal"))
    line.report(seen(2, "猫" * 40))
    line.report(seen(3, "x\n\x1b[2J"))
    line.end()
    line.end()
    out = capsys.readouterr().out
    assert out.startswith("\r\x1b[Kframe 0: cat 75.0%\r\x1b[Kframe 1 (12.3 a second): a la\r")
    assert out.endswith(": x\\n\\\n") and out.count("\n") == 1
    from rich.cells import cell_len

    assert all(cell_len(part) <= 29 for part in out.rstrip().split("\r\x1b[K"))


def test_nothing_is_ended_that_was_not_begun(capsys: pytest.CaptureFixture[str]) -> None:
    StatusLine(30).end()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("lenet 0 1", "0: expected a camera or a video alone, got 2 INPUTS"),
        ("lenet x.avi y.png", "x.avi: expected a camera or a video alone, got 2 INPUTS"),
        ("lenet --frames 2", "--frames is for a camera or a video: there is none"),
        ("lenet 0 --batch 2", "--batch is for files of samples: 0 gives a frame a run"),
        ("lenet 0 --dump x.npz", "--dump is for files of samples"),
        ("lenet 0 --trace x.json", "--trace is for files of samples"),
        ("lenet 0 --show", "--show is for files of samples"),
        ("lenet gone.mp4", "gone.mp4: no such file"),
        ("lenet 0 --frames 0", "0 is not in the range x>=1"),
    ],
)
def test_refused(cli: Glnn, arguments: str, says: str) -> None:
    pytest.importorskip("cv2")
    assert says in cli("run", *arguments.split()).refusal


def test_a_model_that_gives_no_classes(cli: Glnn, staged: Path) -> None:
    assert (
        "expected a model that gives classes or objects, not pool (N, 4, 4, 4)"
        in cli("run", staged, 0).refusal
    )


def test_a_video_that_is_none_is_one_sentence(process: Callable[..., Any], tmp_path: Path) -> None:
    """In a process of its own, where FFmpeg's own words would be seen."""
    pytest.importorskip("cv2")
    (tmp_path / "film.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(range(256)) * 4)
    said = process("run", "lenet", "film.mp4").refusal
    assert said == "film.mp4: cannot be opened: expected a video that OpenCV reads"
