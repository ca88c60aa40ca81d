"""Variants of the ONNX backend test suite's cases of one node, held against ONNX Runtime.

    python -m tests.onnx.variants --check
    python -m tests.onnx.variants --match '^test_clip' --backend compute

Each optional input, attribute and output of a case is left out, one at a time, or an output asked
for; an operand of one element is given as a scalar, a scalar as an array of shape (1,). All sizes
are left open, or such as only a run tells. What ONNX Runtime computes glnn must compute too, with
the same numbers; what it refuses is not judged. Both run in child processes: ONNX Runtime crashes
on some variants. --share 20 has each twentieth variant. --check fails where a variant is not what
it should be: `variants.toml` has those that differ for a reason.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper
from rich.console import Console
from rich.progress import Progress

from tests.onnx.child import Child
from tests.onnx.conformance import ROUNDING, SETTINGS, data, difference
from tests.onnx.gpu_cases import cases, model_of
from tests.onnx.runtime import results_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REASONS = Path(__file__).with_suffix(".toml")
BACKENDS = ("cpu", "compute")
COMPRESS = 11  # the first operator set whose Compress takes negative axes
UNJUDGED = "unjudged"
OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
ENDLESS = frozenset({"Loop"})  # operators that may run for ever without one of their inputs


Edit = Callable[[onnx.GraphProto, dict[str, Any]], None]
"""Changes a model's graph and the arrays of its inputs, by name."""


@dataclass(frozen=True)
class Variant:
    """A model of one node, changed in one place, and its inputs."""

    case: str
    """The name of the suite's case."""
    change: str
    """What was changed: "input bias left out"."""
    operator: str
    model: bytes = field(repr=False)
    inputs: Sequence[Any] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.case}: {self.change}"


@dataclass(frozen=True)
class Outcome:
    """What a variant came to on a backend."""

    variant: Variant
    backend: str
    status: str
    """right, refused, wrong or unjudged."""
    reason: str = ""


def variants(match: str = "") -> Iterator[Variant]:
    """Yield the variants of all cases of one node whose names the regular expression finds."""
    for _, case in cases(match=match):
        if len(model_of(case).graph.node) == 1:
            model, inputs, _ = next(data(case))
            yield from _of_case(case.name, model, inputs)


def _of_case(case: str, model: onnx.ModelProto, inputs: Sequence[Any]) -> Iterator[Variant]:
    node = model.graph.node[0]
    versions = {one.domain: one.version for one in model.opset_import}
    try:
        schema = defs.get_schema(node.op_type, versions[node.domain], node.domain)
    except defs.SchemaError:
        return
    weights = {one.name for one in model.graph.initializer}
    names = [one.name for one in model.graph.input if one.name not in weights]
    given = dict(zip(names, map(_array, inputs), strict=True))

    def made(change: str, edit: Edit) -> Variant:
        found, arrays = onnx.ModelProto(), dict(given)
        found.CopyFrom(model)
        edit(found.graph, arrays)
        for value in found.graph.output:
            value.ClearField("type")
        return Variant(
            case, change, node.op_type, found.SerializeToString(), tuple(arrays.values())
        )

    yield made("sizes open", _open)
    if versions.get("", 0) >= COMPRESS:
        yield made("sizes of a run", _of_a_run)
    if node.op_type not in ENDLESS:
        for i, formal in enumerate(schema.inputs[: len(node.input)]):
            if formal.option == OPTIONAL and node.input[i]:
                yield made(f"input {formal.name} left out", _without_input(i))
    for attribute in node.attribute:
        if attribute.name in schema.attributes and not schema.attributes[attribute.name].required:
            change = f"attribute {attribute.name} left out"
            yield made(change, _without_attribute(attribute.name))
    for i, formal in enumerate(schema.outputs[: len(node.output)]):
        if formal.option == OPTIONAL and node.output[i] and sum(map(bool, node.output)) > 1:
            yield made(f"output {formal.name} left out", _without_output(i))
    for i, formal in enumerate(schema.outputs):
        if formal.option == OPTIONAL and not any(node.output[i : i + 1]):
            yield made(f"output {formal.name} asked for", _with_output(i))
    for i, name in enumerate(node.input):
        array = given.get(name)
        if isinstance(array, np.ndarray) and array.size == 1 and node.input[:i].count(name) == 0:
            formal = schema.inputs[min(i, len(schema.inputs) - 1)]
            called = formal.name if i < len(schema.inputs) else f"{formal.name} {i}"
            shape = () if array.ndim else (1,)
            what = "a scalar" if array.ndim else "of shape (1,)"
            yield made(f"input {called} {what}", _reshaped(name, shape))


def _array(value: Any) -> Any:
    """Return `value`, a NumPy scalar as an array."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def _without_input(place: int) -> Edit:
    def edit(graph: onnx.GraphProto, arrays: dict[str, Any]) -> None:
        node = graph.node[0]
        name, node.input[place] = node.input[place], ""
        while node.input and not node.input[-1]:
            del node.input[-1]
        if name not in node.input:
            arrays.pop(name, None)
            kept = [one for one in graph.input if one.name != name]
            del graph.input[:]
            graph.input.extend(kept)

    return edit


def _without_attribute(name: str) -> Edit:
    def edit(graph: onnx.GraphProto, arrays: dict[str, Any]) -> None:
        kept = [one for one in graph.node[0].attribute if one.name != name]
        del graph.node[0].attribute[:]
        graph.node[0].attribute.extend(kept)

    return edit


def _without_output(place: int) -> Edit:
    def edit(graph: onnx.GraphProto, arrays: dict[str, Any]) -> None:
        node = graph.node[0]
        name, node.output[place] = node.output[place], ""
        while not node.output[-1]:
            del node.output[-1]
        kept = [one for one in graph.output if one.name != name]
        del graph.output[:]
        graph.output.extend(kept)

    return edit


def _with_output(place: int) -> Edit:
    def edit(graph: onnx.GraphProto, arrays: dict[str, Any]) -> None:
        node, name = graph.node[0], "asked_for"
        node.output.extend([""] * (place + 1 - len(node.output)))
        node.output[place] = name
        graph.output.append(helper.make_empty_tensor_value_info(name))

    return edit


def _open(graph: onnx.GraphProto, arrays: dict[str, Any]) -> None:
    """Have a symbol of its own for each size of the inputs."""
    for value in graph.input:
        if value.name in arrays and value.type.HasField("tensor_type"):
            for place, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.dim_param = f"{value.name}_{place}"


def _of_a_run(graph: onnx.GraphProto, arrays: dict[str, Any]) -> None:
    """Have all of each input go through a Compress, which gives sizes that only a run tells."""
    kept = []
    for value in graph.input:
        array = arrays.get(value.name)
        if isinstance(array, np.ndarray) and array.ndim:
            mask = f"{value.name}_mask"
            kept.append((value.name, mask, len(array)))
    for name, mask, length in kept:
        arrays[mask] = np.ones(length, bool)
        graph.input.append(helper.make_tensor_value_info(mask, onnx.TensorProto.BOOL, [length]))
        inside = f"{name}_inside"
        for i, read in enumerate(graph.node[-1].input):
            if read == name:
                graph.node[-1].input[i] = inside
        graph.node.insert(0, helper.make_node("Compress", [name, mask], [inside], axis=0))


def _reshaped(name: str, shape: tuple[int, ...]) -> Edit:
    def edit(graph: onnx.GraphProto, arrays: dict[str, Any]) -> None:
        arrays[name] = arrays[name].reshape(shape)
        (value,) = (one for one in graph.input if one.name == name)
        dims = value.type.tensor_type.shape
        dims.ClearField("dim")
        for size in shape:
            dims.dim.add().dim_value = size

    return edit


def by_runtime(variant: Variant) -> list[Any]:
    """Return ONNX Runtime's results."""
    return results_of(variant.model, variant.inputs)


def by_glnn(variant: Variant, backend: str) -> list[Any]:
    """Return glnn's results on `backend`."""
    import glnn.onnx_backend

    model = onnx.ModelProto.FromString(variant.model)
    return list(glnn.onnx_backend.prepare(model, backend=backend).run(list(variant.inputs)))


def judge(variant: Variant, backends: Sequence[str], runtime: Child, own: Child) -> list[Outcome]:
    """Return what `variant` comes to on each backend."""
    ran, expected = runtime.call(by_runtime, variant)
    if not ran:
        return [Outcome(variant, one, UNJUDGED, str(expected)) for one in backends]
    found = []
    for backend in backends:
        ran, answer = own.call(by_glnn, variant, backend)
        if not ran:
            found.append(Outcome(variant, backend, "refused", answer))
        else:
            wrong = difference(answer, expected, ROUNDING)
            found.append(Outcome(variant, backend, "wrong" if wrong else "right", wrong))
    return found


def outcomes(
    chosen: Sequence[Variant], backends: Sequence[str] = BACKENDS, workers: int = 1
) -> Iterator[Outcome]:
    """Yield what all of `chosen` come to, by so many pairs of child processes."""
    children: SimpleQueue[tuple[Child, Child]] = SimpleQueue()
    pairs = [(Child(), Child()) for _ in range(workers)]
    for pair in pairs:
        children.put(pair)

    def one(variant: Variant) -> list[Outcome]:
        pair = children.get()
        try:
            return judge(variant, backends, *pair)
        finally:
            children.put(pair)

    try:
        with ThreadPoolExecutor(workers) as pool:
            for found in pool.map(one, chosen):
                yield from found
    finally:
        for pair in pairs:
            for child in pair:
                child.close()


@cache
def reasons() -> dict[str, dict[str, str]]:
    """Return why variants differ, by operator and by a regular expression of their names."""
    found: dict[str, dict[str, str]] = tomllib.loads(REASONS.read_text("utf-8"))
    return found


def is_meant(variant: Variant, operator: str, names: str) -> bool:
    """Return True where a row of `variants.toml` is about `variant`."""
    return variant.operator == operator and bool(re.search(names, str(variant)))


def reason_of(variant: Variant) -> str:
    """Return why glnn need not give ONNX Runtime's results; empty where it must."""
    listed = reasons().get(variant.operator, {})
    return next((w for n, w in listed.items() if is_meant(variant, variant.operator, n)), "")


def unexpected(found: Sequence[Outcome]) -> list[str]:
    """Return what of `found` should be otherwise, a line each."""
    return [
        f"{one.variant} is {one.status} on {one.backend}: {one.reason}"
        for one in found
        if one.status in ("refused", "wrong") and not reason_of(one.variant)
    ]


def unused(found: Sequence[Outcome]) -> list[str]:
    """Return the rows of `variants.toml` by which nothing of `found` is excused, a line each."""
    failed = [one.variant for one in found if one.status in ("refused", "wrong")]
    return [
        f"{operator} {names!r} of {REASONS.name} excuses nothing: take it off"
        for operator, listed in reasons().items()
        for names in listed
        if not any(is_meant(one, operator, names) for one in failed)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", action="append", choices=["compute", "feedback", "cpu"])
    parser.add_argument("--match", default="", help="a regular expression of cases' names")
    parser.add_argument("--share", type=int, metavar="N", default=1, help="one variant in N")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--check", action="store_true", help="fail where one is not as it should be"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print those not judged, too")
    args = parser.parse_args()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)  # of the children: this process has NumPy loaded
    chosen = list(variants(args.match))[:: args.share]
    backends = args.backend or BACKENDS
    found: list[Outcome] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("variants", total=len(chosen) * len(backends))
        for outcome in outcomes(chosen, backends, args.workers):
            found.append(outcome)
            progress.advance(task)
            shown = ("refused", "wrong", UNJUDGED) if args.verbose else ("refused", "wrong")
            if outcome.status in shown and (args.verbose or not reason_of(outcome.variant)):
                line = f"{outcome.status:8} {outcome.backend:8} {outcome.variant}: {outcome.reason}"
                print(f"{line:.400}", flush=True)
    operators = {one.variant.operator for one in found if one.status != UNJUDGED}
    print(f"{len(chosen)} variants, judged of {len(operators)} operators")
    counts = Counter((one.backend, one.status) for one in found)
    for (backend, status), count in sorted(counts.items()):
        print(f"{backend:8} {status:8} {count:5}")
    whole = not args.match and args.share == 1
    wrong = [*unexpected(found), *(unused(found) if whole else ())] if args.check else []
    print("".join(f"unexpected: {line:.300}\n" for line in wrong), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
