"""Embedding layer of bags."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from glnn.errors import ShapeError, shown
from glnn.graph.expression import Arg, call, formula
from glnn.graph.graph import Value
from glnn.graph.operators import Pointwise, Reduce, Unsqueeze
from glnn.graph.operators.reduce import Kind
from glnn.layers.arguments import flag, with_unusual
from glnn.layers.embedding import Embedding
from glnn.layers.scope import Scope

MODES: tuple[Kind, ...] = ("sum", "mean", "max")
LOWEST = float(np.finfo(np.float32).min)


class EmbeddingBag(Embedding):
    """The sum, the mean or the maximum of the rows of `weight` that each row of x (n, k), int32 or
    int64, names: (n, embedding_dim).

    weight: (num_embeddings, embedding_dim), initially normal. mode: "sum", "mean" or "max".
    padding_idx: an index that is left out; a bag of nothing else is 0. Bags are of one size, so
    that there are no offsets. max_norm, norm_type, scale_grad_by_freq, sparse, device, dtype: as
    Embedding's. _weight: None, as `weight` is assigned. include_last_offset: of offsets only.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        known = next((one for one in MODES if isinstance(mode, str) and one == mode), None)
        if known is None:
            raise ShapeError(f"EmbeddingBag mode must be sum, mean or max, got {shown(mode)}")
        self.mode = known
        self.include_last_offset = flag("EmbeddingBag include_last_offset", include_last_offset)
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            sparse,
            _weight,
            False,
            device,
            dtype,
            seed=seed,
        )

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        if len(x.type.dims) != 2:
            raise ShapeError(f"EmbeddingBag: x must have shape (n, k), got {x.type.dims}")
        rows = scope.add(self.op, self.variable(scope, "weight"), x)
        if self.padding_idx is None:
            return scope.result(Reduce(self.mode, (1,)), rows)
        return self._without(scope, self.padding_idx, x, rows)

    def _without(self, scope: Scope, padding: int, x: Value, rows: Value) -> Value:
        """The result for x and its rows, of which those of `padding` are left out."""
        kept = scope.add(Pointwise(call("where", self.is_padding(padding), 0.0, 1.0)), x)
        mask = scope.add(Unsqueeze((2,)), kept)
        count = scope.add(Reduce("sum", (1,), True), kept)
        if self.mode == "max":
            lowest = call("where", call("greater", Arg(1), 0.0), Arg(0), LOWEST)
            found = scope.add(Reduce("max", (1,)), scope.add(Pointwise(lowest), rows, mask))
            return scope.result(Pointwise(formula("where(b > 0.0, a, 0.0)")), found, count)
        chosen = formula("where(b > 0.0, a, 0.0)")
        total = Reduce("sum", (1,), False, chosen)
        if self.mode == "sum":
            return scope.result(total, rows, mask)
        mean = formula("a / maximum(b, 1.0)")
        return scope.result(Pointwise(mean), scope.add(total, rows, mask), count)

    def config(self) -> dict[str, Any]:
        return with_unusual(
            super().config(),
            mode=(self.mode, "mean"),
            include_last_offset=(self.include_last_offset, False),
        )
