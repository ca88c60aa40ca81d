"""How long a new process takes from its start to a model's first result: cold, and warm.

    python -m benchmarks.startup vgg16 lenet net.onnx --networks FOLDER [--backend compute]
        [--rounds 3] [--driver-cache] [--peer] [--save startup.json] [--json]

Cold: the cache is empty, but Python's modules are compiled. Warm: the same again, with the plan,
weights and programs that the process before left. The driver's own cache on disk is of no use to
any of them: NVIDIA's is off (__GL_SHADER_DISK_CACHE=0), Mesa's an empty folder for each process, as
Mesa offers no program binaries where its cache is off. With --driver-cache it is on, as it is for
users: a folder that is empty for the cold start and kept for the warm ones. Results must be the
same bit for bit. Times are medians of `rounds` processes, in milliseconds; cold is one.

ms: from the first import to the first result. start: until the interpreter runs the first line,
before that. import: of numpy and glnn.session. device: until a context is open. session: the rest
until there is a session. first: the first run, of which restore is the making of a stored plan with
its programs and uploads; of a cold start, programs are the compilations. bound: 500 ms and the
packed bytes by the rate at which such bytes are uploaded there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import rich_click as click

from benchmarks.command import run
from benchmarks.tables import table
from glnn.cli.screen import Screen
from glnn.errors import GlnnError

ROOT = Path(__file__).parents[1]
NO_CACHES = {"__GL_SHADER_DISK_CACHE": "0", "MESA_SHADER_CACHE_DIR": "an empty folder"}
ALLOWED = 500.0  # ms of a warm start, beside its uploads
PARTS = ("start", "import", "device", "session", "first", "restore", "programs", "upload", "second")
Row = dict[str, Any]

CHILD = """
import time
began = time.time()
import json, sys
clock = time.perf_counter
asked, spent, at = json.loads(sys.argv[1]), {}, clock()
spent["start"] = began - asked["since"]

def note(name):
    global at
    now = clock()
    spent[name], at = now - at, now

def summed(owner, name, part):
    made = getattr(owner, name)
    def timed(*arguments, **named):
        first = clock()
        try:
            return made(*arguments, **named)
        finally:
            spent[part] = spent.get(part, 0.0) + clock() - first
    setattr(owner, name, timed)

import numpy as np
if asked["backend"] == "onnxruntime":
    import onnxruntime
    note("import")
    session = onnxruntime.InferenceSession(asked["model"], providers=["CPUExecutionProvider"])
    note("session")
    device = None
else:
    from glnn.session import InferenceSession
    note("import")
    from glnn.gl.device import SHARED
    device = SHARED.open()
    note("device")
    from glnn.gl.program import Program
    from glnn.stored.plan_cache import RestoredWeight, StoredModel
    summed(StoredModel, "plan", "restore")
    summed(Program, "load_stored", "programs")
    summed(RestoredWeight, "_create_buffer", "upload")
    at = clock()
    session = InferenceSession(asked["model"], asked["backend"])
    note("session")
generator, feeds = np.random.default_rng(0), {}
for i, info in enumerate(session.get_inputs()):
    first = [asked["batch"] if d == 0 else 16 for d, n in enumerate(info.shape)]
    shape = [n if isinstance(n, int) else m for n, m in zip(info.shape, first)]
    if "int" in info.type:
        kind = info.type[7:-1]
        feeds[info.name] = generator.integers(0, 2 if i else 100, shape).astype(kind)
    elif "bool" in info.type:
        feeds[info.name] = generator.random(shape) < 0.5
    else:
        feeds[info.name] = generator.standard_normal(shape, np.float32)
at = clock()
found = session.run(None, feeds)
note("first")
total = time.time() - began
if device is not None and not session.restored:
    spent["programs"] = sum(span.seconds for span in device.compiled)
at = clock()
again = session.run(None, feeds)
note("second")
assert all(a.tobytes() == b.tobytes() for a, b in zip(found, again))
np.savez(asked["result"], *found)
answer = {"ms": {name: 1e3 * seconds for name, seconds in spent.items()}, "total_ms": 1e3 * total}
if device is not None:
    answer["renderer"] = device.capabilities.renderer
    answer["restored"] = session.restored
    heavy = ("glnn.graph", "glnn.kernels", "glnn.compiler", "glnn.layers", "glnn.model", "onnx")
    answer["heavy"] = sum(name.startswith(heavy) for name in sys.modules)
    if session.restored and asked["nbytes"]:
        from glnn.gl.transfer import allocate_buffer
        words = np.ones(min(asked["nbytes"], 1 << 30) // 4, np.uint32)
        def upload():
            first = clock()
            made = allocate_buffer(device, len(words), words)
            device.finish()
            return clock() - first
        seconds = device.perform(lambda: min(upload() for _ in range(3)))
        answer["upload_gb_s"] = words.nbytes / seconds / 1e9
print(json.dumps(answer), flush=True)
"""


@dataclass(frozen=True)
class Bench:
    """What each process is given."""

    backend: str
    """The backend's name."""
    batch: int
    """Samples."""
    limit: float
    """Seconds that one process may take."""
    folder: Path
    """For caches and results."""
    drivers: bool = False
    """Whether the driver's own cache is on."""

    def process(self, model: str, cache: Path, result: Path, nbytes: int = 0) -> Row:
        """What one process answers. Raises GlnnError where it fails, or takes too long."""
        asked = {"model": model, "backend": self.backend, "batch": self.batch, "nbytes": nbytes}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        empty = tempfile.mkdtemp(dir=self.folder)
        known = {**NO_CACHES, "MESA_SHADER_CACHE_DIR": empty}
        if self.drivers:
            own = cache.parent / "driver"
            own.mkdir(exist_ok=True)
            known = dict.fromkeys(
                ("__GL_SHADER_DISK_CACHE_PATH", "MESA_SHADER_CACHE_DIR"), str(own)
            )
            known["__GL_SHADER_DISK_CACHE"] = "1"
        known |= {"GLNN_CACHE": str(cache), "GLNN_DEBUG": "0", "PYTHONPATH": path}
        environment = {**os.environ, **known}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        asked |= {"result": str(result), "since": time.time()}
        try:
            done = subprocess.run(
                [sys.executable, "-c", CHILD, json.dumps(asked)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=self.limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise GlnnError(f"{model}: no result in {self.limit:g} s") from None
        if done.returncode:
            raise GlnnError(f"{model}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        answer: Row = json.loads(done.stdout.splitlines()[-1])
        return answer

    def rows(self, model: str, rounds: int, peer: bool) -> Iterator[Row]:
        """Cold, warm, and with `peer` ONNX Runtime's, of one model."""
        name = Path(model).stem
        here = self.folder / f"{name}-{self.batch}"
        here.mkdir()
        cold = self.process(model, here / "cache", here / "cold.npz")
        yield {"model": name, "state": "cold", **cold}
        files = list((here / "cache" / "weights").glob("*"))
        nbytes = sum(path.stat().st_size for path in files)
        every = []
        for i in range(rounds):
            warm = self.process(model, here / "cache", here / f"warm{i}.npz", nbytes)
            warm["equal"] = _same(here / "cold.npz", here / f"warm{i}.npz")
            every.append(warm)
        row = {"model": name, "state": "warm", **_median(every), "packed_bytes": nbytes}
        rate = row.get("upload_gb_s")
        row["bound_ms"] = ALLOWED + (nbytes / rate / 1e6 if rate else 0.0)
        row["of_cold"] = row["total_ms"] / cold["total_ms"]
        yield row
        if peer and model.endswith(".onnx"):
            theirs = Bench("onnxruntime", self.batch, self.limit, self.folder)
            found = [theirs.process(model, here, here / "peer.npz") for _ in range(rounds)]
            yield {"model": name, "state": "ONNX Runtime, CPU", **_median(found)}


def _median(rows: Sequence[Row]) -> Row:
    """What several processes answered: medians of times, and whether all were right."""
    made = {**rows[0], "total_ms": median(row["total_ms"] for row in rows)}
    names = rows[0]["ms"]
    made["ms"] = {name: median(row["ms"].get(name, 0.0) for row in rows) for name in names}
    for name in ("equal", "restored"):
        if name in made:
            made[name] = all(row[name] for row in rows)
    return made


def _same(one: Path, other: Path) -> bool:
    """Whether two files hold the same arrays, bit for bit."""
    with np.load(one) as a, np.load(other) as b:
        return a.files == b.files and all(a[n].tobytes() == b[n].tobytes() for n in a.files)


def _line(row: Row) -> list[str]:
    parts = [f"{row['ms'][name]:.0f}" if name in row["ms"] else "" for name in PARTS]
    told = f"{row['bound_ms']:.0f}" if "bound_ms" in row else ""
    ratio = f"{row['of_cold']:.3f}" if "of_cold" in row else ""
    right = {True: "yes", False: "NO"}.get(row.get("equal", ""), "")
    mib = f"{row['packed_bytes'] / 2**20:.1f}" if "packed_bytes" in row else ""
    total = f"{row['total_ms']:.0f}"
    return [row["model"], row["state"], total, *parts, told, ratio, mib, right]


@click.command(help=__doc__)
@click.argument("models", nargs=-1)
@click.option(
    "--networks", type=click.Path(path_type=Path, exists=True), help="A folder of .onnx files."
)
@click.option("--backend", default="compute", show_default=True)
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--limit", default=120.0, show_default=True, help="Seconds that a process may take.")
@click.option("--budget", default=540.0, show_default=True, help="Seconds to begin models in.")
@click.option("--driver-cache", is_flag=True, help="Let the driver keep what it compiles, too.")
@click.option("--peer", is_flag=True, help="Also ONNX Runtime on the CPU, of .onnx files.")
@click.option("--save", type=click.Path(path_type=Path), help="A file to write after each row.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    models: tuple[str, ...],
    networks: Path | None,
    backend: str,
    batch: int,
    rounds: int,
    limit: float,
    budget: float,
    driver_cache: bool,
    peer: bool,
    save: Path | None,
    as_json: bool,
) -> None:
    asked = [*models, *(map(str, sorted(networks.glob("*.onnx"))) if networks else ())]
    if not asked:
        raise GlnnError("expected models, by name or as files, or --networks")
    end = time.monotonic() + budget
    found: Row = {"backend": backend, "batch": batch, "driver_cache": driver_cache, "rows": []}
    found["environment"] = {} if driver_cache else NO_CACHES
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(backend, batch, limit, Path(folder), driver_cache)
        for model in asked:
            if time.monotonic() > end:
                found.setdefault("left_out", []).append(model)
                continue
            try:
                for row in bench.rows(model, rounds, peer):
                    found["rows"].append(row)
                    click.echo("  ".join(_line(row)), err=True)
                    _write(save, found)
            except GlnnError as error:
                found.setdefault("failed", {})[model] = str(error)
                click.echo(str(error), err=True)
                _write(save, found)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    numbers = (f">{name}" for name in ("ms", *PARTS, "bound", "of cold", "MiB"))
    rows = table("model", "state", *numbers, "equal")
    for row in found["rows"]:
        rows.add(*_line(row))
    Screen().show(rows)


def _write(path: Path | None, found: Row) -> None:
    if path is not None:
        path.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    run(main)
