"""Architectures: GPUs alike enough to share defaults, told by what their drivers call them."""

from __future__ import annotations

from functools import lru_cache

from glnn.device import Capabilities

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "NVIDIA": ("nvidia",),
    "llvmpipe": ("llvmpipe",),
    "Midgard": ("mali-t",),
    "Bifrost": ("mali-g31", "mali-g51", "mali-g52", "mali-g71", "mali-g72", "mali-g76"),
    "Valhall": ("mali-g",),  # those that are no Bifrost
    "V3D": ("v3d",),
    "Adreno": ("adreno", "freedreno"),
}
"""By name; a device is of the first with a word found in its vendor or renderer."""

PATIENT = ("NVIDIA", "llvmpipe")
"""Architectures whose drivers were seen to let launches take as long as they need."""

EAGER = ("Adreno",)
"""Architectures whose drivers are best told to begin with every launch."""


def architecture(device: Capabilities) -> str | None:
    """The architecture of `device`; None for one unknown."""
    return architecture_called(f"{device.vendor} {device.renderer}")


@lru_cache(maxsize=64)
def architecture_called(text: str) -> str | None:
    """The architecture of the device whose driver calls it `text`; None for one unknown."""
    for name, words in ARCHITECTURES.items():
        if any(word in text.lower() for word in words):
            return name
    return None
