"""Epilogues as tests want them."""

from __future__ import annotations

from glnn.graph.epilogue import BIASED, Epilogue
from glnn.graph.expression import Arg, call

SUMMED = Epilogue(call("add", Arg(0), Arg(1)), ("full",))
"""A residual: what lies as the result is added."""


def function(name: str) -> Epilogue | None:
    """The function so called of the result."""
    return None if name == "identity" else Epilogue(call(name, Arg(0)))


def finish(
    *,
    alpha: float | None = None,
    bias: bool = False,
    beta: float | None = None,
    full: bool = False,
    activation: str = "identity",
) -> Epilogue | None:
    """activation(alpha result + bias + beta full), where there are such, bias before full."""
    parts = [
        None if alpha is None else Epilogue(call("mul", alpha, Arg(0))),
        BIASED if bias else None,
        SUMMED if full and beta is None else None,
        Epilogue(call("add", Arg(0), call("mul", beta, Arg(1))), ("full",))
        if full and beta is not None
        else None,
        function(activation),
    ]
    whole: Epilogue | None = None
    for part in parts:
        if part is not None:
            whole = part if whole is None else whole.then(part)
    return whole
