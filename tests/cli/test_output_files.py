"""No command writes over a file that it reads, or over another without --overwrite."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich_click as click

from glnn.cli import cli, load
from glnn.cli.options import OutputFile, WritingCommand
from glnn.cli.run import WatchOptions, watch
from glnn.core.fileio import atomic_write, create_only
from glnn.errors import ModelError
from glnn.layers import Linear
from glnn.model import Model
from tests.cli.conftest import Glnn

WRITES = ("Write", "Draw", "Keep there", "Also draw")
"""How the help of an option begins that names a file to write."""
NO_CAMERA: Any = None
NO_CLASSIFIER: Any = None
"""Neither is asked for anything where a file is refused."""
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
            if said.startswith(WRITES):
                assert isinstance(parameter.type, OutputFile), (names, parameter.name)
                assert isinstance(command, WritingCommand), names
    verbs = {names[0] for names, _ in OUTPUTS}
    assert verbs == {"run", "bench", "convert", "train", "filter", "view"} | READS_NOTHING


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


def ids(outputs: Sequence[tuple[tuple[str, ...], str]]) -> list[str]:
    return [" ".join((*names, option)) for names, option in outputs]


READERS = [(names, option) for names, option in OUTPUTS if names[0] not in READS_NOTHING]


@pytest.mark.parametrize(("names", "option"), READERS, ids=ids(READERS))
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
    before = (files / "trace.json").read_bytes()
    assert cli(*asked, "--trace", "trace.json", "--dump", "dump.npz", "--overwrite").code == 0
    assert (files / "trace.json").read_bytes() != before


WHERE = {"--drawn": "photo.png", "--dump": "run-0000.npz", "--export": "matmul-gemm_blocked.comp"}
"""The file in a folder that an option writes; all others name a file themselves."""
TO_WRITE = {**GIVEN, "doctor": ((), ()), "kernels": ((), ()), "layout": (("C", "2", "2"), ())}
BESIDES = {
    ("bench", "--report"): ("bench", "--suite"),
    ("run", "--drawn"): ("run", "lenet", "photo.png"),
    ("train", "--plot"): ("train", "net.json", "points.npz", "--output", "new.json"),
    ("train", "--checkpoint"): ("train", "net.json", "points.npz", "--output", "new.json"),
}
"""Commands that write what an option names, where `GIVEN` has another one."""


@pytest.mark.parametrize(("names", "option"), OUTPUTS, ids=ids(OUTPUTS))
def test_a_file_that_is_there_stays(
    cli: Glnn, files: Path, names: tuple[str, ...], option: str
) -> None:
    (files / "folder").mkdir()
    name = f"folder/{WHERE[option]}" if option in WHERE else "mine.json"
    (files / name).write_text("mine")
    given = BESIDES.get((names[0], option)) or (*names, *TO_WRITE[names[0]][0])
    given = tuple(one for one in given if one != "--overwrite")
    target = "folder" if option in WHERE else name
    if names[0] == "filter":  # its target must be called as a picture
        (files / "mine.png").write_text("mine")
        name = target = "mine.png"
    output = (option, target) if option.startswith("-") else (target, *NEEDED.get(names[-1], ()))
    said = cli(*given, *output).refusal
    assert f"{name} is there already: " in said and said.endswith("--overwrite replaces it")
    assert (files / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["", "-"])
@pytest.mark.parametrize(("names", "option"), OUTPUTS, ids=ids(OUTPUTS))
def test_what_is_no_name_of_a_file(
    cli: Glnn, files: Path, names: tuple[str, ...], option: str, name: str
) -> None:
    given = TO_WRITE[names[0]][0]
    output = (option, name) if option.startswith("-") else (name, *NEEDED.get(names[-1], ()))
    said = cli(*names, *given, *output).refusal
    assert "expected the name of a file, got " in said and repr(name) in said
    assert not (files / "-").exists()


def test_frames_that_are_there_stay(files: Path) -> None:
    """A camera's are numbered from 0 each time."""
    (files / "frame-000007.png").write_text("mine")
    with pytest.raises(ModelError, match=r"frame-000007.png is there already: --overwrite"):
        watch(NO_CAMERA, NO_CLASSIFIER, dict, WatchOptions(folder=str(files)))


def test_help_says_that_files_are_replaced_by_overwrite(cli: Glnn) -> None:
    for names in dict.fromkeys(names for names, _ in OUTPUTS):
        said = " ".join(cli(*names, "--help").out.replace("│", " ").split())
        assert "--overwrite Replace files that are there already" in said, names


LENET = ("run", "lenet", "photo.png", "--backend", "cpu")
NET = ("run", "net.json", "x.npy", "--backend", "cpu")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*NET, "--trace", "uu.npz", "--dump", "./uu.npz"), "uu.npz: --dump and --trace"),
        ((*NET, "--trace", "tt.json", "--dump", "tt.json"), "tt.json: --dump and --trace"),
        ((*NET, "--dump", "linked.npz", "--trace", "a.npz"), "a.npz: --dump and --trace"),
        ((*LENET, "--drawn", "a.npz", "--dump", "a.npz"), "a.npz: --drawn and --dump"),
        (
            (*NET, "--dump", "dd", "--trace", "dd/run-0000.npz"),
            "dd/run-0000.npz: --dump and --trace",
        ),
        ((*LENET, "--drawn", "dd", "--trace", "dd/photo.png"), "dd/photo.png: --drawn and --trace"),
        (
            ("train", "net.json", "points.npz", "--checkpoint", "net-trained.json"),
            "net-trained.json: --output and --checkpoint",
        ),
    ],
)
@pytest.mark.parametrize("more", [(), ("--overwrite",)], ids=["", "overwrite"])
def test_two_outputs_that_are_one_file(
    cli: Glnn, files: Path, arguments: tuple[str, ...], says: str, more: tuple[str, ...]
) -> None:
    (files / "dd").mkdir()
    (files / "linked.npz").symlink_to("a.npz")
    before = {*files.rglob("*")}
    assert cli(*arguments, *more).refusal == f"{says} are the same file"
    assert {*files.rglob("*")} == before


def test_several_outputs_in_one_folder(cli: Glnn, files: Path) -> None:
    (files / "dd").mkdir()
    more = ("--dump", "dd", "--drawn", "dd", "--trace", "dd/t.json")
    assert cli(*LENET, *more).code == 0
    found = {path.name for path in (files / "dd").iterdir()}
    assert found == {"run-0000.npz", "photo.png", "t.json"}


@pytest.mark.parametrize(("names", "option"), OUTPUTS, ids=ids(OUTPUTS))
def test_links_in_a_circle(cli: Glnn, files: Path, names: tuple[str, ...], option: str) -> None:
    name, other = (f"{one}.png" if names[0] == "filter" else one for one in ("la", "lb"))
    (files / name).symlink_to(other)
    (files / other).symlink_to(name)
    given = BESIDES.get((names[0], option)) or (*names, *TO_WRITE[names[0]][0])
    output = (option, name) if option.startswith("-") else (name, *NEEDED.get(names[-1], ()))
    said = cli(*given, *output).refusal
    assert said.endswith(f"cannot write to {name}: {os.strerror(errno.ELOOP)}")
    assert (files / name).is_symlink() and (files / other).is_symlink()


def test_matrices_beside_a_definition_stay(
    cli: Glnn, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rovder's format has files for each layer, which are no outputs by name."""
    asked = ("convert", "net.json", "out.json", "--format", "rovder")
    for name in ("out-1_w.csv", "out-1_b.json"):
        (files / name).write_text("mine")
        said = cli(*asked).refusal
        assert said == f"OUT: {name} is there already: --overwrite replaces it"
        assert (files / name).read_text() == "mine" and not (files / "out.json").exists()
        (files / name).unlink()
    (files / "out-1_weights.csv").write_text("mine")
    assert cli(*asked).code == 0 and cli(*asked, "--overwrite").code == 0
    (files / "out.json").rename(files / "other.json")  # which names the matrices out-1_*
    before = {path: path.read_bytes() for path in files.iterdir()}
    for more in ((), ("--overwrite",)):
        said = cli("convert", "other.json", "out.json", "--format", "rovder", *more).refusal
        assert said.endswith("are the same file" if more else "--overwrite replaces it")
    assert {path: path.read_bytes() for path in files.iterdir()} == before
    command = COMMANDS[("convert",)]
    real = command.callback
    assert real is not None

    def late(*arguments: Any, **options: Any) -> Any:
        (files / "new-1_w.json").write_text("theirs")
        return real(*arguments, **options)

    monkeypatch.setattr(command, "callback", late)
    said = cli("convert", "net.json", "new.json", "--format", "rovder").refusal
    assert "made meanwhile by something else" in said and "new-1_w-2.json" in said
    assert (files / "new-1_w.json").read_text() == "theirs"


@pytest.mark.parametrize("name", ["linked.json", "linked.onnx", "linked.npz"])
def test_links_that_lead_nowhere(cli: Glnn, files: Path, name: str) -> None:
    """A model's .json file takes the link's place, as its weights are beside it; others follow."""
    if name.endswith(".onnx"):
        pytest.importorskip("onnx")
    (files / name).symlink_to(f"other-{name}")
    assert cli("convert", "net.json", name).code == 0
    assert (files / name).is_file() and not [*files.glob("linked-*"), *files.glob(".*")]
    assert (files / name).is_symlink() != name.endswith(".json")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*NET, "--dump", "gl"), "--dump: cannot write to gl"),
        ((*LENET, "--drawn", "gl"), "--drawn: cannot write to gl"),
        ((*LENET, "--drawn", "gl/in"), "--drawn: cannot write to gl/in"),
        (("kernels", "--op", "softmax", "--export", "gl"), "--export: cannot write to gl"),
        (("filter", "grey", "*.png", "gl"), "OUT: cannot write to gl"),
    ],
)
def test_folders_that_are_links_that_lead_nowhere(
    cli: Glnn, files: Path, arguments: tuple[str, ...], says: str
) -> None:
    (files / "gl").symlink_to("gone")
    said = cli(*arguments).refusal
    assert said.startswith(says) and said.endswith("gl is a link to gone, which is not there")
    assert (files / "gl").is_symlink() and not (files / "gone").exists()


MEANWHILE = {
    **{verb: (verb, *given) for verb, (given, _) in TO_WRITE.items()},
    "convert": ("convert", "net.json"),
    "train": ("train", "net.json", "points.npz", "--backend", "cpu", "--epochs", "1"),
    "doctor": ("doctor", "--op", "softmax", "--function", "tanh", "--quick"),
}


@pytest.mark.parametrize(
    ("names", "option", "name"),
    [
        (("run",), "--trace", "t.json"),
        (("run",), "--dump", "t.npz"),
        (("run",), "--dump", "dd/run-0000.npz"),
        (("run",), "--drawn", "dd/photo.png"),
        (("convert",), "OUT", "out.json"),
        (("convert",), "OUT", "out.npz"),
        (("view",), "--output", "t.html"),
        (("filter", "sobel"), "OUT", "out.png"),
        (("train",), "--output", "out.json"),
        (("train",), "--checkpoint", "out.npz"),
        (("doctor",), "--report", "t.txt"),
    ],
)
def test_a_file_that_is_made_meanwhile_stays(
    cli: Glnn, files: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], option: str,
    name: str,
) -> None:  # fmt: skip
    """The file is made between the checks and the command itself."""
    given = MEANWHILE[names[0]]
    given = LENET if option == "--drawn" else (*names, *given[1:])
    given = tuple(one for one in given if one != "--overwrite")
    command = COMMANDS[names]
    real = command.callback
    assert real is not None
    (files / "dd").mkdir()

    def late(*arguments: Any, **options: Any) -> Any:
        fileio = import_module("glnn.core.fileio")
        publish = fileio.publish

        def race(draft: Path, target: Path) -> None:
            if target.absolute() == files / name:
                target.write_text("theirs")
            publish(draft, target)

        monkeypatch.setattr(fileio, "publish", race)
        return real(*arguments, **options)

    monkeypatch.setattr(command, "callback", late)
    target = "dd" if name.startswith("dd/") else name
    said = cli(*given, *((option, target) if option.startswith("-") else (target,))).refusal
    kept = (files / name).with_stem(f"{Path(name).stem}-2")
    assert f"made meanwhile by something else; what was written is in {kept.name}" in said
    assert (files / name).read_text() == "theirs" and kept.stat().st_size > len("theirs")
    assert not list(files.rglob(".*"))


@pytest.mark.parametrize("linked", [True, False])
def test_what_was_created_may_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """As a checkpoint is; and where the file system has no hard links."""
    if not linked:
        monkeypatch.delattr(os, "link")
    path = tmp_path / "a.txt"
    (tmp_path / "a-2.txt").write_text("other")
    with create_only([path]):
        for text in (b"1", b"2"):
            with atomic_write(path) as stream:
                stream.write(text)
        with atomic_write(tmp_path / "a-2.txt") as stream:  # which nobody keeps
            stream.write(b"3")
    assert path.read_bytes() == b"2" and (tmp_path / "a-2.txt").read_bytes() == b"3"
    with create_only([tmp_path]), pytest.raises(FileExistsError, match=r"is in a-3\.txt beside it"):
        with atomic_write(path) as stream:
            stream.write(b"4")
    assert path.read_bytes() == b"2" and (tmp_path / "a-3.txt").read_bytes() == b"4"
    assert len(list(tmp_path.iterdir())) == 3


def test_only_what_an_export_would_write_is_there_already(cli: Glnn, files: Path) -> None:
    (files / "dd").mkdir()
    (files / "dd" / "notes.txt").write_text("mine")
    (files / "dd" / "matmul-gemm_blocked.comp").write_text("mine")
    assert cli("kernels", "--op", "softmax", "--export", "dd").code == 0
    assert (files / "dd" / "matmul-gemm_blocked.comp").read_text() == "mine"


def test_names_that_are_refused_say_why(cli: Glnn, files: Path) -> None:
    (files / "ex.json").write_text("mine")
    said = cli(*NET, "--dump", "ex.json").refusal
    assert said == "--dump: ex.json is a file: expected a name that ends in .npz, or a folder"
    said = cli("bench", "--suite", "--report", "--overwrite").refusal
    assert said.endswith(
        "expected the name of a file, got '--overwrite': ./--overwrite would be one"
    )
    assert not (files / "--overwrite").exists()


@pytest.mark.parametrize("option", ["--backend", "--backends"])
@pytest.mark.parametrize("joined", [False, True])
def test_options_are_named_as_they_were_written(cli: Glnn, option: str, joined: bool) -> None:
    written = (f"{option}=cpu",) if joined else (option, "cpu")
    assert cli("bench", "--suite", *written).refusal == f"{option} is not for --suite"
