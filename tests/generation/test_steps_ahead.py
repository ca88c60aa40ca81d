"""Steps that are begun ahead, against those of the cpu backend, where none is."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from glnn.errors import DeviceError, ModelError
from glnn.generation import engine as engine_module
from glnn.generation.engine import Engine, GenerationRequest
from glnn.generation.language_model import LanguageModel
from glnn.generation.sampling import Sampling
from tests.generation.gguf_files import CONTEXT, small_model

PROMPTS = [[0, *range(2 + i, 5 + 2 * i)] for i in range(4)]
MOST = 12


@pytest.fixture(params=["compute", "feedback"])
def backend(request) -> str:
    from glnn.backends import open_backend

    try:
        open_backend(request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    return request.param


@pytest.fixture
def path(tmp_path: Path) -> Path:
    small_model(tmp_path / "m.gguf", "llama", seed=6)
    return tmp_path / "m.gguf"


def named(path: Path, backend: str) -> LanguageModel:
    try:
        return LanguageModel(path, backend=backend)
    except DeviceError as error:
        pytest.skip(str(error))


def asked(tokens: list[int], most: int = MOST, ends=()) -> GenerationRequest:
    return GenerationRequest(list(tokens), most, frozenset(ends), Sampling())


def added(engine: Engine, tokens: list[int], most: int = MOST, ends=()) -> list[int]:
    """What `engine` adds to one sequence."""
    request = asked(tokens, most, ends)
    engine.add(request)
    return list(engine.tokens(request))


@pytest.fixture
def alone(path) -> list[list[int]]:
    """What the cpu backend adds to each prompt: it begins no step ahead."""
    engine = LanguageModel(path, backend="cpu")._engine
    found = [added(engine, prompt) for prompt in PROMPTS]
    assert not engine._followers
    return found


def counted(engine: Engine) -> list[int]:
    """The numbers of tokens of the runs that a later step waits for, as they are begun."""
    runs: list[int] = []
    compute = engine.compute

    def counting(tokens, *rest):
        runs.append(len(tokens))
        return compute(tokens, *rest)

    engine.compute = counting  # type: ignore[method-assign]
    return runs


def test_only_the_prompt_is_waited_for(path, backend, alone) -> None:
    engine = LanguageModel(path, backend=backend)._engine
    waited_for = counted(engine)
    for prompt, expected in zip(PROMPTS, alone, strict=True):
        waited_for.clear()
        assert added(engine, prompt) == expected
        assert len(waited_for) == 1  # then each step is begun by the one before
    assert list(engine._followers) == [(1, CONTEXT, False)]


def test_a_step_begun_ahead_of_an_end_is_not_seen(path, backend, alone) -> None:
    engine = LanguageModel(path, backend=backend)._engine
    for prompt, expected in zip(PROMPTS, alone, strict=True):
        place = next(i for i in range(3, MOST) if expected[i] not in expected[:i])
        assert added(engine, prompt, ends=[expected[place]]) == expected[:place]
        assert added(engine, prompt) == expected  # by what lies in the caches
        assert added(engine, [*prompt, *expected[:5]], MOST - 5) == expected[5:]


def test_a_closed_stream_leaves_the_others_alone(path, backend, alone) -> None:
    engine = LanguageModel(path, backend=backend)._engine
    for prompt, expected in zip(PROMPTS, alone, strict=True):
        request = asked(prompt)
        engine.add(request)
        stream = engine.tokens(request)
        assert [next(stream), next(stream)] == expected[:2]
        stream.close()  # the step for the fourth token is under way
    for prompt, expected in zip(PROMPTS, alone, strict=True):
        assert added(engine, prompt) == expected


def test_longer_sequences_have_plans_of_their_own(path, backend, alone, monkeypatch) -> None:
    monkeypatch.setattr(engine_module, "SHORT", 2)
    engine = LanguageModel(path, backend=backend)._engine
    waited_for = counted(engine)
    for prompt, expected in zip(PROMPTS, alone, strict=True):
        assert added(engine, prompt) == expected
    assert set(engine._followers) == {(1, 8, False), (1, CONTEXT, False)} and len(
        waited_for
    ) == len(PROMPTS)


@pytest.mark.parametrize("after", [0, 3])
def test_sequences_that_go_on_together_are_begun_ahead(
    path, backend, alone, monkeypatch, after
) -> None:
    monkeypatch.setattr(engine_module, "REPEATS", after)
    engine = LanguageModel(path, backend=backend, sequences=3)._engine
    requests = [asked(prompt, MOST - i) for i, prompt in enumerate(PROMPTS)]
    for request in requests:
        engine.add(request)
    streams = [engine.tokens(request) for request in requests]
    found: list[list[int]] = [[] for _ in requests]
    left = set(range(len(requests)))
    while left:  # the fourth waits for the end of the third, which is the first to end
        for i in sorted(left):
            token = next(streams[i], None)
            if token is None:
                left.remove(i)
            else:
                found[i].append(token)
    assert found == [expected[: MOST - i] for i, expected in enumerate(alone)]
    assert (3, CONTEXT, False) in engine._followers


SAMPLED = Sampling(temperature=1.3, top_k=9, top_p=0.9, min_p=0.02, seed=11)


def drawn(engine: Engine, prompt: list[int], sampling: Sampling) -> list[int]:
    request = GenerationRequest(list(prompt), MOST, frozenset(), sampling)
    engine.add(request)
    return list(engine.tokens(request))


def test_the_device_draws_what_the_host_draws(path) -> None:
    device = named(path, "compute")._engine
    host = LanguageModel(path, backend="cpu")._engine
    waited_for = counted(device)
    for prompt in PROMPTS:
        assert drawn(device, prompt, SAMPLED) == drawn(host, prompt, SAMPLED)
    assert list(device._followers) == [(1, CONTEXT, True)] and len(waited_for) == len(PROMPTS)
    assert drawn(host, PROMPTS[0], SAMPLED) != added(host, PROMPTS[0])


def test_greedy_and_sampled_sequences_go_on_together(path, monkeypatch) -> None:
    monkeypatch.setattr(engine_module, "REPEATS", 1)
    host = LanguageModel(path, backend="cpu")._engine
    named(path, "compute")  # or the test is skipped
    engine = LanguageModel(path, backend="compute", sequences=2)._engine
    samplings = [Sampling(), SAMPLED]
    requests = [
        GenerationRequest(list(prompt), MOST, frozenset(), sampling)
        for prompt, sampling in zip(PROMPTS, samplings, strict=False)
    ]
    for request in requests:
        engine.add(request)
    found = [list(engine.tokens(request)) for request in requests]
    assert found == [drawn(host, PROMPTS[i], one) for i, one in enumerate(samplings)]
    assert (2, CONTEXT, True) in engine._followers


@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("device", ["compute", "feedback", "cpu"])
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "drawn"])
def test_logits_that_are_no_numbers_end_a_sequence(path, device, sampling, damage) -> None:
    engine = named(path, device)._engine
    request = GenerationRequest(list(PROMPTS[0]), MOST, frozenset(), sampling)
    engine.add(request)
    stream = engine.tokens(request)
    next(stream), next(stream)
    for name in engine._states.names:
        engine._states.write({name: np.full(engine._states[name].type.shape, damage, np.float32)})
    with pytest.raises(ModelError, match="logits are no numbers"):
        list(stream)
    assert request.done and len(request.tokens) <= len(PROMPTS[0]) + 3


@pytest.mark.parametrize("device", ["compute", "feedback", "cpu"])
def test_of_sequences_those_end_whose_logits_are_no_numbers(path, alone, device) -> None:
    """Whether the next token is of a prompt or of a sequence that goes on."""
    named(path, device)  # or the test is skipped
    engine = LanguageModel(path, backend=device, sequences=2)._engine
    first, second = asked(PROMPTS[0]), asked(PROMPTS[1])
    for request in (first, second):
        engine.add(request)
    engine.step()
    assert first.slot is not None and second.slot is not None
    rows = engine.context
    (name, *_) = engine._states.names
    cache = engine._states.read([name])[name].copy()
    cache[rows * first.slot.index : rows * (first.slot.index + 1)] = np.nan
    engine._states.write({name: cache})
    with pytest.raises(ModelError, match="logits are no numbers"):
        list(engine.tokens(first))
    assert list(engine.tokens(second)) == alone[1]


def test_what_the_device_does_not_draw_is_drawn_by_the_host(path, backend) -> None:
    engine, host = named(path, backend)._engine, LanguageModel(path, backend="cpu")._engine
    penalized = Sampling(temperature=0.8, repetition_penalty=1.4, seed=2)
    assert drawn(engine, PROMPTS[1], penalized) == drawn(host, PROMPTS[1], penalized)
    assert not engine._followers


def test_a_sequence_joins_one_that_is_ahead(path, backend, alone) -> None:
    engine = LanguageModel(path, backend=backend, sequences=2)._engine
    first, second = asked(PROMPTS[0]), asked(PROMPTS[1])
    engine.add(first)
    stream = engine.tokens(first)
    found = [next(stream) for _ in range(4)]
    engine.add(second)
    other = list(engine.tokens(second))
    assert found + list(stream) == alone[0] and other == alone[1]


def test_others_are_given_their_tokens_while_one_waits_for_a_slot(path, alone) -> None:
    engine = LanguageModel(path, backend="cpu")._engine
    first, second, most = asked(PROMPTS[0]), asked(PROMPTS[1]), 5
    seen: list[int] = []

    def accept(token: int) -> bool:
        seen.append(token)
        return len(seen) == most

    first.accept = accept
    engine.add(first)
    stream = engine.tokens(first)
    assert next(stream) == alone[0][0]
    engine.add(second)
    assert list(engine.tokens(second)) == alone[1]
    assert seen == alone[0][:most] == [alone[0][0], *stream]  # it ended without its consumer


@pytest.mark.parametrize("device", ["cpu", "compute"])
def test_logits_take_the_slot_of_a_sequence_that_goes_on(path, alone, device) -> None:
    engine = named(path, device)._engine
    expected = LanguageModel(path, backend="cpu").logits(PROMPTS[1])
    request = asked(PROMPTS[0])
    engine.add(request)
    stream = engine.tokens(request)
    found = [next(stream) for _ in range(3)]
    np.testing.assert_allclose(engine.all_outputs(PROMPTS[1], "logits"), expected, 1e-3, 1e-4)
    assert found + list(stream) == alone[0]


def test_a_request_that_is_dropped_takes_no_step(path, alone) -> None:
    engine = LanguageModel(path, backend="cpu")._engine
    for _ in range(20):
        request = asked(PROMPTS[0])
        engine.add(request)
        engine.tokens(request).close()  # it never began
        request.cancelled = True
    runs = counted(engine)
    assert added(engine, PROMPTS[1], 2) == alone[1][:2] and len(runs) == 2


def test_streams_in_circles_end_in_the_middle_of_others(path, alone) -> None:
    engine = LanguageModel(path, backend="cpu", sequences=2)._engine
    compute = engine.compute

    def collecting(*rest):
        gc.collect()
        return compute(*rest)

    engine.compute = collecting  # type: ignore[method-assign]
    gc.freeze()  # what there is already is not looked at again by each collection
    try:
        for _ in range(5):
            request = asked(PROMPTS[0])
            engine.add(request)
            circle = [engine.tokens(request)]
            next(circle[0])
            circle.append(circle)
            del circle, request
            assert added(engine, PROMPTS[1]) == alone[1]
    finally:
        gc.unfreeze()


def test_numbers_that_are_none_end_their_sequence_alone(path, alone) -> None:
    engine = LanguageModel(path, backend="cpu", sequences=2)._engine
    failing = asked(PROMPTS[0])
    failing.sampling = Sampling(temperature=1.0)

    def choose(*_):
        raise ModelError("the logits are not numbers")

    object.__setattr__(failing.sampling, "choose", choose)
    other = asked(PROMPTS[1])
    for request in (failing, other):
        engine.add(request)
    with pytest.raises(ModelError, match="the logits are not numbers"):
        list(engine.tokens(failing))
    assert list(engine.tokens(other)) == alone[1]


def test_a_fork_in_the_middle_of_a_step_can_make_its_own(path, alone) -> None:
    engine = LanguageModel(path, backend="cpu")._engine
    with engine._exclusive(lambda: True):
        child = os.fork()
        if not child:  # pytest must not go on there
            right = added(engine, PROMPTS[0]) == alone[0]
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_full_context_ends_a_sequence(path, backend, alone) -> None:
    context = len(PROMPTS[0]) + 4
    engine = LanguageModel(path, backend=backend, context=context)._engine
    assert added(engine, PROMPTS[0]) == alone[0][:4]
    assert context < CONTEXT


def test_a_lost_device_in_the_middle(path, backend, alone) -> None:
    engine = LanguageModel(path, backend=backend)._engine
    request = asked(PROMPTS[2])
    engine.add(request)
    stream = engine.tokens(request)
    found = [next(stream) for _ in range(3)]
    assert engine._pending is not None
    lost = engine.backend.device
    lost._reset_status = lambda: 0x8254
    assert found + list(stream) == alone[2] and engine.backend.device is not lost
    assert added(engine, PROMPTS[2]) == alone[2]


def test_a_stop_ends_a_text_that_nobody_reads(path) -> None:
    lm = LanguageModel(path, backend="cpu")
    whole = lm.generate(PROMPTS[0], max_tokens=MOST)
    stop = whole[4:6]
    text = lm.start(PROMPTS[0], max_tokens=40, stop=stop)
    first = next(text)
    lm.generate(PROMPTS[1], max_tokens=1)  # waits for the slot
    assert len(text.tokens) < MOST
    assert first + "".join(text) == whole[: whole.find(stop)] and text.finish_reason == "stop"
