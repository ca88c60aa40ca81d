"""Python's garbage collector looks rarely while a plan is made, and is then as it was."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from glnn import InferenceSession
from glnn.compiler import partitioned_graph
from glnn.core.process import COLLECTOR
from glnn.errors import ShapeError

RARE = COLLECTOR.RARE


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was, enabled = gc.get_threshold(), gc.isenabled()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*was)
    (gc.enable if enabled else gc.disable)()


def test_it_looks_rarely_inside_and_goes_on_behind() -> None:
    with COLLECTOR.relaxed():
        with COLLECTOR.relaxed():
            assert gc.get_threshold() == (RARE, 10, 10)
        assert gc.get_threshold()[0] == RARE
    assert gc.get_threshold() == (700, 10, 10)


def test_an_error_inside_does_not_leave_it_so() -> None:
    with pytest.raises(ValueError, match="inside"), COLLECTOR.relaxed():
        raise ValueError("inside")
    assert gc.get_threshold() == (700, 10, 10)


def test_who_turns_it_off_inside_finds_it_off() -> None:
    with COLLECTOR.relaxed():
        gc.disable()
    assert not gc.isenabled()


@pytest.mark.parametrize("own", [(0, 10, 10), (500_000, 5, 5)])
def test_thresholds_that_are_rare_already_stay(own) -> None:
    gc.set_threshold(*own)
    with COLLECTOR.relaxed():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_thresholds_that_are_set_inside_stay() -> None:
    with COLLECTOR.relaxed():
        gc.set_threshold(900, 10, 10)
    assert gc.get_threshold() == (900, 10, 10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_fork_in_the_middle_has_the_collector_as_it_was() -> None:
    with COLLECTOR.relaxed():
        child = os.fork()
        if not child:
            os._exit(0 if gc.get_threshold() == (700, 10, 10) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert gc.get_threshold()[0] == RARE


@pytest.mark.parametrize("shape", [(1, 1, 28, 28), (1, 1, 27, 28)])
def test_plans_are_made_so(shape, monkeypatch) -> None:
    seen: list[int] = []
    plan = partitioned_graph.Plan

    def asked(*arguments, **options):
        seen.append(gc.get_threshold()[0])
        return plan(*arguments, **options)

    monkeypatch.setattr(partitioned_graph, "Plan", asked)
    session = InferenceSession("lenet", "cpu")
    feeds = {session.get_inputs()[0].name: np.zeros(shape, np.float32)}
    try:
        session.run(None, feeds)
    except ShapeError:
        assert shape[2] == 27 and not seen
    else:
        assert seen == [RARE]
    assert gc.get_threshold() == (700, 10, 10)


def test_garbage_made_inside_goes_when_all_is_looked_at() -> None:
    class Ring:
        pass

    with COLLECTOR.relaxed():
        ring = Ring()
        ring.own = ring  # type: ignore[attr-defined]
        gone = weakref.ref(ring)
        del ring
    gc.collect()
    assert gone() is None


def test_what_was_frozen_stays_so() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with COLLECTOR.relaxed():
        pass
    assert gc.get_freeze_count() >= 0.9 * count > 0
