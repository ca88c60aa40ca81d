"""Language models of every architecture, small and seeded, against their definitions in float64."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from glnn.errors import ModelError
from glnn.generation.architectures import ARCHITECTURES
from glnn.generation.language_model import LanguageModel
from glnn.graph.operators import QuantizedMatmul, QuantizedRows
from glnn.graph.quantization import FORMATS
from tests.generation import references
from tests.generation.gguf_files import CONTEXT, LAYERS, quantized, small_model, write
from tests.quantized import unpacked

TOKENS = [0, 5, 9, 33, 2, 2, 60, 17, 44, 8, 3, 21, 11]


def apart(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_those_of_the_definition(tmp_path: Path, backend, architecture) -> None:
    metadata, tensors = small_model(tmp_path / "m.gguf", architecture)
    lm = LanguageModel(tmp_path / "m.gguf", backend=backend)
    assert apart(lm.logits(TOKENS), references.logits(metadata, tensors, TOKENS)) < 1e-5


@pytest.mark.parametrize("form", ["q4_0", "q8_0", "f16"])
def test_weights_stay_as_the_file_has_them(tmp_path: Path, backend, form) -> None:
    metadata, tensors = small_model(tmp_path / "m.gguf", "llama", form)
    nbytes = 0
    for name, array in tensors.items():
        if array.ndim == 2:
            raw = np.frombuffer(quantized(array, form), np.uint8)
            blocks = raw.reshape(-1, FORMATS[form].block_bytes)
            tensors[name] = unpacked(form, blocks, *array.shape)
            nbytes += raw.nbytes
    lm = LanguageModel(tmp_path / "m.gguf", backend=backend)
    assert apart(lm.logits(TOKENS), references.logits(metadata, tensors, TOKENS)) < 1e-5
    nodes = [
        node
        for node in lm._engine._decoder.graph.nodes
        if isinstance(node.operator, (QuantizedMatmul, QuantizedRows))
    ]
    assert [node.operator.format for node in nodes] == [form] * (2 + 4 * LAYERS)
    held = {id(node.inputs[1]): node.inputs[1].data.nbytes for node in nodes}
    assert nbytes <= sum(held.values()) < 1.1 * nbytes


def test_several_sequences_give_what_each_alone_gives(tmp_path: Path, backend) -> None:
    small_model(tmp_path / "m.gguf", "qwen3", seed=1)
    alone = LanguageModel(tmp_path / "m.gguf", backend=backend)
    prompts = [[0, *range(2 + i, 5 + 2 * i)] for i in range(6)]
    expected = [alone.generate(one, max_tokens=6) for one in prompts]
    together = LanguageModel(tmp_path / "m.gguf", backend=backend, sequences=4)
    found: dict[int, str] = {}

    def generate(i: int) -> None:
        found[i] = together.generate(prompts[i], max_tokens=6)

    threads = [threading.Thread(target=generate, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[i] for i in range(len(prompts))] == expected


def test_streams_end_at_stops_and_when_they_are_closed(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf", "llama", seed=2)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    whole = lm.generate("abc", max_tokens=12)
    pieces = list(lm.generate("abc", max_tokens=12, stream=True))
    assert "".join(pieces) == whole and len(pieces) > 1
    stop = whole[3:5]
    assert lm.generate("abc", max_tokens=12, stop=stop) == whole[: whole.find(stop)]
    stream = lm.generate("abc", max_tokens=12, stream=True)
    first = next(stream)
    stream.close()
    assert whole.startswith(first) and lm.generate("abc", max_tokens=12) == whole


def test_a_generation_knows_its_tokens_and_why_it_ended(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf", "llama", seed=2)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    one = lm.start("abc", max_tokens=6)
    assert one.prompt_tokens == len(lm.tokenize("abc")) and one.finish_reason is None
    assert "".join(one) == one.text == lm.generate("abc", max_tokens=6)
    assert len(one.tokens) == 6 and lm.detokenize(one.tokens) == one.text
    assert one.finish_reason == "length"
    whole = lm.start("abc", max_tokens=12)
    list(whole)
    stopped = lm.start("abc", max_tokens=12, stop=whole.text[3:5])
    list(stopped)
    assert stopped.finish_reason == "stop" and len(stopped.tokens) < len(whole.tokens)
    assert stopped.tokens == whole.tokens[: len(stopped.tokens)]
    lm.tokenizer.ends = frozenset(whole.tokens[4:5])
    ended = lm.start("abc", max_tokens=12)
    list(ended)
    assert ended.finish_reason == "stop" and whole.tokens[4] not in ended.tokens
    full = lm.start([*TOKENS, *TOKENS[:9]], max_tokens=99)
    list(full)
    assert full.finish_reason == "length" and len(full.tokens) == 2


def test_one_thread_may_drive_several_texts(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf", "llama", seed=2)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu", sequences=2)
    expected = [lm.generate(one, max_tokens=9) for one in ("abc", "de", "fg")]
    several = [lm.start(one, max_tokens=9) for one in ("abc", "de", "fg")]
    lm.step()
    assert [len(one.read()) for one in several] == [1, 1, 0]
    assert [one.read() for one in several] == ["", "", ""]  # nothing was computed since
    several[1].close()
    for _ in range(20):
        lm.step()
    for one in several:
        one.read()
    assert [several[i].text for i in (0, 2)] == [expected[0], expected[2]]
    assert several[1].text == expected[1][:1] and several[1].finish_reason is None


@pytest.mark.parametrize("begun", [False, True])
def test_what_is_dropped_ends_and_waits_for_no_step(tmp_path: Path, begun) -> None:
    """Python may collect it in the thread of the device that a step waits for."""
    small_model(tmp_path / "m.gguf", "llama", seed=2)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    dropped = [lm.start("abc", max_tokens=20)]
    if begun:
        next(dropped[0])
    with lm._engine._lock:  # as a step has it
        thread = threading.Thread(target=dropped.clear)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    lm.step()
    assert not lm._engine._waiting and not lm._engine._active
    assert lm.generate("abc", max_tokens=3) and len(lm.logits([2, 3])) == 2


def test_short_prompts_without_end_keep_no_long_one_waiting(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("glnn.generation.engine.CHUNK", 4)
    small_model(tmp_path / "m.gguf", "llama", seed=2)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu", sequences=3)
    prompts = [[i, 2, 3, 5] for i in range(2, 60)]
    long = lm.start([1, *range(2, 21)], max_tokens=1)
    short = [lm.start(prompts.pop(), max_tokens=1) for _ in range(2)]
    for _ in range(20):  # of which 5 would do alone
        lm.step()
        for i, one in enumerate(short):
            one.read()
            if one.finish_reason is not None:
                short[i] = lm.start(prompts.pop(), max_tokens=1)
    assert long.read() and long.finish_reason == "length"


def test_samples_are_those_of_the_seed(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf", "llama")
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    options = {"max_tokens": 10, "temperature": 1.5, "top_k": 40, "top_p": 0.95}
    one, same = (lm.generate("abc", seed=4, **options) for _ in range(2))
    assert one == same and len({lm.generate("abc", seed=i, **options) for i in range(5)}) > 1
    assert lm.generate("abc", max_tokens=5, temperature=0.7, top_k=1) == lm.generate(
        "abc", max_tokens=5
    )


def test_chats_follow_the_template(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{% endfor %}a"
    more = {"tokenizer.chat_template": template}
    small_model(tmp_path / "m.gguf", "llama", **more)
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    messages = [{"role": "user", "content": "hi"}]
    tokens = lm.tokenizer.encode("uhia", begin=False)
    assert lm.chat(messages, max_tokens=4) == lm.generate(tokens, max_tokens=4)
    with pytest.raises(ModelError, match="a message must have a role and a content"):
        lm.chat([{"role": "user"}])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": -1}, "temperature must be from 0.0 to 1000000.0, got -1"),
        ({"top_k": 0.5}, "top_k must be an integer, got 0.5"),
        ({"max_tokens": 0}, "max_tokens must be an integer from 1 to"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"stop": [""]}, "stop must be texts that are not empty"),
    ],
)
def test_options_are_checked(tmp_path: Path, options, says) -> None:
    small_model(tmp_path / "m.gguf", "llama")
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    with pytest.raises(ModelError, match=says):
        lm.generate("abc", **options)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"general.architecture": "rwkv"}, "architecture 'rwkv' does not run here: .* llama, "),
        ({"llama.block_count": 0}, "'llama.block_count' must be from 1 to 1024, got 0"),
        ({"llama.block_count": 4}, "there is no tensor 'blk.3.attn_q.weight'"),
        ({"llama.attention.head_count": 6}, "'blk.0.attn_q.weight' must be \\(96, 32\\), got"),
        ({"llama.attention.head_count_kv": 3}, "4 heads must be a multiple of those of keys, got"),
        (
            {"llama.attention.layer_norm_rms_epsilon": math.nan},
            "must be finite in float32, got nan",
        ),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "must be 0 or more, got -1.0"),
        ({"llama.attention.scale": -1.0}, "'llama.attention.scale' must be 0 or more, got -1.0"),
        ({"llama.attention.sliding_window": -5}, "sliding_window' must be from 0 to"),
        ({"llama.rope.dimension_count": 3}, "even number of a head's 16 numbers .* got 3"),
        ({"llama.rope.dimension_count": 18}, "even number of a head's 16 numbers .* got 18"),
        ({"llama.rope.freq_base": 0.0}, "'llama.rope.freq_base' must be above 1, got 0.0"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 0},
            "'llama.rope.scaling.original_context_length' must be from 1 to",
        ),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer 'bert' does not run here: gpt2, llama do"),
        ({"tokenizer.ggml.pre": "x"}, "pre-tokenizer 'x' does not run here"),
        (
            {"llama.rope.scaling.type": "su"},
            "rope.scaling.type 'su' does not run here: none, linear",
        ),
    ],
)
def test_models_that_do_not_run_say_why(tmp_path: Path, change, says) -> None:
    small_model(tmp_path / "m.gguf", "llama", **change)
    with pytest.raises(ModelError, match=says):
        LanguageModel(tmp_path / "m.gguf", backend="cpu")


@pytest.mark.parametrize("name", ["ffn_gate.weight", "ffn_norm.weight", "attn_k.weight"])
def test_tensors_of_other_sizes_are_named(tmp_path: Path, name) -> None:
    metadata, tensors = small_model(tmp_path / "m.gguf", "llama")
    other = {**tensors, f"blk.1.{name}": tensors[f"blk.1.{name}"][1:]}
    write(tmp_path / "m.gguf", metadata, other)
    with pytest.raises(ModelError, match=f"'blk.1.{name}' must be "):
        LanguageModel(tmp_path / "m.gguf", backend="cpu")


@pytest.mark.parametrize(
    ("architecture", "name", "size"),
    [
        ("llama", "blk.0.attn_sub_norm.weight", 32),
        ("llama", "blk.0.attn_norm.bias", 32),
        ("llama", "blk.1.post_ffw_norm.weight", 32),
        ("gemma2", "output.bias", 65),
        ("gpt2", "rope_freqs.weight", 4),
        ("phi3", "blk.0.attn_q.bias", 64),
        ("qwen2", "rope_factors_short.weight.x", 8),
    ],
)
def test_tensors_that_nothing_reads_are_refused(tmp_path: Path, architecture, name, size) -> None:
    metadata, tensors = small_model(tmp_path / "m.gguf", architecture)
    write(tmp_path / "m.gguf", metadata, {**tensors, name: np.ones(size, np.float32)})
    with pytest.raises(ModelError, match=f"{architecture} has no place for: '{name}'"):
        LanguageModel(tmp_path / "m.gguf", backend="cpu")


@pytest.mark.parametrize(
    ("architecture", "change"),
    [
        ("llama", {"logit_scale": 0.1}),
        ("llama", {"residual_scale": 0.2}),
        ("llama", {"embedding_scale": 12.0}),
        ("llama", {"expert_count": 8}),
        ("llama", {"attention.clamp_kqv": 0.01}),
        ("llama", {"attention.max_alibi_bias": 8.0}),
        ("llama", {"attention.causal": False}),
        ("llama", {"a.key.of.tomorrow": "x"}),
        ("qwen2", {"attention.sliding_window": 5}),
        ("gemma3", {"rope.local.freq_base": 10000.0}),
        ("gemma2", {"rope.freq_base_swa": 10000.0}),
    ],
)
def test_keys_that_may_change_the_numbers_are_refused(tmp_path: Path, architecture, change) -> None:
    more = {f"{architecture}.{key}": one for key, one in change.items()}
    small_model(tmp_path / "m.gguf", architecture, **more)
    (key,) = more
    with pytest.raises(ModelError, match=f"'{key}' .* does not run here, and may change"):
        LanguageModel(tmp_path / "m.gguf", backend="cpu")


def test_keys_that_change_nothing_are_no_fault(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf", "llama", seed=1)
    expected = LanguageModel(tmp_path / "m.gguf", backend="cpu").logits(TOKENS)
    more = {"vocab_size": 65, "expert_count": 0, "logit_scale": 1.0, "attention.causal": True}
    named = {f"llama.{key}": one for key, one in more.items()}
    small_model(tmp_path / "m.gguf", "llama", seed=1, **named)
    found = LanguageModel(tmp_path / "m.gguf", backend="cpu").logits(TOKENS)
    np.testing.assert_array_equal(found, expected)


def test_layers_without_a_window_are_those_of_the_pattern(tmp_path: Path) -> None:
    more = {"gemma3.attention.sliding_window_pattern": 2}
    metadata, tensors = small_model(tmp_path / "m.gguf", "gemma3", **more)
    count = metadata["gemma3.block_count"]
    metadata["gemma3.global_layers"] = list(range(1, count, 2))
    found = LanguageModel(tmp_path / "m.gguf", backend="cpu").logits(TOKENS)
    assert apart(found, references.logits(metadata, tensors, TOKENS)) < 1e-5


@pytest.mark.parametrize("biased", ["q", "v", "qk"])
@pytest.mark.parametrize("forms", [{}, {"blk.1.attn_k.weight": "f16"}])
def test_some_of_several_matrices_have_biases(tmp_path: Path, biased, forms) -> None:
    metadata, tensors = small_model(tmp_path / "m.gguf", "llama")
    for i, part in enumerate(biased):
        n = len(tensors[f"blk.1.attn_{part}.weight"])
        tensors[f"blk.1.attn_{part}.bias"] = np.linspace(-1, i + 1, n).astype(np.float32)
    for name in forms:
        tensors[name] = tensors[name].astype(np.float16).astype(np.float32)
    write(tmp_path / "m.gguf", metadata, tensors, forms)
    found = LanguageModel(tmp_path / "m.gguf", backend="cpu").logits(TOKENS)
    assert apart(found, references.logits(metadata, tensors, TOKENS)) < 1e-5


def test_what_is_no_path_no_text_and_no_tokens_is_refused(tmp_path: Path) -> None:
    for path in (None, 5, b"m.gguf"):
        with pytest.raises(ModelError, match="lies in a file, expected its path, got"):
            LanguageModel(path)
    small_model(tmp_path / "m.gguf", "llama")
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    assert lm.generate("a", max_tokens=5, stop=None) == lm.generate("a", max_tokens=5)
    for stop in (5, b"x", ["a", 3], [None]):
        with pytest.raises(ModelError, match="stop must be texts that are not empty, got"):
            lm.generate("a", stop=stop)
    for tokens in (5, None):
        with pytest.raises(ModelError, match="tokens must be integers, got"):
            lm.detokenize(tokens)
    with pytest.raises(ModelError, match="a token must be from 0 to 64, got 'a'"):
        lm.detokenize("ab")
    for text in ("a\ud800", [{"role": "user", "content": "\udcff"}]):
        with pytest.raises(ModelError, match=r"text must be Unicode|no chat template"):
            lm.generate(text) if isinstance(text, str) else lm.chat(text)


def test_models_are_not_copied(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf", "llama")
    lm = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(
            TypeError, match=r"cannot be pickled or copied: .* load '.*m.gguf' where"
        ):
            copied(lm)


def test_contexts_are_at_most_the_models(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf", "llama")
    with pytest.raises(ModelError, match=f"context must be an integer from 1 to {CONTEXT}, got 99"):
        LanguageModel(tmp_path / "m.gguf", backend="cpu", context=99)


def test_too_little_memory_says_which_context_fits(tmp_path: Path, monkeypatch) -> None:
    from glnn.errors import DeviceError, LimitError

    small_model(tmp_path / "m.gguf", "llama")
    nbytes = (tmp_path / "m.gguf").stat().st_size + 3 * 4 * 2 * 2 * 16 * 10
    monkeypatch.setenv("GLNN_MEMORY", str(nbytes))
    try:
        with pytest.raises(LimitError, match=r"are free: a context of [1-9][0-9]* fits"):
            LanguageModel(tmp_path / "m.gguf", backend="compute")
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_a_generation_goes_on_after_the_drivers_reset(tmp_path: Path, backend) -> None:
    from glnn.errors import DeviceError

    small_model(tmp_path / "m.gguf", "llama", seed=5)
    expected = LanguageModel(tmp_path / "m.gguf", backend="cpu").generate(TOKENS, max_tokens=10)
    try:
        lm = LanguageModel(tmp_path / "m.gguf", backend=backend)
    except DeviceError as error:
        pytest.skip(str(error))
    stream = lm.generate(TOKENS, max_tokens=10, stream=True)
    found = next(stream) + next(stream)
    lost = lm._engine.backend.device
    lost._reset_status = lambda: 0x8254
    found += "".join(stream)
    assert found == expected and lm._engine.backend.device is not lost
    assert lm.generate(TOKENS, max_tokens=10) == expected  # by caches that were filled again


def test_caches_are_not_captured_to_where_they_are_read(tmp_path: Path, monkeypatch) -> None:
    from glnn.backends import open_backend
    from glnn.errors import DeviceError
    from glnn.gl import Program

    small_model(tmp_path / "m.gguf", "llama", seed=5)
    expected = LanguageModel(tmp_path / "m.gguf", backend="cpu").generate(TOKENS, max_tokens=10)
    try:
        open_backend("feedback")
    except DeviceError as error:
        pytest.skip(str(error))
    capture_call = Program.capture_call

    def captured_to_nans(self, array, vertices, instances, out, first=0, offset=0):
        """What is captured to is lost as a draw begins, as a driver may have it."""
        draw, arguments = capture_call(self, array, vertices, instances, out, first, offset)

        def draw_later() -> None:
            numbers = self.stride * vertices * instances // 4
            out.write(np.full(numbers, np.nan, np.float32), offset=offset)
            draw(*arguments)

        return draw_later, ()

    monkeypatch.setattr(Program, "capture_call", captured_to_nans)
    lm = LanguageModel(tmp_path / "m.gguf", backend="feedback")
    assert lm.generate(TOKENS, max_tokens=10) == expected
