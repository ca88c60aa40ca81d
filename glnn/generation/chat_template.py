"""Chat templates: the text of a chat, by a model's own Jinja template, rendered in a sandbox.

A template can use what transformers provides: special tokens by name, `tojson`, `raise_exception`,
`strftime_now`, `{% break %}`, `{% continue %}` and `{% generation %}`. It comes with the model and
is not trusted: its steps and the characters that it makes are limited, and methods and filters that
could make a text of any length at once are removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from glnn.errors import ModelError, raised

MOST_LETTERS = 1 << 28  # characters and list items that are made in all, intermediate ones too
MOST_STEPS = 1 << 18  # iterations of all loops and calls of all macros
MOST_POWER, MOST_BASE, MOST_INDENT = 64, 1 << 16, 64
PADDING_METHODS = frozenset(
    ("center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "translate")
)
PADDING_FILTERS = "center", "format", "batch", "slice", "wordwrap", "attr"


class _Generation(Extension):
    """The tag {% generation %}, which marks answers for training: renders its body alone."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own way)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _CountingTransformer(NodeTransformer):
    """Inserts calls that count iterations of loops, calls of macros, and joined texts."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's own way)
        return self._step(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._step(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._step(node)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        line = node.lineno
        node.filter = nodes.Filter(node.filter, "string", [], [], None, None, lineno=line)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("join_texts", node.nodes, node.lineno)

    def _step(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        count = nodes.ExprStmt(_call("count_step", [], node.lineno), lineno=node.lineno)
        node.body.insert(0, count)
        return node  # type: ignore[no-any-return]


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    """Return a call of the environment's `method`, which no template can name itself."""
    function = nodes.EnvironmentAttribute(method, lineno=line)
    return nodes.Call(function, arguments, [], None, None, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox of one rendering. Its methods raise ValueError where limits are exceeded."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        extensions = [_Generation, loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self._steps, self._letters = 0, 0
        self.filters["tojson"] = _to_json
        for name in PADDING_FILTERS:
            del self.filters[name]
        self.filters = {name: self._counting(name, f) for name, f in self.filters.items()}
        del self.globals["lipsum"]  # makes a text of any length
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now}

    def compiled(self, source: str) -> Any:
        """Return the compiled template `source`."""
        tree = _CountingTransformer().visit(self.parse(source))
        return self.from_string(tree.set_environment(self))

    def count_step(self) -> None:
        """Count an iteration of a loop, or a call."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise ValueError(f"it takes more than {MOST_STEPS} steps")

    def count_letters(self, count: int) -> None:
        """Count characters of a text, or items of a list, made now or next."""
        self._letters += count
        if self._letters > MOST_LETTERS:
            raise ValueError(f"its texts have more than {MOST_LETTERS} letters")

    def join_texts(self, *parts: object) -> str:
        """Concatenate `parts` as texts."""
        texts = [str(part) for part in parts]
        self.count_letters(sum(map(len, texts)))
        return "".join(texts)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute; those of texts in PADDING_METHODS are undefined."""
        if isinstance(obj, (str, bytes)) and attribute in PADDING_METHODS:
            return self.unsafe_undefined(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item, or else an attribute."""
        if isinstance(obj, (str, bytes)) and isinstance(argument, str):
            return self.getattr(obj, argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator."""
        if operator == "+":
            self.count_letters(_length(left) + _length(right))
        elif operator == "*":
            for sequence, times in ((left, right), (right, left)):
                self.count_letters(_length(sequence) * times if _length(sequence) else 0)
        elif operator == "**" and not (abs(left) <= MOST_BASE and abs(right) <= MOST_POWER):
            raise ValueError(f"{left} ** {right} is beyond all bounds")
        elif operator == "%" and isinstance(left, (str, bytes)):
            raise ValueError("a text has no remainder")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function or method for a template, and count its result."""
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, (str, bytes)) and name == "join" and args:
            args = (list(args[0]),)
            __self.count_letters(_joined(args[0], owner))
        elif isinstance(owner, (str, bytes)) and name == "replace":
            __self.count_letters(_replaced(owner, *args))
        result = super().call(__context, __obj, *args, **kwargs)
        __self.count_letters(_length(result))
        return result

    def _counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the filter `function` with its result counted, beforehand too where in LENGTHS."""
        length = LENGTHS.get(name, lambda *_, **__: 0)
        first = hasattr(function, "jinja_pass_arg")  # 1 behind the context or environment

        @wraps(function)
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.count_letters(length(*args[first:], **kwargs))
            result = function(*args, **kwargs)
            self.count_letters(_length(result))
            return result

        return counting


def _length(value: object) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


def _joined(value: Any, d: Any = "", attribute: object = None) -> int:
    return sum(_length(item) + _length(d) for item in value) if _length(value) else 0


def _replaced(s: Any, old: Any = "", new: Any = "", count: object = None) -> int:
    return _length(s) + s.count(old) * _length(new) if isinstance(s, (str, bytes)) else 0


def _indented(s: Any, width: Any = 4, first: object = False, blank: object = False) -> int:
    step = width if isinstance(width, int) else _length(width)
    return _length(s) + s.count("\n") * step if isinstance(s, str) else 0


LENGTHS: Mapping[str, Callable[..., int]] = {
    "join": _joined,
    "replace": _replaced,
    "indent": _indented,
}
"""The length of the result of each filter; parameters have the names of Jinja's."""


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `value` as JSON. Jinja's own filter escapes it for HTML and sorts keys."""
    if indent is not None and not (isinstance(indent, int) and indent <= MOST_INDENT):
        raise ValueError(f"tojson must indent by {MOST_INDENT} at most")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(reason: object) -> None:
    raise ModelError(f"the chat template refuses these messages: {reason}")


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def render(template: str, messages: Sequence[Mapping[str, Any]], tokens: Mapping[str, str]) -> str:
    """Return the text of `messages` up to where the answer begins.

    tokens: special tokens by their names in templates, as "eos_token". Raises ModelError where the
    template refuses the messages, fails in any way, or exceeds its limits.
    """
    parts = []
    try:
        environment = _Environment()
        pieces = environment.compiled(template).generate(
            messages=[dict(message) for message in messages], tools=None, documents=None,
            add_generation_prompt=True, **tokens,
        )  # fmt: skip
        for piece in pieces:
            environment.count_letters(len(piece))
            parts.append(piece)
    except ModelError:
        raise
    except Exception as error:
        place = f" in line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
        raise ModelError(f"the chat template fails{place}: {raised(error)}") from None
    return "".join(parts)
