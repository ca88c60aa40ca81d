"""The thread that computes the requests of all clients, step by step and in turn."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from glnn.core.types import Array
from glnn.errors import GlnnError, raised
from glnn.generation.generation import Generation
from glnn.generation.language_model import LanguageModel
from glnn.generation.server.requests import ApiError

LOG = logging.getLogger(__name__)
RETRY_S = 1  # after which a client should ask again


class Job(ABC):
    """A request under way. The scheduler's thread computes it, an event loop awaits its items."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = False

    async def items(self) -> AsyncIterator[Any]:
        """Yield what was computed as it comes, up to the end. Raises ApiError if it failed."""
        while (item := await self._items.get()) is not None:
            if isinstance(item, ApiError):
                raise item
            yield item

    def send(self, item: Any) -> None:
        """Give an item to the event loop: a result, an ApiError, or None for the end."""
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self.cancelled = True

    def begin(self, lm: LanguageModel) -> None:
        """Take a sequence of the model's."""

    @abstractmethod
    def advance(self) -> bool:
        """Send what there is to send; return True at the end."""

    def close(self) -> None:
        """Give the sequence back."""


class TextJob(Job):
    """A text that is generated; its items are the pieces."""

    def __init__(self, tokens: list[int], options: Mapping[str, Any]) -> None:
        """tokens: the prompt. options: those of `LanguageModel.start`."""
        super().__init__()
        self._tokens, self._options = tokens, options
        self.generation: Generation | None = None
        """The text; None before it began."""

    def begin(self, lm: LanguageModel) -> None:
        self.generation = lm.start(self._tokens, **self._options)

    def advance(self) -> bool:
        assert self.generation is not None
        if piece := self.generation.read():
            self.send(piece)
        return self.generation.finish_reason is not None

    def close(self) -> None:
        if self.generation is not None:
            self.generation.close()


class EmbeddingJob(Job):
    """Embeddings of several texts; its items are the vectors."""

    def __init__(self, inputs: Sequence[list[int]]) -> None:
        """inputs: the tokens of each text."""
        super().__init__()
        self._inputs = deque(inputs)
        self._lm: LanguageModel | None = None

    def begin(self, lm: LanguageModel) -> None:
        self._lm = lm

    def advance(self) -> bool:
        assert self._lm is not None
        vector: Array = self._lm.embed(self._inputs.popleft())
        self.send(vector)
        return not self._inputs


class Scheduler:
    """The jobs under way, as many as the model has sequences, and those that wait for one.

    Who came first begins first. In each turn every text gets a token, and one of the jobs of
    embeddings a vector. Only the scheduler's thread uses the model, so that no thread waits for
    another one's step, and none of the methods here waits for one.
    """

    def __init__(self, lm: LanguageModel, most_waiting: int) -> None:
        self._lm, self._most_waiting = lm, most_waiting
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="glnn-server", daemon=True)

    @property
    def running(self) -> int:
        """Number of jobs under way."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of jobs that wait for a sequence."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to compute."""
        self._thread.start()

    def stop(self) -> None:
        """End all jobs, which fail, and the thread; return when it has ended."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def check(self) -> None:
        """Raise ApiError where no job is taken now."""
        if self._stopping:
            raise _stopped()
        if self.waiting + self.running >= self._most_waiting + self._lm.sequences:
            raise ApiError(
                503,
                f"{self.waiting} requests are waiting already: try again later",
                code="queue_full",
                kind="server_error",
                headers={"Retry-After": str(RETRY_S)},
            )

    def submit(self, job: Job) -> None:
        """Have `job` be computed. Raises ApiError where the queue is full."""
        with self._changed:
            self.check()
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """End `job` soon, unless it has ended."""
        with self._changed:
            job.cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)
                job.send(None)

    def _run(self) -> None:
        """Compute turn by turn until it is stopped."""
        while self._admit():
            self._turn()
        for job in (*self._running, *self._waiting):
            self._end(job, _stopped())

    def _admit(self) -> bool:
        """Begin jobs that wait while there are sequences; False once it is stopped."""
        with self._changed:
            while not (self._stopping or self._running or self._waiting):
                self._changed.wait()
            begun = []
            while self._waiting and len(self._running) < self._lm.sequences:
                begun.append(self._waiting.popleft())
                self._running.append(begun[-1])
        for job in begun:
            try:
                job.begin(self._lm)
            except Exception as error:
                self._end(job, _failed(error))
        return not self._stopping

    def _turn(self) -> None:
        """Compute a token of each text, and a vector."""
        for job in [one for one in self._running if one.cancelled]:
            self._end(job)
        texts = [job for job in self._running if isinstance(job, TextJob)]
        others = [job for job in self._running if not isinstance(job, TextJob)]
        if others:
            self._advance(others[0])
            if others[0] in self._running:  # the next turn is another one's
                self._running.remove(others[0])
                self._running.append(others[0])
        try:
            if texts:
                self._lm.step()
        except Exception as error:
            for job in texts:
                self._end(job, _failed(error))
            return
        for text in texts:
            self._advance(text)

    def _advance(self, job: Job) -> None:
        try:
            ended = job.advance()
        except Exception as error:
            self._end(job, _failed(error))
        else:
            if ended:
                self._end(job)

    def _end(self, job: Job, error: ApiError | None = None) -> None:
        """End a job that is under way; with `error` it failed."""
        if job in self._running:
            self._running.remove(job)
        job.close()
        job.send(error)


def _stopped() -> ApiError:
    return ApiError(503, "the server stops", code="stopped", kind="server_error")


def _failed(error: Exception) -> ApiError:
    """Return what a client is told of an error in computing its request."""
    LOG.error("a request failed", exc_info=error)
    said = str(error) if isinstance(error, GlnnError) else raised(error)
    return ApiError(500, said, code="failed", kind="server_error")
