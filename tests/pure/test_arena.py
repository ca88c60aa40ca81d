"""Memory that tensors share: never at the same time, and never more than one each."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from glnn.backends.cpu import Cpu
from glnn.compiler.memory_planner import Arena
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import LoweredOp
from glnn.compiler.weights import Weight
from glnn.core.types import TensorType
from glnn.graph.constant import Leaf
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import Concat, Flatten, Matmul, Pointwise
from glnn.graph.operators.conv2d_lowering import Im2row, Zero

KINDS = ("matmul", "relu", "concat", "flatten")


RELU = Pointwise(call("relu", Arg(0)))


def parameter(*shape: int) -> Weight:
    """One that has no array: a schedule reads none."""
    type = TensorType(shape)
    return Weight(Leaf(Value("weight", type, Kind.CONSTANT)), type)


def shaped(*shape: int) -> TensorType:
    return TensorType(shape)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Schedule, list[str]]:
    """Any graph of ops on vectors of any length, and the tensors to keep."""
    schedule = Schedule(Cpu())
    names = [f"input {i}" for i in range(draw(st.integers(1, 2)))]
    for name in names:
        schedule.add_input(name, shaped(1, draw(st.integers(1, 9))))
    for i in range(draw(st.integers(1, 12))):
        kind, size = draw(st.sampled_from(KINDS)), draw(st.integers(1, 9))
        x, y = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        name, parameters = f"tensor {i}", {}
        operands = {"x": x}
        if kind == "concat":
            op, operands = Concat(), {"x0": x, "x1": y}
        elif kind == "matmul":
            op, parameters = Matmul(), {"weight": parameter(size, schedule.tensors[x].shape[1])}
        elif kind == "flatten":
            op = Flatten()
        else:
            op, operands = RELU, {"x0": x}
        schedule.add(LoweredOp(name, op, operands, parameters, name, name))
        names.append(name)
    return schedule, draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))


def needed(schedule: Schedule, kept: list[str]) -> dict[str, set[int]]:
    """When each memory holds something that is still read: before, after, and at which entries."""
    end = len(schedule.entries)
    made: dict[str, int] = {}
    read: dict[str, int] = {}
    for i, entry in enumerate(schedule.entries):
        made.setdefault(schedule.tensors[entry.lowered.output].memory, i)
        for name in entry.lowered.operands.values():
            read[schedule.tensors[name].memory] = i
    for name in kept:
        read[schedule.tensors[name].memory] = end
    memories = {tensor.memory for tensor in schedule.tensors.values()}
    return {
        m: set(range(made.get(m, -1), max(read.get(m, -1), made.get(m, end)) + 1)) for m in memories
    }


@given(schedules())
def test_no_tensor_is_overwritten_while_it_is_needed(drawn) -> None:
    schedule, kept = drawn
    arena, times = Arena.plan(schedule, kept), needed(schedule, kept)
    assert set(arena.block) == set(times)
    for one in times:
        for other in times:
            if one < other and arena.block[one] == arena.block[other]:
                assert not times[one] & times[other], (one, other)


@given(schedules())
def test_what_the_host_touches_has_blocks_of_its_own(drawn) -> None:
    schedule, kept = drawn
    arena = Arena.plan(schedule, kept)
    touched = [name for name in schedule.tensors if name in kept or name.startswith("input")]
    for memory in {schedule.tensors[name].memory for name in touched}:
        assert [m for m, b in arena.block.items() if b == arena.block[memory]] == [memory]
        assert memory not in arena.overwritten


@given(schedules())
def test_every_tensor_fits_and_the_total_is_no_more_than_the_sum(drawn) -> None:
    schedule, kept = drawn
    shared, apart = Arena.plan(schedule, kept), Arena.plan(schedule, kept, share=False)
    for tensor in schedule.tensors.values():
        assert prod(tensor.shape) <= shared.sizes[shared.block[tensor.memory]]
    memories = {tensor.memory for tensor in schedule.tensors.values()}
    assert len(apart.sizes) == len(memories) and not apart.overwritten
    assert sum(shared.sizes) <= sum(apart.sizes)
    assert sorted(set(shared.block.values())) == list(range(len(shared.sizes)))


@given(schedules())
def test_what_is_not_overwritten_is_there_at_the_end(drawn) -> None:
    schedule, kept = drawn
    arena = Arena.plan(schedule, kept)
    last: dict[int, str] = {}
    for entry in schedule.entries:
        memory = schedule.tensors[entry.lowered.output].memory
        last[arena.block[memory]] = memory
    for memory, block in arena.block.items():
        assert (memory in arena.overwritten) is (last.get(block, memory) != memory)


def chain(sizes: list[int]) -> tuple[Arena, list[int]]:
    """The arena of a perceptron, and the floats of what is between its input and its output."""
    schedule = Schedule(Cpu())
    schedule.add_input("0", shaped(1, sizes[0]))
    for i, (before, after) in enumerate(pairwise(sizes)):
        weight = {"weight": parameter(after, before)}
        schedule.add(LoweredOp(str(i + 1), Matmul(), {"x": str(i)}, weight, str(i + 1), str(i + 1)))
    floats = [tensor.layout.size(tensor.shape) for tensor in schedule.tensors.values()]
    return Arena.plan(schedule, [str(len(sizes) - 1)]), floats[1:-1]


@given(st.integers(1, 50), st.integers(4, 12))
def test_a_chain_needs_two_blocks(size, count) -> None:
    arena, _ = chain([size] * count)
    assert len(arena.sizes) == 2 + 2  # the input's and the output's own


@given(st.lists(st.integers(1, 50), min_size=4, max_size=12))
def test_a_chain_takes_no_more_than_two_blocks_would(sizes) -> None:
    arena, within = chain(sizes)
    shared = {arena.block[str(i + 1)] for i in range(len(within))}
    total = sum(arena.sizes[i] for i in shared)
    assert max(a + b for a, b in pairwise(within)) <= total
    assert total <= max(within[::2]) + max(within[1::2])


def test_a_view_keeps_what_it_shows() -> None:
    schedule = Schedule(Cpu())
    schedule.add_input("x", shaped(1, 2, 3))
    for name, op, source in (
        ("a", RELU, "x"),
        ("view", Flatten(), "a"),
        ("b", RELU, "x"),
        ("c", RELU, "b"),
        ("d", Concat(), "view"),
    ):
        first = "x0" if op is RELU else "x"
        operands = {"x0": "view", "x1": "view"} if name == "d" else {first: source}
        schedule.add(LoweredOp(name, op, operands, {}, name, name))
    arena = Arena.plan(schedule, ["d"])
    assert schedule.tensors["view"].memory == "a"
    assert arena.block["a"] not in (arena.block["b"], arena.block["c"])


def test_what_is_updated_in_place_is_one_memory() -> None:
    schedule = Schedule(Cpu())
    schedule.add_input("x", shaped(1, 2, 3, 3))
    schedule.add(LoweredOp("zeros", Zero((9, 2)), {}, {}, "zeros", "layer"))
    gather = Im2row((1, 1))
    schedule.add(LoweredOp("rows", gather, {"x": "x", "into": "zeros"}, {}, "rows", "layer"))
    assert schedule.tensors["rows"].memory == "zeros"
    assert set(Arena.plan(schedule, ["rows"]).block) == {"x", "zeros"}
