"""The text that a model adds to a prompt, as it comes."""

from __future__ import annotations

from collections.abc import Iterator

from glnn.generation.engine import Engine, Request
from glnn.generation.tokenizer import Pieces


class Generation(Iterator[str]):
    """A text under way: an iterator of its pieces.

    One thread at a time may iterate or read; any may close it. Closing ends the computation, and
    so does an error.
    """

    def __init__(
        self, engine: Engine, request: Request, pieces: Pieces, stops: tuple[str, ...]
    ) -> None:
        """request: what `engine` continues. pieces: gives the text of its tokens. stops: texts
        that end it.
        """
        self._request, self._added = request, engine.tokens(request)
        self._whole, self._stops = pieces, stops
        self._held, self._pieces, self._ended = "", list[str](), False
        self.prompt_tokens = request.prompt
        """Number of the prompt's tokens."""
        self.tokens: list[int] = []
        """Tokens that were added, those of a text of `stop` with them."""
        self.finish_reason: str | None = None
        """"stop" after a token that ends texts or a text of `stop`, "length" after the most
        tokens or where the context is full; None before the end, or if it was closed.
        """

    @property
    def text(self) -> str:
        """The text that was added so far."""
        return "".join(self._pieces)

    def __next__(self) -> str:
        """Return the next piece, computing what it takes."""
        while not self._ended:
            if piece := self._take():
                return piece
        raise StopIteration

    def read(self) -> str:
        """Return the text of the tokens that were computed by now; computes none."""
        pieces = []
        while not self._ended and self._ready():
            pieces.append(self._take())
        return "".join(pieces)

    def close(self) -> None:
        """End it; the next step gives its place to others."""
        self._ended = self._request.cancelled = True

    def __del__(self) -> None:
        self.close()

    def _ready(self) -> bool:
        place = self.prompt_tokens + len(self.tokens)
        return self._request.done or len(self._request.tokens) > place

    def _take(self) -> str:
        """Take the next token; return the text that is certain with it, which may be empty."""
        token = next(self._added, None)
        if token is None:
            piece, self._held = self._held, ""
            self._end(self._request.finish_reason)
        else:
            self.tokens.append(token)
            self._held += self._whole.add(token)
            piece = self._certain()
        if piece:
            self._pieces.append(piece)
        return piece

    def _certain(self) -> str:
        """Return what is held up to a text of `stop`, or to what may become one."""
        places = [place for one in self._stops if (place := self._held.find(one)) >= 0]
        if places:
            self._end("stop")
            return self._held[: min(places)]
        kept = max((_overlap(self._held, one) for one in self._stops), default=0)
        piece = self._held[: len(self._held) - kept]
        self._held = self._held[len(piece) :]
        return piece

    def _end(self, reason: str | None) -> None:
        if not self._ended:  # else it was closed
            self.close()
            self.finish_reason = reason


def _overlap(text: str, stop: str) -> int:
    """Return how many last characters of `text` may be the beginning of `stop`."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
