"""A text that is being generated, piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from glnn.generation.engine import Engine, GenerationRequest
from glnn.generation.tokenizer import Pieces


class _Text:
    """The text of generated tokens, up to the first of the texts that end it.

    The thread that makes a step adds its tokens, so that the text ends at once, even if its reader
    is slow.
    """

    def __init__(self, pieces: Pieces, stops: tuple[str, ...]) -> None:
        self._pieces, self._stops = pieces, stops
        self._undecided = ""
        """The end of the text, which may be the beginning of one of `stops`."""
        self._stopped = False
        self.tokens: list[int] = []
        self.unread = deque[str]()
        """Pieces that are final, and have not been read."""

    def add(self, token: int) -> bool:
        """Add a token; return True where the text ends with it."""
        self.tokens.append(token)
        self._undecided += self._pieces.add(token)
        if self._cut_at_stop():
            return True
        overlap = max((_overlap(self._undecided, stop) for stop in self._stops), default=0)
        self._release(len(self._undecided) - overlap)
        return False

    def end(self) -> None:
        """Make the whole text final: no token follows."""
        if not self._stopped:
            self._undecided += self._pieces.flush()
            self._cut_at_stop()
        self._release(len(self._undecided))

    def _cut_at_stop(self) -> bool:
        """Cut the text before the first of `stops` in it; return whether there is one."""
        indices = [i for stop in self._stops if (i := self._undecided.find(stop)) >= 0]
        self._stopped = bool(indices)
        if indices:
            self._undecided = self._undecided[: min(indices)]
        return self._stopped

    def _release(self, count: int) -> None:
        """Make the first `count` undecided characters final."""
        if count:
            self.unread.append(self._undecided[:count])
            self._undecided = self._undecided[count:]


class Generation(Iterator[str]):
    """A text that is being generated: an iterator of its pieces.

    One thread at a time may iterate or read; any may close it. Closing it ends the computation, and
    so does an error.
    """

    def __init__(
        self, engine: Engine, request: GenerationRequest, pieces: Pieces, stops: tuple[str, ...]
    ) -> None:
        """request: the sequence that `engine` continues. pieces: decodes its tokens. stops: texts
        that end it.
        """
        self._text, self._request = _Text(pieces, stops), request
        request.accept = self._text.add
        engine.add(request)
        self._steps = engine.tokens(request)
        self._pieces: list[str] = []
        self.prompt_tokens = request.prompt_length
        """Number of the prompt's tokens."""
        self.finish_reason: str | None = None
        """"stop" after a token that ends texts or a text of `stop`, "length" after the most
        tokens or where the context is full; None before the end, or if it was closed.
        """

    @property
    def tokens(self) -> list[int]:
        """The tokens generated so far, including those of a text of `stop`."""
        return list(self._text.tokens)

    @property
    def text(self) -> str:
        """The text that was read so far."""
        return "".join(self._pieces)

    def __next__(self) -> str:
        """Return the next piece; computes steps until there is one."""
        while not self._request.cancelled:
            if self._text.unread:
                return self._take_piece()
            if next(self._steps, None) is None:
                self._finish()
        if self.finish_reason and self._text.unread:
            return self._take_piece()
        raise StopIteration

    def read(self) -> str:
        """Return the unread text of the tokens computed so far; computes none."""
        if self._request.done and not self._request.cancelled:
            for _ in self._steps:  # computes nothing: yields the last tokens, or raises the error
                pass
            self._finish()
        text = ""
        while self._text.unread and (self.finish_reason or not self._request.cancelled):
            text += self._take_piece()
        return text

    def _take_piece(self) -> str:
        self._pieces.append(self._text.unread.popleft())
        return self._pieces[-1]

    def _finish(self) -> None:
        self._text.end()
        self.finish_reason = self._request.finish_reason
        self.close()

    def close(self) -> None:
        """End the generation; the next step frees its slot for another."""
        self._request.cancelled = True

    def __del__(self) -> None:
        self.close()


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that `stop` begins with, but not `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
