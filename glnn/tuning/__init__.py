"""Finding the fastest kernel and parameters on this device."""

from glnn.tuning.tune import Tuning, tune

__all__ = ["Tuning", "tune"]
