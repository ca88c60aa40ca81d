"""How often commands are sent off to the device."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import cast

from glnn.backends.launch import FlushPolicy, _batches
from glnn.gl import Device
from glnn.gl.command_encoder import CommandEncoder


def test_launches_are_sent_off_by_more_and_more_at_once() -> None:
    assert list(islice(_batches(None), 5)) == [1, 2, 4, 8, 16]
    assert list(islice(_batches("NVIDIA"), 3)) == [1, 2, 4]


def test_adreno_begins_with_every_launch() -> None:
    assert list(islice(_batches("Adreno"), 4)) == [1, 1, 1, 1]


def test_others_come_between_launches_of_a_device_of_low_priority() -> None:
    assert list(islice(_batches("NVIDIA", low=True), 4)) == [1, 1, 1, 1]


def flushed(turns: int, launches: int | None, vendor: str = "Y", low: bool = False) -> list[int]:
    """Return the numbers of launches, or turns of them, behind which there is a flush."""
    events: list[str] = []
    capabilities = SimpleNamespace(renderer="X", vendor=vendor)
    device = SimpleNamespace(capabilities=capabilities, low_priority=low)
    encoder = SimpleNamespace(flush=lambda: events.append("flush"))
    flush_policy = FlushPolicy(cast(Device, device), launches)
    for _ in range(turns):
        flush_policy.next(cast(CommandEncoder, encoder))
        events.append("turn")
    return [i - events[:i].count("flush") for i, one in enumerate(events) if one == "flush"]


def test_turns_of_a_launch_count_as_launches() -> None:
    """Some are sent off while others are asked for, also where one launch has all of them."""
    assert flushed(10, None) == flushed(10, 10) == [1, 3, 7]
    assert flushed(40, 2, "NVIDIA") == [1, 3, 7, 15, 31]


def test_the_last_launches_on_nvidia_wait_for_the_flush_behind_all() -> None:
    assert flushed(12, 12, "NVIDIA") == flushed(17, 17, "NVIDIA") == [1]
    assert flushed(40, 40, "NVIDIA") == [1, 3, 7, 15]
    assert flushed(5, 5, "NVIDIA", low=True) == [1, 2, 3, 4]
