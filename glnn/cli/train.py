"""`glnn train`: a model on data of one's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, TypeVar

import rich_click as click

from glnn.backends import Backend
from glnn.cli.model_options import ModelName
from glnn.cli.options import (
    FileName,
    OutputFile,
    WritingCommand,
    backend_option,
    device_options,
    kernel_option,
    print_json,
)
from glnn.cli.screen import Screen, Table, figures, number, say, say_logged
from glnn.cli.sources import SampleReader
from glnn.core.plural import count_of
from glnn.core.types import MOST
from glnn.data import digits
from glnn.errors import GlnnError, ModelError, ShapeError, extra
from glnn.images.labels import KEY as LABELS
from glnn.images.labels import labels_of, text_of
from glnn.model import Model, TensorInfo, load
from glnn.model.formats import find
from glnn.runtime.options import BackendChoice
from glnn.training import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    BCEWithLogitsLoss,
    ConstantLR,
    CosineAnnealingLR,
    CrossEntropyLoss,
    EarlyStopping,
    History,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    Loss,
    LRScheduler,
    MSELoss,
    OneCycleLR,
    Optimizer,
    RMSprop,
    StepLR,
    Trainer,
)
from glnn.training.dataset import Dataset, read_dataset
from glnn.training.picture_folder import PictureFolder

Command = TypeVar("Command", bound=Callable[..., Any])
LOSSES: Mapping[str, type[Loss]] = {
    "cross-entropy": CrossEntropyLoss,
    "bce": BCEWithLogitsLoss,
    "mse": MSELoss,
    "l1": L1Loss,
    "huber": HuberLoss,
    "kl": KLDivLoss,
}
OPTIMIZERS: Mapping[str, type[Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "sgd": SGD,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
}
SCHEDULES: Mapping[str, Callable[..., LRScheduler]] = {
    "constant": lambda steps, lr, warmup: ConstantLR(1.0, warmup=warmup),
    "step": lambda steps, lr, warmup: StepLR(max(1, -(-steps // 3)), warmup=warmup),
    "cosine": lambda steps, lr, warmup: CosineAnnealingLR(steps, warmup=warmup),
    "one-cycle": lambda steps, lr, warmup: OneCycleLR(lr, steps, warmup=warmup),
}
"""Constructors of the number of all steps, the optimiser's learning rate, and the warm-up steps."""


def recipe_options(command: Command) -> Command:
    """Add the options of `TrainOptions` to a command."""
    options = (
        click.option(
            "--lr", type=float, help="The learning rate: the optimiser's own, if not given."
        ),
        click.option(
            "--optimizer",
            type=click.Choice([*OPTIMIZERS]),
            default="adam",
            show_default=True,
            help="How parameters follow from their gradients.",
        ),
        click.option(
            "--loss",
            type=click.Choice([*LOSSES]),
            default="cross-entropy",
            show_default=True,
            help="What is made less.",
        ),
        click.option(
            "--schedule",
            type=click.Choice([*SCHEDULES]),
            default="constant",
            show_default=True,
            help="Of the learning rate: a tenth after each third of all steps (step), down to 0 "
            "(cosine), or up to it and down again (one-cycle).",
        ),
        click.option(
            "--warmup",
            type=click.IntRange(0),
            default=0,
            metavar="STEPS",
            help="Over how many steps at first the learning rate grows.",
        ),
        click.option("--momentum", type=float, help="Of sgd and rmsprop."),
        click.option("--weight-decay", type=float, help="The optimiser's own, if not given."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class TrainOptions:
    """The options that select loss, optimiser and learning rate."""

    loss: str
    """A name of LOSSES."""
    optimizer: str
    """A name of OPTIMIZERS."""
    schedule: str
    """A name of SCHEDULES."""
    warmup: int
    """The number of steps during which the learning rate grows."""
    lr: float | None
    """The learning rate; None for the optimiser's own, as for the next two."""
    momentum: float | None
    weight_decay: float | None

    def build(self, steps: int) -> tuple[Loss, Optimizer, LRScheduler | None]:
        """Make the loss, the optimiser and the schedule for so many steps.

        Raises GlnnError for numbers that do not suit them.
        """
        optimizer = self._optimizer()
        schedule = None
        if self.schedule != "constant" or self.warmup:
            schedule = SCHEDULES[self.schedule](steps, optimizer.lr, self.warmup)
        return LOSSES[self.loss](), optimizer, schedule

    def _optimizer(self) -> Optimizer:
        kind = OPTIMIZERS[self.optimizer]
        known = {one.name for one in fields(kind)}
        arguments = {
            name: value
            for name in ("lr", "momentum", "weight_decay")
            if (value := getattr(self, name)) is not None
        }
        for name in arguments:
            if name not in known:
                option = f"--{name.replace('_', '-')}"
                raise GlnnError(f"{option}: {self.optimizer} has none")
        return kind(**arguments)


SHOWN = 30  # epochs of a table, names of classes
PLOTS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class TrainingFiles:
    """The files that training writes."""

    output: str
    """The trained model."""
    checkpoint: str | None
    """The checkpoint, from which training can be resumed."""
    plot: str | None
    """Loss and accuracy over the epochs."""
    resume: bool
    """Whether training goes on from the checkpoint."""
    every: int | None
    """Steps from one checkpoint to the next."""

    def check(self) -> None:
        """Raise GlnnError before training where a file could not be written after it."""
        if self.checkpoint is None and self.resume:
            raise GlnnError("--resume: expected --checkpoint FILE to go on from, got none")
        if self.checkpoint is None and self.every:
            raise GlnnError("--every: expected --checkpoint FILE to write, got none")
        find(self.output, None)
        if self.plot is not None:
            if Path(self.plot).suffix not in PLOTS:
                raise GlnnError(f"--plot: expected a file of {', '.join(PLOTS)}, got {self.plot}")
            if find_spec("matplotlib") is None:
                raise GlnnError(f"--plot needs matplotlib: {extra('bench')}")

    def try_model(self, model: Model) -> None:
        """Raise ModelError before training where the output could not be written: its format cannot
        express `model`, or the disk is full.
        """
        output = Path(self.output)
        with TemporaryDirectory(prefix=".", dir=output.parent) as folder:
            try:
                model.save(Path(folder, output.name))
            except ModelError as error:
                message = str(error).replace(f"{folder}/", "")
                raise ModelError(f"--output: {message}") from None


@dataclass(frozen=True)
class TrainingReport:
    """The outcome of a training: model, history and files."""

    model: str
    """The model's name."""
    backend: Backend
    """The backend that trained."""
    choice: BackendChoice | None
    """The choice of "auto", with its times; None where a backend was named."""
    history: History
    """The epochs."""
    samples: tuple[int, int]
    """The number of training samples, and of those held out."""
    seconds: float
    """The time it took."""
    files: TrainingFiles
    """The files that were written."""
    classes: tuple[str, ...] = ()
    """Names of classes that the data gave."""

    @property
    def device(self) -> str:
        """The name of the GPU, as GL reports it."""
        device = self.backend.device
        return device.capabilities.renderer if device else "CPU (NumPy)"

    def write(self, model: Model) -> None:
        """Write `model`, which was trained, and the plot."""
        if not isfinite(self.history[-1].loss):
            say(
                f"the loss is {self.history[-1].loss} in the end: a lower --lr may help, unless "
                "DATA has numbers that are not finite"
            )
        model.save(self.files.output)
        if self.files.plot is not None:
            self.history.plot(self.files.plot)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists and numbers."""
        rows = self.history.to_json()
        names = ("loss", "accuracy", "validation_loss", "validation_accuracy")
        return {
            "model": self.model,
            "backend": self.backend.name,
            "device": self.device,
            "choice": self.choice.to_json() if self.choice else None,
            "samples": self.samples[0],
            "validation_samples": self.samples[1],
            "epochs": len(rows),
            "steps": rows[-1]["step"],
            **{name: rows[-1][name] for name in names},
            "seconds": self.seconds,
            "classes": list(self.classes) or None,
            "output": self.files.output,
            "checkpoint": self.files.checkpoint,
            "plot": self.files.plot,
            "history": rows,
        }

    def show(self, out: Screen) -> None:
        """Print a row for each epoch, and what was written."""
        rows = self.history.to_json()
        ranks = {"loss": 0, "accuracy": 0, "validation_loss": 1, "validation_accuracy": 0}
        named = [n for n in ranks if any(row[n] is not None for row in rows)]
        shown = [figures(n.replace("_", " "), ranks[n]) for n in named]
        heads = (figures("step", 3), *shown, figures("learning rate", 4), figures("s", 2))
        table = Table((figures("epoch"), *heads))
        for row in rows[-SHOWN:]:
            cells = [_percent(row[n]) if "accuracy" in n else number(row[n]) for n in named]
            rate, seconds = number(row["learning_rate"]), number(row["seconds"])
            table.add(str(row["epoch"]), str(row["step"]), *cells, rate, seconds)
        if len(rows) > SHOWN:
            out.say(f"{count_of(len(rows) - SHOWN, 'epoch')} ... (all of them with --json)")
        out.show(table)
        held_out = f", {self.samples[1]} held out" if self.samples[1] else ""
        samples = count_of(self.samples[0], "sample")
        out.say(f"{samples}{held_out} on {self.backend.name}: {self.device}")
        if self.choice is not None:
            out.say(f"auto takes {self.choice}")
        if self.classes:
            listed = ", ".join(name or "-" for name in self.classes[:SHOWN])
            others = len(self.classes) - SHOWN
            out.say(f"classes: {listed}{f' and {others} more' if others > 0 else ''}")
        for what in ("output", "checkpoint", "plot"):
            if path := getattr(self.files, what):
                out.say(f"{what}: {path}")


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.2f}%"


T = TypeVar("T")
DIGITS = "digits"
"""The name that DATA has for the bundled digits."""
SHARE = 0.2
"""The part of each class that is held out of a folder of pictures without validation data."""


@dataclass(frozen=True)
class TrainingSetup:
    """The options that select data, length and starting point of a training."""

    epochs: int
    """The number of epochs."""
    batch: int
    """Samples of a step."""
    seed: int
    """The seed of the order of samples, of the held-out part, of dropout, and of new parameters."""
    freeze: tuple[str, ...]
    """Parameters that stay as they are."""
    validation: str | None
    """The validation data: a part of DATA, a file, or the test samples of DATA."""
    early_stopping: int | None
    """The number of epochs without improvement after which training ends."""
    from_scratch: bool
    """Whether the parameters are initialised anew."""

    def model(self, name: str) -> Model:
        """Load the model to train. Raises ModelError where it cannot be trained."""
        result = load(name, untrained=self.from_scratch)
        if len(result.inputs) != 1:
            raise ModelError(f"{name} has {len(result.inputs)} inputs, glnn train takes one")
        if isinstance(batch := next(iter(result.inputs[0].shape), 0), int):
            raise ModelError(f"{name} takes {batch} samples a run: training needs an open batch")
        if self.from_scratch:
            result.begin(self.seed)
        return result

    def data(self, name: str, model: Model) -> tuple[Dataset, Dataset | None]:
        """Read the training and validation samples for the input of `model`.

        Raises ModelError where a file is malformed, ShapeError where samples do not fit.
        """
        folder = _picture_folder(name, model)
        samples, held_out = (
            _read_pictures(folder, model) if folder else _read(name, model.inputs[0])
        )
        part = _parse_number(self.validation)
        if folder is not None and held_out is None and self.validation is None:
            part = SHARE
        if part is not None and not 0 <= part < 1:
            raise GlnnError(f"--validation: expected a part from 0 to 1 or data, got {part}")
        if part is not None:
            split = samples.split if folder is None else samples.split_by_class
            samples, held_out = split(part, self.seed) if part else (samples, None)
        elif self.validation is not None:
            classes = samples.classes if folder else ()
            other = _picture_folder(self.validation, model, classes)
            held_out, _ = (
                _read_pictures(other, model) if other else _read(self.validation, model.inputs[0])
            )
        return samples, held_out

    def early_stopping_callbacks(self, validation: Dataset | None) -> list[EarlyStopping]:
        """Return the callback that ends training early; none unless --early-stopping is given."""
        if self.early_stopping is None:
            return []
        return [EarlyStopping("validation_loss" if validation else "loss", self.early_stopping)]


def _default_output(parameters: Mapping[str, Any]) -> str:
    """Return the file of the trained model where the command's `parameters` have none."""
    path = Path(parameters["model"])
    return f"{path.stem}-trained{'.onnx' if path.suffix == '.onnx' else '.json'}"


@click.command(cls=WritingCommand)
@click.argument("model", type=ModelName())
@click.argument("data", type=FileName())
@click.option(
    "--epochs",
    type=click.IntRange(1, MOST),
    default=5,
    show_default=True,
    help="How often all samples are gone through.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, MOST),
    default=64,
    show_default=True,
    help="Samples of a step.",
)
@recipe_options
@click.option(
    "--freeze",
    multiple=True,
    metavar="NAME",
    help="Parameters that stay as they are: a layer (c1), one of its own (c1.weight), or a pattern "
    "(c*); may be repeated.",
)
@click.option(
    "--validation",
    metavar="PART|DATA",
    help="What is held out: a part of DATA, as 0.2, or other data; 0 for none. Without it, what "
    "DATA itself holds apart, of pictures in folders else 0.2 of each class.",
)
@click.option(
    "--early-stopping",
    type=click.IntRange(1),
    metavar="N",
    help="Stop after N epochs without a lower loss of what is held out, and take the best.",
)
@click.option("--from-scratch", is_flag=True, help="Begin with new parameters, by --seed.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Of the order of samples, of what is held out, of dropout, and of new parameters.",
)
@click.option(
    "--output",
    metavar="FILE",
    type=OutputFile(replaces="model", unnamed=_default_output),
    help="Write the trained model there, as .json or .onnx: as NAME-trained in this folder, if not "
    "given.",
)
@click.option(
    "--checkpoint",
    metavar="FILE",
    type=OutputFile(resumed="resume"),
    help="Keep there what training goes on from (.npz).",
)
@click.option(
    "--every",
    type=click.IntRange(1),
    metavar="STEPS",
    help="Steps between two checkpoints: an epoch, if not given.",
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoint, where there is one.")
@click.option(
    "--plot",
    metavar="FILE",
    type=OutputFile(),
    help="Draw loss and accuracy (.png, .svg, .pdf).",
)
@backend_option
@kernel_option
@device_options
def train(
    model: str,
    data: str,
    backend: str,
    kernels: dict[str, str],
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train MODEL, a bundled name (lenet), a .json or an .onnx file, with DATA.

    DATA is an .npz file with the arrays x and y, or images and labels; a folder of IDX files as
    MNIST's (train-images-idx3-ubyte, ..., .gz too); a folder that has a folder of pictures for each
    class, of which a fifth is held out; or `digits`, the bundled ones. Bytes are scaled to 0..1.
    Ctrl-C ends it after a last checkpoint; the same command with --resume goes on from there. MODEL
    itself stays as it is: the trained one is another file.

    \b
    Examples:
      glnn train lenet-untrained digits --epochs 30 --lr 0.003 --validation 0.2
      glnn train net.json mnist/ --optimizer sgd --momentum 0.9 --output net.onnx
      glnn train net.json animals/ --validation 0.1       (animals/cat/1.jpg, animals/dog/7.jpg)
      glnn train net.onnx mine.npz --freeze 'c*' --validation 0.2 --json
      glnn train net.json mnist/ --epochs 50 --checkpoint net.npz --every 500
      glnn train net.json mnist/ --epochs 50 --checkpoint net.npz --resume
    """
    _say_warnings()
    files = _dataclass_of(TrainingFiles, options)
    setup = _dataclass_of(TrainingSetup, options)
    loaded = setup.model(model)
    samples, held_out = setup.data(data, loaded)
    files.check()
    files.try_model(loaded)
    steps = setup.epochs * -(-len(samples) // setup.batch)
    loss, optimizer, schedule = _dataclass_of(TrainOptions, options).build(steps)
    trainer = Trainer(
        *(loaded, loss, optimizer, backend),
        gpu=gpu,
        limits=limits,
        kernels=kernels,
        frozen=setup.freeze,
        schedule=schedule,
        seed=setup.seed,
    )
    history, seconds = _fit(trainer, setup, files, samples, held_out, not as_json)
    counts = len(samples), len(held_out) if held_out else 0
    backend_used = trainer.backend, trainer.choice
    report = TrainingReport(
        loaded.name, *backend_used, history, counts, seconds, files, samples.classes
    )
    report.write(_with_class_names(trainer.model, samples.classes))
    if as_json:
        print_json(report.to_json())
    else:
        report.show(Screen(wide))


def _fit(
    trainer: Trainer,
    setup: TrainingSetup,
    files: TrainingFiles,
    training: Dataset,
    validation: Dataset | None,
    shown: bool,
) -> tuple[History, float]:
    """Train, and return the history and the seconds that it took."""
    began = perf_counter()
    try:
        history = trainer.fit(
            training.x,
            training.y,
            setup.epochs,
            setup.batch,
            validation=(validation.x, validation.y) if validation else None,
            callbacks=setup.early_stopping_callbacks(validation),
            checkpoint=files.checkpoint,
            every=files.every,
            resume=files.resume,
            progress=None if shown else False,
        )
    except KeyboardInterrupt:
        if files.checkpoint is not None:
            saved = f"{files.checkpoint} has the first {count_of(trainer.steps, 'step')}"
            say(f"{saved}: the same command with --resume goes on from there")
        raise
    return history, perf_counter() - began


def _read(name: str, info: TensorInfo) -> tuple[Dataset, Dataset | None]:
    """Read the data called `name` for the input `info`; return training and test samples."""
    if name == DIGITS and not Path(name).exists():
        training, test = Dataset(*digits()), None
    else:
        training, test = read_dataset(name)
    try:
        return training.fitting(info), test and test.fitting(info)
    except ShapeError as error:
        raise ShapeError(f"{name}: {error}") from None


def _picture_folder(name: str, model: Model, classes: tuple[str, ...] = ()) -> PictureFolder | None:
    """Return `name` as a folder with a folder for each class; None where it is no folder.

    classes: the names that it must have, by their numbers; empty for any.
    """
    if not Path(name).is_dir():
        return None
    sizes = model.tensors[next(iter(model.outputs))].shape
    outputs = sizes[1] if len(sizes) == 2 and isinstance(sizes[1], int) else None
    return PictureFolder.find(name, outputs, labels_of(model.metadata), classes)


def _read_pictures(folder: PictureFolder, model: Model) -> tuple[Dataset, Dataset | None]:
    """Read the pictures of a folder as `glnn run` does; print which cannot be read."""
    reader = SampleReader.for_model(model, {}, None)
    result = folder.read(lambda path: reader.read(path, False)[0])
    for one in folder.failed:
        message = one["error"] if one["in"] in one["error"] else f"{one['in']}: {one['error']}"
        say(f"left out: {message}")
    return result


def _with_class_names(model: Model, classes: tuple[str, ...]) -> Model:
    """Add the names of the classes to the model's metadata, where each of its outputs has one."""
    sizes = model.tensors[next(iter(model.outputs))].shape
    if not classes or len(sizes) != 2 or sizes[1] != len(classes) or not all(classes):
        return model
    return replace(model, metadata={**model.metadata, LABELS: text_of(classes)})


def _dataclass_of(kind: type[T], options: dict[str, Any]) -> T:
    """Make a dataclass of the `options` that have the names of its fields."""
    return kind(**{one.name: options[one.name] for one in fields(kind)})  # type: ignore[arg-type]


def _say_warnings() -> None:
    """Print training's warnings, as of a checkpoint of other options, also without --verbose."""
    context = click.get_current_context()
    if context is not None and not logging.getLogger("glnn").isEnabledFor(logging.INFO):
        context.call_on_close(say_logged(logging.WARNING))


def _parse_number(text: str | None) -> float | None:
    """Parse a number; return None where `text` is none."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
