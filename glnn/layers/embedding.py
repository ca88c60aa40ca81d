"""Layers that look up rows of a table by indices, and combine them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from glnn.core.types import Array, DType
from glnn.errors import ShapeError, shown
from glnn.graph.expression import Arg, Expr, call, formula
from glnn.graph.graph import Value
from glnn.graph.operators import Detached, Gather, Pointwise, Reduce, Unsqueeze
from glnn.graph.operators.reductions import Kind
from glnn.layers.arguments import flag, index, integer, number, only, plain, with_unusual
from glnn.layers.layer import Layer, Parameter, Scope


class Embedding(Layer):
    """The rows of `weight` at the indices x, int32 or int64 of any shape: (..., embedding_dim).

    weight: (num_embeddings, embedding_dim), initially normal; the row `padding_idx` is initially 0,
    and training does not change it.
    Indices out of range are clamped; negative ones count from the end. max_norm: None, as inference
    changes no weights. norm_type, scale_grad_by_freq, sparse: for training only. _weight: None.
    _freeze: False. device: None. dtype: None or float32.
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
        row = index(what, place)
        if not -count <= row < count:
            raise ShapeError(f"{what} must be from {-count} to {count - 1}, got {row}")
        return row % count

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
        indices = scope.add(Unsqueeze((len(x.type.dims),)), x)
        select = Pointwise(call("where", self.is_padding(self.padding_idx), Arg(1), Arg(2)))
        return scope.result(select, indices, scope.add(Detached(), rows), rows)

    def is_padding(self, index: int) -> Expr:
        """Return the expression that is True where Arg(0), which may be negative, is `index`."""
        equal_indices = index, index - self.num_embeddings
        return call("logical_or", *(call("equal", Arg(0), one) for one in equal_indices))

    def config(self) -> dict[str, Any]:
        config = {"num_embeddings": self.num_embeddings, "embedding_dim": self.embedding_dim}
        return with_unusual(
            config,
            padding_idx=(self.padding_idx, None),
            norm_type=(self.norm_type, 2.0),
            scale_grad_by_freq=(self.scale_grad_by_freq, False),
            sparse=(self.sparse, False),
        )


MODES: tuple[Kind, ...] = ("sum", "mean", "max")
LOWEST = float(np.finfo(np.float32).min)


class EmbeddingBag(Embedding):
    """The sum, mean or maximum of the rows of `weight` at each bag of indices: (n, embedding_dim).

    x: (n, k), int32 or int64, a bag of k indices in each row; there are no offsets. weight:
    (num_embeddings, embedding_dim), initially normal. mode: "sum", "mean" or "max". padding_idx: an
    index that is left out; a bag that has only this index is 0. max_norm, norm_type,
    scale_grad_by_freq, sparse, _weight, device, dtype: as in Embedding. include_last_offset: no
    effect, as there are no offsets.
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
        kind = next((one for one in MODES if isinstance(mode, str) and one == mode), None)
        if kind is None:
            raise ShapeError(f"EmbeddingBag mode must be sum, mean or max, got {shown(mode)}")
        self.mode = kind
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
        return self._reduce_without_padding(scope, self.padding_idx, x, rows)

    def _reduce_without_padding(self, scope: Scope, padding: int, x: Value, rows: Value) -> Value:
        """Return the result for x and its rows without those of the index `padding`."""
        is_used = scope.add(Pointwise(call("where", self.is_padding(padding), 0.0, 1.0)), x)
        mask = scope.add(Unsqueeze((2,)), is_used)
        count = scope.add(Reduce("sum", (1,), True), is_used)
        if self.mode == "max":
            lowest = call("where", call("greater", Arg(1), 0.0), Arg(0), LOWEST)
            greatest = scope.add(Reduce("max", (1,)), scope.add(Pointwise(lowest), rows, mask))
            return scope.result(Pointwise(formula("where(b > 0.0, a, 0.0)")), greatest, count)
        total = Reduce("sum", (1,), False, formula("where(b > 0.0, a, 0.0)"))
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
