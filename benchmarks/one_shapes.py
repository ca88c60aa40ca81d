"""What `open_sizes` and `tokens` have each version of the project run: prints numbers as JSON.

It uses nothing but what all versions have, except for what `Watch` looks for. Argument: a JSON
object of what to measure: see `sizes` and `tokens`. Times are milliseconds.
"""

import json
import sys
from collections.abc import Callable, Generator
from importlib import import_module
from statistics import fmean, median
from time import perf_counter, process_time
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

import glnn

PLANNERS = (
    ("glnn.compiler.memory_budget", "Outline", "create"),
    ("glnn.compile.memory_budget", "Outline", "of"),
    ("glnn.compile.outline", "Outline", "of"),
)
"""Methods that make a plan whole, of which the first is counted that there is."""
BINDERS = (("glnn.runtime.buffer_set", "BufferSet", "_rebind"),)
"""Methods that give a plan that was made the sizes of a run, of which the first is timed."""
PROMPT = (1, 7, 42, 9, 3, 11, 5, 2)
FIRST = 4  # runs of a decoder that do not count: the prompt, and what is planned at once
Found = dict[str, float]


COMMANDS = ("dispatch", "capture", "copy", "barrier", "host")
counted: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def commands(binder: Any) -> int:
    """How many commands are bound, or steps of the host's where it does them all.

    Counted once for each binder, as runs that are timed ask for it.
    """
    if binder not in counted:
        written = binder.executable.commands.commands
        counted[binder] = sum(name in COMMANDS for name, *_ in written) or len(
            binder.executable.host
        )
    return counted[binder]


class Watch:
    """What happens inside of runs: plans made whole, and what binding takes.

    planned: how often a plan was made. binding: milliseconds that binding has taken. commands:
    how many there were in what was bound.
    """

    def __init__(self) -> None:
        self.planned, self.binding, self.commands = 0, 0.0, 0
        self.binds = _around(BINDERS, self._bind)
        _around(PLANNERS, self._plan)

    def _plan(self, work: Callable[[], Any], _: Any) -> Any:
        self.planned += 1
        return work()

    def _bind(self, work: Callable[[], Any], binder: Any) -> Any:
        start = process_time()
        bound = work()
        self.binding += 1e3 * (process_time() - start)
        self.commands += commands(binder)
        return bound


def _around(
    places: tuple[tuple[str, str, str], ...], around: Callable[[Callable[[], Any], Any], Any]
) -> bool:
    """Have `around` call the first of these methods that there is, and be told of which object.

    Returns whether there is one.
    """
    for module, owner, name in places:
        try:
            kind = getattr(import_module(module), owner)
            method = kind.__dict__[name]
        except (ImportError, AttributeError, KeyError):
            continue
        if isinstance(method, classmethod):
            method = method.__func__

            def of(cls: Any, /, *args: Any, method: Any = method, **named: Any) -> Any:
                return around(lambda: method(cls, *args, **named), cls)

            setattr(kind, name, classmethod(of))
        else:

            def do(self: Any, *args: Any, method: Any = method, **named: Any) -> Any:
                return around(lambda: method(self, *args, **named), self)

            setattr(kind, name, do)
        return True
    return False


class Timed:
    """A run: its results, what it took, and what `watch` saw of it."""

    def __init__(self, session: Any, feeds: dict[str, Any], watch: Watch | None = None) -> None:
        seen = (watch.planned, watch.binding, watch.commands) if watch else (0, 0.0, 0)
        wall, start = perf_counter(), process_time()
        self.results = session.run(None, feeds)
        self.cpu = 1e3 * (process_time() - start)
        self.wall = 1e3 * (perf_counter() - wall)
        self.planned = bool(watch and watch.planned > seen[0])
        self.binding = watch.binding - seen[1] if watch else 0.0
        self.commands = watch.commands - seen[2] if watch else 0


def peer(path: str) -> Any:
    """ONNX Runtime's session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Its threads would wait by spinning, which counted as CPU time of our next run.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def beside(new: list[Timed], again: list[Timed], watch: Watch) -> Found:
    """Return how first runs of some sizes compare with second runs; planning is apart."""
    both = list(zip(new, again, strict=True))
    known = [(a, b) for a, b in both if not a.planned]
    planned = [a for a in new if a.planned]
    found: Found = {"plans": len(planned), "again": median(run.cpu for run in again)}
    found["again, wall"] = median(run.wall for run in again)
    if planned:
        found["planned"] = median(run.cpu for run in planned)
        found["planned, all"] = sum(run.cpu for run in planned)
    if known:
        ratios = [a.cpu / b.cpu for a, b in known]
        found["new"] = median(a.cpu for a, _ in known)
        found["new, wall"] = median(a.wall for a, _ in known)
        found["new / again"] = median(ratios)
        found["new / again, p90"] = float(np.quantile(ratios, 0.9))
        found["new / again, mean"] = fmean(a.cpu for a, _ in known) / fmean(b.cpu for _, b in known)
    bound = [(a, b) for a, b in known if a.commands]
    if watch.binds and bound:
        found["bind"] = median(a.binding for a, _ in bound)
        found["bind / again"] = median(a.binding / b.cpu for a, b in bound)
        found["bind a command, us"] = median(1e3 * a.binding / a.commands for a, _ in bound)
    return found


def error(found: list[Any], expected: list[Any]) -> float:
    """The greatest relative Frobenius error of outputs."""
    pairs = [(a.astype(float), b.astype(float)) for a, b in zip(found, expected, strict=True)]
    norms = [(np.linalg.norm(a - b), np.linalg.norm(b)) for a, b in pairs]
    return max(float(off / (size or 1)) for off, size in norms)


def drawn(inputs: Any, shapes: dict[str, list[Any]], sizes: dict[str, int], draw: Any) -> Any:
    """Random arrays for the inputs; `shapes` of numbers, and of symbols, which have `sizes`."""
    feeds: dict[str, Any] = {}
    types = {info.name: info.type for info in inputs}
    for name, dims in shapes.items():
        shape = [sizes.get(dim, dim) for dim in dims]
        if "int" in types[name]:
            feeds[name] = draw.integers(0, 2, shape).astype(types[name][len("tensor(") : -1])
        else:
            feeds[name] = draw.standard_normal(shape, np.float32)
    return feeds


def sizes(
    model: str, backend: str, shapes: dict[str, list[Any]], ranges: dict[str, list[int]],
    count: int, seed: int, versus: bool,
) -> Found:  # fmt: skip
    """Each of `count` shapes twice. ranges: each symbol's least and greatest size, and its step."""
    watch, draw = Watch(), np.random.default_rng(seed)
    session = glnn.InferenceSession(model, backend)
    theirs = peer(model) if versus else None
    new: list[Timed] = []
    again: list[Timed] = []
    known: list[float] = []
    errors: list[float] = []
    seen: set[tuple[int, ...]] = set()
    for _ in range(count):
        one = {
            k: int(draw.integers(0, 1 + (b - a) // s)) * s + a for k, (a, b, s) in ranges.items()
        }
        feeds = drawn(session.get_inputs(), shapes, one, draw)
        runs = [Timed(session, feeds, watch), Timed(session, feeds, watch)]
        if tuple(one.values()) not in seen:  # drawn once more it is not new
            new, again = [*new, runs[0]], [*again, runs[1]]
        seen.add(tuple(one.values()))
        if theirs is not None:
            theirs.run(None, feeds)
            known.append((run := Timed(theirs, feeds)).cpu)
            errors.append(error(runs[0].results, run.results))
    found = {"shapes": float(len(seen)), **beside(new, again, watch)}
    if theirs is not None:
        found["onnxruntime"], found["error"] = median(known), max(errors)
    return found


def decoding(past: Any, count: int, fixed: bool) -> Generator[dict[str, Any], list[Any], None]:
    """Yield the inputs of each run, greedily; is sent its outputs. past: an empty cache."""
    tokens = list(PROMPT)
    place = 0
    while len(tokens) < len(PROMPT) + count:
        part = [tokens[place]] if fixed else tokens[place:]
        feeds = {"ids": np.array([part]), "past": past}
        if fixed:
            feeds["pos"] = np.array([place])
        results = yield feeds
        new: Any = results[1]
        place += len(part)
        if fixed:
            past = past.copy()
            past[:, :, :, place - 1 : place] = new
        else:
            past = new
        if place == len(tokens):
            tokens.append(int(results[0][0, -1].argmax()))


def decoded(path: str, backend: str, count: int, fixed: bool, versus: bool) -> Found:
    """Each run of a decoder twice, and whether its tokens are ONNX Runtime's."""
    watch = Watch()
    session = glnn.InferenceSession(path, backend)
    (info,) = [one for one in session.get_inputs() if one.name == "past"]
    past = np.zeros([0 if isinstance(n, str) else n for n in info.shape], np.float32)
    new: list[Timed] = []
    again: list[Timed] = []

    def chosen(run: Callable[[Any], Any]) -> list[int]:
        """The tokens, one for each run."""
        steps, picked = decoding(past, count, fixed), list[int]()
        feeds = next(steps)
        while True:
            results = run(feeds)
            picked.append(int(results[0][0, -1].argmax()))
            try:
                feeds = steps.send(results)
            except StopIteration:
                return picked

    def twice(feeds: Any) -> Any:
        new.append(Timed(session, feeds, watch))
        again.append(Timed(session, feeds, watch))
        return new[-1].results

    ours = chosen(twice)
    found = beside(new[FIRST:], again[FIRST:], watch)
    found["plans"] = float(sum(run.planned for run in new))
    if versus:
        theirs = peer(path)
        expected = chosen(lambda feeds: theirs.run(None, feeds))
        found["tokens alike"] = fmean(a == b for a, b in zip(ours, expected, strict=True))
    return found


def tokens(models: dict[str, str], backend: str, count: int, versus: bool) -> Found:
    """Decoders by what they are called, `fixed` one whose cache does not grow."""
    found: Found = {}
    for name, path in models.items():
        rows = decoded(path, backend, count, name == "fixed", versus)
        found |= {f"{name}: {what}": value for what, value in rows.items()}
    for part in ("new", "new, wall"):
        both = [found.get(f"{name}: {part}") for name in ("growing", "fixed")]
        if both[0] and both[1]:
            found[f"growing / fixed: {part}"] = both[0] / both[1]
    return found


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    kinds: dict[str, Callable[..., Found]] = {"sizes": sizes, "tokens": tokens}
    print(json.dumps(kinds[asked.pop("what")](**asked)))
