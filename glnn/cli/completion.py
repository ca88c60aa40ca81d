"""`glnn completion`: the script by which a shell completes glnn's commands."""

from __future__ import annotations

import rich_click as click
from click.shell_completion import get_completion_class

from glnn.cli.options import COMPLETION

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands, options, their values and file names.

    Evaluate it where the shell starts, as the examples do. The shell then asks glnn at each Tab.

    \b
    Examples:
      echo 'eval "$(glnn completion bash)"' >> ~/.bashrc
      echo 'eval "$(glnn completion zsh)"' >> ~/.zshrc
      echo 'glnn completion fish | source' >> ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, "glnn", COMPLETION).source()
    # click's script for fish cuts a value at each comma, as of --backend compute,cpu.
    click.echo(script.replace('string split ","', 'string split --max 1 ","'))
