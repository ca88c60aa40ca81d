"""`-v` and `-vv`: what is logged goes to standard error, whatever the verb."""

from __future__ import annotations

import json
import logging

import pytest

from tests.cli.conftest import Glnn


@pytest.mark.parametrize(
    "verb",
    [
        *("info", "run lenet", "bench lenet --repeat 1 --backends feedback", "verify lenet"),
        *("plan lenet", "kernels --op matmul", "layout C_4_2_C 8 64", "tune --show"),
    ],
)
def test_every_verb(cli: Glnn, verb: str) -> None:
    found = cli(*verb.split(), "--json", "-vv")
    quiet = cli(*verb.split(), "--json")
    assert quiet.err == "" and found.code == quiet.code == 0
    assert json.loads(found.out).keys() == quiet.json.keys()
    for line in found.err.splitlines():
        assert line.startswith("glnn: ") and " s " in line
    logger = logging.getLogger("glnn")
    assert logger.level == logging.NOTSET and len(logger.handlers) == 1


def test_how_much(cli: Glnn) -> None:
    quiet, some, all_ = (cli("run", "lenet", *v, "--json") for v in ([], ["-v"], ["--verbose"] * 2))
    assert quiet.out == some.out == all_.out and quiet.err == ""
    assert "compiler.plan: planned lenet for input (100, 1, 28, 28) on " in some.err
    assert "session: ran lenet" not in some.err
    assert all_.err.count("session: ran lenet on ") == 10
