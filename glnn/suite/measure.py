"""The suite: what one device does with the same networks, beside this machine's CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from glnn.backends import open_backend
from glnn.core.types import Array
from glnn.doctor.checks import Checks
from glnn.doctor.examination import Examination, ExaminationScope, examine_device
from glnn.doctor.report import Machine, describe_machine
from glnn.doctor.speed import SIDES, SIZES, Speed, measure_speed
from glnn.errors import DeviceError, raised
from glnn.generation.architectures import Config, decoder
from glnn.generation.engine import Engine
from glnn.generation.memory import plan_memory
from glnn.generation.speed import DecodingSpeed, measure_decoding
from glnn.gl import Device
from glnn.model import Model
from glnn.profiling.bandwidth import copy_bandwidth
from glnn.profiling.onnxruntime_peer import PEER, OnnxRuntime, import_peer
from glnn.profiling.timing import warm_up
from glnn.runtime.options import NAMES
from glnn.session import InferenceSession
from glnn.suite.decoder import CONFIG, RandomWeights
from glnn.suite.networks import NETWORKS, SuiteNetwork
from glnn.validation.comparison import relative_error

MINUTES, MOST_MINUTES = 10.0, 24 * 60.0
"""Minutes after which nothing more is begun: by default, and at most."""
ENOUGH, LEAST, MOST = 1.0, 3, 50
"""Seconds of runs after which a measurement ends; the least and the most runs."""
LONGEST = 20.0
"""Seconds of a run, without compiling, above which a network is not timed."""
PROMPT, TOKENS = 64, 32
"""Tokens of the language model's prompt, and behind it."""

MACHINE, SPEED, DOCTOR = "the machine", "speed", "doctor"
"""Parts of the suite."""

Run = Callable[[], Array]


@dataclass(frozen=True)
class RunTime:
    """The time of a network on one engine, from arrays of the host to arrays of the host."""

    median_ms: float
    """Milliseconds of a run: the median."""
    first_s: float
    """Seconds of the first run, in which kernels are chosen and compiled."""
    runs: int
    """The number of runs that the median is of."""
    error: float | None
    """The relative error beside the CPU's results; None where these are not there."""


@dataclass(frozen=True)
class DecodingRate:
    """Tokens a second of the suite's language model on one backend."""

    prompt_tokens_per_s: float
    """Tokens of prompts a second."""
    tokens_per_s: float
    """Tokens a second behind them, of one text."""
    copy_bytes_per_s: float
    """Bytes a second that a copy within the device's memory moves."""
    bytes_per_token: float
    """Bytes that a token reads."""


@dataclass
class SuiteResult:
    """The measurements of one device."""

    machine: Machine | None = None
    """The machine; None where it could not be described."""
    examination: Examination | None = None
    """What the doctor saw, each kernel in one form."""
    speed: Speed | None = None
    """Launches, transfers, products."""
    networks: dict[str, dict[str, RunTime]] = field(default_factory=dict)
    """The times by network and engine: backends, and ONNX Runtime."""
    decoding: dict[str, DecodingRate] = field(default_factory=dict)
    """The language model's by backend."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why what is missing was not measured."""
    seconds: float = 0.0
    """The time that the suite took."""
    interrupted: bool = False
    """Whether Ctrl-C ended it before everything was measured."""


@dataclass(frozen=True)
class SuiteParts:
    """The parts of the suite, for tests to shorten."""

    networks: tuple[SuiteNetwork, ...] = NETWORKS
    sides: tuple[int, ...] = SIDES
    sizes: tuple[int, ...] = SIZES
    ops: tuple[str, ...] | None = None
    """The doctor looks at kernels of these alone; None for all."""
    language_model: Config = CONFIG
    prompt: int = PROMPT
    tokens: int = TOKENS
    """Tokens generated after the prompt; 0 to leave the language model out."""

    @property
    def decoding_backends(self) -> tuple[str, ...]:
        """The backends that the language model is measured on."""
        return NAMES if self.tokens else ()


def measure_suite(
    device: Device,
    progress: Callable[[str], None] = lambda what: None,
    minutes: float = MINUTES,
    parts: SuiteParts | None = None,
) -> SuiteResult:
    """Measure `device`, and the CPU beside it.

    progress: called with what is measured next. minutes: after so many nothing more is begun. What
    raises an exception, or would take too long, is left out and listed with the reason; after
    Ctrl-C so is what was not measured yet.
    """
    return _Suite(device, progress, 60 * minutes, parts or SuiteParts()).run()


def _decoding(backend: str) -> str:
    """Return what the part is called that measures the language model on `backend`."""
    return f"language model on {backend}"


class _Suite:
    """Runs the parts in turn, until there is no time left."""

    def __init__(
        self, device: Device, progress: Callable[[str], None], seconds: float, parts: SuiteParts
    ) -> None:
        self._device, self._progress, self._parts = device, progress, parts
        self._start = perf_counter()
        self._deadline = self._start + seconds
        self._checks = Checks(device)
        self._result = SuiteResult()
        self._engines: list[str] = []
        self._done: set[str] = set()

    def run(self) -> SuiteResult:
        """Measure everything, and return the results."""
        result = self._result
        try:
            self._find_engines()
            self._measure()
        except KeyboardInterrupt:
            result.interrupted = True
            missing = (step for step in self._steps() if step not in self._done)
            result.left_out |= dict.fromkeys(missing, "interrupted")
        result.left_out |= {one.step: one.error for one in self._checks.failed}
        result.seconds = perf_counter() - self._start
        return result

    def _find_engines(self) -> None:
        """Find what networks are timed on, and note why an installed ONNX Runtime is not."""
        self._engines = ["cpu", *(name for name in NAMES if name != "cpu")]
        if PEER not in sys.modules and find_spec(PEER) is None:
            return
        if (why := why_no_peer()) is None:
            self._engines.append(PEER)
        else:
            self._result.left_out[PEER] = why

    def _measure(self) -> None:
        self._do(MACHINE, self._describe)
        for network in self._parts.networks:
            self._time(network)
        for name in self._parts.decoding_backends:
            self._do(_decoding(name), partial(self._decode, name))
        self._do(SPEED, self._measure_speed)
        self._do(DOCTOR, self._examine)

    def _steps(self) -> Iterator[str]:
        """Yield the names of all parts, as `_measure` has them."""
        yield MACHINE
        for network in self._parts.networks:
            yield from self._steps_of(network)
        yield from map(_decoding, self._parts.decoding_backends)
        yield from (SPEED, DOCTOR)

    def _steps_of(self, network: SuiteNetwork) -> list[str]:
        return [f"{network.name} on {engine}" for engine in self._engines]

    def _do(self, step: str, work: Callable[[], None]) -> None:
        """Do one part; note why not, where there is no time or it raises."""
        self._progress(step)
        if perf_counter() > self._deadline:
            self._result.left_out[step] = "there was no time left"
        elif self._device.lost is not None:
            self._result.left_out[step] = "the driver had reset the context"
        else:
            self._checks.run(step, work, None)
        self._done.add(step)

    def _describe(self) -> None:
        self._result.machine = describe_machine(self._device)

    def _measure_speed(self) -> None:
        parts = self._parts
        self._result.speed = measure_speed(
            self._device, progress=self._progress, sides=parts.sides, sizes=parts.sizes
        )

    def _examine(self) -> None:
        scope = ExaminationScope(ops=self._parts.ops, quick=True)
        self._result.examination = examine_device(self._device, scope, self._examined)

    def _examined(self, what: str, done: int, total: int) -> None:
        self._progress(f"doctor: {done} of {total}, {what}")

    def _time(self, network: SuiteNetwork) -> None:
        """Time one network: on the CPU first, with whose results the others are compared."""
        times = self._result.networks.setdefault(network.name, {})
        built: list[tuple[Model, Array]] = []

        def build() -> None:
            model = network.model()
            built.append((model, network.sample(model)))

        self._checks.run(f"{network.name}: building", build, None)
        if not built:
            self._done.update(self._steps_of(network))
            return
        ((model, x),) = built
        exact: list[Array] = []
        for engine, step in zip(self._engines, self._steps_of(network), strict=True):

            def work(engine: str = engine) -> None:
                with self._begin(engine, model, x) as run:
                    time, result = time_runs(run, exact[0] if exact else None)
                times[engine] = time
                if engine == "cpu":
                    exact.append(result)

            self._do(step, work)

    @contextmanager
    def _begin(self, engine: str, model: Model, x: Array) -> Iterator[Run]:
        """Yield a function that runs `model` on `engine`."""
        if engine == PEER:
            with TemporaryDirectory() as folder:
                yield peer_run(model, Path(folder), x)
        else:
            yield session_run(model, engine, None if engine == "cpu" else self._device, x)

    def _decode(self, name: str) -> None:
        """Measure the language model on one backend."""
        parts = self._parts
        weights = RandomWeights(parts.language_model)
        backend = open_backend(name, None if name == "cpu" else self._device)
        context = parts.prompt + parts.tokens + 2
        graph = decoder(parts.language_model, weights, context, 1)
        memory = plan_memory(graph, backend, context, 1)
        engine = Engine(graph, context, 1, name, backend.device, None, weights.nbytes)
        speed: DecodingSpeed = measure_decoding(
            engine, parts.language_model, memory, prompt_tokens=parts.prompt, tokens=parts.tokens,
            sequences=1, repeat=3,
        )  # fmt: skip
        self._result.decoding[name] = DecodingRate(
            speed.prompt_tokens_per_s,
            speed.tokens_per_s,
            copy_bandwidth(backend),
            speed.bytes_per_token,
        )


def session_run(model: Model, backend: str, device: Device | None, x: Array) -> Run:
    """Return a function that runs `model` by glnn."""
    session = InferenceSession(model, backend, device=device)
    feeds = {model.inputs[0].name: x}

    def run() -> Array:
        result: Array = session.run(None, feeds)[0]
        return result

    return run


def peer_run(model: Model, folder: Path, x: Array) -> Run:
    """Return a function that runs `model` by ONNX Runtime on the CPU. folder: for its file."""
    path = folder / "model.onnx"
    model.save(path)
    session = OnnxRuntime(path)
    name, feeds = model.outputs[0], {model.inputs[0].name: x}

    def run() -> Array:
        result: Array = session.run(feeds)[name]
        return result

    return run


def why_no_peer() -> str | None:
    """Return why ONNX Runtime, or onnx to write its files, is missing; None if both are there."""
    try:
        import_peer()
    except Exception as error:  # whatever a broken installation raises
        return raised(error)
    return None if find_spec("onnx") else "the package onnx is not installed"


def time_runs(run: Run, exact: Array | None) -> tuple[RunTime, Array]:
    """Time `run`, and return its result, too. Raises DeviceError where a run takes too long."""
    start = perf_counter()
    result = run()
    first = perf_counter() - start
    if (once := warm_up(run)) > LONGEST:
        raise DeviceError(f"a run takes {once:.0f} s")
    times: list[float] = []
    while len(times) < LEAST or (len(times) < MOST and sum(times) < ENOUGH):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    error = None if exact is None else float(relative_error(result, exact))
    return RunTime(1e3 * median(times), first, len(times), error), result
