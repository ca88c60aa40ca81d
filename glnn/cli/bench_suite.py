"""`glnn bench --suite`: one device's speed on the same networks, as a table and as a file."""

from __future__ import annotations

import json
from typing import Any

import rich_click as click

from glnn.cli.options import print_json, write_report
from glnn.cli.screen import Column, Screen, Table, figures, number, progress
from glnn.gl import Device
from glnn.profiling.onnxruntime_peer import PEER
from glnn.runtime.options import NAMES
from glnn.suite.measure import measure_suite
from glnn.suite.report import doctor_faults, suite_report

ENGINES = (*NAMES, PEER)


def bench_suite(
    gpu: str | None, path: str | None, minutes: float, as_json: bool, wide: bool
) -> None:
    """Measure a device, and write the report to `path`, where one is given.

    After Ctrl-C the report is of what was measured, and click.Abort is raised.
    """
    with Device(gpu) as device, progress(not as_json) as bar:
        task = bar.add_task("suite", total=None)
        result = measure_suite(
            device, lambda what: bar.update(task, description=what[:48]), minutes
        )
        report = suite_report(result, device)
    if not as_json:  # before anything can go wrong with the file
        _show(report, Screen(wide))
    if path is not None:
        write_report(path, json.dumps(report, indent=1) + "\n")
    if as_json:
        print_json(report)
    elif path is not None:
        Screen(wide).say(f"written to {path}")
    if result.interrupted:
        raise click.Abort


def _show(report: dict[str, Any], out: Screen) -> None:
    out.say(f"{report['device']['renderer']}, {report['device']['version']}")
    table = Table((Column("network, ms a run"), *map(figures, ENGINES)))
    for name, times in report["networks"].items():
        table.add(
            name, *(number(times[one]["median_ms"] if one in times else None) for one in ENGINES)
        )
    out.show(table)
    if report["language_model"]:
        rates = Table((Column("language model"), figures("prompt tokens/s"), figures("tokens/s")))
        for name, rate in report["language_model"].items():
            rates.add(name, number(rate["prompt_tokens_per_s"]), number(rate["tokens_per_s"]))
        out.show(rates)
    for step, why in report["left_out"].items():
        out.say(f"{step} was left out: {why}")
    if report["doctor"] is not None:
        faults = ", ".join(doctor_faults(report["doctor"])) or "all that was looked at is right"
        out.say(f"doctor: {faults}; `glnn doctor` looks at everything")
    out.say(f"measured in {report['seconds']} s")
