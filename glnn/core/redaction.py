"""Reports that name nobody: paths and the names of the user and the host are taken out of texts."""

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
"""What stands in the place of a path, of a name, and of what may belong to a path."""
OF_USER = ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME", "COMPUTERNAME")
"""Environment variables with names of users and hosts."""
OF_FOLDER = ("HOME", "USERPROFILE", "TMPDIR", "TEMP", "VIRTUAL_ENV", "XDG_CACHE_HOME", "PWD")
"""Environment variables with folders that messages may begin a path with."""
OF_PATH = re.compile(
    r"GLNN_(?:KERNELS|CACHE|EGL|GLES)"
    r"|(?:MESA|LIBGL|GALLIUM|(?:__)?EGL|LP|ZINK|ANGLE)_\w*(?:PATH|DIRS?|FILES?|FILENAMES?|TRACE)"
)
"""Names of settings whose values are paths, whatever they look like."""
COMMON = {
    *("root", "user", "admin", "pi", "debian", "ubuntu", "runner", "localhost", "localdomain"),
    *("glnn", "linux", "windows", "nvidia", "jetson", "intel", "amd", "arm", "mesa", "raspberrypi"),
}
"""Names that so many machines have that they name nobody, and that reports have as words."""
SHORTEST = 3
"""The letters that a name has at least: shorter ones are parts of too much else."""

WORD = re.compile(r"""[^\s"'`()\[\]{}<>,;|=\u2018\u2019\u201c\u201d\xab\xbb]+""")
QUOTED = re.compile(
    r"""(?<!\w)[bru]?(?P<quote>["'`])(?P<text>(?:\\.|(?!(?P=quote))[^\n\\]|(?P=quote)(?=\w))*)(?P=quote)(?!\w)"""
)
BEGINNING = re.compile(r"(?<![\w.)\]\\/])(?:(?:[A-Za-z]:|~)(?=\S)|\.{0,2}[\\/]+(?=[^\s\\/]))")
"""Where a path may begin whose first words have too odd characters to be seen as one."""
CLAUSE = re.compile(r"""(?:(?![:;,](?=\s|$)|["'`](?!\w))[^\n])*""")
"""A path without quotes may have blanks: it ends where its clause does, so that none is cut."""
FILE = re.compile(
    r"\.(?:onnx|npz|npy|gguf|safetensors|tflite|pth?|bin|param|pbm|png|jpe?g|json|toml)(?!\w)"
)
"""How names of files end that are paths without a folder, too."""
BELOW = re.compile(r"\0[\\/]+[\w.+\\/-]*\.(?:comp|vert|frag|glsl|toml|py|so|npz|onnx|json)(?!\w)")
"""A file without odd characters below a known folder, `\\0`."""
ESCAPE = re.compile(r"\\x[0-9a-fA-F]{2}|\\[nrt](?!\w)")
UNITS = {"s", "ms", "us", "ns", "min", "h"}
DRIVERS = {"PCIe", "PCI", "AGP", "SSE2", "SSE", "MMX", "MMX+", "integrated", "X.org"}
"""What GL's names of renderers and vendors have behind a slash."""


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return `text` without paths, addresses, and names of the user and the host.

    Paths of glnn's own files begin at its folder, as shaders/matmul/gemm_tiled.comp, and stay, as
    do kernels' names, units, and GL's strings, which have slashes, too. Of paths that stand in one
    line without quotes all is taken out between the first and the last, as folders' names may have
    whatever would end a path.
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

    document: dicts, lists and tuples in one another, as for JSON; keys of dicts stay.
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
    """Return `line` with `PATH` in the place of its paths: those in quotes, then all others."""
    line = _without_quoted(line, names)
    paths = [match for match in WORD.finditer(line) if _is_path(match[0], names)]
    if not paths:
        return line
    start = paths[0].start()
    if before := BEGINNING.search(line, 0, start):
        start = before.start()
    clause = CLAUSE.match(line, paths[-1].start())
    end = clause.end() if clause else len(line)
    text, rest = line[start:end], line[end:]
    behind = text[len(text.rstrip(" .")) :]
    text = text.rstrip(" .")
    closed = text[-1:] if text.endswith((")", "]", "}", ">")) else ""
    if closed and text.count(closed) <= text.count("([{<"[")]}>".index(closed)]):
        closed = ""
    if rest.startswith(('"', "'", "`")):
        closed, behind, rest = "", " ", REST
    return f"{line[:start]}{PATH}{closed}{behind}{rest}"


def _without_quoted(line: str, names: Collection[str]) -> str:
    """Return `line` with `PATH` in each pair of quotes that has a path.

    A path may have its quotes inside: one goes to the last quote where else one had no other.
    """
    parts, at = [], 0
    while match := QUOTED.search(line, at):
        quote, end = match["quote"], match.end()
        if any(_is_path(word, names) for word in WORD.findall(match["text"])):
            others = re.finditer(rf"(?<!\w){quote}|{quote}(?!\w)", line[end:])
            later = [other.end() for other in others]
            end += later[-1] if len(later) % 2 else 0
            parts += [line[at : match.start("quote")], quote, PATH, quote]
        else:
            parts.append(line[at:end])
        at = end
    return "".join(parts) + line[at:]


def _is_path(word: str, names: Collection[str]) -> bool:
    """Return True where `word` is a path or a part of one, and none of glnn's and GL's words."""
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
    """Return True where `part` of a word with slashes has only words of glnn, and numbers."""
    if not re.fullmatch(r"[\w.*+-]*", part) or part.lower() in map(str.lower, names):
        return False
    return all(
        re.fullmatch(r"\d+|[a-z]\d*", one) or one in _vocabulary()
        for one in re.findall(r"[^\W_]+", part.lower())
    )


@cache
def _roots() -> tuple[str, ...]:
    """Return the folders that glnn's package is in, as it is imported and without links."""
    folders = (Path(__file__).parents[2], Path(__file__).resolve().parents[2])
    return tuple({f"{str(folder).rstrip(os.sep)}{os.sep}": None for folder in folders})


@cache
def _operators() -> frozenset[str]:
    """Return the names of the folders of shaders, which are those of operators."""
    return frozenset(folder.name for folder in shaders_folder().iterdir() if folder.is_dir())


@cache
def _vocabulary() -> frozenset[str]:
    """Return the words of reports: of shaders' names and of what writes reports, in lower case."""
    package = Path(__file__).parents[1]
    files = [package / "core" / "settings.py", package / "kernels" / "capability_check.py"]
    files += [*(package / "doctor").glob("*.py"), *(package / "suite").glob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    texts += [f"{path.parent.name} {path.stem}" for path in shaders_folder().rglob("*.*")]
    text = " ".join(texts).lower()
    return frozenset({*COMMON, *re.findall(r"[^\W_]+", text), *re.findall(r"\w+", text)})


def _known_paths(environment: Mapping[str, str]) -> list[str]:
    """Return the paths of settings and of this process that messages may have, the longest first.

    They are replaced whatever characters they have; a setting's are, without slashes, too.
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
    found: set[str] = set()
    for value in filter(None, values):
        whole = os.path.expanduser(value)
        found |= {value, whole, str(Path(whole)), os.path.normpath(whole)}
        with suppress(OSError, ValueError):  # of what is no path
            found |= {os.path.abspath(whole), os.path.realpath(whole)}
    known = {path for path in (path.rstrip("\\/") for path in found) if _is_known(path)}
    written = known | {repr(path)[1:-1] for path in known}
    written |= {path.replace("\\", "\\\\") for path in known}
    written |= {path.replace("'", "\\'").replace('"', '\\"') for path in known}
    return sorted(written, key=len, reverse=True)


def _is_known(path: str) -> bool:
    """Return True where `path` is no root, and none that is a word of reports."""
    if re.search(r"[\\/]", path):
        return bool(re.search(r"[^\W\d]", os.path.splitdrive(path)[1]))
    return len(path) >= SHORTEST and not path.startswith("-") and path.lower() not in _vocabulary()


def _known_pattern(path: str) -> str:
    """Return the pattern of a known `path`, where no longer name begins with it.

    One without slashes is no end of a longer word. What follows a blank may belong to a name, too,
    unless the path has characters by which no other pattern would find its end.
    """
    begin = "" if re.search(r"^[\\/]|^\w:", path) else r"(?<![\w.-])"
    plain = re.search(r"[\\/]", path) and re.fullmatch(r"[\w.:~+\\/-]+", path)
    return rf"{begin}{re.escape(path)}(?![\w+@#~{' ' if plain else ''}-]|\.\w)"


def _names(environment: Mapping[str, str]) -> set[str]:
    """Return the names of the user and of the host, and the host's without and of its domain."""
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
