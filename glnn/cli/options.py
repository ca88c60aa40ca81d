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
    """Say what is logged for as long as the command runs."""
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
        before, comma, begun = incomplete.rpartition(",")
        there = before.split(",")
        return [
            f"{before}{comma}{name}"
            for name in choices
            if name.startswith(begun) and name not in there
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
"""The key of a context's `meta` that has a command's arguments as they were written."""


def check_absent(option: str, path: str | os.PathLike[str], otherwise: str = "") -> None:
    """Raise ModelError where the file `path`, which `option` names, is there, unless `--overwrite`
    is given.

    otherwise: what else the command may do with the file, as "--resume goes on from it, ".
    """
    context = click.get_current_context(silent=True)
    replaced = context is not None and context.meta.get(REPLACING, False)
    if not replaced and os.path.isfile(path):
        raise ModelError(f"{option}: {path} is there already: {otherwise}--overwrite replaces it")


def check_writable(option: str, path: str) -> None:
    """Raise ModelError where the file `path`, which `option` names, could not be written, and
    where it is there and `--overwrite` is not given.
    """
    check_absent(option, path)
    _try_write(option, path)


def _try_write(option: str, path: str) -> None:
    try:
        try_write(path)
    except (OSError, ValueError) as error:  # a path that holds a zero byte
        raise ModelError(f"{option}: cannot write to {path}: {fault(error)}") from None


def write_report(path: str, text: str) -> None:
    """Write what `--report` asks for. Raises ModelError."""
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
    """Refuse what no range of `FloatRange` leaves out."""
    if value is not None and isnan(value):
        raise click.BadParameter("nan is no number")
    return value


BESIDE = {".json": (".npz", ".weights-*.npz"), ".onnx": (".onnx.data", ".onnx_data")}
"""How files beside a model's that have its weights end, by the ending of the model's own."""


class FileName(StringParamType):
    """The type of a parameter that may name a file or a folder; shells complete it."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Have the shell complete the name of a file."""
        return [CompletionItem(incomplete, type="file")]


PLAIN = re.compile(r"[\w./@%+-]*")
"""A name that no shell wants to have quoted."""


def complete_files(
    incomplete: str, endings: Sequence[str], names: Sequence[str] = ()
) -> list[CompletionItem]:
    """Complete one of `names`, a file with one of `endings`, or a folder, for what may be in it.

    Where none of them begins so, or one needs quotes, the shell completes the name of any file.
    """
    folder = incomplete[: incomplete.rfind("/") + 1]
    begun = incomplete.removeprefix(folder)
    found = [name for name in names if name.startswith(incomplete)]
    with suppress(OSError, ValueError):
        for name in sorted(os.listdir(folder or ".")):
            if not name.startswith(begun) or (name.startswith(".") and not begun):
                continue
            if os.path.isdir(folder + name):
                found.append(f"{folder}{name}/")
            elif name.lower().endswith(tuple(endings)):
                found.append(folder + name)
    if not found or not all(map(PLAIN.fullmatch, found)):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in found]


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
        """folder: whether a name may be a folder's; the command then calls `check_absent` for each
        file. inside: whether a file in the folder is called as those that are written there.
        suffix_patterns: returns the suffixes of files of the same stem that are written beside it,
        as patterns, from the command's parameters. replaces: the input that it may be.
        resumed: the flag by which the command goes on from the file. unnamed: returns the name
        where none is given, from the command's parameters.
        """
        self.folder, self.inside, self.suffix_patterns = folder, inside, suffix_patterns
        self.replaces, self.resumed, self.unnamed = replaces, resumed, unnamed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name; refuse an empty one, what others take for a pipe, and an option."""
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
    """The option or argument, as people call it."""
    path: str
    type: OutputFile
    patterns_beside: tuple[str, ...]
    """Patterns of the names of files that are written beside it."""
    resumed: bool
    """Whether the command goes on from the file."""

    @property
    def is_folder(self) -> bool:
        """True where files are written into a folder of that name."""
        return self.type.folder(self.path)

    @property
    def parent(self) -> Path:
        """The folder of the path, which may be a link itself."""
        return Path(self.path).parent

    @property
    def place(self) -> Path:
        """The path without links."""
        return Path(os.path.realpath(self.path))

    def check_links(self) -> None:
        """Raise ModelError where the path is one of links in a circle."""
        if self.place.is_symlink():
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

        Both may be the same folder: what is written there is called otherwise.
        """
        same = self.place == other_output.place and not (self.is_folder and other_output.is_folder)
        if same or self._writes_inside(other_output) or other_output._writes_inside(self):
            raise ModelError(
                f"{self.path}: {other_output.option} and {self.option} are the same file"
            )

    def _writes_inside(self, folder: _Output) -> bool:
        """Return True where `folder` is this file's, and has files of such names written to it."""
        inside = folder.is_folder and self.place.parent == folder.place
        return inside and folder.type.inside(self.place)


class WritingCommand(click.RichCommand):
    """A command some of whose parameters are an `OutputFile`; it has `--overwrite` by itself.

    Before it does anything it raises ModelError where one of these is the same file as one that
    another parameter names, an input or an output, behind links, too; where the file cannot be
    written; and where it is there and `--overwrite` is not given. What is made by others while the
    command runs is not replaced without it, either.
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
        new = [output for output in outputs if not output.resumed]
        patterns = [
            (output.parent, pattern) for output in new for pattern in output.patterns_beside
        ]
        with create_only((output.path for output in new), patterns):
            return super().invoke(ctx)

    def _outputs(self, ctx: click.Context) -> Iterator[_Output]:
        """Yield the outputs that are named, or have a name where none is given."""
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
            return  # before models are searched for the files that they name
        for parameter in self.params:
            name = parameter.name or ""
            if isinstance(parameter.type, OutputFile) or name == type.replaces:
                continue
            for read in _named_files(ctx.params.get(name)):
                if _is_written(target, type.inside, read):
                    names = f"{parameter_name(parameter)} and {output.option}"
                    raise ModelError(f"{read}: {names} are the same file")


def _keep_replacing(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Keep `--overwrite` where `check_absent` finds it."""
    context.meta[REPLACING] = value


def _named_files(value: Any) -> Iterator[Path]:
    """Yield the files that a parameter's value may name: itself, what is behind NAME=, those of a
    pattern, those in a folder, and those of a model's weights.
    """
    for one in value if isinstance(value, tuple) else (value,):
        if not isinstance(one, str | Path):
            continue
        _, _, behind = str(one).partition("=")
        for text in filter(None, (str(one), behind)):
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
        with suppress(OSError, ValueError):  # what cannot be read is refused by what reads it
            yield from onnx_external_files(path)


def _companion_files(path: Path) -> Iterator[Path]:
    for ending in BESIDE.get(path.suffix, ()):
        yield from path.parent.glob(escape(path.stem) + ending)


def _is_written(target: str, inside: Callable[[Path], bool], read: Path) -> bool:
    """Return True where the file `read` is written as `target`, or in it as a folder, or dropped
    with a model that is there and replaced.
    """
    try:
        if not read.is_file():
            return False
        if os.path.isdir(target):
            return os.path.samefile(target, read.parent) and inside(read)
        if not os.path.exists(target):
            return False
        return any(path.samefile(read) for path in (Path(target), *_companion_files(Path(target))))
    except (OSError, ValueError):  # what no system has as a file's name
        return False


def parameter_name(parameter: click.Parameter) -> str:
    """Return what people call a parameter: an option as it was written, an argument's letters."""
    if isinstance(parameter, click.Option):
        context = click.get_current_context(silent=True)
        given = context.meta.get(WRITTEN, ()) if context is not None else ()
        said = (name for one in given for name in parameter.opts if one.split("=")[0] == name)
        return next(said, max(parameter.opts, key=len))
    return parameter.metavar or (parameter.name or "").upper()
