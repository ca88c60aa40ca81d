"""How often commands are sent off to the device."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import cast

from glnn.backends.launch import FlushPolicy, _batch_sizes
from glnn.gl import Device
from glnn.gl.command_encoder import CommandEncoder


def test_launches_are_sent_off_by_more_and_more_at_once() -> None:
    assert list(islice(_batch_sizes(None), 5)) == [1, 2, 4, 8, 16]
    assert list(islice(_batch_sizes("NVIDIA"), 3)) == [1, 2, 4]


def test_adreno_begins_with_every_launch() -> None:
    assert list(islice(_batch_sizes("Adreno"), 4)) == [1, 1, 1, 1]


def test_others_come_between_launches_of_a_device_of_low_priority() -> None:
    assert list(islice(_batch_sizes("NVIDIA", low=True), 4)) == [1, 1, 1, 1]


def test_turns_of_a_launch_count_as_launches() -> None:
    """Some are sent off while others are asked for, also where one launch has all of them."""
    events: list[str] = []
    device = SimpleNamespace(
        capabilities=SimpleNamespace(renderer="X", vendor="Y"), low_priority=False
    )
    encoder = SimpleNamespace(flush=lambda: events.append("flush"))
    flush_policy = FlushPolicy(cast(Device, device))
    for _ in range(10):
        flush_policy.before_launch(cast(CommandEncoder, encoder))
        events.append("turn")
    before = [i - events[:i].count("flush") for i, one in enumerate(events) if one == "flush"]
    assert before == [1, 3, 7]
