"""Updates of states that lie one behind the other, joined: one launch makes all of them.

Optimisers do the same with each parameter, and launches of little work cost the host more time than
the device. PyTorch's answer are optimisers of many tensors, `foreach` and `fused`. Here memory is
arranged instead (see `States.add_together`): states that are updated alike lie one behind the
other, and so come to lie the gradients that they are updated by. Pointwise work on each of them is
then pointwise work on the whole range, which any kernel does. What it makes of the words between
them nobody reads.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from glnn.compile.carried import Carried, Held
from glnn.compile.schedule import Schedule
from glnn.compile.states import aligned
from glnn.compile.task import Entry, Task
from glnn.compile.tensor import Tensor
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.operators.pointwise import Pointwise
from glnn.layout.layout import DENSE
from glnn.types import DType, TensorType

Places = dict[str, tuple[str, int]]
"""For memories that are parts of others: of which, and the word that they begin at there."""
Kind = tuple[object, ...]
"""What entries of a launch have in common."""


def placed(schedule: Schedule, there: Iterable[Carried], held: Held) -> frozenset[str]:
    """Have the states `there` lie where `held` says, and give what these memories are called."""
    names: dict[str, str] = {}
    places: Places = {}
    for one in there:
        if one.name not in held.places:
            continue
        first, offset = held.places[one.name]
        whole = names.setdefault(first, schedule.free(f"{first} and others"))
        ends = (name for name in (one.before, one.after) if name is not None)
        places |= {schedule.tensors[name].memory: (whole, offset) for name in ends}
    _move(schedule, places)
    return frozenset(names.values())


def group(schedule: Schedule, wholes: Iterable[str], kept: Iterable[str]) -> None:
    """Join what updates states in the memories `wholes` alike; then what makes that which it reads.

    kept: tensors that stay in memory of their own, as somebody reads them after a run.
    """
    wholes = set(wholes)
    fixed = {schedule.tensors[name].memory for name in kept}
    done: set[tuple[str, ...]] = set()  # what was seen to need its order
    while True:
        runs = [run for run in _runs(schedule, wholes, fixed) if _names(run) not in done]
        runs.sort(key=len, reverse=True)  # what lies beside a long one cannot beside others
        found = next((run for run in runs if _movable(schedule, run)), None)
        if found is None:
            return
        done.add(_names(found))
        wholes |= _join(schedule, found)


@dataclass(frozen=True, eq=False)
class _Member:
    """An entry that may be joined with others.

    at: its place among the entries. out: the tensor that it makes. alone: the operands whose memory
    nobody has arranged yet.
    """

    entry: Entry
    at: int
    out: Tensor
    alone: tuple[str, ...]

    @property
    def first(self) -> int:
        """The word that its result begins at."""
        return self.out.offset or 0

    @property
    def words(self) -> int:
        """Those that its result takes."""
        return self.out.layout.words(self.out.type)


Run = Sequence[_Member]
"""Members of one kind whose results lie one behind the other."""


def _names(run: Run) -> tuple[str, ...]:
    return tuple(member.entry.task.output for member in run)


def _runs(schedule: Schedule, wholes: Container[str], fixed: Container[str]) -> Iterator[Run]:
    """What may be joined if the order allows it."""
    kinds: dict[Kind, list[_Member]] = {}
    taken: set[Kind] = set()  # a gradient that two are updated by lies beside others but once
    made = [schedule.tensors[entry.task.output].memory for entry in schedule.entries]
    for at, entry in enumerate(schedule.entries):
        out = schedule.tensors[entry.task.output]
        task = entry.task
        plain = isinstance(task.op, Pointwise) and not (entry.host or task.parameters or task.more)
        if not plain or task.epilogue or out.memory not in wholes or not _dense(out):
            continue
        kind: list[object] = [task.op, entry.choice, out.memory]
        alone: dict[str, str] = {}
        for name, tensor in task.operands.items():
            lies = schedule.tensors[tensor]
            if lies.shape == ():
                kind.append(tensor)
            elif lies.type != out.type or not _dense(lies):
                break
            elif lies.offset is not None:
                kind.append((lies.memory, lies.offset - (out.offset or 0)))
            elif made.count(lies.memory) != 1 or not _free(schedule, lies.memory, fixed):
                break
            else:
                kind.append(list(alone).index(lies.memory) if lies.memory in alone else len(alone))
                alone.setdefault(lies.memory, name)
        else:
            if not any((*kind, memory) in taken for memory in alone):
                member = _Member(entry, at, out, tuple(alone.values()))
                kinds.setdefault(tuple(kind), []).append(member)
                taken |= {(*kind, memory) for memory in alone}
    for members in kinds.values():
        yield from _adjoining(sorted(members, key=lambda member: member.first))


def _dense(tensor: Tensor) -> bool:
    """Whether it is of float32 numbers, row major, without gaps."""
    return tensor.type.dtype is DType.float32 and tensor.layout == DENSE


def _free(schedule: Schedule, memory: str, fixed: Container[str]) -> bool:
    """Whether `memory` may be made a part of another: all that lies there has the same words."""
    seen = [tensor for tensor in schedule.tensors.values() if tensor.memory == memory]
    alike = len({tensor.layout.words(tensor.type) for tensor in seen}) == 1
    return memory not in fixed and alike


def _adjoining(members: Run) -> Iterator[Run]:
    """Those of `members`, in the order of their places, that lie one behind the other."""
    ends = [
        at
        for at, (one, other) in enumerate(pairwise(members), 1)
        if other.first != one.first + aligned(one.words)
    ]
    for first, last in pairwise((0, *ends, len(members))):
        if last - first > 1:
            yield members[first:last]


def _movable(schedule: Schedule, run: Run) -> bool:
    """Whether all of `run` may be done where its last member is."""
    places = sorted(member.at for member in run)
    own = set(places)
    writes: list[Tensor] = []
    reads: list[Tensor] = []
    for at in range(places[0], places[-1] + 1):
        entry, tensors = schedule.entries[at], schedule.tensors
        out = tensors[entry.task.output]
        given = [tensors[name] for name in entry.task.operands.values()]
        made = [out, *(tensors[name] for name in entry.task.more)]
        if _meet([*made, *given], writes) or _meet(made, reads):
            return False
        if at in own:
            writes.append(out)
            reads += given
    return True


def _meet(some: Iterable[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether one of `some` has memory that one of `others` has, too."""
    return any(
        one.memory == other.memory and _start(one) < _stop(other) and _start(other) < _stop(one)
        for one in some
        for other in others
    )


def _start(tensor: Tensor) -> int:
    return tensor.offset or 0


def _stop(tensor: Tensor) -> int:
    return _start(tensor) + tensor.layout.words(tensor.type)


def _join(schedule: Schedule, run: Run) -> set[str]:
    """Have one entry, where the last of `run` is, in the place of all, and give the memories that
    this puts others into; or leave all as it is, where no kernel takes so much.
    """
    first, last = run[0], run[-1]
    type = TensorType((last.first + last.words - first.first,))
    task, places = first.entry.task, _beside(schedule, run)
    before, operands = dict(schedule.tensors), dict(task.operands)
    for name, tensor in task.operands.items():
        lies = schedule.tensors[tensor]
        if lies.shape != ():
            memory, at = places.get(lies.memory) or (lies.memory, _start(lies))
            operands[name] = schedule.free(f"{tensor} and others")
            schedule.tensors[operands[name]] = Tensor(type, DENSE, memory, at)
    names = list(dict.fromkeys(member.entry.task.name for member in run))
    label = f"{names[0]} and {len(run) - 1} more" if len(names) > 1 else names[0]
    output, end = schedule.free(f"{task.output} and others"), len(schedule.entries)
    whole = Task(label, task.op, operands, {}, output, label, joins=_names(run))
    try:
        schedule.add(replace(whole, kernel=first.entry.choice.name))
    except (LimitError, UnsupportedOpError):
        schedule.tensors = before
        return set()
    schedule.tensors[output] = replace(first.out, type=type)
    _move(schedule, places)
    gone = {member.at for member in run}
    at = max(gone)
    left = [i for i in range(end) if i not in gone]
    schedule.arrange([*(i for i in left if i < at), end, *(i for i in left if i > at)])
    return {memory for memory, _ in places.values()}


def _beside(schedule: Schedule, run: Run) -> Places:
    """Where what `run` reads, and nobody has arranged yet, is to lie, as its results do."""
    places: Places = {}
    for name in run[0].alone:
        tensors = [(member, member.entry.task.operands[name]) for member in run]
        whole = schedule.free(f"{tensors[0][1]} and others")
        for member, tensor in tensors:
            memory = schedule.tensors[tensor].memory
            places[memory] = whole, member.first - run[0].first
    return places


def _move(schedule: Schedule, places: Places) -> None:
    """Have memories be the parts of others that `places` says."""
    for name, tensor in schedule.tensors.items():
        if tensor.memory in places and tensor.offset is None:
            memory, offset = places[tensor.memory]
            schedule.tensors[name] = replace(tensor, memory=memory, offset=offset)
