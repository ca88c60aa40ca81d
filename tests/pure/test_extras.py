"""An error for want of a package has the command that installs it."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

from glnn.errors import extra


@pytest.mark.parametrize("quote", ["'", '"'])
def test_the_packages_of_an_extra(monkeypatch: pytest.MonkeyPatch, quote: str) -> None:
    listed = ["numpy>=1", f"onnx>=1.14; extra == {quote}onnx{quote}", f"b; extra=={quote}on{quote}"]
    monkeypatch.setattr(metadata, "requires", lambda name: listed)
    command = f"{sys.executable} -m pip install 'onnx>=1.14' (the extra glnn[onnx])"
    assert extra("onnx") == command


def test_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert extra("onnx") == "install the extra glnn[onnx]"
