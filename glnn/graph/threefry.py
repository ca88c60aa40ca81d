"""Random numbers of counters: Threefry-2x32, 20 rounds.

Salmon, Moraes, Dror and Shaw 2011, Parallel random numbers: as easy as 1, 2, 3, section 4.3: sums,
rotations and exclusive ors of 32 bits alone, which GLSL ES 3.00 has. The same numbers follow from
the same counters and keys on every backend, bit for bit.
"""

from __future__ import annotations

import numpy as np

from glnn.core.types import Array

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA
ROUNDS = 20


def threefry(counter: Array, counter_high: Array, key: Array, key_high: Array) -> Array:
    """Two words of random bits, uint32 of shape (2, ...), of integers that broadcast.

    Of each its low 32 bits count.
    """
    words = np.broadcast_arrays(counter, counter_high, key, key_high)
    whole: list[Array] = [np.array(word).astype(np.uint32) for word in words]
    first, second, *keys = whole
    keys.append(np.uint32(PARITY) ^ keys[0] ^ keys[1])
    with np.errstate(over="ignore"):  # sums are of 32 bits
        first, second = first + keys[0], second + keys[1]
        for number in range(ROUNDS):
            by = np.uint32(ROTATIONS[number % 8])
            first = first + second
            second = (second << by | second >> (np.uint32(32) - by)) ^ first
            if number % 4 == 3:
                times = number // 4 + 1
                first = first + keys[times % 3]
                second = second + keys[(times + 1) % 3] + np.uint32(times)
    return np.stack([first, second])


def uniform(counter: Array, counter_high: Array, key: Array, key_high: Array) -> Array:
    """A float32 from 0, less than 1, a multiple of 2^-24: the high bits of the first word."""
    bits = threefry(counter, counter_high, key, key_high)[0]
    return np.asarray((bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24))
