"""Which new plans of an executor are kept on disk: those that gave results."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from glnn.compile.plan import Plan
from glnn.compile.taped import taped
from glnn.device.tape import TapeError
from glnn.graph.graph import Graph, Kind, Variable
from glnn.process import ProcessLock
from glnn.running.stored import Saver
from glnn.types import Shape

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _New:
    """A plan that was made just now."""

    plan: Plan
    """It."""
    shapes: Mapping[str, Shape]
    """What it is for."""
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

    def made(self, plan: Plan, shapes: Mapping[str, Shape], small: bool) -> None:
        """Note that `plan` was made for inputs of `shapes`."""
        with self._lock:
            self._new.append(_New(plan, dict(shapes), small))

    def drop(self) -> None:
        """Keep none of those that wait."""
        with self._lock:
            gone, self._new = self._new, []
        for one in gone:
            _release(one.plan)

    def settle(self) -> None:
        """Have those kept that have run, once some run gave results. Only inside `perform`."""
        with self._lock:
            over = [one for one in self._new if one.plan.lane.prepared.ran]
            self._new = [one for one in self._new if one not in over]
        for one in over:
            if any(one.revision != known for one, known in self._revisions.items()):
                _release(one.plan)
                continue
            try:
                found = taped(one.plan)
                self._saver.save(found.plan, found.weights, found.fixed, one.shapes, one.small)
            except TapeError as error:
                LOG.debug("a plan of %s is not kept: %s", one.plan.graph.name, error)
                _release(one.plan)
            except Exception:  # nobody asked for this: the run has its results
                LOG.debug("a plan of %s is not kept", one.plan.graph.name, exc_info=True)
                _release(one.plan)


def _release(plan: Plan) -> None:
    """Hold the words of its weights no more: nobody stores them."""
    for kept in plan.lane.prepared.kept:
        kept.held = None
