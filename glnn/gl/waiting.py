"""Ways for the host to wait for a device, which trade processor time for latency."""

from __future__ import annotations

import time
from collections.abc import Callable

BLOCK, SPIN, SLEEP = "block", "spin", "sleep"
SHORTEST, LONGEST = 5e-5, 1e-3  # seconds of one sleep
SHARE = 0.25  # of the time waited so far, which the answer is late by at the most


def polled(over: Callable[[], bool], how: str, seconds: float) -> bool:
    """Ask `over` until it says so, or `seconds` have passed; whether it does.

    how: `spin` asks again at once, `sleep` after a pause of 50 us to 1 ms that grows with the wait.
    """
    start = time.perf_counter()
    while not over():
        waited = time.perf_counter() - start
        if waited >= seconds:
            return False
        if how == SLEEP:
            time.sleep(min(max(SHARE * waited, SHORTEST), LONGEST, seconds - waited))
    return True
