"""Reports that name nobody: paths and the names of the user and the host are taken out of texts."""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PATH, NAME = "(a path)", "(a name)"
"""What stands in the place of a path, and of a name."""
OF_USER = ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME", "COMPUTERNAME")
"""Environment variables with names of users and hosts."""
COMMON = {"root", "user", "admin", "pi", "debian", "ubuntu", "runner", "localhost", "glnn"}
"""Names that so many machines have that they name nobody, and that reports have as words."""
START = r"""(?<![\w/\\])(?:
    [A-Za-z][\w+.-]*://          # an address
    | [A-Za-z]:[\\/]             # a drive
    | \\\\(?=[\w.?$])            # a share
    | \\(?=\w[^\\\n]*\\\w)       # a folder of the drive
    | ~(?:[\\/] | [A-Za-z])      # a home
    | \.{0,2}/+(?=[^\s/])
)"""
INSIDE = r"""(?:(?!
    [:;](?=\s | $)                    # what is said of the path follows
    | ,(?=\s)(?![^:;\n]*[\\/])        # a comma, unless the path goes on behind it
    | ["`\n] | '(?!\w)
).)*"""
"""A path without quotes may have blanks: it ends where its clause does, so that none is cut."""
QUOTED = re.compile(rf"""(?P<quote>["'`]){START}.*?(?P=quote)(?!\w)""", re.VERBOSE)
PLAIN = re.compile(START + INSIDE, re.VERBOSE)


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return `text` without absolute paths, addresses, and names of the user and the host.

    Paths of glnn's own files begin at its folder, as shaders/matmul/gemm_tiled.comp, and stay.
    """
    for folder in (Path(__file__).parents[2], Path(__file__).resolve().parents[2]):
        text = text.replace(f"{folder}{os.sep}", "")
    text = QUOTED.sub(lambda match: f"{match['quote']}{PATH}{match['quote']}", text)
    text = PLAIN.sub(_path, text)
    for name in sorted(_names(environment), key=len, reverse=True):
        inside = rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
        text = re.sub(inside, NAME, text, flags=re.IGNORECASE)
    return text


def redact_setting(value: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the `value` of an environment variable as `redact` does, or `PATH` where it is one."""
    if "/" in value or "\\" in value or value.startswith("~"):
        return PATH
    return redact(value, environment)


def _path(match: re.Match[str]) -> str:
    """Return `PATH`, and the bracket that was opened before the path, or the text's full stop."""
    text = match[0]
    behind = text[len(text.rstrip(" .")) :]
    text = text.rstrip(" .")
    unopened = text.endswith(")") and text.count(")") > text.count("(")
    return f"{PATH}{')' if unopened else ''}{behind}"


def _names(environment: Mapping[str, str]) -> set[str]:
    """Return the names of the user and the host, but those that many machines have."""
    host = platform.node()
    home = environment.get("HOME") or environment.get("USERPROFILE") or os.path.expanduser("~")
    found = {host, host.partition(".")[0], re.split(r"[\\/]", home.rstrip("\\/"))[-1]}
    found |= {environment.get(variable, "") for variable in OF_USER}
    with suppress(Exception):  # of no account
        found.add(getpass.getuser())
    with suppress(Exception):  # no Unix, or no account
        from pwd import getpwuid

        found.add(getpwuid(os.getuid()).pw_gecos.split(",")[0])
    return {name for name in found if len(name) > 1 and name.lower() not in COMMON}
