"""`make check-generations` in small: nothing is wrong, what is closed or refused is counted."""

from __future__ import annotations

import pytest

from tests.generation import many_generations


@pytest.mark.parametrize("backend", ["cpu"])
def test_generations(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    small = {"WARM": 200, "WARM_MODELS": 3, "LOOKS": 2, "MOST_MIB": 100.0}
    for name, number in small.items():
        monkeypatch.setattr(many_generations, name, number)
    found = many_generations.check(backend, 400, 0)
    assert found["right"] and found["opened"] > 3
    assert 0 < found["left"] < 200 and 0 < found["refused"] < 60
