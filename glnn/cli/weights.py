"""Weights from a file of their own, for the verbs that take a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import rich_click as click

from glnn.model import Model, load

Command = TypeVar("Command", bound=Callable[..., Any])


def weights_option(command: Command) -> Command:
    """`--weights FILE`."""
    return click.option(
        "--weights",
        metavar="FILE",
        help="The model's parameters by PyTorch's names: .safetensors, .npz, .pt or .pth.",
    )(command)


def load_with(source: str, weights: str | None) -> Model:
    """The model called `source`, its parameters from the file `weights` where there is one.

    The model's own need not be there then. Raises ModelError for every fault.
    """
    if weights is None:
        return load(source)
    model = load(source, untrained=True)
    model.load_state_dict(weights)
    return model
