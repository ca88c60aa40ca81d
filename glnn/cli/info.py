"""`glnn info`: what GL offers on this machine, and the layers of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import rich_click as click

from glnn.backends import NAMES, open_backend
from glnn.backends.backend_choice_cache import CachedChoice
from glnn.backends.gl import GlBackend
from glnn.cli.language_models import refuse_options
from glnn.cli.model_options import ModelName
from glnn.cli.options import device_options, print_json, shape_option
from glnn.cli.screen import Column, Screen, Table, figures, size
from glnn.core.settings import Settings
from glnn.core.trace_spans import duration
from glnn.core.types import MOST, Shape
from glnn.doctor.examination import Certificates
from glnn.errors import DeviceError, ModelError, ShapeError
from glnn.gl import Device, gpus
from glnn.kernels.verdicts import VerdictRecord
from glnn.model import Model, load
from glnn.version import VERSION


@click.command()
@click.argument("model", required=False, type=ModelName())
@click.option("--batch", type=click.IntRange(1, MOST), help="Of MODEL: the number of samples.")
@shape_option
@device_options
def info(
    model: str | None,
    batch: int | None,
    shapes: dict[str, Shape],
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Show the GPU, its limits, the backends that open, and what failed; or the layers of MODEL.

    Of MODEL, each layer's parameters, the shape of its results and its multiply-adds are shown,
    which no device is needed for: as `model.summary()` has them in Python. Sizes that the model
    leaves open are shown by their names, unless --batch or --shape says them.

    \b
    Examples:
      glnn info
      glnn info lenet
      glnn info net.onnx --batch 8 --shape sequence=128
      glnn info --json
      glnn info --gpu llvmpipe --limits es31-minimum
    """
    if model is not None:
        refuse_options(("gpu", "limits"), "models")
        _show_model(load(model), model, shapes, batch, Screen(wide), as_json)
        return
    refuse_options(("batch", "shapes"), "devices")
    report = _report(gpu, limits)
    if as_json:
        print_json(report)
        return
    _show(report, Screen(wide))


def _show_model(
    model: Model,
    name: str,
    shapes: Mapping[str, Shape],
    batch: int | None,
    out: Screen,
    as_json: bool,
) -> None:
    """Show the summary of the model called `name`.

    shapes: of inputs, or sizes by name, each in a tuple.
    """
    inputs = {one.name for one in model.inputs}
    sizes = {
        n: size[0] if n not in inputs and len(size) == 1 else size for n, size in shapes.items()
    }
    try:
        summary = model.summary(sizes, batch=batch)
    except (ModelError, ShapeError) as error:
        raise type(error)(f"{name}: {error}") from None
    if as_json:
        print_json(summary.to_dict())
        return
    texts = Column("layer"), Column("kind", 2), Column("output")
    layers = Table((*texts, *map(figures, summary.heads[3:])))
    for row in summary.rows:
        layers.add(*row)
    out.show(layers, summary.title)
    for line in summary.totals:
        out.say(line)


def _report(gpu: str | None, limits: str | None) -> dict[str, Any]:
    device: Device | None = None
    failure = ""
    attempts: tuple[Any, ...] = ()
    try:
        device = Device(gpu, limits)
        attempts = device.attempts
    except DeviceError as error:
        if gpu is not None:
            raise
        failure, attempts = str(error), getattr(error, "attempts", ())
    backends: dict[str, dict[str, Any]] = {}
    verdicts: list[VerdictRecord] = []
    entries: list[CachedChoice] = []
    for name in NAMES:
        reason = None if name == "cpu" else failure or None
        if device is not None and name != "cpu":
            try:
                opened = open_backend(name, device)
                assert isinstance(opened, GlBackend)
                entries = list(opened.choice_cache.found.values())
                verdicts += [one for one in opened.verdicts.seen() if one.backend == name]
            except DeviceError as error:
                reason = str(error)
        backends[name] = {"ok": reason is None, "reason": reason}
    report = {
        "glnn": VERSION,
        "device": _device(device),
        "limits": device.capabilities.limits() if device else {},
        "backends": backends,
        "kernels": _kernels(verdicts),
        "certificates": _certificates(device),
        "choices": [entry.to_json() for entry in entries],
        "gpus": [asdict(gpu) for gpu in gpus()],
        "attempts": [{"what": a.what, "step": a.step, "error": a.error} for a in attempts],
    }
    if device is not None:
        device.close()
    return report


def _certificates(device: Device | None) -> list[dict[str, Any]]:
    """List the certificates of `glnn doctor` for this device."""
    if device is None:
        return []
    cache = Settings.from_environment().cache
    certificates = Certificates.load(cache, device.capabilities, VERSION).found
    result = (certificates[key] for key in sorted(certificates))
    return [{**asdict(one), "holds": one.holds, "said": one.text} for one in result]


def _kernels(verdicts: list[VerdictRecord]) -> dict[str, Any]:
    """Count the kernels that were verified here, and list those that are not used without
    restriction.
    """
    notable = [
        {
            "backend": one.backend,
            "op": one.op,
            "name": one.kernel,
            "attributes": one.attributes,
            "said": one.notable,
        }
        for one in verdicts
        if one.notable
    ]
    return {"seen": len(verdicts), "notable": notable}


def _device(device: Device | None) -> dict[str, Any] | None:
    if device is None:
        return None
    offers = device.capabilities
    return {
        "renderer": offers.renderer,
        "software": offers.software,
        "vendor": offers.vendor,
        "api": offers.api,
        "version": offers.version_text,
        "glsl": offers.glsl_text,
        "platform": offers.platform,
        "timer_query": offers.timer_query,
        "minimum_limits": offers.minimum,
        "memory_available": device.memory_available(),
        "memory_allowed": Settings.from_environment().memory,
    }


def _describe_kernels(seen: int, notable: int) -> str:
    """Describe how many kernels were verified here, and how many of them are not used without
    restriction.
    """
    if not seen:
        return "no kernel was held against NumPy here yet"
    if seen == 1:
        rest = "it is not used, or in parts" if notable else "it is used, not in parts"
        return f"1 kernel with its attributes was held against NumPy here; {rest}"
    rest = "all of them are used, none in parts"
    if notable:
        rest = f"{notable} of them {'is' if notable == 1 else 'are'} not used, or in parts"
    return f"{seen} kernels with their attributes were held against NumPy here; {rest}"


def _show(report: dict[str, Any], out: Screen) -> None:
    facts = Table((Column("device", least=None), Column("")))
    for name, value in (report["device"] or {"none": "no OpenGL ES context opens"}).items():
        if name == "software":
            value = f"{value}, on the CPU" if value else "no, a GPU"
        facts.add(name, size(value) if name.startswith("memory") else str(value))
    out.show(facts)
    if report["device"] and report["device"]["software"]:
        out.say("A software renderer: OpenGL ES runs on the CPU here, mostly slower than NumPy.\n")
    if report["limits"]:
        bounds = Table((Column("limit"), figures("value")))
        for name, value in report["limits"].items():
            text = " x ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
            bounds.add(name, text)
        out.show(bounds)
    opens = Table((Column("backend"), Column("opens"), Column("why not", least=24)))
    for name, state in report["backends"].items():
        opens.add(name, "yes" if state["ok"] else "no", state["reason"] or "")
    out.show(opens)
    kernels = report["kernels"]
    if report["device"]:
        out.say(f"{_describe_kernels(kernels['seen'], len(kernels['notable']))}\n")
        for certificate in report["certificates"]:
            out.say(f"doctor: {certificate['said']}")
        if not report["certificates"]:
            out.say("glnn doctor has not run here yet")
        out.say("")
    if kernels["notable"]:
        heads = (Column("backend", 2, None), Column("op", least=8), Column("kernel", least=12))
        listed = Table((*heads, Column("what was seen", least=24), Column("with", 1, least=20)))
        for one in kernels["notable"]:
            listed.add(one["backend"], one["op"], one["name"], one["said"], one["attributes"])
        out.show(listed)
    if report["choices"]:
        chosen = Table((Column("auto takes"), Column("for"), Column("inputs", 1), Column("as")))
        for one in report["choices"]:
            times = (f"{k} {duration(seconds)}" for k, seconds in one["seconds"].items())
            chosen.add(one["backend"], one["model"], one["shapes"], ", ".join(times))
        out.show(chosen)
        out.say(
            "for: the model's name in its file; inputs: ranges of sizes, as x=1x2-7 for one row of "
            "two to seven; as: the times of a run that decided\n"
        )
    if report["gpus"]:
        numbers = figures("gpu"), figures("cuda")
        names = Column("renderer"), Column("vendor", 1), Column("why it does not open")
        offered = Table((*numbers, *names))
        for g in report["gpus"]:
            cuda = "" if g["cuda"] is None else str(g["cuda"])
            offered.add(str(g["index"]), cuda, g["renderer"], g["vendor"], g["error"] or "")
        out.show(offered)
    if report["attempts"]:
        tried = Table((Column("tried without success"), Column("step"), Column("error")))
        for a in report["attempts"]:
            tried.add(a["what"], a["step"], a["error"])
        out.show(tried)
