"""Runs of several sequences together: their tokens, the rows of the caches that these lie in."""

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
"""Tokens of sequences for which attention is planned at least; then 4, 16, ... times as many."""
MOST_FOLLOWERS = 16
"""Followers that an engine keeps: each has memory for the results of its runs."""
CHUNK = 512  # tokens of prompts in one run: what is computed of them takes memory


@dataclass(eq=False)
class Slot:
    """The rows of one sequence in the caches, and the tokens that lie there."""

    index: int
    tokens: list[int] = field(default_factory=list)
    taken: bool = False


@dataclass(eq=False)
class GenerationRequest:
    """A sequence that is to be continued.

    tokens: those that there are, the prompt's first. most: how many may be added. ends: those that
    end it, which are not added. accept: is given each token that is added, by the thread that makes
    the step, and returns True where the sequence ends with it. cancelled: set by whoever does not
    want more.
    """

    tokens: list[int]
    most: int
    ends: frozenset[int]
    sampling: Sampling
    accept: Callable[[int], bool] = lambda token: False
    prompt: int = field(init=False)
    slot: Slot | None = None
    done: bool = False
    cancelled: bool = False
    finish_reason: str | None = None
    """"stop" after one of `ends` or where `accept` says so, "length" after `most` tokens or where
    the context is full.
    """
    error: BaseException | None = None
    generator: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)
        self.generator = self.sampling.generator()
        self.done = self.most < 1


class FollowerKind(NamedTuple):
    """Kind of a follower: the sequences that it is for."""

    sequences: int
    """How many."""
    longest: int
    """Tokens that a sequence has at most."""
    sampled: bool
    """Whether tokens are drawn, and not always the likeliest."""


def longest_of(context: int) -> list[int]:
    """Return for how many tokens of a sequence attention is planned, the fewest first."""
    lengths = [SHORT]
    while lengths[-1] < context:
        lengths.append(4 * lengths[-1])
    return [min(one, context) for one in lengths]


def draws_tokens(backend: Backend, decoder: Decoder) -> bool:
    """Return True where `backend` draws tokens of `decoder` on its device."""
    operands = {"x": (1, decoder.vocabulary), "rules": (1, len(RULES)), "random": (1,)}
    return backend.suits(OpSpec.create(Sample(), operands, {}))


def most_logits(backend: Backend, decoder: Decoder) -> int:
    """Return for how many tokens a run computes logits: kernels read these as one operand."""
    most = backend.operand_bytes
    return min(CHUNK, most // (4 * decoder.vocabulary)) if most else CHUNK


def check_sequences(backend: Backend, decoder: Decoder, sequences: int) -> None:
    """Raise LimitError where `backend` does not choose the next tokens of so many together."""
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
    """Yield the kinds of followers that there may be, those that take the most memory first."""
    if backend.device is None:  # which begins no steps ahead
        return
    sampled = (True, False) if draws_tokens(backend, decoder) else (False,)
    for count in range(sequences, 0, -1):
        for longest in reversed(longest_of(context)):
            yield from (FollowerKind(count, longest, drawn) for drawn in sampled)


@dataclass(frozen=True, eq=False)
class _Follower:
    """Executor of the next tokens of sequences whose last tokens are a state on the device."""

    executor: Executor
    states: States
    kind: FollowerKind

    @classmethod
    def create(
        cls, executor: Executor, decoder: Decoder, states: States, kind: FollowerKind
    ) -> _Follower:
        """Return one with the weights of `executor` and its `states`."""
        own = states.copy()
        own.add("tokens", np.zeros(kind.sequences, np.int32), readable=True)
        updates = {**decoder.updates, "tokens": "next"}
        graph = decoder.following(*kind, executor.backend)
        made = executor.perform(lambda: executor.with_states(graph, own, updates))
        return cls(made, own, kind)

    def begin(self, places: Sequence[int], requests: Sequence[GenerationRequest]) -> Run:
        """Begin a run for the next tokens of `requests`. Only inside `perform`."""
        feeds = {"places": _int32(places)}
        if self.kind.sampled:
            rules = [request.sampling.rules for request in requests]
            random = [request.generator.random() for request in requests]
            feeds |= {"rules": np.array(rules, np.float32), "random": np.array(random, np.float32)}
        return self.executor.begin(feeds, ("next",), {})


@dataclass(frozen=True, eq=False)
class _Ahead:
    """A run under way, which computes the next token of each of `requests`."""

    requests: list[GenerationRequest]
    follower: _Follower
    run: Run


class Engine:
    """Continues several sequences at once, by runs of a decoder with their next tokens.

    Whoever waits for a token makes a step, which gives each sequence under way its next one; others
    that wait meanwhile have theirs from it. The prefix of a sequence that lies in the caches
    already is not computed again. Any thread may use it.
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
        """decoder: the graph, for `sequences` sequences of up to `context` tokens each. weights:
        the bytes of its weights. Raises LimitError, before anything is uploaded, where these and
        the caches need more memory than is free.
        """
        self._decoder, self.context = decoder, context
        self._slots = [Slot(i) for i in range(sequences)]
        self._asked = backend, device, gpu
        self._waiting: list[GenerationRequest] = []
        self._active: list[GenerationRequest] = []
        self._last: list[GenerationRequest] = []
        """The requests of the last step."""
        self._repeats = 0
        """How many steps before were of the same requests."""
        self._lock = process_lock()
        """Guards what is waiting, and whether a step is under way."""
        self._stepped = Condition(self._lock)  # type: ignore[arg-type]
        """Notifies of the end of each step."""
        self._stepper = 0
        """The process that makes a step: a fork in the middle of one finds none under way."""
        self.backend: Backend = open_backend(backend, device, gpu=gpu)
        check_sequences(self.backend, decoder, sequences)
        self._check_room(weights)
        self._open()

    @cached_property
    def _samples(self) -> bool:
        """True where the device draws tokens."""
        return draws_tokens(self.backend, self._decoder)

    def _check_room(self, weights: int) -> None:
        free = self.backend.perform(self.backend.available)
        copies = 1 if self.backend.in_place else 2  # each token is written beside the others
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
        """Allocate the caches; what lay in them is not there any more."""
        states = States(self.backend)
        for name, shape in self._decoder.caches.items():
            states.add(name, np.zeros(shape, np.float32))
        self._states = states
        self._executor = Executor(
            self._decoder.graph, self.backend, states=states, updates=self._decoder.updates
        )
        self._followers: dict[FollowerKind, _Follower] = {}
        """In the order in which they were used."""
        self._ahead: _Ahead | None = None
        for slot in self._slots:
            slot.tokens = []

    def _reopen(self) -> None:
        """Open a lost device again. Sequences are computed anew from their tokens."""
        backend, device, gpu = self._asked
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
        """Have `request` be continued by the steps that follow."""
        self.check(request.tokens)
        with self._lock:
            self._waiting.append(request)

    def tokens(self, request: GenerationRequest) -> Iterator[int]:
        """Yield the tokens that are added to `request`. Closing it cancels the request."""
        place = request.prompt
        try:
            while True:
                done = request.done  # first: none is added behind it
                if len(request.tokens) > place:
                    yield request.tokens[place]
                    place += 1
                elif not done:
                    with self._exclusive(partial(_lacks, request, place)) as lacking:
                        if lacking:
                            self._step()
                elif request.error is not None:
                    raise request.error
                else:
                    return
        finally:  # perhaps by the collector of garbage, in the middle of a step
            request.cancelled = True

    def step(self) -> None:
        """Compute the next token of every sequence under way, if there are any."""
        with self._exclusive(lambda: bool(self._waiting or self._active)) as needed:
            if needed:
                self._step()

    @contextmanager
    def _exclusive(self, has_work: Callable[[], bool]) -> Iterator[bool]:
        """Wait until no other thread makes a step, and keep others from it, as long as `has_work`.

        Yields whether it has.
        """
        mine = False
        try:
            with self._lock:
                self._stepped.wait_for(lambda: self._stepper != getpid() or not has_work())
                mine = has_work()
                if mine:
                    self._stepper = getpid()
            yield mine
        finally:
            if mine:
                with self._lock:
                    self._stepper = 0
                    self._stepped.notify_all()

    def _end(self, request: GenerationRequest, error: BaseException | None = None) -> None:
        """End `request`, with what its reader is to be raised; its tokens stay in the caches, for
        others to go on from.
        """
        request.error = error
        request.done = True
        if request in self._active:
            self._active.remove(request)
        if request.slot is not None:
            request.slot.taken = False
            request.slot = None

    def _free_slots(self) -> list[Slot]:
        return [slot for slot in self._slots if not slot.taken]

    def _start(self) -> None:
        """Give waiting requests slots: those whose tokens they share the most of."""
        for request in [one for one in self._active if one.cancelled]:
            self._end(request)
        with self._lock:
            for request in self._waiting:
                request.done |= request.cancelled
            waiting = [request for request in self._waiting if not request.done]
            count = len(self._free_slots())
            starting, self._waiting = waiting[:count], waiting[count:]
        for request in starting:
            slot = max(
                self._free_slots(), key=lambda one: _common_prefix(one.tokens, request.tokens)
            )
            slot.tokens = slot.tokens[: _common_prefix(slot.tokens, request.tokens)]
            slot.taken, request.slot = True, slot
            self._active.append(request)

    def _step(self) -> None:
        """Add a token to each sequence whose tokens were all computed; go on with the others'.

        What is begun ahead is of the sequences of the step before, so that no other begins before
        its results were taken.
        """
        ahead = self._ahead
        batch = [] if ahead is not None else self._next_batch()
        if ahead is None and not batch:  # all are cancelled
            return
        requests = [request for request, _ in batch] if ahead is None else ahead.requests
        try:
            if ahead is None and self._can_follow(batch):
                ahead = self._begin_following(requests)
            results = self._run(batch) if ahead is None else self._follow(ahead)
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
            self._take(request, token)

    def _fail(self, requests: Sequence[GenerationRequest], error: BaseException | None) -> None:
        """Forget what was written of `requests`, which is not known; end them with an Exception."""
        self._ahead = None
        for request in requests:
            if request.slot is not None:
                request.slot.tokens = []
            if isinstance(error, Exception):
                self._end(request, error)

    def _next_batch(self) -> list[tuple[GenerationRequest, list[int]]]:
        """Return what the next run computes: tokens of each sequence, CHUNK of prompts at most."""
        self._start()
        batch: list[tuple[GenerationRequest, list[int]]] = []
        room = CHUNK

        def remaining(request: GenerationRequest) -> int:
            assert request.slot is not None
            return len(request.tokens) - len(request.slot.tokens)

        # In equal parts, what the shorter ones do not need for the longer: nobody waits for others'
        # prompts, and none is kept waiting by shorter ones that come without end.
        order = sorted(self._active, key=remaining)
        for i, request in enumerate(order):
            assert request.slot is not None
            # The last token is computed in any case: its logits are asked for.
            have = min(len(request.slot.tokens), len(request.tokens) - 1)
            request.slot.tokens = request.slot.tokens[:have]
            part = request.tokens[have : have + max(room // (len(order) - i), 1)]
            room -= len(part)
            batch.append((request, part))
        return batch

    def _can_follow(self, batch: Sequence[tuple[GenerationRequest, list[int]]]) -> bool:
        """Return True where a plan for just these sequences' next tokens pays.

        It is there already, or is that of a single one, or they have gone on together for a while.
        """
        requests = [request for request, _ in batch]
        self._repeats = self._repeats + 1 if requests == self._last else 0
        self._last = requests
        if self.backend.device is None or len(requests) < len(self._active):
            return False
        for request, part in batch:
            assert request.slot is not None
            known = len(request.slot.tokens) + len(part) == len(request.tokens)
            drawn = request.sampling.greedy or (self._samples and request.sampling.rules)
            if not (drawn and len(part) == 1 and known):
                return False
        count = len(requests)
        known = any(count == one.sequences for one in self._followers)
        return count == 1 or known or self._repeats >= REPEATS

    def _begin_following(self, requests: Sequence[GenerationRequest]) -> _Ahead:
        """Begin with the next tokens of `requests`, all of whose tokens are known."""
        most = max(len(request.tokens) for request in requests)
        longest = next(one for one in longest_of(self.context) if one >= most)
        sampled = not all(request.sampling.greedy for request in requests)
        follower = self._follower(FollowerKind(len(requests), longest, sampled))
        follower.states.write({"tokens": _int32([request.tokens[-1] for request in requests])})
        places = self._next_places(requests)
        run = within_memory(self.backend, lambda: follower.begin(places, requests))
        for request in requests:
            assert request.slot is not None
            request.slot.tokens.append(request.tokens[-1])
        return _Ahead(list(requests), follower, run)

    def _follower(self, kind: FollowerKind) -> _Follower:
        """Return the follower of `kind`; the one that was not used for the longest goes for it."""
        follower = self._followers.pop(kind, None)
        if follower is None:
            if len(self._followers) == MOST_FOLLOWERS:
                del self._followers[next(iter(self._followers))]
            follower = _Follower.create(self._executor, self._decoder, self._states, kind)
        self._followers[kind] = follower
        return follower

    def _next_places(self, requests: Sequence[GenerationRequest]) -> list[int]:
        """Return where the next token of each of `requests` goes in the caches."""
        slots = [request.slot for request in requests if request.slot is not None]
        return [slot.index * self.context + len(slot.tokens) for slot in slots]

    def _follow(self, ahead: _Ahead, goes_on: bool = True) -> list[tuple[GenerationRequest, int]]:
        """Return the tokens of a run under way; begin the one after it before they are read.

        goes_on: False to begin none.
        """
        self._ahead = None
        goes_on = goes_on and self._goes_on(ahead.requests, ahead.follower.kind.longest)
        places = self._next_places(ahead.requests) if goes_on else []

        def follow() -> tuple[Run | None, Array]:
            begun = ahead.follower.begin(places, ahead.requests) if goes_on else None
            return begun, ahead.run.results()["next"]

        begun, tokens = within_memory(self.backend, follow)
        results = []
        for request, token in zip(ahead.requests, tokens.tolist(), strict=True):
            if request.done or request.cancelled:  # after the run was begun
                continue
            if token == NOT_A_NUMBER:
                self._end(request, logits_are_no_numbers())
                continue
            results.append((request, token))
            if begun is not None:
                assert request.slot is not None
                request.slot.tokens.append(token)
        if begun is not None:
            self._ahead = _Ahead(ahead.requests, ahead.follower, begun)
        return results

    def _goes_on(self, requests: Sequence[GenerationRequest], longest: int) -> bool:
        """Return True where the next step is of the same sequences, unless one of them ends.

        longest: tokens that they may have then.
        """
        if self._waiting and self._free_slots():
            return False
        return all(
            not (request.done or request.cancelled)
            and len(request.tokens) + 1 < self.context
            and len(request.tokens) < longest
            and len(request.tokens) + 1 - request.prompt < request.most
            for request in requests
        )

    def _run(
        self, batch: list[tuple[GenerationRequest, list[int]]]
    ) -> list[tuple[GenerationRequest, int]]:
        """Compute the tokens of `batch`; return the next token of sequences that have one."""
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
        logit_rows = logit_rows or [len(tokens) - 1]  # the graph computes one at least
        greedy = all(request.sampling.greedy for request in complete)
        found = self.compute(tokens, places, logit_rows, ["next"] if greedy else ["next", "logits"])
        for request, part in batch:
            assert request.slot is not None
            request.slot.tokens = request.slot.tokens + part
        chosen = []
        for i, request in enumerate(complete):
            token = int(found["next"][i])
            try:
                if token == NOT_A_NUMBER:
                    raise logits_are_no_numbers()
                if not request.sampling.greedy:
                    logits = found["logits"][i]
                    token = request.sampling.choose(logits, request.tokens, request.generator)
            except ModelError as error:  # of this sequence alone
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
        """Run the graph once."""
        feeds = {"tokens": tokens, "places": places, "logit_rows": logit_rows}
        arrays = {name: _int32(numbers) for name, numbers in feeds.items()}
        return self._executor.run(arrays, outputs)

    def all_outputs(self, tokens: Sequence[int], output: str) -> Array:
        """Return an output for each of `tokens`, as a sequence by itself.

        Where all slots are taken it takes one for a while: that sequence is computed anew then.
        """
        self.check(tokens)
        with self._exclusive(lambda: True):
            if self._ahead is not None:
                for request, token in self._follow(self._ahead, goes_on=False):
                    self._take(request, token)
            slot, found = (self._free_slots() or self._slots)[0], []
            slot.tokens = []
            rows = most_logits(self.backend, self._decoder)
            for first in range(0, len(tokens), rows):
                part = tokens[first : first + rows]
                begin = slot.index * self.context + first
                places = range(begin, begin + len(part))
                found.append(self.compute(part, places, range(len(part)), [output])[output])
            if not slot.taken:
                slot.tokens = list(tokens)
            return np.concatenate(found)

    def _take(self, request: GenerationRequest, token: int) -> None:
        """Add `token` to `request`, unless that ends it."""
        if token in request.ends:
            request.finish_reason = "stop"
            self._end(request)
            return
        request.tokens.append(token)
        full = len(request.tokens) >= self.context
        enough = len(request.tokens) - request.prompt >= request.most
        if request.accept(token):
            request.finish_reason = "stop"
        elif full or enough:
            request.finish_reason = "length"
        if request.finish_reason is not None:
            self._end(request)


def _lacks(request: GenerationRequest, place: int) -> bool:
    """Return True where there is no token at `place` yet, but may be one."""
    return len(request.tokens) == place and not request.done


def _int32(numbers: Sequence[int]) -> Array:
    return np.array(numbers, np.int32)


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count
