"""A model's steps with pointwise work joined, as every backend is asked for them."""

from __future__ import annotations

import glnn
from glnn.backends import open_backend
from glnn.compiler.memory_budget import Outline
from glnn.core.types import Shape


def joined(model: glnn.Model, shape: Shape) -> Outline:
    """The outline of `model`, which has one input, of this shape, on the cpu backend.

    A kernel of its own for each step, no reorders, and views are no steps.
    """
    (given,) = model.inputs
    return Outline.create(model.graph, open_backend("cpu"), {given.name: shape})
