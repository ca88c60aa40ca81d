"""What texts for people say, as numbers."""

from __future__ import annotations

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}


def in_bytes(said: str) -> float:
    """Return how many bytes a text such as `3.4 KiB` says."""
    number, unit = said.split()
    return float(number) * UNITS[unit]
