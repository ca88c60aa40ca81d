"""The ONNX backend test suite by `glnn.onnx_backend`: what each case came to.

    python -m tests.onnx.conformance --backend compute --json build/conformance.json
    python -m tests.onnx.conformance --kind node --match relu

Each case is right on the GPU ("gpu"), right with steps on the host ("host"), "refused" with a
reason, or "wrong". Integers, bools and texts are exact, float32 within 1e-3 and 1e-5, float16
within 1e-2.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from glnn import onnx_backend
from glnn.errors import GlnnError

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
RTOL = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 2**-6, "float64": 1e-3}
ATOL = 1e-5


@dataclass(frozen=True)
class Result:
    """What a case came to."""

    kind: str
    name: str
    ops: str
    """The model's operators, as many as differ."""
    status: str
    """gpu, host, refused or wrong."""
    reason: str = ""
    seconds: float = 0.0


def cases(kinds: Sequence[str] = KINDS, match: str = "") -> list[tuple[str, Any]]:
    """The cases of `kinds` whose names `match` finds."""
    found = [(kind, case) for kind in kinds for case in load_model_tests(kind=kind)]
    return sorted(
        (pair for pair in found if re.search(match, pair[1].name)), key=lambda p: (p[0], p[1].name)
    )


def data(case: Any) -> Iterator[tuple[onnx.ModelProto, list[Any], list[Any]]]:
    """The model, inputs and outputs of each set of a case."""
    if case.model is not None:
        for inputs, outputs in case.data_sets:
            yield case.model, list(map(_array, inputs)), list(map(_array, outputs))
        return
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    for one in sorted(folder.glob("test_data_set*")):
        pairs = (("input", model.graph.input), ("output", model.graph.output))
        inputs, outputs = ([*_read(one, name, infos)] for name, infos in pairs)
        yield model, inputs, outputs


def _read(folder: Path, name: str, infos: Sequence[Any]) -> Iterator[Any]:
    for number in range(len(list(folder.glob(f"{name}_*.pb")))):
        content = (folder / f"{name}_{number}.pb").read_bytes()
        kind = infos[number].type.WhichOneof("value")
        if kind == "sequence_type":
            yield numpy_helper.to_list(onnx.SequenceProto.FromString(content))
        elif kind == "optional_type":
            yield numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
        else:
            yield numpy_helper.to_array(onnx.TensorProto.FromString(content))


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def difference(found: Any, expected: Any) -> str:
    """How `found` is wrong; empty where it is right."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return f"expected {len(expected)} values, got {found!r:.60}"
        return next(filter(None, map(difference, found, expected)), "")
    if expected is None:
        return "" if found is None else f"expected nothing, got {found!r:.60}"
    expected = np.asarray(expected)
    if found.shape != expected.shape:
        return f"expected shape {expected.shape}, got {found.shape}"
    if expected.dtype.kind in "OUS":
        return "" if (found == expected).all() else f"expected {expected!r:.60}, got {found!r:.60}"
    if found.dtype != expected.dtype:
        return f"expected {expected.dtype}, got {found.dtype}"
    rtol = RTOL.get(expected.dtype.name)
    if rtol is None:
        same = found.view(np.uint8) == expected.view(np.uint8) if found.ndim else found == expected
        return "" if np.all(same) else f"{int(np.sum(found != expected))} numbers differ"
    wide = (np.asarray(one).astype(np.float64) for one in (found, expected))
    try:
        np.testing.assert_allclose(*wide, rtol=rtol, atol=ATOL)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if "Max" in line or "Mismatch" in line]
        return "; ".join(lines)
    return ""


def run(kind: str, case: Any, backend: str) -> Result:
    """What `case` comes to on `backend`."""
    ops, status, reason, start = "", "gpu", "", time.perf_counter()
    try:
        for model, inputs, outputs in data(case):
            ops = " ".join(sorted({node.op_type for node in model.graph.node}))
            rep = onnx_backend.prepare(model, backend=backend)
            found = rep.run(inputs)
            if wrong := difference(list(found), outputs):
                status, reason = "wrong", wrong
                break
            if rep.session.hosted:
                status, reason = "host", "; ".join(rep.session.hosted)
    except GlnnError as error:
        status, reason = "refused", str(error)
    except Exception as error:
        status, reason = "wrong", f"{type(error).__name__}: {error}"
    return Result(kind, case.name, ops, status, reason, time.perf_counter() - start)


_CASES: dict[tuple[str, str], Any] = {}


def _start(kinds: Sequence[str]) -> None:
    _CASES.update({(kind, case.name): case for kind, case in cases(kinds)})


def _one(kind: str, name: str, backend: str) -> Result:
    return run(kind, _CASES[kind, name], backend)


def all_results(kinds: Sequence[str], match: str, backend: str, workers: int) -> Iterator[Result]:
    """Those of all cases, in `workers` processes."""
    names = [(kind, case.name) for kind, case in cases(kinds, match)]
    if workers == 1:
        _start(kinds)
        for kind, name in names:
            yield _one(kind, name, backend)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start, (kinds,)) as pool:
        yield from pool.map(_one, *zip(*names, strict=True), [backend] * len(names), chunksize=8)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", default="compute")
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--match", default="", help="a regular expression of names")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="where to save the results")
    parser.add_argument("--quiet", action="store_true", help="only the sums")
    args = parser.parse_args()
    found = []
    for result in all_results(args.kind or KINDS, args.match, args.backend, args.workers):
        found.append(result)
        if not args.quiet and result.status != "gpu":
            print(
                f"{result.status:8} {result.kind} {result.name}: {result.reason:.300}", flush=True
            )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    print(Counter((one.kind, one.status) for one in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
