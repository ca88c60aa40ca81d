"""Graphs that are left to PyTorch, and the warnings that say so."""

from __future__ import annotations

import logging
import re
import warnings

from torch import fx

from glnn.errors import printable

LOG = logging.getLogger(__name__)
PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
MOST = 300  # letters of a reason


class LeftToPyTorch(UserWarning):
    """A graph, or a call of it, is computed by PyTorch itself; the text says why."""


class RefusedError(Exception):
    """The reason why glnn does not run a graph: half a sentence that begins with a small letter."""


def leave(graph: fx.GraphModule, reason: str) -> None:
    """Warn that `graph` is PyTorch's, and why."""
    text = printable(" ".join(reason.split()))
    text = text if len(text) <= MOST else f"{text[: MOST - 3]}..."
    said = f"{name(graph)} is left to PyTorch: {text}"
    LOG.info("%s", said)
    warnings.warn(said, LeftToPyTorch, stacklevel=2)


def name(graph: fx.GraphModule) -> str:
    """Return a name for `graph`: the place in the program where it begins, and its number of
    operators.
    """
    nodes = [node for node in graph.graph.nodes if node.op.startswith("call")]
    places = [PLACE.findall(node.stack_trace or "") for node in nodes]
    first = next((found[-1] for found in places if found), None)
    where = f" from {first[0]}:{first[1]} ({first[2]})" if first else ""
    return f"the graph of {len(nodes)} operator{'s'[: len(nodes) != 1]}{where}"
