"""A model's plan as one HTML file: the graph of its steps as SVG, with details of each step.

The file loads nothing. All texts of the model are escaped, and a content security policy allows no
script but the page's own.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from glnn.core import html
from glnn.core.layered_layout import LayeredLayout, arrange
from glnn.core.plural import count_of
from glnn.core.process import readable_bytes
from glnn.errors import printable

WIDTH, HEIGHT = 230, 46  # pixels of a node
ACROSS, DOWN = 254, 84  # pixels from one node to the next
BEND = 18  # pixels of width for an edge that passes between nodes
LETTERS, SMALL_LETTERS = 31, 38  # in a line of a node; the whole text is beside the graph
KINDS = {
    "contraction": "products, convolutions, attention, recurrences",
    "pointwise": "pointwise",
    "reduction": "reductions, pools, normalisations",
    "movement": "copies: moves, concatenations, gathers",
    "host": "on the host",
    "end": "inputs and outputs",
}
"""What each colour means, by the class of its nodes."""
CONTRACTIONS = (
    *("conv2d", "pooled_conv2d", "separable_conv2d", "matmul", "quantized", "perceptron"),
    *("attention", "cached_attention", "recurren", "phased_recurrence", "winograd", "fourier"),
)
REDUCTIONS = (
    *("reduce", "arg_reduce", "cumsum", "cum_sum", "softmax", "normalize", "local_response_norm"),
    *("pool2d", "top_k", "merge_top_k", "sample"),
)
"""Prefixes of the names of operators of a kind; all other operators move data."""


@dataclass(frozen=True)
class GraphNode:
    """A box of the drawing.

    kind: one of KINDS. lines: texts in it. details: pairs of texts that are shown when it is
    chosen. share: its part of the longest time, None without times.
    """

    name: str
    kind: str
    lines: tuple[str, str]
    details: tuple[tuple[str, str], ...]
    share: float | None = None


def graph_page(
    report: Mapping[str, Any], times: Mapping[str, float] | None = None, clock: str = ""
) -> str:
    """Return the page as HTML.

    Args:
        report: A plan, as `glnn plan --json` has it.
        times: Milliseconds of the steps by name.
        clock: By what these were taken.
    """
    nodes, edges = _graph(report, times or {})
    keys = list(nodes)
    layout = arrange(keys, edges, width=ACROSS, bend=BEND)
    inputs = ", ".join(f"{name} {shape}" for name, shape in report["inputs"].items())
    title = f"{report['model']} on {report['backend']}"
    about = f"{count_of(len(report['steps']), 'step')} on {report['device']}; inputs {inputs}"
    if times:
        about += f"; {sum(times.values()):.3g} ms by {clock}"
    steps = [
        {
            "name": printable(node.name),
            "details": [[key, printable(value)] for key, value in node.details],
            "text": printable(" ".join([node.name, *(value for _, value in node.details)])),
        }
        for node in nodes.values()
    ]
    style, script = (_part(f"graph_page.{kind}") for kind in ("css", "js"))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    legend = "".join(
        f'<li><span class="{kind}"></span>{html.text(meaning)}</li>'
        for kind, meaning in KINDS.items()
        if any(node.kind == kind for node in nodes.values())
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.text(title)}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{html.text(title)}</h1>
<p>{html.text(about)}</p>
<label>Search <input type="search" placeholder="name, op, kernel; Enter for the next"></label>
<span id="found" role="status"></span>
<ul class="legend">{legend}</ul>
</header>
<main>
{_drawing(nodes, edges, layout)}
<aside><h2 id="name">Choose a step</h2><dl id="details"></dl></aside>
</main>
<script type="application/json" id="steps">{_inline(steps)}</script>
<script>{script}</script>
</body>
</html>
"""


def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _inline(document: object) -> str:
    """Return JSON that cannot end the element it stands in."""
    text = json.dumps(document, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _graph(
    report: Mapping[str, Any], times: Mapping[str, float]
) -> tuple[dict[str, GraphNode], list[tuple[str, str]]]:
    """Return the nodes by key, in order, and the edges between them."""
    nodes: dict[str, GraphNode] = {}
    producers: dict[str, list[str]] = {}
    edges: list[tuple[str, str]] = []
    longest = max(times.values(), default=0.0)
    for name, shape in report["inputs"].items():
        key = f"input {name}"
        details = (("input", name), ("shape", _shape(shape)))
        nodes[key] = GraphNode(name, "end", ("input", _shape(shape)), details)
        producers[name] = [key]
    for step in report["steps"]:
        key = f"step {len(nodes)}"
        nodes[key] = _step_node(step, times.get(step["name"]), longest)
        sources = [key for name in step["sources"] for key in producers.get(name, ())]
        edges += [(source, key) for source in sources or _callers(step["name"], nodes)]
        producers[step["output"]] = [key]
    for name, tensors in report["outputs"].items():
        key = f"output {name}"
        nodes[key] = GraphNode(name, "end", ("output", ""), (("output", name),))
        edges += [(source, key) for name in tensors for source in producers.get(name, ())]
    return nodes, edges


def _callers(name: str, nodes: Mapping[str, GraphNode]) -> list[str]:
    """Return the key of the innermost loop or branch whose body has the step `name`; [] outside."""
    keys = [key for key, node in nodes.items() if name.startswith(f"{node.name}/")]
    return [max(keys, key=lambda key: len(nodes[key].name))] if keys else []


def _step_node(step: Mapping[str, Any], ms: float | None, longest: float) -> GraphNode:
    shape = _shape(step["shape"])
    kernel = step["kernel"] if step["why_host"] is None else "the host"
    layouts = ", ".join(f"{name} {layout}" for name, layout in step["layouts"].items())
    reads = ", ".join(f"{name} as {way}" for name, way in step["reads"].items())
    details = {
        "layer": step["layer"],
        "op": step["op"],
        "kernel": step["kernel"],
        "stage of": step["via"],
        "on the host": step["why_host"],
        "time": None if ms is None else f"{ms:.3g} ms",
        "reads": ", ".join(step["inputs"]),
        "result": step["output"],
        "shape": shape,
        "dtype": step["dtype"],
        "layouts": layouts,
        "operands": reads,
        "result takes": readable_bytes(step["bytes"]),
        "parameters take": readable_bytes(step["parameter_bytes"]),
        "block of memory": None if step["block"] is None else str(step["block"]),
    }
    shown = tuple((key, str(value)) for key, value in details.items() if value)
    lines = f"{step['op']} · {kernel}", f"{shape} {step['dtype']}"
    share = None if ms is None or not longest else ms / longest
    return GraphNode(step["name"], _kind(step), lines, shown, share)


def _kind(step: Mapping[str, Any]) -> str:
    if step["why_host"] is not None:
        return "host"
    op = step["op"]
    if op == "pointwise":
        return op  # type: ignore[no-any-return]
    if op.startswith(CONTRACTIONS):
        return "contraction"
    return "reduction" if op.startswith(REDUCTIONS) else "movement"


def _shape(sizes: Sequence[object]) -> str:
    return " x ".join(map(str, sizes)) or "one number"


def _drawing(
    nodes: Mapping[str, GraphNode], edges: Sequence[tuple[str, str]], layout: LayeredLayout
) -> str:
    """Return the SVG element."""
    number = {key: i for i, key in enumerate(nodes)}
    height = DOWN * (1 + max(layout.layer.values(), default=0))
    paths = [
        f'<path class="edge" data-upper="{number[upper]}" data-lower="{number[lower]}" '
        f'marker-end="url(#arrow)" d="{_path(upper, lower, layout)}"/>'
        for upper, lower in dict.fromkeys(edges)
        if upper != lower
    ]
    boxes = [_box(number[key], node, layout, key) for key, node in nodes.items()]
    return (
        f'<svg viewBox="0 0 {layout.width:.0f} {height}" role="group" aria-label="graph">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
        f"{''.join(paths)}{''.join(boxes)}</svg>"
    )


def _top(layer: int) -> int:
    return layer * DOWN + (DOWN - HEIGHT) // 2


def _path(upper: str, lower: str, layout: LayeredLayout) -> str:
    """Return the path of an edge: down from node to node, straight past those of other layers."""
    x, y = layout.x[upper], _top(layout.layer[upper]) + HEIGHT
    path = f"M{x:.0f} {y}"
    points = [
        *((bend, top, top + HEIGHT) for bend, top in _bend_points(upper, lower, layout)),
        (layout.x[lower], _top(layout.layer[lower]), None),
    ]
    for next_x, top, bottom in points:
        middle = (y + top) / 2
        path += f"C{x:.0f} {middle:.0f} {next_x:.0f} {middle:.0f} {next_x:.0f} {top}"
        x, y = next_x, top
        if bottom is not None:
            path += f"V{bottom}"
            y = bottom
    return path


def _bend_points(upper: str, lower: str, layout: LayeredLayout) -> list[tuple[float, int]]:
    return [(x, _top(layer)) for layer, x in layout.bends[upper, lower]]


def _shorten(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _box(number: int, node: GraphNode, layout: LayeredLayout, key: str) -> str:
    x, y = layout.x[key] - WIDTH / 2, _top(layout.layer[key])
    name = _shorten(node.name, LETTERS)
    first, second = (_shorten(line, SMALL_LETTERS) for line in node.lines)
    bar = ""
    if node.share is not None:
        bar = (
            f'<rect class="time" x="{x:.0f}" y="{y + HEIGHT - 4}" '
            f'width="{WIDTH * node.share:.0f}" height="4"/>'
        )
    title = " — ".join([node.name, *node.lines])
    return (
        f'<g class="node" data-at="{number}" tabindex="0" role="button">'
        f"<title>{html.text(title)}</title>"
        f'<rect class="box {node.kind}" x="{x:.0f}" y="{y}" width="{WIDTH}" height="{HEIGHT}" '
        f'rx="5"/>{bar}'
        f'<text x="{x + 8:.0f}" y="{y + 15}">{html.text(name)}</text>'
        f'<text class="more" x="{x + 8:.0f}" y="{y + 28}">{html.text(first)}</text>'
        f'<text class="more" x="{x + 8:.0f}" y="{y + 39}">{html.text(second)}</text></g>'
    )
