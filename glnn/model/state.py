"""Matching of the arrays of a state dict to a model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from glnn.errors import ModelError, ShapeError
from glnn.types import Array, Shape

COUNTED = "num_batches_tracked"
"""End of the names of PyTorch's batch counts, which nothing computes with."""
LISTED = 8  # names of each kind that an error says


class LoadedKeys(NamedTuple):
    """The result of `load_state_dict`, as PyTorch's."""

    missing_keys: list[str]
    """The model's parameters that were not given, which are as they were."""
    unexpected_keys: list[str]
    """Names that were given and are none of the model's."""


@dataclass(frozen=True, eq=False)
class ModelParameters:
    """The parameters of a model, which a state dict is matched to."""

    model: str
    """The model's name."""
    shapes: Mapping[str, Shape]
    """The shapes by PyTorch's names."""
    others: Mapping[str, str]
    """More names that mean them: glnn's, and those with a layer's number."""
    take: Callable[[str, str, Any], Array]
    """The array for a parameter, from its name, what errors call it and what was given; raises
    ShapeError."""
    passed: frozenset[str] = frozenset()
    """Names that are neither wanted nor unexpected."""

    def match(
        self, state_dict: Mapping[str, Any], strict: bool
    ) -> tuple[dict[str, Array], LoadedKeys]:
        """Return an array for each parameter in `state_dict` by PyTorch's names, and the keys left
        over.

        state_dict: arrays or tensors by name. A first part that all names have, as
        DataParallel's `module.`, is left out where none is known with it. strict: whether all must
        be there, and nothing else. Raises ModelError, which lists all that does not fit.
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
        """Return the parameter's name for each key, or "" where it is none's.

        Those that are passed over are left out.
        """
        known = {**self.others, **dict(zip(self.shapes, self.shapes, strict=True))}
        start = len(_common_prefix(list(state_dict), known))
        found = {
            key: known.get(key[start:], "")
            for key in state_dict
            if key[start:] in known or not self._passes(key[start:])
        }
        first: dict[str, str] = {}
        for key, name in found.items():
            if name and first.setdefault(name, key) != key:
                raise ModelError(f"both {first[name]!r} and {key!r} are {name!r} of {self.model}")
        return found

    def _passes(self, name: str) -> bool:
        return name in self.passed or name.rpartition(".")[2] == COUNTED

    def _array(self, name: str, key: str, value: Any, wrong: list[str]) -> Array | None:
        """Return the array for the parameter `name`; None where it does not fit, which is added to
        `wrong`.
        """
        expected = self.shapes[name]
        try:
            shape = tuple(map(int, getattr(value, "shape", expected)))
            if shape != expected:  # before the numbers of a tensor are moved, or copied
                raise ShapeError(f"{key!r} must have shape {expected}, got {shape}")
            return self.take(name, repr(key), value)
        except ShapeError as error:
            wrong.append(str(error))
        except (TypeError, ValueError):
            wrong.append(f"{key!r} has no sizes")
        return None

    def _hint(
        self, state_dict: Mapping[str, Any], missing: Sequence[str], unexpected: Sequence[str]
    ) -> str:
        """Return an advice where all parameters are there under other names, else ""."""
        if not missing or not unexpected:
            return ""
        more = _missing_prefix(missing, unexpected)
        if more:
            said = f"; the prefix {more!r} is the difference"
            if set(self.shapes) <= {key.removeprefix(more) for key in state_dict}:
                said += f": give {{k.removeprefix({more!r}): v for k, v in state_dict.items()}}"
            return said
        kept = [key for key in state_dict if not self._passes(key)]
        shapes = [tuple(getattr(state_dict[key], "shape", ())) for key in kept]
        if shapes != list(self.shapes.values()):
            return ""
        values = "state_dict.values()"
        if len(kept) < len(state_dict):
            values = f'(v for k, v in state_dict.items() if not k.endswith("{COUNTED}"))'
        return (
            "; in this order their shapes agree: name the layers as PyTorch does, or give "
            f"dict(zip(model.state_dict(), {values}))"
        )


def _missing_prefix(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Return the prefix of all `missing` in `unexpected`, or ""."""
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
    more = f" and {len(texts) - LISTED} more" if len(texts) > LISTED else ""
    return ", ".join(texts[:LISTED]) + more
