"""Frames of a camera or of a video file, by OpenCV."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glnn.core.fileio import check_file
from glnn.errors import ModelError, ShapeError, extra

Frame = NDArray[np.uint8]

VIDEOS = (
    *(".avi", ".flv", ".m4v", ".mjpeg", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm"),
    ".wmv",
)
"""The endings of the names of files that are read as videos."""
DEVICE = re.compile(r"/dev/video[0-9]{1,3}")
STALLED = 10.0  # seconds without a frame: OpenCV itself gives up after as many
MISSED = 30  # frames in a row that a camera may fail to give
PAUSE = 0.01  # seconds before it is asked again


class VideoCapture(Protocol):
    """The part of OpenCV's `VideoCapture` that is used."""

    def isOpened(self) -> bool: ...  # noqa: N802  # OpenCV's name
    def read(self) -> tuple[bool, Any]: ...
    def release(self) -> None: ...


def is_camera(name: str) -> bool:
    """Return True where `name` is a camera: /dev/video0, or its number where no file has
    that name.
    """
    if re.fullmatch(r"[0-9]{1,3}", name):
        return not Path(name).exists()
    return DEVICE.fullmatch(name) is not None


def is_video(name: str) -> bool:
    """Return True where a file of that name is read as a video."""
    return Path(name).suffix.lower() in VIDEOS


class Camera:
    """The frames of a camera or a video file, each uint8 H x W x 3, red first, as an iterator.

    A context manager: the camera is free again behind it. A camera gives the newest frame there is,
    each once, and leaves out those that came while nobody asked; a thread takes them from the
    driver, so that none waits there. A file gives every frame until its end.

    source: /dev/video0, the number of such a one, or the name of a file. stalled: seconds that a
    camera may take for a frame. capture: in place of OpenCV's own for this source.
    """

    def __init__(
        self,
        source: str | int | os.PathLike[str],
        *,
        stalled: float = STALLED,
        capture: VideoCapture | None = None,
    ) -> None:
        """Open it.

        Raises ModelError where OpenCV is missing, there is no such camera or file, nobody may open
        it, or OpenCV cannot read it.
        """
        name = str(source)
        self.live = isinstance(source, int) or is_camera(name)
        self.name = f"/dev/video{name}" if self.live and not DEVICE.fullmatch(name) else name
        self._capture = _open(self.name, self.live) if capture is None else capture
        self._given = 0
        if not self._capture.isOpened():
            self._capture.release()
            advice = "another program may have it, or it gives no pictures"
            what = advice if self.live else "expected a video that OpenCV reads"
            raise ModelError(f"{self.name}: cannot be opened: {what}")
        self._newest = _Newest(self._capture, stalled) if self.live else None

    def __enter__(self) -> Camera:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        """Return the next frame of a file, or the newest of a camera.

        Raises ModelError where a camera gives none any more, or a file has none at all.
        """
        if self._newest is not None:
            frame, why = self._newest.take()
            if frame is None:
                raise ModelError(f"{self.name}: {why}")
        else:
            there, frame = self._capture.read()
            if not there and not self._given:
                raise ModelError(f"{self.name}: expected a video, and there is no frame to read")
            if not there:
                raise StopIteration
        self._given += 1
        return _red_first(frame, self.name)

    def close(self) -> None:
        """Let go of the camera or file."""
        if self._newest is not None:
            self._newest.end()
        else:
            self._capture.release()


class _Newest:
    """The newest frame of a capture, which a thread of its own reads all the time."""

    def __init__(self, capture: VideoCapture, stalled: float) -> None:
        self._capture = capture
        self._stalled = stalled
        self._changed = threading.Condition()
        self._frame: Any = None
        self._why = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="glnn camera", daemon=True)
        self._thread.start()

    def take(self) -> tuple[Any, str]:
        """Wait for a frame that was not taken before; return it, or None and why there is none."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: self._frame is not None or self._why, self._stalled
            )
            frame, self._frame = self._frame, None
            return frame, self._why if came else f"no frame came in {self._stalled:g} seconds"

    def end(self) -> None:
        """Have the thread end, which lets go of the camera; a driver that hangs is left alone."""
        self._ended.set()
        self._thread.join(1.0)

    def _read(self) -> None:
        missed, why = 0, "it gives no frames: it was unplugged, or another program has it"
        try:
            while missed < MISSED and not self._ended.is_set():
                there, frame = self._capture.read()
                if there:
                    missed = 0
                    with self._changed:
                        self._frame = frame
                        self._changed.notify_all()
                else:
                    missed += 1
                    self._ended.wait(PAUSE)
        except Exception as error:  # OpenCV's own, of a stream that it cannot decode
            why = f"OpenCV cannot read on: {' '.join(str(error).split())}"
        finally:
            self._capture.release()  # here, as it must not go while it is read
            with self._changed:
                self._why = why
                self._changed.notify_all()


def _open(name: str, live: bool) -> VideoCapture:
    """Open a camera or a file that this user may read, by OpenCV."""
    try:
        import cv2
    except ImportError:
        raise ModelError(f"{name}: cameras and videos need OpenCV: {extra('camera')}") from None
    if live:
        _check_device(name)
    else:
        check_file(Path(name))
    with _silent(cv2.utils.logging):
        if not live:
            return cv2.VideoCapture(name)
        capture = cv2.VideoCapture(int(re.sub(r"\D", "", name)), cv2.CAP_V4L2)
        capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)  # where the driver knows of it
        return capture


@contextmanager
def _silent(logging: Any) -> Iterator[None]:
    """Suppress the output of OpenCV and its FFmpeg within the context."""
    former, variable = logging.getLogLevel(), "OPENCV_FFMPEG_LOGLEVEL"
    asked = variable in os.environ
    os.environ.setdefault(variable, "-8")  # FFmpeg's number for nothing at all
    logging.setLogLevel(logging.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        logging.setLogLevel(former)
        if not asked:
            del os.environ[variable]


def _check_device(name: str) -> None:
    """Raise ModelError where there is no device `name`, or this user may not open it."""
    path = Path(name)
    if not path.exists():
        result = sorted(map(str, Path("/dev").glob("video*")))
        there = f"there are {', '.join(result)}" if result else "there is none here"
        raise ModelError(f"{name}: no such camera, {there}")
    known = path.stat()
    if not stat.S_ISCHR(known.st_mode):
        raise ModelError(f"{name}: expected a camera, which it is not")
    if not os.access(path, os.R_OK | os.W_OK):
        advice = f"its group is {_group(known.st_gid)}, to which `usermod -aG` adds a user"
        raise ModelError(f"{name}: this user may not open it: {advice}")


def _group(number: int) -> str:
    """Return the name of a group, mostly `video`."""
    try:
        import grp

        return grp.getgrgid(number).gr_name
    except (ImportError, KeyError):
        return str(number)


def _red_first(frame: Any, name: str) -> Frame:
    """Convert OpenCV's `frame`, blue first or grey, to H x W x 3."""
    if (
        frame.dtype != np.uint8
        or frame.ndim not in (2, 3)
        or frame.shape[2:] not in ((), (1,), (3,))
    ):
        what = f"{frame.dtype} of shape {frame.shape}"
        raise ShapeError(f"{name}: expected frames of uint8 H x W x 3, got {what}")
    if frame.ndim == 2 or frame.shape[2] == 1:
        return np.repeat(frame.reshape(*frame.shape[:2], 1), 3, axis=2)
    # Copied channel by channel: a copy of frame[:, :, ::-1] takes NumPy eight times as long.
    return np.stack([frame[:, :, 2], frame[:, :, 1], frame[:, :, 0]], axis=2)
