"""A kernel: one shader, or stages of several ops, and its declaration, a TOML file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, get_args

from glnn.device import Capabilities, DataTexture
from glnn.device.texture import TEXELS
from glnn.errors import LayoutError, ShaderError
from glnn.glsl import DOCUMENTS
from glnn.graph.decompose import LOWERINGS
from glnn.graph.epilogue import Extent
from glnn.kernels.architecture import ARCHITECTURES
from glnn.kernels.declaration import fault
from glnn.layout import parse

Factor = int | str
Quantity = Factor | tuple[Factor, ...] | tuple[tuple[Factor, ...], ...]
"""A number, a parameter's name, a list of these to multiply, or a list of such lists to add up."""

BACKENDS = {".comp": "compute", ".vert": "feedback"}
ANY = "any"
EPILOGUES = ("float", "vec4")  # the forms of common/epilogue.glsl
STAGE = "stage"
MANY = "*"  # behind the name of an operand that an op has any number of


@dataclass(frozen=True)
class Kernel:
    """One way to compute an op on a device. Field names are the declaration's keys.

    shader: the name of the shader, where it is not the declaration's own.
    generate: the generator of `kernels.generate` that fills in its template. The operand `x*` then
        stands for x0, x1, ... of an op that is variadic; its binding is that of x0.
    stages: the way of `graph.decompose` by which it computes the op, where it has no shader; its
        backend is what the declaration's `backend` says then, compute unless said.
    summary: what it does, in a line.
    layouts: the layout of each operand and of `out`; of several, an operand is taken as it comes
        where it lies in one of them, else in the first. `any` takes what comes, and `out` follows.
    stacks: operands of which it takes a stack of matrices, too.
    halves: operands that may be float16, too.
    workgroup: invocations along x, y and z (compute only).
    grid: the sizes that run along x, y and z; several names in one place are multiplied, among
        which parameters may be.
    per_invocation: how much of a size one invocation covers, 1 unless said.
    strided: the last dimension of the grid is walked in strides, so it may be cut short.
    shared_bytes: shared memory of one workgroup.
    bindings: the storage-buffer binding of each operand and of `out` (compute only).
    captures: how many floats a vertex captures (feedback only).
    instances: the size that the instances of the draw run along (feedback only).
    textures: the texel format of each operand that is read through a texture.
    attributes: the floats of each operand that is read as a vertex attribute, each vertex the ones
        that follow those of the vertex before (feedback only).
    in_place: the operand whose memory the result takes; it has no binding.
    epilogue: the form of common/epilogue.glsl that it calls, float or vec4; "stage" where a stage
        of it takes the epilogue; nothing where it takes none.
    extents: of the operands that an epilogue may have here.
    tune: parameters and the values worth trying, the default first.
    architectures: other defaults for the device architectures so called (see `architecture`).
    unfit: architectures whose registers cannot hold it.
    requires: attributes (the op's defines) that must have the value given.
    max_outputs: it suits results of at most this many elements; 0 means any.
    min_outputs: it suits results of at least this many elements.
    at_most: it suits problems whose sizes are at most these.
    at_least: it suits problems whose sizes are at least these.
    devices: it suits these architectures; empty means any device.
    slow_on: architectures that it does not suit.
    priority: among the kernels that suit, the greatest is the default.
    tolerance: the relative error that its results may have.
    """

    name: str
    op: str
    backend: str
    path: Path
    declaration: Path
    summary: str
    layouts: Mapping[str, str | tuple[str, ...]]
    stages: str = ""
    generate: str = ""
    workgroup: tuple[Quantity, Quantity, Quantity] = (1, 1, 1)
    grid: tuple[tuple[str, ...], ...] = ()
    per_invocation: Mapping[str, Quantity] = field(default_factory=dict)
    strided: bool = False
    shared_bytes: Quantity = 0
    bindings: Mapping[str, int] = field(default_factory=dict)
    captures: Quantity = 4
    instances: str | None = None
    textures: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Quantity] = field(default_factory=dict)
    in_place: str | None = None
    epilogue: str = ""
    extents: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    halves: tuple[str, ...] = ()
    tune: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    architectures: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unfit: tuple[str, ...] = ()
    requires: Mapping[str, int] = field(default_factory=dict)
    max_outputs: int = 0
    min_outputs: int = 0
    at_most: Mapping[str, int] = field(default_factory=dict)
    at_least: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    slow_on: tuple[str, ...] = ()
    priority: int = 0
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        self._check_layouts()
        if self.backend not in BACKENDS.values():
            raise self._wrong("backend", f"expected one of {sorted(BACKENDS.values())}")
        if not self.stages:
            self._check_places()
        elif self.stages not in LOWERINGS:
            raise self._wrong("stages", f"expected one of {sorted(LOWERINGS)}")
        forms = (STAGE,) if self.stages else EPILOGUES
        if self.epilogue and self.epilogue not in forms:
            raise self._wrong("epilogue", f"expected one of {forms}")
        if unknown := set(self.halves) - (set(self.layouts) - {"out"}):
            raise self._wrong("halves", f"{sorted(unknown)[0]} is none of its operands")
        if unknown := set(self.extents) - set(get_args(Extent) if self.epilogue else ()):
            raise self._wrong("extents", f"unknown extent {sorted(unknown)[0]}")
        if any(not values for values in self.tune.values()):
            raise self._wrong("tune", "every parameter needs a default")
        for key in ("architectures", "unfit", "devices", "slow_on"):
            if unknown := set(getattr(self, key)) - set(ARCHITECTURES):
                raise self._wrong(key, f"unknown architecture {sorted(unknown)[0]}")
        for values in self.architectures.values():
            self.with_parameters(**values)
        for key in ("workgroup", "per_invocation", "shared_bytes", "captures"):
            self._check_names(key, getattr(self, key))
        for key in ("workgroup", "per_invocation"):
            value = getattr(self, key)
            for part in value.values() if isinstance(value, Mapping) else value:
                if self.evaluate(part, self.defaults) < 1:
                    raise self._wrong(key, "expected at least 1 everywhere")
        if self.evaluate(self.captures, self.defaults) < 1:
            raise self._wrong("captures", "expected at least 1")

    def _check_layouts(self) -> None:
        """Raise ShaderError unless there are such layouts, and one of the result."""
        for operand in self.layouts:
            try:
                _ = [parse(text) for text in self.wants(operand) if text != ANY]
            except LayoutError as error:
                raise self._wrong(f"layouts.{operand}", str(error)) from None
        if len(self.wants("out")) != 1:
            raise self._wrong("layouts", "expected one of out")

    def _check_places(self) -> None:
        """Raise ShaderError unless a shader can find its operands and its work."""
        if self.backend == "compute" and (self.attributes or self.instances):
            raise self._wrong("attributes, instances", "a compute shader has none")
        places = [*self.bindings, *self.textures, *self.attributes]
        readable = set(self.layouts) - {"out" if self.backend == "feedback" else self.in_place}
        if set(places) != readable or len(places) != len(readable):
            key = "bindings" if self.backend == "compute" else "textures and attributes"
            raise self._wrong(key, f"expected {sorted(readable)}, got {sorted(places)}")
        if self.in_place and self.layouts.get(self.in_place) != self.layouts["out"]:
            raise self._wrong("in_place", f"{self.in_place} must be an operand that lies as out")
        if any(texel not in TEXELS for texel in self.textures.values()):
            raise self._wrong("textures", f"a format must be one of {sorted(TEXELS)}")
        if self.backend == "compute" and not 1 <= len(self.grid) <= 3:
            raise self._wrong("grid", "expected one to three dimensions")

    def __hash__(self) -> int:
        return hash((self.backend, self.op, self.name))

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What was found of it, by whoever finds it."""
        return {}

    @property
    def document(self) -> bool:
        """Whether it is there because a document has it, and runs only where it is named."""
        return self.declaration.parents[1].name == DOCUMENTS

    def places(self, operands: Iterable[str]) -> dict[str, int]:
        """The binding of each of `operands` and of `out`."""
        present = {*operands, "out"}
        return {name: place for name, place in self.bindings.items() if name in present}

    def sampler(self, texel: str, floats: int, device: Capabilities) -> str:
        """What an operand of so many floats of memory is to the shader that fetches from it.

        texel: its format. A compute shader is given textures, buffers it can bind. Raises
        LimitError.
        """
        return DataTexture.sampler_for(device, floats, texel, self.backend == "feedback")

    def names(self, value: Any) -> set[str]:
        """The names in quantities that are not parameters."""
        if isinstance(value, Mapping):
            value = tuple(value.values())
        if isinstance(value, tuple):
            return {name for entry in value for name in self.names(entry)}
        return {value} - set(self.tune) if isinstance(value, str) else set()

    def check_names(self, key: str, names: Iterable[str], known: Iterable[str]) -> None:
        """Raise ShaderError unless the op knows all `names`, which the declaration has at `key`."""
        if unknown := set(names) - set(known):
            raise self._wrong(key, f"{self.op} has no {sorted(unknown)[0]}")

    def _wrong(self, key: str, what: str) -> ShaderError:
        return ShaderError(f"{self.declaration}: {key}: {what}")

    def _check_names(self, key: str, value: Any) -> None:
        for name in sorted(self.names(value)):
            raise self._wrong(key, f"{name} is not one of its parameters {tuple(self.tune)}")

    @classmethod
    def declared(cls, declaration: Path, path: Path, text: Mapping[str, Any]) -> Kernel:
        """The kernel of the shader at `path`, declared by `text`, the TOML in `declaration`.

        Raises ShaderError on an unknown key, a missing one, or a value that makes no sense.
        """
        if wrong := fault(text):
            raise ShaderError(f"{declaration}: {wrong}")
        read_apart = ("shader", "backend")
        values = {key: _frozen(value) for key, value in text.items() if key not in read_apart}
        if "grid" in values:
            values["grid"] = tuple((g,) if isinstance(g, str) else g for g in values["grid"])
        if "backend" in text and "stages" not in text:
            raise ShaderError(f"{declaration}: backend: the shader's file says that")
        backend = BACKENDS.get(path.suffix) or str(text.get("backend", "compute"))
        name = declaration.stem
        return cls(name, path.parent.name, backend, path, declaration, **values)

    @property
    def defaults(self) -> dict[str, int]:
        """Each parameter's default."""
        return {name: values[0] for name, values in self.tune.items()}

    def evaluate(self, quantity: Quantity, parameters: Mapping[str, int]) -> int:
        """The number that `quantity` is under `parameters`."""
        if isinstance(quantity, tuple):
            parts = [self.evaluate(part, parameters) for part in quantity]
            return sum(parts) if isinstance(quantity[0], tuple) else prod(parts)
        return parameters[quantity] if isinstance(quantity, str) else quantity

    def with_parameters(self, **values: int) -> Kernel:
        """The same kernel with other defaults. Raises ShaderError for an unknown parameter."""
        for name in values:
            if name not in self.tune:
                raise self._wrong("tune", f"{name} is not one of {tuple(self.tune)}")
        chosen = {name: (value,) for name, value in values.items()}
        return replace(self, tune={**self.tune, **chosen}, architectures={})

    def wants(self, name: str) -> tuple[str, ...]:
        """In which layouts it takes `name`, one of several operands declared together perhaps."""
        many = name.rstrip("0123456789") + MANY
        found = self.layouts.get(name) or self.layouts.get(many, ())
        return (found,) if isinstance(found, str) else found

    def suits(self, sizes: Mapping[str, int], outputs: int, architecture: str | None) -> bool:
        """Whether it is meant for such sizes, so many results, and devices of `architecture`."""
        return (
            self.min_outputs <= outputs
            and (not self.max_outputs or outputs <= self.max_outputs)
            and all(sizes[name] <= most for name, most in self.at_most.items())
            and all(sizes[name] >= least for name, least in self.at_least.items())
            and (not self.devices or architecture in self.devices)
            and architecture not in self.slow_on
        )

    def for_architecture(self, architecture: str | None) -> Kernel:
        """The kernel with the defaults of `architecture`, itself where it has none for that."""
        values = self.architectures.get(architecture or "")
        return self if values is None else self.with_parameters(**values)

    def local_size(self, parameters: Mapping[str, int]) -> tuple[int, int, int]:
        """Invocations of a workgroup along x, y and z."""
        x, y, z = (self.evaluate(q, parameters) for q in self.workgroup)
        return x, y, z

    def groups(
        self, sizes: Mapping[str, int], parameters: Mapping[str, int]
    ) -> tuple[int, int, int]:
        """Workgroups along x, y and z for a problem of these sizes, never cut short."""
        counts = [1, 1, 1]
        sizes = {**parameters, **sizes}
        for axis, names in enumerate(self.grid):
            invocations = prod(
                -(-sizes[s] // self.evaluate(self.per_invocation.get(s, 1), parameters))
                for s in names
            )
            counts[axis] = -(-invocations // self.local_size(parameters)[axis])
        return counts[0], counts[1], counts[2]

    def groups_bounded(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Workgroups along the dimensions that are not walked in strides: a device bounds them."""
        return self.groups(sizes, self.defaults)[: len(self.grid) - self.strided]


def _frozen(value: Any) -> Any:
    return (
        tuple(_frozen(v) for v in value)
        if isinstance(value, list)
        else ({k: _frozen(v) for k, v in value.items()} if isinstance(value, dict) else value)
    )
