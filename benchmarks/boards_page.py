"""docs/boards.md, from the files in benchmarks/boards/ that `glnn bench --suite` wrote.

glnn bench --suite --report board.json
cp board.json benchmarks/boards/raspberry-pi-5.json
python -m benchmarks.boards_page
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.tables import four_digits, markdown
from glnn.profiling.onnxruntime_peer import PEER
from glnn.runtime.options import NAMES
from glnn.suite.report import FORMAT, doctor_faults

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
FOLDER, PAGE = ROOT / "benchmarks" / "boards", ROOT / "docs" / "boards.md"
ENGINES = (*NAMES, PEER)
HEAD = """\
# Boards and GPUs

What `glnn bench --suite` measured on each device, made from `benchmarks/boards/*.json` by
`python -m benchmarks.boards_page`. All devices ran the same networks with the same seeded weights,
one sample unless a number says otherwise, by the clock from arrays of the host to arrays of the
host, in FP32: mobilenet_v2 and resnet18 on 224 x 224 pixels, a U-Net on 128 x 128, an encoder of 6
layers on 128 tokens, two recurrent layers over 100 steps. The language model has 52 million weights
of 8 bits.

**Yours is welcome, and boards most of all.** It takes ten minutes:

```sh
glnn bench --suite --report board.json
```

The file has numbers, what the driver, the processor and the system call themselves, and the
versions. It has no names of users or hosts, and no paths. Send it with the form for a board or a
driver, or add it to `benchmarks/boards/` under the board's name.

"""
NOTE = """
`{peer}` is ONNX Runtime on the same machine's CPU, where it was installed. "Slowdown" is how
many seconds a thread that only computes took for each of its own: above 1.2 other programs ran, and
times are too long. Errors beside NumPy were at most {worst:.1e}.

"""
PRODUCTS = """
## Products of n x n, GFLOP/s

Operands in place; `numpy` is the BLAS that NumPy brings.

"""
MOVES = """
Launches by `compute`, where it opens, else by `feedback`: waited for, and one of a chain. Rates are
of the largest transfer.
"""


def reports(folder: Path = FOLDER) -> dict[str, Json]:
    """Read the reports by the names of their files. Raises ValueError for another format."""
    found: dict[str, Json] = {}
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text("utf-8"))
        if report.get("format") != FORMAT:
            raise ValueError(
                f"{path}: expected a report of format {FORMAT}, got {report.get('format')}: "
                "measure again by this version's `glnn bench --suite --report FILE`"
            )
        found[path.stem] = report
    return found


def page(found: dict[str, Json]) -> str:
    """Return the page of all reports."""
    errors = [
        time["error"] or 0.0
        for report in found.values()
        for times in report["networks"].values()
        for time in times.values()
    ]
    parts = [
        HEAD,
        "## Devices\n\n",
        markdown(
            ["name", "device", "driver", "processor", "glnn", "right", "slowdown"],
            [[f"`{name}`", *_device(report)] for name, report in found.items()],
        ),
        NOTE.format(peer=PEER, worst=max(errors, default=0.0)),
        "## Networks, ms a run\n\n",
        markdown(["network", "name", *ENGINES], [*_rows(found, _times)]),
        "\n## The language model, tokens a second\n\n",
        markdown(["", "name", *NAMES], [*_decoding(found)]),
        PRODUCTS,
        markdown(["n", "name", "compute", "feedback", "numpy"], [*_products(found)]),
        "\n## Launches and transfers\n\n",
        markdown(
            ["name", "a launch, us", "in a chain, us", "up, GB/s", "down, GB/s", "copies, GB/s"],
            [[f"`{name}`", *_moves(report)] for name, report in found.items()],
        ),
        MOVES,
    ]
    left = [
        f"- `{name}`: {step} was left out: {why}\n"
        for name, report in found.items()
        for step, why in report["left_out"].items()
    ]
    if left:
        parts += ["\n## What is missing\n\n", *left]
    return "".join(parts)


def _device(report: Json) -> Iterator[str]:
    device, machine = report["device"], report["machine"] or {}
    yield device["renderer"]
    yield device["version"]
    yield f"{machine.get('processor') or 'unknown'}, {machine.get('processors')} cores"
    yield report["glnn"]
    doctor = report["doctor"]
    if doctor is None:
        yield "not looked at"
    else:
        kernels = sum(one["kernels"] for one in doctor["backends"].values())
        yield ", ".join([f"{kernels} kernels", *doctor_faults(doctor)])
    yield four_digits(report["slowdown"] and round(report["slowdown"], 2))


def _rows(
    found: dict[str, Json], row: Callable[[Json, str], list[object]]
) -> Iterator[list[object]]:
    """Yield a row for each network and device."""
    names = dict.fromkeys(name for report in found.values() for name in report["networks"])
    for network in names:
        for name, report in found.items():
            if network in report["networks"]:
                yield [network, f"`{name}`", *row(report, network)]


def _times(report: Json, network: str) -> list[object]:
    times = report["networks"][network]
    return [four_digits(times[one]["median_ms"] if one in times else None) for one in ENGINES]


def _decoding(found: dict[str, Json]) -> Iterator[list[object]]:
    for what, key in (("prompt", "prompt_tokens_per_s"), ("behind it", "tokens_per_s")):
        for name, report in found.items():
            rates = report["language_model"]
            cells = (four_digits(rates[one][key] if one in rates else None) for one in NAMES)
            yield [what, f"`{name}`", *cells]


def _products(found: dict[str, Json]) -> Iterator[list[object]]:
    sizes = sorted({one["n"] for report in found.values() for one in report["products"]})
    for n in sizes:
        for name, report in found.items():
            for one in report["products"]:
                if one["n"] == n:
                    seconds = (one["seconds"].get(by) for by in ("compute", "feedback", "numpy"))
                    rates = (four_digits(s and one["flops"] / s / 1e9) for s in seconds)
                    yield [n, f"`{name}`", *rates]


def _moves(report: Json) -> Iterator[str]:
    launches = report["launches"]
    first = launches.get("compute") or launches.get("feedback") or {}
    for key in ("alone_s", "chained_s"):
        yield four_digits(first.get(key) and 1e6 * first[key])
    largest = report["transfers"][-1] if report["transfers"] else {}
    for key in ("up", "down", "copy"):
        yield four_digits(largest.get(key) and largest["nbytes"] / largest[key] / 1e9)


def main() -> None:
    PAGE.write_text(page(reports()), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
