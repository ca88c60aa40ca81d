"""Templates of chats: what models' own ones use, and ones made to harm."""

from __future__ import annotations

import json
import time
import tracemalloc
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")

from glnn.errors import ModelError
from glnn.generation.chat_template import MOST_LETTERS, render
from glnn.generation.language_model import LanguageModel
from tests.generation.gguf_files import small_model
from tests.generation.test_hugging_face import folder

MESSAGES = [{"role": "user", "content": "a<b é"}, {"role": "assistant", "content": "x"}]


def written(template: str, **tokens: str) -> str:
    return render(template, MESSAGES, tokens)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "a<b é"}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}", "user"),
        ("{% for m in messages %}{% continue %}{{ m.role }}{% endfor %}.", "."),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}!", "x!"),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
        ("{% if tools is none and not documents %}a{% endif %}", "a"),
        ("{{ bos_token + '-' ~ eos_token }}{{ other_token }}", "<s>-</s>"),
        ("{{ ('a', 'b') | join(', ') }}{{ 'abab'.replace('b', 'cc') }}", "a, baccacc"),
        ("{{ 'a\nb' | indent(2) }}{{ 'aXb' | replace('X', '-') }}", "a\n  ba-b"),
        ("{{ ','.join(['a', 'b']) }}{{ 7 % 4 }}{{ 2 ** 3 }}{{ 'ab' * 2 }}", "a,b38abab"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
         "{% endfor %}{{ ns.n }}", "2"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) }}", "[1]"),
        ("{% macro g() %}<{{ caller() }}>{% endmacro %}{% call g() %}a{% endcall %}", "<a>"),
        ("{% for m in messages if m.role == 'user' recursive %}{{ loop.index }}{% endfor %}", "1"),
        ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{{ messages | map(attribute='role') | list | length }}{{ 'A' | lower }}", "2a"),
        ("{{ range(3) | list }}{{ 'a b'.split(' ')[1] }}{{ ' x '.strip() }}", "[0, 1, 2]bx"),
    ],
)  # fmt: skip
def test_templates_have_what_those_of_models_use(template, expected) -> None:
    assert written(template, bos_token="<s>", eos_token="</s>") == expected


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('no system') }}", "refuses these messages: no system"),
        ("{{ messages[0]['content'] + 1 }}", "fails: TypeError: can only concatenate"),
        ("{{ 1 / 0 }}", "fails: ZeroDivisionError: division by zero"),
        ("{{ foo.bar }}", "fails: UndefinedError: 'foo' is undefined"),
        ("a\n{% if %}", "fails in line 2: TemplateSyntaxError: Expected an expression"),
        ("{{ ''.__class__.__mro__ }}", "fails: SecurityError: access to attribute '__class__'"),
        ("{{ messages.pop() }}", "fails: SecurityError"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "fails: RecursionError"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "fails: RecursionError"),
        ("{{ '\ud800' }}" + "{{ strftime_now(1) }}", "fails: "),
    ],
)
def test_faults_of_templates_are_named(template, says) -> None:
    with pytest.raises(ModelError, match=f"the chat template {says}"):
        written(template)


LOOP = "{% for i in range(99999) %}"
HARMFUL = [
    LOOP + "{{ 'a' * 9000 }}{% endfor %}",
    "{% set n = namespace(s='a') %}" + LOOP + "{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(s='a') %}" + LOOP + "{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s=['a']) %}" + LOOP + "{% set n.s = n.s * 9 %}{% endfor %}",
    "{% set n = namespace(s='a') %}"
    + LOOP
    + "{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}{% endfor %}",
    "{% set n = namespace(s='\"') %}" + LOOP + "{% set n.s = n.s | tojson %}{% endfor %}",
    "{{ 'a' * 300000000 }}",
    "{{ 300000000 * ['a'] }}",
    "{{ (10 ** 7) ** (10 ** 6) }}",
    "{% set s = 'a' * 4000000 %}{{ s | replace('a', s) }}",
    "{% set s = 'a' * 4000000 %}{{ s.replace('a', s) }}",
    "{% set s = 'a' * 4000000 %}{{ ([s] * 999999) | join(s) }}",
    "{% set s = 'a' * 4000000 %}{{ s.join([s] * 999999) }}",
    "{{ ('\n' * 4000000) | indent(4000000) }}",
    "{{ ([1] * 4000000) | tojson(indent=4000000) }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a'.ljust(1000000000) }}",
    "{{ '\t'.expandtabs(1000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ [1] | batch(1000000000, 1) | list }}",
    "{{ lipsum(1000000000) }}",
    "{{ 'aaa'.translate({97: 'a' * 4000000}) }}",
    "{{ range(1000000000) | list }}",
    "{{ ('a' * 4000000) | list | map('replace', 'a', 'a' * 4000000) | list }}",
]


@pytest.mark.parametrize("template", HARMFUL)
def test_templates_make_no_texts_without_bounds(template) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="the chat template fails"):
            written(template)
        assert tracemalloc.get_traced_memory()[1] < 2 * MOST_LETTERS
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "template",
    [
        LOOP * 3 + "{% endfor %}" * 3,
        "{% macro a(n) %}{% if n %}{{ a(n - 1) ~ a(n - 1) }}{% endif %}{% endmacro %}{{ a(99) }}",
        "{% for i in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    ],
)
def test_templates_take_no_time_without_bounds(template) -> None:
    begun = time.process_time()
    with pytest.raises(ModelError, match="the chat template fails"):
        written(template)
    assert time.process_time() - begun < 30


def test_tokens_that_end_texts_are_the_models_own(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}{{ unk_token }}"
    }
    path = tmp_path / "m.gguf"
    end = {"tokenizer.ggml.eos_token_id": 10, "tokenizer.ggml.eot_token_id": 5}
    for ends, expected in ((end, "<s>i"), ({"tokenizer.ggml.eos_token_id": 999}, "<s>")):
        small_model(path, "llama", **more, **ends)
        assert LanguageModel(path, backend="cpu").tokenizer.chat(MESSAGES) == expected


def test_folders_say_which_tokens_end_texts(tmp_path: Path) -> None:
    folder(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    said = {"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ eos_token }}"}
    for tokenizer, end, generation, ends, chat in (
        ({"eos_token": "</s>"}, None, None, {1}, "<s></s>"),
        ({"eos_token": {"content": "</s>"}}, [4, 5], None, {1, 4, 5}, "<s></s>"),
        ({}, 4, None, {4}, "<s>c"),
        ({}, 4, 6, {6}, "<s>c"),
        ({"eos_token": "no such token"}, None, [6, 7], {6, 7}, "<s>no such token"),
        ({}, None, None, set(), "<s>"),
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**said, **tokenizer}))
        (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": end}))
        more = {} if generation is None else {"eos_token_id": generation}
        (tmp_path / "generation_config.json").write_text(json.dumps(more))
        found = LanguageModel(tmp_path, backend="cpu").tokenizer
        assert found.ends == ends and found.chat(MESSAGES) == chat
    for odd in (-1, 65, "x", True, [1, None]):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": odd}))
        with pytest.raises(
            ModelError, match=r"generation_config.json: 'eos_token_id' must be from"
        ):
            LanguageModel(tmp_path, backend="cpu")


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    folder(tmp_path, "llama")
    path = tmp_path / "tokenizer_config.json"
    several = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    for template, expected in (
        (several, "d"),
        (several[:1], ""),
        ([3, {}], ""),
        (7, ""),
        ("t", "t"),
    ):
        path.write_text(json.dumps({"chat_template": template}))
        assert LanguageModel(tmp_path, backend="cpu").tokenizer.template == expected
    (tmp_path / "chat_template.jinja").write_text("j")
    assert LanguageModel(tmp_path, backend="cpu").tokenizer.template == "j"
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.jinja").mkdir()
    with pytest.raises(ModelError, match=r"chat_template.jinja: is not a file"):
        LanguageModel(tmp_path, backend="cpu")
