"""GPU architectures that share default parameters, recognized by the driver's device name."""

from __future__ import annotations

from functools import lru_cache

from glnn.gl import Capabilities

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "NVIDIA": ("nvidia",),
    "llvmpipe": ("llvmpipe",),
    "Midgard": ("mali-t",),
    "Bifrost": ("mali-g31", "mali-g51", "mali-g52", "mali-g71", "mali-g72", "mali-g76"),
    "Valhall": ("mali-g",),  # those that are no Bifrost
    "V3D": ("v3d",),
    "Adreno": ("adreno", "freedreno"),
}
"""Words by architecture; a device is of the first with a word in its vendor or renderer."""

PATIENT = ("NVIDIA", "llvmpipe")
"""Architectures whose drivers were seen to let launches take as long as they need."""

EAGER = ("Adreno",)
"""Architectures whose drivers should be flushed after every launch."""


def architecture(device: Capabilities) -> str | None:
    """Return the architecture of `device`; None where it is unknown."""
    return architecture_called(f"{device.vendor} {device.renderer}")


@lru_cache(maxsize=64)
def architecture_called(text: str) -> str | None:
    """Return the architecture of a device by its driver's name `text`; None where unknown."""
    for name, words in ARCHITECTURES.items():
        if any(word in text.lower() for word in words):
            return name
    return None
