"""Options of the verbs that run a model: weights, traces, preprocessing of pictures, drawing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import rich_click as click
from click.shell_completion import CompletionItem

from glnn import data
from glnn.cli.options import FileName, OutputFile, complete_files
from glnn.cli.screen import say
from glnn.images.detection import CONFIDENCE, LAYOUTS, OVERLAP
from glnn.images.files import has_picture_name
from glnn.images.preprocessing import COLOURS, FILTERS
from glnn.model import Model, load
from glnn.model.load import BUILDERS
from glnn.profiling import Trace

Command = TypeVar("Command", bound=Callable[..., Any])


class ModelName(FileName):
    """The type of a parameter that names a model: one of glnn's own, or a file."""

    def __init__(self, *more: str) -> None:
        """more: suffixes of files that the command takes beside .onnx and .json, as ".gguf"."""
        self.endings = (".onnx", ".json", *more)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the name of a model of glnn's, or of a file that may have one."""
        return complete_files(incomplete, self.endings, (*data.MODELS, *BUILDERS))


def weights_option(command: Command) -> Command:
    """`--weights FILE`."""
    return click.option(
        "--weights",
        metavar="FILE",
        type=FileName(),
        help="The model's parameters by PyTorch's names: .safetensors, .npz, .pt or .pth.",
    )(command)


def load_with(source: str, weights: str | None) -> Model:
    """Load the model called `source`, with the parameters in the file `weights` where it is given.

    The file of the model's own parameters may be missing then. Raises ModelError for every fault.
    """
    if weights is None:
        return load(source)
    model = load(source, untrained=True)
    model.load_state_dict(weights)
    return model


def note_random_weights(model: Model, name: str, advice: str = "") -> None:
    """Print a note on standard error where the weights of `model` are random.

    name: the model's on the command line. advice: what to do about it.
    """
    if model.has_random_weights:
        say(f"{name} has random weights{advice}")


def trace_option(command: Command) -> Command:
    """`--trace`."""
    return click.option(
        "--trace",
        metavar="FILE",
        type=OutputFile(),
        help="Write what the host and the GPU did when, in Chrome's trace event format.",
    )(command)


def save_trace(trace: Trace, path: str) -> dict[str, Any]:
    """Write `trace` to `path`, and return its entry for `--json`."""
    trace.save(path)
    return {"trace": {"file": path, "events": trace.events}}


FIELDS = (
    "resize",
    "crop",
    "interpolation",
    "antialias",
    "scale",
    "mean",
    "std",
    "colours",
    "letterbox",
    "invert",
)
OTHERS = ("preprocessing", "labels", "drawn", "show", "confidence", "overlap", "boxes")


@dataclass(frozen=True)
class PictureOptions:
    """The options for pictures on a command line."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields that replace those of the model's Preprocessing, and `invert`."""
    preprocessing: str | None = None
    """The preprocessing in place of the model's: `imagenet`, or a file."""
    labels: str | None = None
    """The file of the classes' names."""
    drawn: str | None = None
    """The folder for pictures with labels drawn on them."""
    show: bool = False
    """Whether a viewer shows the annotated pictures."""
    confidence: float | None = None
    """The least score of a detector's objects."""
    overlap: float | None = None
    """The most overlap of two of them of one class."""
    boxes: str | None = None
    """The layout of a detector's boxes."""

    @property
    def keeps(self) -> bool:
        """True where pictures are needed after their conversion to samples, to be drawn on."""
        return self.show or self.drawn is not None

    @property
    def option(self) -> str | None:
        """The first given option that is for pictures only; None where there is none."""
        names = [f"--{name}" for name in self.fields]
        names += ["--preprocessing"] if self.preprocessing is not None else []
        names += ["--drawn"] if self.drawn is not None else []
        names += ["--show"] if self.show else []
        first = names[0] if names else None
        return {"--antialias": "--no-antialias", "--invert": "--no-invert"}.get(first or "", first)


def picture_options(command: Command) -> Command:
    """Add the options of a `PictureOptions` to `command`, which takes it as `pictures`."""

    @wraps(command)
    def with_pictures(*args: Any, **kwargs: Any) -> Any:
        kwargs["antialias"] = kwargs.pop("no_antialias")
        kwargs["invert"] = kwargs.pop("no_invert")
        values = {name: kwargs.pop(name) for name in FIELDS}
        fields = {name: value for name, value in values.items() if value is not None}
        others = {name: kwargs.pop(name) for name in OTHERS}
        return command(*args, pictures=PictureOptions(fields, **others), **kwargs)

    result: Any = with_pictures
    for option in reversed(_options()):
        result = option(result)
    return result  # type: ignore[no-any-return]


def _options() -> list[Callable[[Any], Any]]:
    return [*_reading_options(), *_detecting_options(), *_drawing_options()]


def _reading_options() -> list[Callable[[Any], Any]]:
    """Options of the preprocessing, and of the classes' names."""
    return [
        click.option(
            "--labels",
            metavar="FILE",
            type=FileName(),
            help="The classes' names: one a line, a .json list or object, or a .csv of number and "
            "name. Without, those in the model's metadata.",
        ),
        click.option(
            "--preprocessing",
            metavar="imagenet|FILE",
            type=FileName(),
            help="What is done to pictures, in place of what the model says: as torchvision does "
            "for ImageNet, or as a .json file of glnn, Hugging Face or timm has it.",
        ),
        click.option(
            "--resize",
            metavar="N|HxW",
            callback=_size,
            help="The shorter side's pixels, or height and width.",
        ),
        click.option(
            "--crop", metavar="N|HxW", callback=_size, help="Which part of the centre is kept."
        ),
        click.option("--interpolation", type=click.Choice(list(FILTERS)), help="How to resize."),
        click.option(
            "--no-antialias",
            is_flag=True,
            callback=_without,
            help="Do not average over what becomes smaller: bilinear as in OpenCV, to 1 of 255.",
        ),
        click.option(
            "--scale",
            type=float,
            help="What the brightest byte becomes: 1, or 255 for numbers as they are.",
        ),
        click.option(
            "--mean",
            metavar="R,G,B",
            callback=_numbers,
            help="What is subtracted after that, in the order of the channels.",
        ),
        click.option(
            "--std", metavar="R,G,B", callback=_numbers, help="By what is divided at last."
        ),
        click.option(
            "--colours",
            type=click.Choice(list(COLOURS), case_sensitive=False),
            help="The channels that the model takes; L is grey.",
        ),
        click.option(
            "--no-invert",
            is_flag=True,
            callback=_without,
            help="Leave a light background, as of X-rays, to a model of one channel that takes "
            "pictures as digits, white on black, where it does not say what it takes.",
        ),
    ]


def _detecting_options() -> list[Callable[[Any], Any]]:
    """Return the options of detectors."""
    part = click.FloatRange(0, 1)
    return [
        click.option(
            "--letterbox",
            type=click.IntRange(0, 255),
            metavar="GREY",
            help="Keep the proportions of the whole picture, in a frame of --resize HxW, and fill "
            "what it leaves with this grey, as detectors of Ultralytics have it with 114.",
        ),
        click.option(
            "--confidence",
            type=part,
            help=f"The least score of a detector's objects; {CONFIDENCE:g} unless given.",
        ),
        click.option(
            "--overlap",
            type=part,
            help="How much an object may overlap a better one of its class, as a part of both "
            f"together (IoU); {OVERLAP:g} unless given.",
        ),
        click.option(
            "--boxes",
            type=click.Choice(LAYOUTS),
            help="The layout of a detector's output, where shape and metadata leave it open.",
        ),
    ]


def _drawing_options() -> list[Callable[[Any], Any]]:
    """Options of drawing."""
    return [
        click.option(
            "--drawn",
            metavar="FOLDER",
            type=OutputFile(folder=lambda name: True, inside=has_picture_name),
            help="Write each picture there, called as it is, with its classes or objects drawn on "
            "it.",
        ),
        click.option(
            "--show", is_flag=True, help="Show the first ten of these in a viewer, on a display."
        ),
    ]


def _without(context: click.Context, parameter: click.Parameter, without: bool) -> bool | None:
    """Return False where the option is given, else None: as the model says."""
    return False if without else None


def _size(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    """Parse a size: 224, or (224, 320) of 224x320."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(p.isascii() and p.isdigit() and len(p) < 9 for p in parts):
        raise click.BadParameter(f"expected pixels, as in 224 or 224x320, got {text!r}")
    sides = tuple(int(part) for part in parts)
    return sides[0] if len(sides) == 1 else sides


def _numbers(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    """Parse one number or several, separated by commas."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        expected = "expected a number, or one for each channel, as in 0.5,0.5,0.5"
        raise click.BadParameter(f"{expected}, got {text!r}") from None
