"""What `glnn doctor` sees of a device beside its kernels: limits by use, what is slow, the machine.

What it is at goes to standard error as it goes. A limit that does not hold is kept, and glnn takes
the lesser number from then on: `glnn cache clear limits` forgets that.

    python -m benchmarks.doctor
    python -m benchmarks.doctor --gpu 0 --full
    python -m benchmarks.doctor --part limits --json
"""

from __future__ import annotations

import json
from typing import Any

import rich_click as click

from benchmarks.command import run
from glnn.cli.screen import Screen, say
from glnn.doctor.limits import probe_limits
from glnn.doctor.report import advice, describe_machine
from glnn.doctor.speed import measure_speed
from glnn.gl import Device

PARTS = ("limits", "speed", "machine")


@click.command(help=__doc__)
@click.option("--gpu", help="An EGL device's index, or a part of the renderer's name.")
@click.option("--part", type=click.Choice(PARTS), multiple=True, help="Only this.")
@click.option("--full", is_flag=True, help="Limits and memory to their ends: minutes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(gpu: str | None, part: tuple[str, ...], full: bool, as_json: bool) -> None:
    device, parts = Device(gpu), part or PARTS
    found: dict[str, Any] = {"device": device.capabilities.renderer}
    lines: dict[str, list[str]] = {}
    if "limits" in parts:
        limits = probe_limits(device, full, lambda what: say(f"limits: {what}"))
        device = device.reopen() if device.lost else device
        found["limits"], lines["limits"] = limits.to_json(), limits.lines()
    if "speed" in parts:
        speed = measure_speed(device, full, lambda what: say(f"speed: {what}"))
        sentences = advice(speed)
        found["speed"] = {**speed.to_json(), "sentences": sentences}
        lines["what is slow"], lines["so"] = speed.lines(), list(sentences)
    if "machine" in parts:
        machine = describe_machine(device)
        found["machine"], lines["the machine"] = machine.to_json(), machine.lines()
    device.close()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    out = Screen()
    for title, texts in lines.items():
        out.say(f"{title}\n")
        for text in texts:
            out.say(f"  {text}")
        out.say("")


if __name__ == "__main__":
    run(main)
