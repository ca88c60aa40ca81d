"""`glnn generate` and `glnn chat`: text by a language model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import rich_click as click

from glnn.cli.options import (
    INTERRUPTED,
    backend_option,
    complete_gguf,
    gpu_option,
    output_options,
    print_json,
)
from glnn.cli.screen import say
from glnn.core.plural import count_of
from glnn.core.progress_bar import report_work
from glnn.errors import ModelError, shown
from glnn.generation.generation import Generation
from glnn.generation.language_model import LanguageModel

Command = Callable[..., Any]
HELP = "/help shows this, /reset forgets the conversation, /exit or Ctrl-D ends"


def _model_options(command: Command) -> Command:
    """Add the model and the options of `LanguageModel` and `generate`."""
    options: list[Callable[[Command], Command]] = [
        click.argument("model", type=click.Path(path_type=Path), shell_complete=complete_gguf),
        backend_option,
        gpu_option,
        click.option("--context", type=click.IntRange(1), help="The most tokens in all."),
        click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True),
        click.option(
            "--temperature", type=float, default=0.0, show_default=True,
            help="0 takes the likeliest token.",
        ),
        click.option("--top-k", type=int, default=0, help="Of so many likeliest; 0 of all."),
        click.option("--top-p", type=float, default=1.0, help="Of those that make this share."),
        click.option("--min-p", type=float, default=0.0, help="Of those at least so likely."),
        click.option(
            "--repetition-penalty", type=float, default=1.0,
            help="Above 1 makes tokens that are in the text less likely.",
        ),
        click.option("--seed", type=int, help="Of the random numbers."),
        output_options,
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _load(model: Path, backend: str, gpu: str | None, context: int | None) -> LanguageModel:
    with report_work("loading", str(model)):
        return LanguageModel(model, backend=backend, context=context, gpu=gpu)


class _Meter:
    """Prints pieces of text as they come, and measures tokens a second."""

    def __init__(self, shown: bool) -> None:
        self._shown, self.text, self._tokens = shown, "", 0
        self.start = perf_counter()
        self.first: float | None = None

    def consume(self, generation: Generation) -> None:
        """Print and count pieces up to the end of `generation`, or until the user interrupts."""
        try:
            for piece in generation:
                self.first = self.first or perf_counter()
                if self._shown:
                    click.echo(piece, nl=False)
        finally:
            generation.close()
            self.text, self._tokens = generation.text, len(generation.tokens)
        if self._shown:
            click.echo()

    def summary(self) -> dict[str, Any]:
        """Return tokens, tokens a second after the first, and seconds to the first."""
        count = self._tokens
        first = self.first or perf_counter()
        seconds = perf_counter() - first
        rate = (count - 1) / seconds if count > 1 and seconds > 0 else None
        return {"tokens": count, "tokens_per_s": rate, "first_token_s": first - self.start}


def _summary_text(summary: dict[str, Any], backend: str) -> str:
    rate = summary["tokens_per_s"]
    shown = "" if rate is None else f", {rate:.3g} tokens/s"
    first = f"first after {summary['first_token_s']:.2g} s"
    return f"{count_of(summary['tokens'], 'token')}{shown}, {first}, {backend}"


@click.command()
@_model_options
@click.option("--prompt", "-p", required=True, help="The text to continue; - reads standard input.")
@click.option("--stop", multiple=True, help="A text that ends the continuation.")
def generate(
    model: Path, backend: str, gpu: str | None, context: int | None, prompt: str,
    stop: tuple[str, ...], wide: bool, as_json: bool, **sampling: Any,
) -> int:  # fmt: skip
    """Continue a text by a language model, a GGUF file or a folder of Hugging Face's.

    \b
    Examples:
      glnn generate model.gguf -p "The capital of France is"
      glnn generate model.gguf -p - --max-tokens 100 < text.txt
      glnn generate model.gguf -p "Once" --temperature 0.8 --top-p 0.95 --seed 1 --json
    """
    text = _standard_input(sys.stdin.read) if prompt == "-" else prompt
    lm = _load(model, backend, gpu, context)
    meter, code = _Meter(shown=not as_json), 0
    try:
        meter.consume(lm.start(text, stop=stop, **sampling))
    except KeyboardInterrupt:
        if not as_json:
            raise
        code = INTERRUPTED
    summary = meter.summary()
    if as_json:
        interrupted = {"interrupted": True} if code else {}
        print_json({"text": meter.text, "backend": lm.backend, **summary, **interrupted})
    else:
        say(_summary_text(summary, lm.backend))
    return code


@click.command()
@_model_options
@click.option("--system", help="What the model is told to be.")
def chat(
    model: Path, backend: str, gpu: str | None, context: int | None, system: str | None,
    wide: bool, as_json: bool, **sampling: Any,
) -> None:  # fmt: skip
    """Talk with a language model, a GGUF file or a folder of Hugging Face's, line by line.

    With --json a line of JSON is printed for each answer.

    \b
    Examples:
      glnn chat model.gguf
      glnn chat model.gguf --system "Answer in one sentence." --temperature 0.7
      echo "What is 2 + 2?" | glnn chat model.gguf
    """
    lm = _load(model, backend, gpu, context)
    initial = [{"role": "system", "content": system}] if system else []
    messages = list(initial)
    interactive = sys.stdin.isatty() and not as_json
    if interactive:
        say(f"{lm}: {HELP}")
    while (line := _read_line(interactive)) is not None:
        if line in ("/exit", "/quit"):
            break
        if line == "/help":
            say(HELP)
        elif line == "/reset":
            messages = list(initial)
        elif line:
            messages.append({"role": "user", "content": line})
            try:
                answer = _answer(lm, messages, as_json, sampling)
            except ModelError as error:
                if not interactive:
                    raise
                say(f"{error}; /reset begins anew")
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})


def _read_line(interactive: bool) -> str | None:
    """Return the user's next line; None at the end of the input."""
    if interactive:
        try:
            return input("> ").strip()
        except EOFError:
            return None
    line = _standard_input(sys.stdin.readline)
    return line.strip() if line else None


def _standard_input(read: Callable[[], str]) -> str:
    """Return what `read` reads of standard input. Raises ModelError where that is no text."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise ModelError(
            f"standard input must be {error.encoding}, got {shown(error.object[error.start :][:8])}"
        ) from None


def _answer(
    lm: LanguageModel, messages: list[dict[str, str]], as_json: bool, sampling: dict[str, Any]
) -> str:
    """Print the answer to `messages`. Ctrl-C ends the answer, not the conversation."""
    meter = _Meter(shown=not as_json)
    interrupted = {}
    try:
        meter.consume(lm.start(lm.tokenize_chat(messages), **sampling))
    except KeyboardInterrupt:
        interrupted = {"interrupted": True}
        if not as_json:
            click.echo()
    summary = meter.summary()
    if as_json:
        document = {"text": meter.text, "backend": lm.backend, **summary, **interrupted}
        print_json(document, indent=None)
    else:
        say(_summary_text(summary, lm.backend))
    return meter.text
