"""`glnn doctor`: whether this device's driver can be believed, and what is slow here."""

from __future__ import annotations

from functools import partial

import rich_click as click

from glnn.cli.options import (
    OutputFile,
    WritingCommand,
    backends_option,
    device_options,
    print_json,
    write_report,
)
from glnn.cli.screen import Column, Screen, Table, figures, progress
from glnn.doctor.checks import Checks
from glnn.doctor.examination import ExaminationScope, examine_device
from glnn.doctor.limits import Limits, probe_limits
from glnn.doctor.report import Report, describe_machine, rows
from glnn.doctor.speed import Speed, measure_speed
from glnn.errors import GlnnError, printable
from glnn.gl import Device
from glnn.runtime.options import NAMES

WRONG = 1


@click.command(cls=WritingCommand)
@click.option("--op", "ops", multiple=True, metavar="OP", help="Only kernels of this op; repeats.")
@click.option(
    "--function", "functions", multiple=True, metavar="NAME", help="Only this function; repeats."
)
@backends_option(NAMES, "Backends to look at; compute and feedback, if not given.")
@click.option("--quick", is_flag=True, help="Each kernel in one form; no limits, no speed.")
@click.option("--full", is_flag=True, help="Every epilogue and layout, limits to their ends.")
@click.option("--speed/--no-speed", default=True, help="Whether to measure what is slow.")
@click.option(
    "--report",
    "path",
    metavar="FILE",
    type=OutputFile(),
    help="Write all of it to this file, to be pasted into a report of a fault.",
)
@device_options
@click.pass_context
def doctor(
    context: click.Context,
    ops: tuple[str, ...],
    functions: tuple[str, ...],
    backends: tuple[str, ...] | None,
    quick: bool,
    full: bool,
    speed: bool,
    path: str | None,
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """See whether this device's driver can be believed, and what is slow here.

    Its limits are used to their ends; every scalar function and every kernel that may be chosen
    here computes awkward sizes and special values, which are held against NumPy in float64. What is
    right need not be looked at again where a model first uses it; what is wrong is not used from
    now on. A check that raises an error has no verdict, and the others go on. The exit code is 1
    where something is wrong, or has no verdict.

    With llvmpipe it takes three minutes of processor time, 40 seconds with --quick, which looks at
    functions and at each kernel in one form, with fewer sizes, not at limits, and gives no
    certificate.

    \b
    Examples:
      glnn doctor
      glnn doctor --op matmul --op conv2d
      glnn doctor --quick
      glnn doctor --function tanh --backend feedback
      glnn doctor --report report.txt
      glnn doctor --full --json
    """
    if quick and full:
        raise GlnnError("--quick: expected it without --full, got both")
    scope = ExaminationScope(_gl_backends(backends), ops or None, functions or None, full, quick)
    with Device(gpu, limits) as device:
        report = _report(device, scope, speed and scope.whole, shown=not as_json)
    if path is not None:
        write_report(path, printable_lines(report.text()))
    if as_json:
        print_json(report.to_json())
    else:
        _show(report, Screen(wide), path)
    if not report.ok:
        context.exit(WRONG)


def _gl_backends(backends: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(name for name in backends or NAMES if name != "cpu")


def _report(device: Device, scope: ExaminationScope, speed: bool, shown: bool) -> Report:
    """Examine `device`. Limits are tried only where the scope is the whole device."""
    checks = Checks()
    limits: Limits | None = None
    measured: Speed | None = None
    with progress(shown) as bar:
        task = bar.add_task("limits", total=None)

        def begin_limit(what: str) -> None:
            bar.update(task, description=what)

        def advance(what: str, done: int, total: int) -> None:
            bar.update(task, description=what[:48], completed=done, total=total)

        if scope.whole and not scope.quick:
            probe = partial(probe_limits, device, full=scope.full, progress=begin_limit)
            limits = checks.run("limits", probe, None)
            if device.lost is not None:
                device = checks.run("a new context after a reset", device.reopen, device)
        # From here on, the device has the limits that hold.
        machine = checks.run("the machine", partial(describe_machine, device), None)
        examination = examine_device(device, scope, advance)
        if speed and not scope.quick and examination.lost is None:
            measure = partial(measure_speed, device, full=scope.full, progress=begin_limit)
            measured = checks.run("speed", measure, None)
    return Report(machine, examination, limits, measured, tuple(checks.failed))


def printable_lines(text: str) -> str:
    """Escape control characters in `text`, but not its line breaks."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _show(report: Report, out: Screen, path: str | None) -> None:
    heads = (Column("op", least=12), Column("backend", least=None), figures("right"))
    bad = (figures("in parts"), figures("not used"), Column("why", 1, least=24))
    listed = Table((*heads, *bad))
    for row in rows(report.examination):
        listed.add(*row)
    out.show(listed)
    for sentence in report.sentences:
        out.say(sentence)
    out.say(f"For a report of a fault: {path or 'glnn doctor --report FILE'}")
