"""The networks of the page of networks: their names, and what each is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import GlnnError

IMAGE = (3, 224, 224)
BERT, GPT2, SMALL = 30522, 50257, 8192  # tokens that a network knows
SPECTROGRAM = (80, 3000)  # bands, and frames of 30 s
INPUT, OUTPUT = "input", "output"


@dataclass(frozen=True)
class Network:
    """A network of one input and one output."""

    name: str
    sample: tuple[int, ...] = IMAGE
    """One sample's shape."""
    tokens: int = 0
    """Above the greatest number of an input of int64; 0 where the input is float32."""

    def input(self, batch: int, seed: int = 1) -> NDArray[Any]:
        """Seeded numbers (batch, *sample): of a normal distribution, or tokens."""
        generator = np.random.default_rng(seed)
        shape = (batch, *self.sample)
        if self.tokens:
            return generator.integers(0, self.tokens, shape, np.int64)
        return generator.standard_normal(shape, np.float32)


NETWORKS = {
    network.name: network
    for network in (
        Network("squeezenet1_1"),
        Network("mobilenet_v2"),
        Network("mobilenet_v3_small"),
        Network("resnet18"),
        Network("resnet50"),
        Network("efficientnet_b0"),
        Network("densenet121"),
        Network("shufflenet_v2_x1_0"),
        Network("inception_v3", (3, 299, 299)),
        Network("convnext_tiny"),
        Network("vit_b_16"),
        Network("lraspp_mobilenet_v3", (3, 320, 320)),
        Network("minilm_like", (128,), BERT),
        Network("lstm", (64, 128)),
        Network("regnet_y_800mf"),
        Network("resnext50_32x4d"),
        Network("efficientnet_v2_s"),
        Network("mnasnet1_0"),
        Network("googlenet"),
        Network("swin_t"),
        Network("deeplabv3_mobilenet_v3", (3, 256, 256)),
        Network("distilbert", (128,), BERT),
        Network("gpt2", (64,), GPT2),
        Network("whisper_tiny", SPECTROGRAM),
        Network("yolo_like", (3, 640, 640)),
        Network("unet_like", (3, 256, 256)),
        Network("gpt_like", (256,), SMALL),
        Network("whisper_like", SPECTROGRAM),
    )
}


def chosen(only: str | None) -> list[Network]:
    """The networks named in `only`, by commas, or all. Raises GlnnError for an unknown name."""
    if only is None:
        return list(NETWORKS.values())
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in NETWORKS:
            raise GlnnError(f"--only: no {name!r}, expected some of {', '.join(NETWORKS)}")
    return [NETWORKS[name] for name in names]
