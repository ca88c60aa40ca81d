"""The networks of the zoo that are neither torchvision's nor transformers', in PyTorch.

They have layers, widths and connections of what others train, and weights of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

DETECTED = 80  # classes of yolo_like, those of COCO
SEGMENTED = 21  # classes of unet_like, those of PASCAL VOC
STRIDES = 3  # scales at which yolo_like looks for objects


class BertLayer(nn.Module):  # type: ignore[misc]
    """A layer of BERT: attention and a perceptron, each added to its input and normalised."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """x (n, tokens, width) to the same shape."""
        x = self.norms[0](x + self.joined(attend(self.qkv(x), self.heads)))
        return self.norms[1](x + self.down(nn.functional.gelu(self.up(x))))


class GptLayer(nn.Module):  # type: ignore[misc]
    """A layer of GPT-2: attention and a perceptron of what is normalised, added to the input."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """x (n, tokens, width) to the same shape."""
        x = x + self.joined(attend(self.qkv(self.norms[0](x)), self.heads, self.causal))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def attend(qkv: Any, heads: int, causal: bool = False) -> Any:
    """Self-attention: queries, keys and values (n, tokens, 3 width) to (n, tokens, width)."""
    tokens, width = qkv.shape[1], qkv.shape[2] // 3
    split = qkv.reshape(-1, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    seen = nn.functional.scaled_dot_product_attention(*split.unbind(0), is_causal=causal)
    return seen.transpose(1, 2).reshape(-1, tokens, width)


class Sentences(nn.Module):  # type: ignore[misc]
    """The shape of MiniLM-L6: tokens (n, 128) of int64 to one vector a text (n, 384)."""

    def __init__(self, vocabulary: int, tokens: int, width: int = 384) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(tokens, width))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.Sequential(*(BertLayer(width, 6) for _ in range(6)))

    def forward(self, tokens: Any) -> Any:
        """The mean over the tokens."""
        return self.layers(self.norm(self.words(tokens) + self.places)).mean(1)


class States(nn.Module):  # type: ignore[misc]
    """Two LSTM layers: x (n, 64, 128) to the states of the last (n, 64, 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(128, 256, num_layers=2, batch_first=True)

    def forward(self, x: Any) -> Any:
        """Every state, from an initial one of zeros."""
        return self.layers(x)[0]


class Prompt(nn.Module):  # type: ignore[misc]
    """The shape of GPT-2 with six layers of width 384: a prompt, tokens (n, 256) of int64, to
    scores of the next token (n, vocabulary).
    """

    def __init__(self, vocabulary: int, tokens: int, width: int = 384) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(tokens, width))
        self.layers = nn.Sequential(*(GptLayer(width, 6, causal=True) for _ in range(6)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Any) -> Any:
        """Scores behind the last token."""
        x = self.norm(self.layers(self.words(tokens) + self.places))
        return self.head(x[:, -1])


class Speech(nn.Module):  # type: ignore[misc]
    """The shape of Whisper's base encoder: a spectrogram (n, 80, 3000) to (n, 1500, 512)."""

    def __init__(self, bands: int, frames: int, width: int = 512) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.places = nn.Parameter(torch.randn(frames // 2, width))
        self.layers = nn.Sequential(*(GptLayer(width, 8, causal=False) for _ in range(6)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        """A vector for every second frame."""
        gelu = nn.functional.gelu
        x = gelu(self.second(gelu(self.first(x)))).transpose(1, 2)
        return self.norm(self.layers(x + self.places))


class UNet(nn.Module):  # type: ignore[misc]
    """U-Net of Ronneberger et al. 2015 with batch normalisation and half its widths: images
    (n, 3, h, w) to scores of classes (n, 21, h, w).
    """

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256, 512)) -> None:
        super().__init__()
        sides = list(pairwise(widths))
        self.first = self._pair(3, widths[0])
        self.down = nn.ModuleList(self._pair(a, b) for a, b in sides)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(sides))
        self.joined = nn.ModuleList(self._pair(2 * a, a) for a, _ in reversed(sides))
        self.head = nn.Conv2d(widths[0], SEGMENTED, 1)

    @staticmethod
    def _pair(given: int, made: int) -> Any:
        """Two convolutions of 3 x 3, each normalised and rectified."""
        layers: list[Any] = []
        for before in (given, made):
            layers += [nn.Conv2d(before, made, 3, padding=1, bias=False), nn.BatchNorm2d(made)]
            layers.append(nn.ReLU())
        return nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        """Down to a sixteenth of the sides, and up beside what was there on the way."""
        kept = [self.first(x)]
        for pair in self.down:
            kept.append(pair(nn.functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, pair in zip(self.up, self.joined, strict=True):
            x = pair(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


class ConvSiLU(nn.Sequential):  # type: ignore[misc]
    """A convolution, batch normalisation and SiLU."""

    def __init__(self, given: int, made: int, kernel: int = 1, stride: int = 1) -> None:
        conv = nn.Conv2d(given, made, kernel, stride, kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(made), nn.SiLU())


class CrossStage(nn.Module):  # type: ignore[misc]
    """A cross-stage partial block: half the channels pass by, the others go through convolutions,
    all that they were on the way is joined. added: whether each pair adds its input.
    """

    def __init__(self, given: int, made: int, count: int, added: bool) -> None:
        super().__init__()
        half = made // 2
        self.added = added
        self.split = ConvSiLU(given, made)
        self.pairs = nn.ModuleList(
            nn.Sequential(ConvSiLU(half, half, 3), ConvSiLU(half, half, 3)) for _ in range(count)
        )
        self.joined = ConvSiLU((2 + count) * half, made)

    def forward(self, x: Any) -> Any:
        """x (n, given, h, w) to (n, made, h, w)."""
        parts = list(self.split(x).chunk(2, 1))
        for pair in self.pairs:
            more = pair(parts[-1])
            parts.append(parts[-1] + more if self.added else more)
        return self.joined(torch.cat(parts, 1))


class PooledPyramid(nn.Module):  # type: ignore[misc]
    """Pools of 5 x 5, one behind the other, joined with what they are of."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.less, self.joined = ConvSiLU(width, width // 2), ConvSiLU(2 * width, width)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Any) -> Any:
        """x (n, width, h, w) to the same shape."""
        parts = [self.less(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.joined(torch.cat(parts, 1))


class Detector(nn.Module):  # type: ignore[misc]
    """The shape of a small YOLO: images (n, 3, 640, 640) to sides of boxes and scores of classes
    (n, 4 + 80, 8400), at an eighth, a sixteenth and a thirty-second of the image's sides.
    """

    def __init__(self, widths: Sequence[int] = (16, 32, 64, 128, 256)) -> None:
        super().__init__()
        self.first = ConvSiLU(3, widths[0], 3, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(ConvSiLU(a, b, 3, 2), CrossStage(b, b, count, added=True))
            for (a, b), count in zip(pairwise(widths), (1, 2, 2, 1), strict=True)
        )
        self.pyramid = PooledPyramid(widths[-1])
        scales = list(pairwise(widths[-STRIDES:]))
        self.up = nn.ModuleList(CrossStage(a + b, a, 1, added=False) for a, b in reversed(scales))
        self.less = nn.ModuleList(ConvSiLU(a, a, 3, 2) for a, _ in scales)
        self.down = nn.ModuleList(CrossStage(a + b, b, 1, added=False) for a, b in scales)
        self.boxes = nn.ModuleList(self._head(width, 4) for width in widths[-STRIDES:])
        self.classes = nn.ModuleList(self._head(width, DETECTED) for width in widths[-STRIDES:])

    @staticmethod
    def _head(width: int, made: int) -> Any:
        layers = (ConvSiLU(width, 64, 3), ConvSiLU(64, 64, 3), nn.Conv2d(64, made, 1))
        return nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        """Boxes of every place at every scale, and what may be in them."""
        x = self.first(x)
        seen: list[Any] = []
        for stage in self.stages:
            x = stage(x)
            seen.append(x)
        *_, fine, middle, _ = seen
        ways = [self.pyramid(x)]
        for block, beside in zip(self.up, (middle, fine), strict=True):
            larger = nn.functional.interpolate(ways[-1], scale_factor=2.0, mode="nearest")
            ways.append(block(torch.cat([larger, beside], 1)))
        scales = [ways.pop()]
        for less, block in zip(self.less, self.down, strict=True):
            scales.append(block(torch.cat([less(scales[-1]), ways.pop()], 1)))
        found = [
            torch.cat([boxes(one).exp(), classes(one).sigmoid()], 1).flatten(2)
            for boxes, classes, one in zip(self.boxes, self.classes, scales, strict=True)
        ]
        return torch.cat(found, 2)
