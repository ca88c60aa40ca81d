"""Choice of the steps of a GPU's plan that the host computes, with the reason for each.

A step without a kernel is computed by the host, between a readback and an upload. A small step
between two such steps is not worth the transfers to the device and back: the host computes it, too.
Which steps these are is a minimum cut of the plan into the host's and the device's side. It costs
the time by which NumPy is slower than the device, and the transfers of tensors that one side makes
and the other reads. Inputs are on the device's side, and outputs cost nothing on either side, so
that a plan without steps of the host stays on the device.
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
from glnn.kernels.cost_model import DeviceRates, device_rates, host_seconds

NEVER = float("inf")
NOTHING = 1e-12
"""Capacities up to this are used up: rounding leaves as much of them."""
LATE = "sizes that only a run tells"
"""Why the host computes a node of a graph that is planned in parts."""
LEFT = "between steps of the host's: to the device and back takes longer"
"""Why the host computes a step that has a kernel."""
LARGE = "made of constants alone, and much larger than these: no plan keeps it"
"""Why the host computes a constant in each run."""
HOST, DEVICE = "host", "device"
FEW = 1 << 12
"""The most elements of constant operands of a step that may move to the host."""


class LeastCut:
    """Minimum cut of a directed graph, by augmenting paths (Edmonds and Karp 1972)."""

    def __init__(self) -> None:
        self._residual: dict[Hashable, dict[Hashable, float]] = {}
        """The residual capacity of each edge, by source and target."""

    def add(self, source: Hashable, target: Hashable, cost: float) -> None:
        """Add an edge that costs `cost` if `source` is on the first side of the cut and `target` is
        not.
        """
        edges = self._residual.setdefault(source, {})
        edges[target] = edges.get(target, 0.0) + cost
        self._residual.setdefault(target, {}).setdefault(source, 0.0)

    def first_side(self, first: Hashable, last: Hashable) -> set[Hashable]:
        """Return the vertices on the side of `first` in the cheapest cut between it and `last`.

        Of several such cuts, the one with the fewest vertices there. It must cost less than NEVER.
        """
        while True:
            predecessors = self._reached(first, last)
            if last not in predecessors:
                return set(predecessors)
            path: list[tuple[Hashable, Hashable]] = []
            target = last
            while target != first:
                path.append((predecessors[target], target))
                target = predecessors[target]
            flow = min(self._residual[a][b] for a, b in path)
            for a, b in path:
                self._residual[a][b] -= flow
                self._residual[b][a] += flow

    def _reached(self, first: Hashable, last: Hashable) -> dict[Hashable, Hashable]:
        """Search breadth first from `first` over residual edges, up to `last`; return each vertex's
        predecessor.
        """
        predecessors: dict[Hashable, Hashable] = {first: first}
        queue = deque([first])
        while queue:
            source = queue.popleft()
            for target, capacity in self._residual.get(source, {}).items():
                if capacity > NOTHING and target not in predecessors:
                    predecessors[target] = source
                    if target == last:
                        return predecessors
                    queue.append(target)
        return predecessors


@dataclass(frozen=True)
class Hosted:
    """A step that the host computes."""

    layer: str
    """The layer or node that it belongs to."""
    operator: str
    """The operator's name for people."""
    reason: str
    """Why no kernel does."""

    @property
    def is_moved(self) -> bool:
        """Return True where a GPU could compute the step, but would finish later than the host."""
        return self.reason == LEFT

    def __str__(self) -> str:
        return f"{self.operator} ({self.reason})"


def why(operator: Operator, types: Iterable[TensorType], backend: Backend) -> str:
    """Return why no kernel of `backend` computes `operator`. types: of its operands and results."""
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
    """The bytes of a memory, and the numbers of the entries that write and read it."""

    nbytes: int = 0
    writers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)


def left_to_host(schedule: Schedule, names: Container[str]) -> frozenset[str]:
    """Return the results of the steps of `schedule` that should move to the host.

    names: of the graph's values, so that copies in other layouts do not count as steps. Times are
    predicted, not measured: the result is the same for the same schedule and device.
    """
    device, entries = schedule.backend.device, schedule.entries
    if device is None or not any(
        _is_hosted(entry) and entry.lowered.output in names for entry in entries
    ):
        return frozenset()  # no step of the host, but for copies in other layouts
    rates = device_rates(architecture(device.capabilities))
    memories = _memories(schedule)
    movable = {
        i for i, entry in enumerate(entries) if _is_movable(schedule, entry, names, memories)
    }
    cut = LeastCut()
    for i in movable:
        spec = entries[i].spec
        lost = host_seconds(spec) - rates.seconds(
            spec.op, {name: spec.types[name] for name in spec.op_shapes}
        )
        cut.add(i, DEVICE, max(lost, 0.0))
    for name, memory in memories.items():
        if movable.intersection((*memory.writers, *memory.readers)):
            _add_transfers(cut, name, memory, movable, entries, rates)
    on_host = cut.first_side(HOST, DEVICE)
    return frozenset(entries[i].lowered.output for i in movable if i in on_host)


def _is_hosted(entry: ScheduledOp) -> bool:
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
        for name in entry.lowered.results:
            result[schedule.tensors[name].memory].writers.append(i)
        for name in entry.lowered.operands.values():
            result[schedule.tensors[name].memory].readers.append(i)
    return result


def _is_movable(
    schedule: Schedule, entry: ScheduledOp, names: Container[str], memories: dict[str, _Memory]
) -> bool:
    """Return True where the step may move to the host: it is no stage of a kernel, and no kernel
    was requested for it.
    """
    lowered = entry.lowered
    weights = sum(prod(weight.shape) for weight in lowered.parameters.values())
    only_writer = len(memories[schedule.tensors[lowered.output].memory].writers) == 1
    unbound = lowered.kernel is None and lowered.stage_of is None and lowered.output in names
    return unbound and only_writer and not entry.host and not lowered.op.updates and weights <= FEW


def _add_transfers(
    cut: LeastCut,
    name: str,
    memory: _Memory,
    movable: set[int],
    entries: list[ScheduledOp],
    rates: DeviceRates,
) -> None:
    """Add to `cut` the costs of transfers where writers and readers of a memory are on two sides.

    A vertex for each transfer makes it cost once for all readers.
    """

    def vertex(i: int) -> int | str:
        return i if i in movable else HOST if _is_hosted(entries[i]) else DEVICE

    writers = {vertex(i) for i in memory.writers} or {DEVICE}
    readers = {vertex(i) for i in memory.readers}
    seconds = memory.nbytes / rates.bus
    for writer in writers:
        readback, upload = (name, "read back", writer), (name, "uploaded", writer)
        for reader in readers:
            cut.add(reader, readback, NEVER)
            cut.add(upload, reader, NEVER)
        cut.add(readback, writer, rates.readback_latency + seconds)
        cut.add(writer, upload, rates.upload_latency + seconds)


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
