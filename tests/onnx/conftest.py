"""Fixtures of the tests of ONNX."""

from __future__ import annotations

import pytest

from glnn.device import Program


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were compiled."""
    texts: list[str] = []
    compute, feedback = Program.compute, Program.feedback

    def computing(device, source):
        texts.append(source.text)
        return compute(device, source)

    def capturing(device, source, captured):
        texts.append(source.text)
        return feedback(device, source, captured)

    monkeypatch.setattr(Program, "compute", computing)
    monkeypatch.setattr(Program, "feedback", capturing)
    return texts
