"""Finding a model: built by name with seeded weights, bundled with glnn, or in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from math import sqrt
from pathlib import Path

import numpy as np

from glnn import data
from glnn.core.process import COLLECTOR
from glnn.core.progress_bar import report_work
from glnn.errors import ModelError, shown
from glnn.images import Preprocessing, metadata
from glnn.layers import (
    AvgPool2d,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Softmax,
)
from glnn.model import json_format
from glnn.model.files import parse_json, read
from glnn.model.model import Model
from glnn.model.weight_files import is_weights
from glnn.registry import module_for

BLOCKS = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
"""Convolutions of each block of VGG-16, and their output channels."""


def vgg16(
    configuration: str = "D", *, size: int = 224, classes: int = 1000, seed: int = 0
) -> Model:
    """VGG-16 of Simonyan and Zisserman 2014, table 1: x (n, 3, size, size) to (n, classes).

    configuration: D, all kernels 3 x 3, or C, where the third of a block is 1 x 1. Rovder 2019
    calls its network model C, yet finds 74% of the parameters in the first fully-connected layer,
    which is so in D (in C it would be 77%). size: a multiple of 32. The weights are He's, so that
    signals keep their magnitude through the layers. Its metadata describe preprocessing as for
    ImageNet. Raises ModelError for other arguments.
    """
    if configuration not in ("C", "D"):
        raise ModelError(f"vgg16: configuration must be C or D, got {configuration!r}")
    if not isinstance(size, int) or size < 32 or size % 32:
        raise ModelError(f"vgg16: size must be a multiple of 32, got {size!r}")
    layers: dict[str, Layer] = {}
    channels = 3
    for block, (count, width) in enumerate(BLOCKS, 1):
        for place in range(1, count + 1):
            kernel = 1 if configuration == "C" and place == 3 else 3
            layers[f"conv{block}_{place}"] = Conv2d(channels, width, kernel, padding=kernel // 2)
            layers[f"relu{block}_{place}"] = ReLU()
            channels = width
        layers[f"pool{block}"] = MaxPool2d(2)
    layers["flatten"] = Flatten()
    features = channels * (size // 32) ** 2
    for number, (inputs, outputs) in enumerate(
        ((features, 4096), (4096, 4096), (4096, classes)), start=6
    ):
        layers[f"fc{number}"] = Linear(inputs, outputs)
        layers[f"relu{number}"] = ReLU()
    del layers["relu8"]
    layers["softmax"] = Softmax()
    _seed(layers, seed)
    name = "vgg16" if configuration == "D" else "vgg16-c"
    imagenet = metadata(Preprocessing.imagenet(size))
    return Model.sequential(list(layers.values()), (3, size, size), name, list(layers), imagenet)


def lenet(*, seed: int = 0) -> Model:
    """LeNet-5 of LeCun 1998 as Rovder 2019 runs it, sigmoids and 2 x 2 averages, untrained:
    x (n, 1, 28, 28) to (n, 10).
    """
    layers: dict[str, Layer] = {
        "c1": Conv2d(1, 6, 5, padding=2),
        "sigmoid1": Sigmoid(),
        "s2": AvgPool2d(2),
        "c3": Conv2d(6, 16, 5),
        "sigmoid3": Sigmoid(),
        "s4": AvgPool2d(2),
        "flatten": Flatten(),
        "c5": Linear(400, 120),
        "sigmoid5": Sigmoid(),
        "f6": Linear(120, 84),
        "sigmoid6": Sigmoid(),
        "out": Linear(84, 10),
        "softmax": Softmax(),
    }
    _seed(layers, seed)
    return Model.sequential(list(layers.values()), (1, 28, 28), "lenet-untrained", list(layers))


BUILDERS: Mapping[str, Callable[[], Model]] = {
    "vgg16": vgg16,
    "vgg16-c": lambda: vgg16("C"),
    "lenet-untrained": lenet,
}
"""Functions that build the models of `glnn.load`, by name."""


def _seed(layers: Mapping[str, Layer], seed: int) -> None:
    """Give every layer normal weights of variance 2 / fan-in, 1 / fan-in in the last, and biases
    a tenth of that size.
    """
    weighted = [layer for layer in layers.values() if isinstance(layer, (Conv2d, Linear))]
    for place, layer in enumerate(weighted):
        generator = np.random.default_rng([seed, place])
        gain = 1.0 if layer is weighted[-1] else 2.0
        shape = layer.shapes["weight"]
        scale = np.float32(sqrt(gain / np.prod(shape[1:])))
        layer.weight = scale * generator.standard_normal(shape, np.float32)
        layer.bias = 0.1 * scale * generator.standard_normal(shape[:1], np.float32)
        layer.mark_initial()


MODULE = "torch.nn.modules.module.Module"
"""The base of PyTorch's modules, by which one is recognised without importing torch."""
NEAR = 0.85
"""The least similarity of a name to a known one that is suggested; 1 is equality."""


def load(source: str | os.PathLike[str], *, untrained: bool = False) -> Model:
    """Load or build the model `source`.

    source: the name of a bundled model (`lenet`) or of one that is built with seeded weights
    (`vgg16`, `vgg16-c`, `lenet-untrained`), or the path of an .onnx file, or of a .json file,
    glnn's own or a Network Definition of Rovder 2017. untrained: True to leave the parameters of
    glnn's own .json file at their initial values; the file then needs no weights. Raises
    ModelError, in one sentence, for every fault.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise ModelError(
            f"a model must be a name or a path, got {type(source).__name__}{_torch_advice(source)}"
        )
    work = report_work("loading", os.path.basename(os.fspath(source)))
    with work, COLLECTOR.relaxed():
        return _load(source, untrained)


def _torch_advice(source: object) -> str:
    """Return advice on converting `source` where it is a PyTorch module, else ""."""
    if any(f"{one.__module__}.{one.__name__}" == MODULE for one in type(source).__mro__):
        return ": a PyTorch module becomes one by glnn.Model.from_torch(module, example)"
    return ""


def _load(source: str | os.PathLike[str], untrained: bool) -> Model:
    """Find and read the model called `source`, as `load` does."""
    if str(source) in BUILDERS:
        return BUILDERS[str(source)]()
    if not str(source):
        raise ModelError("a model must be a name or a path, got an empty text")
    path = Path(source)
    if str(source) in data.MODELS:
        path = data.model(str(source))
    if (
        path.suffix in (".json", ".onnx")
        and not path.exists()
        and (suggestion := _suggestion(path))
    ):
        raise ModelError(f"{path}: no such file: {suggestion}")
    if path.suffix == ".onnx":
        result: Model = module_for("read onnx").load(path)
        return result
    if path.suffix != ".json":
        names = ", ".join([*data.MODELS, *BUILDERS])
        if is_weights(path):
            raise ModelError(
                f"{path}: holds weights alone: make or load the model, and then "
                "model.load_state_dict(path), or glnn convert with --weights"
            )
        if path.exists() and (path.suffix == ".gguf" or (path / "config.json").is_file()):
            raise ModelError(
                f"{path}: is a language model, which glnn chat, generate, serve, plan and bench "
                "take, and glnn.LanguageModel in Python"
            )
        expected = f"expected a .json or .onnx file, or one of {names}"
        text = " ".join(filter(None, (_suggestion(path), expected)))
        raise ModelError(f"{_missing_text(path)}: {text}")
    while True:
        content = read(path)
        try:
            return _parse(content, str(path), path, untrained)
        except ModelError:
            if read(path) == content:
                raise
        # It was saved again meanwhile, and its former weights removed: read it again.


def _missing_text(path: Path) -> str:
    """Return the error text for a name without a known ending, which may be a file's."""
    try:
        exists = path.exists()
    except (OSError, ValueError):  # the name is too long, or has a zero byte
        return f"unknown model {shown(str(path))}"
    if exists:
        what = f"unknown ending {path.suffix!r}" if path.suffix else "unknown kind of file"
        return f"{path}: {'is not a file' if path.is_dir() else what}"
    looks_like_path = path.suffix or len(path.parts) > 1
    return f"{path}: no such file" if looks_like_path else f"unknown model {str(path)!r}"


def _suggestion(path: Path) -> str:
    """Return a question that suggests the known model or file with the name most like `path`."""
    candidates = [*data.MODELS, *BUILDERS]
    try:
        neighbours = [one for one in path.parent.iterdir() if one.suffix in (".json", ".onnx")]
    except (OSError, ValueError):
        neighbours = []
    candidates += [str(one) for one in neighbours] + [
        str(one.with_suffix("")) for one in neighbours
    ]
    near = get_close_matches(str(path), candidates, 1, NEAR)
    if not near:
        return ""
    match = next((str(one) for one in neighbours if str(one.with_suffix("")) == near[0]), near[0])
    return f"did you mean {match}?"


def load_bytes(content: bytes) -> Model:
    """Load the model in `content`, that of a .json or .onnx file, which must not refer to files."""
    if content[:1] != b"{" and not content.lstrip().startswith(b"{"):
        result: Model = module_for("read onnx").load_bytes(content)
        return result
    return _parse(content, "model given as bytes", None)


def _parse(content: bytes, where: str, path: Path | None, untrained: bool = False) -> Model:
    try:
        document = parse_json(content, where)
        if "format" in document:
            return json_format.parse(document, where, path, untrained)
        model: Model = module_for("read rovder").parse(document, where, path)
        return model
    except RecursionError:  # raised while an error message quotes the document
        raise ModelError(f"{where}: nested too deeply") from None
