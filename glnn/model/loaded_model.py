"""A loaded model with its executor, and look-up of its tensors by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase

from glnn.backends import Backend
from glnn.compiler import Executor
from glnn.compiler.backend_autotune import AutoExecutor, executor_of
from glnn.compiler.executor import PLANS_KEPT
from glnn.compiler.session_states import SessionStates, SharedPlans
from glnn.core.fileio import record_opened_files
from glnn.core.tensor_info import BATCH
from glnn.core.types import UNKNOWN, UNRANKED, Array, DType
from glnn.errors import ModelError, shown
from glnn.graph.graph import Value
from glnn.graph.passes import Pass
from glnn.model.load import load, load_bytes
from glnn.model.model import Model
from glnn.runtime.options import BackendChoice, Options
from glnn.stored.plan_cache import PlanCache


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model and its executor."""

    model: Model
    """The model."""
    executor: Executor | AutoExecutor
    """Runs its graph."""

    shared: SharedPlans = field(default_factory=SharedPlans)
    """The plans of streams with states."""

    def states(
        self, pairs: Mapping[str, str] | None, initial: Mapping[str, Array] | None
    ) -> SessionStates:
        """Return new states; see `InferenceSession.make_states`."""
        return SessionStates(self.executor, self.model.info, pairs, initial, self.shared)

    @property
    def choice(self) -> BackendChoice | None:
        """The choice of `auto` for the shapes of the last run, if any."""
        return self.executor.choice if isinstance(self.executor, AutoExecutor) else None

    @classmethod
    def from_source(
        cls,
        source: object,
        options: Options,
        backend: Backend | None = None,
        cache: PlanCache | None = None,
    ) -> LoadedModel:
        """Load a model.

        source: a Model, an argument of `load`, or the content of a file as bytes. backend: an open
        one, None to open one by `options`. cache: the store of plans; None stores none. Raises
        ModelError for a model that does not load, or whose requests cannot be joined, GlnnError for
        unknown passes, and DeviceError where the backend does not open.
        """
        with record_opened_files() as files:
            model = _model(source)
        if source is not model:
            model.hold()
        without = Pass.left_out(options.without, options.fused)
        check_joined(model, options.max_batch)
        executor = executor_of(
            model.graph,
            options.backend if backend is None or options.backend == "auto" else backend,
            options.prefer,
            device=options.device,
            gpu=options.gpu,
            limits=options.limits,
            kernels=options.kernels,
            precision=DType(options.precision),
            without=without,
            plans=PLANS_KEPT + (options.max_batch - 1).bit_length(),
        )
        device, name = executor.device, executor.backend.name
        if isinstance(executor, AutoExecutor):
            device, name = executor.gl_device, executor.stored_backend
        if cache is not None and device is not None:
            writer = cache.writer(source, options, device, name, model.info, files)
            if writer is not None:
                executor.save_by(writer)
        return cls(model, executor)

    def find(self, names: Sequence[str] | None) -> dict[str, Value]:
        """Return the values with these names; see `find_values`."""
        return find_values(self.model, names)


def _model(source: object) -> Model:
    """Return the model of `source`; see `LoadedModel.from_source`."""
    if isinstance(source, bytes):
        return load_bytes(source)
    return source if isinstance(source, Model) else load(source)  # type: ignore[arg-type]


def check_joined(model: Model, max_batch: int) -> None:
    """Raise ModelError unless requests to `model` can be joined to `max_batch` samples."""
    infos = [*model.inputs, *(model.tensors[name] for name in model.outputs)]
    first = infos[0].shape[:1]
    named = isinstance(first[0] if first else 0, str) and first[0] not in (UNKNOWN, UNRANKED)
    batch = first if named else (BATCH,)  # ONNX models have their own names for it
    for info in infos if max_batch > 1 else ():
        if info.shape[:1] != batch:
            raise ModelError(
                f"max_batch={max_batch} needs a batch {batch[0]!r} first in every input and "
                f"output; {info.name!r} of {model.name} has shape {info.shape}"
            )


def find_values(model: Model, names: Sequence[str] | None = None) -> dict[str, Value]:
    """Return the values of `model` for `names`, in their order.

    names: of tensors, of layers (for their results), or patterns of these as `conv*` and `*.1`;
    None for every tensor that runs change. Raises ModelError for an unknown name.
    """
    if names is not None and not (
        isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    ):
        raise ModelError(f"names must be a list of tensors' names, got {shown(names)}")
    graph = model.graph
    values = (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
    if names is None:
        return {value.name: value for value in values if graph.changes(value)}
    tensors = {value.name: value for value in values}
    layers = {node.name: tensors[node.output] for node in model.nodes}
    result: dict[str, Value] = {}
    for name in names:
        if name in tensors or name in layers:
            result[name] = tensors[name] if name in tensors else layers[name]
        elif matches := [one for one in tensors if fnmatchcase(one, name)]:
            result |= {one: tensors[one] for one in matches}
        elif matches := [one for one in layers if fnmatchcase(one, name)]:
            result |= {one: layers[one] for one in matches}
        else:
            raise ModelError(_unknown(model.name, name, [*tensors, *layers]))
    return result


def _unknown(model: str, name: str, names: Sequence[str]) -> str:
    """Return the error text for an unknown name, with similar names, or the first of `names`."""
    distinct = list(dict.fromkeys(names))
    near = get_close_matches(name, distinct, 3) or distinct[:8]
    more = "" if len(near) == len(distinct) else f" among {len(distinct)}"
    listed = ", ".join(map(repr, near))
    return f"no tensor or layer of {model} is called {shown(name)}: it has {listed}{more}"
