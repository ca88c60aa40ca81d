"""Timings of a plan or an op, traces of runs, and verification against float64."""

from glnn.profiling.profile import Profile, StepTime, profile
from glnn.profiling.timing import Timing, time_work
from glnn.profiling.trace import Trace
from glnn.profiling.verify import LayerError, Verification, verify

__all__ = [
    "LayerError",
    "Profile",
    "StepTime",
    "Timing",
    "Trace",
    "Verification",
    "profile",
    "time_work",
    "verify",
]
