"""The fourteen networks in PyTorch with seeded random weights: torchvision's, and two of our own.

Weights as torchvision begins with would not do: batch normalisation knows no statistics yet, so
signals fade or grow from layer to layer, and vit_b_16 has a head of zeros.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.zoo import INPUT, OUTPUT, VOCABULARY, Network
from glnn.errors import GlnnError

TOKENS, WIDTH, HEADS, LAYERS = 128, 384, 6, 6  # of minilm_like
OPSET = 17
CALIBRATED = 4  # samples that statistics are taken of
OPERATORS = ("nms", "qnms")  # that torchvision describes as it is imported
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def built(network: Network, seed: int = 0) -> Any:
    """`network` as a module in eval mode on the CPU: the same weights for the same `seed`.

    Raises GlnnError where torchvision is needed and missing.
    """
    torch.manual_seed(seed)
    make = OWN.get(network.name)
    net = make() if make else _torchvision(network.name)
    _spread(net)
    net.eval().requires_grad_(False)
    _calibrate(net, torch.from_numpy(network.input(CALIBRATED, seed=2)))
    return net


class Block(nn.Module):  # type: ignore[misc]
    """A layer of BERT: attention and a perceptron, each added to its input and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.joined = nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        """x (n, tokens, width) to the same shape."""
        split = self.qkv(x).reshape(-1, TOKENS, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(split[0], split[1], split[2])
        x = self.norms[0](x + self.joined(seen.transpose(1, 2).reshape(-1, TOKENS, WIDTH)))
        return self.norms[1](x + self.down(nn.functional.gelu(self.up(x))))


class Sentences(nn.Module):  # type: ignore[misc]
    """The shape of MiniLM-L6: tokens (n, 128) of int64 to one vector a text (n, 384)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)))

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


class Segments(nn.Module):  # type: ignore[misc]
    """torchvision's segmentation by lite R-ASPP: images (n, 3, h, w) to scores (n, 21, h, w)."""

    def __init__(self) -> None:
        super().__init__()
        models = torchvision_models()
        self.net = models.segmentation.lraspp_mobilenet_v3_large(
            weights=None, weights_backbone=None
        )

    def forward(self, x: Any) -> Any:
        """Its only result, out of its dictionary."""
        return self.net(x)["out"]


OWN: dict[str, Callable[[], Any]] = {
    "minilm_like": Sentences,
    "lstm": States,
    "lraspp_mobilenet_v3": Segments,
}


def _torchvision(name: str) -> Any:
    """The model of that name; inception_v3 without its second head, which is for training."""
    more = {"aux_logits": False, "init_weights": True} if name == "inception_v3" else {}
    return torchvision_models().get_model(name, weights=None, **more)


def torchvision_models() -> Any:
    """torchvision.models, also where its C++ operators need a CUDA that PyTorch is without: the
    networks use none. Raises GlnnError without torchvision.
    """
    try:
        import torchvision
    except ImportError as error:
        raise GlnnError(f"this network is torchvision's, which is missing: {error}") from None
    except RuntimeError:  # an operator that it wants to describe was not loaded
        for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        for operator in OPERATORS:
            torch.library.define(f"torchvision::{operator}", SCHEMA)
        import torchvision
    return torchvision.models


def _spread(net: Any) -> None:
    """Scales of normalisation near one, shifts that vary; what is initially zero is random.

    Shifts of batch normalisation are mostly above zero: with none of them, fifty layers of ReLU
    make a rounding error a hundred times as large, which weights that were trained do not.
    """
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.9, 1.1)
            shifts = (0.0, 1.0) if isinstance(module, nn.BatchNorm2d) else (-0.1, 0.1)
            nn.init.uniform_(module.bias, *shifts)
    for name, parameter in net.named_parameters():
        if name.endswith("layer_scale"):  # ConvNeXt's blocks would add a millionth
            nn.init.uniform_(parameter, 0.2, 0.4)
        elif parameter.ndim > 1 and not parameter.any():  # a head or a token of zeros
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)


def _calibrate(net: Any, x: Any) -> None:
    """The statistics of every batch normalisation, of `x`."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the mean of all that was seen, that is of `x`
        norm.reset_running_stats()
        norm.train()
    if norms:
        net(x)
    for norm in norms:
        norm.eval()


def export(net: Any, network: Network, path: Path) -> None:
    """Write `net`, which is `network`, to `path` as an ONNX file of any batch."""
    ends = {name: {0: "N"} for name in (INPUT, OUTPUT)}
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operator, of which ONNX knows nothing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter itself, and of batches of an LSTM
            torch.onnx.export(
                net,
                (torch.from_numpy(network.input(2)),),
                str(path),
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_axes=ends,
                dynamo=False,  # a file in one piece, with an operator for each of PyTorch's
            )
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def result(net: Any, x: NDArray[Any]) -> NDArray[Any]:
    """What `net` makes of `x`, on the CPU."""
    with torch.no_grad():
        found: NDArray[Any] = net(torch.from_numpy(x)).numpy()
    return found
