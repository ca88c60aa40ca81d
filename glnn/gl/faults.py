"""Checks for GL errors and for contexts that the driver reset."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint
from typing import TYPE_CHECKING, Any

from glnn.gl.capabilities import Capabilities
from glnn.gl.context import Context

if TYPE_CHECKING:
    import moderngl

RESETS = {0x8253: "guilty", 0x8254: "innocent", 0x8255: "unknown"}


def reset_asker(
    gl: Context, offers: Capabilities, extensions: set[str], load: Callable[..., Any]
) -> Callable[[], int]:
    """GL's function that says whether the context was reset; one that says no if it has none.

    Which a driver does that was not asked to tell, too. load: as `Device.load`.
    """
    core = offers.version >= ((3, 2) if offers.api == "es" else (4, 5))
    named = {"": core, "KHR": "GL_KHR_robustness" in extensions}
    named["EXT"] = "GL_EXT_robustness" in extensions
    for suffix, there in named.items():
        name = f"glGetGraphicsResetStatus{suffix}"
        if there and gl.load_opengl_function(name):
            ask: Callable[[], int] = load(name, c_uint)
            return ask
    return lambda: 0


def drain(context: moderngl.Context) -> list[str]:
    """The pending GL errors, which are then forgotten."""
    errors: list[str] = []
    while (error := context.error) != "GL_NO_ERROR" and len(errors) < 8:  # a lost context repeats
        errors.append(error)
    return errors
