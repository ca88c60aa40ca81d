"""Embedding layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from glnn.errors import ShapeError
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Value
from glnn.graph.operators import Detached, Gather, Pointwise, Unsqueeze
from glnn.layers.arguments import flag, index, integer, number, only, plain, with_unusual
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
    _weight: None, _freeze: False. device, dtype: None and None or float32; parameters are float32.
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
        _weight: None = None,
        _freeze: bool = False,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        kind = type(self).__name__
        plain(kind, device, dtype)
        self.num_embeddings = integer(f"{kind} num_embeddings", num_embeddings)
        self.embedding_dim = integer(f"{kind} embedding_dim", embedding_dim)
        self.padding_idx = self._row(padding_idx)
        if max_norm is not None:
            raise ShapeError(f"{kind} max_norm must be None: weights stay as they are")
        if _weight is not None:
            raise ShapeError(f"{kind} _weight must be None: `weight` is assigned instead")
        only(f"{kind} _freeze", _freeze, False, "what is not trained, a trainer is told")
        self.norm_type = number(f"{kind} norm_type", norm_type, 0)
        self.scale_grad_by_freq = flag(f"{kind} scale_grad_by_freq", scale_grad_by_freq)
        self.sparse = flag(f"{kind} sparse", sparse)
        super().__init__(
            Gather(0), {"weight": (self.num_embeddings, self.embedding_dim)}, seed=seed
        )

    def _row(self, place: int | None) -> int | None:
        if place is None:
            return None
        what, count = f"{type(self).__name__} padding_idx", self.num_embeddings
        found = index(what, place)
        if not -count <= found < count:
            raise ShapeError(f"{what} must be from {-count} to {count - 1}, got {found}")
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
        chosen = Pointwise(call("where", self.is_padding(self.padding_idx), Arg(1), Arg(2)))
        return scope.result(chosen, place, scope.add(Detached(), rows), rows)

    def is_padding(self, place: int) -> Expr:
        """Return an expression: True where an index Arg(0), which may be negative, is `place`."""
        places = place, place - self.num_embeddings
        return call("logical_or", *(call("equal", Arg(0), one) for one in places))

    def config(self) -> dict[str, Any]:
        found = {"num_embeddings": self.num_embeddings, "embedding_dim": self.embedding_dim}
        return with_unusual(
            found,
            padding_idx=(self.padding_idx, None),
            norm_type=(self.norm_type, 2.0),
            scale_grad_by_freq=(self.scale_grad_by_freq, False),
            sparse=(self.sparse, False),
        )
