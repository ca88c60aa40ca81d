"""Choice of the steps of a GPU's plan that the host computes, with the reason for each.

What has no kernel is computed by the host, between a readback and an upload. Small work between
such steps would go to the device and back for nothing. Which steps go along with the host's is the
cheapest cut of the plan in two: it costs what NumPy takes longer than the device, and the transfers
of what one side makes and the other reads. Inputs are the device's, and outputs come from either
side for nothing, so that a plan without steps of the host's stays on the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass, field
from math import prod

from glnn.backends import Backend
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import ScheduledOp
from glnn.core.layout.layout import RowMajor
from glnn.core.types import DType, TensorType
from glnn.graph.operator import Operator
from glnn.graph.operators.host import HostOperator
from glnn.kernels.architecture import architecture
from glnn.kernels.cost_model import Pace, host_seconds, pace

NEVER = float("inf")
NOTHING = 1e-12
"""What is left of a capacity that was used up, as numbers are rounded."""
LATE = "sizes that only a run tells"
"""Why the host computes what is planned in parts."""
LEFT = "between steps of the host's: to the device and back takes longer"
"""Why the host computes what a kernel could."""
LARGE = "made of constants alone, and much larger than these: no plan keeps it"
"""Why the host computes what no run changes, in each run."""
HOST, DEVICE = "host", "device"
FEW = 1 << 12
"""Numbers of an operand that no run changes, up to which the host reads it in each run."""


class LeastCut:
    """Things of which each goes to one side or the other, and what it costs where they part."""

    def __init__(self) -> None:
        self._left: dict[Hashable, dict[Hashable, float]] = {}

    def add(self, source: Hashable, target: Hashable, cost: float) -> None:
        """Add an edge that costs `cost` if `source` is on the first side of the cut and `target` is
        not.
        """
        ways = self._left.setdefault(source, {})
        ways[target] = ways.get(target, 0.0) + cost
        self._left.setdefault(target, {}).setdefault(source, 0.0)

    def first_side(self, first: Hashable, last: Hashable) -> set[Hashable]:
        """All that goes with `first` in the cheapest way that has `last` on the other side.

        Where several are as cheap, that of the fewest. To part them must not cost NEVER.
        """
        while True:
            before = self._reached(first, last)
            if last not in before:
                return set(before)
            path: list[tuple[Hashable, Hashable]] = []
            target = last
            while target != first:
                path.append((before[target], target))
                target = before[target]
            least = min(self._left[a][b] for a, b in path)
            for a, b in path:
                self._left[a][b] -= least
                self._left[b][a] += least

    def _reached(self, first: Hashable, last: Hashable) -> dict[Hashable, Hashable]:
        """Search breadth first from `first` over residual edges, up to `last`; return each vertex's
        predecessor.
        """
        before: dict[Hashable, Hashable] = {first: first}
        waiting = deque([first])
        while waiting:
            source = waiting.popleft()
            for target, left in self._left.get(source, {}).items():
                if left > NOTHING and target not in before:
                    before[target] = source
                    if target == last:
                        return before
                    waiting.append(target)
        return before


@dataclass(frozen=True)
class Hosted:
    """A step that the host computes."""

    layer: str
    """The layer or node that it belongs to."""
    operator: str
    """The operator's name for people."""
    reason: str
    """Why no GPU does."""

    @property
    def is_moved(self) -> bool:
        """Return True where a GPU could compute the step, but would finish later than the host."""
        return self.reason == LEFT

    def __str__(self) -> str:
        return f"{self.operator} ({self.reason})"


def why(operator: Operator, types: Iterable[TensorType], backend: Backend) -> str:
    """Why no kernel of `backend` computes `operator`. types: of its operands and results."""
    if isinstance(operator, HostOperator):
        return operator.reason
    types = tuple(types)
    others = dict.fromkeys(t.dtype for t in types if not backend.holds(t.dtype))
    if DType.int64 in others:
        return "int64 numbers that are not known to be int32's"
    if others:
        return f"{' and '.join(dtype.value for dtype in others)} is the host's"
    dtypes = ", ".join(dict.fromkeys(t.dtype.value for t in types))
    return f"{backend.name} has no kernel for it of {dtypes}"


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
    if device is None or not any(
        _hosts(entry) and entry.lowered.output in names for entry in entries
    ):
        return frozenset()  # copies in a layout that the host makes are no steps
    rates = pace(architecture(device.capabilities))
    memories = _memories(schedule)
    free = {i for i, entry in enumerate(entries) if _movable(schedule, entry, names, memories)}
    cut = LeastCut()
    for i in free:
        spec = entries[i].spec
        lost = host_seconds(spec) - rates.seconds(
            spec.op, {name: spec.types[name] for name in spec.op_shapes}
        )
        cut.add(i, DEVICE, max(lost, 0.0))
    for name, memory in memories.items():
        if free.intersection((*memory.makers, *memory.readers)):
            _transfers(cut, name, memory, free, entries, rates)
    on_host = cut.first_side(HOST, DEVICE)
    return frozenset(entries[i].lowered.output for i in free if i in on_host)


def _hosts(entry: ScheduledOp) -> bool:
    """Return True where the host computes the entry itself, rather than running a branch's or
    loop's bodies.
    """
    return entry.host and not entry.lowered.op.control


def _memories(schedule: Schedule) -> dict[str, _Memory]:
    """Return for each memory of `schedule` its size and the entries that write and read it."""
    result: dict[str, _Memory] = {}
    for name, tensor in schedule.tensors.items():
        memory = result.setdefault(tensor.memory, _Memory())
        memory.nbytes = max(memory.nbytes, 4 * prod(schedule.tensors[name].shape))
    for i, entry in enumerate(schedule.entries):
        for name in (entry.lowered.output, *entry.lowered.more):
            result[schedule.tensors[name].memory].makers.append(i)
        for name in entry.lowered.operands.values():
            result[schedule.tensors[name].memory].readers.append(i)
    return result


def _movable(
    schedule: Schedule, entry: ScheduledOp, names: Container[str], memories: dict[str, _Memory]
) -> bool:
    """Return True where the host could compute the step: a step of its own, without a requested
    kernel.
    """
    lowered = entry.lowered
    weights = sum(prod(weight.shape) for weight in lowered.parameters.values())
    alone = len(memories[schedule.tensors[lowered.output].memory].makers) == 1
    unbound = lowered.kernel is None and lowered.via is None and lowered.output in names
    return unbound and alone and not entry.host and not lowered.op.updates and weights <= FEW


def _transfers(
    cut: LeastCut,
    name: str,
    memory: _Memory,
    free: set[int],
    entries: list[ScheduledOp],
    rates: Pace,
) -> None:
    """Have `cut` know what it costs where makers and readers of a memory are on two sides."""

    def side(i: int) -> int | str:
        return i if i in free else HOST if _hosts(entries[i]) else DEVICE

    makers = {side(i) for i in memory.makers} or {DEVICE}
    readers = {side(i) for i in memory.readers}
    taken = memory.nbytes / rates.bus
    for maker in makers:
        back, up = (name, "read back", maker), (name, "uploaded", maker)
        for reader in readers:
            cut.add(reader, back, NEVER)
            cut.add(up, reader, NEVER)
        cut.add(back, maker, rates.wait + taken)
        cut.add(maker, up, rates.send + taken)


def find_host_memories(schedule: Schedule, copied: Iterable[str]) -> frozenset[str]:
    """Return the memories that only steps of the host read or write: the device needs none of them.

    copied: tensors that are copied on the device before or after a run, as inputs and outputs of a
    body.
    """
    if schedule.backend.device is None or not any(entry.host for entry in schedule.entries):
        return frozenset()
    of_host: set[str] = set()
    of_device = {schedule.tensors[name].memory for name in copied if name in schedule.tensors}
    # A transpose may be a view in another layout, which arrays of the host cannot have.
    tensors = schedule.tensors.values()
    of_device |= {tensor.memory for tensor in tensors if not isinstance(tensor.layout, RowMajor)}
    for entry in schedule.entries:
        memories = {schedule.tensors[name].memory for name in entry.tensors}
        if entry.host and not entry.lowered.op.control:
            of_host |= memories
        else:
            of_device |= memories
    return frozenset(of_host - of_device)
