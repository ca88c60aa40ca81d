"""The scheduler: one thread that computes the requests of all clients, a step at a time."""

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
    """A request to compute. The scheduler's thread computes it, an event loop awaits its items."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = False

    async def items(self) -> AsyncIterator[Any]:
        """Yield results as they are computed. Raises ApiError if the job fails."""
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
        """Start on `lm`, when a sequence is free."""

    @abstractmethod
    def advance(self) -> bool:
        """Send the results that are ready; return True at the end."""

    def close(self) -> None:
        """Free the sequence."""


class TextJob(Job):
    """A text that is generated; its items are the pieces."""

    def __init__(self, tokens: list[int], options: Mapping[str, Any]) -> None:
        """tokens: the prompt. options: those of `LanguageModel.start`."""
        super().__init__()
        self._tokens, self._options = tokens, options
        self.generation: Generation | None = None
        """The text; None until the job begins."""

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
    """Runs as many jobs as the model has sequences; others wait in a queue, first in, first out.

    Each turn computes a token of every text, and a vector of one of the embedding jobs. Only the
    scheduler's thread uses the model: the public methods never wait for a step.
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
        """Number of running jobs."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of jobs that wait for a sequence."""
        return len(self._waiting)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end; all jobs fail."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def check(self) -> None:
        """Raise ApiError where no job is accepted now."""
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
        """Queue `job`. Raises ApiError where the queue is full."""
        with self._changed:
            self.check()
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Cancel `job`, unless it has ended: a running one ends before the next turn."""
        with self._changed:
            job.cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)
                job.send(None)

    def _run(self) -> None:
        """Compute turns until the scheduler is stopped."""
        while self._admit():
            self._turn()
        for job in (*self._running, *self._waiting):
            self._end(job, _stopped())

    def _admit(self) -> bool:
        """Wait for jobs, and begin those that have a free sequence; return False once stopped."""
        with self._changed:
            while not (self._stopping or self._running or self._waiting):
                self._changed.wait()
            admitted = []
            while self._waiting and len(self._running) < self._lm.sequences:
                admitted.append(self._waiting.popleft())
                self._running.append(admitted[-1])
        for job in admitted:
            try:
                job.begin(self._lm)
            except Exception as error:
                self._end(job, _failed(error))
        return not self._stopping

    def _turn(self) -> None:
        """Compute a token of each text, and a vector."""
        for job in [job for job in self._running if job.cancelled]:
            self._end(job)
        texts = [job for job in self._running if isinstance(job, TextJob)]
        embeddings = [job for job in self._running if not isinstance(job, TextJob)]
        if embeddings:
            job = embeddings[0]
            self._advance(job)
            if job in self._running:  # move it to the back: the next turn is another job's
                self._running.remove(job)
                self._running.append(job)
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
        """End a job. error: why it failed; None: it did not."""
        if job in self._running:
            self._running.remove(job)
        job.close()
        job.send(error)


def _stopped() -> ApiError:
    return ApiError(503, "the server stops", code="stopped", kind="server_error")


def _failed(error: Exception) -> ApiError:
    """Log an error in computing a request; return the client's error."""
    LOG.error("a request failed", exc_info=error)
    message = str(error) if isinstance(error, GlnnError) else raised(error)
    return ApiError(500, message, code="failed", kind="server_error")
