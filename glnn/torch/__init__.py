"""`torch.compile(model, backend="glnn")`: graphs of PyTorch's compiler, run by glnn.

PyTorch finds `compile` by the entry point group `torch_dynamo_backends`. Inference only: graphs
that need gradients, and graphs that glnn does not support, are left to PyTorch with a warning that
gives the reason. No other part of glnn imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from torch import fx

from glnn.errors import GlnnError, shown
from glnn.session import InferenceSession
from glnn.torch.captured_graph import (
    CapturedGraph,
    LeftToPyTorch,
    RefusedError,
    warn_left_to_pytorch,
)
from glnn.torch.running import CompiledGraph

__all__ = ["LeftToPyTorch", "compile"]
LOG = logging.getLogger(__name__)
Result = Callable[..., Sequence[Any]]
OTHER_OPTIONS = ("check",)
"""Options that are not passed to InferenceSession."""


def compile(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Result:
    """Compile `graph` for inputs like `inputs`: the backend function of `torch.compile`.

    options: those of `torch.compile`, passed to InferenceSession, as {"backend": "compute"}; and
    `check`, whether the first result for each set of sizes is compared with PyTorch's (default
    True). mode: ignored, as its values are for PyTorch's own backend. Returns `graph` itself, with
    a LeftToPyTorch warning, where glnn cannot compute it. Raises GlnnError for an unknown option.
    """
    session_options = dict(options or {})
    known = [*list(signature(InferenceSession).parameters)[1:], *OTHER_OPTIONS]
    for name in session_options:
        if name not in known:
            raise GlnnError(f"unknown option {shown(name)}: glnn has {', '.join(known)}")
    check = session_options.pop("check", True)
    if type(check) is not bool:
        raise GlnnError(f"option 'check' must be a bool, got {shown(check)}")
    try:
        captured = CapturedGraph.from_graph(graph, inputs)
    except RefusedError as error:
        warn_left_to_pytorch(graph, str(error))
        return graph  # type: ignore[no-any-return]
    if not captured.computed:
        LOG.debug("a graph computes nothing: left to PyTorch")
        return graph  # type: ignore[no-any-return]
    return CompiledGraph(captured, session_options, check)
