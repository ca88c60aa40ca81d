"""What holds of every file in Chrome's trace event format that glnn writes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

ROUNDED = 2e-3  # microseconds


def check(document: Any) -> list[dict[str, Any]]:
    """The events of `document` that take time: named processes and threads, in order, nested."""
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    events = document["traceEvents"]
    names = [e for e in events if e["ph"] == "M"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(names) + len(spans) == len(events) and events[: len(names)] == names
    for event in names:
        assert event["name"] in ("process_name", "process_labels", "thread_name")
        assert all(type(event[key]) is int for key in ("pid", "tid"))
    for event in spans:
        assert set(event) == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
        assert event["ts"] >= 0 and event["dur"] >= 0 and event["name"]
        assert event["cat"] in ("plan", "compile", "transfer", "host", "wait", "step")
    assert all(a["ts"] <= b["ts"] for a, b in pairwise(spans)) and spans[0]["ts"] == 0
    processes = [e["pid"] for e in names if e["name"] == "process_name"]
    assert len(processes) == len(set(processes)) and set(processes) == {e["pid"] for e in spans}
    threads = [(e["pid"], e["tid"]) for e in names if e["name"] == "thread_name"]
    assert len(threads) == len(set(threads))
    assert set(threads) == {(e["pid"], e["tid"]) for e in spans}
    for thread in threads:
        _check_nested([e for e in spans if (e["pid"], e["tid"]) == thread])
    return spans


def _check_nested(spans: list[dict[str, Any]]) -> None:
    """Each begins where another is over, or lies within it."""
    around: list[float] = []
    for event in spans:
        start, end = event["ts"], event["ts"] + event["dur"]
        while around and around[-1] <= start + ROUNDED:
            around.pop()
        assert not around or end <= around[-1] + ROUNDED, event
        around.append(end)


def inside(spans: list[dict[str, Any]], outer: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of `outer`'s process that lie within it."""
    end = outer["ts"] + outer["dur"] + ROUNDED
    return [
        e
        for e in spans
        if e["pid"] == outer["pid"]
        and outer["ts"] - ROUNDED <= e["ts"] <= e["ts"] + e["dur"] <= end
    ]
