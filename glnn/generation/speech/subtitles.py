"""Phrases of a recording as subtitles: SubRip's .srt, and WebVTT of the W3C."""

from __future__ import annotations

from collections.abc import Iterable

from glnn.generation.speech.speech_to_text import Segment


def srt(segments: Iterable[Segment]) -> str:
    """Return `segments` as the text of an .srt file."""
    parts = (
        f"{i}\n{_time(one.start, ',')} --> {_time(one.end, ',')}\n{_line(one.text)}\n"
        for i, one in enumerate(segments, 1)
    )
    return "\n".join(parts)


def vtt(segments: Iterable[Segment]) -> str:
    """Return `segments` as the text of a .vtt file, in which &, < and > are written as in HTML."""
    parts = ["WEBVTT\n"]
    for one in segments:
        text = _line(one.text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        parts.append(f"{_time(one.start, '.')} --> {_time(one.end, '.')}\n{text}\n")
    return "\n".join(parts)


def _line(text: str) -> str:
    """Return `text` as one line, since an empty one ends a subtitle."""
    return " ".join(text.split())


def _time(seconds: float, point: str) -> str:
    """Return hours, minutes, seconds and milliseconds."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{point}{milliseconds:03}"
