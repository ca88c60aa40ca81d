"""The networks of the zoo in PyTorch with seeded random weights: torchvision's, transformers', and
those of `benchmarks.torch_networks`.

Weights as torchvision begins with would not do: batch normalisation knows no statistics yet, so
signals fade or grow from layer to layer, and vit_b_16 has a head of zeros.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks import torch_networks
from benchmarks.zoo import INPUT, OUTPUT, SPECTROGRAM, Network
from glnn.errors import GlnnError

OPSET = 17
WEIGHTS = ".pt"
CALIBRATED = 4  # samples that statistics are taken of
OPERATORS = ("nms", "qnms")  # that torchvision describes as it is imported
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def built(network: Network, seed: int = 0) -> Any:
    """`network` as a module in eval mode on the CPU: the same weights for the same `seed`.

    Raises GlnnError where torchvision or transformers is needed and missing.
    """
    torch.manual_seed(seed)
    net = _module(network)
    _spread(net)
    _calibrate(net, torch.from_numpy(network.input(CALIBRATED, seed=2)))
    return net


def loaded(network: Network, path: Path) -> Any:
    """`network` as a module in eval mode on the CPU, with the weights of the file `path`."""
    net = _module(network)
    net.load_state_dict(torch.load(path, weights_only=True))
    return net


def _module(network: Network) -> Any:
    """`network` in eval mode with whatever weights it begins with."""
    own = OWN.get(network.name)
    net = own(network) if own else _torchvision(network.name)
    return net.eval().requires_grad_(False)


class Segments(nn.Module):  # type: ignore[misc]
    """A segmentation of torchvision's: images (n, 3, h, w) to scores (n, 21, h, w)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        make = getattr(torchvision_models().segmentation, name)
        self.net = make(weights=None, weights_backbone=None)

    def forward(self, x: Any) -> Any:
        """Its only result, out of its dictionary."""
        return self.net(x)["out"]


class DistilBert(nn.Module):  # type: ignore[misc]
    """transformers' DistilBERT: tokens (n, 128) of int64 to their states (n, 128, 768)."""

    def __init__(self) -> None:
        super().__init__()
        models = transformers_models()
        self.net = models.DistilBertModel(models.DistilBertConfig())

    def forward(self, tokens: Any) -> Any:
        """The states of the last layer."""
        return self.net(tokens).last_hidden_state


class Gpt2(nn.Module):  # type: ignore[misc]
    """transformers' GPT-2: a prompt, tokens (n, 64) of int64, to scores of the next (n, 50257)."""

    def __init__(self) -> None:
        super().__init__()
        models = transformers_models()
        self.net = models.GPT2LMHeadModel(models.GPT2Config(use_cache=False))

    def forward(self, tokens: Any) -> Any:
        """Scores behind the last token. Blocks are called one by one: without a mask each is
        causal, where the model would look for several texts in one row, which ONNX cannot say.
        """
        parts = self.net.transformer
        x = parts.wte(tokens) + parts.wpe.weight[: tokens.shape[1]]
        for block in parts.h:
            x = block(x)
        return self.net.lm_head(parts.ln_f(x)[:, -1])


class WhisperTiny(nn.Module):  # type: ignore[misc]
    """transformers' encoder of whisper-tiny: a spectrogram (n, 80, 3000) to (n, 1500, 384)."""

    def __init__(self) -> None:
        super().__init__()
        models = transformers_models()
        config = models.WhisperConfig(  # whose defaults are whisper-tiny's
            num_mel_bins=SPECTROGRAM[0], d_model=384, encoder_layers=4, encoder_attention_heads=6
        )
        self.net = models.WhisperModel(config).encoder

    def forward(self, x: Any) -> Any:
        """A state for every second frame."""
        return self.net(x).last_hidden_state


OWN: dict[str, Callable[[Network], Any]] = {
    "minilm_like": lambda network: torch_networks.Sentences(network.tokens, *network.sample),
    "lstm": lambda _: torch_networks.States(),
    "lraspp_mobilenet_v3": lambda _: Segments("lraspp_mobilenet_v3_large"),
    "deeplabv3_mobilenet_v3": lambda _: Segments("deeplabv3_mobilenet_v3_large"),
    "distilbert": lambda _: DistilBert(),
    "gpt2": lambda _: Gpt2(),
    "whisper_tiny": lambda _: WhisperTiny(),
    "yolo_like": lambda _: torch_networks.Detector(),
    "unet_like": lambda _: torch_networks.UNet(),
    "gpt_like": lambda network: torch_networks.Prompt(network.tokens, *network.sample),
    "whisper_like": lambda network: torch_networks.Speech(*network.sample),
}
"""How those are made that are not torchvision's by that name."""


def _torchvision(name: str) -> Any:
    """The model of that name, without further heads, which are for training."""
    headed = name in ("inception_v3", "googlenet")
    more = {"aux_logits": False, "init_weights": True} if headed else {}
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


def transformers_models() -> Any:
    """transformers. Raises GlnnError without it."""
    with suppress(GlnnError):
        torchvision_models()  # which transformers imports where it is installed
    try:
        import transformers
    except ImportError as error:
        raise GlnnError(f"this network is transformers', which is missing: {error}") from None
    return transformers


def export(net: Any, network: Network, path: Path) -> None:
    """Write `net`, which is `network`, to `path` as an ONNX file of any batch, and its weights for
    `loaded` to a file beside it, which ends in .pt.
    """
    torch.save(net.state_dict(), path.with_suffix(WEIGHTS))
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
