"""The zoo: 28 networks from ONNX files by glnn, PyTorch and ONNX Runtime, at several batches.

Times are from host array to host array, "resident" with the input on the device and no result read.
Errors are against PyTorch in float64 where it is among those who run, else against ONNX Runtime on
the CPU. Steps, operations and bytes are those of glnn's plan; its roof is the time that the device
would take for the steps one after the other, at its peak and bandwidth. Each network is run by each
library in a process of its own, which has --limit seconds for each row. A line is printed for each
network and batch as it is done. With --save, each row is written at once, and another run measures
those that are missing or failed. From the file benchmarks/measured/networks.json,
`python -m benchmarks.summary` makes the tables of docs/measurements.md.

PyTorch runs eagerly, as a CUDA graph, as a CUDA graph after torch.compile (minutes a network), and
as one in FP16, which uses tensor cores; OpenGL ES does not reach these.

    python -m benchmarks.networks_page --networks networks --export --save networks.json \\
        --by glnn,PyTorch --batch 1,8,32
    python -m benchmarks.networks_page --networks networks --save networks.json \\
        --by torch.compile --only resnet50,gpt2 --limit 300
    python -m benchmarks.networks_page --networks networks --only resnet50 --webgpu-site webgpu

onnxruntime-webgpu goes into a folder of its own, beside onnxruntime:

    pip install --no-deps --target webgpu onnxruntime-webgpu
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import rich_click as click

from benchmarks import network_tables, zoo
from benchmarks.command import check_picture, run
from benchmarks.export_networks import export_all
from benchmarks.network_process import EAGER, GLNN, GRAPH, HALF, NAMES, Row
from benchmarks.network_rows import Bench, Job, Roof, last_answer
from glnn.cli.screen import Screen, number, progress
from glnn.core.fileio import atomic_write
from glnn.errors import GlnnError

ROOFLINE_LIMIT = 300.0  # seconds that the roofline may take to measure


class ResultsFile:
    """The rows that were measured on this device, written to the file `path`, if there is one."""

    def __init__(self, path: Path | None, header: Row) -> None:
        """Read the file where it exists.

        Raises GlnnError where it is malformed, or of another device.
        """
        self.path, self.header = path, header
        self.rows: list[Row] = []
        if path is None or not path.exists():
            return
        try:
            old = json.loads(path.read_text("utf-8"))
            rows, device, backend = old.pop("rows"), old["device"], old["backend"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise GlnnError(f"--save: {path} is not what this benchmark wrote: {error}") from None
        if (device, backend) != (header["device"], header["backend"]):
            raise GlnnError(
                f"--save: {path} is of {device}, {backend}; "
                f"this is {header['device']}, {header['backend']}"
            )
        self.header, self.rows = {**old, **header}, rows

    def missing(self, network: str, batch: int, bench: Bench) -> tuple[str, ...]:
        """Return the names of `bench` that have no row yet, or one that failed."""
        measured = {n for n, row in self.rows_of(network, batch).items() if "failed" not in row}
        return tuple(name for name in bench.available if name not in measured)

    def rows_of(self, network: str, batch: int) -> dict[str, Row]:
        """Return the rows of a network and a batch, by name."""
        rows = (row for row in self.rows if (row["network"], row["batch"]) == (network, batch))
        return {row["name"]: row for row in rows}

    def add(self, row: Row) -> None:
        """Add or replace `row`, and save all. Raises GlnnError where that cannot be written."""
        key = _sort_key(row)
        others = (old for old in self.rows if _sort_key(old) != key)
        self.rows = sorted([*others, row], key=_sort_key)
        self.save()

    def save(self) -> None:
        """Write all to the file."""
        if self.path is None:
            return
        try:
            with atomic_write(self.path) as stream:
                stream.write((json.dumps(self.document, indent=2) + "\n").encode())
        except OSError as error:
            raise GlnnError(f"--save: {self.path} cannot be written: {error.strerror}") from None

    @property
    def document(self) -> dict[str, Any]:
        """Header and rows as one object."""
        return {**self.header, "rows": self.rows}


def _sort_key(row: Row) -> tuple[int, int, int]:
    """Return the key that sorts and identifies `row`: batch, network and library."""
    return row["batch"], list(zoo.NETWORKS).index(row["network"]), NAMES.index(row["name"])


def _device(backend: str, roof: Roof | None, results: Path | None) -> Row:
    """Describe machine and device; the roofline is measured unless given or in `results`."""
    has_roof = roof is not None or (results is not None and results.exists())
    arguments = () if has_roof else ("roofline",)
    header = last_answer("network_device", backend, *arguments, limit=ROOFLINE_LIMIT)
    if "failed" in header:
        raise GlnnError(header["failed"])
    return {**header, "peak_gflops": roof.gflops, "peak_gb_s": roof.gb_s} if roof else header


def chosen_names(only: str | None) -> tuple[str, ...]:
    """Return the names of NAMES that `only` selects: whole names or prefixes, by commas."""
    if only is None:
        return NAMES
    wanted: set[str] = set()
    for part in (part.strip() for part in only.split(",")):
        found = {part} & set(NAMES) or {name for name in NAMES if name.startswith(part)}
        if not found:
            raise GlnnError(f"--by: no {part!r}, expected beginnings of {', '.join(NAMES)}")
        wanted |= found
    return tuple(name for name in NAMES if name in wanted)


def _batches(text: str) -> list[int]:
    """The numbers in `text`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise GlnnError(f"--batch: expected numbers as 1,8,32, got {text!r}")
    return [int(part) for part in parts]


def measure(
    bench: Bench,
    results: ResultsFile,
    networks: list[zoo.Network],
    batches: list[int],
    within: float,
) -> None:
    """Measure the missing rows of `results`; none is begun when `within` seconds are over."""
    jobs: list[Job] = []
    pending: dict[tuple[str, int], set[str]] = {}
    for network in networks:
        missing = {batch: results.missing(network.name, batch, bench) for batch in batches}
        jobs += bench.jobs(network, missing)
        pending |= {(network.name, batch): set(names) for batch, names in missing.items()}
    start = time.monotonic()
    with progress() as bar:
        task = bar.add_task("measuring", total=sum(map(len, pending.values())))
        with closing(bench.rows(jobs)) as rows:
            for row in rows:
                results.add(row)
                key = row["network"], row["batch"]
                pending[key].discard(row["name"])
                bar.update(task, advance=1, description=f"{key[0]}, batch {key[1]}")
                if not pending[key]:
                    click.echo(summary_line(*key, results.rows_of(*key)), err=True)
                if time.monotonic() - start > within:
                    click.echo(f"--within: {within:g} s are over, the rest is left out", err=True)
                    return


def summary_line(network: str, batch: int, rows: Mapping[str, Row]) -> str:
    """Describe the results of a network and a batch in one line."""
    ours, graph = rows.get(GLNN, {}), rows.get(GRAPH, {})
    times = {
        "glnn": ours.get("median_ms"),
        "resident": ours.get("resident_ms"),
        "eager": rows.get(EAGER, {}).get("median_ms"),
        "graph": graph.get("median_ms"),
        "fp16": rows.get(HALF, {}).get("median_ms"),
        "glnn/graph": network_tables.over(rows, GRAPH),
    }
    parts = [f"{network:22} {batch:2}", *(f"{k} {number(v)}" for k, v in times.items())]
    error = ours.get("error")
    parts.append("error -" if error is None else f"error {error:.1e}")
    parts += [f"{name}: {row['failed'][:60]}" for name, row in rows.items() if "failed" in row]
    return "  ".join(parts)


@click.command(help=__doc__)
@click.option(
    "--networks",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder of the files of benchmarks.export_networks.",
)
@click.option("--only", help="Names of networks, by commas.")
@click.option(
    "--by",
    help="Who runs them, by commas: names, or what several begin with, as glnn,PyTorch.",
)
@click.option("--batch", default="1", show_default=True, help="Sizes of batches, by commas.")
@click.option(
    "--backend",
    type=click.Choice(["compute", "feedback", "cpu"]),
    default="compute",
    show_default=True,
)
@click.option(
    "--webgpu-site",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder that onnxruntime-webgpu is installed in.",
)
@click.option("--export", is_flag=True, help="Write the files that are missing there first.")
@click.option(
    "--seconds", type=click.FloatRange(0), default=0.7, show_default=True, help="Of each measure."
)
@click.option(
    "--limit", type=click.FloatRange(1), default=120, show_default=True, help="Of each row, s."
)
@click.option("--within", type=click.FloatRange(0), default=float("inf"), help="End after, s.")
@click.option(
    "--roof",
    nargs=2,
    type=click.FloatRange(0, min_open=True),
    metavar="GFLOPS GB_S",
    help="The device's peak and bandwidth; measured unless given.",
)
@click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), help="Keep rows in this file."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    folder: Path,
    only: str | None,
    by: str | None,
    batch: str,
    backend: str,
    webgpu_site: Path | None,
    export: bool,
    seconds: float,
    limit: float,
    within: float,
    roof: tuple[float, float] | None,
    save: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    check_picture(plot)
    networks, names, batches = zoo.chosen(only), chosen_names(by), _batches(batch)
    missing = [one for one in networks if not (folder / f"{one.name}.onnx").is_file()]
    if missing and not export:
        path = folder / f"{missing[0].name}.onnx"
        raise GlnnError(f"--networks: no file {path}; --export writes it")
    if missing:
        for done in export_all(missing, folder):
            click.echo(f"{done.name}: {done.path.stat().st_size / 1e6:.1f} MB", err=True)
    results = ResultsFile(save, _device(backend, Roof(*roof) if roof else None, save))
    header = results.header
    peaks = [header[key] for key in ("peak_gflops", "peak_gb_s") if key in header]
    with tempfile.TemporaryDirectory(prefix="glnn-networks-") as work:
        bench = Bench(
            folder=folder.resolve(),
            work=Path(work),
            backend=backend,
            names=names,
            seconds=seconds,
            limit=limit,
            webgpu=webgpu_site.resolve() if webgpu_site else None,
            roof=Roof(*peaks) if peaks else None,
        )
        measure(bench, results, networks, batches, within)
    if as_json:
        print(json.dumps(results.document, indent=2))
    else:
        network_tables.show(Screen(), results.document)
    if plot is not None:
        network_tables.draw(results.document, plot)


if __name__ == "__main__":
    run(main)
