"""`glnn kernels`: the table of kernels, and why one cannot run here."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import rich_click as click

from glnn.cli.options import (
    OutputFile,
    WritingCommand,
    check_absent,
    device_options,
    print_json,
)
from glnn.cli.screen import Column, Screen, Table, figures, progress
from glnn.core.plural import count_of
from glnn.core.settings import Settings
from glnn.doctor.examination import Certificates
from glnn.documents.cache_lines import CACHE_LINES, INVOCATIONS, LINE_BYTES, Reads, workgroups
from glnn.errors import DeviceError, GlnnError, printable
from glnn.gl import Capabilities, Device
from glnn.gl.limit_overrides import LimitOverrides
from glnn.kernels import library
from glnn.kernels.architecture import ARCHITECTURES
from glnn.kernels.library import declared, kernels_for
from glnn.kernels.report import KernelRow, complete_sources, rows, write_sources
from glnn.kernels.verdicts import Verdicts
from glnn.version import VERSION

GRONQVIST = {"NN": "blocked_nn", "NT": "blocked_nt"}
ROVDER = {"Baseline": "blocked_rm_cm", "Morton 4-2": "morton_4_2", "Morton 4-4": "morton_4_4"}
"""The kernels of the two tables, by what the documents call them."""
ROVDER_GROUP = 4, 16  # the workgroup of table 8.1: a neuron's results along x
STEP = 4  # elements along k of one step of his kernels, a vec4


def show_cache(op: str | None, wide: bool, as_json: bool) -> None:
    """Print the cache model's figures of every matmul kernel that reads its operands directly.

    Raises GlnnError where `op` is another one.
    """
    if op not in (None, "matmul"):
        raise GlnnError(f"--cache: expected --op matmul or none, got {op}")
    result = cost_rows()
    if as_json:
        print_json(result)
        return
    out = Screen(wide)
    kernels = {row["name"]: row for row in result["kernels"]}
    out.show(_gronqvist(kernels), "Gronqvist, table 1.2: cache lines by the workgroup's y")
    out.say("")
    out.show(_rovder(kernels), f"Rovder 2017, table 8.1: a workgroup of {_by(ROVDER_GROUP)}")
    out.say("")
    shapes = [_by(shape) for shape in workgroups()]
    listed = Table(
        (
            Column("kernel", least=18),
            Column("computes", 3, None),
            Column("x", 2, None),
            Column("weight", 2, None),
            figures("period", 1),
            *(figures(shape) for shape in shapes),
        )
    )
    for row in result["kernels"]:
        lines = (f"{row['lines'][shape]:g}" for shape in shapes)
        facts = row["computes"], row["x"], row["weight"], str(row["period"])
        listed.add(row["name"], *facts, *lines)
    title = f"cache lines of {INVOCATIONS} invocations, by workgroup; period in places along k"
    out.show(listed, title)


def cost_rows() -> dict[str, Any]:
    """Return the cache model's figures for each kernel, with the parameters for any device.

    lines: cache lines that INVOCATIONS invocations read at once, by workgroup. bulk: those of one
    workgroup of 4 x 16. period: elements along k until all of these lines are used up. computes:
    rows x columns of the result that an invocation computes.
    """
    rows: list[dict[str, Any]] = []
    for kernel in kernels_for("matmul", "compute"):
        if (reads := Reads.from_kernel(kernel)) is None:
            continue
        rows.append(
            {
                "name": kernel.name,
                "computes": _by((reads.x.rows, reads.weight.rows)),
                "x": reads.x.layout,
                "weight": reads.weight.layout,
                "out": kernel.wants("out")[0],
                "period": reads.period,
                "bulk": reads.lines(ROVDER_GROUP),
                "lines": {_by(w): reads.lines(w, INVOCATIONS) for w in workgroups()},
            }
        )
    device = {"line_bytes": LINE_BYTES, "cache_lines": CACHE_LINES, "invocations": INVOCATIONS}
    return {**device, "kernels": rows}


def _by(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]}x{sizes[1]}"


def _gronqvist(kernels: dict[str, dict[str, Any]]) -> Table:
    table = Table((Column("", least=None), *(figures(str(y)) for _, y in workgroups())))
    for name, kernel in GRONQVIST.items():
        lines = [kernels[kernel]["lines"][_by(shape)] for shape in workgroups()]
        table.add(f"cache lines ({name})", *(f"{count:g}" for count in lines))
        table.add(f"L1 fraction ({name})", *(f"{count / CACHE_LINES:.2g}" for count in lines))
    return table


def _rovder(kernels: dict[str, dict[str, Any]]) -> Table:
    heads = Column("weight", 2, None), Column("x", 2, None), Column("result", 2, None)
    counts = figures("lines missed at once"), figures("steps between")
    table = Table((Column("", least=None), Column("kernel", least=12), *heads, *counts))
    for name, kernel in ROVDER.items():
        row = kernels[kernel]
        layouts = row["weight"], row["x"], row["out"]
        table.add(name, kernel, *layouts, f"{row['bulk']:g}", f"{row['period'] / STEP:g}")
    return table


@click.command(cls=WritingCommand)
@click.option("--op", help="Only the kernels of this op.")
@click.option("--compile", "compiled", is_flag=True, help="Also compile and link each shader here.")
@click.option(
    "--export",
    "directory",
    metavar="FOLDER",
    type=OutputFile(folder=lambda name: True),
    help="Write complete GLSL ES sources to this folder, for offline compilers.",
)
@click.option(
    "--architecture",
    type=click.Choice(list(ARCHITECTURES)),
    help="Export with the parameters of this architecture.",
)
@click.option(
    "--admissible",
    is_flag=True,
    help="Export only what this device admits, with the parameters that it runs here with.",
)
@click.option("--cache", is_flag=True, help="Only the cache lines that matrix products read.")
@click.option("--forget", is_flag=True, help="Forget what was seen of their results here, first.")
@device_options
def kernels(
    op: str | None,
    compiled: bool,
    directory: str | None,
    architecture: str | None,
    admissible: bool,
    cache: bool,
    forget: bool,
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """List every kernel and why it cannot run here, if it cannot.

    The parameters are those it would run with, and from what they come: the defaults of this
    architecture, those for any device, or the first that keep within the limits. Kernels made
    of stages have no shader of their own: each stage is an op with kernels of its own, shown by
    `glnn plan`. Those that are there because a document has them run by name only. Kernels of your
    own in the folder that GLNN_KERNELS names are among them.

    `--cache` says instead, by a model and for any device, how many cache lines the invocations of a
    matrix product read at once, as tables of the documents do.

    \b
    Examples:
      glnn kernels
      glnn kernels --op conv2d --compile
      glnn kernels --limits es31-minimum --json
      glnn kernels --forget
      glnn kernels --cache
      GLNN_KERNELS=mine/ glnn kernels --op matmul --compile
      glnn kernels --export sources/ --architecture Bifrost
      glnn kernels --export sources/ --admissible
    """
    if architecture is not None and directory is None:
        raise GlnnError(f"--architecture: expected --export with it, got {architecture} alone")
    if admissible and (directory is None or architecture is not None):
        raise GlnnError("--admissible: expected --export with it, and no --architecture")
    ops = sorted({kernel.op for kernel in declared()})
    if op is not None and op not in ops:
        raise GlnnError(f"--op: no kernels for {op!r}, expected one of {', '.join(ops)}")
    if cache:
        other = {"--compile": compiled, "--export": directory, "--forget": forget}
        for option in (name for name, is_set in other.items() if is_set):
            raise GlnnError(f"--cache: expected it without {option}, as no device is opened for it")
        show_cache(op, wide, as_json)
        return
    result = _rows(op, compiled, gpu, limits, forget, shown=not as_json)
    if directory is not None:
        offers = _capabilities(gpu, limits) if admissible else None
        _export(Path(directory), op, architecture, offers)
    if as_json:
        print_json({"kernels": [asdict(row) for row in result]})
    else:
        Screen(wide).show(_table(result))


def _table(rows: list[KernelRow]) -> Table:
    has_folders = any(row.folder for row in rows)
    listed = Table(
        (
            Column("op", least=12),
            Column("kernel", least=18),
            Column("backend", 2, None),
            Column("stages", 5),
            Column("document", 6, None),
            figures("priority", 4),
            Column("runs here", 1, None),
            Column("what it does, or why not", least=30),
            Column("parameters", 3),
            Column("of", 4, least=10),
            *([Column("folder", 3)] if has_folders else []),
        )
    )
    for row in rows:
        listed.add(
            row.op,
            row.name,
            row.backend,
            row.stages or "",
            "yes" if row.document else "",
            str(row.priority),
            "yes" if row.ok else "no",
            row.reason or "; ".join(filter(None, (row.summary, row.seen))),
            " ".join(f"{name}={value}" for name, value in row.parameters.items()),
            row.defaults or "",
            *([row.folder or ""] if has_folders else []),
        )
    return listed


def _capabilities(gpu: str | None, limits: str | None) -> Capabilities:
    """Return the device's capabilities. Raises DeviceError where there is none."""
    with Device(gpu, limits) as device:
        return device.capabilities


def _export(
    directory: Path, op: str | None, architecture: str | None, offers: Capabilities | None
) -> None:
    chosen = tuple(k for k in library() if op in (None, k.op))
    sources = complete_sources(chosen, architecture, offers)
    for name in sources:
        check_absent("--export", directory / name)
    try:
        written = write_sources(directory, sources)
    except OSError as error:
        raise GlnnError(f"--export: cannot write to {directory}: {error.strerror}") from None
    click.echo(printable(f"wrote {count_of(len(written), 'source')} to {directory}"), err=True)


def _forget(verdicts: Verdicts, device: Device, cache: Path | None) -> None:
    """Drop the verdicts on kernels, the doctor's certificates, and limits that do not hold."""
    offers = device.capabilities
    certificates = Certificates.load(cache, offers, VERSION)
    for record in (verdicts, certificates, LimitOverrides.load(cache, offers)):
        try:
            record.forget()
        except OSError as error:
            path = record.file.path
            raise GlnnError(f"--forget: {path} cannot be removed: {error.strerror}") from None


def _rows(
    op: str | None, compiled: bool, gpu: str | None, limits: str | None, forget: bool, shown: bool
) -> list[KernelRow]:
    try:
        device = Device(gpu, limits)
    except DeviceError as error:
        if gpu is not None:
            raise
        reason = f"not admissible: {error}"
        return [replace(row, ok=False, reason=reason) for row in rows(None, op)]
    with device, progress(shown and compiled) as bar:
        count = sum(op in (None, k.op) for k in declared())
        cache = Settings.from_environment().cache
        verdicts = Verdicts.load(cache, device.capabilities, VERSION)
        if forget:
            _forget(verdicts, device, cache)
        result = rows(device, op, compile=compiled, verdicts=verdicts)
        return list(bar.track(result, total=count, description="compiling"))
