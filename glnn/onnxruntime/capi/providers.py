"""Execution providers: which there are, which a program asks for, and what it tells glnn's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from glnn.errors import shown
from glnn.session import InferenceSession

GLNN, CPU = "GlnnExecutionProvider", "CPUExecutionProvider"
PROVIDERS = (GLNN, CPU)
_OWN = ("model", "device", "kernels", "without")  # objects, which no program of ONNX Runtime's has
OPTIONS = tuple(name for name in signature(InferenceSession).parameters if name not in _OWN)
"""Arguments of `glnn.InferenceSession` that glnn's provider takes as options, with their values."""
TOLD = ("renderer", "vendor", "version", "hosted")
"""Further options that a session reports of glnn's provider, and programs pass to the next one."""


@dataclass(frozen=True)
class ProviderChoice:
    """The providers that a program asks for and that there are, in its order."""

    names: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of glnn's provider: arguments of `glnn.InferenceSession`."""


def choose_providers(providers: object, provider_options: object) -> ProviderChoice:
    """Return the choice that a session's `providers` and `provider_options` ask for.

    Whatever is not there, comes twice or is malformed is warned of (UserWarning) and left out, as
    in ONNX Runtime, which falls back on what it has. Raises ValueError for an option that glnn's
    provider has not.
    """
    try:
        pairs = _pairs(providers, provider_options)
    except ValueError as error:
        warnings.warn(f"{error} {list(PROVIDERS)} are taken instead.", UserWarning, stacklevel=4)
        return ProviderChoice()
    found: dict[str, Mapping[str, Any]] = {}
    for name, options in pairs:
        if name not in PROVIDERS:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(PROVIDERS)}'",
                UserWarning,
                stacklevel=4,
            )
        elif name in found:
            text = f"Duplicate provider '{name}' encountered, ignoring."
            warnings.warn(text, UserWarning, stacklevel=4)
        else:
            found[name] = options
    return ProviderChoice(tuple(found), _check_options(found.get(GLNN, {})))


def check_and_normalize_provider_args(
    providers: object, provider_options: object, available_provider_names: Sequence[str]
) -> tuple[list[str], list[dict[str, str]]]:
    """The names among those that there are, and the options of each, as texts.

    Raises ValueError where they are not given as ONNX Runtime takes them.
    """
    found: dict[str, dict[str, str]] = {}
    for name, options in _pairs(providers, provider_options):
        if name in available_provider_names and name not in found:
            found[name] = {str(key): str(value) for key, value in options.items()}
    return list(found), list(found.values())


def _pairs(providers: object, provider_options: object) -> list[tuple[str, Mapping[str, Any]]]:
    """Names and options. Raises ValueError where they are not given as ONNX Runtime takes them."""
    if not providers:
        return []
    if isinstance(providers, str):
        providers = [providers]
    if not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if not provider_options:
        return [_pair(one) for one in providers]
    if not isinstance(provider_options, Sequence):
        raise ValueError("'provider_options' should be a sequence.")
    if len(provider_options) != len(providers):
        raise ValueError(
            "'providers' and 'provider_options' should be the same length if both are given."
        )
    if not all(isinstance(one, str) for one in providers):
        raise ValueError(
            "Only string values for 'providers' are supported if 'provider_options' is given."
        )
    if not all(isinstance(options, Mapping) for options in provider_options):
        raise ValueError("'provider_options' values must be dicts.")
    return list(zip(providers, provider_options, strict=True))


def _pair(one: object) -> tuple[str, Mapping[str, Any]]:
    if isinstance(one, str):
        return one, {}
    pair = one if isinstance(one, (tuple, list)) and len(one) == 2 else (None, None)
    if isinstance(pair[0], str) and isinstance(pair[1], Mapping):
        return pair[0], pair[1]
    raise ValueError("'providers' values must be either strings or (string, dict) tuples.")


def _check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of glnn's provider. Raises ValueError for one that it has not."""
    found = {name: value for name, value in options.items() if name not in TOLD}
    for name in found:
        if name not in OPTIONS:
            raise ValueError(f"{GLNN} has no option {shown(name)}: it takes {', '.join(OPTIONS)}")
    if isinstance(found.get("fused"), str):  # ONNX Runtime's own are texts
        found["fused"] = found["fused"].lower() not in ("0", "false", "")
    if isinstance(found.get("max_batch"), str):
        try:
            found["max_batch"] = int(found["max_batch"])
        except ValueError:
            got = shown(found["max_batch"])
            raise ValueError(f"{GLNN}: max_batch must be a whole number, got {got}") from None
    return found
