"""Python's garbage collector rests while a plan is made, and is then as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from glnn import InferenceSession
from glnn.errors import ShapeError
from glnn.process import COLLECTOR


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was = gc.isenabled()
    yield
    (gc.enable if was else gc.disable)()


def test_it_rests_inside_and_goes_on_behind() -> None:
    gc.enable()
    with COLLECTOR.paused():
        with COLLECTOR.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_inside_does_not_leave_it_off() -> None:
    gc.enable()
    with pytest.raises(ValueError, match="inside"), COLLECTOR.paused():
        raise ValueError("inside")
    assert gc.isenabled()


def test_who_has_turned_it_off_finds_it_off() -> None:
    gc.disable()
    with COLLECTOR.paused():
        pass
    assert not gc.isenabled()


@pytest.mark.parametrize("shape", [(1, 1, 28, 28), (1, 1, 27, 28)])
def test_it_is_on_behind_a_plan_that_was_made_or_refused(shape) -> None:
    gc.enable()
    session = InferenceSession("lenet", "cpu")
    feeds = {session.get_inputs()[0].name: np.zeros(shape, np.float32)}
    try:
        session.run(None, feeds)
    except ShapeError:
        assert shape[2] == 27
    assert gc.isenabled()
