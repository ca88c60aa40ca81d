"""The command line: `glnn VERB …`, one verb a file, and what errors look like to a user."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from types import ModuleType
from typing import Any

import rich_click as click
from click.shell_completion import CompletionItem

from glnn.cli.options import COMPLETION, INTERRUPTED, print_json
from glnn.cli.screen import say
from glnn.core.progress_bar import progress
from glnn.errors import GlnnError, ShaderError, printable
from glnn.version import VERSION

__all__ = ["load", "main"]
USER_ERROR = 2


VERBS = (
    *("bench", "cache", "chat", "completion", "convert", "doctor", "filter", "generate"),
    *("info", "kernels", "layout", "plan", "run", "serve", "train", "transcribe", "tune"),
    *("verify", "view"),
)
"""Names of commands, each in the module of that name unless `MODULES` has another."""
MODULES = {"chat": "generate"}


def _module(verb: str) -> ModuleType:
    """Import the module of a verb."""
    return import_module(f"glnn.cli.{MODULES.get(verb, verb)}")


class Verbs(click.RichGroup):
    """The group of the commands VERBS, each of which is imported on first use.

    It prints nothing when it is interrupted.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(_module(cmd_name), cmd_name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a verb without importing any, as a shell waits for it."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name) for name in VERBS if name.startswith(incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-"):
            near = get_close_matches(args[0], VERBS, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(VERBS)}"
            ctx.fail(f"No such command {args[0]!r}: {meant}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # for it, click prints an empty line, but not for its own Abort
            raise click.Abort from None


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, "-V", "--version", prog_name="glnn")
def cli() -> None:
    """Neural networks on any GPU whose driver speaks OpenGL ES.

    \b
    Examples:
      glnn info                                  what this machine offers
      glnn doctor                                whether its driver can be believed
      glnn run lenet                             classify the bundled digits
      glnn run lenet photo.png                   classify a picture
      glnn bench lenet --backend compute,cpu     time every layer
      glnn view net.onnx                         draw its graph, as an HTML file
      glnn convert net.onnx net.json             write a model in another format
      glnn filter sobel in.png out.png           filter a picture
      glnn train net.json mnist/ --output out.json   train it on samples of your own
      glnn chat model.gguf                       talk with a language model
      glnn generate model.gguf -p "Once"         continue a text
      glnn serve model.gguf                      answer OpenAI's clients
      glnn transcribe whisper/ talk.wav          write down what is said
      glnn tune                                  find this device's fastest kernels
      glnn cache                                 what is kept on disk, and clearing it
      glnn completion bash                       have the shell complete all of this
    """


def load(arguments: Sequence[str]) -> None:
    """Import the verb that `arguments` name, or all verbs where these ask for help.

    Import none for a shell's completion, which imports the verb that it needs.
    """
    if COMPLETION in os.environ:
        return
    named = [name for name in arguments[:1] if name in VERBS]
    versioned = {"-V", "--version"}.intersection(arguments[:1])
    for verb in named or (() if versioned else VERBS):
        _module(verb)


def main() -> None:
    """Run the command line and exit: 2 for a failure, 130 when interrupted."""
    _check_streams()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            progress("--json" not in sys.argv[1:])
            code = cli.main(standalone_mode=False, complete_var=COMPLETION)
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        _give_up_output()
        code = 1
    except Exception as error:
        code = _fail(error)
    finally:
        progress(False)
    sys.exit(code if isinstance(code, int) else 0)


def _warn(message: Warning | str, *location: object, **details: object) -> None:
    """Print a warning as any other message, without its place in Python's code."""
    say(" ".join(str(message).split()))


def _check_streams() -> None:
    """Exit where standard output is closed; open the null device for other closed streams."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # the next file would otherwise get the number of the closed stream
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    if sys.stdout is None:
        say("the standard output is closed")
        sys.exit(USER_ERROR)
    if isinstance(sys.stdout, TextIOWrapper):  # file names may hold what has no encoding
        sys.stdout.reconfigure(errors="backslashreplace")


def _fail(error: Exception) -> int:
    """Print what went wrong, on standard output too with --json, and return the exit code."""
    message = _message(error)
    say(message)
    if sys.flags.dev_mode:
        traceback.print_exception(error)
    try:
        if "--json" in sys.argv[1:]:  # the options may not have been parsed yet
            kind = type(error).__name__
            # In one line, as lines of JSON may have been printed before.
            print_json({"error": message, "kind": kind, "exit": USER_ERROR}, indent=None)
        sys.stdout.flush()
    except OSError:  # the failure may be that nothing can be written there
        _give_up_output()
    return USER_ERROR


def _message(error: Exception) -> str:
    """Return the text of `error` in one printable line; a driver's messages keep their lines."""
    if isinstance(error, ShaderError):
        return printable(str(error))
    if isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, MemoryError):
        text = f"not enough memory: {error}" if str(error) else "not enough memory"
    elif isinstance(error, (GlnnError, OSError)):
        text = str(error)
    else:
        kind = type(error).__name__
        text = f"unexpected {kind}: {error}; `python -X dev -m glnn ...` shows where it came from"
    return printable(" ".join(text.split()))


def _give_up_output() -> None:
    """Redirect standard output to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
