"""The ONNX backend test suite by `glnn.onnx_backend`: what each case came to.

    python -m tests.onnx.conformance --backend compute --json build/conformance.json
    python -m tests.onnx.conformance --kind node --match relu
    python -m tests.onnx.conformance --backend feedback --strict

Each case is right on the GPU ("gpu"), right with steps on the host ("host"), "refused" with a
reason, or "wrong". Integers, bools and texts are exact, float32 within 1e-3 and 1e-5, float16
within 1e-2. --strict has the cases of `gpu_cases` alone, with `onnx.reference` unimportable.
--corrupt has every download from the GPU changed: none is right then, but results without numbers.
--share 3 has each third case.
--type float16 has the cases with that type in the place of float32, as far as ONNX has such
operators. What is expected of float64 are the case's own numbers; of narrower types, what ONNX
Runtime, or the `onnx` package where that refuses, computes in float32 of the operands rounded.
--examine has kernels examined before their first use, from an empty cache that all processes share,
and cases in an order by --order, by default another each day. --forget empties it before each case.
--check fails where a case is not what it should be: see `failures.toml`, and `types.toml`.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from glnn import onnx_backend
from glnn.core.fileio import atomic_write
from glnn.errors import GlnnError
from glnn.gl.buffer import Buffer
from glnn.kernels.verdicts import Verdicts
from tests.onnx import gpu_cases
from tests.onnx.child import Child
from tests.onnx.gpu_cases import FAILURES, KINDS, cases
from tests.onnx.retyped import DTYPES, of_type, retyped, rounded, rounded_float32, through
from tests.onnx.runtime import results_of

RTOL = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 2**-6, "float64": 1e-3}
ATOL = 1e-5
ROUNDING = 2.0**-20  # of a result's greatest number: what sums of float32 are apart
MASKED = 1e30  # numbers from here on stand for infinity
STATUSES = ("gpu", "host", "refused", "wrong")
TYPES = Path(__file__).with_name("types.toml")
ILLEGAL = "illegal"  # a case that ONNX does not have of another type
LONGEST = 300.0  # seconds of a case: a process that hangs says where, and all of it fails
SETTINGS = {
    "LP_NUM_THREADS": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "GALLIVM_PERF": "nopt",
    "GLNN_TRUST": "1",
    "GLNN_CACHE": "",
}
"""What processes are told. llvmpipe and NumPy compute in the thread that asks: cases are small, and
as many processes as there are cores leave their threads nothing but to wait for one another. LLVM
optimises no programs that run once. Every result is looked at here, so that nothing is gained by a
look at the kernels, or by what is kept on disk."""


@dataclass(frozen=True)
class Result:
    """What a case came to."""

    kind: str
    name: str
    ops: str
    """The model's operators, as many as differ."""
    status: str
    """gpu, host, refused or wrong; illegal where ONNX has no such case of another type."""
    reason: str = ""
    seconds: float = 0.0
    empty: bool = False
    """Whether the results have no numbers."""


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


def difference(found: Any, expected: Any, near: float = 0.0) -> str:
    """How `found` is wrong; empty where it is right.

    near: how far apart floats may be, as a share of the greatest one, where what was rounded on the
    way is no smaller than that.
    """
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return f"expected {len(expected)} values, got {found!r:.60}"
        pairs = zip(found, expected, strict=True)
        return next(filter(None, (difference(*pair, near) for pair in pairs)), "")
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
    wide = [np.asarray(one).astype(np.float64) for one in (found, expected)]
    sizes = np.abs(wide[1])
    atol = max(ATOL, near * float(sizes[sizes < MASKED].max(initial=0)))
    try:
        np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return "; ".join([line for line in lines if "ax" in line or "Mismatch" in line] or lines)
    return ""


_ORACLE = Child()


def typed_data(
    case: Any, dtype: np.dtype[Any]
) -> Iterator[tuple[onnx.ModelProto, list[Any], list[Any]]]:
    """The model, inputs and outputs of each set of a case with `dtype` in the place of float32."""
    for model, inputs, outputs in data(case):
        other = retyped(model, dtype)
        if other is None:
            continue
        if dtype != np.float64:
            given = [rounded_float32(one, dtype) for one in inputs]
            outputs = _expected(through(model, dtype), given, outputs)
        types = [one.type for one in other.graph.output]
        right = [of_type(y, type, dtype) for y, type in zip(outputs, types, strict=True)]
        yield other, [rounded(one, dtype) for one in inputs], right


def _near(model: onnx.ModelProto, dtype: np.dtype[Any] | None) -> float:
    """How far apart results may be, as a share of the greatest number: see `difference`.

    Models of several nodes have every tensor rounded to `dtype`.
    """
    if dtype is None:
        return 0.0
    several = len(model.graph.node) > 1
    return max(ROUNDING, 2 * float(ml_dtypes.finfo(dtype).eps) if several else 0.0)


def _expected(model: onnx.ModelProto, inputs: list[Any], outputs: list[Any]) -> list[Any]:
    """What a model of float32 gives; the case's own outputs where nothing else computes it."""
    for function in (results_of, reference_results):
        ran, found = _ORACLE.call(function, model.SerializeToString(), inputs)
        if ran:
            return list(found)
    return outputs


def reference_results(model: bytes, inputs: Sequence[Any]) -> list[Any]:
    """Return what the `onnx` package's reference computes of a model for its inputs in order."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.ModelProto.FromString(model))
    found = evaluator.run(None, dict(zip(evaluator.input_names, inputs, strict=True)))
    return list(found)


def run(kind: str, case: Any, backend: str, dtype: np.dtype[Any] | None = None) -> Result:
    """What `case` comes to on `backend`, with `dtype` in the place of float32 where it is given."""
    ops, status, reason, empty, start = "", "gpu", "", True, time.perf_counter()
    count = 0
    try:
        for model, inputs, outputs in data(case) if dtype is None else typed_data(case, dtype):
            count += 1
            ops = " ".join(sorted({node.op_type for node in model.graph.node}))
            empty = empty and all(isinstance(y, np.ndarray) and not y.size for y in outputs)
            rep = onnx_backend.prepare(model, backend=backend)
            found = rep.run(inputs)
            if wrong := difference(list(found), outputs, _near(model, dtype)):
                status, reason = "wrong", wrong
                break
            if rep.session.hosted:
                status, reason = "host", "; ".join(rep.session.hosted)
    except GlnnError as error:
        status, reason = "refused", str(error)
    except Exception as error:
        status, reason = "wrong", f"{type(error).__name__}: {error}"
    if dtype is not None and not count:
        status = ILLEGAL if status == "gpu" else status
    return Result(kind, case.name, ops, status, reason, time.perf_counter() - start, empty)


_CASES: dict[tuple[str, str], Any] = {}


_FORGET = []  # whether what was seen of kernels is dropped before each case


def _start(kinds: Sequence[str], strict: bool, corrupt: bool, forget: bool) -> None:
    """What a process does first."""
    if forget:
        _FORGET.append(True)
    warnings.simplefilter("ignore")  # NumPy's, of the suite's own numbers
    logging.getLogger("glnn").setLevel(logging.ERROR)  # what the host computes is in the table
    _CASES.update({(kind, case.name): case for kind, case in cases(kinds)})
    if strict:
        sys.modules["onnx.reference"] = None  # type: ignore[assignment]
    if corrupt:
        corrupt_downloads()


def corrupt_downloads() -> None:
    """Change whatever comes from the GPU in this process, by a hook of tests."""
    read = Buffer._read

    def corrupted(self: Buffer, out: Any = None) -> Any:
        found = read(self, out)
        if found.dtype.kind == "f":
            found[...] = np.where(np.isfinite(found), found * 1.5 + 1, 0)
        else:
            np.bitwise_xor(found, np.array(1, found.dtype), out=found)
        return found

    Buffer._read = corrupted  # type: ignore[method-assign]


def forget_verdicts() -> None:
    """Drop what this process has seen of kernels, and what the cache keeps of that."""
    for one in gc.get_objects():
        if isinstance(one, Verdicts):
            one.forget()


def _one(kind: str, name: str, backend: str, dtype: np.dtype[Any] | None) -> Result:
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    if _FORGET:
        forget_verdicts()
    try:
        return run(kind, _CASES[kind, name], backend, dtype)
    finally:
        faulthandler.cancel_dump_traceback_later()


def names_of(kinds: Sequence[str], match: str, *, gpu: bool) -> list[tuple[str, str]]:
    """Kind and name of each case of `kinds` whose name `match` finds; gpu: of the GPU's alone."""
    if not gpu:
        return [(kind, case.name) for kind, case in cases(kinds, match)]
    return [one for one in gpu_cases.frozen() if one[0] in kinds and re.search(match, one[1])]


def all_results(
    names: Sequence[tuple[str, str]],
    kinds: Sequence[str] = KINDS,
    backend: str = "compute",
    workers: int = 1,
    *,
    strict: bool = False,
    corrupt: bool = False,
    forget: bool = False,
    dtype: np.dtype[Any] | None = None,
) -> Iterator[Result]:
    """Those of all cases so named, in `workers` processes of their own."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)  # of the processes: this one has NumPy loaded
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.onnx.loaded"])
    start = (kinds, strict, corrupt, forget)
    with ProcessPoolExecutor(workers, context, _start, start) as pool:
        more = [[one] * len(names) for one in (backend, dtype)]
        yield from pool.map(_one, *zip(*names, strict=True), *more, chunksize=8)


def unexpected(results: Sequence[Result], *, strict: bool, corrupt: bool) -> list[str]:
    """What of `results` should be otherwise, a line each."""
    failures = tomllib.loads(FAILURES.read_text("utf-8"))
    found: list[str] = []
    for one in results:
        known = one.name in failures.get(one.kind, {})
        right = one.status == "gpu" or (one.status == "host" and not strict)
        if corrupt:
            if one.status != "wrong" and not one.empty:
                found.append(
                    f"{one.kind} {one.name} is {one.status} though the GPU's numbers are not"
                )
        elif known and right:
            found.append(f"{one.kind} {one.name} is right: take it off {FAILURES.name}")
        elif not known and not right:
            found.append(f"{one.kind} {one.name} is {one.status}: {one.reason}")
    return found


def unexpected_of_type(results: Sequence[Result], name: str) -> list[str]:
    """What of `results` with that type in the place of float32 should be otherwise, a line each."""
    failures = tomllib.loads(FAILURES.read_text("utf-8"))
    reasons: dict[str, str] = tomllib.loads(TYPES.read_text("utf-8")).get(name, {})
    failed = [one for one in results if one.status in ("refused", "wrong")]
    return [
        f"{one.kind} {one.name} of {name} is {one.status}: {one.reason}"
        for one in failed
        if one.name not in reasons and one.name not in failures.get(one.kind, {})
    ] + [
        f"{one.kind} {one.name} of {name} is right: take it off {TYPES.name}"
        for one in results
        if one.name in reasons and one not in failed
    ]


def by_operator(results: Sequence[Result]) -> Table:
    """How many cases of each operator came to what."""
    table = Table("operator", "gpu", "host", "refused", "wrong", title="ONNX backend test suite")
    counts: dict[str, Counter[str]] = {}
    for one in results:
        for op in one.ops.split():
            counts.setdefault(op, Counter())[one.status] += 1
    for op, found in sorted(counts.items()):
        table.add_row(op, *(str(found[status] or "") for status in STATUSES))
    total = Counter(one.status for one in results)
    table.add_section()
    table.add_row("cases", *(str(total[status]) for status in STATUSES))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", default="compute", choices=["compute", "feedback", "cpu"])
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--match", default="", help="a regular expression of names")
    parser.add_argument(
        "--share", type=int, choices=range(1, 100), metavar="N", default=1, help="one case in N"
    )
    parser.add_argument("--type", choices=DTYPES, help="in the place of float32")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--strict", action="store_true", help="the GPU's cases, by the GPU alone")
    parser.add_argument("--corrupt", action="store_true", help="what comes from the GPU is changed")
    parser.add_argument("--examine", action="store_true", help="kernels are held against NumPy")
    parser.add_argument("--forget", action="store_true", help="each case from an empty cache")
    parser.add_argument("--order", type=int, default=date.today().toordinal(), help="a seed")
    parser.add_argument("--json", type=Path, help="where to save the results")
    parser.add_argument("--table", action="store_true", help="print the table by operator")
    parser.add_argument(
        "--check", action="store_true", help="fail where one is not as it should be"
    )
    parser.add_argument("--quiet", action="store_true", help="do not print what is not on the GPU")
    args = parser.parse_args()
    found: list[Result] = []
    more = {"strict": args.strict, "corrupt": args.corrupt}
    kinds = args.kind or KINDS
    dtype = DTYPES[args.type] if args.type else None
    names = names_of(kinds, args.match, gpu=args.strict or args.corrupt)
    if args.examine:
        random.Random(args.order).shuffle(names)
    names = names[:: args.share]
    if args.examine:
        print(f"kernels are examined, from an empty cache: --order {args.order}", flush=True)
    with (
        TemporaryDirectory(prefix="glnn-conformance-") as cache,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        if args.examine:
            os.environ |= {"GLNN_TRUST": "0", "GLNN_CACHE": cache}
        task = progress.add_task("cases", total=len(names))
        for result in all_results(
            names, kinds, args.backend, args.workers, **more, forget=args.forget, dtype=dtype
        ):
            found.append(result)
            progress.advance(task)
            if not args.quiet and result.status not in (
                "wrong" if args.corrupt else "gpu",
                ILLEGAL,
            ):
                line = f"{result.status:8} {result.kind} {result.name}: {result.reason:.300}"
                if not args.check:
                    print(line, flush=True)
            if args.json and len(found) % 100 == 0:
                save(args.json, found)
    if args.json:
        save(args.json, found)
    if args.table:
        Console().print(by_operator(found))
    counts = Counter((one.kind, one.status) for one in found)
    for (kind, status), count in sorted(counts.items()):
        print(f"{kind:18} {status:8} {count:5}")
    wrong: list[str] = []
    if args.check:
        wrong = unexpected_of_type(found, args.type) if dtype else unexpected(found, **more)
    print("".join(f"unexpected: {line:.300}\n" for line in wrong), end="")
    return 1 if wrong else 0


def save(path: Path, results: Sequence[Result]) -> None:
    """Write `results` to a JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as stream:
        stream.write((json.dumps([asdict(one) for one in results], indent=1) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
