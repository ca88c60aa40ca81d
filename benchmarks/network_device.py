"""The device that glnn's networks run on, in a process of its own: its name, and its roofline.

Arguments: the backend, and `roofline` where the peak and the bandwidth are to be measured.
"""

from __future__ import annotations

import sys

from benchmarks.network_process import Found, answer
from benchmarks.record import machine
from benchmarks.roofline import intensities
from glnn.backends import open_backend


def main(name: str, roofline: bool) -> Found:
    """Where the numbers come from; GFLOP/s and GB/s of this backend's shaders at the most."""
    device = open_backend(name).device
    found: Found = {**machine(device), "backend": name}
    if roofline and device:
        rows = intensities(device, name)
        found["peak_gflops"] = max(row["gflops"] for row in rows)
        found["peak_gb_s"] = max(row["gb_s"] for row in rows)
    return found


if __name__ == "__main__":
    answer(main(sys.argv[1], "roofline" in sys.argv[2:]))
