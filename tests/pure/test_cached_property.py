"""Properties that are computed once, beside threads and in forks."""

from __future__ import annotations

import ast
import os
import threading
import time
from pathlib import Path

import pytest

import glnn
from glnn.core.cached_property import cached_property

PACKAGE = Path(glnn.__file__).parent


class Lazy:
    def __init__(self) -> None:
        self.count = 0
        self.computing, self.going_on = threading.Event(), threading.Event()
        self.going_on.set()

    @cached_property
    def number(self) -> list[int]:
        """A list of one number."""
        self.count += 1
        self.computing.set()
        assert self.going_on.wait(30)
        return [self.count]


def test_it_is_computed_once() -> None:
    lazy, other = Lazy(), Lazy()
    assert lazy.number is lazy.number and lazy.count == 1 and other.count == 0
    assert vars(lazy)["number"] == [1] and Lazy.number.__doc__ == "A list of one number."
    del lazy.number
    assert lazy.number == [2]


def test_threads_get_what_the_first_stored() -> None:
    lazy, found = Lazy(), list[list[int]]()
    lazy.going_on.clear()
    threads = [threading.Thread(target=lambda: found.append(lazy.number)) for _ in range(3)]
    for thread in threads:
        thread.start()
    while lazy.count < 3:
        time.sleep(0.001)
    lazy.going_on.set()
    for thread in threads:
        thread.join(30)
    assert len(found) == 3 and all(one is found[0] for one in found) and lazy.number is found[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_beside_a_thread_that_computes_one_computes_others() -> None:
    lazy = Lazy()
    lazy.going_on.clear()
    thread = threading.Thread(target=lambda: lazy.number)
    thread.start()
    assert lazy.computing.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if Lazy().number == [1] else 1)
    deadline, done = time.monotonic() + 20, (0, 1)
    while done[0] == 0 and time.monotonic() < deadline:
        done = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if done[0] == 0:
        os.kill(child, 9)
        os.waitpid(child, 0)
    lazy.going_on.set()
    thread.join(30)
    assert done == (child, 0)


def test_nothing_of_glnn_takes_pythons_own() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "functools":
                names = {one.name for one in node.names}
                assert "cached_property" not in names or path.stem == "cached_property", path
