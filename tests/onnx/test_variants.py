"""A fixed part of `tests.onnx.variants`: `make check-variants` has all."""

from __future__ import annotations

import pytest

from tests.onnx import variants

SHARE = {"cpu": 14, "compute": 60}
"""One variant in so many, on each backend."""


@pytest.mark.parametrize("backend", SHARE)
def test_variants_of_the_suite(backend: str) -> None:
    """What ONNX Runtime computes glnn computes, too, unless `variants.toml` says why not."""
    chosen = [*variants.variants()][:: SHARE[backend]]
    found = [*variants.outcomes(chosen, [backend])]
    assert sum(one.status == "right" for one in found) > len(chosen) / 2
    assert not variants.unexpected(found)


def test_reasons_are_of_variants() -> None:
    """Each row of `variants.toml` is about some variant."""
    known = [*variants.variants()]
    for operator, listed in variants.reasons().items():
        for names, why in listed.items():
            assert any(variants.is_meant(one, operator, names) for one in known), names
            assert why
