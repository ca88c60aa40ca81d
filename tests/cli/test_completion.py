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
    for name in ("vgg.onnx", "vgg.ONNX", "vgg.png", ".vgg.onnx", "a.gguf", "b.pt"):
        (tmp_path / name).touch()  # process runs there
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets/one.json").touch()
    assert complete("run", "vg") == [
        "plain,vgg16",
        "plain,vgg16-c",
        "plain,vgg.ONNX",
        "plain,vgg.onnx",
    ]
    own = [f"plain,{name}" for name in ("lenet", "vgg16", "vgg16-c", "lenet-untrained")]
    files = ["plain,nets/", "plain,vgg.ONNX", "plain,vgg.onnx"]
    for verb in ("run", "view", "info", "verify", "train", "tune"):
        assert complete(verb, "") == own + files
    assert complete("plan", "a") == complete("bench", "a") == ["plain,a.gguf"]
    assert complete("chat", "") == ["plain,a.gguf", "plain,nets/"]
    assert complete("convert", "b") == ["plain,b.pt"]
    assert complete("run", "nets/") == ["plain,nets/one.json"]
    assert complete("run", ".v") == ["plain,.vgg.onnx"]
    assert complete("run", "lenet", "pict") == ["file,pict"]
    assert complete("convert", "--labels", "na") == ["file,na"]
    assert complete("bench", "lenet", "--trace", "tr") == ["file,tr"]


def test_names_that_need_quotes_are_the_shells(complete: Complete, tmp_path: Path) -> None:
    (tmp_path / "my net.onnx").touch()
    assert complete("run", "my") == ["file,my"]
    assert complete("run", "none") == ["file,none"]


def test_kinds_of_the_cache_are_completed(complete: Complete) -> None:
    assert complete("cache", "clear", "p") == ["plain,programs", "plain,plans"]
    assert complete("cache", "clear", "plans", "p") == ["plain,programs"]
    assert len(complete("cache", "clear", "")) == 8


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(cli: Glnn, shell: str) -> None:
    shown = cli("completion", shell)
    assert shown.code == 0 and f"_GLNN_COMPLETE={shell}_complete" in shown.out
    path = shutil.which(shell)
    if path is not None:
        subprocess.run([path, "-n"], input=shown.out, text=True, check=True)
    assert "'bash', 'zsh', 'fish'" in cli("completion", "tcsh").refusal


BEFORE = {
    "zsh": "compdef() { }\n"
    "compadd() { if [[ $4 == -a ]]; then print -rl -- ${(P)5}; else print -rl -- ${@:7}; fi }\n"
}
"""Functions before the script: zsh has them where its completion is on."""
ASKED = {
    "bash": "COMP_WORDS=(glnn {words}); COMP_CWORD={last}; _glnn_completion glnn; "
    'printf "%s\\n" "${{COMPREPLY[@]}}"',
    "zsh": "words=(glnn {words}); CURRENT=$(({last} + 1)); _glnn_completion",
    "fish": 'complete --do-complete "glnn {words}"',
}
"""What has a shell complete the last of some words."""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("bench --backend cpu,", ["cpu,compute", "cpu,feedback"]),
        ("view n", ["nets/", "net.onnx"]),
    ],
)
def test_a_shell_completes(
    cli: Glnn,
    environment: Mapping[str, str],
    tmp_path: Path,
    shell: str,
    words: str,
    expected: list[str],
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = tmp_path / "glnn"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m glnn "$@"\n')
    command.chmod(0o755)
    (tmp_path / "nets").mkdir()
    (tmp_path / "net.onnx").touch()
    # complete -F wants an interactive bash, whose function can be called without.
    ask = ASKED[shell].format(words=words, last=len(words.split()))
    script = f"{BEFORE.get(shell, '')}{cli('completion', shell).out}\n{ask}\n"
    done = subprocess.run(
        [shell, "-c", script],
        cwd=tmp_path,
        env={**environment, "PATH": f"{tmp_path}:{environment['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert sorted(done.stdout.split()) == sorted(expected), done.stderr
