"""Redaction of reports: removes paths and the names of the user and the host from texts."""

from __future__ import annotations

import getpass
import os
import platform
import re
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from glnn.core.glsl import shaders_folder

PATH, NAME, REST = "(a path)", "(a name)", "(rest left out)"
"""Replacements of a path, of a name, and of text that may belong to a path."""
OF_USER = ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME", "COMPUTERNAME")
"""Environment variables with names of users and hosts."""
OF_FOLDER = ("HOME", "USERPROFILE", "TMPDIR", "TEMP", "VIRTUAL_ENV", "XDG_CACHE_HOME", "PWD")
"""Environment variables with folders, with which paths in messages may begin."""
OF_PATH = re.compile(
    r"GLNN_(?:KERNELS|CACHE|EGL|GLES)"
    r"|(?:MESA|LIBGL|GALLIUM|(?:__)?EGL|LP|ZINK|ANGLE)_\w*(?:PATH|DIRS?|FILES?|FILENAMES?|TRACE)"
)
"""Names of settings whose values are always paths."""
COMMON = {
    *("root", "user", "admin", "pi", "debian", "ubuntu", "runner", "localhost", "localdomain"),
    *("glnn", "linux", "windows", "nvidia", "jetson", "intel", "amd", "arm", "mesa", "raspberrypi"),
}
"""Names that identify nobody, as many machines have them, and that are words of reports."""
SHORTEST = 3
"""The least letters of a name to redact: shorter ones occur in too many words."""

WORD = re.compile(r"""[^\s"'`()\[\]{}<>,;|=\u2018\u2019\u201c\u201d\xab\xbb]+""")
QUOTED = re.compile(
    r"""(?<!\w)[bru]?(?P<quote>["'`])(?P<text>(?:\\.|(?!(?P=quote))[^\n\\]|(?P=quote)(?=\w))*)(?P=quote)(?!\w)"""
)
BEGINNING = re.compile(r"(?<![\w.)\]\\/])(?:(?:[A-Za-z]:|~)(?=\S)|\.{0,2}[\\/]+(?=[^\s\\/]))")
"""The beginning of a path, to find paths whose first words `_is_path` does not recognize."""
CLAUSE = re.compile(r"""(?:(?![:;,](?=\s|$)|["'`](?!\w))[^\n])*""")
"""A clause: a path without quotes may contain blanks, and is removed up to its clause's end."""
FILE = re.compile(
    r"\.(?:onnx|npz|npy|gguf|safetensors|tflite|pth?|bin|param|pbm|png|jpe?g|json|toml)(?!\w)"
)
"""File extensions of names that count as paths even without a folder."""
BELOW = re.compile(r"\0[\\/]+[\w.+\\/-]*\.(?:comp|vert|frag|glsl|toml|py|so|npz|onnx|json)(?!\w)")
"""A file of plain characters in a known folder, which is `\\0`."""
ESCAPE = re.compile(r"\\x[0-9a-fA-F]{2}|\\[nrt](?!\w)")
UNITS = {"s", "ms", "us", "ns", "min", "h"}
DRIVERS = {"PCIe", "PCI", "AGP", "SSE2", "SSE", "MMX", "MMX+", "integrated", "X.org"}
"""Words after a slash in GL's names of renderers and vendors."""


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return `text` without paths, addresses, and names of the user and the host.

    Paths of glnn's files are kept from its folder on, as shaders/matmul/gemm_tiled.comp; kernels'
    names, units and GL's strings, which contain slashes, are kept, too. In a line with several
    paths without quotes, all text from the first to the last path is removed, as names of folders
    may contain any character.
    """
    names = _names(environment)
    for root in _roots():
        for folder in ("glnn", "shaders"):
            below = re.escape(f"{root}{folder}{os.sep}")
            text = re.sub(rf"(?<![\w.\\/-]){below}", f"{folder}/", text)
    known = _known_paths(environment)
    text = re.sub(rf"(?:{'|'.join(map(_known_pattern, known))})", "\0", text) if known else text
    text = re.sub(r"\0(?![\\/])", PATH, BELOW.sub(PATH, text))
    text = "\n".join(_without_paths(line, names) for line in text.split("\n")).replace("\0", PATH)
    text = re.sub(r"[\w.+-]*\w@\w[\w.-]*", NAME, text)
    for name in sorted(names, key=len, reverse=True):
        if len(name) >= SHORTEST and name.lower() not in _vocabulary():
            inside = rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
            text = re.sub(inside, NAME, text, flags=re.IGNORECASE)
    return text


def redact_texts(document: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """Return `document` with its texts as `redact` returns them.

    document: nested dicts, lists and tuples, as for JSON; keys of dicts are not changed.
    """
    if isinstance(document, str):
        return redact(document, environment)
    if isinstance(document, Mapping):
        return {key: redact_texts(value, environment) for key, value in document.items()}
    if isinstance(document, (list, tuple)):
        return [redact_texts(value, environment) for value in document]
    return document


def redact_setting(variable: str, value: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the `value` of an environment variable as `redact` does, or `PATH` where it is one."""
    if OF_PATH.fullmatch(variable) or "/" in value or "\\" in value or value.startswith("~"):
        return PATH
    return redact(value, environment)


def _without_paths(line: str, names: Collection[str]) -> str:
    """Return `line` with `PATH` in the place of paths: first of those in quotes, then of others."""
    line = _without_quoted_paths(line, names)
    paths = [match for match in WORD.finditer(line) if _is_path(match[0], names)]
    if not paths:
        return line
    start = paths[0].start()
    if beginning := BEGINNING.search(line, 0, start):
        start = beginning.start()
    clause = CLAUSE.match(line, paths[-1].start())
    end = clause.end() if clause else len(line)
    text, rest = line[start:end], line[end:]
    punctuation = text[len(text.rstrip(" .")) :]
    text = text.rstrip(" .")
    bracket = text[-1:] if text.endswith((")", "]", "}", ">")) else ""
    if bracket and text.count(bracket) <= text.count("([{<"[")]}>".index(bracket)]):
        bracket = ""  # it was opened inside the path
    if rest.startswith(('"', "'", "`")):
        bracket, punctuation, rest = "", " ", REST
    return f"{line[:start]}{PATH}{bracket}{punctuation}{rest}"


def _without_quoted_paths(line: str, names: Collection[str]) -> str:
    """Return `line` with `PATH` in each pair of quotes that contains a path.

    A path may contain its quote character: where an odd number of these follow, the path extends to
    the last one.
    """
    parts, position = [], 0
    while match := QUOTED.search(line, position):
        quote, end = match["quote"], match.end()
        if any(_is_path(word, names) for word in WORD.findall(match["text"])):
            quotes = re.finditer(rf"(?<!\w){quote}|{quote}(?!\w)", line[end:])
            ends = [one.end() for one in quotes]
            end += ends[-1] if len(ends) % 2 else 0
            parts += [line[position : match.start("quote")], quote, PATH, quote]
        else:
            parts.append(line[position:end])
        position = end
    return "".join(parts) + line[position:]


def _is_path(word: str, names: Collection[str]) -> bool:
    """Return True where `word` is a path or a part of one, and no word of glnn's or GL's."""
    word = ESCAPE.sub("", word).rstrip(":.!?")
    if re.match(r"~[^\W\d]", word):
        return True
    if not re.search(r"[\\/]", word):
        return bool(FILE.search(word)) and not re.fullmatch(r"(?:glnn|torch)\.\w+", word)
    if not re.search(r"[^\W\d]", word):
        return "\0" in word
    first, *others = word.split("/")
    if re.fullmatch(r"\w*", first) and set(others) <= UNITS | DRIVERS:
        return False
    if "\\" in word or "\0" in word or not first or first[0] in ".~$%-":
        return True
    if all(part.startswith(("GL_", "EGL_")) for part in (first, *others)):
        return False
    file = re.sub(r":[\d:()]*$", "", word)
    if first in ("glnn", "shaders") and any(Path(root, file).exists() for root in _roots()):
        return False
    if len(others) == 1 and first in _operators() and re.fullmatch(r"\w+(?:\.comp)?", others[0]):
        return False
    return not all(_is_word(part, names) for part in (first, *others))


def _is_word(part: str, names: Collection[str]) -> bool:
    """Return True where `part`, of a word with slashes, has only words of reports and numbers."""
    if not re.fullmatch(r"[\w.*+-]*", part) or part.lower() in map(str.lower, names):
        return False
    return all(
        re.fullmatch(r"\d+|[a-z]\d*", one) or one in _vocabulary()
        for one in re.findall(r"[^\W_]+", part.lower())
    )


@cache
def _roots() -> tuple[str, ...]:
    """Return the folders that contain glnn's package, as imported and with links resolved."""
    folders = (Path(__file__).parents[2], Path(__file__).resolve().parents[2])
    return tuple({f"{str(folder).rstrip(os.sep)}{os.sep}": None for folder in folders})


@cache
def _operators() -> frozenset[str]:
    """Return the names of the folders of shaders, which are those of operators."""
    return frozenset(folder.name for folder in shaders_folder().iterdir() if folder.is_dir())


@cache
def _vocabulary() -> frozenset[str]:
    """Return the words of reports in lower case: of shaders' names and of the reports' sources."""
    package = Path(__file__).parents[1]
    files = [package / "core" / "settings.py", package / "kernels" / "capability_check.py"]
    files += [*(package / "doctor").glob("*.py"), *(package / "suite").glob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    texts += [f"{path.parent.name} {path.stem}" for path in shaders_folder().rglob("*.*")]
    text = " ".join(texts).lower()
    return frozenset({*COMMON, *re.findall(r"[^\W_]+", text), *re.findall(r"\w+", text)})


def _known_paths(environment: Mapping[str, str]) -> list[str]:
    """Return the paths of settings and of this process, the longest first.

    They are replaced whatever characters they contain, and those of settings even without slashes.
    """
    import tempfile  # here, as `import glnn` needs no report

    values = [environment.get(variable, "") for variable in OF_FOLDER]
    values += [argument.rpartition("=")[2] for argument in sys.argv]
    values += [os.path.expanduser("~"), sys.prefix, sys.base_prefix, sys.executable, *sys.path]
    with suppress(OSError):  # of folders that are gone
        values += [tempfile.gettempdir(), os.getcwd()]
    values = [value for value in values if re.search(r"[\\/]", value)]
    for variable, value in environment.items():
        if OF_PATH.fullmatch(variable):
            values += [value, *value.split(os.pathsep)]
    paths: set[str] = set()
    for value in filter(None, values):
        expanded = os.path.expanduser(value)
        paths |= {value, expanded, str(Path(expanded)), os.path.normpath(expanded)}
        with suppress(OSError, ValueError):  # of a value that is no path
            paths |= {os.path.abspath(expanded), os.path.realpath(expanded)}
    specific = {path for path in (path.rstrip("\\/") for path in paths) if _is_specific(path)}
    spellings = specific | {repr(path)[1:-1] for path in specific}
    spellings |= {path.replace("\\", "\\\\") for path in specific}
    spellings |= {path.replace("'", "\\'").replace('"', '\\"') for path in specific}
    return sorted(spellings, key=len, reverse=True)


def _is_specific(path: str) -> bool:
    """Return True where `path` is no root and no word of reports."""
    if re.search(r"[\\/]", path):
        return bool(re.search(r"[^\W\d]", os.path.splitdrive(path)[1]))
    return len(path) >= SHORTEST and not path.startswith("-") and path.lower() not in _vocabulary()


def _known_pattern(path: str) -> str:
    """Return a pattern that matches `path` where it is not the beginning of a longer name.

    A path without slashes does not match the end of a longer word. A path of plain characters does
    not match before a blank, as the name may go on after it; other patterns find these paths.
    """
    begin = "" if re.search(r"^[\\/]|^\w:", path) else r"(?<![\w.-])"
    plain = re.search(r"[\\/]", path) and re.fullmatch(r"[\w.:~+\\/-]+", path)
    return rf"{begin}{re.escape(path)}(?![\w+@#~{' ' if plain else ''}-]|\.\w)"


def _names(environment: Mapping[str, str]) -> set[str]:
    """Return the names of the user and of the host, and the host's name split at its domain."""
    hosts = {platform.node(), *(environment.get(of, "") for of in ("HOSTNAME", "COMPUTERNAME"))}
    home = environment.get("HOME") or environment.get("USERPROFILE") or os.path.expanduser("~")
    found = {re.split(r"[\\/]", home.rstrip("\\/"))[-1], *hosts}
    for host in hosts:
        short, _, domain = host.partition(".")
        found |= {short, domain if "." in domain else ""}
    found |= {environment.get(variable, "") for variable in OF_USER}
    with suppress(Exception):  # of no account
        found.add(getpass.getuser())
    with suppress(Exception):  # no Unix, or no account
        from pwd import getpwuid

        found.add(getpwuid(os.getuid()).pw_gecos.split(",")[0])
    return {name for name in found if len(name) > 1 and name.lower() not in COMMON}
