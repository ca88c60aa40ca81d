"""The text that a model adds to a prompt, as it comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from glnn.generation.engine import Engine, GenerationRequest
from glnn.generation.tokenizer import Pieces


class _Text:
    """Text of tokens as they are added, up to one of the texts that end it.

    Whoever makes a step adds them, so that a text ends at once, also where nobody reads it.
    """

    def __init__(self, pieces: Pieces, stops: tuple[str, ...]) -> None:
        self._pieces, self._stops, self._held = pieces, stops, ""
        self._stopped = False
        self.tokens: list[int] = []
        self.certain = deque[str]()
        """Pieces that nobody has read."""

    def add(self, token: int) -> bool:
        """Add a token; return True where the text ends with it."""
        self.tokens.append(token)
        self._held += self._pieces.add(token)
        if self._cut():
            return True
        kept = max((_overlap(self._held, one) for one in self._stops), default=0)
        self._pass_on(len(self._held) - kept)
        return False

    def end(self) -> None:
        """Have all that is held be certain: no token comes any more."""
        if not self._stopped:
            self._held += self._pieces.flush()
            self._cut()
        self._pass_on(len(self._held))

    def _cut(self) -> bool:
        """Hold nothing from the first text of `stop` on; return whether there is one."""
        places = [place for one in self._stops if (place := self._held.find(one)) >= 0]
        self._stopped = bool(places)
        if places:
            self._held = self._held[: min(places)]
        return self._stopped

    def _pass_on(self, count: int) -> None:
        if count:
            self.certain.append(self._held[:count])
            self._held = self._held[count:]


class Generation(Iterator[str]):
    """A text under way: an iterator of its pieces.

    One thread at a time may iterate or read; any may close it. Closing ends the computation, and
    so does an error.
    """

    def __init__(
        self, engine: Engine, request: GenerationRequest, pieces: Pieces, stops: tuple[str, ...]
    ) -> None:
        """request: what `engine` is to continue. pieces: gives the text of its tokens. stops: texts
        that end it.
        """
        self._added, self._request = _Text(pieces, stops), request
        request.accept = self._added.add
        engine.add(request)
        self._steps = engine.tokens(request)
        self._pieces: list[str] = []
        self.prompt_tokens = request.prompt
        """Number of the prompt's tokens."""
        self.finish_reason: str | None = None
        """"stop" after a token that ends texts or a text of `stop`, "length" after the most
        tokens or where the context is full; None before the end, or if it was closed.
        """

    @property
    def tokens(self) -> list[int]:
        """The tokens that were added so far, those of a text of `stop` with them."""
        return list(self._added.tokens)

    @property
    def text(self) -> str:
        """The text that was read so far."""
        return "".join(self._pieces)

    def __next__(self) -> str:
        """Return the next piece, computing what it takes."""
        while not self._request.cancelled:
            if self._added.certain:
                return self._take_piece()
            if next(self._steps, None) is None:
                self._finish()
        if self.finish_reason and self._added.certain:
            return self._take_piece()
        raise StopIteration

    def read(self) -> str:
        """Return the text of the tokens that were computed by now; computes none."""
        if self._request.done and not self._request.cancelled:
            for _ in self._steps:  # all are there; it raises what ended them
                pass
            self._finish()
        found = ""
        while self._added.certain and (self.finish_reason or not self._request.cancelled):
            found += self._take_piece()
        return found

    def _take_piece(self) -> str:
        self._pieces.append(self._added.certain.popleft())
        return self._pieces[-1]

    def _finish(self) -> None:
        self._added.end()
        self.finish_reason = self._request.finish_reason
        self.close()

    def close(self) -> None:
        """End it; the next step gives its place to others."""
        self._request.cancelled = True

    def __del__(self) -> None:
        self.close()


def _overlap(text: str, stop: str) -> int:
    """Return how many last characters of `text` may be the beginning of `stop`."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
