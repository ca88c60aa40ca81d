"""A suite's report as JSON: numbers and what the device is, no names of people, hosts or files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from typing import Any

from glnn.core.redaction import redact
from glnn.doctor.examination import Examination
from glnn.doctor.report import Machine
from glnn.doctor.speed import MATMUL, Speed
from glnn.gl import Device
from glnn.suite.measure import SuiteResult
from glnn.version import VERSION

FORMAT = 2
"""The version of the report's format; docs/boards.md is made of this one."""
MACHINE = (
    *("system", "architecture", "processor", "processors", "memory", "python", "numpy", "blas"),
    "environment",
)
"""The fields of the machine that are reported."""


def suite_report(result: SuiteResult, device: Device) -> dict[str, Any]:
    """Return the report of `result`, measured on `device`, as plain dicts, lists and numbers."""
    offers = device.capabilities
    return {
        "format": FORMAT,
        "glnn": VERSION,
        "date": date.today().isoformat(),
        "device": {
            "renderer": offers.renderer,
            "vendor": offers.vendor,
            "version": offers.version_text,
            "software": offers.software,
        },
        "machine": _machine(result.machine),
        "networks": {
            name: {engine: asdict(one) for engine, one in times.items()}
            for name, times in result.networks.items()
        },
        "language_model": {name: asdict(one) for name, one in result.decoding.items()},
        **_speed(result.speed),
        "doctor": _doctor(result.examination),
        "left_out": {step: redact(why) for step, why in result.left_out.items()},
        "seconds": round(result.seconds),
    }


def _machine(machine: Machine | None) -> dict[str, Any] | None:
    if machine is None:
        return None
    known = asdict(machine)
    return {name: known[name] for name in MACHINE}


def _speed(speed: Speed | None) -> dict[str, Any]:
    """Return the measured products, launches and transfers.

    slowdown: seconds by the clock for a second of a thread's own, more than 1 where others ran.
    """
    if speed is None:
        return {"products": [], "launches": {}, "transfers": [], "slowdown": None}
    return {
        "products": [
            {"n": one.size, "flops": one.flops, "seconds": dict(one.on_device)}
            for one in speed.comparisons(MATMUL)
        ],
        "launches": {
            one.backend: {"alone_s": one.alone, "chained_s": one.chained} for one in speed.launches
        },
        "transfers": [asdict(one) for one in speed.transfers],
        "slowdown": speed.waiting,
    }


def _doctor(examination: Examination | None) -> Mapping[str, Any] | None:
    """Count the functions and kernels that were seen, and name what keeps it from being right."""
    if examination is None:
        return None
    counts: dict[str, Any] = {}
    for backend in examination.scope.backends:
        functions = [one for one in examination.functions if one.backend == backend]
        kernels = [one for one in examination.kernels if one.backend == backend]
        in_parts = [one for one in kernels if one.part is not None and not one.wrong]
        counts[backend] = {
            "functions": len({one.name for one in functions}),
            "kernels": sum(bool(one.problems) for one in kernels),
            "wrong": sorted(
                {one.name for one in functions if one.wrong}
                | {f"{one.op}/{one.kernel}" for one in kernels if one.wrong}
            ),
            "kernels_in_parts": sorted({f"{one.op}/{one.kernel}" for one in in_parts}),
        }
        if backend in examination.closed:
            counts[backend]["closed"] = redact(examination.closed[backend])
    no_verdict = {one.step: redact(one.error) for one in examination.failed}
    return {
        "ok": examination.ok,
        "backends": counts,
        "no_verdict": no_verdict,
        "lost": examination.lost,
    }


def doctor_faults(doctor: Mapping[str, Any]) -> list[str]:
    """Return what a report's `doctor` has against the device, in a few words each."""
    backends = doctor["backends"]
    return [
        *(f"{name} closed" for name, one in backends.items() if "closed" in one),
        *(f"{one} wrong" for names in backends.values() for one in names["wrong"]),
        *(f"{one} in parts" for names in backends.values() for one in names["kernels_in_parts"]),
        *(f"{step}: no verdict" for step in doctor["no_verdict"]),
        *(("the driver lost the context",) if doctor["lost"] is not None else ()),
    ]
