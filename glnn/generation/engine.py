"""The engine: batches the next tokens of several sequences into one run of the decoder.

Each sequence has a slot: `context` rows of the key and value caches. A token's place is its row in
the caches, `slot.index * context + position`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from os import getpid
from threading import Condition
from typing import NamedTuple

import numpy as np

from glnn.backends import Backend, open_backend
from glnn.compiler import Executor
from glnn.compiler.executor import REPEATS
from glnn.compiler.states import States
from glnn.core.cached_property import cached_property
from glnn.core.process import process_lock
from glnn.core.types import Array
from glnn.errors import DeviceError, LimitError, ModelError
from glnn.generation.architectures import Decoder
from glnn.generation.sampling import Sampling, logits_are_no_numbers
from glnn.gl import Device
from glnn.graph.operators import Sample
from glnn.graph.operators.sample import NOT_A_NUMBER, RULES
from glnn.kernels.op_spec import OpSpec
from glnn.runtime.runner import Run, within_memory

SHORT = 1024
"""The shortest length of sequences for which attention is planned; the next are 4, 16, ... times
as long.
"""
MOST_FOLLOWERS = 16
"""The most followers that an engine keeps: each has memory for the results of its runs."""
CHUNK = 512  # the most tokens of prompts in one run: their results take memory


@dataclass(eq=False)
class Slot:
    """The rows of one sequence in the caches. tokens: those whose keys and values are in them."""

    index: int
    tokens: list[int] = field(default_factory=list)
    in_use: bool = False


@dataclass(eq=False)
class GenerationRequest:
    """A sequence to continue.

    tokens: the prompt's, then those generated. max_tokens: how many to generate at most.
    end_tokens: tokens that end the sequence, and are not added to it. accept: called with each
    token added, by the thread that makes the step; returns True to end the sequence with it.
    prompt_length: how many of `tokens` are the prompt's. cancelled: set by a caller that wants no
    more tokens.
    """

    tokens: list[int]
    max_tokens: int
    end_tokens: frozenset[int]
    sampling: Sampling
    accept: Callable[[int], bool] = lambda token: False
    prompt_length: int = field(init=False)
    slot: Slot | None = None
    done: bool = False
    cancelled: bool = False
    finish_reason: str | None = None
    """"stop" after one of `end_tokens` or where `accept` returns True, "length" after `max_tokens`
    tokens or where the context is full.
    """
    error: BaseException | None = None
    generator: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)
        self.generator = self.sampling.generator()
        self.done = self.max_tokens < 1


class FollowerKind(NamedTuple):
    """The sequences that a follower continues."""

    sequences: int
    """How many."""
    longest: int
    """The most tokens of a sequence."""
    sampled: bool
    """Whether tokens are drawn at random; else the likeliest is taken."""


def longest_of(context: int) -> list[int]:
    """Return the lengths of sequences for which attention is planned, in ascending order."""
    lengths = [SHORT]
    while lengths[-1] < context:
        lengths.append(4 * lengths[-1])
    return [min(length, context) for length in lengths]


def draws_tokens(backend: Backend, decoder: Decoder) -> bool:
    """Return True where `backend` draws tokens of `decoder` on its device."""
    operands = {"x": (1, decoder.vocabulary), "rules": (1, len(RULES)), "random": (1,)}
    return backend.suits(OpSpec.create(Sample(), operands, {}))


def most_logits(backend: Backend, decoder: Decoder) -> int:
    """Return the most tokens whose logits one run computes: kernels read them as one operand."""
    limit = backend.operand_bytes
    return min(CHUNK, limit // (4 * decoder.vocabulary)) if limit else CHUNK


def check_sequences(backend: Backend, decoder: Decoder, sequences: int) -> None:
    """Raise LimitError where `backend` cannot compute the logits of so many sequences at once."""
    fitting = most_logits(backend, decoder)
    if sequences > fitting:
        raise LimitError(
            f"{sequences} sequences have {decoder.vocabulary} logits each, a kernel of "
            f"{backend.name} reads at most {backend.operand_bytes} bytes here: {fitting} sequences "
            "fit"
        )


def follower_kinds(
    decoder: Decoder, backend: Backend, context: int, sequences: int
) -> Iterator[FollowerKind]:
    """Yield the kinds of followers that an engine may create, the largest in memory first."""
    if backend.device is None:  # runs of the host are not begun ahead
        return
    sampled = (True, False) if draws_tokens(backend, decoder) else (False,)
    for count in range(sequences, 0, -1):
        for longest in reversed(longest_of(context)):
            yield from (FollowerKind(count, longest, flag) for flag in sampled)


@dataclass(frozen=True, eq=False)
class _Follower:
    """Executor of one token for each of a fixed set of sequences.

    Their last tokens are a state on the device, which each run replaces by the next ones: a run can
    begin before the host has read the tokens of the run before it.
    """

    executor: Executor
    states: States
    kind: FollowerKind

    @classmethod
    def create(
        cls, executor: Executor, decoder: Decoder, states: States, kind: FollowerKind
    ) -> _Follower:
        """Return a follower that shares the weights of `executor`, and the caches in `states`."""
        with_tokens = states.copy()
        with_tokens.add("tokens", np.zeros(kind.sequences, np.int32), readable=True)
        updates = {**decoder.updates, "tokens": "next"}
        graph = decoder.following(*kind, executor.backend)
        follower_executor = executor.perform(
            lambda: executor.with_states(graph, with_tokens, updates)
        )
        return cls(follower_executor, with_tokens, kind)

    def begin(self, places: Sequence[int], requests: Sequence[GenerationRequest]) -> Run:
        """Begin a run for the next tokens of `requests`. Only inside `perform`."""
        feeds = {"places": _int32(places)}
        if self.kind.sampled:
            rules = [request.sampling.rules for request in requests]
            random = [request.generator.random() for request in requests]
            feeds |= {"rules": np.array(rules, np.float32), "random": np.array(random, np.float32)}
        return self.executor.begin(feeds, ("next",), {})


@dataclass(frozen=True, eq=False)
class _PendingStep:
    """A follower's run under way, which computes the next token of each of `requests`."""

    requests: list[GenerationRequest]
    follower: _Follower
    run: Run


class Engine:
    """Continues several sequences at once: each run of the decoder computes tokens of all.

    A thread that waits for a token makes a step, which computes the next token of every active
    sequence, those of other waiting threads too. A prefix of a sequence that is in the caches
    already is not computed again. Any thread may use the engine.
    """

    def __init__(
        self,
        decoder: Decoder,
        context: int,
        sequences: int,
        backend: str,
        device: Device | None,
        gpu: int | str | None,
        weights: int = 0,
    ) -> None:
        """decoder: built for `sequences` sequences of up to `context` tokens each. weights: the
        bytes of its weights. Raises LimitError, before anything is uploaded, where weights and
        caches need more memory than is free.
        """
        self._decoder, self.context = decoder, context
        self._slots = [Slot(i) for i in range(sequences)]
        self._backend_options = backend, device, gpu
        self._waiting: list[GenerationRequest] = []
        self._active: list[GenerationRequest] = []
        self._last_requests: list[GenerationRequest] = []
        """The requests of the last step."""
        self._repeated_steps = 0
        """How many steps in a row were of the same requests."""
        self._lock = process_lock()
        """Guards `_waiting` and `_stepping_process`."""
        self._stepped = Condition(self._lock)  # type: ignore[arg-type]
        """Notified at the end of each step."""
        self._stepping_process = 0
        """Id of the process that makes a step, 0 between steps. In a process that was forked during
        a step it is the parent's, and no step is under way.
        """
        self.backend: Backend = open_backend(backend, device, gpu=gpu)
        check_sequences(self.backend, decoder, sequences)
        self._check_memory(weights)
        self._open()

    @cached_property
    def _device_draws(self) -> bool:
        """True where the device draws tokens."""
        return draws_tokens(self.backend, self._decoder)

    def _check_memory(self, weights: int) -> None:
        free = self.backend.perform(self.backend.available)
        copies = 1 if self.backend.in_place else 2  # else each run writes a new copy
        caches = copies * sum(4 * rows * width for rows, width in self._decoder.caches.values())
        if free is None or weights + caches <= free:
            return
        fitting = max(free - weights, 0) * self.context // max(caches, 1)
        hint = f"a context of {fitting} fits" if fitting else "the weights alone do not fit"
        raise LimitError(
            f"weights take {weights} bytes and caches for {len(self._slots)} times {self.context} "
            f"tokens {caches}, {free} are free: {hint}"
        )

    def _open(self) -> None:
        """Allocate empty caches, and the executor of the decoder."""
        states = States(self.backend)
        for name, shape in self._decoder.caches.items():
            states.add(name, np.zeros(shape, np.float32))
        self._states = states
        self._executor = Executor(
            self._decoder.graph, self.backend, states=states, updates=self._decoder.updates
        )
        self._followers: dict[FollowerKind, _Follower] = {}
        """The least recently used first."""
        self._pending: _PendingStep | None = None
        for slot in self._slots:
            slot.tokens = []

    def _reopen(self) -> None:
        """Open a lost device again. The next steps recompute all sequences from their tokens."""
        backend, device, gpu = self._backend_options
        self.backend = open_backend(
            backend, None if device is None or device.lost else device, gpu=gpu
        )
        self._open()

    def check(self, tokens: Sequence[int]) -> None:
        """Raise ModelError unless `tokens` are a prompt that fits."""
        if not tokens:
            raise ModelError("the prompt has no tokens")
        if len(tokens) > self.context:
            raise ModelError(f"the prompt has {len(tokens)} tokens, the context {self.context}")

    def add(self, request: GenerationRequest) -> None:
        """Queue `request`; the next steps continue it."""
        self.check(request.tokens)
        with self._lock:
            self._waiting.append(request)

    def tokens(self, request: GenerationRequest) -> Iterator[int]:
        """Yield the tokens that are added to `request`. Closing the iterator cancels it."""
        position = request.prompt_length
        try:
            while True:
                done = request.done  # read first: once it is set, no token is added
                if len(request.tokens) > position:
                    yield request.tokens[position]
                    position += 1
                elif not done:
                    with self._exclusive(partial(_needs_token, request, position)) as needed:
                        if needed:
                            self._step()
                elif request.error is not None:
                    raise request.error
                else:
                    return
        finally:  # may run in the garbage collector, during a step: only sets a flag
            request.cancelled = True

    def step(self) -> None:
        """Compute the next token of every active or waiting sequence, if there are any."""
        with self._exclusive(lambda: bool(self._waiting or self._active)) as needed:
            if needed:
                self._step()

    @contextmanager
    def _exclusive(self, has_work: Callable[[], bool]) -> Iterator[bool]:
        """Wait until no other thread makes a step, then keep others from it inside the context.

        Gives up once `has_work` returns False, as when another thread's step did the work. Yields
        whether there is work.
        """
        acquired = False
        try:
            with self._lock:
                self._stepped.wait_for(lambda: self._stepping_process != getpid() or not has_work())
                acquired = has_work()
                if acquired:
                    self._stepping_process = getpid()
            yield acquired
        finally:
            if acquired:
                with self._lock:
                    self._stepping_process = 0
                    self._stepped.notify_all()

    def _end(self, request: GenerationRequest, error: BaseException | None = None) -> None:
        """End `request`. error: raised in the thread that reads its tokens.

        Its slot keeps its tokens, so that a request with the same prefix can continue from them.
        """
        request.error = error
        request.done = True
        if request in self._active:
            self._active.remove(request)
        if request.slot is not None:
            request.slot.in_use = False
            request.slot = None

    def _free_slots(self) -> list[Slot]:
        return [slot for slot in self._slots if not slot.in_use]

    def _start(self) -> None:
        """Give waiting requests slots: to each the one with the longest common prefix."""
        for request in [r for r in self._active if r.cancelled]:
            self._end(request)
        with self._lock:
            for request in self._waiting:
                request.done |= request.cancelled
            waiting = [request for request in self._waiting if not request.done]
            count = len(self._free_slots())
            starting, self._waiting = waiting[:count], waiting[count:]
        for request in starting:
            slot = max(self._free_slots(), key=lambda s: _common_prefix(s.tokens, request.tokens))
            slot.tokens = slot.tokens[: _common_prefix(slot.tokens, request.tokens)]
            slot.in_use, request.slot = True, slot
            self._active.append(request)

    def _step(self) -> None:
        """Add a token to each sequence whose tokens are all computed; compute more of the others.

        A pending step is of the sequences of the step before it: waiting requests start only once
        its results are read.
        """
        pending = self._pending
        batch = [] if pending is not None else self._next_batch()
        if pending is None and not batch:  # all are cancelled
            return
        requests = [request for request, _ in batch] if pending is None else pending.requests
        try:
            if pending is None and self._can_use_follower(batch):
                pending = self._begin_pending(requests)
            results = self._run(batch) if pending is None else self._finish_pending(pending)
        except DeviceError:
            if self.backend.device is None or not self.backend.device.lost:
                self._fail(requests, None)
                raise
            self._reopen()
            return
        except BaseException as error:
            self._fail(requests, error)
            raise
        for request, token in results:
            self._add_token(request, token)

    def _fail(self, requests: Sequence[GenerationRequest], error: BaseException | None) -> None:
        """Forget the cached tokens of `requests`: a failed run may have written any part of them.

        error: an Exception ends the requests with it; others, as KeyboardInterrupt, end none.
        """
        self._pending = None
        for request in requests:
            if request.slot is not None:
                request.slot.tokens = []
            if isinstance(error, Exception):
                self._end(request, error)

    def _next_batch(self) -> list[tuple[GenerationRequest, list[int]]]:
        """Return the tokens of each active sequence for the next run, CHUNK at most in all."""
        self._start()
        batch: list[tuple[GenerationRequest, list[int]]] = []
        room = CHUNK

        def remaining(request: GenerationRequest) -> int:
            assert request.slot is not None
            return len(request.tokens) - len(request.slot.tokens)

        # Equal shares, and what shorter prompts leave of theirs goes to longer ones: no sequence
        # waits for another's prompt, nor for an endless row of shorter ones.
        order = sorted(self._active, key=remaining)
        for i, request in enumerate(order):
            assert request.slot is not None
            # The last token is computed even where it is cached: its logits are needed.
            cached = min(len(request.slot.tokens), len(request.tokens) - 1)
            request.slot.tokens = request.slot.tokens[:cached]
            part = request.tokens[cached : cached + max(room // (len(order) - i), 1)]
            room -= len(part)
            batch.append((request, part))
        return batch

    def _can_use_follower(self, batch: Sequence[tuple[GenerationRequest, list[int]]]) -> bool:
        """Return True where a follower can compute the next tokens of `batch`, and pays.

        It pays for one sequence, where there is one for so many sequences already, or where the
        same requests made the last REPEATS steps.
        """
        requests = [request for request, _ in batch]
        self._repeated_steps = self._repeated_steps + 1 if requests == self._last_requests else 0
        self._last_requests = requests
        if self.backend.device is None or len(requests) < len(self._active):
            return False
        for request, part in batch:
            assert request.slot is not None
            is_complete = len(request.slot.tokens) + len(part) == len(request.tokens)
            on_device = request.sampling.greedy or (self._device_draws and request.sampling.rules)
            if not (on_device and len(part) == 1 and is_complete):
                return False
        count = len(requests)
        exists = any(count == kind.sequences for kind in self._followers)
        return count == 1 or exists or self._repeated_steps >= REPEATS

    def _begin_pending(self, requests: Sequence[GenerationRequest]) -> _PendingStep:
        """Begin a follower's run for `requests`; only the last token of each is not cached."""
        length = max(len(request.tokens) for request in requests)
        longest = next(n for n in longest_of(self.context) if n >= length)
        sampled = not all(request.sampling.greedy for request in requests)
        follower = self._follower(FollowerKind(len(requests), longest, sampled))
        follower.states.write({"tokens": _int32([request.tokens[-1] for request in requests])})
        places = self._next_places(requests)
        run = within_memory(self.backend, lambda: follower.begin(places, requests))
        for request in requests:
            assert request.slot is not None
            request.slot.tokens.append(request.tokens[-1])
        return _PendingStep(list(requests), follower, run)

    def _follower(self, kind: FollowerKind) -> _Follower:
        """Return the follower of `kind`; a new one evicts the least recently used."""
        follower = self._followers.pop(kind, None)
        if follower is None:
            if len(self._followers) == MOST_FOLLOWERS:
                del self._followers[next(iter(self._followers))]
            follower = _Follower.create(self._executor, self._decoder, self._states, kind)
        self._followers[kind] = follower
        return follower

    def _next_places(self, requests: Sequence[GenerationRequest]) -> list[int]:
        """Return the row of the caches for the next token of each of `requests`."""
        slots = [request.slot for request in requests if request.slot is not None]
        return [slot.index * self.context + len(slot.tokens) for slot in slots]

    def _finish_pending(
        self, pending: _PendingStep, begin_next: bool = True
    ) -> list[tuple[GenerationRequest, int]]:
        """Return the tokens of a pending step; begin the next one before they are read.

        begin_next: False to begin none.
        """
        self._pending = None
        follower = pending.follower
        begin_next = begin_next and self._can_begin_next(pending.requests, follower.kind.longest)
        places = self._next_places(pending.requests) if begin_next else []

        def begin_and_read() -> tuple[Run | None, Array]:
            next_run = follower.begin(places, pending.requests) if begin_next else None
            return next_run, pending.run.results()["next"]

        next_run, tokens = within_memory(self.backend, begin_and_read)
        results = []
        for request, token in zip(pending.requests, tokens.tolist(), strict=True):
            if request.done or request.cancelled:  # since the run was begun
                continue
            if token == NOT_A_NUMBER:
                self._end(request, logits_are_no_numbers())
                continue
            results.append((request, token))
            if next_run is not None:
                assert request.slot is not None
                request.slot.tokens.append(token)
        if next_run is not None:
            self._pending = _PendingStep(pending.requests, follower, next_run)
        return results

    def _can_begin_next(self, requests: Sequence[GenerationRequest], longest: int) -> bool:
        """Return True where the step after this one is of the same sequences, as far as is known.

        Tokens still to be read may end a sequence. longest: the most tokens that the follower's
        plan allows a sequence.
        """
        if self._waiting and self._free_slots():
            return False
        return all(
            not (request.done or request.cancelled)
            and len(request.tokens) + 1 < self.context
            and len(request.tokens) < longest
            and len(request.tokens) + 1 - request.prompt_length < request.max_tokens
            for request in requests
        )

    def _run(
        self, batch: list[tuple[GenerationRequest, list[int]]]
    ) -> list[tuple[GenerationRequest, int]]:
        """Run `batch`; return the next token of each sequence all of whose tokens are computed."""
        tokens: list[int] = []
        places: list[int] = []
        logit_rows: list[int] = []
        complete: list[GenerationRequest] = []
        for request, part in batch:
            slot = request.slot
            assert slot is not None
            first = slot.index * self.context + len(slot.tokens)
            tokens += part
            places += range(first, first + len(part))
            if len(slot.tokens) + len(part) == len(request.tokens):
                logit_rows.append(len(tokens) - 1)
                complete.append(request)
        logit_rows = logit_rows or [len(tokens) - 1]  # the graph needs at least one
        greedy = all(request.sampling.greedy for request in complete)
        names = ["next"] if greedy else ["next", "logits"]
        outputs = self.compute(tokens, places, logit_rows, names)
        for request, part in batch:
            assert request.slot is not None
            request.slot.tokens = request.slot.tokens + part
        chosen = []
        for i, request in enumerate(complete):
            token = int(outputs["next"][i])
            try:
                if token == NOT_A_NUMBER:
                    raise logits_are_no_numbers()
                if not request.sampling.greedy:
                    logits = outputs["logits"][i]
                    token = request.sampling.choose(logits, request.tokens, request.generator)
            except ModelError as error:  # ends this sequence alone
                self._end(request, error)
            else:
                chosen.append((request, token))
        return chosen

    def compute(
        self,
        tokens: Sequence[int],
        places: Sequence[int],
        logit_rows: Sequence[int],
        outputs: list[str],
    ) -> dict[str, Array]:
        """Run the decoder once, and return `outputs` by name; see `Decoder` for the inputs."""
        feeds = {"tokens": tokens, "places": places, "logit_rows": logit_rows}
        arrays = {name: _int32(numbers) for name, numbers in feeds.items()}
        return self._executor.run(arrays, outputs)

    def all_outputs(self, tokens: Sequence[int], output: str) -> Array:
        """Return the rows of an output for all of `tokens`, computed as a sequence of their own.

        Where no slot is free, it overwrites that of an active sequence, which is then recomputed.
        """
        self.check(tokens)
        with self._exclusive(lambda: True):
            if self._pending is not None:
                for request, token in self._finish_pending(self._pending, begin_next=False):
                    self._add_token(request, token)
            slot, parts = (self._free_slots() or self._slots)[0], []
            slot.tokens = []
            rows = most_logits(self.backend, self._decoder)
            for first in range(0, len(tokens), rows):
                part = tokens[first : first + rows]
                begin = slot.index * self.context + first
                places = range(begin, begin + len(part))
                parts.append(self.compute(part, places, range(len(part)), [output])[output])
            if not slot.in_use:
                slot.tokens = list(tokens)
            return np.concatenate(parts)

    def _add_token(self, request: GenerationRequest, token: int) -> None:
        """Add `token` to `request`, unless it is an end token; end the request where it is done."""
        if token in request.end_tokens:
            request.finish_reason = "stop"
            self._end(request)
            return
        request.tokens.append(token)
        is_full = len(request.tokens) >= self.context
        is_enough = len(request.tokens) - request.prompt_length >= request.max_tokens
        if request.accept(token):
            request.finish_reason = "stop"
        elif is_full or is_enough:
            request.finish_reason = "length"
        if request.finish_reason is not None:
            self._end(request)


def _needs_token(request: GenerationRequest, position: int) -> bool:
    """Return True where the token at `position` is yet to be computed."""
    return len(request.tokens) == position and not request.done


def _int32(numbers: Sequence[int]) -> Array:
    return np.array(numbers, np.int32)


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count
