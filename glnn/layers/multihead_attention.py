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

    It takes three inputs, which may be the same. Without `batch_first`, n is the second dimension
    of each; inputs of two dimensions have no batch.
    Each of num_heads heads computes softmax(q k^T / sqrt(d)) v, for q, k and v projected to d =
    embed_dim / num_heads numbers. The heads' results are concatenated and projected: (n, l,
    embed_dim). Vaswani et al. 2017, Attention Is All You Need, section 3.2. Equivalent to PyTorch's
    with need_weights=False and no masks.

    in_proj_weight: (3 embed_dim, embed_dim), the weights of q, k and v; where kdim or vdim is not
    embed_dim, q_proj_weight (embed_dim, embed_dim), k_proj_weight (embed_dim, kdim) and
    v_proj_weight (embed_dim, vdim) replace it. out_proj_weight: (embed_dim, embed_dim).
    in_proj_bias: (3 embed_dim,), out_proj_bias: (embed_dim,), both initially 0, or None with
    `bias=False`. dropout: for training only. add_bias_kv: append the parameters bias_k and bias_v,
    (1, 1, embed_dim), to the projected keys and values. add_zero_attn: append zeros to them.
    device: None. dtype: None or float32.
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

    def _shapes(self, has_bias: bool) -> dict[str, Shape]:
        size = self.embed_dim
        if self.kdim == self.vdim == size:
            shapes: dict[str, Shape] = {"in_proj_weight": (3 * size, size)}
        else:
            widths = zip("qkv", (size, self.kdim, self.vdim), strict=True)
            shapes = {f"{letter}_proj_weight": (size, width) for letter, width in widths}
        shapes["out_proj_weight"] = (size, size)
        if has_bias:
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
        operands = []
        for i, (x, projected) in enumerate(zip(inputs, self._project(scope, inputs), strict=True)):
            projected = split_dim(add, projected, 1, heads, width)
            projected = split_dim(add, projected, 0, *x.type.dims[:2])
            if i > 0:
                projected = self._append_biases(scope, projected, f"bias_{'qkv'[i]}")
            # To (n, heads, l, d), and the values to (n, heads, d, s): the summed axis is the last.
            n, vectors = (0, 1) if self.batch_first else (1, 0)
            order = (n, 2, 3, vectors) if i == 2 else (n, 2, vectors, 3)
            operands.append(add(Transpose(order), projected))
        query, key, value = operands
        weights = add(Softmax(-1), add(scaled, matmul(add, query, key, transposed=True)))
        attended = matmul(add, weights, value, transposed=True)
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        rows = merge_dims(add, merge_dims(add, add(Transpose(order), attended), 2, 2), 0, 2)
        result = add(Matmul(), rows, self.variable(scope, "out_proj_weight"))
        if "out_proj_bias" in self.shapes:
            result = add(Pointwise(SUM), result, self.variable(scope, "out_proj_bias"))
        return split_dim(add, result, 0, *inputs[0].type.dims[:2])

    def _project(self, scope: Scope, inputs: Sequence[Value]) -> tuple[Value, ...]:
        """Return the projections of the inputs, matrices with a row for each vector.

        In self-attention, where the three inputs are the same, one product computes all.
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
        """Return the product of the vectors of x and the parameter `name`_proj_weight, plus bias.

        part: the rows used of in_proj_weight and in_proj_bias; None for all.
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

    def _append_biases(self, scope: Scope, x: Value, bias: str) -> Value:
        """Append the parameter `bias`, and zeros, to keys or values x where the layer has them.

        x: (n, s, heads, d), or (s, n, heads, d).
        """
        axis, heads = 1 if self.batch_first else 0, x.type.dims[2:]
        parts, first = [x], Slice((0,), (1,), (axis,), (1,))
        if bias in self.shapes:
            # Broadcast b to the batch of a: a < a is never true.
            broadcast = Pointwise(formula("where(a < a, a, b)"))
            row = split_dim(scope.add, self.variable(scope, bias), 2, *heads)
            parts.append(scope.add(broadcast, scope.add(first, x), row))
        if self.add_zero_attn:
            zeros = Pointwise(formula("where(a < a, a, 0.0)"))
            parts.append(scope.add(zeros, scope.add(first, x)))
        return scope.add(Concat(axis), *parts) if len(parts) > 1 else x

    def _check(self, *inputs: Value) -> None:
        """Raise ShapeError unless query, key and value fit the layer and each other."""
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
