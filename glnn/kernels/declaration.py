"""Kernel declarations, TOML files: their keys, the meaning of each, and variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from glnn.errors import LayoutError
from glnn.gl.texture import TEXELS
from glnn.graph.epilogue import Extent
from glnn.kernels.architecture import ARCHITECTURES
from glnn.kernels.forms import (
    DeclarationError,
    Reader,
    entries,
    flag,
    keyed,
    list_of,
    of_type,
    record,
    share,
    table_of,
    text,
    under,
    whole,
)
from glnn.kernels.launch import Along, Launch, Quantity
from glnn.layout import parse

ANY = "any"
OTHERS = "others"  # the architectures that a declaration does not name
SUITS, PREDICTED, SLOW, UNFIT = FITS = "suits", "predicted", "slow", "unfit"


@dataclass(frozen=True)
class Operand:
    """The declaration of an operand, or of `out`: layouts, where the shader finds it, types."""

    layout: tuple[str, ...]  # as `layout.parse` reads them; taken as it comes where it lies in one
    # of them, else in the first; `any` takes what comes, and out follows
    binding: int | None = None  # the storage buffer (compute)
    texture: str | None = None  # the texel format of the texture that it is fetched from
    texels: str | None = None  # that by which it is fetched from its own memory (compute)
    attribute: Quantity | None = None  # the floats that a vertex takes of it (feedback)
    in_place: bool = False  # the result takes its memory
    stacks: bool = False  # it may be a stack of matrices, too
    halves: bool = False  # it may be float16, too
    bytes: bool = False  # it may be int8, too, four numbers in a word
    strips: bool = False  # it may be some channels of wider images, too (layout/strip.py)

    def __post_init__(self) -> None:
        try:
            _ = [parse(text) for text in self.layout if text != ANY]
        except LayoutError as error:
            raise DeclarationError(str(error), "layout") from None
        for key, given in (("texture", self.texture), ("texels", self.texels)):
            if given is not None and given not in TEXELS:
                raise DeclarationError(f"expected one of {sorted(TEXELS)}, got {given!r}", key)
        if self.bytes and (self.texture or self.texels):
            raise DeclarationError("expected a buffer: no texel holds them", "bytes")
        if len(self.places) > 1:
            raise DeclarationError(f"expected one place for it, got {' and '.join(self.places)}")

    @property
    def places(self) -> list[str]:
        """The keys in use that tell where the shader finds the operand."""
        found = {
            "binding": self.binding is not None,
            "texture": self.texture is not None,
            "texels": self.texels is not None,
            "attribute": self.attribute is not None,
            "in_place": self.in_place,
        }
        return [key for key, given in found.items() if given]


@dataclass(frozen=True)
class Range:
    """Inclusive range of integers, from `min` to `max`."""

    min: int = 0
    max: int | None = None  # None for no end

    def __post_init__(self) -> None:
        if self.max is not None and self.max < self.min:
            raise DeclarationError(f"expected at least {self.min}, got {self.max}", "max")

    def __contains__(self, size: int) -> bool:
        return self.min <= size and (self.max is None or size <= self.max)

    def __str__(self) -> str:
        return f"at least {self.min}" if self.max is None else f"{self.min} to {self.max}"


@dataclass(frozen=True)
class Where:
    """The problems that a kernel is for."""

    attributes: Mapping[str, int] = field(default_factory=dict)  # it needs these values
    sizes: Mapping[str, Range] = field(default_factory=dict)  # it suits these
    bounds: Mapping[str, Range] = field(default_factory=dict)  # it needs attributes within these

    @classmethod
    def read(cls, value: Any) -> Where:
        """Parse a table such as { GROUPS = 1, STRIDE_H = { max = 4 }, m = { max = 4 } }."""
        ranges = {n: v for n, v in entries(value) if isinstance(v, Mapping)}
        rest = {n: v for n, v in entries(value) if n not in ranges}
        value_of = of_type(int, "an integer, or a table of min and max")
        read = table_of(record(Range, RANGE))(ranges)
        bounds = {n: v for n, v in read.items() if n.isupper()}
        sizes = {n: v for n, v in read.items() if n not in bounds}
        return cls(table_of(value_of)(rest), sizes, bounds)

    @property
    def least(self) -> dict[str, int]:
        """The smallest admissible value of each attribute that the declaration requires."""
        return {**self.attributes, **{n: one.min for n, one in self.bounds.items() if one.min}}


@dataclass(frozen=True)
class Architectures:
    """Parameters and suitability by GPU architecture (`kernels.architecture`)."""

    parameters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # other defaults
    fits: Mapping[str, str] = field(default_factory=dict)  # what it is there, or on `others`

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.fits) - {*ARCHITECTURES, OTHERS}):
            raise DeclarationError(
                f"unknown architecture {unknown[0]}, expected one of {', '.join(ARCHITECTURES)}"
            )
        for name, fit in self.fits.items():
            if fit not in FITS:
                raise DeclarationError(f"expected parameters or one of {FITS}, got {fit!r}", name)
        if OTHERS in self.parameters or self.fits.get(OTHERS) == UNFIT:
            raise DeclarationError(f"expected one of {FITS[:-1]}", OTHERS)

    @classmethod
    def read(cls, value: Any) -> Architectures:
        """Parse a table such as { NVIDIA = { TN = 8 }, V3D = { fit = "unfit" } }."""
        parameters, fits = {}, {}
        for name, part in entries(value):
            with under(name):
                own = dict(entries(part))
                fits[name] = own.pop("fit", SUITS)
                if own:
                    parameters[name] = table_of(whole)(own)
        return cls(parameters, fits)

    def fit(self, architecture: str | None) -> str:
        """Return the kernel's suitability for `architecture`: one of `FITS`.

        "suits"; "predicted", where it is used when predicted to be faster; "slow"; or "unfit",
        where the registers cannot hold it.
        """
        return self.fits.get(architecture or OTHERS) or self.fits.get(OTHERS, SUITS)


@dataclass(frozen=True)
class Finish:
    """The form in which a kernel takes an epilogue, and the operand extents it supports."""

    form: str  # of common/epilogue.glsl, float or vec4; "stage" where a stage takes it
    extents: tuple[str, ...] = get_args(Extent)  # that the epilogue's operands may have

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.extents) - set(get_args(Extent))):
            raise DeclarationError(f"unknown extent {unknown[0]}", "extents")


def _axis(value: Any) -> tuple[Along, ...]:
    return tuple(map(Along.read, value if isinstance(value, list) else [value]))


def _layouts(value: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = list_of(text)(value if isinstance(value, list) else [value])
    if not found:
        raise DeclarationError("expected a layout")
    return found


def _values(value: Any) -> tuple[int, ...]:
    found: tuple[int, ...] = list_of(whole)(value)
    if not found:
        raise DeclarationError("every parameter needs a default")
    return found


RANGE: Mapping[str, Reader] = {"min": whole, "max": whole}
OPERAND: Mapping[str, Reader] = {
    "layout": _layouts,
    "binding": whole,
    "texture": text,
    "texels": text,
    "attribute": Quantity.read,
    "in_place": flag,
    "stacks": flag,
    "halves": flag,
    "bytes": flag,
    "strips": flag,
}
LAUNCH: Mapping[str, Reader] = {
    "workgroup": list_of(Quantity.read),
    "grid": list_of(_axis),
    "strided": flag,
    "shared_bytes": Quantity.read,
    "captures": Quantity.read,
    "instances": text,
}
FINISH: Mapping[str, Reader] = {"form": text, "extents": list_of(text)}
KEYS: Mapping[str, Reader] = {
    "prologue": _axis,
    "summary": text,
    "operands": table_of(record(Operand, OPERAND)),
    "stages": text,
    "backend": text,
    "generate": text,
    "launch": record(Launch, LAUNCH),
    "epilogue": record(Finish, FINISH),
    "tune": table_of(_values),
    "where": Where.read,
    "architectures": Architectures.read,
    "priority": whole,
    "rate": whole,
    "tolerance": share,
}
"""Readers of all keys of a declaration except `variants` and `also`."""
SHORT = {"operands": "layout", "architectures": "fit"}
"""The inner key that a plain value stands for, by table whose entries may be plain values."""


def variants(declared: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return the declaration of each kernel in the TOML table `declared`, read from file `name`.

    Each variant is merged into the common keys; without variants the kernel has the file's name.
    Raises DeclarationError.
    """
    if "variants" not in declared:
        return {name: spelled(declared)}
    common = spelled({key: value for key, value in declared.items() if key != "variants"})
    with under("variants"):
        found = table_of(lambda one: spelled(dict(entries(one))))(declared["variants"])
        if not found:
            raise DeclarationError("expected at least one")
    return {called: _merged(common, own) for called, own in found.items()}


def by_op(declared: Mapping[str, Any], op: str) -> dict[str, dict[str, Any]]:
    """Return the declaration of a kernel by op: for `op`, and for each op under the key `also`.

    Raises DeclarationError.
    """
    own = {key: value for key, value in declared.items() if key != "also"}
    with under("also"):
        others = table_of(lambda one: spelled(dict(entries(one))))(declared.get("also", {}))
    return {op: own, **{other: _merged(own, differs) for other, differs in others.items()}}


def spelled(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return `declared` with the short forms of its tables spelled out."""
    found = dict(declared)
    for key, inner in SHORT.items():
        if isinstance(found.get(key), Mapping):
            table = found[key].items()
            found[key] = {n: v if isinstance(v, Mapping) else {inner: v} for n, v in table}
    if not isinstance(found.get("epilogue", {}), Mapping):
        found["epilogue"] = {"form": found["epilogue"]}
    return found


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return `common` updated with `own`: tables by entry, operands by key."""
    found = dict(common)
    for key, value in own.items():
        before = found.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = key == "operands"
            value = {n: {**before.get(n, {}), **v} if inner else v for n, v in value.items()}
            found[key] = {**before, **value}
        else:
            found[key] = value
    return found


def read(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the table `declared` into the fields of a Kernel. Raises DeclarationError."""
    found = keyed(spelled(declared), KEYS)
    for key in ("summary", "operands"):
        if key not in found:
            raise DeclarationError(f"key {key!r} is missing")
    return found
