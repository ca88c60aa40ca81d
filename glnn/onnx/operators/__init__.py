"""The table of converters from ONNX operators to glnn's operators."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, groupby

from glnn.onnx.operators import (
    attention,
    contrib_activations,
    contrib_attention,
    contrib_cached_attention,
    contrib_experts,
    contrib_normalization,
    contrib_packed,
    contrib_products,
    contrib_quantized,
    contrib_recurrent,
    contrib_tensor,
    pointwise,
    products,
    quantize,
    recurrent,
    reduce,
    resample,
    sequences,
    spectra,
    tensor,
    windows,
)
from glnn.onnx.operators.call import Converter

MODULES = (
    attention,
    contrib_activations,
    contrib_attention,
    contrib_cached_attention,
    contrib_experts,
    contrib_normalization,
    contrib_packed,
    contrib_products,
    contrib_quantized,
    contrib_recurrent,
    contrib_tensor,
    pointwise,
    products,
    quantize,
    recurrent,
    reduce,
    resample,
    sequences,
    spectra,
    tensor,
    windows,
)
"""The modules with converters, by kind of operator."""


def _key(entry: Converter) -> tuple[str, str]:
    return entry.domain, entry.name


ENTRIES: Mapping[tuple[str, str], tuple[Converter, ...]] = {
    key: tuple(sorted(entries, key=lambda one: one.since))
    for key, entries in groupby(
        sorted(chain.from_iterable(module.ENTRIES for module in MODULES), key=_key), key=_key
    )
}
"""Entries by operator set and name, the oldest first."""


def find(domain: str, name: str, version: int) -> Converter | None:
    """Return the converter for a version of the operator set; None where there is none."""
    matches = [one for one in ENTRIES.get((domain, name), ()) if one.since <= version]
    return matches[-1] if matches else None


def names(domain: str) -> list[str]:
    """Return the names of the operators of `domain` that have converters, in order."""
    return sorted(name for key_domain, name in ENTRIES if key_domain == domain)
