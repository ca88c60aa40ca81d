"""Resources of this process: processor time and resident memory."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
PEAK = "5"  # what has Linux begin anew with the peak


def resident() -> tuple[int | None, int | None]:
    """Bytes of this process that are in memory: now, and at the most since `begin_peak`.

    None where the system has no /proc that tells.
    """
    try:
        lines = STATUS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None, None
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    return _bytes(told.get("VmRSS")), _bytes(told.get("VmHWM"))


def begin_peak() -> None:
    """Let go of what nobody needs, and have the peak of `resident` begin here, where Linux may."""
    gc.collect()
    with suppress(OSError):
        CLEAR.write_text(PEAK)


def _bytes(text: str | None) -> int | None:
    """Parse a size as Linux writes it, `1234 kB`."""
    number, _, unit = (text or "").strip().partition(" ")
    return int(number) << 10 if number.isdigit() and unit == "kB" else None
