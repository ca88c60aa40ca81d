"""Damaged, stale and foreign entries: as if they were not there, or what they were."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.backends.launch import Shown
from glnn.device import Device
from glnn.device.bound_commands import BoundCommands
from glnn.device.command_buffer import CommandBuffer, FormatError
from glnn.disk import Disk
from glnn.layout import parse
from glnn.reading import noting, read
from glnn.runtime.executable import Block, Executable, Input, IOSpec, Symbol, TensorSlot
from glnn.runtime.options import Options
from glnn.settings import Settings
from glnn.size_table import SizeIndex
from glnn.stored.index import Index, stamp_files
from glnn.stored.plan_cache import PlanCache, StoredModel
from glnn.types import DType
from tests.random_models import random_model
from tests.twice import Twice, numbers, same

Old = Callable[[Path], Path]
FLIPS = 24  # of a file
ODD = (None, True, -1, 1 << 70, 1.5, float("nan"), "", "x", [], {}, [[]], [-1], {"x": None})
"""What may stand anywhere in JSON."""


@pytest.fixture(scope="module", params=["compute", "feedback"])
def twice(request, keeping: Device, tmp_path_factory) -> Twice:
    path = tmp_path_factory.mktemp("models") / "net.json"
    random_model(9).save(path)
    return Twice(path, {"backend": request.param, "device": keeping})


@pytest.fixture
def stored(twice: Twice, old: Old, cache: Path) -> Iterator[dict[Path, bytes]]:
    """The files of plans and weights of a model that was stored just now."""
    Disk.of(Settings.from_environment()).clear(["plans", "weights"])
    old(twice.path)
    (info,) = twice.session().get_inputs()
    twice.cold({info.name: numbers(0, info.with_batch(1))})
    yield {path: path.read_bytes() for kind in ("plans", "weights") for path in _files(cache, kind)}


def _files(cache: Path, kind: str) -> list[Path]:
    return list((cache / kind).iterdir())


def _found(twice: Twice, feeds: dict[str, Any]) -> list[Any] | None:
    """What the stored plan gives, if there is one."""
    model = PlanCache().find(twice.path, Options(**twice.options))
    if model is None:
        return None
    shapes = {name: array.shape for name, array in feeds.items()}
    plan = model.device.perform(lambda: model.plan(shapes, False))
    return None if plan is None else [*plan.run(feeds).values()]


def test_a_flipped_bit_anywhere(twice: Twice, stored: dict[Path, bytes]) -> None:
    (info,) = twice.session().get_inputs()
    feeds = {info.name: numbers(0, info.with_batch(1))}
    expected = _found(twice, feeds)
    assert expected is not None
    draw, refused = random.Random(0), 0
    for path, content in stored.items():
        ends = [0, len(content) - 1, len(content) - 20]
        for place in ends + [draw.randrange(len(content)) for _ in range(FLIPS)]:
            for file, whole in stored.items():
                file.write_bytes(whole)
            damaged = bytearray(content)
            damaged[place] ^= 1 << draw.randrange(8)
            path.write_bytes(damaged)
            found = _found(twice, feeds)
            refused += found is None
            if found is not None:  # what was flipped is not used: the space between parts
                same(found, expected)
    assert refused > len(stored) * FLIPS / 2


def test_files_cut_short_empty_or_gone(twice: Twice, stored: dict[Path, bytes]) -> None:
    (info,) = twice.session().get_inputs()
    feeds = {info.name: numbers(0, info.with_batch(1))}
    for path, content in stored.items():
        for part in (None, b"", content[:40], content[: len(content) // 2], content[:-1]):
            for file, whole in stored.items():
                file.write_bytes(whole)
            if part is None:
                path.unlink()
            else:
                path.write_bytes(part)
            assert _found(twice, feeds) is None
    twice.cold(feeds)
    assert _found(twice, feeds) is not None


def _places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in JSON."""
    yield at
    if isinstance(data, list):
        data = dict(enumerate(data))
    for key, value in data.items() if isinstance(data, dict) else ():
        yield from _places(value, (*at, key))


def _with(data: Any, at: tuple[Any, ...], value: Any) -> Any:
    """`data` with `value` in one place."""
    if not at:
        return value
    made = copy.copy(data)
    made[at[0]] = _with(data[at[0]], at[1:], value)
    return made


def test_whatever_json_says(twice: Twice, stored: dict[Path, bytes]) -> None:
    """What reads it takes it or raises what is said of it; it never goes beyond a buffer."""
    model = PlanCache().find(twice.path, Options(**twice.options))
    assert isinstance(model, StoredModel)
    listed = model._index.plans[0]
    plan = json.loads(bytes(model._entry.part(listed.part)))
    index = json.loads(bytes(model._entry.part("index")))
    for data, parsed in ((plan, Executable.of), (index, Index.of)):
        assert parsed(data) is not None
        places, draw = list(_places(data)), random.Random(1)
        for at in draw.sample(places, min(len(places), 400)):
            with suppress(FormatError, ValueError):
                parsed(_with(data, at, draw.choice(ODD)))


@pytest.mark.parametrize(
    "command",
    [
        ["bind", 2, 0, 0, 4],
        ["bind", 0, 0, -4, 4],
        ["bind", 0, 0, {"index": 1}, 4],
        ["copy", 0, 60, 2, 0, 8],
        ["refresh", 1],
        ["texture", 0, 1],
        ["capture", 1, 9, 1, 0, 0, 0],
        ["capture", 0, 1, 1, 0, 0, 2],
        ["dispatch", 1, 1, 1, 1],
        ["dispatch", 0, -1, 1, 1],
        ["uniforms", 0, 1, 0],
        ["uniform", 0, "count", "x"],
        ["use", 1],
        ["call"],
    ],
)
def test_commands_speak_of_what_is_there(command: list[Any]) -> None:
    right = {
        "programs": ["00"],
        "textures": [[0, 0, 16, "r32f", "sampler2D"]],
        "arrays": [[0, [["x", 1, 1]]]],
        "uniforms": [{"count": 4, "n": {"index": 0}}],
        "commands": [
            ["bind", 0, 0, 0, {"index": 0}],
            ["copy", 0, 32, 1, 0, 32],
            ["refresh", 0],
            ["uniforms", 0, 0, 0],
            ["capture", 0, 4, 2, 4, 0, 0],
            ["dispatch", 0, {"index": 0}, 1, 1],
        ],
    }
    made = CommandBuffer.of(right)
    made.check(2, 1)
    assert CommandBuffer.of(json.loads(json.dumps(made.data()))) == made
    with pytest.raises(FormatError):
        CommandBuffer.of({**right, "commands": [command]}).check(2, 1)


@pytest.mark.parametrize("command", [("bind", 0, 0, 0, 68), ("copy", 0, 60, 1, 0, 8)])
def test_commands_keep_within_buffers(keeping: Device, command: tuple[Any, ...]) -> None:
    def bind() -> None:
        buffers = [keeping.context.buffer(reserve=size) for size in (64, 32)]
        commands = CommandBuffer((), (), (), (), (command,))
        BoundCommands(keeping, commands, (), buffers.__getitem__, Shown()).bind(())

    with pytest.raises(FormatError, match="of a buffer of 64"):
        keeping.perform(bind)


def test_another_file_in_its_place(keeping: Device, tmp_path: Path, old: Old) -> None:
    """Of the same size: its weights are others."""
    path = tmp_path / "net.json"
    random_model(9).save(path)
    twice = Twice(old(path), {"backend": "compute", "device": keeping})
    (info,) = twice.session().get_inputs()
    feeds = {info.name: numbers(0, info.with_batch(1))}
    first = twice.cold(feeds)
    model = twice.session().model
    for node in model.nodes:
        if "weight" in node.layer.shapes:
            node.layer.weight = 2 * np.asarray(node.layer.weight)
    model.save(path)
    old(path)
    second = twice.cold(feeds)
    assert second[0].tobytes() != first[0].tobytes()
    same(twice.warm(feeds), second)


def test_what_plans_depend_on(twice: Twice, stored: dict[Path, bytes], monkeypatch) -> None:
    (info,) = twice.session().get_inputs()
    feeds = {info.name: numbers(0, info.with_batch(1))}
    assert _found(twice, feeds) is not None
    for more in ({"precision": "float16"}, {"max_batch": 2}, {"fused": False}):
        assert _found(Twice(twice.path, {**twice.options, **more}), feeds) is None
    for name, value in (("GLNN_LAUNCH", "3"), ("GLNN_MEMORY", "1G"), ("GLNN_DEBUG", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert _found(twice, feeds) is None, name
    assert _found(twice, feeds) is not None


def test_a_file_that_was_written_just_now_is_not_stored(tmp_path: Path, old: Old) -> None:
    path = tmp_path / "net.json"

    def seen() -> bool:
        with noting() as noted:
            assert read(path, 100) == b"{}"
        return stamp_files(noted) is not None

    found = True
    for _ in range(50):  # a slow machine may take longer to read it
        path.write_text("{}")
        found = found and seen()
    assert not found
    old(path)
    assert seen()


@pytest.mark.parametrize("place", [-1, 7, "0", None, True])
def test_sizes_are_places_of_expressions(place: Any) -> None:
    """Of memory, of tensors and of what goes in and out, not of commands alone."""
    io = IOSpec((Input("x", DType.float32, (SizeIndex(0),), DType.float32),), ())
    slot = TensorSlot("x", (SizeIndex(0),), DType.float32, parse("R"), 4, 0, "x", None)

    def made(words: Any) -> Executable:
        symbol = Symbol("n", "x", 0, 2, 7)
        blocks = (Block((words,), "shared", True),)
        commands = CommandBuffer((), (), (), (), ())
        expressions = (((("n",), 1),),)
        return Executable(
            *("odd", "compute", (symbol,), expressions, (), blocks, (), commands, io),
            *({"x": slot}, {}, 64),
        )

    assert made(SizeIndex(0)).admits({"x": np.zeros(5)})
    with pytest.raises(FormatError, match="there is no expression"):
        made(SizeIndex(place))
