"""`glnn serve`: an OpenAI-compatible server of a language model."""

from __future__ import annotations

import signal
from importlib import import_module
from pathlib import Path
from types import ModuleType

import rich_click as click

from glnn.cli.options import backend_option, complete_gguf, gpu_option, output_options, print_json
from glnn.cli.screen import say
from glnn.core.progress_bar import report_work
from glnn.core.settings import Settings
from glnn.errors import GlnnError, extra
from glnn.generation.language_model import MOST_SEQUENCES, LanguageModel

LOOPBACK = ("127.", "[::1]", "localhost")
WARM_UP = 2  # tokens, one of them behind a prompt


@click.command()
@click.argument("model", type=click.Path(path_type=Path), shell_complete=complete_gguf)
@backend_option
@gpu_option
@click.option("--context", type=click.IntRange(1), help="The most tokens of a request in all.")
@click.option(
    "--sequences",
    type=click.IntRange(1, MOST_SEQUENCES),
    default=4,
    show_default=True,
    help="Requests that are computed together; each has a cache of its own.",
)
@click.option(
    "--queue",
    "most_waiting",
    type=click.IntRange(0),
    default=64,
    show_default=True,
    help="Requests that may wait for these; more are refused.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="0 takes one that is free.",
)
@click.option("--api-key", help="What clients must send; GLNN_API_KEY's unless given.")
@click.option("--name", help="Name of the model; its file's unless given.")
@output_options
def serve(
    model: Path, backend: str, gpu: str | None, context: int | None, sequences: int,
    most_waiting: int, host: str, port: int, api_key: str | None, name: str | None, wide: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Answer OpenAI's clients by the language model in a GGUF file, until Ctrl-C.

    It has /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models and /health. With
    --json one object is printed once it listens.

    \b
    Examples:
      glnn serve model.gguf
      glnn serve model.gguf --port 8000 --sequences 8 --context 2048
      GLNN_API_KEY=secret glnn serve model.gguf --host 0.0.0.0
      curl 127.0.0.1:8080/v1/completions -d '{"prompt": "Once upon", "max_tokens": 20}'
    """
    app = _server()
    key = api_key or Settings.from_environment().api_key
    listener = app.bind(host, port)
    try:
        with report_work("loading", str(model)):
            lm = LanguageModel(
                model, backend=backend, context=context, sequences=sequences, gpu=gpu
            )
        with report_work("preparing", str(model)):  # kernels are chosen and compiled
            lm.generate([0], max_tokens=WARM_UP)
        server = app.Server(lm, listener, name=name, api_key=key, most_waiting=most_waiting)
    except BaseException:
        listener.close()
        raise
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as by Ctrl-C
    try:
        with server:
            if key is None and not server.url.removeprefix("http://").startswith(LOOPBACK):
                say("whoever reaches this machine may use the model: --api-key keeps others out")
            if as_json:
                facts = {"context": lm.context, "sequences": sequences, "queue": most_waiting}
                print_json({"url": server.url, "model": str(model), "backend": lm.backend, **facts})
            say(f"{lm} at {server.url}/v1; Ctrl-C ends")
            server.wait()
    except KeyboardInterrupt:
        say("stopped")


def _server() -> ModuleType:
    """Import the server, whose packages need not be installed."""
    try:
        return import_module("glnn.generation.server.app")
    except ModuleNotFoundError as missing:
        name = missing.name or ""
        if name.startswith("glnn"):
            raise
        raise GlnnError(f"a server needs the package {name}: {extra('serve')}") from None
