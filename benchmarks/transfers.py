"""What it costs to move arrays to the device and back, here, in another glnn, and in PyTorch.

Both versions run alternately, each time in a process of its own, and PyTorch in one more, where it
is installed and has CUDA. "run" is a model's run that does next to nothing, a ReLU, from host array
to host array; PyTorch's is `torch.from_numpy(x).cuda().cpu()`, of pageable memory. "up" and "down"
are the halves, of device buffers. "pinned" is PyTorch's way there and back between tensors in
pinned memory, which nobody's arrays are in: for information. GB/s count both ways of a run.
"pixels" are numbers of 8 bits, as many as there are floats of that size, which the host widens and
scales before a run, or which go up as they are, so that the model does; little comes back. A
version without inputs of 8 bits has the host do it in either case.

    python -m benchmarks.transfers --against ../before
    python -m benchmarks.transfers --against ../before --mib 0.004,0.3,4,64 --json
    python -m benchmarks.transfers --backend feedback --mib 4 --seconds 0.2
"""

from __future__ import annotations

import json
from pathlib import Path

import rich_click as click

from benchmarks import trees
from benchmarks.command import run
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.cli.screen import Screen, number
from glnn.errors import GlnnError

SCRIPT = Path(__file__).with_name("one_transfers.py")
PYTORCH = """
import json, sys, time
from statistics import median
import numpy as np
try:
    import torch
    there = torch.cuda.is_available()
except ImportError:
    there = False

def milliseconds(work, seconds):
    for share in (0.5, 1.0):
        times, start = [], time.perf_counter()
        while len(times) < 5 or time.perf_counter() - start < share * seconds:
            before = time.perf_counter()
            work()
            times.append(1e3 * (time.perf_counter() - before))
    return median(times)

def measure(name, seconds):
    x = np.random.default_rng(0).random((1, max(1, round(float(name) * 2**20 / 4))), np.float32)
    host, device = torch.from_numpy(x), torch.from_numpy(x).cuda()
    given, got = host.pin_memory(), torch.empty_like(host).pin_memory()
    assert np.array_equal(host.cuda().cpu().numpy(), x)
    def pinned():
        device.copy_(given, non_blocking=True)
        got.copy_(device, non_blocking=True)
        torch.cuda.synchronize()
    def up():
        host.cuda()
        torch.cuda.synchronize()
    ways = {"run": lambda: host.cuda().cpu(), "up": up, "down": device.cpu, "pinned": pinned}
    return {f"{name} MiB: {way}": milliseconds(work, seconds) for way, work in ways.items()}

found, (_, names, seconds) = {}, sys.argv[1:]
for name in names.split(",") if there else ():
    found |= measure(name, float(seconds))
print(json.dumps(found))
"""


def _sizes(mib: str) -> list[str]:
    parts = [part.strip() for part in mib.split(",")]
    if not all(part.replace(".", "", 1).isdecimal() and float(part) > 0 for part in parts):
        raise GlnnError(f"--mib: expected numbers as 0.3,4, got {mib!r}")
    return parts


@click.command(help=__doc__)
@trees.against_option
@click.option(
    "--backend", type=click.Choice(["compute", "feedback"]), default="compute", show_default=True
)
@click.option("--mib", default="0.004,0.3,4,64", show_default=True, help="Sizes of the arrays.")
@trees.few_rounds_option
@click.option(
    "--seconds", type=click.FloatRange(0), default=0.2, show_default=True, help="Of each measure."
)
@click.option("--peers/--no-peers", default=True, help="Also time PyTorch.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    against: Path | None,
    backend: str,
    mib: str,
    rounds: int,
    seconds: float,
    peers: bool,
    as_json: bool,
) -> None:
    sizes = _sizes(mib)
    asked = backend, ",".join(sizes), str(seconds)
    about = {**machine(open_backend(backend).device), "backend": backend, "rounds": str(rounds)}
    script, peer = SCRIPT.read_text("utf-8"), PYTORCH if peers else ""
    found = trees.in_turn(against, rounds, script, *asked, shown=not as_json, peer=peer)
    if as_json:
        print(json.dumps({**about, "rows": found}, indent=2))
        return
    out = Screen()
    out.say(", ".join(f"{k} {v}" for k, v in about.items()))
    ran = any(row["peer"] for row in found.values())
    trees.show(found, {}, "host arrays to the device and back", "PyTorch" if ran else "")
    rates = table("a run of", ">GB/s here", ">there", ">PyTorch")
    for size in sizes:
        row = found[f"{size} MiB: run"]
        times = [row[side] for side in ("here", "there", "peer")]
        rates.add(f"{size} MiB", *(number(_rate(float(size), ms)) for ms in times))
    out.show(rates, "bytes up and down")


def _rate(mib: float, ms: float | None) -> float | None:
    """GB/s of so much up and as much down."""
    return 2 * mib * 2**20 / ms / 1e6 if ms else None


if __name__ == "__main__":
    run(main)
