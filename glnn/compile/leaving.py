"""Work of a plan for a GPU that is left to the host, as what it reads and gives is the host's.

What has no kernel is computed by the host, between a readback and an upload. Small work between
such steps would go to the device and back for nothing. Which steps go along with the host's is the
cheapest cut of the plan in two: it costs what NumPy takes longer than the device, and the transfers
of what one side makes and the other reads. Inputs are the device's, and outputs come from either
side for nothing, so that a plan without steps of the host's stays on the device.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from math import prod

from glnn.compile.least_cut import NEVER, LeastCut
from glnn.compile.schedule import Schedule
from glnn.compile.task import Entry
from glnn.kernels.architecture import architecture
from glnn.kernels.predict import Pace, host_seconds, pace
from glnn.layout.layout import RowMajor

HOST, DEVICE = "host", "device"
FEW = 1 << 12
"""Numbers of an operand that no run changes, up to which the host reads it in each run."""


@dataclass
class _Memory:
    """Who makes what lies in a memory, and who reads it: entries by number."""

    nbytes: int = 0
    makers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)


def left_to_host(schedule: Schedule, names: Container[str]) -> frozenset[str]:
    """The results of steps of `schedule` that the host would be done with sooner.

    names: of the graph's values, which copies in other layouts are none of. By predictions alone:
    the same for the same schedule and device.
    """
    device, entries = schedule.backend.device, schedule.entries
    if device is None or not any(_hosts(entry) and entry.task.output in names for entry in entries):
        return frozenset()  # copies in a layout that the host makes are no steps
    of = pace(architecture(device.capabilities))
    memories = _memories(schedule)
    free = {i for i, entry in enumerate(entries) if _movable(schedule, entry, names, memories)}
    cut = LeastCut()
    for i in free:
        problem = entries[i].problem
        lost = host_seconds(problem) - of.seconds(
            problem.op, {name: problem.types[name] for name in problem.own}
        )
        cut.add(i, DEVICE, max(lost, 0.0))
    for name, memory in memories.items():
        if free.intersection((*memory.makers, *memory.readers)):
            _transfers(cut, name, memory, free, entries, of)
    found = cut.first_side(HOST, DEVICE)
    return frozenset(entries[i].task.output for i in free if i in found)


def _hosts(entry: Entry) -> bool:
    """Whether the host reads the operands and makes the results, and does not run bodies."""
    return entry.host and not entry.task.op.control


def _memories(schedule: Schedule) -> dict[str, _Memory]:
    """What lies in each memory of `schedule`."""
    found: dict[str, _Memory] = {}
    for name, tensor in schedule.tensors.items():
        memory = found.setdefault(tensor.memory, _Memory())
        memory.nbytes = max(memory.nbytes, 4 * prod(schedule.tensors[name].shape))
    for i, entry in enumerate(schedule.entries):
        for name in (entry.task.output, *entry.task.more):
            found[schedule.tensors[name].memory].makers.append(i)
        for name in entry.task.operands.values():
            found[schedule.tensors[name].memory].readers.append(i)
    return found


def _movable(
    schedule: Schedule, entry: Entry, names: Container[str], memories: dict[str, _Memory]
) -> bool:
    """Whether the host could do a step as well: a task of its own, that nobody gave a kernel."""
    task = entry.task
    weights = sum(prod(weight.shape) for weight in task.parameters.values())
    alone = len(memories[schedule.tensors[task.output].memory].makers) == 1
    own = task.kernel is None and task.via is None and task.output in names
    return own and alone and not entry.host and not task.op.updates and weights <= FEW


def _transfers(
    cut: LeastCut,
    name: str,
    memory: _Memory,
    free: set[int],
    entries: list[Entry],
    of: Pace,
) -> None:
    """Have `cut` know what it costs where makers and readers of a memory are on two sides."""

    def side(i: int) -> int | str:
        return i if i in free else HOST if _hosts(entries[i]) else DEVICE

    makers = {side(i) for i in memory.makers} or {DEVICE}
    readers = {side(i) for i in memory.readers}
    taken = memory.nbytes / of.bus
    for maker in makers:
        back, up = (name, "read back", maker), (name, "uploaded", maker)
        for reader in readers:
            cut.add(reader, back, NEVER)
            cut.add(up, reader, NEVER)
        cut.add(back, maker, of.wait + taken)
        cut.add(maker, up, of.send + taken)


def hosts_own(schedule: Schedule, shared: Iterable[str]) -> frozenset[str]:
    """The memories that no step but the host's reads or writes, so that the device has none.

    shared: tensors that others than steps read or write on the device.
    """
    if schedule.backend.device is None or not any(entry.host for entry in schedule.entries):
        return frozenset()
    found: set[str] = set()
    others = {schedule.tensors[name].memory for name in shared if name in schedule.tensors}
    # A transpose may be a view in another layout, which arrays of the host have not.
    tensors = schedule.tensors.values()
    others |= {tensor.memory for tensor in tensors if not isinstance(tensor.layout, RowMajor)}
    for entry in schedule.entries:
        own = {schedule.tensors[name].memory for name in entry.tensors}
        if entry.host and not entry.task.op.control:
            found |= own
        else:
            others |= own
    return frozenset(found - others)
