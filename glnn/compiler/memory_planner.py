"""Assignment of tensors to shared memory: those that are never needed at the same time share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from glnn.compiler.schedule import Schedule
from glnn.core.symint import hint


@dataclass(frozen=True)
class Arena:
    """Blocks of memory, and the block of each tensor's memory.

    sizes: floats of each block. block: by the memory's name; the host's own has none. overwritten:
    memories whose block somebody else uses afterwards. lives: of each memory that may share a block
    its floats, and the first and the last entry that it is needed by.
    """

    sizes: tuple[int, ...]
    block: Mapping[str, int]
    overwritten: frozenset[str]
    lives: Mapping[str, tuple[int, int, int]]

    def live_beside(self, entries: range) -> int:
        """Floats that may share blocks and are there before, while and after `entries` run."""
        lives = self.lives.values()
        return sum(n for n, first, last in lives if first < entries.start and last >= entries.stop)

    def ending(self, memory: str, entries: range) -> int:
        """Floats of `memory`, where it may share a block and is not needed after `entries`."""
        floats, _, last = self.lives.get(memory, (0, 0, 0))
        return floats if last < entries.stop else 0

    def floor(self, entries: Set[int]) -> int:
        """Floats that may share blocks and are needed at the same time by one of `entries`."""
        lives = self.lives.values()
        alive = (sum(n for n, first, last in lives if first <= i <= last) for i in entries)
        return max(alive, default=0)

    @classmethod
    def plan(
        cls, schedule: Schedule, live_out: Sequence[str], *, share: bool = True, least: int = 0
    ) -> Arena:
        """The blocks for `schedule`, in which the tensors `live_out` must be there at the end.

        Greedy by size, as in Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural
        Net Inference", section 4.3: the largest first, each into a block that is free while it is
        needed; or greedy by time, which is better for some chains, where that takes less. What the
        host writes or reads, inputs and `live_out`, has blocks of its own: a run can be repeated,
        and drivers may move to the host's memory what was read there. With `share` off every memory
        has a block of its own, else those of fewer floats than `least`: launches that do not wait
        for one another would wait for such a block.
        """
        floats = _floats(schedule)
        spans = _spans(schedule, set(live_out))
        alone = {schedule.tensors[name].memory for name in live_out}
        alone |= {name for name, (first, _) in spans.items() if first < 0}
        shared = {k for k, n in floats.items() if n >= least} - alone if share else set()
        free = {name: span for name, span in spans.items() if name in shared}
        by_size = _packed(sorted(free, key=lambda name: -floats[name]), floats, free)
        by_time = _packed(sorted(free, key=lambda name: free[name][0]), floats, free)
        sizes, block = min(by_size, by_time, key=lambda packed: sum(packed[0]))
        last = [0] * len(sizes)
        for name, i in block.items():
            last[i] = max(last[i], free[name][1])
        overwritten = frozenset(name for name, i in block.items() if free[name][1] < last[i])
        for name in floats:
            if name not in free:
                block[name] = len(sizes)
                sizes.append(floats[name])
        lives = {name: (floats[name], *free[name]) for name in free}
        return cls(tuple(sizes), block, overwritten, lives)

    def words(self, schedule: Schedule) -> list[tuple[int, ...]]:
        """Return what the tensors of `schedule` in each block take of it, SymInts as such."""
        sizes_of: list[dict[int, None]] = [{} for _ in self.sizes]
        for memory, end in _ends(schedule):
            if memory in self.block:
                sizes_of[self.block[memory]][end] = None
        return [tuple(one) for one in sizes_of]


def _floats(schedule: Schedule) -> dict[str, int]:
    """The floats of each memory that is the backend's, of the sizes at hand."""
    floats: dict[str, int] = {}
    for memory, end in _ends(schedule):
        floats[memory] = max(floats.get(memory, 0), hint(end))
    return floats


def _ends(schedule: Schedule) -> Iterator[tuple[str, int]]:
    """Yield the memory of each tensor that is the backend's, and the word behind the tensor."""
    for tensor in schedule.tensors.values():
        if schedule.backend.holds(tensor.type.dtype) and tensor.memory not in schedule.hosts:
            size = schedule.backend.capacity(tensor.layout.words(tensor.type))
            yield tensor.memory, (tensor.offset or 0) + size


def _packed(
    order: Sequence[str], floats: Mapping[str, int], spans: Mapping[str, tuple[int, int]]
) -> tuple[list[int], dict[str, int]]:
    """The sizes of the blocks, and the block of each memory.

    Each memory, one after the other in `order`, goes into the block free in its span that need
    grow least, the smallest of these.
    """
    sizes: list[int] = []
    taken: list[list[tuple[int, int]]] = []
    block: dict[str, int] = {}
    for name in order:
        size, span = floats[name], spans[name]
        free = [i for i, others in enumerate(taken) if _disjoint(span, others)]
        if free:
            number = min(free, key=lambda i: (max(size - sizes[i], 0), sizes[i]))
        else:
            number = len(sizes)
            sizes.append(0)
            taken.append([])
        sizes[number] = max(sizes[number], size)
        taken[number].append(span)
        block[name] = number
    return sizes, block


def _spans(schedule: Schedule, live_out: set[str]) -> dict[str, tuple[int, int]]:
    """The first and the last entry that each memory is needed by."""
    end = len(schedule.entries)
    spans: dict[str, tuple[int, int]] = {}

    def need(tensor: str, when: int) -> None:
        memory = schedule.tensors[tensor].memory
        first, last = spans.get(memory, (when, when))
        spans[memory] = min(first, when), max(last, when)

    for i, entry in enumerate(schedule.entries):
        for name in entry.tensors:
            need(name, i)
    made = {schedule.tensors[name].memory for e in schedule.entries for name in e.lowered.results}
    for name, tensor in schedule.tensors.items():
        if tensor.memory == name and name not in made:  # an input
            need(name, -1)
            need(name, end)
        if name in live_out:
            need(name, end)
    return spans


def _disjoint(span: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    return all(span[1] < first or last < span[0] for first, last in others)
