"""Tensors inside a model, by the names of tensors and of layers."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from glnn.errors import ModelError, shown
from glnn.graph.graph import Value
from glnn.model.model import Model


def find_values(model: Model, names: Sequence[str] | None = None) -> dict[str, Value]:
    """The values of `model` that `names` stand for, in the order of the names.

    names: of tensors, of layers (for their results), or patterns of these as `conv*` and `*.1`;
    None stands for every tensor that runs change. Raises ModelError for a name of none.
    """
    if names is not None and not (
        isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    ):
        raise ModelError(f"names must be a list of tensors' names, got {shown(names)}")
    graph = model.graph
    made = [value for node in graph.nodes for value in node.outputs]
    if names is None:
        return {value.name: value for value in (*graph.inputs, *made) if graph.changes(value)}
    known = {value.name: value for value in (*graph.inputs, *made)}
    layers = {node.name: known[node.output] for node in model.nodes}
    found: dict[str, Value] = {}
    for name in names:
        if name in known or name in layers:
            found[name] = known[name] if name in known else layers[name]
        elif matches := [one for one in known if fnmatchcase(one, name)]:
            found |= {one: known[one] for one in matches}
        elif matches := [one for one in layers if fnmatchcase(one, name)]:
            found |= {one: layers[one] for one in matches}
        else:
            raise ModelError(_unknown(model.name, name, [*known, *layers]))
    return found


def _unknown(model: str, name: str, names: Sequence[str]) -> str:
    """Return the error text for an unknown name, with the names that are like it, or some of
    all.
    """
    distinct = list(dict.fromkeys(names))
    near = get_close_matches(name, distinct, 3) or distinct[:8]
    more = "" if len(near) == len(distinct) else f" among {len(distinct)}"
    listed = ", ".join(map(repr, near))
    return f"no tensor or layer of {model} is called {shown(name)}: it has {listed}{more}"
