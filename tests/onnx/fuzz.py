"""Mutated ONNX files: each loads and runs, or is a GlnnError; nothing else may come of one.

    python -m tests.onnx.fuzz --count 3000 --seed 1 --workers 2 --keep build/fuzz

Bytes, fields, attributes, sizes and names of small models are changed at random. Each file is
loaded and run on the cpu backend, a share on compute, in a process of its own with little time; a
hook sees to it that it opens no file but those of the model's folder. Loading and running may make
the process larger by no more than four times the file, the inputs and the outputs, and 64 MiB,
where it is told that so much of the host's memory is free as the file and the inputs take, and 16
MiB. What a driver of GL takes is not counted. What is neither right nor refused is printed and
kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import astuple, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message
from onnx import parser

from glnn.core import process as process_module
from glnn.errors import GlnnError
from glnn.session import InferenceSession
from tests.onnx.conformance import cases, data

SECONDS = 20  # of processor time for a file
WAITED = 10  # times as many that are waited for it
MEMORY = 6 << 30  # bytes of address space of a child
MOST_GIVEN = 1 << 22  # numbers of an input that is made up
BATCH = 50  # files for a worker at once
SEEDS = 400  # models of the suite
OWN = 12  # times that each model beside these is taken for one of the suite
FREE = 16 << 20  # bytes that are free beside the file and the inputs
TIMES = 4  # bytes by which a process may grow for each of these
SMALL_FILE = 1 << 14  # bytes of a model of the suite
LOOPS = b"Loop", b"Scan"
SHIPPED = ("lenet-mnist.onnx", "decoder-fixed.onnx")

EXTERNAL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x) => (float[2, 3] y) { y = Add (x, w) }
"""
FUNCTIONS = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[N] x, bool c) => (float[N] y, float[M] z) {
  y = own.outer <scale = 3.0> (x, c)
  go = Constant <value = bool {1}> ()
  most = Constant <value = int64 {3}> ()
  last, z = Loop (most, go, y) <body = b (int64 i, bool on, float[N] s)
      => (bool o, float[N] t, float[N] r) {
    o = Identity (on)
    t = Add (s, y)
    r = Neg (t)
  }>
}
<domain: "own", opset_import: ["" : 17, "own" : 1]>
outer <scale> (a, flag) => (r) {
  r = If (flag) <
    then_branch = t () => (p) { s = Constant <value_float: float = @scale> () p = Mul (a, s) },
    else_branch = e () => (q) { q = own.inner (a) }>
}
<domain: "own", opset_import: ["" : 17]>
inner (a) => (r) { b = Neg (a) r = Identity (b) }
"""


@dataclass(frozen=True)
class Outcome:
    """What came of a file."""

    number: int
    """Which one: with the seed it says how the file was made."""
    kind: str
    """`ran`, `refused`, `skipped`, or a fault."""
    said: str
    """The error, or what was opened."""
    grown: int = 0
    """Bytes by which the process became larger."""
    allowed: int = 0
    """Bytes by which it might."""


def models() -> list[bytes]:
    """What is mutated: small models of the suite, and some of our own."""
    found = [_external(), parser.parse_model(FUNCTIONS).SerializeToString()]
    found += [(Path(__file__).parent / name).read_bytes() for name in SHIPPED]
    every = [model for _, case in cases() if case.model for model, *_ in data(case)]
    every = [one for one in every if one.ByteSize() < SMALL_FILE]
    step = max(len(every) // SEEDS, 1)
    return found * OWN + [one.SerializeToString() for one in every[::step]]


def _external() -> bytes:
    model = parser.parse_model(EXTERNAL.replace("(x, w)", "(x, x)"))
    model.graph.node[0].input[1] = "w"
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[2, 3], data_location=1)
    for key, value in (("location", "weights.bin"), ("offset", "8"), ("length", "24")):
        tensor.external_data.add(key=key, value=value)
    return bytes(model.SerializeToString())


def mutated(content: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """`content` with some of its bytes or fields changed."""
    change = draw.choice((_field, _field, _extreme))
    for _ in range(draw.choice((1, 1, 2, 4, 8))):
        if change is _field and draw.random() < 0.35:
            content = _bytes(content, others, draw)
            continue
        model = onnx.ModelProto()
        try:
            model.ParseFromString(content)
            change(model, draw)
            content = model.SerializeToString()
        except (DecodeError, ValueError):
            content = _bytes(content, others, draw)
    return content


def _bytes(content: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """A few bytes changed, added, doubled or left out; the end missing, or another's."""
    if not content:
        return draw.choice(others)
    at = draw.randrange(len(content))
    end = min(len(content), at + draw.choice((1, 1, 2, 8, 64)))
    some = draw.choice(
        (bytes([content[at] ^ (1 << draw.randrange(8))]), b"\xff" * 9, b"\x00", draw.randbytes(4))
    )
    other = draw.choice(others)
    return draw.choice(
        (
            content[:at] + some + content[at + 1 :],
            content[:at] + some + content[at:],
            content[:at] + content[end:],
            content[:end] + content[at:],
            content[:at],
            content[:at] + other[draw.randrange(len(other) + 1) :],
        )
    )


SIZES = (-1, 0, 1, 100, 5000, 10**5, 10**8, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63))
NUMBERS = (0, 1, -1, 2, 7, 255, 2**15, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
TEXTS = ("", "x", "../secret", "/etc/passwd", "weights.bin", "link", "link/secret", "no\x00", "é")


def _messages(message: Message) -> Iterator[Message]:
    """It and all within."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for one in value if field.is_repeated else (value,):
            yield from _messages(one)


def _field(model: Any, draw: random.Random) -> None:
    """One field of the model, or of a part of it, changed. Raises ValueError where it cannot be."""
    every = list(_messages(model))
    message = draw.choice(every)
    field = draw.choice(message.DESCRIPTOR.fields)
    if field.message_type is not None:
        _message(message, field, every, draw)
        return
    value = _value(field, model, draw)
    if not field.is_repeated:
        setattr(message, field.name, value)
        return
    listed = getattr(message, field.name)
    what = draw.randrange(4)
    if what == 0 or not listed:
        listed.append(value)
    elif what == 1:
        listed[draw.randrange(len(listed))] = value
    elif what == 2:
        del listed[draw.randrange(len(listed))]
    else:
        listed.extend(list(listed))


def _extreme(model: Any, draw: random.Random) -> None:
    """A size, an attribute, a dimension or a name changed to one that is legal as a field."""
    nodes = list(model.graph.node)
    tensors = [*model.graph.initializer, *(a.t for n in nodes for a in n.attribute if a.type == 4)]
    counts = [one for one in tensors if one.data_type in (6, 7)]
    numbers = [a for n in nodes for a in n.attribute if a.type in (2, 7)]
    types = [one.type.tensor_type.shape for one in (*model.graph.input, *model.graph.value_info)]
    types = [one for one in types if one.dim]
    ways: list[Callable[[], None]] = []
    if counts:
        ways += [lambda: _numbers(draw.choice(counts), draw)] * 3
    if numbers:
        ways += [lambda: _attribute(draw.choice(numbers), draw)] * 3
    if types:
        ways.append(lambda: _dimension(draw.choice(draw.choice(types).dim), draw))
    if tensors:
        ways.append(lambda: _dimension(draw.choice(tensors), draw))
    if nodes:
        ways.append(lambda: _name(nodes, draw))
    draw.choice(ways or [lambda: None])()


def _numbers(tensor: Any, draw: random.Random) -> None:
    """One of a tensor's integers changed, or all of them."""
    array = np.array(onnx.numpy_helper.to_array(tensor))
    if not array.size:
        return
    most = np.iinfo(array.dtype)
    number = min(max(draw.choice(SIZES), most.min), most.max)
    array.flat[draw.randrange(array.size) if draw.random() < 0.7 else slice(None)] = number
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _attribute(attribute: Any, draw: random.Random) -> None:
    """An attribute's number, or one of them, changed."""
    number = min(max(draw.choice(SIZES), -(2**63)), 2**63 - 1)
    if attribute.type == 2 or not attribute.ints:
        attribute.i = number
    else:
        attribute.ints[draw.randrange(len(attribute.ints))] = number


def _dimension(one: Any, draw: random.Random) -> None:
    """A dimension of a type or a tensor changed."""
    number = draw.choice((*SIZES, draw.randrange(40)))
    if not hasattr(one, "dims"):
        one.dim_value = number
    elif one.dims:
        one.dims[draw.randrange(len(one.dims))] = number
    else:
        one.dims.append(number)


def _name(nodes: list[Any], draw: random.Random) -> None:
    """Two names swapped or made one, an operand left out, or two operators swapped."""
    first, second = draw.choice(nodes), draw.choice(nodes)
    what = draw.randrange(4)
    if what == 0 and first.input:
        del first.input[draw.randrange(len(first.input))]
    elif what == 1 and first.input and second.input:
        i, k = draw.randrange(len(first.input)), draw.randrange(len(second.input))
        first.input[i], second.input[k] = second.input[k], first.input[i]
    elif what == 2 and first.output and second.output:
        first.output[0] = second.output[0]
    else:
        first.op_type, second.op_type = second.op_type, first.op_type


def _message(message: Any, field: Any, every: list[Message], draw: random.Random) -> None:
    """A part added, doubled, moved or left out, or another put there."""
    alike = [one for one in every if one.DESCRIPTOR is field.message_type]
    if not field.is_repeated:
        if draw.random() < 0.5 or not alike:
            message.ClearField(field.name)
        else:
            copied = type(alike[0])()
            copied.CopyFrom(draw.choice(alike))
            getattr(message, field.name).CopyFrom(copied)
        return
    listed = getattr(message, field.name)
    what = draw.randrange(4)
    if what == 0 and alike:
        copied = type(alike[0])()
        copied.CopyFrom(draw.choice(alike))
        listed.add().CopyFrom(copied)
    elif what == 1 and listed:
        del listed[draw.randrange(len(listed))]
    elif what == 2 and len(listed) > 1:
        parts = [type(one)() for one in listed]
        for part, one in zip(parts, listed, strict=True):
            part.CopyFrom(one)
        draw.shuffle(parts)
        del listed[:]
        listed.extend(parts)
    else:
        listed.add()


def _value(field: Any, model: Any, draw: random.Random) -> Any:
    """Something that a field may be."""
    if field.cpp_type == field.CPPTYPE_STRING:
        names = [name for node in model.graph.node for name in (*node.output, node.op_type)]
        text = draw.choice((*TEXTS, *names))
        return text.encode() if field.type == field.TYPE_BYTES else text
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return draw.choice((0.0, -1.0, 1e30, float("nan"), float("inf"), 0.5))
    if field.cpp_type == field.CPPTYPE_ENUM:
        return draw.choice(field.enum_type.values).number
    low, high = {
        field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        field.CPPTYPE_UINT32: (0, 2**32 - 1),
        field.CPPTYPE_UINT64: (0, 2**64 - 1),
        field.CPPTYPE_BOOL: (0, 1),
    }.get(field.cpp_type, (-(2**63), 2**63 - 1))
    return min(max(draw.choice((*NUMBERS, draw.randrange(28))), low), high)


_OPENED: list[str] = []


def _watch(folder: Path) -> None:
    """Note all files that are opened which are neither the folder's nor Python's own."""
    own = [folder, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2]]
    own += [Path(one) for one in ("/proc", "/sys", "/dev")]
    own += [Path(one) for one in sys.path if one]
    allowed = tuple({str(one) for path in own for one in (path, path.resolve())})

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith(allowed):
                _OPENED.append(path)

    sys.addaudithook(hook)


def _begin(folder: str, share: int) -> None:
    """Make a worker ready, which forks a child for each file: little memory, and a hook."""
    warnings.simplefilter("ignore")
    if not share:  # drivers of GL take address space without end
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    os.environ["GLNN_CACHE"] = f"{folder}/cache"
    _SEEDS[:] = models()
    for content in (_SEEDS[1], *_SEEDS[-40:]):  # what a first run imports is no file's fault
        with suppress(GlnnError):
            session = InferenceSession(content, "cpu")
            session.run(None, _feeds(session, random.Random(0)) or {})
    _watch(Path(folder))


_SEEDS: list[bytes] = []


def _batch(folder: str, seed: int, share: int, first: int, count: int) -> list[Outcome]:
    """What comes of so many files, in a worker."""
    here = Path(folder) / str(os.getpid())
    if not here.exists():
        here.mkdir()
        (here / "weights.bin").write_bytes(bytes(64))
        (here / "link").symlink_to(Path(folder).parent)
    found = []
    for number in range(first, first + count):
        path = here / "model.onnx"
        path.write_bytes(made(seed, number))
        backend = "compute" if share and number % share == 0 else "cpu"
        found.append(_in_a_child(number, path, backend, seed))
    return found


def _in_a_child(number: int, path: Path, backend: str, seed: int) -> Outcome:
    """What comes of a file in a process of its own, which is ended where it takes too long."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.close(reads)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        try:
            draw = random.Random(f"inputs {seed} {number}")
            found = _outcome(number, path, backend, draw)
            os.write(writes, json.dumps(astuple(found)).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as stream:
        ready, _, _ = select.select([stream], [], [], WAITED * SECONDS)
        if not ready:
            os.kill(child, signal.SIGKILL)
        content = stream.read()
    _, status = os.waitpid(child, 0)
    if content:
        return Outcome(*json.loads(content))
    if os.WTERMSIG(status) not in (signal.SIGXCPU, signal.SIGKILL):
        return Outcome(number, "FAULT: the process died", backend)
    if any(name in path.read_bytes() for name in LOOPS):  # as often as the model says
        return Outcome(number, "loops on", backend)
    return Outcome(number, f"FAULT: not over after {SECONDS} s", backend)


def made(seed: int, number: int) -> bytes:
    """The file of that number."""
    draw = random.Random(f"{seed} {number}")
    return mutated(draw.choice(_SEEDS), _SEEDS, draw)


def _outcome(number: int, path: Path, backend: str, draw: random.Random) -> Outcome:
    """What loading and running a file comes to, in this process."""
    _OPENED.clear()
    before = _largest()
    given = path.stat().st_size
    try:
        kind, said = "skipped", ""
        session = InferenceSession(path, backend)
        feeds = _feeds(session, draw)
        if feeds is not None:
            given += sum(np.asarray(one).nbytes for one in feeds.values())
            free = given + FREE
            if backend == "cpu":
                process_module.free_memory = lambda: max(free - (_resident() - before), 0)
            results = session.run(None, feeds)
            given += sum(np.asarray(one).nbytes for one in results if isinstance(one, np.ndarray))
            kind = "ran"
    except GlnnError as error:
        kind, said = "refused", f"{type(error).__name__}: {error}"
        if "\n" in said:
            kind = "FAULT: not one sentence"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        kind, said = f"FAULT: {type(error).__name__} at {where}", str(error)
    grown, allowed = _largest() - before, TIMES * (given + FREE)
    if backend == "cpu" and grown > allowed:
        said = f"{grown >> 20} MiB for {allowed >> 20}: {kind} {said}"
        kind = "FAULT: grows"
    if _OPENED:
        kind, said = "FAULT: opened a file outside", ", ".join(_OPENED)
    return Outcome(number, kind, said[:300], grown, allowed)


def _largest() -> int:
    """Bytes that this process had at the most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _resident() -> int:
    """Bytes that this process has now."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _feeds(session: InferenceSession, draw: random.Random) -> dict[str, Any] | None:
    """An array for each input; None where one would be large. Few integers may be sizes."""
    feeds: dict[str, Any] = {}
    for info in session.get_inputs():
        shape = [n if isinstance(n, int) else 2 for n in info.shape if n != "..."]
        if np.prod([float(n) for n in shape]) > MOST_GIVEN:
            return None
        if info.holds:
            feeds[info.name] = [np.ones(2, np.float32)]
        elif info.dtype.value == "object":
            feeds[info.name] = np.full(shape, "text", object)
        else:
            feeds[info.name] = np.ones(shape, info.dtype.numpy)
            if info.dtype.value == "int64" and 0 < np.prod(shape) < 9 and draw.random() < 0.3:
                size = min(draw.choice(SIZES), 2**63 - 1)
                feeds[info.name].flat[draw.randrange(int(np.prod(shape)))] = size
    return feeds


def fuzz(count: int, seed: int, workers: int, folder: Path, share: int = 0) -> Iterator[Outcome]:
    """What comes of `count` files.

    folder: where they lie, with a folder around it that is ours. share: of the files one in so
    many is run on compute; 0 for none.
    """
    batches = [(first, min(BATCH, count - first)) for first in range(0, count, BATCH)]
    while batches:
        given = str(folder), share
        with ProcessPoolExecutor(workers, get_context("spawn"), _begin, given) as pool:
            jobs = [(pool.submit(_batch, str(folder), seed, share, *one), one) for one in batches]
            batches = []
            for job, (first, size) in jobs:
                try:
                    yield from job.result()
                except BrokenProcessPool:
                    batches += [(number, 1) for number in range(first, first + size)] * (size > 1)
                    if size == 1:
                        yield Outcome(first, "FAULT: the process died", "")


def main() -> int:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parse.add_argument("--count", type=int, default=3_000)
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parse.add_argument("--compute", type=int, default=10, help="one file in so many; 0 for none")
    parse.add_argument("--keep", type=Path, help="a folder for the files that are faults")
    args = parse.parse_args()
    kinds: Counter[str] = Counter()
    most = 0.0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        around = Path(name)
        (around / "secret").write_bytes(bytes(64))
        folder = around / "models"
        folder.mkdir()
        for one in fuzz(args.count, args.seed, args.workers, folder, args.compute):
            kinds[one.kind] += 1
            most = max(most, (one.grown / max(one.allowed, 1), one.number, one.grown))
            if one.kind.startswith("FAULT"):
                print(one.number, one.kind, one.said, flush=True)
                if args.keep:
                    _SEEDS[:] = _SEEDS or models()
                    args.keep.mkdir(parents=True, exist_ok=True)
                    path = args.keep / f"{args.seed}-{one.number}.onnx"
                    path.write_bytes(made(args.seed, one.number))
    for kind, times in kinds.most_common():
        print(f"{times:6} {kind}")
    print(f"most grown: file {most[1]} by {most[2] >> 20} MiB, {most[0]:.2f} of what is allowed")
    return int(any(kind.startswith("FAULT") for kind in kinds))


if __name__ == "__main__":
    sys.exit(main())
