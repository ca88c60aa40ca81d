"""Subtitles of a transcript: SubRip's .srt, and the W3C's WebVTT."""

from __future__ import annotations

from collections.abc import Iterable

from glnn.generation.speech.speech_to_text import Segment


def srt(segments: Iterable[Segment]) -> str:
    """Return `segments` as the text of an .srt file."""
    parts = (
        f"{i}\n{_time(s.start, ',')} --> {_time(s.end, ',')}\n{_line(s.text)}\n"
        for i, s in enumerate(segments, 1)
    )
    return "\n".join(parts)


def vtt(segments: Iterable[Segment]) -> str:
    """Return `segments` as the text of a .vtt file, in which &, < and > are written as in HTML."""
    parts = ["WEBVTT\n"]
    for s in segments:
        text = _line(s.text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        parts.append(f"{_time(s.start, '.')} --> {_time(s.end, '.')}\n{text}\n")
    return "\n".join(parts)


def _line(text: str) -> str:
    """Return `text` as one line: an empty line would end a subtitle."""
    return " ".join(text.split())


def _time(seconds: float, point: str) -> str:
    """Return hours, minutes, seconds and milliseconds. point: the decimal point of seconds."""
    whole_seconds, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole_seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{point}{milliseconds:03}"
