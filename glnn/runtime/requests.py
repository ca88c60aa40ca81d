"""Requests: the queue behind `run_async`. Two runs are under way; those that wait may be joined."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from queue import Empty, SimpleQueue

import numpy as np

from glnn.core.process import GL_PROCESS, THIS, process_lock
from glnn.core.types import Array
from glnn.runtime.runner import ModelExecutor, Out, Run

UNDER_WAY = 2  # one is computed, the inputs of the next are uploaded
LOOK = 1e-4  # seconds after which whoever waits for the device looks for further requests
LOG = logging.getLogger(__name__)
EXIT_SECONDS = 10.0  # that the process's end waits for requests under way


@dataclass(frozen=True, eq=False)
class RunRequest:
    """A run that a caller asked for: inputs, outputs, and the future that gets them."""

    feeds: Mapping[str, Array]
    """The inputs."""
    outputs: tuple[str, ...]
    """The names of those that are wanted."""
    out: Mapping[str, Out]
    """Arrays to write some of them to."""
    requests: Requests
    """The queue that it is in, kept alive as long as it waits."""
    future: Future[list[Array]] = field(default_factory=Future)
    """Gets the outputs, in the order of `outputs`."""

    @property
    def samples(self) -> int:
        """The size of its batch; 1 where it has none."""
        return next((array.shape[0] for array in self.feeds.values() if array.shape), 1)

    @property
    def joinable(self) -> bool:
        """True where it may share a run: as many samples in each input, and no `out`."""
        batches = {array.shape[:1] for array in self.feeds.values()}
        return not self.out and len(batches) == 1 and () not in batches

    def joins(self, request: RunRequest) -> bool:
        """Return True where one run does both: samples of the same shapes, the same outputs."""
        alike = all(a.shape[1:] == request.feeds[k].shape[1:] for k, a in self.feeds.items())
        return alike and self.outputs == request.outputs and self.joinable and request.joinable


@dataclass(frozen=True)
class Answer:
    """The results of a request, or its error."""

    request: RunRequest
    """The request."""
    results: list[Array]
    """Its outputs."""
    error: BaseException | None = None
    """The exception, where it raised one."""

    def give(self) -> None:
        """Set the future."""
        if self.error is None:
            self.request.future.set_result(self.results)
        else:
            self.request.future.set_exception(self.error)


@dataclass(frozen=True, eq=False)
class BatchedRun:
    """A run under way for `requests`, in the order of its samples; then comes padding."""

    run: Run
    requests: tuple[RunRequest, ...]

    def answers(self) -> list[Answer]:
        """Wait for the run, and return what each request gets."""
        try:
            results = self.run.results()
        except BaseException as error:  # whatever it is, those who wait get it
            return [Answer(request, [], error) for request in self.requests]
        if len(self.requests) == 1:
            return [Answer(self.requests[0], [results[name] for name in self.requests[0].outputs])]
        ends = np.cumsum([0, *(request.samples for request in self.requests)])
        return [
            Answer(request, [results[name][first:last] for name in request.outputs])
            for request, (first, last) in zip(self.requests, pairwise(ends), strict=True)
        ]


class Requests:
    """The requests of a session, done in the order in which they came, by a thread of its own.

    executor: runs them. max_batch: how many samples those that wait are joined to at the most,
    along the first dimension of all inputs and outputs.
    """

    def __init__(self, executor: ModelExecutor, max_batch: int = 1) -> None:
        self.executor, self.max_batch = executor, max_batch
        self._lock = process_lock()
        # By process, as a fork has no thread.
        self._queues: dict[int, tuple[SimpleQueue[RunRequest | None], threading.Thread]] = {}

    @property
    def served_here(self) -> bool:
        """Return True where this thread serves the requests, as in a future's callback."""
        _, thread = self._queues.get(THIS.id, (None, None))
        return thread is threading.current_thread()

    def submit(
        self, feeds: Mapping[str, Array], outputs: tuple[str, ...], out: Mapping[str, Out]
    ) -> Future[list[Array]]:
        """Ask for a run; the arguments are those of `Runner.run`.

        Raises DeviceError in a fork of the process that used its device.
        """
        request = RunRequest(feeds, outputs, out, self)
        self.put(request)
        return request.future

    def put(self, request: RunRequest) -> None:
        """Ask for a run, whose future there is already."""
        if self.executor.device is not None:
            GL_PROCESS.check()
        with self._lock:
            queue, _ = self._queues.get(THIS.id) or self._start()
        queue.put(request)

    def _start(self) -> tuple[SimpleQueue[RunRequest | None], threading.Thread]:
        queue: SimpleQueue[RunRequest | None] = SimpleQueue()
        serving = partial(_serve, queue)
        thread = threading.Thread(target=serving, name="glnn requests", daemon=True)
        thread.start()
        self._queues[THIS.id] = queue, thread
        weakref.finalize(self, _end, queue, thread)
        return queue, thread


def _serve(queue: SimpleQueue[RunRequest | None]) -> None:
    """Do what comes, until that is None. A session that nothing is asked of is not kept alive."""
    waiting: deque[RunRequest] = deque()
    flying: deque[BatchedRun] = deque()
    ended = False
    while waiting or flying or not ended:
        ended |= _take(queue, waiting, block=not waiting and not flying)
        if waiting or flying:
            for answer in _answered(queue, waiting, flying):
                try:
                    answer.give()
                except BaseException:  # of a future's callback: the others are waited for, too
                    LOG.exception("a callback of a run failed")
                del answer  # it keeps the session alive


def _take(queue: SimpleQueue[RunRequest | None], waiting: deque[RunRequest], block: bool) -> bool:
    """Have all that came wait; block: for one at least. Returns whether None came, the end."""
    with suppress(Empty):
        while request := queue.get(block):
            waiting.append(request)
            block = False
        return True
    return False


def _answered(
    queue: SimpleQueue[RunRequest | None], waiting: deque[RunRequest], flying: deque[BatchedRun]
) -> list[Answer]:
    """Some answers, none where others came in the meantime that can be begun with."""
    requests = waiting[0].requests if waiting else flying[0].requests[0].requests
    try:
        return requests.executor.perform(partial(_serve_next, requests, queue, waiting, flying))
    except BaseException as error:  # no device opens
        lost = [request for flight in flying for request in flight.requests]
        lost += _joined(waiting, 1)
        flying.clear()
        return [Answer(request, [], error) for request in lost]


def _serve_next(
    requests: Requests,
    queue: SimpleQueue[RunRequest | None],
    waiting: deque[RunRequest],
    flying: deque[BatchedRun],
) -> list[Answer]:
    """Begin with as much as may be under way, and wait for the first of it or for requests."""
    while waiting and len(flying) < UNDER_WAY:
        joined = _joined(waiting, requests.max_batch)
        try:
            flying += [BatchedRun(_begin(requests, joined), joined)] if joined else []
        except Exception as error:
            if len(joined) == 1:
                return [Answer(joined[0], [], error)]
            return [_run_alone(requests, request) for request in joined]
    longest = float("inf") if len(flying) == UNDER_WAY else LOOK
    with suppress(Exception):  # which comes again with the answers
        while flying and not flying[0].run.wait(longest):
            if not queue.empty():
                return []
    if not flying:
        return []
    answers = flying.popleft().answers()
    requests.executor.settle()
    return answers


def _joined(waiting: deque[RunRequest], most: int) -> tuple[RunRequest, ...]:
    """The first that waits and those behind it that one run does, too; without the cancelled."""
    joined: list[RunRequest] = []
    samples = 0
    while waiting:
        request = waiting[0]
        more = most > 1 and samples + request.samples <= most
        if joined and not (more and request.joins(joined[0])):
            break
        waiting.popleft()
        if request.future.set_running_or_notify_cancel():
            joined.append(request)
            samples += request.samples
    return tuple(joined)


def _begin(requests: Requests, joined: tuple[RunRequest, ...]) -> Run:
    """Begin a run for `joined`: several are padded to a batch of a power of two, or the largest."""
    first = joined[0]
    if len(joined) == 1:
        return requests.executor.begin(first.feeds, first.outputs, first.out)
    samples = sum(request.samples for request in joined)
    batch = min(1 << (samples - 1).bit_length(), requests.max_batch)
    feeds = {}
    for name, array in first.feeds.items():
        feeds[name] = np.zeros((batch, *array.shape[1:]), array.dtype)
        np.concatenate([one.feeds[name] for one in joined], out=feeds[name][:samples])
    return requests.executor.begin(feeds, first.outputs, {})


def _run_alone(requests: Requests, request: RunRequest) -> Answer:
    """Run a request by itself that was joined to others, of which some cannot be run."""
    try:
        run = requests.executor.begin(request.feeds, request.outputs, request.out)
    except Exception as error:
        return Answer(request, [], error)
    return BatchedRun(run, (request,)).answers()[0]


def _end(queue: SimpleQueue[RunRequest | None], thread: threading.Thread) -> None:
    """Let the thread finish what was asked for, and end."""
    queue.put(None)
    if thread is not threading.current_thread():  # whose last answer can end the session
        thread.join(EXIT_SECONDS)
