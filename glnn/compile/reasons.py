"""Why a plan has the kernels that it has, where others would take other time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glnn.backends.backend import Alternative
from glnn.compile.outline import Outline
from glnn.compile.task import Decision
from glnn.kernels.kernel import Kernel


@dataclass(frozen=True)
class Reason:
    """Why one kernel was chosen.

    name: of what it computes. kernel: what it is called, with the parts that it works in. other:
    the kernel it is held against: one that computes all at once, else what was given up. times: how
    often as fast it is by prediction. weights, workspace: bytes that it takes more, of weights and
    of what is there at the same time. given_up: what would have been chosen had there been memory;
    None where it was. lacking: bytes that there would have to be more for that, as far as that can
    be told.
    """

    name: str
    op: str
    kernel: str
    other: str
    times: float
    weights: int
    workspace: int
    given_up: str | None
    lacking: int


def reasons(outline: Outline, available: int | None) -> Iterator[Reason]:
    """Those for all decisions of `outline` and its bodies that change what weights take.

    available: bytes that it was to need at the most; None for as many as it likes.
    """
    room = None if available is None else available - outline.need
    for within, part in outline.walk():
        for decision, options in part.open:
            if len({option.takes.weights for option in options}) > 1:
                yield _reason(part, within, decision, options, room)


def _reason(
    outline: Outline,
    within: str,
    decision: Decision,
    options: tuple[Alternative, ...],
    room: int | None,
) -> Reason:
    """room: bytes that there are still."""
    chosen, backend = options[0], outline.schedule.backend
    first = backend.choose(decision.problem)
    wanted = next((option for option in options if option.choice == first), chosen)
    whole = next((option for option in options[1:] if not _staged(option)), None)
    held = [*filter(None, [whole]), wanted, *options[1:]]
    other = next(option for option in held if option is not chosen)
    weights, levels = chosen.takes.weights, outline.level
    above = max(levels(decision, wanted) - outline.most, 0)
    return Reason(
        within + decision.task.name,
        decision.task.op.name,
        _called(chosen),
        _called(other),
        other.takes.seconds / chosen.takes.seconds,
        weights - other.takes.weights,
        levels(decision, chosen) - levels(decision, other),
        None if wanted is chosen or room is None else _called(wanted),
        wanted.takes.weights - weights + above - (room or 0),
    )


def _staged(option: Alternative) -> bool:
    return isinstance(option.choice, Kernel) and bool(option.choice.stages)


def _called(option: Alternative) -> str:
    """The kernel's name, with the parts that it works in."""
    kernel = option.choice
    # Of kernels without stages PARTS is no count.
    parts = kernel.defaults.get("PARTS", 1) if isinstance(kernel, Kernel) and kernel.stages else 1
    return kernel.name if parts == 1 else f"{kernel.name} in {parts} parts"
