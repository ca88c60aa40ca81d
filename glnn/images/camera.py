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
"""The file extensions that are read as videos."""
DEVICE = re.compile(r"/dev/video[0-9]{1,3}")
STALLED = 10.0  # seconds without a frame, after which OpenCV gives up, too
MISSED = 30  # consecutive failed reads of a camera that are tolerated
PAUSE = 0.01  # seconds after a failed read


class VideoCapture(Protocol):
    """The part of OpenCV's `VideoCapture` that is used."""

    def isOpened(self) -> bool: ...  # noqa: N802  # OpenCV's name
    def read(self) -> tuple[bool, Any]: ...
    def release(self) -> None: ...


def is_camera(name: str) -> bool:
    """Return True for a camera: /dev/video0, or its number where no file has that name."""
    if re.fullmatch(r"[0-9]{1,3}", name):
        return not Path(name).exists()
    return DEVICE.fullmatch(name) is not None


def is_video(name: str) -> bool:
    """Return True where a file called `name` is read as a video."""
    return Path(name).suffix.lower() in VIDEOS


class Camera:
    """An iterator over the frames of a camera or a video file: RGB arrays, uint8 H x W x 3.

    A context manager, which releases the camera or file. A camera yields its newest frame, each
    once, and drops the frames between; a thread reads them from the driver, so that none queues up
    there. A file yields every frame until its end.

    source: /dev/video0, its number, or the name of a file. stalled: the seconds to wait for a
    camera's frame. capture: the capture to read instead of OpenCV's for `source`.
    """

    def __init__(
        self,
        source: str | int | os.PathLike[str],
        *,
        stalled: float = STALLED,
        capture: VideoCapture | None = None,
    ) -> None:
        """Open the camera or file.

        Raises ModelError where OpenCV is missing, where the camera or file does not exist or may
        not be opened, or where OpenCV cannot read it.
        """
        name = str(source)
        self.live = isinstance(source, int) or is_camera(name)
        self.name = f"/dev/video{name}" if self.live and not DEVICE.fullmatch(name) else name
        self._capture = _open(self.name, self.live) if capture is None else capture
        self._frames = 0
        if not self._capture.isOpened():
            self._capture.release()
            advice = "another program may have it, or it gives no pictures"
            what = advice if self.live else "expected a video that OpenCV reads"
            raise ModelError(f"{self.name}: cannot be opened: {what}")
        self._reader = _NewestFrameReader(self._capture, stalled) if self.live else None

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

        Raises ModelError where a camera yields no frames any more, or a file has none.
        """
        if self._reader is not None:
            frame, reason = self._reader.take()
            if frame is None:
                raise ModelError(f"{self.name}: {reason}")
        else:
            success, frame = self._capture.read()
            if not success and not self._frames:
                raise ModelError(f"{self.name}: expected a video, and there is no frame to read")
            if not success:
                raise StopIteration
        self._frames += 1
        return _to_rgb(frame, self.name)

    def close(self) -> None:
        """Release the camera or file."""
        if self._reader is not None:
            self._reader.end()
        else:
            self._capture.release()


class _NewestFrameReader:
    """Keeps the newest frame of a capture, which its thread reads all the time."""

    def __init__(self, capture: VideoCapture, stalled: float) -> None:
        self._capture = capture
        self._stalled = stalled
        self._changed = threading.Condition()
        self._frame: Any = None
        self._end_reason = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="glnn camera", daemon=True)
        self._thread.start()

    def take(self) -> tuple[Any, str]:
        """Wait for a new frame; return it and "", or None and the reason why there is none."""
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: self._frame is not None or self._end_reason, self._stalled
            )
            frame, self._frame = self._frame, None
            stalled = f"no frame came in {self._stalled:g} seconds"
            return frame, self._end_reason if in_time else stalled

    def end(self) -> None:
        """End the thread, which releases the camera; do not wait for a driver that hangs."""
        self._ended.set()
        self._thread.join(1.0)

    def _read(self) -> None:
        missed, reason = 0, "it gives no frames: it was unplugged, or another program has it"
        try:
            while missed < MISSED and not self._ended.is_set():
                success, frame = self._capture.read()
                if success:
                    missed = 0
                    with self._changed:
                        self._frame = frame
                        self._changed.notify_all()
                else:
                    missed += 1
                    self._ended.wait(PAUSE)
        except Exception as error:  # OpenCV's own, of a stream that it cannot decode
            reason = f"OpenCV cannot read on: {' '.join(str(error).split())}"
        finally:
            self._capture.release()  # in this thread, as it must not be released during a read
            with self._changed:
                self._end_reason = reason
                self._changed.notify_all()


def _open(name: str, live: bool) -> VideoCapture:
    """Open a camera or a file by OpenCV. Raises ModelError where this user may not read it."""
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
        capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)  # not all drivers support it
        return capture


@contextmanager
def _silent(logging: Any) -> Iterator[None]:
    """Suppress the output of OpenCV and its FFmpeg within the context."""
    level, variable = logging.getLogLevel(), "OPENCV_FFMPEG_LOGLEVEL"
    was_set = variable in os.environ
    os.environ.setdefault(variable, "-8")  # FFmpeg's AV_LOG_QUIET
    logging.setLogLevel(logging.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        logging.setLogLevel(level)
        if not was_set:
            del os.environ[variable]


def _check_device(name: str) -> None:
    """Raise ModelError where there is no device `name`, or this user may not open it."""
    path = Path(name)
    if not path.exists():
        devices = sorted(map(str, Path("/dev").glob("video*")))
        hint = f"there are {', '.join(devices)}" if devices else "there is none here"
        raise ModelError(f"{name}: no such camera, {hint}")
    status = path.stat()
    if not stat.S_ISCHR(status.st_mode):
        raise ModelError(f"{name}: expected a camera, which it is not")
    if not os.access(path, os.R_OK | os.W_OK):
        advice = f"its group is {_group(status.st_gid)}, to which `usermod -aG` adds a user"
        raise ModelError(f"{name}: this user may not open it: {advice}")


def _group(number: int) -> str:
    """Return the name of a group, mostly `video`."""
    try:
        import grp

        return grp.getgrgid(number).gr_name
    except (ImportError, KeyError):
        return str(number)


def _to_rgb(frame: Any, name: str) -> Frame:
    """Convert OpenCV's `frame`, BGR or grey, to RGB."""
    if (
        frame.dtype != np.uint8
        or frame.ndim not in (2, 3)
        or frame.shape[2:] not in ((), (1,), (3,))
    ):
        what = f"{frame.dtype} of shape {frame.shape}"
        raise ShapeError(f"{name}: expected frames of uint8 H x W x 3, got {what}")
    if frame.ndim == 2 or frame.shape[2] == 1:
        return np.repeat(frame.reshape(*frame.shape[:2], 1), 3, axis=2)
    # Channel by channel: NumPy takes eight times as long to copy frame[:, :, ::-1].
    return np.stack([frame[:, :, 2], frame[:, :, 1], frame[:, :, 0]], axis=2)
