"""GB/s of uploads, readbacks and copies on the device, as Cheng measures them (figures 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks import documents
from benchmarks.record import waited
from benchmarks.tables import table
from glnn.cli.screen import Screen, number
from glnn.core.layout import parse
from glnn.errors import GlnnError
from glnn.gl import Buffer, Device

MEBIBYTES = (1, 4, 16, 64)
WAYS = ("host_to_device", "device_to_host", "device_to_device")
WARM, REPEAT = 3, 15


def transfers(device: Device, most: int) -> list[dict[str, Any]]:
    """GB/s of each way at each size up to `most` MiB, by the clock on the wall.

    As the document has it, a copy on the device counts its bytes once, though they are read and
    written. Raises GlnnError where what arrives is not what was sent.
    """
    rows = []
    for mib in MEBIBYTES:
        if mib > most:
            break
        floats = mib << 18
        array = np.random.default_rng(mib).random(floats, dtype=np.float32)
        buffers = [Buffer((floats,), parse("R")) for _ in range(3)]
        sent, copied, brought = (buffer.push(device) for buffer in buffers)
        read = np.empty(floats, np.float32)
        works: tuple[Callable[[], object], ...] = (
            partial(sent.write, array),
            # Of its own: what was read back may stay on the host, and slow what writes it.
            partial(brought.read_into, read),
            partial(device.context.copy_buffer, copied, sent),
        )
        row: dict[str, Any] = {"mib": mib}
        for way, work in zip(WAYS, works, strict=True):
            for _ in range(WARM):
                work()
            times = [waited(work, device.finish) for _ in range(REPEAT)]
            row[way] = 4 * floats / median(times) / 1e9
        copied.read_into(read)
        if not np.array_equal(read, array):
            raise GlnnError(f"{mib} MiB do not arrive as they were sent, no bandwidth is given")
        for buffer in buffers:
            buffer.release()
        rows.append(row)
    return rows


def by_way(rows: list[dict[str, Any]]) -> documents.Ours:
    """The bandwidths by way and size."""
    return {(way, str(row["mib"])): row[way] for row in rows for way in WAYS}


def show(out: Screen, rows: list[dict[str, Any]]) -> None:
    """Print what `transfers` found."""
    shown = table(">MiB", *(f">{way.replace('_', ' ')}" for way in WAYS))
    for row in rows:
        shown.add(str(row["mib"]), *(number(row[way]) for way in WAYS))
    out.show(shown, "transfers, GB/s by the clock")
