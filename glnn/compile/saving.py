"""Which new plans of an executor are kept on disk: those that gave results."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from glnn.compile.plan import Plan
from glnn.graph.graph import Graph, Kind, Variable
from glnn.process import ProcessLock
from glnn.runtime.stored import Saver
from glnn.settings import Settings
from glnn.types import DType

LOG = logging.getLogger(__name__)
MOST_WAITING = 4
"""Plans that wait for their first results."""


@dataclass(frozen=True, eq=False)
class _New:
    """A plan that was made just now."""

    plan: Plan
    """It."""
    small: bool
    """Whether inputs of int64 must be small."""


class Saving:
    """New plans of `graph`, which `saver` keeps once a run of theirs gave results.

    From the first weight on that is assigned anew none is kept: what is stored is of the model as
    it was loaded, which was just now. Any thread may use it.
    """

    def __init__(self, saver: Saver, graph: Graph) -> None:
        self._saver, self._lock = saver, ProcessLock()
        self._new: list[_New] = []
        self.paused = False
        """Whether new plans wait until somebody knows whether they will run again."""
        read = (value for node in graph.nodes for value in node.reads)
        self._revisions: dict[Variable, int] = {
            value.data: value.data.revision  # type: ignore[union-attr, misc]
            for value in read
            if value.kind is Kind.VARIABLE
        }

    @property
    def waiting(self) -> bool:
        """Whether there are any."""
        return bool(self._new) and not self.paused

    def made(self, plan: Plan, small: bool) -> None:
        """Note that `plan` was made. small: whether inputs of int64 must be small for it."""
        with self._lock:
            self._new = [*self._new[1 - MOST_WAITING :], _New(plan, small)]

    def drop(self) -> None:
        """Keep none of those that wait."""
        with self._lock:
            gone, self._new = self._new, []
        for one in gone:
            _release(one.plan)

    def settle(self) -> None:
        """Have those kept that have run, once some run gave results. Only inside `perform`."""
        with self._lock:
            over = [one for one in self._new if one.plan.buffers.ran]
            # Of those that never gave results, as of inputs that were refused, few are held.
            self._new = [one for one in self._new if one not in over][-MOST_WAITING:]
        for one in over:
            if any(one.revision != known for one, known in self._revisions.items()):
                _release(one.plan)
                continue
            why = _why_not(one.plan)
            if why is not None:
                LOG.debug("a plan of %s is not kept: %s", one.plan.graph.name, why)
                _release(one.plan)
                continue
            try:
                executable = one.plan.executable
                fixed = {name: one.plan.fixed(name) for name in executable.io.fixed()}
                self._saver.save(executable, one.plan.kept, fixed, one.small)
            except Exception:  # nobody asked for this: the run has its results
                LOG.debug("a plan of %s is not kept", one.plan.graph.name, exc_info=True)
                _release(one.plan)


def _release(plan: Plan) -> None:
    """Hold the words of its weights no more: nobody stores them."""
    for kept in plan.kept:
        kept.held = None


def _why_not(plan: Plan) -> str | None:
    """Return why a plan is not kept on disk; None where it is."""
    executable = plan.executable
    if plan.outline.tight and Settings.from_environment().memory is None:
        return "it was made while little memory was free"
    if any(plan.fixed(name).dtype == DType.object.numpy for name in executable.io.fixed()):
        return "an output is no tensor of numbers"
    if plan.sized_outputs:
        return "an output follows from sizes alone"
    return executable.why_not_saved
