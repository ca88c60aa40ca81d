"""The Kernel class: one shader, or stages of several ops, with its TOML declaration."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from glnn.core.cached_property import cached_property
from glnn.core.glsl import DOCUMENTS
from glnn.errors import ShaderError
from glnn.gl import Capabilities, DataTexture
from glnn.graph.compose.decompositions import decomposition_names
from glnn.kernels.manifest import (
    PREDICTED,
    SUITS,
    Architectures,
    Constraint,
    DeclarationError,
    EpilogueSupport,
    GridFactor,
    Launch,
    Operand,
    Quantity,
    Range,
    Requirements,
    TimingModel,
    error_key,
    read,
)

BACKENDS = {".comp": "compute", ".vert": "feedback"}
EPILOGUES = ("float", "vec4")  # the forms of common/epilogue.glsl
STAGE = "stage"
MANY = "*"  # behind the name of an operand that an op has any number of
OPERAND_ACCESS = {
    "compute": ("binding", "texture", "texels", "in_place"),
    "feedback": ("texture", "attribute"),
}
"""The keys by which a declaration may say how a shader reaches an operand, by backend."""
RESULT_ACCESS = {"compute": ("binding",), "feedback": ()}
"""The keys by which a declaration may say how a shader reaches `out`, by backend."""


@dataclass(frozen=True)
class Kernel:
    """A way to compute an op on a device. Raises ShaderError where the fields are inconsistent."""

    name: str
    op: str
    backend: str  # compute or feedback, as the shader's suffix says, or the key where it has none
    path: Path  # the shader; the declaration where it is made of stages
    declaration: Path
    text: str  # its declaration as JSON
    summary: str  # what it does, in a line
    operands: Mapping[str, Operand]  # `out` among them; x* stands for x0, x1, ... of a variadic op
    stages: str = ""  # name of the decomposition by which it computes the op without a shader
    generate: str = ""  # the generator of `kernels.codegen` that fills in its template
    launch: Launch = field(default_factory=Launch)
    epilogue: EpilogueSupport | None = None  # None where it takes none
    # How often the prologue is applied to each number of x: the count of invocations, or of
    # workgroups, that read it, as factors of a grid dimension. None where it takes no prologue.
    prologue: tuple[GridFactor, ...] | None = None
    tune: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # the default first
    constraints: tuple[Constraint, ...] = ()  # conditions on the combination of parameters
    requires: Requirements = field(default_factory=Requirements)
    suits: Mapping[str, Range] = field(default_factory=dict)  # the sizes that it is meant for
    architectures: Architectures = field(default_factory=Architectures)
    priority: int = 0  # among the kernels that suit, the greatest is the default
    timing: TimingModel | None = None  # of the row of tuning that it was made from, if any
    tolerance: float = 1e-5  # the relative error that its results may have
    folder: Path | None = None  # the user's folder; None where it ships with glnn
    edition: int = 0  # revision of the library in which its files last changed

    @classmethod
    def declared(
        cls, declaration: Path, path: Path, text: Mapping[str, Any], name: str = "", op: str = ""
    ) -> Kernel:
        """Build the kernel `name`, of the shader at `path`, from its TOML file `declaration`.

        text: the parsed declaration, merged with the variant. name, op: the names of the file and
        of its folder unless given. Raises ShaderError on an unknown key, a missing one, or an
        invalid value.
        """
        name = name or declaration.stem
        with _error_source(declaration, name):
            values = read(text)
            if "backend" in values and "stages" not in values:
                why = "expected it with stages alone: a shader's is by its suffix, .comp or .vert"
                raise DeclarationError(why, "backend")
        values["backend"] = BACKENDS.get(path.suffix) or values.get("backend", "compute")
        op, declared = op or path.parent.name, json.dumps(text)
        kernel = cls(name, op, path=path, declaration=declaration, text=declared, **values)
        with _error_source(declaration, name):
            if reason := kernel.why_not_parameters():
                raise DeclarationError(reason, "tune")
        return kernel

    def __post_init__(self) -> None:
        with _error_source(self.declaration, self.name):
            self._check()

    def _check(self) -> None:
        """Raise DeclarationError where its fields are inconsistent."""
        if not re.fullmatch(r"[\w.-]+", self.name, re.ASCII):
            raise DeclarationError(f"expected a name of letters and digits, got {self.name!r}")
        if self.backend not in OPERAND_ACCESS:
            raise DeclarationError(f"expected one of {sorted(OPERAND_ACCESS)}", "backend")
        if self.stages and self.stages not in (names := decomposition_names()):
            raise DeclarationError(f"expected one of {names}", "stages")
        forms = (STAGE,) if self.stages else EPILOGUES
        if self.epilogue and self.epilogue.form not in forms:
            raise DeclarationError(f"expected one of {forms}", "epilogue", "form")
        if self.epilogue and self.epilogue.updates and self.backend == "feedback":
            raise DeclarationError("a vertex shader writes no operand", "epilogue", "updates")
        if len(self.wants("out")) != 1:
            raise DeclarationError("expected one layout", "operands", "out")
        if self.operands["out"].int8:
            raise DeclarationError("a result is float32", "operands", "out", "int8")
        if self.operands["out"].fp16 and self.backend == "feedback":
            raise DeclarationError("what is captured is float32", "operands", "out", "fp16")
        for name, operand in self.operands.items():
            with error_key("operands"), error_key(name):
                self._check_access(
                    operand, (RESULT_ACCESS if name == "out" else OPERAND_ACCESS)[self.backend]
                )
        for factor in self.prologue or ():
            self._check_parameters("prologue", factor.covered.names)
        for constraint in self.constraints:
            self._check_parameters("constraints", constraint.names)
        with error_key("architectures"):
            for name, rows in self.architectures.rows.items():
                for i, row in enumerate(rows):
                    place = name if len(rows) == 1 else f"{name}[{i}]"
                    self._check_parameters(place, row.parameters)
                    with error_key(place):
                        self.launch.check({**self.defaults, **row.parameters})
                        if reason := self.why_not_parameters(row.parameters):
                            raise DeclarationError(reason)
        self._check_launch()

    def _check_access(self, operand: Operand, allowed: Iterable[str]) -> None:
        """Raise DeclarationError unless a shader can find `operand`; stages find theirs."""
        keys = () if self.stages else tuple(allowed)
        if len(operand.access) != bool(keys) or not set(operand.access) <= set(keys):
            wanted, got = " or ".join(keys), " and ".join(operand.access)
            raise DeclarationError(f"expected {wanted or 'a layout alone'}, got {got or 'none'}")
        if operand.in_place and operand.layout != self.wants("out"):
            raise DeclarationError("expected the layout of out", "in_place")

    def _check_launch(self) -> None:
        with error_key("launch"):
            if self.stages and self.launch != Launch():
                raise DeclarationError("a kernel of stages has none")
            if not self.stages and self.backend == "compute":
                if not self.launch.grid:
                    raise DeclarationError("expected one to three dimensions", "grid")
                if self.launch.instances:
                    raise DeclarationError("a compute shader has none", "instances")
            self.launch.check(self.defaults)

    def _check_parameters(self, key: str, names: Iterable[str]) -> None:
        if unknown := [name for name in names if name not in self.tune]:
            raise DeclarationError(f"{unknown[0]} is not one of {tuple(self.tune)}", key)

    def __hash__(self) -> int:
        return hash((self.backend, self.op, self.name))

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """Cache of values derived for this kernel by other modules."""
        return {}

    @cached_property
    def layouts(self) -> dict[str, tuple[str, ...]]:
        """The layouts accepted for each operand, and that of `out`; the first is preferred."""
        return {name: operand.layout for name, operand in self.operands.items()}

    @cached_property
    def fp16_operands(self) -> tuple[str, ...]:
        """The operands that may be float16 as well as float32."""
        return tuple(name for name, operand in self.operands.items() if operand.fp16)

    def fp16_candidates(self, extents: Mapping[str, str]) -> frozenset[str]:
        """Return all operands that may be float16, full-size epilogue operands included.

        These may be wherever `out` may be. extents: the broadcast extent of each epilogue operand.
        """
        full = (name for name, extent in extents.items() if extent == "full")
        return frozenset((*self.fp16_operands, *(full if "out" in self.fp16_operands else ())))

    @cached_property
    def int8_operands(self) -> tuple[str, ...]:
        """The operands that may be int8, four numbers in a word."""
        return tuple(name for name, operand in self.operands.items() if operand.int8)

    @cached_property
    def bindings(self) -> dict[str, int]:
        """The storage-buffer binding of each operand that has one, and of `out`."""
        declared = {name: operand.binding for name, operand in self.operands.items()}
        return {name: binding for name, binding in declared.items() if binding is not None}

    @cached_property
    def textures(self) -> dict[str, str]:
        """The texel format of each operand that is fetched from a texture."""
        declared = {name: one.texture or one.texels for name, one in self.operands.items()}
        return {name: texel for name, texel in declared.items() if texel}

    @cached_property
    def texture_buffers(self) -> bool:
        """Return True where it fetches operands from their own memory by texture buffers."""
        return any(operand.texels for operand in self.operands.values())

    @cached_property
    def attributes(self) -> dict[str, Quantity]:
        """The floats of each operand that a vertex takes as an attribute.

        Each vertex takes those that follow the ones of the vertex before.
        """
        return {name: one.attribute for name, one in self.operands.items() if one.attribute}

    @property
    def in_place(self) -> str | None:
        """The operand whose memory the result overwrites; None where there is none."""
        return next((name for name, one in self.operands.items() if one.in_place), None)

    @cached_property
    def document(self) -> bool:
        """Return True for a kernel of the documents' folder, which runs only if named."""
        return self.declaration.parents[1].name == DOCUMENTS

    def shares_declaration(self, kernel: Kernel) -> bool:
        """Return True where `kernel`, of another op perhaps, comes from the same declaration."""
        return (self.declaration, self.name) == (kernel.declaration, kernel.name)

    @property
    def defaults(self) -> dict[str, int]:
        """Each parameter's default."""
        return {name: values[0] for name, values in self.tune.items()}

    def why_not_parameters(self, changed: Mapping[str, int] | None = None) -> str | None:
        """Return why the defaults do not go together; None where they do.

        changed: other values than the defaults, by parameter.
        """
        values = {**self.defaults, **(changed or {})}
        return next(filter(None, (one.why_not(values) for one in self.constraints)), None)

    def bindings_of(self, operands: Iterable[str]) -> dict[str, int]:
        """Return the storage-buffer binding of each of `operands` and of `out`."""
        present = {*operands, "out"}
        return {name: binding for name, binding in self.bindings.items() if name in present}

    def sampler(self, texel: str, floats: int, device: Capabilities) -> str:
        """Return the GLSL sampler type by which the shader fetches an operand of `floats` words.

        texel: the texel format. A compute shader fetches from textures, not texture buffers, unless
        its declaration asks for these. Raises LimitError.
        """
        if self.texture_buffers:
            return DataTexture.buffer_for(device, floats, texel)
        return DataTexture.sampler_for(device, floats, texel, self.backend == "feedback")

    def wants(self, name: str) -> tuple[str, ...]:
        """Return the layouts accepted for `name`, which `x*` may declare for x0, x1, ..."""
        return self.layouts.get(name) or self.layouts.get(name.rstrip("0123456789") + MANY, ())

    def without_folder(self, text: str) -> str:
        """Return `text` with files named from the user's folder on, as verdicts hold for any."""
        return text.replace(f"{self.folder}{os.sep}", "")

    def takes_subviews(self, name: str) -> bool:
        """Return True where `name`, or `out`, may be a channel range of wider images."""
        one = self.operands.get(name) or self.operands.get(name.rstrip("0123456789") + MANY)
        return one is not None and one.subviews

    def check_names(self, key: str, names: Iterable[str], valid: Collection[str]) -> None:
        """Raise ShaderError unless the op knows all `names`, which the declaration has at `key`."""
        if unknown := [name for name in names if name not in valid]:
            with _error_source(self.declaration, self.name):
                known = ", ".join(map(str, valid))
                raise DeclarationError(f"{self.op} has no {sorted(unknown)[0]}, only {known}", key)

    def is_suited(self, sizes: Mapping[str, int], architecture: str | None) -> bool:
        """Return True where it is meant for these sizes (`outputs` among them) on `architecture`.

        An architecture on which it is used only where predicted to be faster counts, too. Raises
        ShaderError where the declaration names sizes that the op does not have.
        """
        self.check_names("suits", self.suits, sizes)
        fit = self.architectures.fit(architecture)
        return fit in (SUITS, PREDICTED) and all(
            sizes[name] in bounds for name, bounds in self.suits.items()
        )

    def with_parameters(self, **values: int) -> Kernel:
        """Return the kernel with other defaults. Raises ShaderError for an unknown parameter."""
        with _error_source(self.declaration, self.name):
            self._check_parameters("tune", values)
        fixed = {name: (value,) for name, value in values.items()}
        without_rows = replace(self.architectures, rows={})
        return replace(self, tune={**self.tune, **fixed}, architectures=without_rows, timing=None)

    @property
    def versions(self) -> tuple[Kernel, ...]:
        """Variants of a kernel of stages with each combination of parameters, its own first.

        A kernel that is a shader has one version, itself: its parameters are tuned instead.
        """
        if "versions" not in self.memo:
            values = product(*self.tune.values()) if self.stages else ()
            combinations = (dict(zip(self.tune, one, strict=True)) for one in values)
            others = (self.with_parameters(**c) for c in combinations if c != self.defaults)
            self.memo["versions"] = (self, *others)
        result: tuple[Kernel, ...] = self.memo["versions"]
        return result

    def rows_for(self, architecture: str | None) -> tuple[Kernel, ...]:
        """Return the kernel with each row of parameters that is declared for `architecture`.

        Without any it is the kernel itself alone.
        """
        if ("rows", architecture) not in self.memo:
            rows = self.architectures.rows.get(architecture or "", ())
            tuned = (replace(self.with_parameters(**r.parameters), timing=r.timing) for r in rows)
            self.memo["rows", architecture] = tuple(tuned) or (self,)
        result: tuple[Kernel, ...] = self.memo["rows", architecture]
        return result

    def for_architecture(self, architecture: str | None) -> Kernel:
        """Return the kernel with the defaults of `architecture`; itself where none are declared."""
        return self.rows_for(architecture)[0]


def declared_at(declaration: Path, name: str) -> str:
    """Return where the kernel `name` is declared: its file, and its name where it is a variant."""
    return f"{declaration}: {name}" if name != declaration.stem else f"{declaration}"


@contextmanager
def _error_source(declaration: Path, name: str) -> Iterator[None]:
    """Turn a DeclarationError into a ShaderError that names the file and the kernel."""
    try:
        yield
    except DeclarationError as error:
        raise ShaderError(f"{declared_at(declaration, name)}: {error}") from None
