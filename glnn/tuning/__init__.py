"""Finding the fastest kernel and parameters on this device."""

from glnn.tuning.tune import Tuning, far_slower, tune

__all__ = ["Tuning", "far_slower", "tune"]
