"""What shells complete: verbs, options, their values, names of models and of files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from glnn.cli import VERBS
from tests.cli.conftest import Glnn

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(process: Glnn) -> Complete:
    """Returns what bash is told for words of a command line, of which the last is not complete."""

    def ask(*words: str) -> list[str]:
        line = " ".join(["glnn", *words])
        said = process(COMP_WORDS=line, COMP_CWORD=str(len(words)), _GLNN_COMPLETE="bash_complete")
        assert (said.code, said.err) == (0, "")
        return said.out.split()

    return ask


def test_verbs_are_completed(complete: Complete) -> None:
    assert complete("co") == ["plain,completion", "plain,convert"]
    assert complete("") == [f"plain,{verb}" for verb in VERBS]


def test_options_and_their_values_are_completed(complete: Complete) -> None:
    assert complete("bench", "--prec") == ["plain,--precision"]
    values = complete("bench", "lenet", "--precision", "")
    assert values == ["plain,float32", "plain,float16", "plain,int8"]
    assert complete("bench", "--backend", "compute,") == [
        "plain,compute,feedback",
        "plain,compute,cpu",
    ]


def test_names_of_models_and_files_are_completed(complete: Complete, tmp_path: Path) -> None:
    assert complete("run", "vg") == ["plain,vgg16", "plain,vgg16-c"]
    (tmp_path / "vgg.onnx").touch()  # process runs there
    assert complete("run", "vg") == ["file,vg"]
    assert complete("run", "lenet", "pict") == ["file,pict"]
    assert complete("convert", "--labels", "na") == ["file,na"]
    assert complete("bench", "lenet", "--trace", "tr") == ["file,tr"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(cli: Glnn, shell: str) -> None:
    shown = cli("completion", shell)
    assert shown.code == 0 and f"_GLNN_COMPLETE={shell}_complete" in shown.out
    path = shutil.which(shell)
    if path is not None:
        subprocess.run([path, "-n"], input=shown.out, text=True, check=True)
    assert "'bash', 'zsh', 'fish'" in cli("completion", "tcsh").refusal


@pytest.mark.parametrize(
    ("shell", "ask"),
    [
        (
            "bash",
            "COMP_WORDS=(glnn bench --backend cpu,); COMP_CWORD=3; _glnn_completion glnn; "
            'printf "%s\\n" "${COMPREPLY[@]}"',
        ),
        ("fish", 'complete --do-complete "glnn bench --backend cpu,"'),
    ],
)
def test_a_shell_completes(
    cli: Glnn, environment: Mapping[str, str], tmp_path: Path, shell: str, ask: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = tmp_path / "glnn"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m glnn "$@"\n')
    command.chmod(0o755)
    # complete -F wants an interactive bash, whose function can be called without.
    script = f"{cli('completion', shell).out}\n{ask}\n"
    done = subprocess.run(
        [shell, "-c", script],
        env={**environment, "PATH": f"{tmp_path}:{environment['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["cpu,compute", "cpu,feedback"], done.stderr
