"""`glnn kernels`: the table of kernels, and why one cannot run here."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import rich_click as click

from glnn.cli.cache_lines import show_cache
from glnn.cli.options import device_options, print_json
from glnn.cli.screen import Column, Screen, Table, progress
from glnn.device import Capabilities, Device
from glnn.device.believed import BrokenLimits
from glnn.doctor.certificate import Certificates
from glnn.errors import DeviceError, GlnnError, printable
from glnn.kernels import export, library
from glnn.kernels.architecture import ARCHITECTURES
from glnn.kernels.library import declared
from glnn.kernels.report import Row, rows
from glnn.kernels.verdicts import Verdicts
from glnn.settings import Settings
from glnn.version import VERSION


@click.command()
@click.option("--op", help="Only the kernels of this op.")
@click.option("--compile", "compiled", is_flag=True, help="Also compile and link each shader here.")
@click.option(
    "--export",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
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
    directory: Path | None,
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
        for option in (name for name, given in other.items() if given):
            raise GlnnError(f"--cache: expected it without {option}, as no device is opened for it")
        show_cache(op, wide, as_json)
        return
    found = _rows(op, compiled, gpu, limits, forget, shown=not as_json)
    if directory is not None:
        offers = _offers(gpu, limits) if admissible else None
        _export(directory, op, architecture, offers)
    if as_json:
        print_json({"kernels": [asdict(row) for row in found]})
    else:
        Screen(wide).show(_table(found))


def _table(found: list[Row]) -> Table:
    own = any(row.folder for row in found)
    listed = Table(
        (
            Column("op", least=12),
            Column("kernel", least=18),
            Column("backend", 2, None),
            Column("stages", 5),
            Column("document", 6, None),
            Column("runs here", 1, None),
            Column("what it does, or why not", least=30),
            Column("parameters", 3),
            Column("of", 4, least=10),
            *([Column("folder", 3)] if own else []),
        )
    )
    for row in found:
        listed.add(
            row.op,
            row.name,
            row.backend,
            row.stages or "",
            "yes" if row.document else "",
            "yes" if row.ok else "no",
            row.reason or "; ".join(filter(None, (row.summary, row.seen))),
            " ".join(f"{name}={value}" for name, value in row.parameters.items()),
            row.defaults or "",
            *([row.folder or ""] if own else []),
        )
    return listed


def _offers(gpu: str | None, limits: str | None) -> Capabilities:
    """What this device offers. Raises DeviceError where there is none."""
    with Device(gpu, limits) as device:
        return device.capabilities


def _export(
    directory: Path, op: str | None, architecture: str | None, offers: Capabilities | None
) -> None:
    try:
        chosen = tuple(k for k in library() if op in (None, k.op))
        written = export(directory, chosen, architecture, offers)
    except OSError as error:
        raise GlnnError(f"--export: cannot write to {directory}: {error.strerror}") from None
    click.echo(printable(f"wrote {len(written)} sources to {directory}"), err=True)


def _forget(verdicts: Verdicts, device: Device, cache: Path | None) -> None:
    """Drop what was seen of kernels, the doctor's certificates, and limits that do not hold."""
    offers = device.capabilities
    certificates = Certificates.load(cache, offers, VERSION)
    for kept in (verdicts, certificates, BrokenLimits.load(cache, offers)):
        try:
            kept.forget()
        except OSError as error:
            path = kept.file.path
            raise GlnnError(f"--forget: {path} cannot be removed: {error.strerror}") from None


def _rows(
    op: str | None, compiled: bool, gpu: str | None, limits: str | None, forget: bool, shown: bool
) -> list[Row]:
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
        found = rows(device, op, compile=compiled, verdicts=verdicts)
        return list(bar.track(found, total=count, description="compiling"))
