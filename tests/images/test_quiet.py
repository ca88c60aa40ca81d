"""Pictures that several threads read: no warnings, bombs refused, Python's filters as they were."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from glnn.errors import ModelError
from glnn.images import read_picture
from glnn.images.files import QUIET

Image = pytest.importorskip("PIL.Image")


def test_the_last_thread_that_leaves_restores_the_filters() -> None:
    before = list(warnings.filters)
    both, first_left = Barrier(2, timeout=30), Barrier(2, timeout=30)

    def first() -> None:
        with QUIET:
            both.wait()
        first_left.wait()

    def second() -> list[object]:
        with QUIET:
            both.wait()
            first_left.wait()
            return list(warnings.filters)

    with ThreadPoolExecutor(2) as pool:
        begun = pool.submit(first)
        meanwhile = pool.submit(second).result()
        begun.result()
    assert meanwhile != before  # still quiet
    assert list(warnings.filters) == before


def test_a_bomb_among_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)  # Pillow warns above, refuses above twice
    sizes = (10, 12, 16, 30) * 4
    for i, size in enumerate(sizes):
        Image.new("RGB", (size, size), (i, 0, 0)).save(tmp_path / f"{i}.png")

    def read(i: int) -> object:
        try:
            return int(read_picture(tmp_path / f"{i}.png")[0, 0, 0])
        except ModelError as error:
            return str(error)

    with warnings.catch_warnings(record=True) as said, ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("always")
        found = list(pool.map(read, range(len(sizes))))
    assert not said
    for i, (size, one) in enumerate(zip(sizes, found, strict=True)):
        assert one == i if size <= 12 else "exceeds limit" in str(one)
    assert np.array_equal(read_picture(tmp_path / "0.png"), np.zeros((10, 10, 3)))
