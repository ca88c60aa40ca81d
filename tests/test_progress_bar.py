"""The bar on standard error: what it says of work that takes long, and where there is none."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

import numpy as np
import pytest

import glnn
from glnn.core import progress_bar
from glnn.core.progress_bar import Work, report_work
from glnn.core.trace_spans import duration
from glnn.layers import Linear, ReLU
from glnn.model import Model

LONG = 20.0  # seconds after which a bar that does not come is missed


def wait_until(reached: Callable[[], bool], what: str) -> None:
    """Return once `reached` says so; a test that waits for `what` in vain fails."""
    end = monotonic() + LONG
    while not reached():
        assert monotonic() < end, f"there is no {what}"
        sleep(0.01)


class Terminal(io.StringIO):
    """A stream that is a terminal as far as it says so."""

    def isatty(self) -> bool:
        return True

    def wait_for(self, text: str) -> None:
        """Return once `text` was written here."""
        wait_until(lambda: text in self.getvalue(), repr(text))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Standard error as a terminal, on which work is drawn at once."""
    shown = Terminal()
    monkeypatch.setattr(progress_bar, "DELAY", 0.0)
    monkeypatch.setattr(progress_bar, "INTERVAL", 0.01)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    glnn.progress(True)
    yield shown
    glnn.progress(False)


@contextmanager
def on(terminal: Terminal) -> Iterator[None]:
    """Have `terminal` be standard error inside: before a test begins pytest puts its own there."""
    former, sys.stderr = sys.stderr, terminal
    try:
        yield
    finally:
        sys.stderr = former


def gone(terminal: Terminal) -> bool:
    """Return whether the line of the bar was erased, with nothing after that."""
    return re.sub(r"\x1b\[\?\w*|\r", "", terminal.getvalue()).endswith("\x1b[2K")


def test_work_says_what_it_is_and_how_much_is_done(terminal: Terminal) -> None:
    with on(terminal), report_work("planning", "net on compute"):
        terminal.wait_for("planning net on compute")
        with report_work("compiling", total=3) as work:
            terminal.wait_for("0 of 3")
            for _ in work.counted("ab"):
                pass
            terminal.wait_for("2 of 3")
        assert "compiling net on compute" in terminal.getvalue()
    assert gone(terminal)
    assert not [one for one in threading.enumerate() if "_draw" in one.name]


def test_work_gets_a_row_in_a_bar_that_is_open(terminal: Terminal) -> None:
    from glnn.cli.screen import progress

    with on(terminal), progress() as bar:
        bar.add_task("classifying", total=7)
        with report_work("compiling", "net", total=5):
            terminal.wait_for("0/5")
            assert len(bar.tasks) == 2
        assert [task.description for task in bar.tasks] == ["classifying"]


def test_a_row_moves_to_a_bar_of_its_own_once_the_shared_one_ends(terminal: Terminal) -> None:
    from glnn.cli.screen import progress

    with on(terminal), report_work("planning", "net"):
        with progress() as bar:
            terminal.wait_for("planning net")
            wait_until(lambda: bool(bar.tasks), "a row")
        drawn, written = bar.tasks[0].completed, len(terminal.getvalue())
        with report_work("compiling", "net", total=5):
            terminal.wait_for("0 of 5")
        assert len(terminal.getvalue()) > written
        assert [task.description for task in bar.tasks] == ["planning net"]
        assert bar.tasks[0].completed == drawn
    assert gone(terminal)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_inside_work_draws_its_own(terminal: Terminal) -> None:
    """And it may leave the work that began before."""
    with on(terminal):
        with report_work("planning", "net"):
            terminal.wait_for("planning net")
            child = os.fork()
            if not child:
                code = 1
                try:
                    with report_work("compiling", "fork"):
                        terminal.wait_for("compiling fork")
                    progress_bar._BAR.end(Work("planning", "net", None))
                    code = 0
                finally:
                    os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_name_cannot_write_to_the_terminal(terminal: Terminal) -> None:
    with on(terminal), report_work("loading", "a\x1b[31m\n" + 100 * "b"):
        terminal.wait_for("loading a\\x1b[31m bbb")
        assert 41 * "b" not in terminal.getvalue()


def test_there_is_no_bar_without_a_terminal_or_unless_it_was_asked_for(terminal: Terminal) -> None:
    for wanted, stream in ((True, io.StringIO()), (False, terminal)):
        glnn.progress(wanted)
        former, sys.stderr, before = sys.stderr, stream, threading.active_count()
        try:
            with report_work("planning"):
                assert threading.active_count() == before
        finally:
            sys.stderr = former
        assert stream.getvalue() == ""


@pytest.mark.parametrize("arguments", [("layout", "C 2 64"), ("layout", "C 2 64", "--json")])
def test_the_command_line_asks_for_it_unless_it_prints_json(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    import glnn.cli

    asked: list[bool] = []
    monkeypatch.setattr(glnn.cli, "progress", asked.append)
    monkeypatch.setattr(sys, "argv", ["glnn", *arguments])
    with pytest.raises(SystemExit):
        glnn.cli.main()
    assert asked == ["--json" not in arguments, False]


def test_work_that_fails_leaves_no_bar(terminal: Terminal) -> None:
    with pytest.raises(KeyboardInterrupt), on(terminal), report_work("planning", "net"):
        terminal.wait_for("planning net")
        raise KeyboardInterrupt
    assert gone(terminal)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """All work that is reported."""
    found: list[Work] = []
    bar = progress_bar._BAR
    begin = bar.begin

    def noted(work: Work) -> None:
        begin(work)
        found.append(work)

    monkeypatch.setattr(bar, "begin", noted)
    return found


@pytest.mark.parametrize("backend", ["compute", "cpu"])
def test_a_first_run_reports_its_work(
    backend: str, terminal: Terminal, reported: list[Work], device: object
) -> None:
    model = Model.sequential([Linear(6, 5), ReLU(), Linear(5, 3)], (6,), name="net")
    session = glnn.InferenceSession(model, backend)
    with on(terminal):
        session.run(None, {model.inputs[0].name: np.ones((2, 6), np.float32)})
    said = {work.doing: work for work in reported}
    assert said["planning"].on == f"net on {backend}"
    steps = said["compiling" if backend == "compute" else "preparing"]
    assert steps.on == said["planning"].on and steps.total == steps.done
    assert steps.total == len(session.plan({model.inputs[0].name: (2, 6)}).steps)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (3.4e-7, "0.34 us"),
        (9.996e-5, "100 us"),
        (0.001239, "1.24 ms"),
        (0.9996, "1 s"),
        (12.4, "12.4 s"),
        (119.4, "119 s"),
        (119.96, "2 min 0 s"),
        (3665.0, "61 min 5 s"),
        (float("inf"), "inf s"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert not re.search(r"e[+-]?\d", duration(seconds))
