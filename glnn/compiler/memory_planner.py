"""Assignment of tensors to blocks of memory: those with disjoint live ranges share a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from glnn.compiler.schedule import Schedule
from glnn.core.symint import hint


@dataclass(frozen=True)
class Arena:
    """Blocks of memory, and the block of each tensor's memory.

    sizes: floats of each block. block: by the memory's name; memories of the host have none.
    overwritten: memories whose block a later one overwrites. lives: by each memory that may share a
    block, its floats and its live range: the numbers of the first and the last entry that use it.
    """

    sizes: tuple[int, ...]
    block: Mapping[str, int]
    overwritten: frozenset[str]
    lives: Mapping[str, tuple[int, int, int]]

    def live_beside(self, entries: range) -> int:
        """Return the floats of shared blocks that are live before, during and after `entries`."""
        lives = self.lives.values()
        return sum(n for n, first, last in lives if first < entries.start and last >= entries.stop)

    def freed_by(self, entries: range, memory: str) -> int:
        """Return the floats of `memory` where it may share a block and is dead after `entries`."""
        floats, _, last = self.lives.get(memory, (0, 0, 0))
        return floats if last < entries.stop else 0

    def floor(self, entries: Set[int]) -> int:
        """Return the most floats of shared blocks that are live while one of `entries` runs."""
        lives = self.lives.values()
        alive = (sum(n for n, first, last in lives if first <= i <= last) for i in entries)
        return max(alive, default=0)

    @classmethod
    def plan(
        cls, schedule: Schedule, live_out: Sequence[str], *, share: bool = True, least: int = 0
    ) -> Arena:
        """Return the blocks for `schedule`. The tensors `live_out` are read after a run.

        Greedy by size, as in Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural
        Net Inference", section 4.3: the largest memory first, each into a block that is free during
        its live range; or greedy by time, where that takes less, as for some chains.

        Inputs and `live_out`, which the host writes or reads, have blocks of their own: a run can
        be repeated, and drivers may move what was read there to the host's memory. So has every
        memory without `share`. With it, memories of fewer floats than `least` have: a shared block
        would make independent launches wait for each other.
        """
        floats = _floats(schedule)
        ranges = _live_ranges(schedule, set(live_out))
        unshared = {schedule.tensors[name].memory for name in live_out}
        unshared |= {name for name, (first, _) in ranges.items() if first < 0}
        shared = {k for k, n in floats.items() if n >= least} - unshared if share else set()
        shared_ranges = {name: one for name, one in ranges.items() if name in shared}
        sizes_down = sorted(shared_ranges, key=lambda name: -floats[name])
        times_up = sorted(shared_ranges, key=lambda name: shared_ranges[name][0])
        by_size = _pack(sizes_down, floats, shared_ranges)
        by_time = _pack(times_up, floats, shared_ranges)
        sizes, block = min(by_size, by_time, key=lambda packed: sum(packed[0]))
        last = [0] * len(sizes)
        for name, i in block.items():
            last[i] = max(last[i], shared_ranges[name][1])
        overwritten = frozenset(
            name for name, i in block.items() if shared_ranges[name][1] < last[i]
        )
        for name in floats:
            if name not in shared_ranges:
                block[name] = len(sizes)
                sizes.append(floats[name])
        lives = {name: (floats[name], *one) for name, one in shared_ranges.items()}
        return cls(tuple(sizes), block, overwritten, lives)

    def words(self, schedule: Schedule) -> list[tuple[int, ...]]:
        """Return for each block the different words at which tensors of `schedule` end in it, which
        may be SymInts.
        """
        ends: list[dict[int, None]] = [{} for _ in self.sizes]
        for memory, end in _ends(schedule):
            if memory in self.block:
                ends[self.block[memory]][end] = None
        return [tuple(one) for one in ends]


def _floats(schedule: Schedule) -> dict[str, int]:
    """Return the floats of each memory of the backend, for the sizes at hand."""
    floats: dict[str, int] = {}
    for memory, end in _ends(schedule):
        floats[memory] = max(floats.get(memory, 0), hint(end))
    return floats


def _ends(schedule: Schedule) -> Iterator[tuple[str, int]]:
    """Yield the memory of each tensor of the backend, and the word at which the tensor ends."""
    for tensor in schedule.tensors.values():
        if (
            schedule.backend.holds(tensor.type.dtype)
            and tensor.memory not in schedule.host_memories
        ):
            size = schedule.backend.capacity(tensor.layout.words(tensor.type))
            yield tensor.memory, (tensor.offset or 0) + size


def _pack(
    order: Sequence[str], floats: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]
) -> tuple[list[int], dict[str, int]]:
    """Return the sizes of the blocks, and the block of each memory.

    Each memory in `order` goes into a block that is free during its live range: the one that has to
    grow least, of several the smallest.
    """
    sizes: list[int] = []
    taken: list[list[tuple[int, int]]] = []
    block: dict[str, int] = {}
    for name in order:
        size, live_range = floats[name], ranges[name]
        free = [i for i, others in enumerate(taken) if _disjoint(live_range, others)]
        if free:
            number = min(free, key=lambda i: (max(size - sizes[i], 0), sizes[i]))
        else:
            number = len(sizes)
            sizes.append(0)
            taken.append([])
        sizes[number] = max(sizes[number], size)
        taken[number].append(live_range)
        block[name] = number
    return sizes, block


def _live_ranges(schedule: Schedule, live_out: set[str]) -> dict[str, tuple[int, int]]:
    """Return the live range of each memory: the first and the last entry that use it.

    Inputs are live from -1 on; inputs and `live_out` up to the number of entries.
    """
    end = len(schedule.entries)
    ranges: dict[str, tuple[int, int]] = {}

    def use(tensor: str, number: int) -> None:
        memory = schedule.tensors[tensor].memory
        first, last = ranges.get(memory, (number, number))
        ranges[memory] = min(first, number), max(last, number)

    for i, entry in enumerate(schedule.entries):
        for name in entry.tensors:
            use(name, i)
    results = (name for entry in schedule.entries for name in entry.lowered.results)
    written = {schedule.tensors[name].memory for name in results}
    for name, tensor in schedule.tensors.items():
        if tensor.memory == name and name not in written:  # an input
            use(name, -1)
            use(name, end)
        if name in live_out:
            use(name, end)
    return ranges


def _disjoint(live_range: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    return all(live_range[1] < first or last < live_range[0] for first, last in others)
