"""What a session leaves: nothing that only the garbage collector frees keeps memory."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from glnn import InferenceSession
from glnn.errors import DeviceError


@pytest.mark.parametrize("backend", ["cpu", "compute", "feedback"])
def test_plans_go_with_their_session(backend: str) -> None:
    """Without the collector: device memory goes, too."""
    try:
        session = InferenceSession("lenet", backend)
    except DeviceError as error:
        pytest.skip(str(error))
    (info,) = session.get_inputs()
    x = np.zeros((1, *info.shape[1:]), np.float32)
    gc.collect()
    gc.disable()
    try:
        session.run(None, {info.name: x})
        executor = session._lazy.load().executor
        plans = (*executor._plans.values(), *executor.range_plans)
        gone = [weakref.ref(plan) for plan in plans]
        gone += [weakref.ref(plan.buffers) for plan in plans]
        gone += [weakref.ref(kept.store) for plan in plans for kept in plan.device_weights]
        gone += [weakref.ref(plan.buffers.commands) for plan in plans]
        del executor, plans, session
        assert gone and all(one() is None for one in gone)
    finally:
        gc.enable()
