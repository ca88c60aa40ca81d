"""Cameras and videos: every frame of a file, the newest of a camera, and why there is none."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn.errors import ModelError, ShapeError
from glnn.images.camera import MISSED, Camera, is_camera, is_video

Read = tuple[bool, Any]


class Fake:
    """Stands for OpenCV's VideoCapture: `frame(i)` is what the i-th read gives."""

    def __init__(self, frame: Callable[[int], Read], open: bool = True) -> None:
        self.frame, self.open = frame, open
        self.reads, self.released = 0, False

    def isOpened(self) -> bool:  # noqa: N802  # OpenCV's name
        return self.open

    def read(self) -> Read:
        assert not self.released, "it is read after it was let go"
        self.reads += 1
        return self.frame(self.reads - 1)

    def release(self) -> None:
        self.released = True


def blue(i: int) -> NDArray[np.uint8]:
    """As OpenCV has it, blue first: blue i, red 9."""
    return np.tile(np.array([i, 0, 9], np.uint8), (4, 5, 1))


def test_a_camera_gives_the_newest_frame() -> None:
    steps: list[threading.Event] = [threading.Event() for _ in range(20)]

    def frame(i: int) -> Read:
        assert i < len(steps) and steps[i].wait(30)
        return True, blue(i)

    fake = Fake(frame)

    def let(until: int) -> None:
        """Have the driver give all frames before `until`."""
        for step in steps[:until]:
            step.set()
        deadline = time.monotonic() + 30
        while fake.reads <= until:  # it waits for the next one: those before were taken
            assert time.monotonic() < deadline
            time.sleep(0.001)

    camera = Camera("/dev/video0", capture=fake)
    try:
        let(1)
        first = next(camera)
        assert (first.shape, first.dtype) == ((4, 5, 3), np.uint8)
        assert first[0, 0].tolist() == [9, 0, 0]  # red first
        let(12)
        assert next(camera)[0, 0, 2] == 11  # those between are left out
        waited = threading.Timer(0.05, let, (13,))
        waited.start()
        assert next(camera)[0, 0, 2] == 12  # and none comes twice
        waited.join()
    finally:
        for step in steps:
            step.set()
        camera.close()
    assert fake.released


def test_a_camera_that_is_let_go() -> None:
    fake = Fake(lambda i: (True, blue(i % 256)))
    with Camera(0, capture=fake) as camera:
        assert camera.live and camera.name == "/dev/video0"
        next(camera)
    assert fake.released


def test_a_camera_that_stops() -> None:
    fake = Fake(lambda i: (i < 1, blue(i)))
    with Camera("/dev/video3", capture=fake) as camera:
        found = [next(camera)]
        with pytest.raises(ModelError, match=r"^/dev/video3: it gives no frames: it was unplugged"):
            next(camera)
        with pytest.raises(ModelError, match="it gives no frames"):
            next(camera)  # no end is waited for that has come
    assert len(found) == 1 and fake.released
    assert fake.reads == 1 + MISSED


def test_a_camera_that_misses_a_frame_now_and_then() -> None:
    fake = Fake(lambda i: (i % 3 == 2, blue(i)))
    with Camera("/dev/video0", capture=fake) as camera:
        assert [frame[0, 0, 0] for frame, _ in zip(camera, range(5))] == [9] * 5


def test_a_camera_that_hangs() -> None:
    forever = threading.Event()

    def frame(i: int) -> Read:
        forever.wait(30)
        return False, None

    with Camera("/dev/video0", capture=Fake(frame), stalled=0.05) as camera:
        with pytest.raises(ModelError, match=r"^/dev/video0: no frame came in 0\.05 seconds"):
            next(camera)
        forever.set()


def test_a_camera_of_which_opencv_raises() -> None:
    def frame(i: int) -> Read:
        raise RuntimeError("cannot decode\nthis")

    with Camera("/dev/video0", capture=Fake(frame)) as camera:
        with pytest.raises(ModelError, match="OpenCV cannot read on: cannot decode this"):
            next(camera)


def test_one_that_cannot_be_opened() -> None:
    fake = Fake(lambda i: (False, None), open=False)
    with pytest.raises(ModelError, match="cannot be opened: another program may have it"):
        Camera("/dev/video0", capture=fake)
    assert fake.released and not fake.reads


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (np.full((2, 3), 7, np.uint8), [7, 7, 7]),
        (np.full((2, 3, 1), 8, np.uint8), [8, 8, 8]),
        (np.tile(np.array([1, 2, 3], np.uint8), (2, 3, 1)), [3, 2, 1]),
    ],
)
def test_grey_and_coloured_frames(frame: NDArray[Any], expected: list[int]) -> None:
    (found,) = Camera("film.avi", capture=Fake(lambda i: (i < 1, frame)))
    assert found.shape == (2, 3, 3) and found[1, 2].tolist() == expected


@pytest.mark.parametrize("shape", [(2, 3, 4), (2,)])
def test_frames_of_another_kind(shape: tuple[int, ...]) -> None:
    fake = Fake(lambda i: (True, np.zeros(shape, np.uint16)))
    with pytest.raises(ShapeError, match=r"film\.avi: expected frames of uint8 H x W x 3, got"):
        next(Camera("film.avi", capture=fake))


def test_a_video_without_frames() -> None:
    with pytest.raises(ModelError, match=r"film\.avi: expected a video, and there is no frame"):
        next(Camera("film.avi", capture=Fake(lambda i: (False, None))))


def test_a_video(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    path = str(tmp_path / "film.AVI")
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for i in range(5):
        writer.write(np.full((48, 64, 3), (200, 0, 40 * i), np.uint8))
    writer.release()
    with Camera(path) as video:
        assert not video.live
        frames = list(video)
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * 5
    for i, frame in enumerate(frames):  # JPEG's colours are within a few of what they were
        assert np.abs(frame.astype(int) - [40 * i, 0, 200]).max() <= 6


def test_a_file_that_is_no_video(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    (tmp_path / "film.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(range(256)) * 4)
    with pytest.raises(ModelError, match=r"film\.mp4: cannot be opened: expected a video"):
        Camera(tmp_path / "film.mp4")
    assert "OPENCV_FFMPEG_LOGLEVEL" not in os.environ
    with pytest.raises(ModelError, match=r"other\.mp4: no such file"):
        Camera(tmp_path / "other.mp4")
    os.mkfifo(tmp_path / "pipe.avi")
    with pytest.raises(ModelError, match=r"pipe\.avi: is not a file"):
        Camera(tmp_path / "pipe.avi")


def test_no_such_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2")
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.setattr(Path, "glob", lambda path, name: [Path("/dev/video4"), Path("/dev/video2")])
    said = "/dev/video7: no such camera, there are /dev/video2, /dev/video4"
    with pytest.raises(ModelError, match=said):
        Camera("7")
    monkeypatch.setattr(Path, "glob", lambda path, name: [])
    with pytest.raises(ModelError, match="no such camera, there is none here"):
        Camera(7)


def test_a_camera_that_this_user_may_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2")
    known = SimpleNamespace(st_mode=stat.S_IFCHR, st_gid=0)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.setattr(Path, "stat", lambda path: known)
    monkeypatch.setattr(os, "access", lambda path, how: False)
    with pytest.raises(ModelError, match="video0: this user may not open it: its group is root"):
        Camera("/dev/video0")
    known.st_mode = stat.S_IFREG
    with pytest.raises(ModelError, match="expected a camera, which it is not"):
        Camera("/dev/video0")


def test_without_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    said = r"video0: .* need OpenCV: .* \(the extra glnn\[camera\]\)"
    with pytest.raises(ModelError, match=said):
        Camera("/dev/video0")


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "1").mkdir()
    cameras = ["/dev/video0", "/dev/video12", "0", "12", "1", "video0", "/dev/video", "²", "-1", ""]
    assert [name for name in cameras if is_camera(name)] == cameras[:4]
    videos = ["a.avi", "b/c.MP4", "d.png", "mp4", "e.npz"]
    assert [name for name in videos if is_video(name)] == videos[:2]
