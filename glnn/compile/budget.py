"""Which kernels a plan gives up where memory is short: those that cost the most bytes for the time
that they save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from glnn.backends.backend import Alternative

TRIES = 8  # plans that are looked at in each way where memory is short
Taken = Mapping[int, int]
"""The place of an option, by the place of its decision."""


class Needing(Protocol):
    """What needs so many bytes."""

    @property
    def need(self) -> int: ...


T = TypeVar("T", bound=Needing)


@dataclass(frozen=True)
class Open:
    """A decision that memory may change.

    options: the kernels that there are, first the one that was chosen. arena: the place of the
    arena that its tensors lie in. levels: bytes there that are needed at the same time, by option.
    """

    options: tuple[Alternative, ...]
    arena: int
    levels: tuple[int, ...]

    def seconds(self, option: int) -> float:
        """Of that option, which is no faster than the one that was chosen."""
        return max(one.takes.seconds for one in (self.options[0], self.options[option]))

    def weights(self, option: int) -> int:
        """Bytes of the weights."""
        return self.options[option].takes.weights


@dataclass(frozen=True)
class Budget:
    """What a plan needs with one set of kernels or another, as far as that can be told beforehand.

    decisions: those that memory may change. floors: bytes of each arena that are needed at the same
    time whatever is decided. rest: bytes of all else.
    """

    decisions: Sequence[Open]
    floors: Sequence[int]
    rest: int

    @classmethod
    def of(cls, need: int, decisions: Sequence[Open], floors: Sequence[int]) -> Budget:
        """That of a plan which needs `need` bytes as it was decided."""
        estimate = cls(decisions, floors, 0).need({})
        return cls(decisions, floors, need - estimate)

    def need(self, taken: Taken) -> int:
        """Bytes that are needed with what is `taken`, else with what was chosen."""
        levels, weights = list(self.floors), 0
        for i, decision in enumerate(self.decisions):
            option = taken.get(i, 0)
            levels[decision.arena] = max(levels[decision.arena], decision.levels[option])
            weights += decision.weights(option)
        return self.rest + weights + sum(levels)

    def within(self, nbytes: int) -> Taken | None:
        """What to take so that `nbytes` do; None where nothing makes them do."""
        taken: dict[int, int] = {}
        while (missing := self.need(taken) - nbytes) > 0:
            best = max(self._moves(taken), key=lambda m: self._worth(taken, m, missing), default={})
            if self._worth(taken, best, missing) <= 0:
                break
            taken |= best
        least = taken if missing <= 0 else self.least()
        return self.returned(least, nbytes) if self.need(least) <= nbytes else None

    def least(self) -> Taken:
        """What to take so that the fewest bytes do."""
        found: dict[int, int] = {}
        for arena, floor in enumerate(self.floors):
            here = [i for i, decision in enumerate(self.decisions) if decision.arena == arena]
            levels = {floor, *(level for i in here for level in self.decisions[i].levels)}
            able = (self._below(here, most) for most in levels)
            ways: list[Taken] = [way for way in able if way is not None]
            best = min(ways, key=self.need)
            found |= best
        return found

    def _below(self, here: Sequence[int], most: int) -> dict[int, int] | None:
        """What to take of the decisions `here` for the fewest weights, with levels up to `most`."""
        found = {}
        for i in here:
            decision = self.decisions[i]
            able = [o for o in range(len(decision.options)) if decision.levels[o] <= most]
            if not able:
                return None
            found[i] = min((decision.weights(o), decision.seconds(o), o) for o in able)[-1]
        return found

    def _saved(self, taken: Taken, move: Taken) -> int:
        """Bytes."""
        return self.need(taken) - self.need({**taken, **move})

    def _worth(self, taken: Taken, move: Taken, missing: int) -> float:
        """Bytes saved, of those that are missing, for each second lost."""
        saved = min(self._saved(taken, move), missing)
        lost = sum(
            self.decisions[i].seconds(option) - self.decisions[i].seconds(taken.get(i, 0))
            for i, option in move.items()
        )
        return saved / max(lost, 1e-9) if saved > 0 else saved

    def _moves(self, taken: Taken) -> Iterator[dict[int, int]]:
        """What may be changed: a decision to one of fewer weights, all that fill an arena the most
        to less.
        """
        for i, decision in enumerate(self.decisions):
            now = decision.weights(taken.get(i, 0))
            for option in range(len(decision.options)):
                if decision.weights(option) < now:
                    yield {i: option}
        for arena, floor in enumerate(self.floors):
            here = [i for i, decision in enumerate(self.decisions) if decision.arena == arena]
            level = max((self.decisions[i].levels[taken.get(i, 0)] for i in here), default=0)
            if level > floor:
                full = [i for i in here if self.decisions[i].levels[taken.get(i, 0)] == level]
                lower = {i: self._lower(i, level) for i in full}
                found = {i: option for i, option in lower.items() if option is not None}
                if len(found) == len(full):
                    yield found

    def _lower(self, i: int, level: int) -> int | None:
        """The fastest option of a decision that needs less than `level`."""
        decision = self.decisions[i]
        able = [o for o in range(len(decision.options)) if decision.levels[o] < level]
        return min(able, key=lambda option: (decision.seconds(option), option), default=None)

    def based(self, taken: Taken, need: int) -> Budget:
        """The same, `need` bytes being needed with what is `taken`."""
        return replace(self, rest=self.rest + need - self.need(taken))

    def returned(self, taken: Taken, nbytes: int, some: Iterable[int] | None = None) -> Taken:
        """`taken` with what need not have been given up for `nbytes`; of all or `some` of it."""
        found = dict(taken)
        for i in self.lost(taken) if some is None else some:
            decision = self.decisions[i]
            for option in sorted(range(len(decision.options)), key=decision.seconds):
                faster = decision.seconds(option) < decision.seconds(found[i])
                if faster and self.need({**found, i: option}) <= nbytes:
                    found[i] = option
                    break
        return found

    def lost(self, taken: Taken) -> list[int]:
        """The decisions in `taken`, those first that lose the most time."""

        def seconds(i: int) -> float:
            return self.decisions[i].seconds(taken[i]) - self.decisions[i].seconds(0)

        return sorted(taken, key=seconds, reverse=True)


def fitted(budget: Budget, decided: Callable[[Taken], T], available: int) -> T:
    """What `decided` gives for what needs no more than is `available`, or else the least.

    decided: gives what really comes of what is taken. It tells what the budget does not know, how
    memories of several sizes share blocks.
    """
    taken, found = _descended(budget, decided, available)
    tries = TRIES if found.need <= available else 0
    for some in (None, *((i,) for i in budget.lost(taken))):
        more = budget.based(taken, found.need).returned(taken, available, some)
        if more != taken and tries:
            tries -= 1
            tried = decided(more)
            if tried.need <= available:
                taken, found = more, tried
    return found


def _descended(budget: Budget, decided: Callable[[Taken], T], available: int) -> tuple[Taken, T]:
    """The first that fits, of what is taken for fewer and fewer bytes; else the least."""
    aim, never, least = available, 0, available
    for _ in range(TRIES):
        taken = budget.within(aim)
        if taken is None:
            never = max(never, aim)
        else:
            found = decided(taken)
            if found.need <= available:
                return taken, found
            least = min(least, aim)
            aim -= found.need - available
        if taken is None or aim <= never:
            if never >= least:
                break
            aim = (least + never) // 2
    return (taken := budget.least()), decided(taken)
