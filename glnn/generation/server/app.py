"""The HTTP server: OpenAI's routes, which submit jobs to a scheduler, and its threads."""

from __future__ import annotations

import asyncio
import hmac
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from time import sleep
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from glnn.errors import GlnnError, fault, raised
from glnn.generation.language_model import LanguageModel
from glnn.generation.server import answers
from glnn.generation.server.requests import (
    ApiError,
    TextRequest,
    chat_request,
    completion_request,
    embedding_request,
)
from glnn.generation.server.scheduler import EmbeddingJob, Job, Scheduler, TextJob

MOST_BODY = 4 << 20  # bytes of a request
GRACE_S = 2  # time that connections have to end once the server stops

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class Server:
    """An OpenAI-compatible HTTP server of one language model, in threads of its own.

    Once started it listens at `url`. As a context manager it starts and stops.
    """

    def __init__(
        self,
        lm: LanguageModel,
        listener: socket.socket,
        *,
        name: str | None = None,
        api_key: str | None = None,
        most_waiting: int = 64,
    ) -> None:
        """listener: a bound socket; see `bind`. name: of the model, by default that of its file.
        api_key: the key that clients must send; None for none. most_waiting: requests that may
        wait for others; more are refused.
        """
        self._listener = listener
        self._scheduler = Scheduler(lm, most_waiting)
        api = _Api(
            lm, self._scheduler, name or lm.path.resolve().name.removesuffix(".gguf"), api_key
        )
        config = uvicorn.Config(
            api.application(), log_config=None, access_log=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=GRACE_S,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="glnn-http", daemon=True
        )
        self.url = _url(listener)
        """The server's address, as http://127.0.0.1:8080."""

    def start(self) -> None:
        """Start to listen; return once clients can connect."""
        self._scheduler.start()
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            sleep(0.01)
        if not self._server.started:
            self._scheduler.stop()
            raise GlnnError(f"the server at {self.url} did not start")

    def wait(self) -> None:
        """Wait until the server has stopped; Ctrl-C interrupts this."""
        self._thread.join()

    def stop(self) -> None:
        """Stop the server; unfinished requests fail."""
        self._scheduler.stop()
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket, which does not listen yet. port: 0 for any that is free.

    Raises GlnnError where there is no such address, or it is in use.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, number)
    except OSError as error:
        raise GlnnError(f"--host: cannot listen at {host!r}: {fault(error)}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise GlnnError(f"cannot listen at {host} port {port}: {fault(error)}") from None
    return bound


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Api:
    """The routes of a server."""

    def __init__(
        self, lm: LanguageModel, scheduler: Scheduler, name: str, api_key: str | None
    ) -> None:
        self._lm, self._scheduler, self._name = lm, scheduler, name
        self._key = None if api_key is None else api_key.encode()
        self._created = int(lm.path.stat().st_mtime)
        self._watches: set[asyncio.Task[None]] = set()

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/health", self._health),
            Route("/v1/models", self._with_key(self._models)),
            Route("/v1/models/{name:path}", self._with_key(self._model)),
            Route("/v1/chat/completions", self._with_key(self._chat), methods=["POST"]),
            Route("/v1/completions", self._with_key(self._complete), methods=["POST"]),
            Route("/v1/embeddings", self._with_key(self._embed), methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {
            ApiError: _api_error, HTTPException: _http_error, Exception: _unexpected
        }  # fmt: skip
        return Starlette(routes=routes, exception_handlers=handlers)

    def _with_key(self, handler: Handler) -> Handler:
        """Return `handler` with a check of the API key before it."""

        async def checked(request: Request) -> Response:
            if self._key is not None:
                sent = request.headers.get("authorization", "").encode("latin-1")
                scheme, _, key = sent.partition(b" ")
                is_equal = hmac.compare_digest(key.strip(), self._key)
                if scheme.lower() != b"bearer" or not is_equal:
                    reason = "the API key is wrong" if key else "an API key is needed"
                    raise ApiError(
                        401, f"{reason}: Authorization: Bearer KEY", code="invalid_api_key",
                        headers={"WWW-Authenticate": "Bearer"},
                    )  # fmt: skip
            return await handler(request)

        return checked

    async def _health(self, request: Request) -> Response:
        counts = {"running": self._scheduler.running, "waiting": self._scheduler.waiting}
        return JSONResponse({"status": "ok", "model": self._name, **counts})

    async def _models(self, request: Request) -> Response:
        return JSONResponse(answers.models(self._name, self._created))

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._name:
            reason = f"there is no model {name!r}: {self._name!r} is here"
            raise ApiError(404, reason, "model", "model_not_found")
        return JSONResponse(answers.model(self._name, self._created))

    async def _chat(self, request: Request) -> Response:
        return await self._text(request, await self._read(request, chat_request), chat=True)

    async def _complete(self, request: Request) -> Response:
        return await self._text(request, await self._read(request, completion_request), chat=False)

    async def _text(self, request: Request, text_request: TextRequest, chat: bool) -> Response:
        """Respond with a text, at once or as a stream."""
        answer = answers.TextAnswer(self._name, chat, text_request.include_usage)
        job = TextJob(text_request.tokens, text_request.options)
        self._submit(request, job)
        if text_request.stream:
            headers = {"Cache-Control": "no-cache"}
            events = self._events(job, answer)
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        async for _ in job.items():
            pass
        return JSONResponse(answer.complete(job.generation) if job.generation else {})

    async def _events(self, job: TextJob, answer: answers.TextAnswer) -> AsyncIterator[bytes]:
        """Yield the events of a stream."""
        for chunk in answer.first_chunks():
            yield answers.event(chunk)
        try:
            async for piece in job.items():
                if job.cancelled:
                    return
                yield answers.event(answer.text_chunk(piece))
                await asyncio.sleep(0)  # lets other tasks run between queued pieces
        except ApiError as error:  # the status was sent already
            yield answers.event(error.body)
            return
        for chunk in answer.last_chunks(job.generation) if job.generation else ():
            yield answers.event(chunk)
        yield answers.event("[DONE]")

    async def _embed(self, request: Request) -> Response:
        embedding = await self._read(request, embedding_request)
        job = EmbeddingJob(embedding.inputs)
        self._submit(request, job)
        vectors = [vector async for vector in job.items()]
        document = await run_in_threadpool(
            answers.embeddings, self._name, vectors, embedding.inputs, embedding.base64
        )
        return await run_in_threadpool(JSONResponse, document)

    async def _read(self, request: Request, read: Callable[[LanguageModel, bytes], T]) -> T:
        """Parse the body by `read`, in a thread: a tokenizer would block the event loop."""
        self._scheduler.check()
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > MOST_BODY:
                    reason = f"the body must have at most {MOST_BODY} bytes"
                    raise ApiError(413, reason, code="request_too_large")
        except ClientDisconnect:
            raise ApiError(400, "the body ended before its end") from None
        parsed: T = await run_in_threadpool(read, self._lm, bytes(body))
        return parsed

    def _submit(self, request: Request, job: Job) -> None:
        """Submit `job` to the scheduler; cancel it when the client disconnects."""
        self._scheduler.submit(job)

        async def cancel_on_disconnect() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self._scheduler.cancel(job)

        # The task also ends after the response, when the server reports a disconnect, too.
        watch = asyncio.create_task(cancel_on_disconnect())
        self._watches.add(watch)  # the event loop holds only a weak reference
        watch.add_done_callback(self._watches.discard)


def _response(error: ApiError) -> Response:
    return JSONResponse(error.body, error.status, error.headers)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Respond to a request that Starlette refuses: an unknown path or method."""
    assert isinstance(error, HTTPException)
    target = f"{request.method} {request.url.path}"
    reasons = {404: f"there is no {target}", 405: f"{target} is not allowed"}
    reason = reasons.get(error.status_code, error.detail)
    codes = {404: "unknown_url", 405: "method_not_allowed"}
    code = codes.get(error.status_code)
    return _response(ApiError(error.status_code, reason, code=code, headers=error.headers))


async def _unexpected(request: Request, error: Exception) -> Response:
    """Respond to a fault of the server; uvicorn logs its traceback."""
    return _response(ApiError(500, raised(error), code="failed", kind="server_error"))
