"""Sessions in other processes, which are given them by pickling, and in coroutines."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import os
import pickle
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn import data
from glnn.errors import DeviceError, GlnnError, ModelError
from glnn.gl import Device
from glnn.session import InferenceSession
from tests.models.test_requests import affine
from tests.models.test_threads import available

Array = NDArray[Any]
SECONDS = 60
X = np.random.default_rng(4).random((3, 5), np.float32)
IMAGES = np.random.default_rng(4).random((2, 1, 28, 28), np.float32)


def answer(session: InferenceSession) -> Array:
    found: Array = session.run(["both"], {"x": X})[0]
    return found


def classify(session: InferenceSession) -> Array:
    found: Array = session.run(None, {"input": IMAGES})[0]
    return found


@pytest.fixture(scope="module")
def name() -> str:
    return available("feedback")


@pytest.fixture(scope="module")
def session(name: str) -> InferenceSession:
    """One that has run already: this process uses GL."""
    found = InferenceSession(affine(), name)
    answer(found)
    return found


class Tagged(InferenceSession):
    """A subclass with arguments of its own."""

    def __init__(self, tag: str) -> None:
        super().__init__("lenet", "cpu", max_batch=4)
        self.tag = tag


def test_a_pickled_session_is_made_of_the_same(
    name: str, session: InferenceSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: InferenceSession = pickle.loads(pickle.dumps(session))
    np.testing.assert_array_equal(answer(again), answer(session))
    assert again.backend.name == name and again._options.max_batch == 1
    np.testing.assert_array_equal(answer(copy.deepcopy(session)), answer(session))

    path = tmp_path / "affine.onnx"
    path.write_bytes((Path(__file__).parents[1] / "onnx/lenet-mnist.onnx").read_bytes())
    monkeypatch.chdir(tmp_path)
    given = [InferenceSession(path.name, "cpu"), InferenceSession(path.read_bytes(), "cpu")]
    content = [pickle.dumps(one) for one in given]
    assert len(content[0]) < 1000 < len(content[1])  # the path, and all of it
    monkeypatch.chdir("/")
    first = given[0].get_inputs()[0].name
    for text in content:
        loaded = pickle.loads(text)
        found = loaded.run(None, {first: IMAGES})[0]
        np.testing.assert_array_equal(found, given[0].run(None, {first: IMAGES})[0])

    tagged: Tagged = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(Tagged("mine")))))
    assert (tagged.tag, tagged._options.max_batch, type(tagged)) == ("mine", 4, Tagged)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = tagged.other  # type: ignore[attr-defined]


def test_a_session_that_a_former_version_pickled_says_so() -> None:
    session = InferenceSession("lenet", "cpu")
    copy_of = InferenceSession.__new__(InferenceSession)
    former = {
        "given" if key == "arguments" else "own": one for key, one in session.__getstate__().items()
    }
    copy_of.__setstate__(former)
    with pytest.raises(ModelError, match="InferenceSession: it was pickled by another version"):
        copy_of.run(None, {})


def test_what_cannot_be_pickled_or_made_again_says_so(tmp_path: Path) -> None:
    with Device() as device:
        with pytest.raises(GlnnError, match="given a device cannot be pickled"):
            pickle.dumps(InferenceSession("lenet", device=device))
    path = tmp_path / "gone.json"
    path.write_bytes(data.model("lenet").read_bytes())
    for weights in data.model("lenet").parent.glob("*.npz"):
        (tmp_path / weights.name).write_bytes(weights.read_bytes())
    content = pickle.dumps(InferenceSession(path, "cpu"))
    path.unlink()
    gone = pickle.loads(content)  # a pool would wait for ever
    for _ in range(2):
        with pytest.raises(ModelError, match=r"gone\.json"):
            classify(gone)


def test_threads_that_use_an_unpickled_session_at_once_make_one(session: InferenceSession) -> None:
    again: InferenceSession = pickle.loads(pickle.dumps(session))
    barrier = threading.Barrier(6)

    def work(_: int) -> tuple[Array, Any]:
        barrier.wait(SECONDS)
        return answer(again), again._requests

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(work, range(6)))
    assert len({id(requests) for _, requests in found}) == 1
    for result, _ in found:
        np.testing.assert_array_equal(result, answer(session))


@pytest.mark.parametrize("way", ["spawn", "forkserver"])
def test_a_pool_of_processes_runs_a_session_that_it_is_given(
    way: str, session: InferenceSession
) -> None:
    if way not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {way} here")
    context: BaseContext = multiprocessing.get_context(way)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found = pool.submit(answer, session).result(SECONDS)
    np.testing.assert_array_equal(found, answer(session))


def test_multiprocessings_pool_by_spawn(session: InferenceSession) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map_async(answer, [session, session]).get(SECONDS)
    for result in found:
        np.testing.assert_array_equal(result, answer(session))


@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform != "linux", reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_pool_says_what_to_do_and_the_cpu_works(session: InferenceSession) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        with pytest.raises(DeviceError, match='start processes by "spawn"'):
            pool.apply_async(answer, (session,)).get(SECONDS)
        on_cpu = InferenceSession("lenet", "cpu")
        found = pool.apply_async(classify, (on_cpu,)).get(SECONDS)
    np.testing.assert_array_equal(found, classify(on_cpu))


def test_coroutines_wait_for_runs_in_each_way(session: InferenceSession) -> None:
    async def all_ways() -> list[Array]:
        loop = asyncio.get_running_loop()
        ways = [
            loop.run_in_executor(None, answer, session),
            asyncio.to_thread(answer, session),
            asyncio.wrap_future(session.run_async(["both"], {"x": X})),
        ]
        return await asyncio.wait_for(asyncio.gather(*ways), SECONDS)

    one, two, (three,) = asyncio.run(all_ways())
    for found in (one, two, three):
        np.testing.assert_array_equal(found, answer(session))
