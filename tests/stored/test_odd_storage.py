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
import onnx
import pytest
from onnx import helper

from glnn.backends.launch import LaunchResources
from glnn.core.disk_cache import DiskCache
from glnn.core.fileio import read_bytes, record_opened_files
from glnn.core.layout import parse
from glnn.core.settings import Settings
from glnn.core.size_table import SizeIndex
from glnn.core.types import DType
from glnn.errors import DeviceError
from glnn.gl import Device, Program, Source
from glnn.gl.command_buffer import BoundCommands, CommandBuffer, FormatError, VertexInput
from glnn.runtime.executable import Block, Executable, Input, IOSpec, ShapeRange, Symbol, TensorSlot
from glnn.runtime.options import Options
from glnn.stored import index
from glnn.stored.index import Index, stamp_files
from glnn.stored.plan_cache import PlanCache, StoredModel
from tests.random_models import random_model
from tests.stored_runs import Twice, numbers, same, written

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
    DiskCache.from_settings(Settings.from_environment()).clear(["plans", "weights"])
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


def test_entries_of_a_former_version_are_not_read(
    twice: Twice, stored: dict[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (info,) = twice.session().get_inputs()
    feeds = {info.name: numbers(0, info.with_batch(1))}
    assert stored and _found(twice, feeds) is not None
    monkeypatch.setattr(index, "FORM", index.FORM + 1)  # a later version reads what this one wrote
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
    assert Index.from_data(index | {"random_weights": True}).info.random_weights is True
    for data, parsed in ((plan, Executable.from_data), (index, Index.from_data)):
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
    made = CommandBuffer.from_json(right)
    made.check(2, 1)
    assert CommandBuffer.from_json(json.loads(json.dumps(made.to_json()))) == made
    with pytest.raises(FormatError):
        CommandBuffer.from_json({**right, "commands": [command]}).check(2, 1)


@pytest.mark.parametrize("command", [("bind", 0, 0, 0, 68), ("copy", 0, 60, 1, 0, 8)])
def test_commands_keep_within_buffers(keeping: Device, command: tuple[Any, ...]) -> None:
    def bind() -> None:
        buffers = [keeping.context.buffer(reserve=size) for size in (64, 32)]
        commands = CommandBuffer((), (), (), (), (command,))
        BoundCommands(keeping, commands, (), buffers.__getitem__, LaunchResources()).bind(())

    with pytest.raises(FormatError, match="of a buffer of 64"):
        keeping.perform(bind)


@pytest.mark.parametrize(
    ("draw", "fault"),
    [
        ((3, 1, 0, 0, 1), "48 bytes from 0 of a buffer of 32"),  # what it reads
        ((1, 1, 2, 0, 1), "16 bytes from 32 of a buffer of 32"),
        ((SizeIndex(0), 1, 0, 0, 1), "no draw"),
        ((1, 1, 0, SizeIndex(0), 1), "no draw"),
        ((2, 3, 0, 0, 1), "do not fit"),  # what it writes
        ((2, 1, 0, 40, 1), "do not fit"),
    ],
)
def test_draws_keep_within_buffers(keeping: Device, draw: tuple[Any, ...], fault: str) -> None:
    body = "in highp vec4 a; out highp vec4 result; void main() { result = a; }"
    text = keeping.capabilities.header("feedback") + body
    source = Source("x", text, tuple(("x", i) for i, _ in enumerate(text.splitlines())))

    def bind(*command: Any) -> None:
        program = Program.feedback(keeping, source, ("result",))
        buffers = [keeping.context.buffer(reserve=size) for size in (32, 64)]
        arrays = (VertexInput(0, (("a", 0, 4),)),)
        shown = LaunchResources()
        shown.arrays = [program.vertex_array({"a": (buffers[0], 4)})]
        commands = CommandBuffer((None,), (), arrays, (), (("capture", 0, *command),))
        BoundCommands(keeping, commands, (program,), buffers.__getitem__, shown).bind((-1,))

    keeping.perform(lambda: bind(2, 2, 0, 0, 1))
    with pytest.raises((FormatError, DeviceError), match=fault):
        keeping.perform(lambda: bind(*draw))


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
        with record_opened_files() as noted:
            assert read_bytes(path, 100) == b"{}"
        return stamp_files(noted) is not None

    found = True
    for _ in range(50):  # a slow machine may take longer to read it
        path.write_text("{}")
        found = found and seen()
    assert not found
    old(path)
    assert seen()


def _divided(times: int) -> Any:
    """JSON of an expression that is divided by 1, and its square again, so many times."""
    expr: Any = [[["n"], 1]]
    for _ in range(times):
        expr = [[[[expr, [[[], 1]]]] * 2, 1]]
    return expr


@pytest.mark.parametrize(
    "expr",
    [
        [[["n"] * 200, 1]],
        [[["n"], 1 << 63]],
        [[["n"], 1.5]],
        [[["m"], 1]],
        [[["n"], i] for i in range(1, 2000)],
        _divided(7),  # of 2**7 factors, each of which divides such a one
        [[["n"], 1, 1]],
        "n",
        7,
    ],
)
def test_expressions_are_computed_at_once(
    twice: Twice, stored: dict[Path, bytes], expr: Any
) -> None:
    """In what a plan is found by and in the plan, as sizes and in guards."""
    model = PlanCache().find(twice.path, Options(**twice.options))
    assert isinstance(model, StoredModel)
    listed = model._index.plans[0]
    plan = json.loads(bytes(model._entry.part(listed.part)))
    plan["symbols"] = [["n", "x", 0, 2, 7, False]]
    plan["expressions"] = [[[["n"], 1]]]
    assert Executable.from_data(plan).numbers((5,)) == (5,)
    with pytest.raises(FormatError):
        Executable.from_data({**plan, "expressions": [expr]})
    with pytest.raises(FormatError):
        Executable.from_data({**plan, "guards": [[expr, "<", True]]})
    shapes, symbols, _ = listed.range.data()
    if expr != [[["m"], 1]]:  # which no sizes are looked up for
        with pytest.raises((ValueError, TypeError)):
            ShapeRange.from_data([shapes, symbols, [[expr, "<", True]]])


def test_a_plan_of_odd_sizes_is_made_anew(twice: Twice, old: Old, tmp_path: Path) -> None:
    """Sizes that are wrong only once they are computed: by 0, or of more than there can be."""
    path = tmp_path / "open.onnx"
    ends = [helper.make_tensor_value_info(one, 1, ["N", "W"]) for one in "xy"]
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "net", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    own = Twice(old(path), twice.options)
    feeds, other = ({"x": numbers(3, (4, width))} for width in (9, 11))
    expected = own.cold(other)
    for odd in ([[["W"], 1 << 40]], [[["W"], -1]], [[[[[[[], 1]], [[["W"], 1], [[], -9]]]], 1]]):
        of = Executable.from_data

        def changed(data: Any, odd: Any = odd, of: Any = of) -> Executable:
            sizes = [one if len(one[0][0]) == 1 else odd for one in data["expressions"]]
            assert odd in sizes
            found: Executable = of({**data, "expressions": sizes})
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Executable, "from_data", changed)
            session = own.session()
            for given in (other, feeds):
                assert len(session.run(None, given)) == 1
            assert not session.restored
            same(session.run(None, other), expected)
            written(session)


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
