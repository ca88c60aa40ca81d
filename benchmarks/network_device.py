"""Print the device that glnn's networks run on: versions, and its roofline on request.

Runs in a process of its own. Arguments: the backend, and `roofline` to measure peak and bandwidth.
"""

from __future__ import annotations

import sys

from benchmarks.network_process import Row, answer
from benchmarks.record import machine
from benchmarks.roofline import intensities
from glnn.backends import open_backend


def main(name: str, roofline: bool) -> Row:
    """Describe machine and device; with the peak GFLOP/s and GB/s of the backend's shaders."""
    device = open_backend(name).device
    result: Row = {**machine(device), "backend": name}
    if roofline and device:
        rows = intensities(device, name)
        result["peak_gflops"] = max(row["gflops"] for row in rows)
        result["peak_gb_s"] = max(row["gb_s"] for row in rows)
    return result


if __name__ == "__main__":
    answer(main(sys.argv[1], "roofline" in sys.argv[2:]))
