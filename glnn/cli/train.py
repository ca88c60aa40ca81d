"""`glnn train`: a model on data of one's own."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import rich_click as click

from glnn.cli.options import backend_option, device_options, kernel_option, print_json
from glnn.cli.output_files import OutputFile, WritingCommand
from glnn.cli.reader import Reader
from glnn.cli.screen import Screen, say, say_logged
from glnn.cli.train_options import Recipe, recipe_options
from glnn.cli.trained import Files, Trained
from glnn.data import digits
from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.images.labels import KEY as LABELS
from glnn.images.labels import labels_of, text_of
from glnn.model import Model, TensorInfo, load
from glnn.training import EarlyStopping, History, Trainer
from glnn.training.dataset import Dataset, read_dataset
from glnn.training.picture_folder import PictureFolder

T = TypeVar("T")
DIGITS = "digits"
"""What DATA is called for the bundled digits."""
SHARE = 0.2
"""The part of each class that is held out of a folder of pictures, unless it has them apart."""
MOST = 2**31 - 1  # what GL and NumPy count


@dataclass(frozen=True)
class Course:
    """On what, for how long and from where on a model is trained."""

    epochs: int
    """How often all samples are gone through."""
    batch: int
    """Samples of a step."""
    seed: int
    """Of the order of samples, of what is held out, of dropout, and of new parameters."""
    freeze: tuple[str, ...]
    """Parameters that stay as they are."""
    validation: str | None
    """What is held out: a part of DATA, a file, or what DATA itself holds apart."""
    early_stopping: int | None
    """For how many epochs it may not become better."""
    from_scratch: bool
    """Whether the parameters begin anew."""

    def model(self, name: str) -> Model:
        """The model to train. Raises ModelError where it cannot be trained so."""
        found = load(name, untrained=self.from_scratch)
        if len(found.inputs) != 1:
            raise ModelError(f"{name} has {len(found.inputs)} inputs, glnn train takes one")
        if isinstance(batch := next(iter(found.inputs[0].shape), 0), int):
            raise ModelError(f"{name} takes {batch} samples a run: training needs an open batch")
        if self.from_scratch:
            found.begin(self.seed)
        return found

    def data(self, name: str, model: Model) -> tuple[Dataset, Dataset | None]:
        """The samples to train with, and those held out, as the input of `model`.

        Raises ModelError where a file is malformed, ShapeError where samples do not fit.
        """
        folder = _picture_folder(name, model)
        found, held = _read_pictures(folder, model) if folder else _read(name, model.inputs[0])
        part = _number(self.validation)
        if folder is not None and held is None and self.validation is None:
            part = SHARE
        if part is not None and not 0 <= part < 1:
            raise GlnnError(f"--validation: expected a part from 0 to 1 or data, got {part}")
        if part is not None:
            split = found.split if folder is None else found.split_by_class
            found, held = split(part, self.seed) if part else (found, None)
        elif self.validation is not None:
            known = found.classes if folder else ()
            other = _picture_folder(self.validation, model, known)
            held, _ = (
                _read_pictures(other, model) if other else _read(self.validation, model.inputs[0])
            )
        return found, held

    def stopping(self, held: Dataset | None) -> list[EarlyStopping]:
        """What ends training early, if anything does."""
        if self.early_stopping is None:
            return []
        return [EarlyStopping("validation_loss" if held else "loss", self.early_stopping)]


@click.command(cls=WritingCommand)
@click.argument("model")
@click.argument("data")
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
    type=OutputFile(replaces="model"),
    help="Write the trained model there, as .json or .onnx: as NAME-trained in this folder, if not "
    "given.",
)
@click.option(
    "--checkpoint",
    metavar="FILE",
    type=OutputFile(),
    help="Keep there what training goes on from (.npz).",
)
@click.option(
    "--every",
    type=click.IntRange(1),
    metavar="STEPS",
    help="Steps between two checkpoints: an epoch, if not given.",
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoint, where there is one.")
@click.option("--overwrite", is_flag=True, help="Replace files that are there already.")
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
    options["output"] = options["output"] or _beside(model)
    files, course = _of(Files, options), _of(Course, options)
    loaded = course.model(model)
    given, held = course.data(data, loaded)
    files.check()
    files.try_model(loaded)
    steps = course.epochs * -(-len(given) // course.batch)
    loss, optimizer, schedule = _of(Recipe, options).made(steps)
    trainer = Trainer(
        *(loaded, loss, optimizer, backend),
        gpu=gpu,
        limits=limits,
        kernels=kernels,
        frozen=course.freeze,
        schedule=schedule,
        seed=course.seed,
    )
    history, seconds = _fit(trainer, course, files, given, held, not as_json)
    counts = len(given), len(held) if held else 0
    where = trainer.backend, trainer.choice
    trained = Trained(loaded.name, *where, history, counts, seconds, files, given.classes)
    trained.write(_named(trainer.model, given.classes))
    if as_json:
        print_json(trained.to_json())
    else:
        trained.show(Screen(wide))


def _fit(
    trainer: Trainer,
    course: Course,
    files: Files,
    given: Dataset,
    held: Dataset | None,
    shown: bool,
) -> tuple[History, float]:
    """Train; how that went, and the seconds that it took."""
    began = perf_counter()
    try:
        history = trainer.fit(
            given.x,
            given.y,
            course.epochs,
            course.batch,
            validation=(held.x, held.y) if held else None,
            callbacks=course.stopping(held),
            checkpoint=files.checkpoint,
            every=files.every,
            resume=files.resume,
            progress=None if shown else False,
        )
    except KeyboardInterrupt:
        if files.checkpoint is not None:
            has = f"{files.checkpoint} has the first {trainer.steps} steps"
            say(f"{has}: the same command with --resume goes on from there")
        raise
    return history, perf_counter() - began


def _read(name: str, info: TensorInfo) -> tuple[Dataset, Dataset | None]:
    """The samples in the data so called as the input `info`, and those that they hold apart."""
    if name == DIGITS and not Path(name).exists():
        found, held = Dataset(*digits()), None
    else:
        found, held = read_dataset(name)
    try:
        return found.fitting(info), held and held.fitting(info)
    except ShapeError as error:
        raise ShapeError(f"{name}: {error}") from None


def _picture_folder(name: str, model: Model, classes: tuple[str, ...] = ()) -> PictureFolder | None:
    """Find the folder of class folders that `name` is; None where it is none.

    classes: those that it must be of, by their numbers; empty for any.
    """
    if not Path(name).is_dir():
        return None
    sizes = model.tensors[next(iter(model.outputs))].shape
    outputs = sizes[1] if len(sizes) == 2 and isinstance(sizes[1], int) else None
    return PictureFolder.find(name, outputs, labels_of(model.metadata), classes)


def _read_pictures(folder: PictureFolder, model: Model) -> tuple[Dataset, Dataset | None]:
    """Read the pictures of a folder as `glnn run` does; say which cannot be read."""
    reader = Reader.of(model, {}, None)
    found = folder.read(lambda path: reader.read(path, False)[0])
    for one in folder.failed:
        said = one["error"] if one["in"] in one["error"] else f"{one['in']}: {one['error']}"
        say(f"left out: {said}")
    return found


def _named(model: Model, classes: tuple[str, ...]) -> Model:
    """Keep the names of the classes with a model, where each of its outputs has one."""
    sizes = model.tensors[next(iter(model.outputs))].shape
    if not classes or len(sizes) != 2 or sizes[1] != len(classes) or not all(classes):
        return model
    return replace(model, metadata={**model.metadata, LABELS: text_of(classes)})


def _of(kind: type[T], options: dict[str, Any]) -> T:
    """What `options` has for the fields of a dataclass."""
    return kind(**{one.name: options[one.name] for one in fields(kind)})  # type: ignore[arg-type]


def _say_warnings() -> None:
    """Say what training warns of, as of a checkpoint of other options, also without --verbose."""
    context = click.get_current_context()
    if context is not None and not logging.getLogger("glnn").isEnabledFor(logging.INFO):
        context.call_on_close(say_logged(logging.WARNING))


def _beside(model: str) -> str:
    """The file of the trained model where none is named."""
    path = Path(model)
    return f"{path.stem}-trained{'.onnx' if path.suffix == '.onnx' else '.json'}"


def _number(text: str | None) -> float | None:
    """What `text` says; None where that is no number."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
