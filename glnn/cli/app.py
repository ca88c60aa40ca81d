"""The `glnn` command: its verbs, and what errors look like to a user."""

from __future__ import annotations

import os
import sys

import rich_click as click

from glnn import __version__
from glnn.cli.bench import bench
from glnn.cli.info import info
from glnn.cli.kernels import kernels
from glnn.cli.layout import layout
from glnn.cli.plan import plan
from glnn.cli.run import run
from glnn.cli.screen import say
from glnn.cli.tune import tune
from glnn.cli.verify import verify
from glnn.errors import GlnnError, ShaderError

USER_ERROR, INTERRUPTED = 2, 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="glnn")
def cli() -> None:
    """Neural networks on any GPU whose driver speaks OpenGL ES.

    \b
    Examples:
      glnn info                                  what this machine offers
      glnn run lenet                             classify the bundled digits
      glnn run lenet photo.png                   classify a picture
      glnn bench lenet --backends compute,cpu    time every layer
      glnn tune                                  find this device's fastest kernels
    """


for verb in (info, run, bench, verify, plan, kernels, layout, tune):
    cli.add_command(verb)


def main() -> None:
    """Run the command line and exit: 2 for a user's mistake, 130 when interrupted."""
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        code = _complain(error.format_message())
    except ShaderError as error:  # with the driver's messages and the shader's lines
        say(str(error))
        code = USER_ERROR
    except GlnnError as error:
        code = _complain(str(error))
    except MemoryError as error:
        code = _complain(f"not enough memory: {error}" if str(error) else "not enough memory")
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:  # a full disk
        code = _complain(str(error))
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> int:
    """Print `message` in one line, whatever line breaks it quotes; the exit code."""
    say(" ".join(message.split()))
    return USER_ERROR
