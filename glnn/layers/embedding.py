"""Embedding layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from glnn.errors import ShapeError
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Value
from glnn.graph.operators import Detached, Gather, Pointwise, Unsqueeze
from glnn.layers.arguments import flag, index, integer, number, plain, with_unusual
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope
from glnn.types import DType


class Embedding(Layer):
    """The rows of `weight` that x, int32 or int64 of any shape, names: (..., embedding_dim).

    weight: (num_embeddings, embedding_dim), initially normal, and 0 in the row `padding_idx`,
    which training does not change.
    Indices out of range are the nearest one in range; negative ones count from the end. max_norm:
    None, as weights stay as they are. norm_type, scale_grad_by_freq, sparse: for training only.
    device, dtype: None and None or float32; parameters are float32.
    """

    takes = (DType.int32, DType.int64)
    weight = Parameter[Array]()

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        plain("Embedding", device, dtype)
        self.num_embeddings = integer("Embedding num_embeddings", num_embeddings)
        self.embedding_dim = integer("Embedding embedding_dim", embedding_dim)
        self.padding_idx = self._row(padding_idx)
        if max_norm is not None:
            raise ShapeError("Embedding max_norm must be None: weights stay as they are")
        self.norm_type = number("Embedding norm_type", norm_type, 0)
        self.scale_grad_by_freq = flag("Embedding scale_grad_by_freq", scale_grad_by_freq)
        self.sparse = flag("Embedding sparse", sparse)
        super().__init__(
            Gather(0), {"weight": (self.num_embeddings, self.embedding_dim)}, seed=seed
        )

    def _row(self, place: int | None) -> int | None:
        if place is None:
            return None
        found, count = index("Embedding padding_idx", place), self.num_embeddings
        if not -count <= found < count:
            raise ShapeError(
                f"Embedding padding_idx must be from {-count} to {count - 1}, got {found}"
            )
        return found % count

    def initial(self, name: str) -> Array:
        generator = np.random.default_rng(self._seed)
        values = generator.standard_normal(self.shapes[name], np.float32)
        if self.padding_idx is not None:
            values[self.padding_idx] = 0
        return values

    def express(self, scope: Scope, *inputs: Value) -> Value:
        weight = self.variable(scope, "weight")
        if scope.training is None or self.padding_idx is None:
            return scope.result(self.op, weight, *inputs)
        rows = scope.add(self.op, weight, *inputs)
        (x,) = inputs
        place = scope.add(Unsqueeze((len(x.type.dims),)), x)
        last = self.padding_idx - self.num_embeddings  # as it is counted from the end
        padded = call("logical_or", *(call("equal", Arg(0), n) for n in (self.padding_idx, last)))
        chosen = Pointwise(call("where", padded, Arg(1), Arg(2)))
        return scope.result(chosen, place, scope.add(Detached(), rows), rows)

    def config(self) -> dict[str, Any]:
        found = {"num_embeddings": self.num_embeddings, "embedding_dim": self.embedding_dim}
        return with_unusual(
            found,
            padding_idx=(self.padding_idx, None),
            norm_type=(self.norm_type, 2.0),
            scale_grad_by_freq=(self.scale_grad_by_freq, False),
            sparse=(self.sparse, False),
        )
