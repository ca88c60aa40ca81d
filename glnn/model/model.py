"""Models of layers in a graph, with a state dict as PyTorch's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import prod
from operator import index
from typing import Any, NamedTuple

from glnn.compiler import Executor
from glnn.core.cached_property import cached_property
from glnn.core.tensor_info import (
    BATCH,
    ModelInfo,
    SharedSizes,
    TensorInfo,
    check_names,
    check_shared_sizes,
    shared_sizes,
)
from glnn.core.types import Array, Dim, Shape, TensorType, of_tensor, to_float32
from glnn.errors import GlnnError, ModelError, ShapeError, extra, shown
from glnn.graph.builder import Builder
from glnn.graph.graph import Graph
from glnn.layers import Layer
from glnn.layers.layer import Scope, Training
from glnn.model.formats import check_metadata, save
from glnn.model.node import Content, Node, chain, check_graph, parameters, to_list
from glnn.model.summary import (
    InferredTypes,
    LayerSummary,
    SizeBinding,
    Summary,
    layer_summaries,
)
from glnn.model.weight_files import load_weights, state_dict_of
from glnn.registry import module_for

BATCH_COUNT = "num_batches_tracked"
"""The last part of the names of PyTorch's batch counts, which no layer reads."""
MAX_LISTED = 8  # the most names of each kind in an error


class LoadedKeys(NamedTuple):
    """The result of `load_state_dict`, as PyTorch's."""

    missing_keys: list[str]
    """The model's parameters that are not in the state dict, which are unchanged."""
    unexpected_keys: list[str]
    """Names in the state dict that are no parameters of the model."""


@dataclass(frozen=True, eq=False)
class ModelParameters:
    """The parameters of a model, which a state dict is matched to."""

    model: str
    """The model's name."""
    shapes: Mapping[str, Shape]
    """The shapes by PyTorch's names."""
    aliases: Mapping[str, str]
    """PyTorch's name by other names: glnn's, and those with a layer's number."""
    convert: Callable[[str, str, Any], Array]
    """Returns the array for a parameter, from its name, its name in errors and the given value;
    raises ShapeError."""
    ignored: frozenset[str] = frozenset()
    """Names that are neither missing nor unexpected."""

    def match(
        self, state_dict: Mapping[str, Any], strict: bool
    ) -> tuple[dict[str, Array], LoadedKeys]:
        """Return an array for each parameter in `state_dict` by PyTorch's names, and the missing
        and unexpected keys.

        state_dict: arrays or tensors by name. A prefix of all names, as DataParallel's `module.`,
        is ignored where no name is known with it. strict: True where all parameters must be there,
        and nothing else. Raises ModelError, which lists all that does not fit.
        """
        names = self._names(state_dict)
        unexpected = [key for key, name in names.items() if not name]
        missing = [name for name in self.shapes if name not in set(names.values())]
        wrong: list[str] = []
        arrays: dict[str, Array] = {}
        for key, name in names.items():
            if name:
                array = self._array(name, key, state_dict[key], wrong)
                if array is not None:
                    arrays[name] = array
        if wrong or (strict and (missing or unexpected)):
            kinds = {"do not fit": wrong}
            if strict:
                kinds |= {"missing": list(map(repr, missing))}
                kinds |= {"unexpected": list(map(repr, unexpected))}
            parts = [f"{kind}: {_shorten(each)}" for kind, each in kinds.items() if each]
            hint = self._hint(state_dict, missing, unexpected)
            raise ModelError(
                f"the state dict is not that of {self.model}: {'; '.join(parts)}{hint}"
            )
        return arrays, LoadedKeys(missing, unexpected)

    def _names(self, state_dict: Mapping[str, Any]) -> dict[str, str]:
        """Return the parameter's name for each key but ignored ones; "" for an unknown key."""
        known = {**self.aliases, **dict(zip(self.shapes, self.shapes, strict=True))}
        start = len(_common_prefix(list(state_dict), known))
        matches = {
            key: known.get(key[start:], "")
            for key in state_dict
            if key[start:] in known or not self._is_ignored(key[start:])
        }
        first: dict[str, str] = {}
        for key, name in matches.items():
            if name and first.setdefault(name, key) != key:
                raise ModelError(f"both {first[name]!r} and {key!r} are {name!r} of {self.model}")
        return matches

    def _is_ignored(self, name: str) -> bool:
        return name in self.ignored or name.rpartition(".")[2] == BATCH_COUNT

    def _array(self, name: str, key: str, value: Any, wrong: list[str]) -> Array | None:
        """Return the array for the parameter `name`; None where it does not fit, with the reason
        added to `wrong`.
        """
        expected = self.shapes[name]
        try:
            shape = tuple(map(int, getattr(value, "shape", expected)))
            if shape != expected:  # checked before a tensor is moved or copied
                raise ShapeError(f"{key!r} must have shape {expected}, got {shape}")
            return self.convert(name, repr(key), value)
        except ShapeError as error:
            wrong.append(str(error))
        except (TypeError, ValueError):
            wrong.append(f"{key!r} has no sizes")
        return None

    def _hint(
        self, state_dict: Mapping[str, Any], missing: Sequence[str], unexpected: Sequence[str]
    ) -> str:
        """Return advice where all parameters have other names in `state_dict`, else ""."""
        if not missing or not unexpected:
            return ""
        prefix = _missing_prefix(missing, unexpected)
        if prefix:
            hint = f"; the prefix {prefix!r} is the difference"
            if set(self.shapes) <= {key.removeprefix(prefix) for key in state_dict}:
                hint += f": give {{k.removeprefix({prefix!r}): v for k, v in state_dict.items()}}"
            return hint
        keys = [key for key in state_dict if not self._is_ignored(key)]
        shapes = [tuple(getattr(state_dict[key], "shape", ())) for key in keys]
        if shapes != list(self.shapes.values()):
            return ""
        values = "state_dict.values()"
        if len(keys) < len(state_dict):
            values = f'(v for k, v in state_dict.items() if not k.endswith("{BATCH_COUNT}"))'
        return (
            "; in this order their shapes agree: name the layers as PyTorch does, or give "
            f"dict(zip(model.state_dict(), {values}))"
        )


def _missing_prefix(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Return the prefix with which all names in `missing` are in `unexpected`, or ""."""
    for key in unexpected:
        if key.endswith(f".{missing[0]}"):
            prefix = key.removesuffix(missing[0])
            if {f"{prefix}{name}" for name in missing} <= set(unexpected):
                return prefix
    return ""


def _common_prefix(names: Sequence[str], parameters: Mapping[str, str]) -> str:
    """Return a prefix that all `names` have and without which some are in `parameters`."""
    if not names:
        return ""
    parts = names[0].split(".")[:-1]
    for count in range(len(parts) + 1):
        prefix = "".join(f"{part}." for part in parts[:count])
        if not all(name.startswith(prefix) for name in names):
            break
        if any(name[len(prefix) :] in parameters for name in names):
            return prefix
    return ""


def _shorten(texts: Iterable[str]) -> str:
    """Return the first of `texts`, and how many more there are."""
    texts = list(texts)
    more = f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
    return ", ".join(texts[:MAX_LISTED]) + more


class ModelBase:
    """Base class of models: layers by name, and a state dict as PyTorch's."""

    nodes: tuple[Node, ...]
    name: str

    def __getitem__(self, key: str | int) -> Any:
        """The layer of that name or place: `model["conv1"].weight = array`, `model[0]`.

        Sessions compute with an assigned NumPy array or PyTorch tensor from the next run on. Raises
        ModelError where there is no such layer.
        """
        if not self.nodes:
            raise ModelError(
                f"{self.name} has no layers: state_dict() gives its parameters, "
                "load_state_dict() changes them"
            )
        if isinstance(key, str):
            for node in self.nodes:
                if node.name == key:
                    return node.layer
            names = [node.name for node in self.nodes]
            near = get_close_matches(key, names, 3) or names[:8]
            count = "" if len(near) == len(names) else f" among {len(names)}"
            listed = ", ".join(map(repr, near))
            raise ModelError(f"{self.name} has no layer {shown(key)}: it has {listed}{count}")
        try:
            return self.nodes[index(key)].layer
        except TypeError:
            raise ModelError(f"a layer has a name or a number, got {shown(key)}") from None
        except IndexError:
            last = len(self.nodes) - 1
            raise ModelError(f"{self.name} has layers 0 to {last}, got {shown(key)}") from None

    def __len__(self) -> int:
        """Return the number of layers: none for an .onnx file."""
        return len(self.nodes)

    def __bool__(self) -> bool:
        return True  # also where it has no layers

    def __iter__(self) -> Iterator[Layer]:
        return (node.layer for node in self.nodes)

    def __contains__(self, one: object) -> bool:
        """Return True where `one` is a layer of the model, or a layer's name."""
        if isinstance(one, str):
            return any(one == node.name for node in self.nodes)
        return any(one is node.layer for node in self.nodes)

    def begin(self, seed: int) -> None:
        """Assign initial values to every parameter, by a seed for each layer that `seed` gives.

        Raises ModelError for a model of an .onnx file, which has no initial values.
        """
        for number, node in enumerate(self.nodes):
            node.layer.begin(seed << 32 | number)

    def parameters(self) -> dict[str, Array]:
        """Return every parameter by its layer's name and its own name: `c1.weight`."""
        return parameters(self.nodes)

    @property
    def has_random_weights(self) -> bool:
        """True where a layer has its initial parameters: none were loaded or trained."""
        return any(node.layer.is_initial for node in self.nodes)

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names of the parameters that gradients change: all but running statistics."""
        running = {f"{node.name}.{name}" for node in self.nodes for name in node.layer.running}
        return tuple(name for name in self.parameters() if name not in running)

    def state_dict(self) -> dict[str, Array]:
        """Return every parameter by PyTorch's name for it, `attention.out_proj.weight`: read-only
        float32 arrays.

        Of an .onnx file: its initializers that nodes read, of their own types.
        """
        return {
            _torch_name(node, name): array
            for node in self.nodes
            for name, array in node.layer.parameters.items()
        }

    def load_state_dict(
        self, state_dict: Mapping[str, Any] | str | os.PathLike[str], strict: bool = True
    ) -> LoadedKeys:
        """Assign the parameters in `state_dict`, all or, where it does not fit, none.

        state_dict: NumPy arrays or PyTorch's tensors of real numbers by name, or the path of a
        file of them for `glnn.load_weights`. A name is the layer's and the parameter's,
        `conv1.weight`; nn.Sequential's numbers, `0.weight`, mean the layers by index where none has
        that name. `num_batches_tracked` is ignored, as is a prefix of all names that no layer has,
        such as DataParallel's `module.`. strict: True where every parameter must be given, and
        nothing else.

        Sessions compute with the new parameters from the next run on. Sessions of an .onnx file's
        model keep their parameters instead, and the `model` of a session that has read the file
        itself refuses new ones.

        Returns the missing and the unexpected names. Raises ModelError, which lists all that does
        not fit; shapes must fit in any case.
        """
        where = ""
        if isinstance(state_dict, (str, os.PathLike)):
            where = f"{os.fspath(state_dict)}: "
            state_dict = load_weights(state_dict)
        tensors = state_dict_of(state_dict, "state_dict")
        try:
            arrays, result = self._model_parameters().match(tensors, strict)
            self._assign(arrays)
        except ModelError as error:
            raise ModelError(f"{where}{error}") from None
        return result

    def hold(self) -> None:
        """Record that a session loaded it: parameters that it would not see are refused."""

    def _model_parameters(self) -> ModelParameters:
        """Return the model's parameters, for matching a state dict."""
        shapes, aliases = {}, {}
        names = {node.name for node in self.nodes}
        for i, node in enumerate(self.nodes):
            starts = [node.name] if str(i) in names else [node.name, str(i)]
            for name, shape in node.layer.shapes.items():
                torch_name = _torch_name(node, name)
                shapes[torch_name] = shape
                for start in starts:
                    for end in (name, node.layer.dotted.get(name, name)):
                        aliases[f"{start}.{end}"] = torch_name
        return ModelParameters(
            self.name, shapes, aliases, lambda name, what, value: to_float32(what, value)
        )

    def _assign(self, arrays: Mapping[str, Array]) -> None:
        """Assign `arrays`, which fit, by the names of `state_dict`."""
        for node in self.nodes:
            for name in node.layer.shapes:
                torch_name = _torch_name(node, name)
                if torch_name in arrays:
                    setattr(node.layer, name, arrays[torch_name])


def _torch_name(node: Node, name: str) -> str:
    """Return PyTorch's name of the parameter `name` of a layer."""
    return f"{node.name}.{node.layer.dotted.get(name, name)}"


@dataclass(frozen=True, eq=False)
class Model(ModelBase):
    """Layers in a graph, in an order in which they can run.

    inputs: the tensors that a run is fed. outputs: the names of those that it returns. Raises
    ModelError for an inconsistent graph, ShapeError for layers that do not fit each other; both
    name the layer.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[str, ...]
    name: str = "model"
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata of its file by name: of pictures, of classes; see `glnn.images`."""
    _calls: dict[str, Executor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_graph(self.name, self.nodes, self.inputs, self.outputs)
        object.__setattr__(self, "metadata", check_metadata(self.metadata, self.name))
        _ = self.tensors  # infers every shape once

    def __reduce__(self) -> tuple[Any, ...]:
        return Model, (self.nodes, self.inputs, self.outputs, self.name, self.metadata)

    @classmethod
    def sequential(
        cls,
        layers: Sequence[Layer] | Mapping[str, Layer],
        input_shape: Sequence[int],
        name: str = "model",
        names: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Model:
        """A chain of layers.

        layers: in order, or by their names in order. input_shape: the shape of one sample, without
        the batch. names: the layers' names; None names those that have none after their kinds,
        `conv2d1`, `relu1`, `conv2d2`. metadata: as `glnn.images.metadata` has it.
        """
        nodes = chain(layers, names, "input")
        sizes = to_list("input_shape", input_shape, "sizes, as in (1, 28, 28)")
        first = sizes[0] if sizes else 0
        if first is None or (isinstance(first, str) and first.isalpha()):
            raise ModelError(
                "input_shape is that of one sample, without the batch, as in (1, 28, 28), "
                f"got {shown(tuple(sizes))}"
            )
        outputs = (nodes[-1].output if nodes else "input",)

        def build(sizes: Sequence[int]) -> Model:
            inputs = (TensorInfo("input", (BATCH, *sizes)),)
            return cls(nodes, inputs, outputs, name, {} if metadata is None else metadata)

        try:
            return build(sizes)
        except ShapeError as error:
            with suppress(GlnnError):
                build(sizes[1:])
                advice = f"input_shape is without the batch, which {tuple(sizes[1:])} would be"
                error = ShapeError(f"{error}; {advice}")
            raise error from None

    @classmethod
    def from_torch(
        cls, module: Any, example: Any, *, dynamic: bool = True, name: str | None = None
    ) -> Model:
        """Return a model that computes what a PyTorch module does at inference, by PyTorch's
        exporter to ONNX.

        example: an input like those to come, a tensor, or a tuple of several. dynamic: whether the
        first size of inputs and outputs is left open where the exporter can do that. name: the
        model's, None for the module's class. Its parameters have PyTorch's names. Raises
        ModelError where PyTorch or onnxscript is missing, or the exporter has no operator for what
        the module computes; it names that.
        """
        try:
            importing = module_for("import torch")
        except ImportError as error:
            raise ModelError(
                f"Model.from_torch needs {error.name}, which is not installed: {extra('torch')}"
            ) from None
        result: Model = importing.from_torch(module, example, dynamic, name)
        return result

    @property
    def info(self) -> ModelInfo:
        """The name, inputs, outputs and metadata, and whether weights are random."""
        outputs = tuple(self.tensors[name] for name in self.outputs)
        return ModelInfo(
            self.name, tuple(self.inputs), outputs, dict(self.metadata), self.has_random_weights
        )

    @property
    def _layer_outputs(self) -> tuple[str, ...]:
        """The names of the tensors that the layers make, in order."""
        return tuple(name for node in self.nodes for name in node.outputs)

    @cached_property
    def graph(self) -> Graph:
        """The layers as a graph of operators. Raises ShapeError that names the layer."""
        builder = Builder(self.name, self._layer_outputs)
        return self._express(builder, {info.name: info.shape for info in self.inputs})

    def batched(self, batch: int, training: Training | None = None) -> Graph:
        """Return the graph for `batch` samples: all sizes are known.

        training: makes the layers compute as in training; its `passes` is an input after the
        model's. Raises ShapeError that names the layer.
        """
        builder = Builder(self.name, self._layer_outputs)
        shapes = {info.name: info.with_batch(batch) for info in self.inputs}
        return self._express(builder, shapes, training)

    def _express(
        self,
        builder: Builder,
        shapes: Mapping[str, tuple[Dim, ...]],
        training: Training | None = None,
    ) -> Graph:
        """The graph of the layers, for inputs of `shapes` by name."""
        values = {
            info.name: builder.input(info.name, TensorType(shapes[info.name], info.dtype))
            for info in self.inputs
        }
        if training is not None:
            builder.take(training.passes)
        for node in self.nodes:
            scope = Scope(builder, node.name, node.output, training)
            try:
                result = node.layer.results(scope, *(values[name] for name in node.inputs))
            except ShapeError as error:
                text = str(error).replace(repr(BATCH), BATCH)  # as shapes are shown elsewhere
                raise ShapeError(f"layer {node.name!r}: {text}") from None
            values |= zip(node.outputs, result, strict=True)
        return builder.graph([values[name] for name in self.outputs])

    def check_inputs(self, feeds: Mapping[str, object]) -> None:
        """Raise ShapeError where an input is missing in `feeds`, or unknown."""
        check_names(self.name, self.inputs, feeds)

    def check(self, shapes: Mapping[str, Shape]) -> None:
        """Raise ShapeError where an input is missing, unknown, or does not have its shape."""
        self.check_inputs(shapes)
        for info in self.inputs:
            info.check(tuple(shapes[info.name]))
        check_shared_sizes(self._shared_sizes, shapes)

    @cached_property
    def _shared_sizes(self) -> SharedSizes:
        return shared_sizes(self.inputs)

    def infer(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """The shape of every tensor, by its name, for inputs of `shapes`.

        Raises ShapeError where an input is missing, unknown, or does not fit.
        """
        self.check(shapes)
        types = self.graph.infer_types(
            {i.name: TensorType(tuple(shapes[i.name]), i.dtype) for i in self.inputs}
        )
        result = {value.name: type.shape for value, type in types.items()}
        named = (*(info.name for info in self.inputs), *self._layer_outputs)
        return {name: result[name] for name in (*named, *self.outputs)}

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its name, with `"N"` where a size follows the batch."""
        values = {v.name: v for node in self.graph.nodes for v in node.outputs}
        values |= {value.name: value for value in self.graph.inputs}
        result = {}
        for name in (*(info.name for info in self.inputs), *self._layer_outputs):
            result[name] = TensorInfo.from_type(name, values[name].type)
        return result

    @property
    def output_shapes(self) -> Mapping[str, tuple[int | str, ...]]:
        """Shapes of the outputs by name, in order, with `"N"` where a size follows the batch."""
        return {name: self.tensors[name].shape for name in self.outputs}

    def __call__(self, x: Array, backend: str = "auto") -> Array:
        """Return the model's output for `x`, an array of its input's dtype, computed by `backend`.

        `x` may be a PyTorch tensor; the result is a NumPy array, without gradients. For models of
        one input and one output; others need an InferenceSession.
        Raises ShapeError where `x` does not fit, DeviceError where the backend does not open.
        """
        if len(self.inputs) != 1 or len(self.outputs) != 1:
            raise ModelError(
                f"{self.name} has {len(self.inputs)} inputs and {len(self.outputs)} outputs: "
                "use an InferenceSession"
            )
        if not isinstance(backend, str):
            raise GlnnError(f"backend must be a name, got {shown(backend)}")
        info = self.inputs[0]
        feeds = {info.name: info.array(of_tensor(f"input {info.name!r}", x))}
        self.check({name: array.shape for name, array in feeds.items()})
        (result,) = self._executor(backend).run(feeds).values()
        return result

    def _executor(self, backend: str) -> Executor:
        """Return the executor that all calls on `backend` share."""
        executor = self._calls.get(backend)
        device = executor.backend.device if executor else None
        closed = device is not None and device.closed and device.lost is None
        if executor is None or closed:
            self._calls[backend] = executor = Executor(self.graph, backend)
        return executor

    def save(self, path: str | os.PathLike[str], format: str | None = None) -> None:
        """Write the model to `path`.

        format: "glnn", a .json file and its parameters in an .npz file beside it; "onnx", an .onnx
        file; "rovder", a Network Definition, a .json file, and its matrices in files beside it;
        None is "glnn" or "onnx", as `path` ends. Files are there whole or not at all. Raises
        ModelError where the model cannot be written, or has a layer that the format cannot say.

        With "glnn", `net.json` gets a new `net.weights-<16 digits>.npz` each time. The .json file
        is replaced in one step; until then `path` is the former model. Then the former weights are
        removed, and files that a killed save left behind, except those that another .json file of
        the same folder names, or one whose name begins with `net.json`, as `net.json.bak`. Several
        processes may save at once: the last one wins.
        """
        save(path, format, self.content)

    @property
    def content(self) -> Content:
        """The content of its file."""
        return Content(
            self.name, self.nodes, self.inputs, self.outputs, self.tensors, self.metadata
        )

    def summary(
        self,
        shapes: Mapping[str, Sequence[int] | int] | Sequence[int] | None = None,
        *,
        batch: int | None = None,
    ) -> Summary:
        """Return a table of the layers: shapes, parameters and multiply-adds, and their totals.

        Sizes that are left open are shown by their names. Where only the batch is, multiply-adds
        are counted for one sample; where others are, they are not.

        Args:
            shapes: The shape of an input, the batch included, by its name, or a size by the name
                that the model has for it; for a model of one input also its shape alone.
            batch: The number of samples.

        Raises:
            ModelError: for a name of no input and no size.
            ShapeError: where a shape does not fit.
        """
        sizes = SizeBinding.create(self.name, self.inputs, shapes, batch)
        if sizes.counted is not None:
            self.check(sizes.counted)
        return self._summary(sizes)

    def _summary(self, sizes: SizeBinding | None = None) -> Summary:
        """Return the summary for `sizes`; None leaves all sizes open, without counts."""
        types = InferredTypes.of_graph(self.graph, sizes)
        inputs = self.inputs
        if sizes is not None:
            inputs = tuple(replace(info, shape=sizes.inputs[info.name]) for info in inputs)
        counted = {**sizes.known, **sizes.sample} if sizes and types.counts else None
        layers, trainable = self._layer_summaries(types), self._trainable_count()
        open_sizes = () if sizes is None or sizes.counted is not None else sizes.open_sizes
        return Summary(
            self.name, inputs, self.outputs, layers, trainable, counted, open_sizes,
            self.has_random_weights,
        )  # fmt: skip

    def _layer_summaries(self, types: InferredTypes) -> tuple[LayerSummary, ...]:
        """Summarize the layers. types: of the graph."""
        return layer_summaries(self.nodes, types)

    def _trainable_count(self) -> int:
        """Return the number of elements of the parameters that gradients change."""
        return sum(
            prod(shape)
            for node in self.nodes
            for name, shape in node.layer.shapes.items()
            if name not in node.layer.running
        )

    def __str__(self) -> str:
        return str(self._summary())

    __repr__ = __str__  # that of a dataclass would print every weight

    def _repr_html_(self) -> str:
        return self._summary()._repr_html_()
