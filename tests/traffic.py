"""Counts the bytes that go between host and device, as GL is told to copy them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import moderngl
import numpy as np
import pytest

from glnn.backends.gl import GlBackend


@dataclass
class Traffic:
    """Bytes since the last `reset`."""

    up: int = 0
    """From the host to a device."""
    down: int = 0
    """From a device to the host."""
    there: int = 0
    """From one buffer of a device to another."""
    cleared: int = 0
    """New memory that was set to zero."""

    def reset(self) -> None:
        self.up = self.down = self.there = self.cleared = 0


def count_traffic(patch: pytest.MonkeyPatch) -> Traffic:
    """Return a Traffic that counts from now on. No buffer is mapped, where GL would see nothing."""
    traffic = Traffic()
    patch.setattr(GlBackend, "memory_kind", lambda *arguments: "shared")
    buffer, context = moderngl.Buffer, moderngl.Context
    write, read, read_into = buffer.write, buffer.read, buffer.read_into
    make, copy = context.buffer, context.copy_buffer

    def writing(self: Any, data: Any, *arguments: Any, **options: Any) -> Any:
        traffic.up += memoryview(data).nbytes
        return write(self, data, *arguments, **options)

    def reading(self: Any, size: int = -1, *arguments: Any, **options: Any) -> Any:
        traffic.down += self.size if size < 0 else size
        return read(self, size, *arguments, **options)

    def reading_into(self: Any, data: Any, size: int = -1, *arguments: Any, **options: Any) -> Any:
        traffic.down += self.size if size < 0 else size
        return read_into(self, data, size, *arguments, **options)

    def making(self: Any, data: Any = None, *arguments: Any, **options: Any) -> Any:
        if data is not None and np.asarray(data).any():
            traffic.up += memoryview(data).nbytes
        elif data is not None:
            traffic.cleared += memoryview(data).nbytes
        return make(self, data, *arguments, **options)

    def copying(self: Any, target: Any, source: Any, size: int = -1, **options: Any) -> Any:
        traffic.there += source.size if size < 0 else size
        return copy(self, target, source, size, **options)

    patch.setattr(buffer, "write", writing)
    patch.setattr(buffer, "read", reading)
    patch.setattr(buffer, "read_into", reading_into)
    patch.setattr(context, "buffer", making)
    patch.setattr(context, "copy_buffer", copying)
    return traffic
