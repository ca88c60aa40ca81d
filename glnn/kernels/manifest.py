"""Kernel declarations, TOML files: their keys, the meaning of each, and variants."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from math import isfinite, prod
from types import CodeType
from typing import Any, get_args

from glnn.core.layout import parse
from glnn.errors import LayoutError, ShaderError
from glnn.gl.texture import TEXELS
from glnn.graph.epilogue import Extent
from glnn.kernels.architecture import ARCHITECTURES

Reader = Callable[[Any], Any]
"""Function that converts a TOML value, or raises DeclarationError."""


class DeclarationError(ShaderError):
    """An invalid value in a declaration, with the keys that lead to it."""

    def __init__(self, what: str, *keys: str) -> None:
        super().__init__(f"{'.'.join(keys)}: {what}" if keys else what)
        self.what, self.keys = what, keys


@contextmanager
def error_key(key: str) -> Iterator[None]:
    """Prefix the keys of a DeclarationError raised inside with `key`."""
    try:
        yield
    except DeclarationError as error:
        raise DeclarationError(error.what, key, *error.keys) from None


def expected(description: str, value: Any) -> DeclarationError:
    """Return the DeclarationError for a `value` that is not what `description` says."""
    return DeclarationError(f"expected {description}, got {value!r}")


def of_type(kind: type, description: str) -> Reader:
    """Return a reader of values of type `kind`, which error messages describe so."""

    def read(value: Any) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise expected(description, value)
        return value

    return read


text = of_type(str, "a string")
integer = of_type(int, "an integer")
flag = of_type(bool, "true or false")


def real(value: Any) -> float:
    """Read a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise expected("a number", value)
    return float(value)


def share(value: Any) -> float:
    """Read a number between 0 and 1, both excluded."""
    if not isinstance(value, float) or not 0 < value < 1:
        raise expected("a number between 0 and 1", value)
    return value


def list_of(entry: Reader) -> Reader:
    """Return a reader of lists whose entries `entry` reads."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise expected("a list", value)
        return tuple(map(entry, value))

    return read


def table_of(entry: Reader) -> Reader:
    """Return a reader of tables whose values `entry` reads."""

    def read(value: Any) -> dict[str, Any]:
        result = {}
        for name, part in entries(value):
            with error_key(name):
                result[name] = entry(part)
        return result

    return read


def record(kind: type, keys: Mapping[str, Reader]) -> Reader:
    """Return a reader of tables with these `keys` into the dataclass `kind`."""
    required = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]

    def read(value: Any) -> Any:
        fields_read = keyed(value, keys)
        if missing := [name for name in required if name not in fields_read]:
            raise DeclarationError(f"key {missing[0]!r} is missing")
        return kind(**fields_read)

    return read


def keyed(value: Any, keys: Mapping[str, Reader]) -> dict[str, Any]:
    """Read the table `value`, each entry by the reader that `keys` has for it."""
    result = {}
    for name, part in entries(value):
        if name not in keys:
            raise DeclarationError(f"unknown key {name!r}, expected one of {sorted(keys)}")
        with error_key(name):
            result[name] = keys[name](part)
    return result


def entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a table. Raises DeclarationError for any other value."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise expected("a table", value)
    yield from value.items()


@dataclass(frozen=True)
class Quantity:
    """Integer expression in a kernel's parameters: a sum of products."""

    terms: tuple[tuple[int | str, ...], ...]  # products to add up

    @classmethod
    def read(cls, value: Any) -> Quantity:
        """Parse an integer, or a text such as "8 * TN * WG_X + 32"."""
        terms = str(value).split("+") if type(value) in (int, str) else [""]
        return cls(tuple(tuple(_factor(f.strip(), value) for f in t.split("*")) for t in terms))

    @property
    def names(self) -> set[str]:
        """The names of the parameters in the expression."""
        return {factor for term in self.terms for factor in term if isinstance(factor, str)}

    def evaluate(self, parameters: Mapping[str, int]) -> int:
        """Evaluate the expression with these values of the `parameters`."""
        return sum(prod(parameters[f] if isinstance(f, str) else f for f in t) for t in self.terms)


def _factor(word: str, value: Any) -> int | str:
    if not word.isdecimal() and not word.isidentifier():
        raise expected("an integer, or parameters as in '4 * TN + 8'", value)
    return int(word) if word.isdecimal() else word


@dataclass(frozen=True)
class Constraint:
    """A condition on the combination of parameters, without which a kernel does not compile."""

    text: str

    @classmethod
    def read(cls, value: Any) -> Constraint:
        """Parse a text such as "SLICES == 1 or TM * BK // 4 % WG_X == 0"."""
        _ = _condition(text(value))
        return cls(value)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters in the condition, in alphabetic order."""
        return tuple(sorted(_condition(self.text).co_names))

    def why_not(self, parameters: Mapping[str, int]) -> str | None:
        """Return why these values of the `parameters` do not go together; None where they do."""
        try:
            if eval(_condition(self.text), {"__builtins__": {}}, parameters):
                return None
        except ZeroDivisionError:  # by a parameter that is 0
            pass
        values = ", ".join(f"{name} = {parameters[name]}" for name in self.names)
        return f"the shader needs {self.text}; here {values}"


ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@cache  # a property would be pickled with its kernel (`library.parsed`), and code cannot be
def _condition(text: str) -> CodeType:
    """Compile a condition. Raises DeclarationError where it is more than `_is_condition` admits."""
    try:
        parsed = ast.parse(text, mode="eval")
        if _is_condition(parsed.body):
            return compile(parsed, "<constraint>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deep
        pass
    raise expected("a comparison as in 'TM * BK // 4 % WG_X == 0'", text)


def _is_condition(node: ast.expr) -> bool:
    """Return True for comparisons of integer expressions, joined by `and` and `or`."""
    if isinstance(node, ast.BoolOp):
        return all(map(_is_condition, node.values))
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return False
    return isinstance(node.ops[0], COMPARISONS) and all(
        map(_is_integer, (node.left, *node.comparators))
    )


def _is_integer(node: ast.expr) -> bool:
    """Return True for `ARITHMETIC` with parameters and integers."""
    if isinstance(node, ast.BinOp):
        sides = node.left, node.right
        return isinstance(node.op, ARITHMETIC) and all(map(_is_integer, sides))
    return isinstance(node, ast.Name) or (
        isinstance(node, ast.Constant) and type(node.value) is int
    )


@dataclass(frozen=True)
class GridFactor:
    """A factor of a grid dimension: the invocations that cover a size of the spec."""

    size: str  # name of the size, or of a parameter
    covered: Quantity = Quantity(((1,),))  # how much of the size one invocation covers

    @classmethod
    def read(cls, value: Any) -> GridFactor:
        """Parse a text such as "n" or "n / 4 / TN"."""
        size, *divisors = value.split("/") if isinstance(value, str) else [""]
        if not size.strip().isidentifier():
            raise expected("a size as 'n' or 'n / TN'", value)
        with_factors = tuple(_factor(divisor.strip(), value) for divisor in divisors)
        return cls(size.strip(), Quantity((with_factors or (1,),)))

    def invocations(self, sizes: Mapping[str, int], parameters: Mapping[str, int]) -> int:
        """Return the number of invocations that cover the size."""
        return -(-sizes[self.size] // self.covered.evaluate(parameters))


@dataclass(frozen=True)
class Launch:
    """The launch of a kernel: workgroup and grid of a compute shader, or vertices of a draw."""

    workgroup: tuple[Quantity, ...] = ()  # invocations along x, y and z; 1 where not declared
    grid: tuple[tuple[GridFactor, ...], ...] = ()  # factors of the invocations along x, y, z
    strided: bool = False  # a grid-stride loop runs along the grid's last dimension
    resident: bool = False
    """Whether the grid's last dimension is the number of multiprocessors: then all workgroups run
    at once and may wait for one another."""
    shared_bytes: Quantity = Quantity(((0,),))  # shared memory of one workgroup
    captures: Quantity = Quantity(((4,),))  # floats that a vertex captures (feedback)
    instances: str | None = None  # the size that a draw's instances run along (feedback)

    def __post_init__(self) -> None:
        if len(self.workgroup) > 3:
            raise DeclarationError("expected at most three dimensions", "workgroup")
        if len(self.grid) > 3:
            raise DeclarationError("expected one to three dimensions", "grid")
        if self.resident and not self.strided:
            raise DeclarationError("expected a strided grid, which may be cut short", "resident")

    def check(self, parameters: Mapping[str, int]) -> None:
        """Raise DeclarationError where a quantity is too small or names an unknown parameter."""
        covered = [factor.covered for axis in self.grid for factor in axis]
        positive = {"workgroup": self.workgroup, "grid": covered, "captures": [self.captures]}
        for key, quantities in {**positive, "shared_bytes": [self.shared_bytes]}.items():
            for quantity in quantities:
                if unknown := sorted(quantity.names - set(parameters)):
                    raise DeclarationError(f"{unknown[0]} is not one of {tuple(parameters)}", key)
                if key in positive and quantity.evaluate(parameters) < 1:
                    raise DeclarationError("expected at least 1 everywhere", key)

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of the sizes that the grid and the instances run along."""
        instances = (self.instances,) if self.instances else ()
        return (*(factor.size for axis in self.grid for factor in axis), *instances)

    def local_size(self, parameters: Mapping[str, int]) -> tuple[int, int, int]:
        """Return the invocations of a workgroup along x, y and z."""
        x, y, z, *_ = (*(q.evaluate(parameters) for q in self.workgroup), 1, 1, 1)
        return x, y, z

    def groups(
        self, sizes: Mapping[str, int], parameters: Mapping[str, int]
    ) -> tuple[int, int, int]:
        """Return the workgroups along x, y and z for these sizes, without any limit of a device."""
        known = {**parameters, **sizes}
        counts = [prod(f.invocations(known, parameters) for f in axis) for axis in self.grid]
        local = self.local_size(parameters)
        x, y, z, *_ = (*(-(-n // size) for n, size in zip(counts, local, strict=False)), 1, 1, 1)
        return x, y, z

    def partial_axes(self, sizes: Mapping[str, int], parameters: Mapping[str, int]) -> int:
        """Return a bit for each axis along which the last workgroup is partly filled."""
        known, result = {**parameters, **sizes}, 0
        for i, (axis, local) in enumerate(zip(self.grid, self.local_size(parameters))):
            idle = prod(factor.invocations(known, parameters) for factor in axis) % local
            if idle or any(known[f.size] % f.covered.evaluate(parameters) for f in axis):
                result |= 1 << i
        return result

    @property
    def bounded(self) -> int:
        """Number of dimensions without a grid-stride loop, whose workgroups a device limits."""
        return len(self.grid) - self.strided


ANY = "any"
OTHERS = "others"  # the architectures that a declaration does not name
SUITS, PREDICTED, SLOW, UNFIT = FITS = "suits", "predicted", "slow", "unfit"


@dataclass(frozen=True)
class Operand:
    """The declaration of an operand, or of `out`: layouts, where the shader finds it, types."""

    # Accepted layouts, as `layout.parse` reads them. An operand in another one is reordered to the
    # first. `any` accepts every layout, and `out` gets the same.
    layout: tuple[str, ...]
    binding: int | None = None  # the storage buffer (compute)
    texture: str | None = None  # the texel format of the texture that it is fetched from
    texels: str | None = None  # the texel format of a texture buffer on its memory (compute)
    attribute: Quantity | None = None  # the floats of it that a vertex gets (feedback)
    in_place: bool = False  # the result overwrites its memory
    batched: bool = False  # whether it may be a batch of matrices
    fp16: bool = False  # whether it may be float16
    int8: bool = False  # whether it may be int8, four numbers in a word
    subviews: bool = False  # whether it may be a channel range of wider images (layout/strip.py)

    def __post_init__(self) -> None:
        try:
            _ = [parse(text) for text in self.layout if text != ANY]
        except LayoutError as error:
            raise DeclarationError(str(error), "layout") from None
        for key, texels in (("texture", self.texture), ("texels", self.texels)):
            if texels is not None and texels not in TEXELS:
                raise DeclarationError(f"expected one of {sorted(TEXELS)}, got {texels!r}", key)
        if self.binding is not None and self.binding < 0:
            raise DeclarationError(f"expected at least 0, got {self.binding}", "binding")
        if self.int8 and (self.texture or self.texels):
            raise DeclarationError("expected a buffer: no texel holds them", "int8")
        if len(self.access) > 1:
            raise DeclarationError(f"expected one place for it, got {' and '.join(self.access)}")

    @property
    def access(self) -> list[str]:
        """The keys in use that tell where the shader finds the operand."""
        used = {
            "binding": self.binding is not None,
            "texture": self.texture is not None,
            "texels": self.texels is not None,
            "attribute": self.attribute is not None,
            "in_place": self.in_place,
        }
        return [key for key, is_used in used.items() if is_used]


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
class Requirements:
    """The values of an op's attributes without which a kernel cannot compute it."""

    values: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)

    @classmethod
    def read(cls, table: Any) -> Requirements:
        """Parse a table such as { GROUPS = 1, STRIDE_H = { max = 4 } }."""
        ranges = {n: v for n, v in entries(table) if isinstance(v, Mapping)}
        values = {n: v for n, v in entries(table) if n not in ranges}
        value_of = of_type(int, "an integer, or a table of min and max")
        return cls(table_of(value_of)(values), table_of(record(Range, RANGE))(ranges))

    @property
    def least(self) -> dict[str, int]:
        """The smallest admissible value of each attribute that the declaration requires."""
        return {**self.values, **{n: one.min for n, one in self.ranges.items() if one.min}}


@dataclass(frozen=True)
class TimingModel:
    """Measured times of a matrix-product kernel with its parameters, to predict other times by.

    A round is the workgroups that a multiprocessor runs at once; a term is one multiply-add of each
    sum.

    start: microseconds of a launch of one workgroup, without its terms. together: workgroups of a
    round. wait: nanoseconds of a term for each round. term: nanoseconds of a term for each
    workgroup. step: terms that a workgroup computes together; fewer take as long. overhead:
    microseconds of a round without its terms, to begin and to store. finish: microseconds that a
    long epilogue takes more than a short one, for each workgroup.
    """

    start: float
    term: float
    wait: float = 0.0
    together: int = 1
    step: int = 1
    overhead: float = 0.0
    finish: float = 0.0

    def __post_init__(self) -> None:
        if min(self.start, self.term, self.wait, self.overhead, self.finish) < 0:
            raise DeclarationError("expected times of at least 0")
        if min(self.together, self.step) < 1:
            raise DeclarationError("expected one or more together, and in a step")

    def microseconds(
        self, workgroups: int, terms: int, multiprocessors: int, long: bool = False
    ) -> float:
        """Return the predicted time of so many workgroups, each of sums of so many terms.

        long: whether the epilogue is long (`codegen.expression.is_long`). The time of the operands'
        memory traffic, which is the same for all kernels, is left out.
        """
        resident = -(-workgroups // multiprocessors)
        rounds = -(-resident // self.together)
        terms = -(-terms // self.step) * self.step
        fixed = self.start + rounds * self.overhead + (resident * self.finish if long else 0.0)
        return fixed + terms * (rounds * self.wait + resident * self.term) / 1000


@dataclass(frozen=True)
class TuningRow:
    """A row of an architecture's table of tuning: parameters, and their measured times if any."""

    parameters: Mapping[str, int]
    timing: TimingModel | None = None

    @classmethod
    def read(cls, value: Any) -> TuningRow:
        """Parse a table such as { TM = 8, TN = 4, timing = { start = 5, term = 13 } }."""
        table = dict(entries(value))
        if "fit" in table:
            why = "expected it of the architecture, not of one of its rows: kernels suit as a whole"
            raise DeclarationError(why, "fit")
        timing = table.pop("timing", None)
        with error_key("timing"):
            model = None if timing is None else record(TimingModel, TIMING)(timing)
        return cls(table_of(integer)(table), model)


@dataclass(frozen=True)
class Architectures:
    """Rows of tuning and suitability by GPU architecture (`kernels.architecture`)."""

    rows: Mapping[str, tuple[TuningRow, ...]] = field(default_factory=dict)  # the defaults first
    fits: Mapping[str, str] = field(default_factory=dict)  # suitability, also for `others`

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.fits) - {*ARCHITECTURES, OTHERS}):
            raise DeclarationError(
                f"unknown architecture {unknown[0]}, expected one of {', '.join(ARCHITECTURES)}"
            )
        for name, fit in self.fits.items():
            if fit not in FITS:
                raise DeclarationError(f"expected parameters or one of {FITS}, got {fit!r}", name)
        if OTHERS in self.rows or self.fits.get(OTHERS) == UNFIT:
            raise DeclarationError(f"expected one of {FITS[:-1]}", OTHERS)

    @classmethod
    def read(cls, value: Any) -> Architectures:
        """Parse a table such as { NVIDIA = { TN = 8 }, V3D = "unfit", Adreno = { fit = "slow" } }.

        Where an architecture has several rows, it has a list of tables.
        """
        rows: dict[str, tuple[TuningRow, ...]] = {}
        fits: dict[str, str] = {}
        for name, part in entries(value):
            if isinstance(part, Mapping):
                table = dict(part)
                fits[name] = table.pop("fit", SUITS)
                with error_key(name):
                    rows |= {name: (TuningRow.read(table),)} if table else {}
            elif isinstance(part, list):
                if not part:
                    raise DeclarationError("expected one row or more, got []", name)
                fits[name] = SUITS
                rows[name] = tuple(_row(name, i, row) for i, row in enumerate(part))
            else:
                fits[name] = part
        return cls(rows, fits)

    def fit(self, architecture: str | None) -> str:
        """Return the kernel's suitability for `architecture`: one of `FITS`.

        "suits"; "predicted", where it is used when predicted to be faster; "slow"; or "unfit",
        where the registers cannot hold it.
        """
        return self.fits.get(architecture or OTHERS) or self.fits.get(OTHERS, SUITS)


@dataclass(frozen=True)
class EpilogueSupport:
    """The form in which a kernel takes an epilogue, and the operand extents it supports."""

    form: str  # of common/epilogue.glsl, float or vec4; "stage" where a stage takes it
    extents: tuple[str, ...] = ("full", "channel", "one")  # that the epilogue's operands may have
    updates: bool = False  # whether it is called exactly once for each number of the result

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.extents) - set(get_args(Extent))):
            raise DeclarationError(f"unknown extent {unknown[0]}", "extents")


def _row(architecture: str, place: int, value: Any) -> TuningRow:
    """Read one of several rows. Errors name its place in the list, as NVIDIA[1]."""
    with error_key(f"{architecture}[{place}]"):
        return TuningRow.read(value)


def _axis(value: Any) -> tuple[GridFactor, ...]:
    return tuple(map(GridFactor.read, value if isinstance(value, list) else [value]))


def _layouts(value: Any) -> tuple[str, ...]:
    result: tuple[str, ...] = list_of(text)(value if isinstance(value, list) else [value])
    if not result:
        raise DeclarationError("expected a layout")
    return result


def _values(value: Any) -> tuple[int, ...]:
    result: tuple[int, ...] = list_of(integer)(value)
    if not result:
        raise DeclarationError("every parameter needs a default")
    return result


RANGE: Mapping[str, Reader] = {"min": integer, "max": integer}
TIMING: Mapping[str, Reader] = {
    **dict.fromkeys(("start", "term", "wait", "overhead", "finish"), real),
    **dict.fromkeys(("together", "step"), integer),
}
OPERAND: Mapping[str, Reader] = {
    "layout": _layouts,
    "binding": integer,
    "texture": text,
    "texels": text,
    "attribute": Quantity.read,
    "in_place": flag,
    "batched": flag,
    "fp16": flag,
    "int8": flag,
    "subviews": flag,
}
LAUNCH: Mapping[str, Reader] = {
    "workgroup": list_of(Quantity.read),
    "grid": list_of(_axis),
    "strided": flag,
    "resident": flag,
    "shared_bytes": Quantity.read,
    "captures": Quantity.read,
    "instances": text,
}
FINISH: Mapping[str, Reader] = {"form": text, "extents": list_of(text), "updates": flag}
KEYS: Mapping[str, Reader] = {
    "prologue": _axis,
    "summary": text,
    "operands": table_of(record(Operand, OPERAND)),
    "stages": text,
    "backend": text,
    "generate": text,
    "launch": record(Launch, LAUNCH),
    "epilogue": record(EpilogueSupport, FINISH),
    "tune": table_of(_values),
    "constraints": list_of(Constraint.read),
    "requires": Requirements.read,
    "suits": table_of(record(Range, RANGE)),
    "architectures": Architectures.read,
    "priority": integer,
    "tolerance": share,
}
"""Readers of all keys of a declaration except `variants` and `aliases`."""


def variants(declared: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return the declaration of each kernel in the TOML table `declared`, read from file `name`.

    Each variant is merged into the common keys; without variants the kernel has the file's name.
    A variant has only the aliases that it names; each is merged into the common alias of that op.
    Raises DeclarationError.
    """
    if "variants" not in declared:
        return {name: expand_short_forms(declared)}
    common = expand_short_forms(_without(declared, "variants", "aliases"))
    with error_key("variants"):
        by_name = table_of(lambda t: expand_short_forms(dict(entries(t))))(declared["variants"])
        if not by_name:
            raise DeclarationError("expected at least one")
    common_aliases = _aliases(declared)
    variant_aliases = {name: _aliases(table) for name, table in by_name.items()}
    with error_key("aliases"):
        for op in common_aliases:
            if not any(op in aliases for aliases in variant_aliases.values()):
                raise DeclarationError(f"no variant names {op!r}")
    result = {}
    for variant, table in by_name.items():
        aliases = {
            op: _merged(common_aliases.get(op, {}), alias)
            for op, alias in variant_aliases[variant].items()
        }
        result[variant] = {**_merged(common, _without(table, "aliases")), "aliases": aliases}
    return result


def by_op(declared: Mapping[str, Any], op: str) -> dict[str, dict[str, Any]]:
    """Return the declaration of a kernel by op: for `op`, and for each op in the table `aliases`.

    Raises DeclarationError.
    """
    common = _without(declared, "aliases")
    others = {other: _merged(common, one) for other, one in _aliases(declared).items()}
    return {op: common, **others}


def _aliases(declared: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what differs for each op in the table `aliases`. Raises DeclarationError."""
    with error_key("aliases"):
        result: dict[str, dict[str, Any]] = table_of(
            lambda t: expand_short_forms(dict(entries(t)))
        )(declared.get("aliases", {}))
    return result


def _without(declared: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return a copy of `declared` that lacks `keys`."""
    return {key: value for key, value in declared.items() if key not in keys}


def expand_short_forms(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return `declared` with short forms of operands and of the epilogue written as tables.

    `_merged` merges tables key by key.
    """
    result = dict(declared)
    if isinstance(operands := result.get("operands"), Mapping):
        result["operands"] = {
            n: v if isinstance(v, Mapping) else {"layout": v} for n, v in operands.items()
        }
    if not isinstance(result.get("epilogue", {}), Mapping):
        result["epilogue"] = {"form": result["epilogue"]}
    return result


def _merged(common: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
    """Return `common` updated with `variant`: tables by entry, operands by key."""
    result = dict(common)
    for key, value in variant.items():
        base = result.get(key)
        if isinstance(value, Mapping) and isinstance(base, Mapping):
            if key == "operands":
                value = {name: {**base.get(name, {}), **v} for name, v in value.items()}
            result[key] = {**base, **value}
        else:
            result[key] = value
    return result


def read(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the table `declared` into the fields of a Kernel. Raises DeclarationError."""
    result = keyed(expand_short_forms(declared), KEYS)
    for key in ("summary", "operands"):
        if key not in result:
            raise DeclarationError(f"key {key!r} is missing")
    return result
