"""Multi-head attention layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.compose.matmul import matmul
from glnn.graph.compose.node_adder import merge_dims, split_dim
from glnn.graph.expression import SUM, Arg, call, formula
from glnn.graph.graph import Value
from glnn.graph.operators import (
    Concat,
    Identity,
    Matmul,
    Pointwise,
    Slice,
    Softmax,
    Split,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from glnn.layers.arguments import flag, integer, number, plain, with_unusual
from glnn.layers.layer import Fixed, Layer, Parameter, Scope

NAMES = ("query", "key", "value")


class MultiheadAttention(Layer):
    """Attention of a query (n, l, embed_dim) to keys (n, s, kdim) and values (n, s, vdim).

    Three inputs, which may be the same one; without `batch_first` n is the second dimension of all,
    and without a batch there is none.
    For each of num_heads heads softmax(q k^T / sqrt(d)) v, where q, k and v are projected to d =
    embed_dim / num_heads numbers; the heads' results lie behind one another and are projected once
    more: (n, l, embed_dim). Vaswani et al. 2017, Attention Is All You Need, section 3.2. As
    PyTorch's with need_weights=False and no masks.

    in_proj_weight: (3 embed_dim, embed_dim), those of q, k and v; where kdim or vdim is another,
    q_proj_weight (embed_dim, embed_dim), k_proj_weight (embed_dim, kdim) and v_proj_weight
    (embed_dim, vdim) instead. in_proj_bias: (3 embed_dim,), out_proj_weight: (embed_dim,
    embed_dim), out_proj_bias: (embed_dim,); with `bias=False` there are no biases, which are
    initially 0. dropout: for training only. add_bias_kv: whether bias_k and bias_v, (1, 1,
    embed_dim), are one more key and value, projected. add_zero_attn: whether zeros are. device,
    dtype: None and None or float32; parameters are float32.
    """

    dotted: ClassVar[Mapping[str, str]] = Fixed(
        {"out_proj_weight": "out_proj.weight", "out_proj_bias": "out_proj.bias"}
    )
    in_proj_weight = Parameter["Array | None"]()
    q_proj_weight = Parameter["Array | None"]()
    k_proj_weight = Parameter["Array | None"]()
    v_proj_weight = Parameter["Array | None"]()
    in_proj_bias = Parameter["Array | None"]()
    out_proj_weight = Parameter[Array]()
    out_proj_bias = Parameter["Array | None"]()
    bias_k = Parameter["Array | None"]()
    bias_v = Parameter["Array | None"]()

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        kind = "MultiheadAttention"
        plain(kind, device, dtype)
        self.embed_dim = integer(f"{kind} embed_dim", embed_dim)
        self.num_heads = integer(f"{kind} num_heads", num_heads)
        if self.embed_dim % self.num_heads:
            raise ShapeError(
                f"{kind} num_heads must divide embed_dim {self.embed_dim}, got {self.num_heads}"
            )
        self.dropout = number(f"{kind} dropout", dropout, 0, 1)
        self.add_zero_attn = flag(f"{kind} add_zero_attn", add_zero_attn)
        self.kdim = self.embed_dim if kdim is None else integer(f"{kind} kdim", kdim)
        self.vdim = self.embed_dim if vdim is None else integer(f"{kind} vdim", vdim)
        self.batch_first = flag(f"{kind} batch_first", batch_first)
        shapes = self._shapes(flag(f"{kind} bias", bias))
        if flag(f"{kind} add_bias_kv", add_bias_kv):
            shapes |= dict.fromkeys(("bias_k", "bias_v"), (1, 1, self.embed_dim))
        super().__init__(Identity(), shapes, fan_in=self.embed_dim, seed=seed)

    def _shapes(self, biased: bool) -> dict[str, Shape]:
        size = self.embed_dim
        if self.kdim == self.vdim == size:
            shapes: dict[str, Shape] = {"in_proj_weight": (3 * size, size)}
        else:
            widths = zip("qkv", (size, self.kdim, self.vdim), strict=True)
            shapes = {f"{letter}_proj_weight": (size, width) for letter, width in widths}
        shapes["out_proj_weight"] = (size, size)
        if biased:
            shapes |= {"in_proj_bias": (3 * size,), "out_proj_bias": (size,)}
        return shapes

    @property
    def inputs(self) -> int:
        return 3

    def initial(self, name: str) -> Array:
        if name.endswith("bias"):
            return np.zeros(self.shapes[name], np.float32)
        return super().initial(name)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        if any(len(x.type.dims) != 2 for x in inputs):
            return scope.named(self._attend(scope, *inputs))
        n = 0 if self.batch_first else 1
        batches = {x: scope.add(Unsqueeze((n,)), x) for x in dict.fromkeys(inputs)}
        attended = self._attend(scope, *(batches[x] for x in inputs))
        return scope.result(Squeeze((n,)), attended)

    def _attend(self, scope: Scope, *inputs: Value) -> Value:
        self._check(*inputs)
        add, heads = scope.add, self.num_heads
        width = self.embed_dim // heads
        scaled = Pointwise(call("mul", Arg(0), 1 / sqrt(width)))
        parts = []
        for i, (x, projected) in enumerate(zip(inputs, self._project(scope, inputs), strict=True)):
            projected = split_dim(add, projected, 1, heads, width)
            projected = split_dim(add, projected, 0, *x.type.dims[:2])
            if i > 0:
                projected = self._longer(scope, projected, f"bias_{'qkv'[i]}")
            # To (n, heads, l, d), and the values to (n, heads, d, s): what is summed lies last.
            n, places = (0, 1) if self.batch_first else (1, 0)
            parts.append(
                add(Transpose((n, 2, 3, places) if i == 2 else (n, 2, places, 3)), projected)
            )
        query, key, value = parts
        weights = add(Softmax(-1), add(scaled, matmul(add, query, key, transposed=True)))
        attended = matmul(add, weights, value, transposed=True)
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        rows = merge_dims(add, merge_dims(add, add(Transpose(order), attended), 2, 2), 0, 2)
        result = add(Matmul(), rows, self.variable(scope, "out_proj_weight"))
        if "out_proj_bias" in self.shapes:
            result = add(Pointwise(SUM), result, self.variable(scope, "out_proj_bias"))
        return split_dim(add, result, 0, *inputs[0].type.dims[:2])

    def _project(self, scope: Scope, inputs: Sequence[Value]) -> tuple[Value, ...]:
        """The projections of the inputs, matrices of a row for each vector; of three that are the
        same, as in self-attention, by one product.
        """
        size, (query, key, value) = self.embed_dim, inputs
        if query is key is value and "in_proj_weight" in self.shapes:
            return scope.pieces(Split((size,) * 3, 1), self._product(scope, query, "in", None))
        parts = (Slice((i * size,), ((i + 1) * size,), (0,), (1,)) for i in range(3))
        named = zip(inputs, "qkv", parts, strict=True)
        if "in_proj_weight" in self.shapes:
            return tuple(self._product(scope, x, "in", part) for x, _, part in named)
        return tuple(self._product(scope, x, letter, part) for x, letter, part in named)

    def _product(self, scope: Scope, x: Value, name: str, part: Slice | None) -> Value:
        """The product of the vectors of x by the parameter `name`_proj_weight, and the bias.

        part: which of the rows of in_proj_weight and of in_proj_bias; None for all.
        """
        add = scope.add
        weight = self.variable(scope, f"{name}_proj_weight")
        if part is not None and name == "in":
            weight = add(part, weight)
        result = add(Matmul(), merge_dims(add, x, 0, 2), weight)
        if "in_proj_bias" not in self.shapes:
            return result
        bias = self.variable(scope, "in_proj_bias")
        return add(Pointwise(SUM), result, bias if part is None else add(part, bias))

    def _longer(self, scope: Scope, x: Value, bias: str) -> Value:
        """Keys or values x, (n, s, heads, d) or (s, n, heads, d), with those that are always there:
        the parameter `bias`, and zeros.
        """
        axis, heads = 1 if self.batch_first else 0, x.type.dims[2:]
        parts, first = [x], Slice((0,), (1,), (axis,), (1,))
        if bias in self.shapes:
            # As many as there are samples: a < a is never true.
            spread = Pointwise(formula("where(a < a, a, b)"))
            row = split_dim(scope.add, self.variable(scope, bias), 2, *heads)
            parts.append(scope.add(spread, scope.add(first, x), row))
        if self.add_zero_attn:
            none = Pointwise(formula("where(a < a, a, 0.0)"))
            parts.append(scope.add(none, scope.add(first, x)))
        return scope.add(Concat(axis), *parts) if len(parts) > 1 else x

    def _check(self, *inputs: Value) -> None:
        """Raise ShapeError unless the three belong together."""
        n = 0 if self.batch_first else 1
        batch = inputs[0].type.dims[n : n + 1]
        for name, x, width in zip(
            NAMES, inputs, (self.embed_dim, self.kdim, self.vdim), strict=True
        ):
            dims = x.type.dims
            if len(dims) != 3 or dims[2] != width or dims[n : n + 1] != batch:
                wanted = f"(n, l, {width})" if self.batch_first else f"(l, n, {width})"
                raise ShapeError(f"MultiheadAttention: {name} must have shape {wanted}, got {dims}")
        if inputs[1].type.dims[:2] != inputs[2].type.dims[:2]:
            key, value = (x.type.dims for x in inputs[1:])
            raise ShapeError(f"MultiheadAttention: key {key} and value {value} differ in number")

    def config(self) -> dict[str, Any]:
        config = {"embed_dim": self.embed_dim, "num_heads": self.num_heads}
        return with_unusual(
            config,
            dropout=(self.dropout, 0.0),
            bias=("in_proj_bias" in self.shapes, True),
            kdim=(self.kdim, self.embed_dim),
            vdim=(self.vdim, self.embed_dim),
            batch_first=(self.batch_first, False),
            add_bias_kv=("bias_k" in self.shapes, False),
            add_zero_attn=(self.add_zero_attn, False),
        )
