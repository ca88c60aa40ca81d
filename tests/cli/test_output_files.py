"""No command writes over a file that it reads."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import rich_click as click

from glnn.cli import cli, load
from glnn.cli.options import OutputFile, WritingCommand
from glnn.layers import Linear
from glnn.model import Model
from tests.cli.conftest import Glnn

WRITES = ("Write", "Draw", "Keep there", "Also draw")
"""How the help of an option begins that names a file to write."""
READS_NOTHING = {"doctor", "layout", "kernels"}
"""Commands that write files and read none."""


def commands(
    command: click.Command, names: tuple[str, ...]
) -> dict[tuple[str, ...], click.Command]:
    """Every command that is no group, by the words that it is called by."""
    if not isinstance(command, click.Group):
        return {names: command}
    context = click.Context(command)
    found: dict[tuple[str, ...], click.Command] = {}
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        found |= commands(inner, (*names, name))
    return found


load(())
COMMANDS = commands(cli, ())
OUTPUTS = [
    (names, parameter.opts[0])
    for names, command in COMMANDS.items()
    for parameter in command.params
    if isinstance(parameter.type, OutputFile)
]


def test_every_option_that_writes_says_so() -> None:
    for names, command in COMMANDS.items():
        for parameter in command.params:
            said = str(getattr(parameter, "help", None) or "")
            if said.startswith(WRITES) and names[0] not in READS_NOTHING:
                assert isinstance(parameter.type, OutputFile), (names, parameter.name)
                assert isinstance(command, WritingCommand), names
    verbs = {names[0] for names, _ in OUTPUTS}
    assert verbs == {"run", "bench", "convert", "train", "filter", "view"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, an input of it, samples and a picture."""
    monkeypatch.chdir(tmp_path)
    pillow = pytest.importorskip("PIL.Image")
    Model.sequential([Linear(4, 2)], (4,)).save(tmp_path / "net.json")
    np.save(tmp_path / "x.npy", np.ones((1, 4), np.float32))
    np.savez(tmp_path / "points.npz", x=np.ones((8, 4), np.float32), y=np.arange(8) % 2)
    pillow.new("RGB", (4, 4)).save(tmp_path / "photo.png")
    (tmp_path / "link").symlink_to("x.npy")
    os.link(tmp_path / "x.npy", tmp_path / "second.npy")
    (weights,) = tmp_path.glob("net.weights-*.npz")
    (tmp_path / "weights").symlink_to(weights)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    return tmp_path


GIVEN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "run": (
        ("net.json", "x.npy", "--labels", "labels.txt"),
        ("net.json", "weights", "x.npy", "labels.txt", "link", "second.npy"),
    ),
    "bench": (("net.json", "x.npy"), ("net.json", "weights", "x.npy", "link", "second.npy")),
    "convert": (
        ("net.json", "--overwrite", "--labels", "labels.txt"),
        ("net.json", "weights", "labels.txt"),
    ),
    "train": (
        ("net.json", "points.npz", "--overwrite", "--backend", "cpu"),
        ("net.json", "points.npz"),
    ),
    "filter": (("photo.png",), ("photo.png",)),
    "view": (
        ("net.json", "x.npy", "--overwrite", "--backend", "cpu"),
        ("net.json", "weights", "x.npy", "link", "second.npy"),
    ),
}
"""What each verb is given besides, and the files that it then reads."""
NEEDED = {"resize": ("--size", "4"), "separable": ("--kernel-x", "1", "--kernel-y", "1")}
"""What some filters cannot do without."""


@pytest.mark.parametrize(
    ("names", "option"), OUTPUTS, ids=[" ".join((*names, one)) for names, one in OUTPUTS]
)
def test_an_output_that_is_an_input(
    cli: Glnn, files: Path, names: tuple[str, ...], option: str
) -> None:
    given, read = GIVEN[names[0]]
    for name in read:
        if option == "--drawn" or (names[0], option, name) == ("train", "--output", "net.json"):
            continue  # a folder; a model that --overwrite trains in its place
        before = {path: path.read_bytes() for path in files.iterdir()}
        output = (option, name) if option.startswith("-") else (name, *NEEDED.get(names[-1], ()))
        said = cli(*names, *given, *output).refusal
        assert said.endswith("are the same file"), (name, said)
        assert {path: path.read_bytes() for path in files.iterdir()} == before


def test_names_and_patterns_of_inputs_and_folders(cli: Glnn, files: Path) -> None:
    asked = ("run", "net.json", "--backend", "cpu")
    said = cli(*asked, "input=x.npy", "--trace", "x.npy").refusal
    assert said == "x.npy: INPUTS and --trace are the same file"
    assert "are the same file" in cli(*asked, "*.npy", "--trace", "x.npy").refusal
    assert "are the same file" in cli(*asked, ".", "--trace", "x.npy").refusal
    (files / "dumps").mkdir()
    (files / "x.npy").rename(files / "dumps" / "run-0000.npz")
    said = cli(*asked, "dumps/run-0000.npz", "--dump", "dumps").refusal
    assert said == "dumps/run-0000.npz: INPUTS and --dump are the same file"


def test_weights_beside_a_model_that_is_written(cli: Glnn, files: Path) -> None:
    Model.sequential([Linear(4, 2)], (4,)).save(files / "own.json")
    (weights,) = files.glob("own.weights-*.npz")
    said = cli("convert", "net.json", "own.json", "--weights", weights, "--overwrite").refusal
    assert said == f"{weights}: --weights and OUT are the same file"


@pytest.mark.parametrize("location", ["ext.data", "folder/" + 140 * "w" + ".bin", "out.json"])
def test_files_that_an_onnx_model_names(cli: Glnn, files: Path, location: str) -> None:
    onnx = pytest.importorskip("onnx")
    (files / location).parent.mkdir(exist_ok=True)
    assert cli("convert", "net.json", "net.onnx").code == 0
    model = onnx.load(files / "net.onnx")
    options = {"save_as_external_data": True, "location": location, "size_threshold": 0}
    onnx.save(model, files / "apart.onnx", **options)
    before = (files / location).read_bytes()
    for arguments in (
        ("view", "apart.onnx", "--output", location, "--overwrite", "--backend", "cpu"),
        ("bench", "apart.onnx", "x.npy", "--trace", location, "--backend", "cpu"),
        ("convert", "apart.onnx", location, "--overwrite"),
    ):
        assert cli(*arguments).refusal.endswith("are the same file"), arguments
        assert (files / location).read_bytes() == before


def test_other_files_are_written(cli: Glnn, files: Path) -> None:
    asked = ("run", "net.json", "x.npy", "--backend", "cpu", "--json")
    found = cli(*asked, "--trace", "trace.json", "--dump", "dump.npz").json
    assert found["trace"]["file"] == "trace.json"
    cli(*asked, "--trace", "trace.json", "--dump", "dump.npz")  # once more
