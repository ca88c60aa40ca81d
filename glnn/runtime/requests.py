"""Requests: the queue behind `run_async`, which joins waiting requests to batches."""

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

from glnn.core.process import GL_PROCESS, THIS_PROCESS, process_lock
from glnn.core.types import Array
from glnn.runtime.runner import ModelExecutor, Out, Run

MAX_IN_FLIGHT = 2  # the device computes one run while the inputs of the next are uploaded
POLL_SECONDS = 1e-4  # seconds after which the thread, waiting for the device, checks the queue
LOG = logging.getLogger(__name__)
EXIT_SECONDS = 10.0  # the longest that the process's exit waits for requests


@dataclass(frozen=True, eq=False)
class RunRequest:
    """A run that a caller asked for: inputs, outputs, and the future that gets them."""

    feeds: Mapping[str, Array]
    """The inputs."""
    outputs: tuple[str, ...]
    """The names of the requested outputs."""
    out: Mapping[str, Out]
    """Arrays to write outputs to, by name."""
    requests: Requests
    """The session's requests, kept alive as long as this one waits."""
    future: Future[list[Array]] = field(default_factory=Future)
    """The future of the outputs, in the order of `outputs`."""

    @property
    def samples(self) -> int:
        """The size of its batch; 1 without one."""
        return next((array.shape[0] for array in self.feeds.values() if array.shape), 1)

    @property
    def joinable(self) -> bool:
        """True where it may share a run: all inputs have equally many samples, and no `out`."""
        batches = {array.shape[:1] for array in self.feeds.values()}
        return not self.out and len(batches) == 1 and () not in batches

    def joins(self, request: RunRequest) -> bool:
        """Return True where one run can serve both: the same sample shapes and outputs."""
        same_shapes = all(a.shape[1:] == request.feeds[k].shape[1:] for k, a in self.feeds.items())
        return (
            same_shapes and self.outputs == request.outputs and self.joinable and request.joinable
        )


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
    """A run under way: its batch has the samples of `requests` in order, and padding behind."""

    run: Run
    requests: tuple[RunRequest, ...]

    def answers(self) -> list[Answer]:
        """Wait for the run, and return the answer to each request."""
        try:
            results = self.run.results()
        except BaseException as error:  # of any kind: each future gets it
            return [Answer(request, [], error) for request in self.requests]
        if len(self.requests) == 1:
            return [Answer(self.requests[0], [results[name] for name in self.requests[0].outputs])]
        ends = np.cumsum([0, *(request.samples for request in self.requests)])
        return [
            Answer(request, [results[name][first:last] for name in request.outputs])
            for request, (first, last) in zip(self.requests, pairwise(ends), strict=True)
        ]


class Requests:
    """The requests of a session, served in order by a thread of its own.

    executor: runs them. max_batch: the most samples to which waiting requests are joined, along the
    first dimension of all inputs and outputs.
    """

    def __init__(self, executor: ModelExecutor, max_batch: int = 1) -> None:
        self.executor, self.max_batch = executor, max_batch
        self._lock = process_lock()
        # By process, as a fork has no thread.
        self._queues: dict[int, tuple[SimpleQueue[RunRequest | None], threading.Thread]] = {}

    @property
    def served_here(self) -> bool:
        """Return True where this thread serves the requests, as in a future's callback."""
        _, thread = self._queues.get(THIS_PROCESS.id, (None, None))
        return thread is threading.current_thread()

    def submit(
        self, feeds: Mapping[str, Array], outputs: tuple[str, ...], out: Mapping[str, Out]
    ) -> Future[list[Array]]:
        """Request a run; the arguments are those of `Runner.run`.

        Raises DeviceError in a fork of the process that used its device.
        """
        request = RunRequest(feeds, outputs, out, self)
        self.put(request)
        return request.future

    def put(self, request: RunRequest) -> None:
        """Queue a request."""
        if self.executor.device is not None:
            GL_PROCESS.check()
        with self._lock:
            queue, _ = self._queues.get(THIS_PROCESS.id) or self._start()
        queue.put(request)

    def _start(self) -> tuple[SimpleQueue[RunRequest | None], threading.Thread]:
        queue: SimpleQueue[RunRequest | None] = SimpleQueue()
        serving = partial(_serve, queue)
        thread = threading.Thread(target=serving, name="glnn requests", daemon=True)
        thread.start()
        self._queues[THIS_PROCESS.id] = queue, thread
        weakref.finalize(self, _end, queue, thread)
        return queue, thread


def _serve(queue: SimpleQueue[RunRequest | None]) -> None:
    """Serve the requests of the queue until None, the end, comes.

    It refers to a session only as long as that has requests.
    """
    waiting: deque[RunRequest] = deque()
    in_flight: deque[BatchedRun] = deque()
    ended = False
    while waiting or in_flight or not ended:
        ended |= _receive(queue, waiting, block=not waiting and not in_flight)
        if waiting or in_flight:
            for answer in _answered(queue, waiting, in_flight):
                try:
                    answer.give()
                except BaseException:  # of a future's callback: other callers wait, too
                    LOG.exception("a callback of a run failed")
                del answer  # it keeps the session alive


def _receive(
    queue: SimpleQueue[RunRequest | None], waiting: deque[RunRequest], block: bool
) -> bool:
    """Move all requests of the queue to `waiting`; return True once None, the end, came.

    block: True to wait for a request.
    """
    with suppress(Empty):
        while request := queue.get(block):
            waiting.append(request)
            block = False
        return True
    return False


def _answered(
    queue: SimpleQueue[RunRequest | None], waiting: deque[RunRequest], in_flight: deque[BatchedRun]
) -> list[Answer]:
    """Return the answers of the oldest run; none where new requests came that may begin."""
    requests = waiting[0].requests if waiting else in_flight[0].requests[0].requests
    try:
        return requests.executor.perform(partial(_serve_next, requests, queue, waiting, in_flight))
    except BaseException as error:  # no device opens
        failed = [request for run in in_flight for request in run.requests]
        failed += _take_batch(waiting, 1)
        in_flight.clear()
        return [Answer(request, [], error) for request in failed]


def _serve_next(
    requests: Requests,
    queue: SimpleQueue[RunRequest | None],
    waiting: deque[RunRequest],
    in_flight: deque[BatchedRun],
) -> list[Answer]:
    """Begin MAX_IN_FLIGHT runs, and wait for the oldest one or for a request."""
    while waiting and len(in_flight) < MAX_IN_FLIGHT:
        batch = _take_batch(waiting, requests.max_batch)
        try:
            in_flight += [BatchedRun(_begin(requests, batch), batch)] if batch else []
        except Exception as error:
            if len(batch) == 1:
                return [Answer(batch[0], [], error)]
            return [_run_alone(requests, request) for request in batch]
    timeout = float("inf") if len(in_flight) == MAX_IN_FLIGHT else POLL_SECONDS
    with suppress(Exception):  # which the answers have, too
        while in_flight and not in_flight[0].run.wait(timeout):
            if not queue.empty():
                return []
    if not in_flight:
        return []
    answers = in_flight.popleft().answers()
    requests.executor.settle()
    return answers


def _take_batch(waiting: deque[RunRequest], most: int) -> tuple[RunRequest, ...]:
    """Take the first waiting request, and those behind it that one run can serve, too.

    most: the most samples of the run. Cancelled requests are dropped.
    """
    batch: list[RunRequest] = []
    samples = 0
    while waiting:
        request = waiting[0]
        has_room = most > 1 and samples + request.samples <= most
        if batch and not (has_room and request.joins(batch[0])):
            break
        waiting.popleft()
        if request.future.set_running_or_notify_cancel():
            batch.append(request)
            samples += request.samples
    return tuple(batch)


def _begin(requests: Requests, batch: tuple[RunRequest, ...]) -> Run:
    """Begin a run for `batch`; several requests are padded to a power of two of samples, or to
    `max_batch`.
    """
    first = batch[0]
    if len(batch) == 1:
        return requests.executor.begin(first.feeds, first.outputs, first.out)
    samples = sum(request.samples for request in batch)
    padded = min(1 << (samples - 1).bit_length(), requests.max_batch)
    feeds = {}
    for name, array in first.feeds.items():
        feeds[name] = np.zeros((padded, *array.shape[1:]), array.dtype)
        np.concatenate([request.feeds[name] for request in batch], out=feeds[name][:samples])
    return requests.executor.begin(feeds, first.outputs, {})


def _run_alone(requests: Requests, request: RunRequest) -> Answer:
    """Run a request by itself, after the batch that it was joined to failed."""
    try:
        run = requests.executor.begin(request.feeds, request.outputs, request.out)
    except Exception as error:
        return Answer(request, [], error)
    return BatchedRun(run, (request,)).answers()[0]


def _end(queue: SimpleQueue[RunRequest | None], thread: threading.Thread) -> None:
    """Have the thread finish its requests, and end."""
    queue.put(None)
    if thread is not threading.current_thread():  # whose last answer can end the session
        thread.join(EXIT_SECONDS)
