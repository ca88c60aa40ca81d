"""The pages of what was measured, from what the benchmarks wrote with --json.

    python -m benchmarks.vgg16 --repeat 100 --variants --json > benchmarks/measured/vgg16.json
    python -m benchmarks.summary

The second writes the tables of README.md and docs/measurements.md between their comments, and
the pictures docs/vgg16.svg and docs/networks.svg.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from benchmarks import network_tables
from benchmarks.network_process import GLNN, GRAPH
from benchmarks.tables import four_digits, markdown

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "measured"
WRONG = 1e-2  # a relative error above it is no rounding
BAR, GAP, LEFT, WIDE = 22, 12, 230, 720  # pixels: a bar, between two, its label, the picture
ROOM = 250  # pixels: a ratio and two times

PICTURE = Template("""\
<svg xmlns="http://www.w3.org/2000/svg" width="$width" height="$height"
  viewBox="0 0 $width $height" role="img">
<title>$title</title>
<style>
text { font: 14px system-ui, sans-serif; fill: #1f2328 }
.bar { fill: #8c959f } .own { fill: #0969da } .same { stroke: #1f2328 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .bar { fill: #6e7681 } .own { fill: #4493f8 } .same { stroke: #e6edf3 }
}
</style>
<text x="0" y="16">$title</text>
$bars
</svg>
""")


def measured(name: str) -> Json:
    """What the benchmark's run called `name` wrote."""
    found: Json = json.loads((MEASURED / f"{name}.json").read_text("utf-8"))
    return found


def label(name: str) -> str:
    """A benchmark's name of what it ran, for people."""
    name = re.sub(r" (\d+\.\d+)\.\S+ ", r" \1, ", re.sub(r" on .*", "", name))
    return name.replace(" cuda", " CUDA, eager").replace("WebGpu", "WebGPU")


def network(name: str) -> str:
    """A network's times on all that ran it, the least first."""
    rows = sorted(measured(name)["rows"], key=lambda row: float(row["median_ms"]))
    table: list[list[object]] = []
    for row in rows:
        error = f"{row['error']:.1e}" + (": a wrong result" if row["error"] > WRONG else "")
        times = four_digits(row["median_ms"]), four_digits(row["resident_ms"])
        table.append([label(row["name"]), *times, error])
    return markdown(["", "ms", "ms, weights and inputs resident", "error"], table)


def layers(name: str) -> str:
    """A network's steps."""
    heads = ["layer", "kernel", "kernel ms", "wall ms", "overhead ms"]
    table: list[list[object]] = []
    for row in measured(name)["layers"]:
        times = (four_digits(row[key]) for key in ("kernel_ms", "wall_ms", "overhead_ms"))
        table.append([row["layer"], f"{row['op']}/{row['kernel']}", *times])
    return markdown(heads, table)


def products() -> str:
    """Matrix products in TFLOP/s, plain ones and those with alpha, beta and C."""
    parts = [(measured("matmul"), ""), (measured("alpha_beta"), ", alpha, beta, C")]
    rows = [(f"{label(r['name'])}{what}", r) for found, what in parts for r in found["rows"]]
    return _grid("TFLOP/s", rows, "size", lambda row: four_digits(row["gflops"] / 1000))


def perceptrons() -> str:
    """The four of Rovder 2017."""
    rows = [(label(row["name"]), row) for row in measured("mlp")["rows"]]
    return _grid("ms", rows, "model", lambda row: four_digits(row["median_ms"]))


def feedback() -> str:
    """Transform feedback beside the rest; of Cronin's orders of a product the fastest."""
    table: list[list[object]] = []
    for title, name, key, part in (
        ("VGG-16, one image", "vgg16_feedback", "", ""),
        ("LeNet, batch 100", "lenet", "", ""),
        ("perceptron, full MNIST, batch 100", "mlp", "model", "full_mnist"),
        *(
            (part, "alexnet_conv", "scenario", part)
            for part in ("conv2", "conv3", "conv4", "conv5")
        ),
    ):
        rows = [row for row in measured(name)["rows"] if row.get(key, "") == part]
        times = {row["name"]: row["median_ms"] for row in rows}
        orders = [row["median_ms"] for row in rows if row.get("kind") == "cronin"]
        ran = (
            times["glnn compute"],
            times["glnn feedback"],
            min(orders, default=None),
            times.get("glnn cpu", times.get("NumPy")),
        )
        table.append([title, *map(four_digits, ran)])
    return markdown(["ms", "compute", "feedback", "Cronin's form", "NumPy"], table)


def networks() -> str:
    """Networks from ONNX files beside PyTorch's CUDA graph by batch, and what that comes to."""
    found = measured("networks")
    text = [
        f"{_versions(found)}\n",
        _cells(network_tables.graph_comparison(found)),
        f"{network_tables.GraphComparison.from_results(found).sentence}\n",
    ]
    for title, (heads, rows) in (
        ("Where it takes longer, the longest first:", network_tables.slower(found)),
        ("Not compared:", network_tables.not_compared(found)),
    ):
        if rows:
            text += [f"{title}\n", _cells((heads, rows))]
    return "\n".join(text)


def _versions(found: Json) -> str:
    """The device of a run of networks, and the versions of glnn and PyTorch."""
    versions = {row["name"]: row["version"] for row in found["rows"] if "version" in row}
    torch = versions.get(GRAPH, "").split(" on ")[0]
    parts = (
        found["device"],
        found["version"],
        f"glnn {found['glnn']}",
        torch and f"PyTorch {torch}",
    )
    return ", ".join(part for part in parts if part) + "."


def networks_by_others() -> str:
    """Networks by all who ran them, of a run of its own, at each batch that others ran, too."""
    found = measured("networks_by_others")
    more = {row["batch"] for row in found["rows"] if row["name"] not in (GLNN, GRAPH)}
    text = [f"{_versions(found)}\n"] if more else ["Nobody else ran them in this run.\n"]
    for batch in sorted(more):
        title = f"All who ran batch {batch}; the error of FP16 is beside float64:\n"
        text += [title, _cells(network_tables.library_times(found, batch))]
    return "\n".join(text)


def plans_of_networks() -> str:
    """glnn's plans of the networks at the smallest batch that was measured."""
    found = measured("networks")
    batch = min(network_tables.batches(found))
    return f"Batch {batch}:\n\n{_cells(network_tables.plans(found, batch))}"


def _cells(cells: network_tables.Cells) -> str:
    """Heads and rows as a table."""
    heads, rows = cells
    return markdown(heads, [[*row] for row in rows])


def convolutions() -> str:
    """Convolutions one by one, in microseconds."""
    table: list[list[object]] = []
    for row in measured("convolutions")["rows"]:
        times = (four_digits(1e3 * row[key]) for key in ("ms", "pytorch_ms"))
        rest = four_digits(row["over_pytorch"]), f"{row['of_roof']:.0%}"
        table.append([row["name"], row["kernel"], *times, *rest])
    return markdown(["us", "kernel", "glnn", "cuDNN", "over cuDNN", "of the roof"], table)


def filters(image: str) -> str:
    """Image filters on pictures of that size, of bytes, the names of versions left out."""
    rows = [row for row in measured("filters")["rows"] if row["image"].startswith(image)]
    rows = [row for row in rows if row["image"].endswith("uint8")]
    table: list[list[object]] = []
    for name in dict.fromkeys(row["filter"] for row in rows):
        times = {row["name"].split()[0]: row for row in rows if row["filter"] == name}
        ours, opencv, torch = (times[who] for who in ("glnn", "OpenCV", "PyTorch"))
        cells = (ours["ms"], ours["steps_ms"], opencv["ms"], torch["ms"])
        table.append([name, *map(four_digits, cells)])
    return markdown(["ms", "glnn", "steps", "OpenCV", "PyTorch CUDA"], table)


def training() -> str:
    """Steps of training from host arrays, glnn's beside PyTorch's."""
    found: dict[tuple[str, int], dict[str, Json]] = {}
    for row in measured("training")["rows"]:
        found.setdefault((row["work"], row["batch"]), {})[row["name"].split(" ", 1)[1]] = row
    table: list[list[object]] = []
    for (work, batch), by in found.items():
        ours, graph, eager = (by.get(name, {}) for name in ("compute", "CUDA graph", "eager"))
        times = (four_digits(one.get("median_ms")) for one in (ours, graph, eager))
        over = (four_digits(one.get("ours_over")) for one in (graph, eager))
        launches = ours.get("launches", "-")
        table.append([work.replace("_", " "), batch, *times, *over, launches])
    heads = ["ms", "batch", "glnn", "CUDA graph", "eager", "over the graph", "over eager"]
    return markdown([*heads, "launches"], table)


def accuracies() -> str:
    """What networks that were trained from nothing reach, on the CPU and on the GPU."""
    found = measured("mnist")
    apart = {row["model"]: row["apart"] for row in found["agreement"]}
    seconds = {
        (row["model"], row["name"]): row.get("seconds") for row in found["rows"] if not row["seed"]
    }
    table: list[list[object]] = []
    for row in found["accuracies"]:
        model = row["model"]
        cells = (row["cpu"], row["gpu"], *(seconds.get((model, name)) for name in ("cpu", "glnn")))
        table.append([model, *map(four_digits, cells), f"{apart[model]:.1e}"])
    heads = ["", "CPU, %", "GPU, %", "CPU, s", "GPU, s", "losses apart"]
    return markdown(heads, table)


def starts() -> str:
    """New processes to their first results, without the driver's own cache and with it."""
    table: dict[str, list[object]] = {}
    for name in ("startup", "startup_driver"):
        rows = {(row["model"], row["state"]): row for row in measured(name)["rows"]}
        for model in dict.fromkeys(model for model, _ in rows):
            cold, warm = rows[model, "cold"], rows[model, "warm"]
            times = (four_digits(1e-3 * row["total_ms"]) for row in (cold, warm))
            cells = table.setdefault(model, [model, four_digits(warm["packed_bytes"] / 2**20)])
            cells += [*times, four_digits(warm["of_cold"])]
    heads = ["s", "MiB packed", "cold", "warm", "of cold"]
    return markdown([*heads, "cold, driver's cache on", "warm", "of cold"], [*table.values()])


def _grid(
    unit: str, rows: Iterable[tuple[str, Json]], across: str, shown: Callable[[Json], str]
) -> str:
    cells = {(name, row[across]): shown(row) for name, row in rows}
    columns = list(dict.fromkeys(column for _, column in cells))
    names = dict.fromkeys(name for name, _ in cells)
    heads = [unit, *(column.replace("_", " ") for column in columns)]
    return markdown(heads, [[n, *(cells.get((n, c), "") for c in columns)] for n in names])


TABLES: dict[str, Callable[[], str]] = {
    "vgg16": lambda: network("vgg16"),
    "lenet": lambda: network("lenet"),
    "lenet layers": lambda: layers("lenet"),
    "products": products,
    "perceptrons": perceptrons,
    "feedback": feedback,
    "filters": lambda: filters("1920x1080"),
    "training": training,
    "trained": accuracies,
    "starts": starts,
    "convolutions": convolutions,
    "networks": networks,
    "networks by others": networks_by_others,
    "plans of networks": plans_of_networks,
}
"""What stands between `<!-- table NAME -->` and `<!-- end -->`."""


def filled(text: str) -> str:
    """`text` with its tables made anew."""

    def table(found: re.Match[str]) -> str:
        try:
            made = TABLES[found[2]]()
        except FileNotFoundError:
            made = "not measured yet\n"
        return f"{found[1]}\n{made}{found[3]}"

    return re.sub(r"(<!-- table (.+?) -->)\n.*?(<!-- end -->)", table, text, flags=re.DOTALL)


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart. text: what stands behind the bar. own: whether it is glnn's."""

    label: str
    value: float
    text: str
    own: bool = True


def bar_chart(title: str, bars: Sequence[Bar], room: int, line: float | None = None) -> str:
    """Return an SVG of horizontal bars, for light and dark grounds.

    room: pixels behind the longest bar, for its text. line: the value of a vertical line.
    """
    scale = (WIDE - LEFT - room) / max((bar.value for bar in bars), default=1)
    parts = []
    for i, bar in enumerate(bars):
        y, length, kind = 34 + i * (BAR + GAP), scale * bar.value, "own" if bar.own else "bar"
        at = f'y="{y + BAR - 6}"'
        parts += [
            f'<text x="{LEFT - 10}" {at} text-anchor="end">{escape(bar.label)}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="3"/>',
            f'<text x="{LEFT + length + 8:.1f}" {at}>{escape(bar.text)}</text>',
        ]
    height = 34 + len(bars) * (BAR + GAP)
    if line is not None:
        x = f"{LEFT + scale * line:.1f}"
        parts.append(f'<path class="same" d="M{x} 26 V{height - GAP + 6}"/>')
    return PICTURE.substitute(title=title, width=WIDE, height=height, bars="\n".join(parts))


def picture(name: str, title: str) -> str:
    """Return an SVG of the times of what ran that network on the GPU."""
    rows = sorted(measured(name)["rows"], key=lambda row: float(row["median_ms"]))
    bars = [
        Bar(
            label(row["name"]),
            row["median_ms"],
            f"{row['median_ms']:#.3g}",
            row["name"].startswith("glnn"),
        )
        for row in rows
        if not re.search("cpu|numpy", row["name"], re.IGNORECASE)
    ]
    return bar_chart(title, bars, 60)


def speeds(title: str) -> str:
    """Return an SVG of how many times as fast as PyTorch's CUDA graph each network is.

    Of the smallest batch of which any was compared, which follows the title.
    """
    found = measured("networks")
    rows = {(row["network"], row["batch"], row["name"]): row for row in found["rows"]}
    bars = []
    ratios = network_tables.GraphComparison.from_results(found).ratios
    smallest = min((batch for _, batch in ratios), default=1)
    title = f"{title}, batch {smallest}"
    for (name, batch), ratio in ratios.items():
        if batch == smallest:
            ours, graph = (rows[name, batch, by]["median_ms"] for by in (GLNN, GRAPH))
            text = f"{graph / ours:.2f} ({ours:#.3g} ms, PyTorch {graph:#.3g} ms)"
            bars.append(Bar(name, 1 / ratio, text))
    return bar_chart(title, sorted(bars, key=lambda bar: -bar.value), ROOM, 1)


def written() -> Iterator[tuple[Path, str]]:
    """Every file that is made of what was measured, and its text."""
    for path in (ROOT / "README.md", ROOT / "docs" / "measurements.md"):
        yield path, filled(path.read_text("utf-8"))
    title = "VGG-16, one image, on one NVIDIA H200: milliseconds, less is better"
    yield ROOT / "docs" / "vgg16.svg", picture("vgg16", title)
    title = "Speed over PyTorch's CUDA graph (the line), FP32, one NVIDIA H200"
    yield ROOT / "docs" / "networks.svg", speeds(title)


if __name__ == "__main__":
    for path, text in written():
        path.write_text(text, "utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
