"""The order in which a device runs workgroups, as Rovder 2017 looked for it in section 7.2.1.

Every workgroup of a grid takes a ticket, from a number in a buffer that counts up; or, as his did,
counts the places of the grid that are not zero by then, and writes that and 1 to its own. Tickets
are held against orders that are known. GL's x is his id 0, the row of his matrix: what runs along x
first runs down the columns of his figure 12.1.

    python -m benchmarks.workgroup_order
    python -m benchmarks.workgroup_order --size 64 --workgroup 64 --json
    python -m benchmarks.workgroup_order --by count --plot order.png
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks import beside, documents
from benchmarks.command import check_picture, pyplot, run, save
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.cli.screen import Screen, number
from glnn.core.layout import parse
from glnn.core.types import DType
from glnn.gl import Buffer, Device, Program, Source

Grid = NDArray[np.float64]
"""A number for each workgroup, by y and x."""
NONE = "none of those known"
FAR = 0.25  # of how far orders at random are apart: what is farther than that is another order
SHOWN = 12  # columns and rows of the tickets that are printed
SHADER = """\
layout(local_size_x = {workgroup}) in;
layout(std430, binding = 0) coherent buffer Taken {{ int taken; }};
layout(std430, binding = 1) coherent buffer Order {{ int order[]; }};
uniform int places;
void main() {{
    if (gl_LocalInvocationIndex != 0u) return;
    uint place = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    {ticket}
}}
"""
TICKETS = {
    "ticket": "order[place] = atomicAdd(taken, 1);",
    "count": """\
int count = 0;
    for (int i = 0; i < places; ++i) count += order[i] == 0 ? 0 : 1;
    order[place] = count + 1;""",
}


def tickets(device: Device, size: int, workgroup: int, by: str) -> Grid:
    """The ticket of each workgroup of a square grid, from one launch."""
    text = device.capabilities.header("compute")
    text += SHADER.format(workgroup=workgroup, ticket=TICKETS[by])
    origin = tuple(("workgroup_order", i) for i in range(1, len(text.splitlines()) + 1))
    program = Program.compute(device, Source("workgroup_order", text, origin))
    if "places" in program.uniforms:
        program.set({"places": size * size})
    taken = Buffer((4,), parse("R"), dtype=DType.int32)
    order = Buffer((size * size,), parse("R"), dtype=DType.int32)
    taken.push(device).bind_to_storage_buffer(0)
    order.push(device).bind_to_storage_buffer(1)
    program.dispatch((size, size, 1))
    device.barrier()
    device.finish()
    order.mark_written()
    return order.pull().reshape(size, size).astype(np.float64)


def known(size: int) -> dict[str, Grid]:
    """Orders that a device may have: by name, the place of each workgroup in it."""
    y, x = np.mgrid[:size, :size]
    found = {
        "x first": (y, x),
        "y first": (x, y),
        "x first, back and forth": (y, np.where(y % 2, -x, x)),
        "y first, back and forth": (x, np.where(x % 2, -y, y)),
        "Z order": (_interleaved(x, y),),
        "Hilbert order": (_hilbert(x, y, size),),
    }
    for side in (2, 4, 8, 16):
        if side < size:
            found[f"{side} x {side} tiles, x first"] = (y // side, x // side, y, x)
            found[f"{side} x {side} tiles, y first"] = (x // side, y // side, x, y)
    return {name: _ranks(*keys) for name, keys in found.items()}


def _ranks(*keys: NDArray[Any]) -> Grid:
    """The place of each workgroup when they are sorted by these keys, the first before others."""
    order = np.lexsort([key.ravel() for key in reversed(keys)])
    ranks = np.empty(order.size)
    ranks[order] = np.arange(order.size)
    return ranks.reshape(keys[0].shape)


def _interleaved(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """The bits of x and y in turn, those of x the lower ones."""
    bits = range(int(max(x.max(), y.max())).bit_length())
    return sum((x >> i & 1) << 2 * i | (y >> i & 1) << 2 * i + 1 for i in bits) + 0 * x


def _hilbert(x: NDArray[Any], y: NDArray[Any], size: int) -> NDArray[Any]:
    """How far along Hilbert's curve each place is."""
    x, y, along = x.copy(), y.copy(), 0 * x
    side = 1 << max(size - 1, 1).bit_length() - 1
    while side:
        right, below = (x & side) > 0, (y & side) > 0
        along = along + side * side * ((3 * right) ^ below)
        turned = ~below & right
        x, y = np.where(turned, side - 1 - x, x), np.where(turned, side - 1 - y, y)
        x, y = np.where(below, x, y), np.where(below, y, x)
        side >>= 1
    return along


def distance(found: Grid, order: Grid) -> float:
    """How far the tickets are from an order: 0 where they are that, about 1 where at random."""
    values, inverse, counts = np.unique(found, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts + 1) / 2)[inverse].reshape(found.shape)  # alike: the mean
    apart = float(np.abs(ranks - order).mean())
    return apart / max((found.size**2 - 1) / (3 * found.size), 1e-9) if values.size > 1 else 1.0


def nearest(distances: dict[str, float]) -> str | None:
    """The order that the tickets are; None where they are none of those known."""
    name = min(distances, key=lambda one: distances[one])
    return name if distances[name] < FAR else None


@dataclass(frozen=True)
class Run:
    """The tickets of a launch, how far they are from each order, and which one they are."""

    tickets: Grid
    distances: dict[str, float]

    @property
    def order(self) -> str:
        return nearest(self.distances) or NONE


def _claim(result: dict[str, Any]) -> dict[str, Any]:
    """What was seen here of his sentence."""
    size, order, along = result["size"], result["order"], result["distances"]["x first"]
    holds = "yes" if order == "x first" else "in part" if along < FAR else "no"
    count = f"{result['runs'][order]} of {sum(result['runs'].values())} runs"
    here = f"on {size} x {size} {count} have this order: {order}; "
    here += f"{along:.2f} away from the document's, where 0 is the same and 1 is at random"
    return beside.answer(documents.figure("rovder_2017", "figure_12_1"), "workgroups", here, holds)


@click.command(help=__doc__)
@click.option("--size", type=click.IntRange(2, 512), default=33, show_default=True)
@click.option("--workgroup", type=click.IntRange(1, 128), default=1, show_default=True)
@click.option("--by", type=click.Choice(list(TICKETS)), default="ticket", show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=9, show_default=True)
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw the order to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(size: int, workgroup: int, by: str, repeat: int, plot: Path | None, as_json: bool) -> None:
    check_picture(plot)
    device = open_backend("compute").device
    assert device is not None
    orders, runs = known(size), []
    for _ in range(repeat):
        found = tickets(device, size, workgroup, by)
        runs.append(Run(found, {name: distance(found, order) for name, order in orders.items()}))
    counts = Counter(one.order for one in runs)
    (order, _), *_ = counts.most_common()
    shown = next(one for one in runs if one.order == order)
    result: dict[str, Any] = {
        **machine(device),
        "size": size,
        "workgroup": workgroup,
        "by": by,
        "order": order,
        "runs": dict(counts),
        "distances": shown.distances,
        "tickets": shown.tickets.astype(int).tolist(),
    }
    result |= {"beside": [], "claims": [_claim(result)]}
    if as_json:
        print(json.dumps(result))
    else:
        _print(result)
    if plot is not None:
        draw(shown.tickets, order, plot)


def _print(result: dict[str, Any]) -> None:
    out = Screen()
    out.say(", ".join(f"{k} {v}" for k, v in list(result.items())[:9]))
    out.say("; ".join(f"{order}: {count} runs" for order, count in result["runs"].items()))
    shown = table("order", ">how far, of 1 at random")
    for name, far in sorted(result["distances"].items(), key=lambda item: item[1]):
        shown.add(name, number(far))
    out.show(shown)
    some = min(result["size"], SHOWN)
    corner = table("y", *(f">x {i}" for i in range(some)))
    for y, row in enumerate(result["tickets"][:some]):
        corner.add(str(y), *map(str, row[:some]))
    out.show(corner, "tickets")
    out.say(f"  it says: {result['claims'][0]['claim']}; here: {result['claims'][0]['here']}")


def draw(found: Grid, name: str, path: Path) -> None:
    """The tickets as colours."""
    figure, axes = pyplot().subplots(figsize=(6, 5))
    figure.colorbar(axes.imshow(found, cmap="viridis"), label="ticket")
    axes.set(xlabel="workgroup x", ylabel="workgroup y", title=name)
    figure.tight_layout()
    save(figure, path)


if __name__ == "__main__":
    run(main)
