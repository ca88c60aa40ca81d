"""Honest timings of a plan, and its results held against float64."""

from glnn.profiling.profile import Profile, StepTime, profile
from glnn.profiling.verify import LayerError, Verification, verify

__all__ = ["LayerError", "Profile", "StepTime", "Verification", "profile", "verify"]
