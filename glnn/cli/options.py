"""Options that several verbs share, and their files and output."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import escape, glob, has_magic
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from glnn.cli.screen import say_logged
from glnn.core.fileio import atomic_write, create_only, onnx_external_files, try_write
from glnn.core.settings import meant_backend
from glnn.core.types import MOST, Shape
from glnn.errors import GlnnError, ModelError, fault
from glnn.gl.device_selection import MINIMUM_LIMITS
from glnn.runtime.options import NAMES, PRECISIONS

Command = TypeVar("Command", bound=Callable[..., Any])


if TYPE_CHECKING:
    Choice = click.Choice[str]
else:
    Choice = click.Choice  # which older versions of click cannot index


class BackendName(Choice):
    """The type of a parameter that names a backend: an error says which one may be meant."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Raises BadParameter for others."""
        if value not in self.choices:
            names = ", ".join(map(repr, self.choices))
            self.fail(f"{value!r} is not one of {names}{meant_backend(value)}", param)
        return super().convert(value, param, ctx)


def device_options(command: Command) -> Command:
    """Add `--gpu`, `--limits` and `output_options`."""
    command = output_options(command)
    command = click.option(
        "--limits",
        type=click.Choice([MINIMUM_LIMITS]),
        help="Behave as the smallest device that OpenGL ES 3.1 allows.",
    )(command)
    return gpu_option(command)


def gpu_option(command: Command) -> Command:
    """Add `--gpu`."""
    return click.option(
        "--gpu",
        metavar="INDEX|NAME|cuda:N",
        help="The GPU: its EGL index, a part of its name, or CUDA's number.",
    )(command)


def output_options(command: Command) -> Command:
    """Add `--wide`, `--json` and `--verbose`."""
    command = click.option(
        "-v",
        "--verbose",
        count=True,
        metavar="",
        expose_value=False,
        callback=_verbose,
        help="Say on standard error what is opened and planned; -vv, what is compiled and run.",
    )(command)
    command = click.option(
        "--json",
        "as_json",
        is_flag=True,
        help='Print one JSON object on standard output; {"error": ...} where the command fails.',
    )(command)
    return click.option(
        "--wide", is_flag=True, help="All columns of tables, whatever the terminal's width."
    )(command)


def _verbose(context: click.Context, parameter: click.Parameter, count: int) -> None:
    """Print log records for as long as the command runs."""
    if count:
        context.call_on_close(say_logged(logging.INFO if count == 1 else logging.DEBUG))


def kernel_option(command: Command) -> Command:
    """Add `--kernel OP=NAME`, which may be repeated."""
    return click.option(
        "--kernel",
        "kernels",
        metavar="OP=NAME",
        multiple=True,
        callback=_kernels,
        help="Take this kernel for an op, as in matmul=gemm_blocked, or of several with commas "
        "between the first that can; may be repeated.",
    )(command)


def precision_option(command: Command) -> Command:
    """Add `--precision`."""
    return click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        default=PRECISIONS[0],
        show_default=True,
        help="Of the weights of convolutions, products and embeddings; float16 takes half as much, "
        "int8 a quarter where layers are bound by reading them.",
    )(command)


def fuse_option(command: Command) -> Command:
    """Add `--fuse` and `--no-fuse`."""
    return click.option(
        "--fuse/--no-fuse",
        "fused",
        default=True,
        help="Without: bias, activation and the like are steps of their own.",
    )(command)


def _kernels(context: click.Context, parameter: click.Parameter, texts: Any) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for text in texts:
        op, equals, name = text.partition("=")
        if not (op and equals and name.replace(",", "").strip()):
            raise click.BadParameter(f"expected OP=NAME, got {text!r}")
        chosen[op] = name
    return chosen


def shape_option(command: Command) -> Command:
    """Add `--shape NAME=SIZES`, which may be repeated."""
    return click.option(
        "--shape",
        "shapes",
        metavar="NAME=SIZES",
        multiple=True,
        callback=_shapes,
        help="The shape of an input, as in x=1,3,64,96, where the model leaves sizes open, or one "
        "of these sizes, as in sequence=128; may be repeated.",
    )(command)


def _shapes(context: click.Context, parameter: click.Parameter, texts: Any) -> dict[str, Shape]:
    chosen: dict[str, Shape] = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        parts = sizes.split(",") if sizes else []
        if not name or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
            raise click.BadParameter(f"expected NAME=SIZES, as in x=1,3,64,96, got {text!r}")
        chosen[name] = tuple(int(part[:20]) for part in parts)
    return chosen


BACKEND = ("--backend", "--backends")
"""Both spellings are one option wherever there is one."""


def backend_option(command: Command) -> Command:
    """Add `--backend`, one of them."""
    return click.option(
        *BACKEND,
        "backend",
        type=BackendName(["auto", *NAMES]),
        default="auto",
        show_default=True,
        help="auto takes what GLNN_BACKEND names, else the first of compute, feedback and cpu "
        "that opens; run and train see which of them is the fastest.",
    )(command)


def batch_option(command: Command) -> Command:
    """Add `--batch`, the samples of a plan."""
    return click.option(
        "--batch", type=click.IntRange(1, MOST), help="Samples: 1, or as many as the model takes."
    )(command)


def backends_option(choices: Sequence[str], help: str) -> Callable[[Command], Command]:
    """Make `--backend`, one or several of `choices` separated by commas; None where it is not
    given.
    """

    def names(
        context: click.Context, parameter: click.Parameter, text: str | None
    ) -> tuple[str, ...] | None:
        return None if text is None else backend_names(text, choices)

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        listed, comma, prefix = incomplete.rpartition(",")
        return [
            f"{listed}{comma}{name}"
            for name in choices
            if name.startswith(prefix) and name not in listed.split(",")
        ]

    return click.option(
        *BACKEND,
        "backends",
        metavar="NAME[,NAME]",
        callback=names,
        shell_complete=complete,
        help=f"{help} Separated by commas: {', '.join(choices)}.",
    )


def backend_names(text: str, backends: Sequence[str] = NAMES) -> tuple[str, ...]:
    """Parse a comma-separated list of backends. Raises GlnnError for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in backends:
            expected = f"expected {', '.join(backends)}{meant_backend(name)}"
            raise GlnnError(f"--backend: unknown backend {name!r}, {expected}")
    if not names:
        raise GlnnError(f"--backend: expected one or more of {', '.join(backends)}")
    return tuple(dict.fromkeys(names))


REPLACING = "glnn.overwrite"
"""The key of a context's `meta` that is true where `--overwrite` is given."""


WRITTEN = "glnn.written"
"""The key of a context's `meta` that has the words of the command line."""


def check_absent(option: str, path: str | os.PathLike[str], otherwise: str = "") -> None:
    """Raise ModelError where the file `path` of `option` exists and `--overwrite` is not given.

    otherwise: what else the command may do with the file, as "--resume goes on from it, ".
    """
    context = click.get_current_context(silent=True)
    overwrites = context is not None and context.meta.get(REPLACING, False)
    if not overwrites and os.path.isfile(path):
        raise ModelError(f"{option}: {path} is there already: {otherwise}--overwrite replaces it")


def check_writable(option: str, path: str) -> None:
    """Raise ModelError where the file `path` of `option` cannot be written, or exists and
    `--overwrite` is not given.
    """
    check_absent(option, path)
    _try_write(option, path)


def _try_write(option: str, path: str) -> None:
    try:
        try_write(path)
    except (OSError, ValueError) as error:  # a path that holds a zero byte
        raise ModelError(f"{option}: cannot write to {path}: {fault(error)}") from None


def write_report(path: str, text: str) -> None:
    """Write `text` to the file `path` of `--report`. Raises ModelError where that fails."""
    try:
        with atomic_write(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise ModelError(f"--report: cannot write to {path}: {fault(error)}") from None


COMPLETION = "_GLNN_COMPLETE"
"""The environment's variable by which a shell asks for completions."""
INTERRUPTED = 130
"""The exit status after Ctrl-C."""


def print_json(document: dict[str, Any], indent: int | None = 2) -> None:
    """Print `document` as one JSON object; what JSON cannot say (NaN, inf) becomes text.

    indent: of each level, in blanks; None: all in one line.
    """
    click.echo(json.dumps(_plain(document), indent=indent, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    return value


def refuse_nan(
    context: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    """Refuse NaN, which no `FloatRange` excludes."""
    if value is not None and isnan(value):
        raise click.BadParameter("nan is no number")
    return value


WEIGHT_SUFFIXES = {".json": (".npz", ".weights-*.npz"), ".onnx": (".onnx.data", ".onnx_data")}
"""Suffixes of the files with weights beside a model's file, by the suffix of that."""


class FileName(StringParamType):
    """The type of a parameter that may name a file or a folder; shells complete it."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Have the shell complete the name of a file."""
        return [CompletionItem(incomplete, type="file")]


UNQUOTED = re.compile(r"[\w./@%+-]*")
"""A name that needs no quotes in a shell."""


def complete_files(
    incomplete: str, endings: Sequence[str], names: Sequence[str] = ()
) -> list[CompletionItem]:
    """Complete one of `names`, a file with one of `endings`, or a folder.

    Where nothing matches, or a match needs quotes, the shell completes the name of any file.
    """
    folder = incomplete[: incomplete.rfind("/") + 1]
    prefix = incomplete.removeprefix(folder)
    matches = [name for name in names if name.startswith(incomplete)]
    with suppress(OSError, ValueError):
        for name in sorted(os.listdir(folder or ".")):
            if not name.startswith(prefix) or (name.startswith(".") and not prefix):
                continue
            if os.path.isdir(folder + name):
                matches.append(f"{folder}{name}/")
            elif name.lower().endswith(tuple(endings)):
                matches.append(folder + name)
    if not matches or not all(map(UNQUOTED.fullmatch, matches)):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in matches]


def complete_gguf(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a language model's file, or of a folder."""
    return complete_files(incomplete, (".gguf",))


class OutputFile(FileName):
    """The type of a parameter that names a file, or a folder for files, to write."""

    def __init__(
        self,
        folder: Callable[[str], bool] = lambda name: False,
        inside: Callable[[Path], bool] = lambda path: False,
        suffix_patterns: Callable[[Mapping[str, Any]], Sequence[str]] = lambda parameters: (),
        replaces: str = "",
        resumed: str = "",
        unnamed: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> None:
        """folder: whether a name is a folder's; the command then calls `check_absent` for each
        file. inside: whether a file of the folder has a name that the command may write there.
        suffix_patterns: from the command's parameters, patterns of the suffixes of files with the
        same stem that are written beside it. replaces: the input that it may overwrite. resumed:
        the flag with which the command continues from the file. unnamed: from the command's
        parameters, the name where none is given.
        """
        self.folder, self.inside, self.suffix_patterns = folder, inside, suffix_patterns
        self.replaces, self.resumed, self.unnamed = replaces, resumed, unnamed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name; refuse an empty one, "-", which is often a pipe, and an option."""
        name = super().convert(value, param, ctx)
        if name == "-":
            self.fail("expected the name of a file, got '-': nothing is written to a pipe")
        if not name:
            self.fail("expected the name of a file, got ''")
        if "\0" in name:
            self.fail(f"expected the name of a file, got {name!r}")
        if name.startswith("--"):
            self.fail(f"expected the name of a file, got {name!r}: ./{name} would be one")
        return name


@dataclass(frozen=True)
class _Output:
    """A file, or a folder for files, that a command is to write."""

    option: str
    """The option or argument, as messages call it."""
    path: str
    type: OutputFile
    patterns_beside: tuple[str, ...]
    """Patterns of the names of files that are written beside it."""
    resumed: bool
    """Whether the command continues from the file."""

    @property
    def is_folder(self) -> bool:
        """True where files are written into a folder of that name."""
        return self.type.folder(self.path)

    @property
    def parent(self) -> Path:
        """The folder of the path, which may be a link itself."""
        return Path(self.path).parent

    @property
    def real_path(self) -> Path:
        """The path without links."""
        return Path(os.path.realpath(self.path))

    def check_links(self) -> None:
        """Raise ModelError where the path is part of a circle of links."""
        if self.real_path.is_symlink():
            reason = os.strerror(errno.ELOOP)
            raise ModelError(f"{self.option}: cannot write to {self.path}: {reason}")

    def check_written(self) -> None:
        """Raise ModelError where the file cannot, or should not, be written."""
        if not self.resumed:
            flag = self.type.resumed
            check_absent(self.option, self.path, f"--{flag} goes on from it, " if flag else "")
        for pattern in self.patterns_beside:
            for path in self.parent.glob(pattern):
                check_absent(self.option, path)
        _try_write(self.option, self.path)

    def check_different_files(self, other_output: _Output) -> None:
        """Raise ModelError where `other_output` is the same file, or one is in the other's folder.

        Both may be the same folder, where they write files of different names.
        """
        are_folders = self.is_folder and other_output.is_folder
        is_same = self.real_path == other_output.real_path and not are_folders
        if is_same or self._writes_inside(other_output) or other_output._writes_inside(self):
            raise ModelError(
                f"{self.path}: {other_output.option} and {self.option} are the same file"
            )

    def _writes_inside(self, folder: _Output) -> bool:
        """Return True where this file is in `folder` and has a name that may be written there."""
        is_inside = folder.is_folder and self.real_path.parent == folder.real_path
        return is_inside and folder.type.inside(self.real_path)


class WritingCommand(click.RichCommand):
    """A command with parameters of type `OutputFile`, to which it adds `--overwrite`.

    Before it begins, it raises ModelError where an output is the same file, also by links, as
    another parameter's input or output; where it cannot be written; and where it exists and
    `--overwrite` is not given. Without `--overwrite`, files that others create while the command
    runs are not replaced, either.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        outputs = [i for i, one in enumerate(self.params) if isinstance(one.type, OutputFile)]
        replacing = click.Option(
            ["--overwrite"],
            is_flag=True,
            expose_value=False,
            callback=_keep_replacing,
            help="Replace files that are there already; without it they are refused.",
        )
        self.params.insert(outputs[-1] + 1, replacing)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WRITTEN] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        outputs = list(self._outputs(ctx))
        for number, output in enumerate(outputs):
            output.check_links()
            self._check_inputs(ctx, output)
            for other in outputs[:number]:
                output.check_different_files(other)
            if not output.is_folder:
                output.check_written()
        if ctx.meta.get(REPLACING, False):
            return super().invoke(ctx)
        new_files = [output for output in outputs if not output.resumed]
        patterns = [
            (output.parent, pattern) for output in new_files for pattern in output.patterns_beside
        ]
        with create_only((output.path for output in new_files), patterns):
            return super().invoke(ctx)

    def _outputs(self, ctx: click.Context) -> Iterator[_Output]:
        """Yield the outputs that the command line names, or that have a default name."""
        for parameter in self.params:
            type, name = parameter.type, parameter.name or ""
            if isinstance(type, OutputFile):
                if ctx.params.get(name) is None and type.unnamed is not None:
                    ctx.params[name] = type.unnamed(ctx.params)
                if (path := ctx.params.get(name)) is not None:
                    resumed = bool(ctx.params.get(type.resumed))
                    stem = escape(Path(path).stem)
                    beside = tuple(f"{stem}{suffix}" for suffix in type.suffix_patterns(ctx.params))
                    yield _Output(parameter_name(parameter), str(path), type, beside, resumed)

    def _check_inputs(self, ctx: click.Context, output: _Output) -> None:
        """Raise ModelError where `output` is an input's file."""
        target, type = output.path, output.type
        if not os.path.exists(target):
            return  # spares searching models for their files of weights
        for parameter in self.params:
            name = parameter.name or ""
            if isinstance(parameter.type, OutputFile) or name == type.replaces:
                continue
            for path in _named_files(ctx.params.get(name)):
                if _is_overwritten(path, target, type.inside):
                    names = f"{parameter_name(parameter)} and {output.option}"
                    raise ModelError(f"{path}: {names} are the same file")


def _keep_replacing(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Store `--overwrite` where `check_absent` finds it."""
    context.meta[REPLACING] = value


def _named_files(value: Any) -> Iterator[Path]:
    """Yield the files that a parameter's value may name: a file, also after NAME=, the files of a
    pattern or in a folder, and the files of a model's weights.
    """
    for one in value if isinstance(value, tuple) else (value,):
        if not isinstance(one, str | Path):
            continue
        _, _, value_part = str(one).partition("=")
        for text in filter(None, (str(one), value_part)):
            yield Path(text)
            yield from _weight_files(Path(text))
            if has_magic(text):
                yield from map(Path, glob(text))
            elif os.path.isdir(text):
                yield from Path(text).iterdir()


def _weight_files(path: Path) -> Iterator[Path]:
    """Yield the files of a model's weights: those beside it, and those that an .onnx file names."""
    yield from _companion_files(path)
    if path.suffix == ".onnx" and path.is_file():
        with suppress(OSError, ValueError):  # the command itself refuses what cannot be read
            yield from onnx_external_files(path)


def _companion_files(path: Path) -> Iterator[Path]:
    for ending in WEIGHT_SUFFIXES.get(path.suffix, ()):
        yield from path.parent.glob(escape(path.stem) + ending)


def _is_overwritten(path: Path, target: str, inside: Callable[[Path], bool]) -> bool:
    """Return True where writing `target` overwrites or removes the file `path`: the same file, one
    in the folder `target`, or the weights of the model that is replaced.
    """
    try:
        if not path.is_file():
            return False
        if os.path.isdir(target):
            return os.path.samefile(target, path.parent) and inside(path)
        if not os.path.exists(target):
            return False
        replaced = (Path(target), *_companion_files(Path(target)))
        return any(path.samefile(one) for one in replaced)
    except (OSError, ValueError):  # an impossible file name
        return False


def parameter_name(parameter: click.Parameter) -> str:
    """Return the name of a parameter for messages: an option as typed, an argument in capitals."""
    if isinstance(parameter, click.Option):
        context = click.get_current_context(silent=True)
        words = context.meta.get(WRITTEN, ()) if context is not None else ()
        typed = (name for word in words for name in parameter.opts if word.split("=")[0] == name)
        return next(typed, max(parameter.opts, key=len))
    return parameter.metavar or (parameter.name or "").upper()
