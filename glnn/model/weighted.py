"""The base class of models: layers by name, and a state dict as PyTorch's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from operator import index
from typing import Any

from glnn.arrays import to_float32
from glnn.errors import ModelError, shown
from glnn.layers import Layer
from glnn.model.node import Node, parameters
from glnn.model.state import LoadedKeys, ModelParameters
from glnn.model.weight_files import load_weights, state_dict_of
from glnn.types import Array


class Weighted:
    """A model's layers and their parameters. nodes: its layers, in order. name: its own."""

    nodes: tuple[Node, ...]
    name: str

    def __getitem__(self, key: str | int) -> Any:
        """The layer of that name or place: `model["conv1"].weight = array`, `model[0]`.

        What is assigned, a NumPy array or a tensor of PyTorch's, is what sessions compute with
        from the next run on. Raises ModelError where there is none.
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
            more = "" if len(near) == len(names) else f" among {len(names)}"
            to_list = ", ".join(map(repr, near))
            raise ModelError(f"{self.name} has no layer {shown(key)}: it has {to_list}{more}")
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
        """Assign every parameter initial values by `seed`, each layer's of its own.

        Raises ModelError for a model of an .onnx file, which does not say what is initial.
        """
        for number, node in enumerate(self.nodes):
            node.layer.begin(seed << 32 | number)

    def parameters(self) -> dict[str, Array]:
        """Every parameter by its layer's name and its own: `c1.weight`."""
        return parameters(self.nodes)

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names of the parameters that gradients change: all but running statistics."""
        running = {f"{node.name}.{name}" for node in self.nodes for name in node.layer.running}
        return tuple(name for name in self.parameters() if name not in running)

    def state_dict(self) -> dict[str, Array]:
        """Every parameter by the name that PyTorch gives it, `attention.out_proj.weight`: float32
        arrays that cannot be written to.

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
        file of them as `glnn.load_weights` reads. A name is the layer's and the parameter's,
        `conv1.weight`; nn.Sequential's numbers, `0.weight`, mean the layers by place where none
        is called so. `num_batches_tracked` is passed over. A first part that all names have and
        no layer, as DataParallel's `module.`, is left out. strict: whether every parameter must be
        given, and nothing else. Sessions compute with them from the next run on, but that those of
        an .onnx file's model stay with what they were made with: the `model` of such a session,
        where that has read the file, refuses them.

        Gives the names that are missing and those that are unexpected. Raises ModelError, which
        lists all that does not fit; shapes must in any case.
        """
        where = ""
        if isinstance(state_dict, (str, os.PathLike)):
            where = f"{os.fspath(state_dict)}: "
            state_dict = load_weights(state_dict)
        given = state_dict_of(state_dict, "state_dict")
        try:
            arrays, found = self._model_parameters().match(given, strict)
            self._assign(arrays)
        except ModelError as error:
            raise ModelError(f"{where}{error}") from None
        return found

    def hold(self) -> None:
        """Note that a session has loaded it: parameters that it would not see are refused."""

    def _model_parameters(self) -> ModelParameters:
        """The parameters that it has."""
        shapes, others = {}, {}
        called = {node.name for node in self.nodes}
        for place, node in enumerate(self.nodes):
            starts = [node.name] if str(place) in called else [node.name, str(place)]
            for name, shape in node.layer.shapes.items():
                theirs = _torch_name(node, name)
                shapes[theirs] = shape
                for start in starts:
                    for end in (name, node.layer.dotted.get(name, name)):
                        others[f"{start}.{end}"] = theirs
        return ModelParameters(
            self.name, shapes, others, lambda name, what, value: to_float32(what, value)
        )

    def _assign(self, arrays: Mapping[str, Array]) -> None:
        """Assign `arrays`, by the names of `state_dict`: they fit."""
        for node in self.nodes:
            for name in node.layer.shapes:
                theirs = _torch_name(node, name)
                if theirs in arrays:
                    setattr(node.layer, name, arrays[theirs])


def _torch_name(node: Node, name: str) -> str:
    """Return PyTorch's name of the parameter `name` of a layer."""
    return f"{node.name}.{node.layer.dotted.get(name, name)}"
