"""Which states of a step are to lie beside one another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from glnn.types import Shape


def together(
    states: Collection[str], trained: Mapping[str, Shape], running: Iterable[str]
) -> Iterator[tuple[str, ...]]:
    """The names of states of each kind: parameters, each slot of an optimiser, running statistics.

    Those are beside one another that are likely to come about alike: of as many dimensions, and
    called alike in their layers. trained: the shapes of the parameters.
    """

    def like(name: str) -> tuple[int, str]:
        return -len(trained[name]), name.rpartition(".")[2]

    order = sorted(trained, key=like)
    yield tuple(order)
    first = f"{order[0]}/" if order else "/"
    for slot in (name[len(first) :] for name in states if name.startswith(first)):
        yield tuple(name for own in order if (name := f"{own}/{slot}") in states)
    kinds: dict[str, list[str]] = {}
    for name in running:
        kinds.setdefault(name.rpartition(".")[2], []).append(name)
    yield from map(tuple, kinds.values())
