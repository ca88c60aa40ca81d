"""How often commands are sent off to the device."""

from __future__ import annotations

from itertools import islice

from glnn.backends.launch import _batches


def test_launches_are_sent_off_by_more_and_more_at_once() -> None:
    assert list(islice(_batches(None), 5)) == [1, 2, 4, 8, 16]
    assert list(islice(_batches("NVIDIA"), 3)) == [1, 2, 4]


def test_adreno_begins_with_every_launch() -> None:
    assert list(islice(_batches("Adreno"), 4)) == [1, 1, 1, 1]


def test_others_come_between_launches_of_a_device_of_low_priority() -> None:
    assert list(islice(_batches("NVIDIA", low=True), 4)) == [1, 1, 1, 1]
