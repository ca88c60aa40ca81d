"""GL contexts of a hidden window, by GLFW: for machines where EGL gives nothing."""

from __future__ import annotations

import ctypes
import importlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from glnn.gl.context import Context, StepError, Version
from glnn.gl.egl import Egl, remember


class WindowContext(Context):
    """The context of a hidden window, of the first of `versions` that there is.

    Raises StepError. Windows are made and destroyed in the main thread only, used in any.
    """

    what = "GLFW window"

    def __init__(self, versions: Sequence[Version]) -> None:
        self._window: Any = None
        if threading.current_thread() is not threading.main_thread():
            raise StepError("glfwInit", "GLFW makes windows in the main thread only")
        try:
            self._glfw: Any = importlib.import_module("glfw")
        except ImportError as error:
            raise StepError("import glfw", str(error)) from None
        try:
            self._egl: Egl | None = Egl()
        except StepError:
            self._egl = None
        with self._failure("glfwInit"):
            ready = self._glfw.init()  # never terminated: others in the process may use GLFW
        if not ready:
            raise StepError("glfwInit", "no window system")
        self._leave_egl()
        failures = []
        for version in versions:
            try:
                self._window = self._create(version)
                break
            except StepError as failed:
                failures.append((version, failed))
        else:
            reasons = ", ".join(f"{failed.error} ({version})" for version, failed in failures)
            raise StepError("glfwCreateWindow", reasons)
        self.make_current()

    def _leave_egl(self) -> None:
        """GLX and EGL exclude each other in a thread: X would end the process."""
        if self._egl is not None:
            self._egl.leave()

    @contextmanager
    def _failure(self, step: str) -> Iterator[None]:
        """Turn GLFW's error, which is a warning or an exception as the user chose, into ours."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self._glfw.get_error()
                yield
                code, text = self._glfw.get_error()
            except self._glfw.GLFWError as error:
                raise StepError(step, str(error)) from None
        if code:
            raise StepError(step, (text or b"").decode("utf-8", "replace"))

    def _create(self, version: Version) -> Any:
        glfw = self._glfw
        with self._failure("glfwCreateWindow"):
            glfw.default_window_hints()
            glfw.window_hint(glfw.VISIBLE, False)
            glfw.window_hint(glfw.CONTEXT_VERSION_MAJOR, version.major)
            glfw.window_hint(glfw.CONTEXT_VERSION_MINOR, version.minor)
            if version.api == "es":
                glfw.window_hint(glfw.CLIENT_API, glfw.OPENGL_ES_API)
            else:
                glfw.window_hint(glfw.OPENGL_PROFILE, glfw.OPENGL_CORE_PROFILE)
                glfw.window_hint(glfw.OPENGL_FORWARD_COMPAT, True)
            window = glfw.create_window(1, 1, "glnn", None, None)
            glfw.default_window_hints()
        if not window:
            raise StepError("glfwCreateWindow", f"no window for {version}")
        return window

    def load_opengl_function(self, name: str) -> int:
        return int(self._glfw.get_proc_address(name) or 0)

    def is_current(self) -> bool:
        current = self._glfw.get_current_context()
        return bool(current and self._window) and _address(current) == _address(self._window)

    def make_current(self) -> None:
        self._leave_egl()
        with self._failure("glfwMakeContextCurrent"):
            self._glfw.make_context_current(self._window)

    def leave(self) -> None:
        if self.is_current():
            self._glfw.make_context_current(None)

    def remember(self) -> Callable[[], object] | None:
        return remember(self._egl)

    def release(self) -> None:
        # GLFW forbids it elsewhere than in the main thread: there the window is left to the end.
        if self._window and threading.current_thread() is threading.main_thread():
            self.leave()
            window, self._window = self._window, None
            self._glfw.destroy_window(window)


def _address(window: Any) -> int:
    return ctypes.cast(window, ctypes.c_void_p).value or 0
