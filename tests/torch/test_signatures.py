"""Layers against the classes of torch.nn that are called so: their arguments and their results."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from glnn.layers import BY_NAME, Layer  # noqa: E402  # after what may not be there

PAIRS = sorted({layer.__name__ for layer in BY_NAME.values() if hasattr(torch.nn, layer.__name__)})
IMAGE = (2, 4, 7, 9)
BY_NAMES, BY_PLACES = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
DEPRECATED = {"Hardtanh": ("min_value", "max_value")}
"""What PyTorch takes with a warning."""
INDICES = np.array([[1, 6, 0], [2, 2, 5]])
Case = tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]


def case(*arguments: Any, x: Any = IMAGE, more: tuple[Any, ...] = (), **named: Any) -> Case:
    """A construction, and its inputs: shapes of random floats, arrays, or tuples of these."""
    return arguments, named, (x, *more)


def of_images(*cases: tuple[Any, ...], ranks: tuple[int, ...] = (1, 2, 3)) -> dict[str, list[Case]]:
    """Of classes that are called alike for one, two and three dimensions: {"Pool1d": ...}.

    cases: a class's name without the dimensions, its arguments, and those that have names.
    """
    sizes = {1: (2, 4, 11), 2: (2, 4, 8, 7), 3: (1, 4, 5, 6, 7)}
    found: dict[str, list[Case]] = {}
    for name, arguments, named in cases:
        for rank in ranks:
            one = case(*arguments, x=sizes[rank], **named)
            found.setdefault(f"{name}{rank}d", []).append(one)
    return found


CASES: dict[str, list[Case]] = {
    **{
        name: [case()]
        for name in (
            *("AlphaDropout", "CELU", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "ELU"),
            *("FeatureAlphaDropout", "Flatten", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish"),
            *("Hardtanh", "Identity", "LeakyReLU", "LogSigmoid", "Mish", "PReLU", "RReLU", "ReLU"),
            *("ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax2d", "Softplus", "Softshrink"),
            *("Softsign", "Tanh", "Tanhshrink", "Softmax", "LogSoftmax", "Softmin"),
        )
    },
    **of_images(
        ("AdaptiveAvgPool", (3,), {}),
        ("AdaptiveMaxPool", (3,), {}),
        ("AvgPool", (3, 2, 1, True, False), {}),
        ("AvgPool", (2,), {}),
        ("BatchNorm", (4, 1e-3), {}),
        ("CircularPad", (2,), {}),
        ("ConstantPad", (2, 1.5), {}),
        ("Conv", (4, 6, 3, 2, 1, 1, 2), {}),
        ("Conv", (4, 6, 3), {"padding": "same", "padding_mode": "circular", "bias": False}),
        ("ConvTranspose", (4, 6, 3, 2, 1, 1, 2), {}),
        ("InstanceNorm", (4, 1e-3), {"affine": True}),
        ("InstanceNorm", (4,), {"track_running_stats": True}),
        ("LPPool", (2, 3, 2), {}),
        ("MaxPool", (3, 2, 1, 1, False, True), {}),
        ("ReflectionPad", (2,), {}),
        ("ReplicationPad", (2,), {}),
        ("ZeroPad", (2,), {}),
    ),
    "Bilinear": [
        case(5, 3, 4, x=(2, 6, 5), more=((2, 6, 3),)),
        case(2, 3, 1, False, x=(2,), more=((3,),)),
    ],
    "ChannelShuffle": [case(2)],
    "CosineSimilarity": [case(more=(IMAGE,)), case(-1, 0.5, x=(3, 5), more=((3, 5),))],
    "Embedding": [case(7, 3, x=INDICES), case(7, 3, 2, x=INDICES)],
    "EmbeddingBag": [
        *(case(7, 3, mode=mode, x=INDICES) for mode in ("sum", "mean", "max")),
        *(case(7, 3, mode=m, padding_idx=2, x=INDICES) for m in ("sum", "mean", "max")),
        case(7, 3, padding_idx=2, x=np.full((2, 3), 2)),
    ],
    "Fold": [case((4, 5), 2, x=(2, 12, 12))],
    "GLU": [case(1), case(x=(3, 8)), case(0, x=(2, 3))],
    "GRU": [
        case(3, 4, 2, bidirectional=True, x=(5, 2, 3)),
        case(3, 4, bias=False, batch_first=True, x=(2, 5, 3), more=((1, 2, 4),)),
        case(3, 4, x=(5, 3)),
    ],
    "GRUCell": [case(3, 4, x=(2, 3)), case(3, 4, False, x=(3,), more=((4,),))],
    "GroupNorm": [case(2, 4, 1e-2), case(4, 4, affine=False)],
    "LSTM": [
        case(3, 4, 2, bidirectional=True, x=(5, 2, 3)),
        case(3, 4, 2, False, True, x=(2, 5, 3), more=(((2, 2, 4), (2, 2, 4)),)),
        case(3, 4, proj_size=2, x=(5, 3), more=(((1, 2), (1, 4)),)),
    ],
    "LSTMCell": [case(3, 4, x=(2, 3)), case(3, 4, False, x=(3,), more=(((4,), (4,)),))],
    "LayerNorm": [case((7, 9), 1e-3), case(9, bias=False), case(9, elementwise_affine=False)],
    "Linear": [case(5, 3, x=(2, 4, 5)), case(5, 3, False, x=(5,))],
    "LocalResponseNorm": [case(3, 0.5, 0.6, 2.0), case(4, 0.5)],
    "MultiheadAttention": [
        case(6, 2, x=(3, 2, 6), more=((5, 2, 6), (5, 2, 6))),
        case(6, 3, 0.0, False, True, True, 5, 4, True, x=(2, 3, 6), more=((2, 5, 5), (2, 5, 4))),
        case(6, 2, add_zero_attn=True, x=(3, 6), more=((5, 6), (5, 6))),
        case(6, 2, add_bias_kv=True, x=(3, 2, 6), more=((5, 2, 6), (5, 2, 6))),
    ],
    "PixelShuffle": [case(2)],
    "PixelUnshuffle": [case(2, x=(2, 3, 4, 6))],
    "RMSNorm": [case((7, 9)), case(9, 0.1, False)],
    "RNN": [
        case(3, 4, 2, "relu", bidirectional=True, x=(5, 2, 3)),
        case(3, 4, bias=False, batch_first=True, x=(2, 5, 3), more=((1, 2, 4),)),
    ],
    "RNNCell": [case(3, 4, x=(2, 3)), case(3, 4, nonlinearity="relu", x=(3,), more=((4,),))],
    "Threshold": [case(0.1, -3)],
    "Unflatten": [case(1, (2, -1))],
    "Unfold": [case((2, 3), 1, 1, 2)],
    "Upsample": [
        case(scale_factor=2),
        case((5, 11), mode="bilinear", align_corners=True),
        case(3, mode="linear", x=(2, 4, 7)),
    ],
    "UpsamplingBilinear2d": [case((5, 11))],
    "UpsamplingNearest2d": [case(scale_factor=2)],
}
"""By name; names of layers that there are not are passed over."""
CASES |= {
    "CELU": [case(0.7)],
    "Dropout": [case(0.3, True)],
    "ELU": [case(), case(0.3)],
    "Dropout1d": [case(x=(2, 4, 9))],
    "Flatten": [case(), case(2, -1)],
    "GELU": [case(), case("tanh")],
    "Hardtanh": [case(-0.4, 0.9)],
    "PReLU": [case(), case(4)],
    "RReLU": [case(), case(0.1, 0.5)],
    "Softmax": [case(), case(-1), case(x=(5,))],
    "Softmin": [case(), case(-1)],
    "Softplus": [case(), case(2, 1)],
}


def parameters(layer: Any) -> dict[str, Any]:
    """A constructor's that have names, and their defaults; `...` where there is none."""
    found = inspect.signature(layer).parameters.values()
    kinds = {one.kind for one in found}
    if not issubclass(layer, Layer) and kinds == {BY_NAMES, BY_PLACES}:
        own = layer.__init__ is not torch.nn.Module.__init__
        return overloaded(layer) if own else {}
    return {
        one.name: ... if one.default is one.empty else one.default
        for one in found
        if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    }


def overloaded(layer: Any) -> dict[str, Any]:
    """The same where a class only says it in the first of its `typing.overload`s, if it has any."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(layer)))
    (whole,) = tree.body
    assert isinstance(whole, ast.ClassDef)
    for node in whole.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and node.args.args[1:]:
            names = [one.arg for one in node.args.args[1:]]
            defaults = [ast.literal_eval(one) for one in node.args.defaults]
            return dict(zip(names, [...] * (len(names) - len(defaults)) + defaults, strict=True))
    return {}


@pytest.mark.parametrize("name", PAIRS)
def test_arguments_are_those_of_pytorch(name: str) -> None:
    theirs = parameters(getattr(torch.nn, name))
    for gone in DEPRECATED.get(name, ()):
        del theirs[gone]
    assert list(parameters(BY_NAME[name]).items()) == list(theirs.items())


@pytest.mark.parametrize("name", PAIRS)
def test_results_are_those_of_pytorch(name: str) -> None:
    assert name in CASES, f"test_signatures.CASES has no construction of {name}"
    for arguments, named, inputs in CASES[name]:
        torch.manual_seed(7)
        theirs = getattr(torch.nn, name)(*arguments, **named).eval()
        ours = brought(theirs, BY_NAME[name](*arguments, **named))
        given = [tensors(one) for one in inputs]
        with torch.no_grad():
            wanted = theirs(*given)
        if name == "MultiheadAttention":
            wanted = wanted[0]  # the other is its weights, which no layer gives
        found = ours(*map(arrays, given), backend="cpu")
        for got, want in zip(flat(found), flat(arrays(wanted)), strict=True):
            assert got.shape == want.shape, (ours, got.shape, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=repr(ours))


def brought(theirs: Any, ours: Layer) -> Layer:
    """`ours` with the parameters of `theirs`, which become others than there are at first."""
    state = theirs.state_dict()
    state.pop("num_batches_tracked", None)
    for name, tensor in state.items():
        tensor += 0.3 * torch.rand(tensor.shape)  # in place, and variances stay positive
        setattr(ours, name.replace(".", "_"), tensor.numpy())
    assert {name.replace(".", "_") for name in state} == set(ours.shapes)
    return ours


def tensors(given: Any) -> Any:
    """An array as a tensor; of a shape, random numbers; of several, each."""
    if isinstance(given, np.ndarray):
        return torch.from_numpy(given)
    if all(isinstance(one, int) for one in given):
        return torch.randn(given)
    return tuple(map(tensors, given))


def arrays(given: Any) -> Any:
    """Tensors as arrays, nested as they are."""
    return tuple(map(arrays, given)) if isinstance(given, tuple) else given.numpy()


def flat(found: Any) -> Iterator[np.ndarray]:
    """All arrays of nested tuples, in order."""
    if isinstance(found, np.ndarray):
        yield found
        return
    for one in found:
        yield from flat(one)
