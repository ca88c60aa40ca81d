"""Commands: what is left out, what is not, and that others between two runs do no harm."""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glnn.backends.launch import LaunchResources
from glnn.core.layout import parse
from glnn.core.size_table import compiled
from glnn.core.symint import ShapeEnv, SymFloat
from glnn.errors import DeviceError
from glnn.gl import Buffer, Device, Program
from glnn.gl.command_buffer import BoundCommands, Replacements
from glnn.gl.command_encoder import CommandEncoder, memory_range

MakeProgram = Callable[[Device], Program]
NOTHING = Replacements(frozenset(), frozenset(), frozenset())


class Work:
    """Buffers of four numbers, and launches that put `factor` times one into another."""

    def __init__(self, device: Device, program: Program) -> None:
        self.device, self.program = device, program
        self.encoder = CommandEncoder()
        self.buffers: dict[str, Buffer] = {}

    def buffer(self, name: str) -> Buffer:
        if name not in self.buffers:
            self.buffers[name] = Buffer((4,), parse("R"))
            self.buffers[name].set(np.zeros(4, np.float32))
        return self.buffers[name]

    def scale(self, source: str, target: str, factor: float, count: int = 4) -> None:
        read, written = self.buffer(source), self.buffer(target)
        self.encoder.step(f"{source} to {target}")
        self.encoder.declare_accesses(
            [memory_range(read), memory_range(written)], [memory_range(written)]
        )
        self.encoder.bind(read, 0)
        self.encoder.bind(written, 1)
        self.encoder.uniforms(self.program, {"count": count, "factor": factor})
        self.encoder.dispatch(self.program, (1, 1, 1))

    def bound(self, *host: Callable[[], None], numbers: tuple[int, ...] = ()) -> BoundCommands:
        """What was asked for until now, to be run."""
        commands, parts = self.encoder.finish(), list(self.encoder.parts.values())
        buffers = [part for part in parts if isinstance(part, Buffer)]
        device, programs = self.device, tuple(self.encoder.programs)
        found = BoundCommands(
            device, commands, programs, lambda place: buffers[place].push(device), LaunchResources()
        )
        found.bind(numbers, host)
        return found

    def value(self, name: str) -> float:
        self.buffers[name].mark_written()
        return float(self.buffers[name].pull()[0])

    def start(self, name: str, value: float) -> None:
        self.buffer(name).set(np.full(4, value, np.float32))
        self.buffer(name).push(self.device)


@pytest.fixture
def work(device: Device, scale: MakeProgram) -> Work:
    return Work(device, scale(device))


def names(commands: BoundCommands) -> Counter[str]:
    return Counter(function.__name__ for function, _ in commands._calls)


def test_a_chain_has_a_barrier_a_step(work: Work) -> None:
    for source, target in ("ab", "bc", "cd"):
        work.scale(source, target, 2.0)
    commands = work.bound()
    assert names(commands)["memory_barrier"] == 3
    for value in (1.0, 5.0):
        work.start("a", value)
        commands()
        assert work.value("d") == 8 * value


def test_what_writes_nothing_has_no_barrier(device: Device) -> None:
    """OpenGL ES 3.0 has none."""
    encoder = CommandEncoder()
    encoder.step("nothing")
    encoder.host(0)
    commands = BoundCommands(device, encoder.finish(), (), lambda place: None, LaunchResources())
    commands.bind((), [lambda: None])
    assert not names(commands)["memory_barrier"]


def test_zero_has_a_sign(work: Work) -> None:
    """Uniforms are compared when they are left out, and 0 == -0."""
    for target, factor in (("b", 0.0), ("c", -0.0), ("d", 0.0), ("e", -0.0)):
        work.scale("a", target, factor)
    commands = work.bound()
    for _ in range(3):
        work.start("a", 1.0)
        commands()
        assert [np.signbit(work.value(name)) for name in "bcde"] == [False, True] * 2


def test_equal_commands_have_one_call(work: Work) -> None:
    for source, target in ("ab", "bc", "ca") * 4:
        work.scale(source, target, 2.0)
    commands = work.bound()
    calls = [call for call in commands._calls if call[0].__name__ != "apply_uniforms"]
    assert len({id(call) for call in calls}) == len(set(calls)) < len(calls) / 2
    work.start("a", 1.0)
    commands()
    assert work.value("a") == 2.0**12


def test_branches_have_one_barrier_together(work: Work) -> None:
    for target, factor in (("b", 2.0), ("c", 3.0), ("d", 5.0)):
        work.scale("a", target, factor)
    commands = work.bound()
    assert names(commands)["memory_barrier"] == 1
    assert names(commands)["bind_to_storage_buffer"] == 1 + 3, "a is bound once"
    work.start("a", 1.0)
    commands()
    assert [work.value(name) for name in "bcd"] == [2, 3, 5]


@pytest.mark.parametrize("second", ["cb", "ca"], ids=["written again", "read before"])
def test_what_overwrites_waits(work: Work, second: str) -> None:
    work.scale("a", "b", 2.0)
    work.scale(*second, 3.0)
    assert names(work.bound())["memory_barrier"] == 2


def test_a_copy_waits_for_what_it_reads(work: Work) -> None:
    work.scale("a", "b", 2.0)
    work.encoder.copy(work.buffer("c"), work.buffer("b"))
    work.scale("c", "d", 3.0)
    commands = work.bound()
    work.start("a", 7.0)
    commands()
    order = [getattr(function, "func", function).__name__ for function, _ in commands._calls]
    assert order.index("memory_barrier") < order.index("copy_buffer")
    assert work.value("d") == 42


def test_uniforms_that_are_so_already_are_not_written(work: Work) -> None:
    for source, target in ("ab", "bc", "cd"):
        work.scale(source, target, 2.0)
    work.scale("d", "e", 3.0)
    commands = work.bound()
    assert names(commands)["glUniform1fv"] == 1, "the factor, not the count"
    work.start("a", 1.0)
    for _ in range(3):
        commands()
        assert work.value("e") == 24


def test_two_commandss_share_a_program(work: Work, device: Device) -> None:
    work.scale("a", "b", 2.0)
    work.scale("b", "c", 3.0)
    first = work.bound()
    work.encoder = CommandEncoder()
    work.scale("a", "d", 5.0)
    second = work.bound()
    work.start("a", 1.0)
    for run in (first, second, second, first, first, second):
        run()
        name, expected = ("c", 6) if run is first else ("d", 5)
        assert work.value(name) == expected
        work.start(name, 0.0)


def test_what_comes_between_may_change_all(work: Work, device: Device) -> None:
    work.scale("a", "b", 2.0)

    def others() -> None:
        work.program.set({"count": 1, "factor": 100.0})
        Buffer((4,), parse("R")).push(device).bind_to_storage_buffer(0)

    work.encoder.host(0)
    work.scale("a", "c", 2.0)
    work.scale("a", "d", 3.0)
    commands = work.bound(others)
    work.start("a", 1.0)
    for _ in range(2):
        commands()
        assert [work.value(name) for name in "bcd"] == [2, 2, 3]


def test_uniforms_of_sizes_are_written_by_lists_made_once(
    work: Work, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A binding compares no sets of uniforms, whatever is between them."""
    w: Any = ShapeEnv().symbol("W", 7, (1, 99))
    for source, target, factor in (("a", "b", w), ("b", "c", 2), ("c", "d", w + 1), ("d", "e", 3)):
        work.scale(source, target, SymFloat.create(factor), count=4 * w)
    numbers = compiled(work.encoder.sizes.expressions, ["W"])
    commands = work.bound(numbers=numbers((7,)))
    compared: list[Any] = []
    changes = Program.changes
    monkeypatch.setattr(
        Program, "changes", lambda *given: compared.append(given) or changes(*given)
    )
    for size in (7, 2, 2, 5, 3):
        commands.bind(numbers((size,)), replaced=NOTHING)
        for _ in range(2):
            work.start("a", 1.0)
            commands()
            assert work.value("e") == size * 2 * (size + 1) * 3
    other = {"count": 1, "factor": 100.0}
    for size in (4, 4, 6):
        work.program.set({**other})
        assert compared.pop()[2] == other and not compared
        commands.bind(numbers((size,)), replaced=NOTHING)
        commands()
        assert work.value("e") == size * 2 * (size + 1) * 3
    assert not compared
    commands.bind(numbers((8,)), replaced=NOTHING)
    commands.bind(numbers((9,)), replaced=NOTHING)  # which no run was between
    commands()
    assert work.value("e") == 9 * 2 * 10 * 3


def test_what_comes_between_may_change_all_once_it_did_not(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work.device, "debug", False)
    others: list[float] = []
    work.scale("a", "b", 2.0)
    work.encoder.host(0)
    work.scale("a", "c", 2.0)
    commands = work.bound(lambda: [work.program.set({"count": 4, "factor": n}) for n in others])
    work.start("a", 1.0)
    for n in range(8):
        others[:] = [100.0 + n] * (n > 4)
        work.start("c", 0.0)
        commands()
        assert [work.value(name) for name in "bc"] == [2, 2]


@pytest.mark.parametrize("seed", range(4))
def test_lists_in_any_order_set_what_they_need(
    work: Work, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of a program's own uniforms, of sizes, with a host's step, and what sets others."""
    monkeypatch.setattr(work.device, "debug", False)
    runs: dict[str, tuple[BoundCommands, float]] = {}

    def recorded(name: str, *factors: Any, host: Callable[[], None] | None = None) -> None:
        work.encoder = CommandEncoder()
        for i, factor in enumerate(factors):
            work.scale("a" if not i else f"{name}{i - 1}", f"{name}{i}", factor)
            if host is not None:
                work.encoder.host(0)
        last = f"{name}{len(factors) - 1}"
        work.buffer(last)
        runs[last] = work.bound(*([] if host is None else [host])), float(np.prod(factors))

    def other() -> None:
        work.program.set({"count": 1, "factor": 100.0})

    recorded("one", 2.0)
    recorded("same", 2.0)
    recorded("two", 2.0, 3.0)
    recorded("back", 5.0, 7.0, 5.0)
    wants_other = [False]
    recorded("host", 2.0, 2.0, host=lambda: other() if wants_other[0] else None)
    w: Any = ShapeEnv().symbol("W", 7, (1, 99))
    work.encoder = CommandEncoder()
    work.scale("a", "sized", SymFloat.create(w))
    numbers = compiled(work.encoder.sizes.expressions, ["W"])
    sized, size = work.bound(numbers=numbers((7,))), 7
    work.start("a", 1.0)
    rng = np.random.default_rng(seed)
    others = *("sized", "bind") * 4, "set", "invalidate", "wants"
    for _ in range(100):
        what = str(rng.choice([*runs, *others]))
        for _ in range(int(rng.integers(1, 5))):
            if what in runs:
                commands, expected = runs[what]
                work.start(what, 0.0)
                commands()
                assert work.value(what) == expected
            elif what == "sized":
                work.start(what, 0.0)
                sized()
                assert work.value(what) == size
        if what == "bind":
            size = int(rng.integers(1, 99))
            sized.bind(numbers((size,)), replaced=NOTHING)
        elif what == "set":
            other()
        elif what == "invalidate":
            work.program.invalidate_uniforms()
        elif what == "wants":
            wants_other[0] = not wants_other[0]


def test_a_uniform_that_no_int_holds_is_refused(work: Work) -> None:
    w: Any = ShapeEnv().symbol("W", 7, (1, 1 << 20))
    work.scale("a", "b", 2.0, count=w * 4096)
    numbers = compiled(work.encoder.sizes.expressions, ["W"])
    commands = work.bound(numbers=numbers((7,)))
    with pytest.raises(struct.error):
        commands.bind(numbers((1 << 20,)), replaced=NOTHING)


def test_after_an_interruption_all_is_set_again(work: Work) -> None:
    interrupted = True

    def interrupt() -> None:
        if interrupted:
            raise KeyboardInterrupt

    work.scale("a", "b", 2.0)
    work.scale("b", "c", 3.0)
    work.encoder.flush()  # where uniforms are between two values
    work.scale("c", "d", 5.0)
    commands = work.bound()
    asked = [function.__name__ for function, _ in commands._calls]
    commands._calls[asked.index("flush")] = (interrupt, ())
    work.start("a", 1.0)
    with pytest.raises(KeyboardInterrupt):
        commands()
    interrupted = False
    commands()
    assert work.value("d") == 30


def test_the_step_that_goes_wrong_is_named(work: Work) -> None:
    work.scale("a", "b", 2.0)
    work.scale("b", "c", 2.0)
    use = work.device.load("glUseProgram", None, ctypes.c_uint)
    work.encoder.flush()
    work.scale("c", "d", 2.0)
    commands = work.bound()
    asked = [function.__name__ for function, _ in commands._calls]
    commands._calls[asked.index("flush")] = (use, (0xFFFFFF,))  # GL knows no such program
    with pytest.raises(DeviceError, match=r"^b to c: GL_INVALID_VALUE"):
        commands()
