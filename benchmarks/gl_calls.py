"""Where the time goes by GL function: calls, time and shares, as table 4.4 of Cronin 2018 has them.

A convolution runs by the document's three orders on the feedback backend, and by the same orders on
the CPU in plain loops, five times each, as its benchmark did. Every GL function that glnn and
moderngl look up is replaced by one that notes the time and hands the call on. What a session does
once, compiling and the trial of its kernels, is counted apart; the document compiled in every run.

    python -m benchmarks.gl_calls
    python -m benchmarks.gl_calls --scenario conv5 --repeat 9 --json
    python -m benchmarks.gl_calls --scenario conv3 --kernel conv2d=feedback
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

import glnn
from benchmarks import beside, documents, plain_gemm
from benchmarks.command import run
from benchmarks.compiled import library
from benchmarks.cronin import FORMS, convolution, scenarios
from benchmarks.networks import Array, Row
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.cli.options import kernel_option
from glnn.cli.screen import Screen, number
from glnn.errors import GlnnError
from glnn.gl.egl import EglContext
from glnn.gl.window import WindowContext
from glnn.validation.comparison import relative_error

SOURCE = Path(__file__).with_name("gl_calls.c")
MOST = 768  # functions
TOLERANCE = 1e-4
SHOWN = 12  # functions of ours
WAIT = "glEndTransformFeedback"  # where the document's program waits for the GPU
WAITS = (WAIT, "glFinish", "glClientWaitSync", "glMapBufferRange")  # where a program may
LARGE = 5.0  # percent of the time in GL
UNITS = {
    "calls": "calls",
    "total": "us",
    "average": "us",
    "gl": "% of the time in GL",
    "app": "% of the program's time",
}
"""Of the columns."""


class Calls:
    """The GL functions that were looked up while `counted`, and what they have taken."""

    def __init__(self) -> None:
        """Raises GlnnError where there is no C compiler, or none that knows this machine."""
        self._library = library(SOURCE, "-O1")  # there are many
        self._library.stand_in.restype = ctypes.c_void_p
        self._library.stand_in.argtypes = (ctypes.c_int, ctypes.c_void_p)
        self._calls, self._spent = (
            (ctypes.c_int64 * MOST).in_dll(self._library, name) for name in ("calls", "nanoseconds")
        )
        self._numbers: dict[str, int] = {}

    def stand_in(self, name: str, address: int) -> int:
        """What is to be called instead of the function `name` at `address`."""
        place = self._numbers.get(name, len(self._numbers))
        if not address or place >= MOST:
            return address
        self._numbers[name] = place
        return int(self._library.stand_in(place, address))

    def clear(self) -> None:
        """Begin to count anew."""
        ctypes.memset(self._calls, 0, ctypes.sizeof(self._calls))
        ctypes.memset(self._spent, 0, ctypes.sizeof(self._spent))

    def rows(self, seconds: float) -> list[Row]:
        """Each function that was called, the longest first; times in microseconds.

        seconds: the program's, of which `app` is the share in percent, as `gl` is of GL's.
        """
        spent = {name: self._spent[place] / 1e3 for name, place in self._numbers.items()}
        whole = sum(spent.values())
        made = [
            {
                "name": name,
                "calls": self._calls[place],
                "total": spent[name],
                "average": spent[name] / self._calls[place],
                "gl": 100 * spent[name] / whole,
                "app": 100 * spent[name] / (1e6 * seconds),
            }
            for name, place in self._numbers.items()
            if self._calls[place]
        ]
        return sorted(made, key=lambda row: -row["total"])


@contextmanager
def counted(calls: Calls) -> Iterator[None]:
    """Contexts that look a GL function up get what stands in for it."""
    kinds: tuple[Any, ...] = (EglContext, WindowContext)
    plain = [kind.load_opengl_function for kind in kinds]
    for kind, load in zip(kinds, plain, strict=True):

        def instead(self: Any, name: str, load: Any = load) -> int:
            return calls.stand_in(name, load(self, name))

        kind.load_opengl_function = instead
    try:
        yield
    finally:
        for kind, load in zip(kinds, plain, strict=True):
            kind.load_opengl_function = load


def measured(
    calls: Calls, sizes: dict[str, int], forms: Mapping[str, Mapping[str, str]], repeat: int
) -> dict[str, Any]:
    """What is called while the sessions begin, and while all `forms` and the CPU's loops run."""
    model = convolution(sizes)
    x = np.random.default_rng(0).standard_normal(model.inputs[0].with_batch(1), np.float32)
    exact = model(x, backend="cpu").astype(np.float64)
    loops = list(plain_gemm.ways(x, model.nodes[0].layer.parameters["weight"]))
    with counted(calls):
        start = perf_counter()
        device = glnn.Device()
        sessions = [_session(model, device, kernels, x, exact) for kernels in forms.values()]
        begun = calls.rows(perf_counter() - start)
        calls.clear()
        start = perf_counter()
        for session in sessions:
            for _ in range(repeat):
                session.run(None, {"input": x})
        by_gl = perf_counter() - start
        for _, work in loops:
            for _ in range(repeat):
                work()
        found = calls.rows(perf_counter() - start)
        about = machine(device)
        device.close()
    return {**about, "gl_s": by_gl, "begun": begun, "rows": found}


def _session(
    model: glnn.Model,
    device: glnn.Device,
    kernels: Mapping[str, str],
    x: Array,
    exact: NDArray[np.float64],
) -> glnn.InferenceSession:
    """A session that ran once, rightly."""
    session = glnn.InferenceSession(model, "feedback", device=device, kernels=kernels)
    error = relative_error(session.run(None, {"input": x})[0], exact)
    if not error <= TOLERANCE:
        raise GlnnError(f"{dict(kernels)}: the result is off by {error:.1e}, no time is given")
    return session


def compared(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Table 4.4 beside `rows`, of functions that need not be called here, and what it says."""
    figure = documents.figure("cronin_2018", "alexnet_table_4_4")
    ours = {row["name"]: row for row in rows}
    entries: list[Row] = []
    for column, unit in UNITS.items():
        # What is never called took nothing, but has no average.
        called = [name for name in figure.rows_here if name in ours or column != "average"]
        made = {(name, column): ours.get(name, {}).get(column, 0) for name in called}
        entries += beside.rows(figure, made, unit)
    longest, deleted = rows[0], ours.get("glDeleteBuffers", {}).get("gl", 0.0)
    here = f"{longest['name']} takes {longest['gl']:.3g}% of the time in GL"
    waits = longest["name"] in WAITS and longest["gl"] > 50
    met = "no" if not waits else "yes" if longest["name"] == WAIT else "in part"
    gone = f"{deleted:.3g}%" if deleted else "no run deletes any"
    large = "yes" if deleted > LARGE else "no"
    claims = [
        beside.answer(figure, "most of the time in GL", here, met),
        beside.answer(figure, "to delete buffers", gone, large),
    ]
    return entries, claims


@click.command(help=__doc__)
@click.option("--scenario", default="conv2", show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=5, show_default=True)
@kernel_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(scenario: str, repeat: int, kernels: dict[str, str], as_json: bool) -> None:
    if scenario not in (known := scenarios()):
        raise GlnnError(f"--scenario: no {scenario!r}, expected one of {', '.join(known)}")
    forms = {"named": kernels} if kernels else FORMS
    result = measured(Calls(), known[scenario], forms, repeat)
    result = {"scenario": scenario, "repeat": repeat, "kernels": list(forms.values()), **result}
    if not kernels:
        result["beside"], result["claims"] = compared(result["rows"])
    if as_json:
        print(json.dumps(result, indent=2))
        return
    out = Screen()
    hidden = ("rows", "begun", "beside", "claims")
    out.say(", ".join(f"{k} {v}" for k, v in result.items() if k not in hidden))
    _show(out, result["rows"], f"{len(forms)} x {repeat} runs by GL, and 3 x {repeat} on the CPU")
    _show(out, result["begun"], "before: the device, the plans, the kernels' trials, a first run")
    figure = documents.figure("cronin_2018", "alexnet_table_4_4")
    theirs = [{"name": name, **times} for name, times in figure.rows.items()]
    _show(out, theirs, f"{figure.source}, {figure.device}: {figure.title}")
    beside.say(out, result.get("claims", []))


def _show(out: Screen, rows: list[Row], title: str) -> None:
    shown = table("", ">calls", ">total us", ">average us", ">% of GL", ">% of the program")
    for row in rows[:SHOWN]:
        times = (number(row[key]) for key in ("total", "average", "gl", "app"))
        shown.add(row["name"], f"{row['calls']:g}", *times)
    out.show(shown, title)


if __name__ == "__main__":
    run(main)
