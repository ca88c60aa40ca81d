"""What is seen in a terminal: no line wider than it, no number cut, and all of it with --wide."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from glnn.cli.screen import Column, Screen, Table, figures, number, size
from glnn.layers import MaxPool2d
from glnn.model import Model
from tests.cli.conftest import Glnn

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-\d\d)?")
Terminal = Callable[..., list[str]]


@pytest.fixture
def terminal(environment: Mapping[str, str], tmp_path: Path) -> Terminal:
    """Calls the command line in a terminal of so many columns: the lines that it prints."""

    def call(columns: int, *arguments: object, code: int = 0, **more: str) -> list[str]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        kept = {k: v for k, v in environment.items() if k not in ("COLUMNS", "LINES")}
        with subprocess.Popen(
            [sys.executable, "-m", "glnn", *map(str, arguments)],
            env={**kept, "TERM": "xterm", **more},
            cwd=tmp_path,
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
        ) as process:
            os.close(theirs)
            shown = b""
            try:
                while part := os.read(ours, 1 << 16):
                    shown += part
            except OSError:  # Linux's way to say that the other end is closed
                pass
            assert process.wait(120) == code
        os.close(ours)
        return [line.rstrip() for line in ESCAPE.sub("", shown.decode()).splitlines()]

    return call


def tables(lines: list[str]) -> list[list[str]]:
    """The rows of every table among `lines`, each begun by the rule below its head."""
    found: list[list[str]] = []
    inside = False
    for line in lines:
        if line and set(line) == {"─"}:
            found.append([])
        elif not line or line.startswith("not shown: "):
            inside = False
            continue
        elif inside:
            found[-1].append(line)
            continue
        else:
            continue
        inside = True
    return found


def of_plan(report: Any) -> list[str]:
    steps = report["steps"]
    shapes = [" x ".join(map(str, step["shape"])) for step in steps]
    blocks = [size(block["bytes"]) for block in report["blocks"]]
    return [*shapes, *blocks, *(size(s["bytes"]) for s in steps), size(report["peak_bytes"])]


IMPORTANT: list[tuple[str, Callable[[Any], list[str]]]] = [
    ("info", lambda r: [r["device"]["renderer"], str(r["limits"]["max_texture_size"])]),
    (
        "run lenet --top 10 --backend cpu",
        lambda r: [f"{best['score']:.4f}" for top in r["top"][:10] for best in top[:5]],
    ),
    ("verify lenet", lambda r: [f"{layer['error']:.2e}" for layer in r["layers"]]),
    ("verify lenet --backend feedback", lambda r: [f"{x['error']:.2e}" for x in r["layers"]]),
    ("plan lenet --batch 3", of_plan),
    ("plan lenet --backend feedback --limits es31-minimum", of_plan),
    ("kernels", lambda r: [row["backend"] for row in r["kernels"]]),
    ("layout C_4_2_C 8 64", lambda r: [f" {place}" for row in r["places"] for place in row]),
]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(("arguments", "important"), IMPORTANT, ids=[a for a, _ in IMPORTANT])
def test_every_verb_in_its_columns(
    terminal: Terminal,
    cli: Glnn,
    arguments: str,
    important: Callable[[Any], list[str]],
    columns: int,
) -> None:
    lines = terminal(columns, *arguments.split())
    assert max(map(cell_len, lines)) <= columns
    text = "\n".join(lines)
    assert "…" not in text and len(tables(lines)) >= 1
    for value in important(cli(*arguments.split(), "--json").json):
        assert value in text


@pytest.mark.parametrize("columns", [80, 120])
def test_bench(terminal: Terminal, columns: int) -> None:
    options = ("--batch", 10, "--repeat", 1, "--backends", "feedback,cpu")
    lines = terminal(columns, "bench", "lenet", *options)
    assert max(map(cell_len, lines)) <= columns
    text = " ".join(lines)
    assert "…" not in text
    if "(no kernel times: " in text and "no timer query" not in text:  # in full, on whatever lines
        reason = text.partition("(no kernel times: ")[2].partition(")")[0]
        assert re.match(r"(all steps together|step \S+.*): .* ms", reason), reason
    feedback, cpu, whole = tables(lines)
    assert [row.split()[0] for row in whole] == ["feedback", "cpu"]
    for row in cpu:
        wall = row.split()[-3]  # GFLOP/s, CPU ms and speed-up follow, or two of them
        assert NUMBER.fullmatch(wall), row
    figures = [re.sub(r"[0-9.]+ [KMG]iB", "", row) for row in (*feedback, *whole)]
    for row in figures:
        for word in row.split()[-4:]:
            assert word == "-" or NUMBER.fullmatch(word), row
    (kept,) = [line for line in lines if line.startswith("model lenet")]
    assert "batch 10" in kept
    left_out = [line for line in lines if line.startswith("not shown: ")]
    assert bool(left_out) == (columns == 80)
    if left_out:
        assert "GFLOP, overhead ms; --wide shows all columns" in left_out[0]


def test_a_kernels_text_is_not_a_word_a_line(terminal: Terminal) -> None:
    for columns in (80, 120):
        (rows,) = tables(terminal(columns, "kernels", "--op", "conv2d"))
        begun = [row for row in rows if row.startswith("conv2d")]
        assert len(begun) > 15 and len(rows) < 4 * len(begun)


def test_tune(terminal: Terminal, tmp_path: Path) -> None:
    """A pool has the fewest kernels to try."""
    more, path = {"GLNN_CACHE": str(tmp_path / "cache")}, tmp_path / "pool.json"
    Model.sequential([MaxPool2d(2)], (3, 8, 8)).save(path)
    for columns, arguments in ((80, (path,)), (120, ("--show",))):
        lines = terminal(columns, "tune", *arguments, **more)
        assert max(map(cell_len, lines)) <= columns
        (rows,) = tables(lines)
        assert len(rows) >= 1 and rows[0].endswith("x")
    wide = terminal(80, "tune", "--show", "--wide", **more)
    assert "parameters" in "".join(wide) and "default ms" in "".join(wide)


@pytest.mark.parametrize(
    "arguments", ["plan lenet --backend feedback", "kernels --op conv2d", "layout C 2 64"]
)
def test_wide_and_pipes_show_all_on_one_line(terminal: Terminal, cli: Glnn, arguments: str) -> None:
    wide = terminal(80, *arguments.split(), "--wide")
    piped = [line.rstrip() for line in cli(*arguments.split()).out.splitlines()]
    assert [line for line in wide if "free on" not in line] == [
        line for line in piped if "free on" not in line
    ]
    assert max(map(cell_len, piped)) > 120
    assert not any(line.startswith("not shown") for line in piped)


def shown(capsys: pytest.CaptureFixture[str], table: Table, width: int | None) -> list[str]:
    screen = Screen()
    screen.width = width
    screen.show(table)
    return capsys.readouterr().out.rstrip("\n").split("\n")


@pytest.mark.parametrize("width", [*range(12, 60), None])
def test_what_has_no_room_goes_by_importance(
    capsys: pytest.CaptureFixture[str], width: int | None
) -> None:
    table = Table(
        (Column("name", least=6), figures("wall ms"), figures("not so", 2), Column("text", 1))
    )
    table.add("a long name", "0.123456", "98.7654", "some words that fold")
    table.add("b", "1", "2", "-")
    lines = shown(capsys, table, width)
    text = "\n".join(lines)
    assert "0.123456" in text  # never cut, never folded, never left out
    left_out = " ".join(text.partition("not shown: ")[2].split())
    assert ("98.7654" in text) != ("not so" in left_out)
    assert ("words" in text) != ("text" in left_out)
    if width is None or width >= 53:
        assert "some words that fold" in text and "not shown" not in text
    if width is not None and width >= 16:
        assert max(map(cell_len, lines)) <= max(width, 16)


def test_columns_that_say_nothing_go_first(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table((Column("name"), figures("none", 1), figures("some", 2)))
    table.add("n" * 10, "-", "1.5")
    text = "\n".join(shown(capsys, table, 19))
    assert "1.5" in text and "not shown: none" in text.replace("\n", " ")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "-"),
        (0.0, "0"),
        (12345.6, "12346"),
        (999.7, "1000"),
        (123.4, "123"),
        (12.34, "12.3"),
        (9.996, "10.0"),
        (1.0, "1.00"),
        (0.07654, "0.0765"),
        (-0.0130, "-0.0130"),
        (0.00012345, "0.000123"),
        (0.00000012345, "1.23e-07"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_numbers_have_three_digits_that_mean_something(value: float | None, says: str) -> None:
    assert number(value) == says


def test_what_a_terminal_would_obey_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table((Column("name"),))
    table.add("a\x1b[2Jb\nc\x9bd\udcffé日")
    assert shown(capsys, table, 80)[-1] == "a\\x1b[2Jb\\nc\\x9bd\\udcffé日"
