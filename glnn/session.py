"""Running a model, with ONNX Runtime's names."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import wraps
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec

import numpy as np
from numpy.typing import NDArray

from glnn.core.lazy_pickle import LazyPickle
from glnn.core.process import process_lock
from glnn.core.tensor_info import (
    ModelInfo,
    TensorInfo,
    check_names,
    check_shared_sizes,
    kind_numbers,
    shared_sizes,
    show,
)
from glnn.core.trace_spans import duration
from glnn.core.types import ArrayTypes, DType, Shape
from glnn.errors import GlnnError, ModelError, ShapeError, shown
from glnn.gl.device import shared_device
from glnn.runtime.device_array import (
    FLOATS,
    DeviceArray,
    Feed,
    any_on_device,
    as_host_array,
    host_arrays,
    stays_on_device,
)
from glnn.runtime.options import BackendChoice, Options
from glnn.runtime.requests import Requests
from glnn.runtime.runner import ModelExecutor, Out, check_disjoint
from glnn.stored.plan_cache import PlanCache, StoredModel
from glnn.stored.runs import StoredRuns

if TYPE_CHECKING:
    from glnn.backends import Backend
    from glnn.compiler import Executor, Plan
    from glnn.compiler.backend_autotune import AutoExecutor
    from glnn.compiler.session_states import SessionStates
    from glnn.gl import Device
    from glnn.model import Model
    from glnn.model.loaded_model import LoadedModel


Array = NDArray[Any]
LOG = logging.getLogger(__name__)
NO_SHARING_OPTIONS = {"priority": None, "wait": None}  # those of the environment


class _LazyModel:
    """A model, loaded on first use from `source`: a Model, a path, or the content of a file.

    stored: its plans on disk; None where there are none. cache: the store for new plans. Importing
    the modules that read and plan models takes several times as long as importing those that run a
    stored plan: it is done when the model is loaded. Any thread may use it.
    """

    def __init__(
        self,
        source: object,
        options: Options,
        stored: StoredModel | None,
        cache: PlanCache | None,
    ) -> None:
        self._source, self._options, self._stored = source, options, stored
        self._cache = cache
        self._lock = process_lock()
        self._backend: Backend | None = None
        self.loaded: LoadedModel | None = None
        """The model and its executor; None before it is loaded."""

    def load(self) -> LoadedModel:
        """Load the model on first use, and return it.

        Raises what `LoadedModel.from_source` raises, and ModelError where its file changed after
        its plans were stored.
        """
        if self.loaded is None:
            with self._lock:
                if self.loaded is None:
                    self.loaded = self._load()
                    if isinstance(self._source, bytes):
                        self._source = self.loaded.model  # frees the bytes
        return self.loaded

    def _load(self) -> LoadedModel:
        module: Any = import_module("glnn.model.loaded_model")
        loaded: LoadedModel = module.LoadedModel.from_source(
            self._source, self._options, self._backend, self._cache
        )
        if self._stored is not None and not self._stored.unchanged():
            raise ModelError(
                f"{self._source} was changed while a session used what was stored of "
                f"{self._stored.info.name}: make another session"
            )
        return loaded

    def executor(self) -> Executor | AutoExecutor:
        """Return the executor of the model, loaded on first use. Raises what `load` raises."""
        return self.load().executor

    @property
    def backend(self) -> Backend:
        """The backend, which changes after the device was lost. Raises what `load` raises."""
        if self.loaded is not None or self._stored is None:
            return self.load().executor.backend
        with self._lock:
            if self._backend is None:
                name, options = self._stored.backend, self._options
                module: Any = import_module("glnn.backends")
                self._backend = module.open_backend(
                    name, options.device, gpu=options.gpu, limits=options.limits
                )
            return self._backend

    @property
    def backend_name(self) -> str:
        """The name of the backend, which need not be opened where there are stored plans."""
        stored = self._stored if self.loaded is None else None
        return self.load().executor.backend.name if stored is None else stored.backend


P = ParamSpec("P")
ONNX_RUNTIME_ARGUMENTS = ("sess_options", "providers", "provider_options", "path_or_bytes")


def _explaining_arguments(constructor: Callable[P, None]) -> Callable[P, None]:
    """Wrap a session's constructor so that it explains arguments of ONNX Runtime's session."""

    @wraps(constructor)
    def construct(*arguments: P.args, **named: P.kwargs) -> None:
        if name := next((name for name in ONNX_RUNTIME_ARGUMENTS if name in named), None):
            raise TypeError(
                f"glnn.InferenceSession has no argument {name!r}, which is ONNX Runtime's: "
                "glnn.onnxruntime.InferenceSession takes its arguments"
            )
        constructor(*arguments, **named)

    return construct


class InferenceSession(LazyPickle):
    """A model on a backend, ready to run.

    model: a Model, an argument of `glnn.load`, or, as bytes, the content of a file that refers to
    no others: of ONNX, or a .json model without parameters.
    backend: `auto`, `compute`, `feedback` or `cpu`. With `auto` the first run on inputs of some
    shapes is done by each backend that opens, a few times, and later runs by the fastest (see
    `choice`). prefer: "fastest", or "gpu", with which `auto` keeps the CPU free where there is a
    GPU, which a software renderer is not. device: the device to run on; None opens or shares one,
    chosen by `gpu` and `limits`. kernels: the kernel to take for an op, by the op's name; of
    several kernels, separated by commas, the first that can compute it.
    precision: "float32"; "float16" to store the weights of convolutions and products and the tables
    of embeddings as float16, and on compute also the tensors between steps whose kernels can read
    and write float16 (docs/backends.md); or "int8", see docs/backends.md.
    max_batch: the most samples to which waiting requests of `run_async` are joined, for a model
    that computes each sample by itself. The batch, N, must come first in all its inputs and
    outputs. Joined runs have batches that are powers of two, or `max_batch`. without: names of
    graph passes that are left out (`glnn.graph.passes.Pass`), which changes results by rounding.
    fused: False to leave out the passes that fuse several steps into one, as a bias, an activation
    or a normalisation into the step before, so that each can be timed.
    priority, wait: of a shared device, see `Device`; None for those of the environment.

    A model is planned once for each range of open sizes; the last few plans are kept. Any thread
    may use a session. It can be pickled, unless it was given a device: as its arguments, a file by
    its path. Raises ModelError for a model that does not load, DeviceError where the backend does
    not open. A weight that overflows float16 is a ShapeError where it is planned or run.

    Where plans of the model are stored on disk, runs use them without loading the model, and
    without the parts of glnn that read models and make plans. The model is loaded for anything
    else.
    """

    cache: ClassVar[PlanCache | None] = PlanCache()
    """The store of plans on disk; None to keep none."""

    @_explaining_arguments
    def __init__(
        self,
        model: Model | str | os.PathLike[str] | bytes,
        backend: str = "auto",
        *,
        prefer: str = "fastest",
        device: Device | None = None,
        gpu: int | str | None = None,
        limits: str | None = None,
        kernels: Mapping[str, str] | None = None,
        precision: str = "float32",
        max_batch: int = 1,
        without: Iterable[str] = (),
        fused: bool = True,
        priority: str | None = None,
        wait: str | None = None,
    ) -> None:
        self._source = None if isinstance(model, bytes) else model  # bytes are not pickled
        self._sharing_options = {"priority": priority, "wait": wait}
        device = shared_device(backend, device, gpu, limits, priority, wait)
        self._options = Options(
            backend, device, gpu, limits, kernels, precision, max_batch, without, fused, prefer
        )
        self._fitted: dict[int, tuple[Shape, np.dtype[Any]]] = {}
        """The last shape and dtype that fitted, by the number of the input's kind (`_kinds`)."""
        self._fitted_types: ArrayTypes | None = None
        """The types of the last inputs that fitted, where all were arrays."""
        stored = None if self.cache is None else self.cache.find(model, self._options)
        self._lazy = _LazyModel(model, self._options, stored, self.cache)
        self._runs: ModelExecutor
        if stored is not None:
            self._runs = StoredRuns(stored, self._lazy.executor)
            self._describe(stored.info)
        else:
            self._runs = self._lazy.executor()
            self._describe(self._lazy.load().model.info)
        self._requests = Requests(self._runs, max_batch)
        self._mark_derived()

    def _reconstruct(self, arguments: Mapping[str, Any]) -> None:
        InferenceSession.__init__(self, **arguments)

    def _constructor_arguments(self) -> Mapping[str, Any]:
        options = self._options
        if options.device is not None and self._sharing_options == NO_SHARING_OPTIONS:
            raise GlnnError(
                "a session given a device cannot be pickled: say which by gpu, limits and priority"
            )
        source: Any = self.model if self._source is None else self._source
        if isinstance(source, (str, os.PathLike)) and os.path.exists(source):
            source = os.path.abspath(source)  # the other process may be in another folder
        return {**vars(options), **self._sharing_options, "model": source, "device": None}

    def _describe(self, info: ModelInfo) -> None:
        """Set the attributes of the session from the model's description."""
        self.name, self.metadata = info.name, info.metadata
        self._inputs, self._outputs = info.inputs, info.outputs
        self._names = tuple(one.name for one in info.outputs)
        self._known_names = frozenset(self._names)
        self._objects = tuple(one for one in info.outputs if one.dtype is DType.object)
        self._read_by_host = frozenset(one.name for one in info.inputs if one.dtype not in FLOATS)
        self._kinds = kind_numbers(
            {one.name: (one.type, one.shape, one.free) for one in info.inputs}
        )
        """By input, the number of its kind, which inputs share that the same arrays fit."""
        self._shared_sizes = shared_sizes(info.inputs)

    def _load(self) -> LoadedModel:
        """Load the model; from then on runs use it instead of stored plans."""
        loaded = self._lazy.load()
        if isinstance(self._runs, StoredRuns):
            self._runs.give_up()
            self._runs = loaded.executor
        return loaded

    @property
    def model(self) -> Model:
        """The model. Where stored plans ran it so far, it is loaded now.

        Runs do not use stored plans any more: its weights may be assigned from now on.
        """
        return self._load().model

    @property
    def _executor(self) -> Executor | AutoExecutor:
        return self._load().executor

    @property
    def backend(self) -> Backend:
        """The backend it runs on; it changes after the device was lost, or when `auto` chooses."""
        return self._lazy.backend

    @property
    def choice(self) -> BackendChoice | None:
        """The choice of `auto` for the shapes of the last run, with the measured times.

        None where there was nothing to choose, or nothing was run yet; without times for a stored
        plan.
        """
        loaded = self._lazy.loaded
        if loaded is not None:
            return loaded.choice
        chosen = self._options.backend == "auto" and self.restored
        return BackendChoice(self._lazy.backend_name, remembered=True) if chosen else None

    @property
    def hosted(self) -> tuple[str, ...]:
        """The operators that the host computed in the last run on a GPU backend, with the reasons.

        A warning about them is logged once.
        """
        loaded = self._lazy.loaded
        hosted = () if loaded is None else loaded.executor.hosted  # stored plans have none
        return tuple(dict.fromkeys(map(str, hosted)))

    @property
    def restored(self) -> bool:
        """Return True where runs use stored plans and the model was not loaded."""
        return isinstance(self._runs, StoredRuns) and self._runs.restored

    @property
    def backend_name(self) -> str:
        """The backend's name; with stored plans no backend is opened for it."""
        return self._lazy.backend_name

    def __repr__(self) -> str:
        """The model, the backend, the inputs and the outputs; loads and opens nothing."""
        if "_names" not in vars(self):
            return "InferenceSession(unpickled, not used yet)"
        choice = self.choice
        backend = self._options.backend if choice is None else choice.backend
        inputs = ", ".join(f"{one.name} {one.type} {show(one.shape)}" for one in self._inputs)
        outputs = ", ".join(f"{one.name} {one.type} {show(one.shape)}" for one in self._outputs)
        return f"InferenceSession({self.name} on {backend}: {inputs} -> {outputs})"

    def get_inputs(self) -> list[TensorInfo]:
        """The inputs, each with `name`, `shape` and `type`."""
        return list(self._inputs)

    def get_outputs(self) -> list[TensorInfo]:
        """The outputs, each with `name`, `shape` and `type`."""
        return list(self._outputs)

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Feed],
        *,
        out: Mapping[str, Out] | None = None,
        states: SessionStates | None = None,
    ) -> list[Array]:
        """Run the model; return the outputs `output_names` (None or empty: all), in that order.

        feeds: by the input's name, an array or DeviceArray of its dtype; int64 is accepted for
        int32 where all numbers fit. out: by the output's name, an array to write it to, of its
        shape and dtype, in memory of its own; other outputs are new arrays. With the class
        `DeviceArray` in place of an array the output stays on the device, and the list has a new
        DeviceArray. A DeviceArray in place of an array, of the output's shape and dtype, is given
        up: its numbers are lost, and where it is also fed, as a cache of a fixed length, the output
        is written in its place if possible. states: of `make_states`: inputs that are not fed, and
        are updated by outputs that are not returned; None then means all other outputs.

        Raises ShapeError where an input is missing, unknown, or does not fit, or an array of `out`
        does not fit; ModelError for an unknown output; DeviceError where the driver resets the
        context, after which another call runs on a new device, and in a fork of a process that used
        GL.
        """
        names, targets = self._check_outputs(output_names, out, states)
        logged = LOG.isEnabledFor(logging.DEBUG)
        start = perf_counter() if logged else 0.0
        executor: ModelExecutor = self._runs if states is None else states
        results = executor.run(self._check_feeds(feeds, states), names, targets)
        _give_up(targets)
        if logged:
            took = duration(perf_counter() - start)
            LOG.debug("ran %s on %s in %s", self.name, self._lazy.backend_name, took)
        return [results[name] for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Feed],
        *,
        out: Mapping[str, Out] | None = None,
        states: SessionStates | None = None,
    ) -> Future[list[Array]]:
        """Submit a run; return a future of its outputs. The next run uploads while one computes.

        Runs are done in the order in which they were submitted; with `max_batch`, waiting ones may
        be joined. The arrays of `feeds` and `out` must not change until the future is done. Runs
        with the same `states` follow one another. A future is for threads; `asyncio.wrap_future`
        makes one for coroutines. Raises what `run` raises for wrong arguments; the future raises
        all other errors.
        """
        names, targets = self._check_outputs(output_names, out, states)
        requests = self._requests if states is None else states
        arrays = {k: as_host_array(one) for k, one in self._check_feeds(feeds, states).items()}
        _give_up(targets)
        targets = {k: DeviceArray if stays_on_device(one) else one for k, one in targets.items()}
        return requests.submit(arrays, names, targets)

    def make_states(
        self,
        pairs: Mapping[str, str] | None = None,
        initial: Mapping[str, Array] | None = None,
    ) -> SessionStates:
        """Return new states: inputs that stay on the device, and are updated by outputs.

        They are given to `run` and `run_async` as `states`. pairs: by the name of an input, the
        output that is its content from the next run on; None pairs `past…` with `present…`, a
        key-value cache of one size. initial: arrays that states begin with, which are copied;
        others begin with zeros. A state with open sizes needs one. Raises ModelError or ShapeError
        where a pair does not fit, ModelError where requests are joined (`max_batch`).
        """
        if self._options.max_batch > 1:
            raise ModelError(
                f"max_batch={self._options.max_batch} joins runs of several callers, and states "
                "belong to one: make a session without max_batch"
            )
        return self._lazy.load().states(pairs, initial)

    def _check_outputs(
        self,
        output_names: Sequence[str] | None,
        out: Mapping[str, Out] | None,
        states: SessionStates | None,
    ) -> tuple[tuple[str, ...], Mapping[str, Out]]:
        """Check the arguments; return the names of the outputs, and the arrays to write to."""
        listed = output_names is None or isinstance(output_names, (list, tuple))
        if not listed:
            raise ModelError(f"output_names must be a list of names, got {shown(output_names)}")
        updates = {} if states is None else self._checked(states).updates
        others, known = self._names, self._known_names
        if updates:
            others = tuple(name for name in others if name not in updates.values())
        names = tuple(output_names) if output_names else others
        for name in updates:
            if updates[name] in names:
                raise ModelError(f"output {updates[name]!r} updates state {name!r}: states.read()")
        for name in names if output_names else ():
            if not isinstance(name, str) or name not in known:
                raise ModelError(
                    f"unknown output {name!r}: {self.name} has {', '.join(map(repr, self._names))}"
                )
        if out is None:
            return names, {}
        if not isinstance(out, Mapping):
            raise ShapeError(f"out must map outputs to arrays, got {type(out).__name__}")
        wanted = frozenset(names)
        if not out.keys() <= wanted:
            name = next(name for name in out if name not in wanted)
            raise ModelError(f"out has {shown(name)}, which is not among the outputs {names}")
        for info in self._objects:
            if stays_on_device(out.get(info.name)):
                raise ShapeError(
                    f"output {info.name!r} is {info.type}, and a DeviceArray has numbers"
                )
        check_disjoint(out)
        return names, out

    def intermediates(
        self, feeds: Mapping[str, Feed], names: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Compute tensors inside the model for `feeds`, by their names.

        names: of tensors, of layers (for their results), or patterns of these as `conv*`; None for
        all tensors, the inputs too. The tensors named keep their memory and are not fused into
        their consumers; all else is computed as by `run`. Tensors in the bodies of branches and
        loops have no names here. Raises ModelError for an unknown name, and what `run` raises.
        """
        loaded = self._load()
        wanted = loaded.find(names)
        checked = self._check_feeds(feeds)
        arrays_in = {name: as_host_array(one) for name, one in checked.items()}
        values = tuple(dict.fromkeys(wanted.values()))
        arrays = loaded.executor.values(arrays_in, values) if values else {}
        return {name: arrays[value.name] for name, value in wanted.items()}

    def _checked(self, states: SessionStates) -> SessionStates:
        """Return `states`. Raises ModelError unless this session made them."""
        loaded, shared = self._lazy.loaded, getattr(states, "shared", None)
        if loaded is None or shared is not loaded.shared:
            raise ModelError(f"states must be of {self.name}'s make_states, got {shown(states)}")
        return states

    def _check_feeds(
        self, feeds: Mapping[str, Feed], states: SessionStates | None = None
    ) -> dict[str, Feed]:
        """Check and convert the inputs; types like the last that fitted are not checked again."""
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            raise ShapeError(f"feeds must map names to arrays, got {type(feeds).__name__}")
        if states is None and self._fitted_types is not None and self._fitted_types.match(feeds):
            return dict(feeds)
        inputs, kinds, fitted = self._inputs, self._kinds, self._fitted
        arrays: dict[str, Feed] = {}
        if states is not None:
            inputs = tuple(info for info in inputs if info.name not in states.updates)
            for name in feeds:
                if name in states.updates:
                    raise ShapeError(f"input {name!r} is a state, which is not fed: states.write()")
        for info in inputs:
            name = info.name
            array, kind = feeds.get(name), kinds[name]
            on_device = isinstance(array, DeviceArray)
            is_array = on_device or type(array) is np.ndarray
            if not is_array or (array.shape, array.dtype) != fitted.get(kind):  # type: ignore[union-attr]
                if isinstance(array, DeviceArray):
                    _check_fits(info, array)
                else:
                    check_names(self.name, inputs, feeds)
                    array = info.fitting(array)
                fitted[kind] = array.shape, array.dtype
            if on_device and name in self._read_by_host:
                array = as_host_array(array)  # type: ignore[arg-type]
            arrays[name] = array  # type: ignore[assignment]
        if len(feeds) != len(arrays):
            check_names(self.name, inputs, feeds)
        if self._shared_sizes:
            shapes = {name: one.shape for name, one in arrays.items()}
            shapes |= states.shapes if states else {}
            check_shared_sizes(self._shared_sizes, shapes)
        if states is None and not any_on_device(arrays):
            self._fitted_types = ArrayTypes(host_arrays(arrays))
        return arrays

    def plan(
        self,
        shapes: Mapping[str, Shape],
        *,
        keep: bool = False,
        feeds: Mapping[str, Array] | None = None,
    ) -> Plan:
        """Return the plan for inputs of `shapes`, built on first use.

        keep: True to let every tensor keep its memory, so that it can be read afterwards. feeds:
        arrays of inputs whose numbers may decide sizes and branches.
        Raises ShapeError where the shapes do not fit, UnsupportedOpError or LimitError where the
        backend cannot compute a layer.
        """
        if not isinstance(shapes, Mapping):
            raise ShapeError(f"shapes must map inputs to shapes, got {shown(shapes)}")
        shapes = {name: _shape(name, shape) for name, shape in shapes.items()}
        loaded = self._load()
        loaded.model.check(shapes)
        return loaded.executor.plan(shapes, keep=keep, feeds=feeds)


def _give_up(out: Mapping[str, Out]) -> None:
    """Give up the DeviceArrays in whose place outputs were written."""
    for one in out.values():
        if isinstance(one, DeviceArray):
            one.give_up()


def _check_fits(info: TensorInfo, array: DeviceArray) -> None:
    """Raise ShapeError where `array` is of another dtype or shape than an input."""
    if array.dtype != info.dtype.numpy:
        raise ShapeError(
            f"input {info.name!r} must be {info.dtype.value}, got a DeviceArray of {array.dtype}"
        )
    info.check(array.shape)


def _shape(name: str, shape: object) -> Shape:
    try:
        return tuple(operator.index(n) for n in shape)  # type: ignore[attr-defined]
    except TypeError:
        raise ShapeError(f"input {name!r}: a shape is integers, got {shown(shape)}") from None
