"""`glnn transcribe`: the text of a recording, by a whisper model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import rich_click as click

from glnn.cli.options import backend_option, gpu_option, output_options, print_json
from glnn.cli.screen import say
from glnn.core.progress_bar import report_work
from glnn.generation.speech.fallback import TEMPERATURES
from glnn.generation.speech.speech_to_text import SpeechToText
from glnn.generation.speech.subtitles import srt, vtt
from glnn.generation.speech.whisper_files import TASKS


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("recording", type=click.Path(path_type=Path))
@backend_option
@gpu_option
@click.option("--language", metavar="CODE", help="As de; unless said, by the first window.")
@click.option(
    "--task", type=click.Choice(TASKS), default=TASKS[0], show_default=True,
    help="The words as they are said, or their translation into English.",
)  # fmt: skip
@click.option(
    "--beams", type=click.IntRange(1, 32), default=1, show_default=True,
    help="Texts that are tried at a time; 1 takes the likeliest token each time.",
)  # fmt: skip
@click.option("--prompt", default="", help="Text that it goes on from, as names that are in it.")
@click.option(
    "--condition-on-previous-text", is_flag=True, help="Tell each window the text before it."
)
@click.option(
    "--temperature", metavar="NUMBERS", default=",".join(map(str, TEMPERATURES)),
    show_default=True,
    help="0 takes the likeliest text; others, by commas, are tried where that repeats itself.",
)  # fmt: skip
@click.option("--words", is_flag=True, help="Find times of words, too, which --json prints.")
@click.option("--srt", "as_srt", is_flag=True, help="Print subtitles as SubRip's.")
@click.option("--vtt", "as_vtt", is_flag=True, help="Print subtitles as WebVTT.")
@output_options
def transcribe(
    model: Path, recording: Path, backend: str, gpu: str | None, language: str | None, task: str,
    beams: int, prompt: str, condition_on_previous_text: bool, temperature: str, words: bool,
    as_srt: bool, as_vtt: bool, wide: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write down what is said in a recording, by a whisper model in a folder.

    Recordings are files of WAV; other formats need the package soundfile.

    \b
    Examples:
      glnn transcribe whisper-tiny.en/ talk.wav
      glnn transcribe whisper-base/ talk.wav --language de --beams 5 --srt > talk.srt
      glnn transcribe whisper-base/ talk.flac --task translate --json
    """
    if as_srt + as_vtt + as_json > 1:
        raise click.UsageError("--srt, --vtt and --json exclude each other")
    try:
        temperatures = [float(one) for one in temperature.split(",")]
    except ValueError:
        raise click.UsageError(
            f"--temperature must be numbers with commas between, got {temperature!r}"
        ) from None
    with report_work("loading", str(model)):
        speech = SpeechToText(model, backend=backend, beams=beams, gpu=gpu)
    start = perf_counter()
    result = speech.transcribe(
        recording, language=language, task=task, words=words, prompt=prompt,
        condition_on_previous_text=condition_on_previous_text, temperature=temperatures,
    )  # fmt: skip
    seconds = perf_counter() - start
    if as_json:
        print_json(
            {
                "text": result.text,
                "language": result.language,
                "duration_s": result.duration,
                "segments": [asdict(segment) for segment in result.segments],
                "backend": speech.backend,
                "transcribed_in_s": seconds,
            }
        )
        return
    if as_srt or as_vtt:
        click.echo((srt if as_srt else vtt)(result.segments), nl=False)
    else:
        for segment in result.segments:
            click.echo(segment.text.strip())
    say(f"{result.duration:.3g} s in {seconds:.3g} s, {result.language}, {speech.backend}")
