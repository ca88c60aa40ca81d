"""Small shapes of every operator by every kernel that may be chosen: none is refused by chance.

    python -m tests.shape_sweep --backend feedback --count 40 --op pool2d

On a driver that is right. Each kernel is examined from nothing: `make check-examination` has all.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping

from glnn.backends.gl import GlBackend
from glnn.core.types import Shape, TensorType
from glnn.doctor.kernel_accuracy import PROBLEMS
from glnn.errors import GlnnError
from glnn.graph.operators import Matmul, Pool2d, Reduce
from glnn.graph.operators.conv2d import Conv2d
from glnn.kernels.capability_check import fitted, why_not_device
from glnn.kernels.library import declared
from glnn.kernels.op_spec import OpSpec
from glnn.validation.examination import examine_choices
from tests.backends.harness import BACKENDS, taken

MOST = 5  # along an axis


def examined_problems(backend: GlBackend, problems: Iterable[OpSpec]) -> list[str]:
    """Examine all kernels that compute each of `problems` and return what they are refused for."""
    offers = backend.device.capabilities
    found: list[str] = []
    for spec in problems:
        for kernel in declared():
            if (kernel.backend, kernel.op) != (backend.name, spec.op.name) or kernel.stages:
                continue
            one = taken(fitted(kernel, offers) or kernel, spec)
            if one is None or why_not_device(one, offers) is not None:
                continue
            backend.verdicts.found.clear()
            try:
                examine_choices(backend, [(one, spec)])
            except GlnnError as error:  # a size that this device has not
                found.append(f"{kernel.op}/{kernel.name} of {spec.shapes}: {error}")
            found += [
                f"{kernel.op}/{kernel.name} of {spec.op} {spec.shapes}: {seen.notable}"
                for seen in backend.verdicts.seen()
                if seen.notable
            ]
    return found


def small_problems(op: str, count: int, seed: int = 0) -> Iterator[OpSpec]:
    """Up to `count` problems of the operator `op` whose axes are 1 to 5 long, at random.

    Sizes that are equal in one of PROBLEMS stay equal: so operands fit each other.
    """
    choose = random.Random(f"{op} {seed}")
    known: set[OpSpec] = set()
    forms = [*PROBLEMS[op], *_more(op)]
    for _ in range(20 * count):
        if len(known) == count:
            return
        own, given, *rest = choose.choice(forms)
        sizes = {n for one in given.values() for n in _shape(one)}
        kept = choose.choice((0.0, 0.3, 0.6))
        new = {n: n if choose.random() < kept else choose.randint(1, MOST) for n in sizes}
        shapes = {
            name: TensorType(tuple(new[n] for n in _shape(one)), _dtype(one))
            for name, one in given.items()
        }
        try:
            spec = OpSpec.create(own, shapes, {}, *rest)
            spec.resized(spec.op_shapes)
        except (GlnnError, ValueError, IndexError, ZeroDivisionError):
            continue  # attributes that go with other sizes
        if spec not in known and 0 not in spec.result_shape:
            known.add(spec)
            yield spec


def _more(op: str) -> Iterator[tuple[object, Mapping[str, Shape]]]:
    """Forms beside those of PROBLEMS, where one result is made of many numbers."""
    if op == "pool2d":
        for kernel, stride, padding, ceil in (
            (2, 2, 0, False),
            (3, 2, 0, True),
            (3, 3, 1, False),
            (2, 1, 1, False),
            (4, 4, 0, False),
        ):
            for mode in ("average", "max"):
                pads = (padding,) * 4
                pool = Pool2d(mode, (kernel,) * 2, (stride,) * 2, pads, ceil_mode=ceil)
                yield pool, {"x": (11, 12, 13, 14)}
        yield Pool2d("average", None), {"x": (11, 12, 13, 14)}
    elif op == "conv2d":
        yield Conv2d(), {"x": (11, 17, 4, 4), "weight": (12, 17, 4, 4)}
    elif op == "matmul":
        yield Matmul(), {"x": (11, 96), "weight": (12, 96)}
        yield Matmul(), {"x": (11, 13), "weight": (12, 13)}
    elif op == "reduce":
        for kind in ("sum", "mean"):
            yield Reduce(kind, (0, 1)), {"x0": (11, 12, 13)}
            yield Reduce(kind, (1, 2)), {"x0": (11, 12, 13)}


def _shape(one: TensorType | Shape) -> Shape:
    return one.shape if isinstance(one, TensorType) else one


def _dtype(one: TensorType | Shape) -> object:
    return one.dtype if isinstance(one, TensorType) else TensorType(one).dtype


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="compute")
    parser.add_argument("--op", action="append", choices=sorted(PROBLEMS))
    parser.add_argument("--count", type=int, default=60, help="shapes of each operator")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ |= {"GLNN_TRUST": "0", "GLNN_CACHE": ""}
    from glnn.gl import Device

    wrong = 0
    with Device() as device:
        backend = BACKENDS[args.backend](device)
        for op in args.op or sorted(PROBLEMS):
            problems = list(small_problems(op, args.count, args.seed))
            found = examined_problems(backend, problems)
            wrong += len(found)
            print(f"{args.backend} {op}: {len(problems)} shapes, {len(found)} refused", flush=True)
            print("".join(f"  {line}\n" for line in found), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
