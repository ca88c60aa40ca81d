"""Random numbers of training: what Dropout drops, and the order of samples.

All are Threefry's, of counters: the same seed gives the same numbers on every backend, and no
state is kept. Its four words are for Dropout the place in a sample; the sample's number and the
layer's (LAYERS of them); the seed; and how many batches there were.
"""

from __future__ import annotations

import numpy as np

from glnn.graph.threefry import threefry
from glnn.types import Array

SHUFFLE = -1  # the second counter of what no layer draws


def permutation(seed: int, epoch: int, count: int) -> Array:
    """Return the numbers from 0 to count - 1, int64, in an order by seed and epoch."""
    high, low = threefry(np.arange(count), np.array(SHUFFLE), np.array(seed), np.array(epoch))
    return np.argsort(high.astype(np.uint64) << np.uint64(32) | low, kind="stable")
