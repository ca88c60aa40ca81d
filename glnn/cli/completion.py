"""`glnn completion`: the script by which a shell completes glnn's commands."""

from __future__ import annotations

import rich_click as click
from click.shell_completion import get_completion_class

from glnn.cli.options import COMPLETION

SHELLS = ("bash", "zsh", "fish")
REPLACEMENTS = {
    # No blank after a folder.
    "bash": (("COMPREPLY+=(", "[[ $value == */ ]] && compopt -o nospace; COMPREPLY+=("),),
    "zsh": (
        (
            'if [ -n "$completions" ]; then',
            'compadd -U -S "" -V unsorted -- ${(M)completions:#*/}\n'
            "    completions=(${completions:#*/})\n"
            '    if [ -n "$completions" ]; then',
        ),
    ),
    # A value such as compute,cpu of --backend is not split at its commas.
    "fish": (('string split ","', 'string split --max 1 ","'),),
}
"""Texts of click's script for a shell, each with its replacement."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands, options, their values and file names.

    Evaluate it where the shell starts, as the examples do, by the path of the environment that has
    glnn: no environment is active there yet. The shell then asks glnn at each Tab.

    \b
    Examples:
      echo 'eval "$(~/glnn/bin/glnn completion bash)"' >> ~/.bashrc
      echo 'eval "$(~/glnn/bin/glnn completion zsh)"' >> ~/.zshrc
      echo '~/glnn/bin/glnn completion fish | source' >> ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, "glnn", COMPLETION).source()
    for theirs, ours in REPLACEMENTS.get(shell, ()):
        script = script.replace(theirs, ours)
    click.echo(script)
