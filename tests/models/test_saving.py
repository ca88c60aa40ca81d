"""Saving: the old model or the new one, whole, whenever a save ends; and nothing else is left."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from glnn.core import fileio
from glnn.errors import ModelError
from glnn.layers import Layer, Linear, ReLU
from glnn.model import Model, json_format, load
from tests.files import name_weights_plainly, weights_of

ROOT = Path(__file__).parents[2]
OURS = r"net\.weights-[0-9a-f]{16}\.npz"
# Every function of the system that a save calls, by where Python code finds it.
STEPS = ("os.open", "os.fsync", "os.replace", "os.unlink", "fcntl.flock")


def model(value: float, layers: int = 1) -> Model:
    """Adds up three numbers times `value`."""
    made: list[Layer] = []
    for number in range(layers):
        linear = Linear(3 if number == 0 else 1, 1)
        linear.weight = np.full((1, 3 if number == 0 else 1), value, np.float32)
        linear.bias = np.full(1, value, np.float32)
        made.append(linear)
    return Model.sequential(made, (3,), "net")


def value_of(path: Path) -> float:
    """The one value that every parameter of the model at `path` has."""
    values = np.concatenate([array.ravel() for array in load(path).parameters().values()])
    assert (values == values[0]).all(), "a mix of two models"
    return float(values[0])


def left(folder: Path) -> list[str]:
    """The files in `folder`, digits that are drawn at random left out."""
    return sorted(re.sub("[0-9a-f]{16}", "*", path.name) for path in folder.iterdir())


WHOLE = ["net.json", "net.weights-*.npz"]


def test_a_save_leaves_two_files(tmp_path: Path) -> None:
    for value in (1, 2, 3):
        model(value).save(tmp_path / "net.json")
        assert value_of(tmp_path / "net.json") == value
        assert left(tmp_path) == WHOLE
        assert re.fullmatch(OURS, weights_of(tmp_path / "net.json").name)
    Model.sequential([ReLU()], (3,)).save(tmp_path / "net.json")
    assert left(tmp_path) == ["net.json"]


# A process whose forks save and die, as by SIGKILL, at the call whose number they are given.
KILLED = """
import fcntl, json, os, sys
from pathlib import Path
armed, count, after = False, 0, False
def deadly(function):
    def call(*arguments, **named):
        global count
        if not armed:
            return function(*arguments, **named)
        count -= 1
        if count == 0 and not after:
            os._exit(9)
        try:
            return function(*arguments, **named)
        finally:
            if count == 0:
                os._exit(9)
    return call
from tests.models.test_saving import STEPS, model
import numpy.lib.format as npy
import glnn.model.json_format as json_format
for name in STEPS:
    module, function = name.split(".")
    made = deadly(getattr(sys.modules[module], function))
    setattr(sys.modules[module], function, made)
    if hasattr(json_format, function):
        setattr(json_format, function, made)
npy.write_array = deadly(npy.write_array)
for line in sys.stdin:
    path, count, when, layers = json.loads(line)
    if not (child := os.fork()):
        after, saved = when == "after", model(2, layers)
        armed = True
        saved.save(Path(path))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def save_and_die() -> Iterator[Callable[..., int]]:
    """Saves a model of so many layers of 2, dies before or after a call: the exit status."""
    arguments = [sys.executable, "-c", KILLED]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        asked, told = process.stdin, process.stdout
        assert asked is not None and told is not None

        def call(path: Path, count: int, when: str, layers: int) -> int:
            print(json.dumps([str(path), count, when, layers]), file=asked, flush=True)
            return int(told.readline())

        yield call
        asked.close()


@pytest.mark.parametrize("plainly", [False, True], ids=["", "of an older glnn"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_step(save_and_die, tmp_path: Path, when: str, plainly: bool) -> None:
    """The shapes are equal: a mix would load."""
    path = tmp_path / "net.json"
    seen = []
    for count in range(1, 100):
        model(1).save(path)
        if plainly:
            name_weights_plainly(path)
        code = save_and_die(path, count, when, layers=1)
        seen.append(value_of(path))
        assert seen[-1] == 2 or code == 9
        model(3).save(path)
        assert value_of(path) == 3
        # Of an older glnn's weights, nothing tells whose they are once no model names them.
        assert left(tmp_path) in (WHOLE, ["net.json", "net.npz", WHOLE[1]])
        assert plainly or left(tmp_path) == WHOLE
        (tmp_path / "net.npz").unlink(missing_ok=True)
        if code == 0:
            break
    assert code == 0
    assert seen == sorted(seen) and seen[0] == 1  # from one step on it is the new one
    assert len(seen) > 8


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_first_save_that_is_killed(save_and_die, tmp_path: Path, when: str) -> None:
    path = tmp_path / "net.json"
    code, count = 9, 0
    while code:
        count += 1
        code = save_and_die(path, count, when, layers=2)
        assert value_of(path) == 2 if path.exists() else code == 9
        path.unlink(missing_ok=True)
    model(3).save(path)
    assert left(tmp_path) == WHOLE and count > 8


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize(
    ("place", "number"),
    [*(("os.fsync", number) for number in range(1, 5)), ("numpy.savez", 1), ("os.replace", 1)],
)
def test_an_error_at_every_step(tmp_path, monkeypatch, fault, place, number) -> None:
    path = tmp_path / "net.json"
    model(1).save(path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    module, name = place.split(".")
    real, count = getattr(sys.modules[module], name), 0

    def fail(*arguments: object, **named: object) -> object:
        nonlocal count
        count += 1
        if count == number:
            raise fault
        return real(*arguments, **named)

    monkeypatch.setattr(f"{module}.{name}", fail)
    try:
        model(2).save(path)
    except (KeyboardInterrupt, ModelError) as error:
        assert isinstance(error, KeyboardInterrupt) or "net.json: cannot be written" in str(error)
    monkeypatch.undo()
    assert count >= number, "nothing was raised"
    value = value_of(path)
    assert value == 2 or {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert left(tmp_path) == WHOLE
    if (place, number) in [("os.fsync", 1), ("numpy.savez", 1), ("os.replace", 1)]:
        assert value == 1


def test_a_full_disk(tmp_path: Path) -> None:
    """A file that grows over a limit fails as a full disk does, in the middle of the weights."""
    path = tmp_path / "net.json"
    model(1).save(path)
    code = f"""
import resource, signal, sys
from pathlib import Path
import numpy as np
from glnn.errors import ModelError
from glnn.layers import Linear
from glnn.model import Model
made = Model.sequential([Linear(1000, 1000)], (1000,))
made.parameters()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    made.save(Path({str(path)!r}))
except ModelError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{path}: cannot be written: File too large\n" and not done.stderr
    assert value_of(path) == 1 and left(tmp_path) == WHOLE


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    model(1).save(path)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ModelError, match=r"net\.json: cannot be written: Permission denied"):
            model(2).save(path)
    finally:
        tmp_path.chmod(0o700)
    assert value_of(path) == 1 and left(tmp_path) == WHOLE


def test_what_dead_saves_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    mine = ["net.weights-0123456789abcdef.npz", ".net.json.01234567", ".net.npz.89abcdef"]
    foreign = [
        "net.npz",
        "net.weights-0123456789abcde.npz",
        "net.weights-0123456789ABCDEF.npz",
        "net.weights-0123456789abcdef.npz.bak",
        "other.weights-0123456789abcdef.npz",
        ".other.json.01234567",
        ".net.json.0123456",
        "xnet.weights-0123456789abcdef.npz",
    ]
    for name in (*mine, *foreign):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "net.weights-aaaaaaaaaaaaaaaa.npz").mkdir()
    (tmp_path / "net.weights-bbbbbbbbbbbbbbbb.npz").symlink_to(tmp_path / "net.npz")
    os.mkfifo(tmp_path / "net.weights-cccccccccccccccc.npz")
    os.mkfifo(tmp_path / "pipe.json")
    model(1).save(tmp_path / "net.json")
    names = {path.name for path in tmp_path.iterdir()}
    assert names.isdisjoint(mine) and names >= set(foreign)
    assert len(names) == len(foreign) + 6


def test_a_model_that_was_renamed_or_copied_keeps_its_weights(tmp_path: Path) -> None:
    """Also of a name that JSON writes in its own way."""
    path = tmp_path / "né\u00e9t.json"
    for number, move in enumerate((shutil.move, shutil.copy)):
        model(1 + number).save(path)
        move(path, tmp_path / f"best{number}.json")
        model(9).save(path)
        assert value_of(tmp_path / f"best{number}.json") == 1 + number
    assert value_of(path) == 9


def test_a_copy_that_is_called_as_the_model_and_more_keeps_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    for number, name in enumerate(("net.json.bak", "net.json~", "net.json.1")):
        model(1 + number).save(path)
        shutil.copy(path, tmp_path / name)
    model(9).save(path)
    for number, name in enumerate(("net.json.bak", "net.json~", "net.json.1")):
        shutil.copy(tmp_path / name, tmp_path / "again.json")
        assert value_of(tmp_path / "again.json") == 1 + number
    assert len(list(tmp_path.glob("*.npz"))) == 4


@pytest.mark.parametrize("fault", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ELOOP])
def test_a_copy_that_cannot_be_read_now_keeps_its_weights(tmp_path, monkeypatch, fault) -> None:
    path, best = tmp_path / "net.json", tmp_path / "best.json"
    model(1).save(path)
    shutil.copy(path, best)
    real = fileio.read_bytes

    def fail(file: Path, most: int) -> bytes:
        if file == best:
            raise OSError(fault, os.strerror(fault), str(file))
        return real(file, most)

    with monkeypatch.context() as patch:
        patch.setattr(fileio, "read_bytes", fail)
        model(9).save(path)
    assert (value_of(path), value_of(best)) == (9, 1)
    best.unlink()
    model(9).save(path)
    assert left(tmp_path) == WHOLE


@pytest.mark.parametrize("place", [os.mkfifo, Path.mkdir], ids=["pipe", "folder"])
def test_what_is_no_model_keeps_no_weights(tmp_path: Path, place: Callable[[Path], None]) -> None:
    place(tmp_path / "other.json")
    for value in (1, 2):
        model(value).save(tmp_path / "net.json")
    assert left(tmp_path) == [*WHOLE, "other.json"]


def test_an_older_models_weights_go_unless_another_needs_them(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    model(1).save(path)
    name_weights_plainly(path)
    shutil.copy(path, tmp_path / "best.json")
    model(2).save(path)
    assert (value_of(path), value_of(tmp_path / "best.json")) == (2, 1)
    (tmp_path / "best.json").unlink()
    weights_of(path).unlink()
    (tmp_path / "net.json").write_text(
        json.dumps(json.loads(path.read_text()) | {"weights": "net.npz"})
    )
    assert value_of(path) == 1
    model(3).save(path)
    assert left(tmp_path) == WHOLE


def save_often(path: Path, value: int) -> None:
    for _ in range(40):
        model(value, layers=3).save(path)


def test_many_save_and_load_at_once(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    model(1, layers=3).save(path)
    start = multiprocessing.get_context("spawn").Process
    savers = [start(target=save_often, args=(path, value)) for value in (2, 3, 4)]
    for process in savers:
        process.start()
    seen = set()
    while any(process.is_alive() for process in savers):
        seen.add(value_of(path))
    assert [process.exitcode for process in savers] == [0, 0, 0]
    assert seen <= {1, 2, 3, 4} and value_of(path) in (2, 3, 4)
    model(5).save(path)
    assert left(tmp_path) == WHOLE


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_a_file_that_another_save_sweeps_before_it_is_locked(tmp_path, monkeypatch) -> None:
    path, real, settle = tmp_path / "net.json", json_format._lock, json_format._sync
    swept: list[str] = []
    sweeps: list[threading.Thread] = []

    def lock(stream, **more):
        if len(swept) < 2 and stream.name not in swept:  # the weights, then the draft
            swept.append(stream.name)
            other = os.open(stream.name, os.O_RDWR)
            real(other)

            def sweep() -> None:
                os.unlink(swept[-1])
                os.close(other)

            sweeps.append(threading.Timer(0.05, sweep))
            sweeps[-1].start()
        real(stream, **more)

    def settled(stream) -> None:
        for thread in sweeps:
            thread.join()
        settle(stream)

    monkeypatch.setattr(json_format, "_lock", lock)
    monkeypatch.setattr(json_format, "_sync", settled)
    model(2).save(path)
    assert len(swept) == 2 and value_of(path) == 2 and left(tmp_path) == WHOLE


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "x" * 70_000], ids=["zero", "half", "long"])
def test_a_layer_that_an_archive_cannot_name(tmp_path: Path, name: str) -> None:
    odd = Model.sequential([Linear(3, 1)], (3,), names=[name])
    with pytest.raises(ModelError, match=r"cannot be saved: no \.npz file"):
        odd.save(tmp_path / "net.json")
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", ["../../x", "a/b", "a\nb", "a\x1b[31mb", ".", "..", "über"])
def test_layers_of_odd_names_come_back(tmp_path: Path, name: str) -> None:
    Model.sequential([Linear(3, 1)], (3,), names=[name]).save(tmp_path / "net.json")
    assert [node.name for node in load(tmp_path / "net.json").nodes] == [name]
    assert left(tmp_path) == WHOLE


@pytest.mark.parametrize(("count", "length"), [(300, 50_000), (200, 30_000), (3, 50_000)])
def test_what_cannot_be_loaded_is_not_saved(tmp_path: Path, count: int, length: int) -> None:
    layers = [Linear(1, 1) for _ in range(count)]
    names = [f"{number:{length}}" for number in range(count)]
    long = Model.sequential(layers, (1,), names=names)
    if count == 3:
        long.save(tmp_path / "net.json")
        assert list(load(tmp_path / "net.json").parameters()) == list(long.parameters())
    else:
        with pytest.raises(ModelError, match="layers of such names are too many to load"):
            long.save(tmp_path / "net.json")
        assert left(tmp_path) == []
