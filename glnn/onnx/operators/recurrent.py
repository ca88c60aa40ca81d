"""Recurrent networks."""

from glnn.onnx.entry import Entry

ENTRIES: tuple[Entry, ...] = ()
