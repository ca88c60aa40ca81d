"""Every experiment of the documents, one command after another, each into a file of its own.

The commands are those of benchmarks/documents/*.toml. What a command wrote replaces what was there
only if it is whole: one that fails, or takes too long, leaves what was there, and the rest goes on.

    python -m benchmarks.experiments --list
    python -m benchmarks.experiments gronqvist cheng --into mine/
    python -m benchmarks.experiments --only bias,activation --timeout 60
    python -m benchmarks.experiments --missing
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import rich_click as click

from benchmarks import documents
from benchmarks.command import run
from benchmarks.tables import table
from glnn.cli.screen import Screen
from glnn.errors import GlnnError

MEASURED = Path(__file__).parent / "measured"
LATE = 124
"""The exit status of what took too long, as `timeout` has it."""


def commands(chosen: tuple[str, ...] = documents.ALL) -> dict[str, str]:
    """What measures the figures of these documents, by the names of the files, each once."""
    every = (figure for name in chosen for figure in documents.figures(name))
    return {figure.measured: figure.command for figure in every if figure.command}


def measure(command: str, path: Path, timeout: float) -> tuple[int, str]:
    """Run `command` with --json, write what it prints to `path`; its status and its last words.

    `path` is replaced as a whole or not at all. LATE after `timeout` seconds.
    """
    words = shlex.split(command)
    arguments = words[1:] if words[0] == "python" else ["-m", *words]
    child = subprocess.Popen(
        [sys.executable, *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return LATE, f"it took more than {timeout:g} s"
    finally:
        if child.poll() is None:  # late, or this program is interrupted
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    said = (errors.strip().splitlines() or [""])[-1]
    if child.returncode:
        return child.returncode, said
    try:
        json.loads(printed)
    except ValueError:
        return 1, f"it printed no JSON: {printed[:60]!r}"
    part = path.with_suffix(".part")
    part.write_text(printed, "utf-8")
    part.replace(path)
    return 0, ""


def _chosen(
    names: tuple[str, ...], only: str | None, missing: bool, into: Path
) -> Mapping[str, str]:
    known = commands(names or documents.ALL)
    wanted = only.split(",") if only else list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise GlnnError(f"--only: no {unknown[0]!r}, expected some of {', '.join(known)}")
    return {
        name: known[name] for name in wanted if not (missing and (into / f"{name}.json").exists())
    }


@click.command(help=__doc__)
@click.argument("names", nargs=-1, metavar="[DOCUMENT]...", type=click.Choice(documents.ALL))
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), default=MEASURED)
@click.option("--only", help="Some of the files' names, by commas.")
@click.option("--missing", is_flag=True, help="Only those whose file is not there yet.")
@click.option("--timeout", type=click.FloatRange(1), default=180.0, show_default=True,
              help="Seconds for each command.")  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="Say what would be run, and where to.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    names: tuple[str, ...],
    into: Path,
    only: str | None,
    missing: bool,
    timeout: float,
    listed: bool,
    as_json: bool,
) -> int:
    wanted = _chosen(names, only, missing, into)
    out = Screen()
    if listed:
        shown = table("file", "command")
        for name, command in wanted.items():
            shown.add(f"{name}.json", command)
        print(json.dumps(wanted, indent=2)) if as_json else out.show(shown)
        return 0
    into.mkdir(parents=True, exist_ok=True)
    results = {}
    for i, (name, command) in enumerate(wanted.items(), 1):
        start = perf_counter()
        status, said = measure(command, into / f"{name}.json", timeout)
        seconds = perf_counter() - start
        results[name] = {"command": command, "status": status, "seconds": seconds, "said": said}
        line = f"{i}/{len(wanted)} {name}: status {status}, {seconds:.1f} s"
        click.echo(line + (f": {said}" if said else ""), err=as_json)
    if as_json:
        print(json.dumps(results, indent=2))
    return int(any(result["status"] for result in results.values()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is running ends, too
    run(main)
