"""The HTTP server of `metastable serve`: a monitor for programs in any language.

    POST /score    {"texts": ["…", …], "ids": ["a", 7, null, …], "slices": ["en", "de", null, …]}
                   →  {"records": […]}, one for each text, in order; "slices" only if the monitor has slices
    GET  /health   the encoder, the baseline, counts, the alarm
    GET  /metrics  the same numbers for Prometheus

A record is that of `metastable watch`; `line` is the number of the text among all texts of all requests. Errors are
{"error": "…"}:

    400  the body is not UTF-8, not JSON, or not as above        405  another method
    403  a page of another site asks                             408  headers or body do not arrive in time
    404  another path                                            413  too many bytes, texts or characters
    415  the content type is not application/json                500  the encoder failed on these texts
    503  too many texts, requests or connections; Retry-After has the seconds to wait. None of the texts is examined.
    504  the answer takes too long. Texts that no forward pass has begun with are not examined.

A client that goes away costs nothing: its texts are not examined, unless a forward pass has begun with them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

import prometheus_client
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from metastable import __version__
from metastable.addresses import answers_to, is_loopback
from metastable.encoder.texts import LONGEST_ID, Line, unusable
from metastable.monitor.service import Closed, Full, Service

# Seconds after which a refused client may try again.
AGAIN = 1
# Upper bounds, in seconds, of the buckets in the histogram of answer times.
BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class Limits:
    """What one request may ask for.

    body : bytes of a request
    texts : texts of a request
    characters : characters of a text; the encoder cuts a text at its own limit, which is far below
    requests : requests that are read or wait at the same time
    connections : connections that are open at the same time, those without a request included
    seconds : time to read the headers of a request, time to read its body, time to answer it, and time that the client
        has to read the answer
    """

    body: int = 2 * 2**20
    texts: int = 256
    characters: int = 200_000
    requests: int = 256
    connections: int = 512
    seconds: float = 30.0


def application(
    service: Service,
    registry: prometheus_client.CollectorRegistry,
    about: Mapping[str, Any],
    limits: Limits | None = None,
    host: str = "127.0.0.1",
) -> Starlette:
    """The ASGI application.

    registry : what /metrics shows; metrics about requests are added to it
    about : facts for /health: the encoder, the baseline, …
    host : the address of the server. At a loopback address, requests for other names are refused, which only pages of
        other sites send.
    """
    server = _Server(service, registry, about, limits or Limits())
    routes = [
        Route("/score", server.score, methods=["POST"]),
        Route("/health", server.health),
        Route("/metrics", server.metrics),
    ]
    handlers: Any = {HTTPException: _error, Exception: _error}
    guard = [Middleware(_Guard, host)] if is_loopback(host) else []
    return Starlette(routes=routes, middleware=guard, exception_handlers=handlers)


class _Server:
    def __init__(
        self, service: Service, registry: prometheus_client.CollectorRegistry, about: Mapping[str, Any], limits: Limits
    ) -> None:
        self.service, self.registry, self.about, self.limits = service, registry, about, limits
        self._began, self._open = time.monotonic(), 0
        own: Any = {"namespace": "metastable", "registry": registry}
        self._requests = prometheus_client.Counter("requests_total", "Requests to /score by status", ["code"], **own)
        self._seconds = prometheus_client.Histogram(
            "request_seconds", "Time to answer a request to /score", buckets=BUCKETS, **own
        )
        waiting = prometheus_client.Gauge("waiting_texts", "Texts that wait to be examined", **own)
        waiting.set_function(lambda: service.waiting)
        self._counts: dict[int, int] = {}

    async def health(self, request: Request) -> Response:
        service, monitor = self.service, self.service.monitor
        return _json(
            {
                "ready": True,
                "version": __version__,
                **self.about,
                "seconds": round(time.monotonic() - self._began, 1),
                "requests": {str(code): count for code, count in sorted(self._counts.items())},
                "waiting": service.waiting,
                "limits": {**asdict(self.limits), "waiting": service.most},
                "failures": service.failures,
                "error": service.error_name,
                **monitor.summary(),
            }
        )

    async def metrics(self, request: Request) -> Response:
        content = prometheus_client.generate_latest(self.registry)
        return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    async def score(self, request: Request) -> Response:
        began = time.perf_counter()
        code = 499  # the client went away
        self._open += 1
        try:
            rows = await self._rows(request)
            code = 200
            return _json({"records": rows})
        except ClientDisconnect:
            return Response(status_code=code)
        except HTTPException as error:
            code = error.status_code
            raise
        finally:
            self._open -= 1
            self._counts[code] = self._counts.get(code, 0) + 1
            self._requests.labels(str(code)).inc()
            if code == 200:
                self._seconds.observe(time.perf_counter() - began)

    async def _rows(self, request: Request) -> list[dict[str, Any]]:
        if self._open > self.limits.requests:
            raise _later(f"{self.limits.requests} requests are open; try again later")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "the content type must be application/json")
        try:
            async with asyncio.timeout(self.limits.seconds):
                body = await self._body(request)
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {self.limits.seconds:g} s") from None
        lines = parsed(body, self.limits, self.service.monitor.slices is not None)
        if not lines:
            return []
        try:
            answer = self.service.submit(lines)
        except Full as error:
            raise _later(str(error)) from None
        except Closed as error:
            raise _later(str(error)) from None
        return await self._answered(request, answer)

    async def _body(self, request: Request) -> bytes:
        most, found = self.limits.body, bytearray()
        too_large = HTTPException(413, f"the body has more than {most} bytes; send fewer texts at a time")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > most:
            raise too_large
        async for chunk in request.stream():
            found += chunk
            if len(found) > most:
                raise too_large
        return bytes(found)

    async def _answered(self, request: Request, answer: Future[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The answer, unless the client goes away or the time is over first: the request is then withdrawn."""
        waiting = asyncio.wrap_future(answer)
        gone = asyncio.ensure_future(_disconnected(request))
        either: set[asyncio.Future[Any]] = {waiting, gone}
        try:
            await asyncio.wait(either, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            if gone.done():
                raise ClientDisconnect
            raise HTTPException(504, f"the texts were not scored within {self.limits.seconds:g} s; try again later")
        finally:
            gone.cancel()
            # This cancels `answer` too, unless the worker has begun with it.
            waiting.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Guard:
    """Refuses requests for names that are not those of this machine. See `addresses.answers_to`."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: Callable[[Scope, Receive, Send], Awaitable[None]] = self.app
        if scope["type"] == "http":
            name = Request(scope).headers.get("host", "")
            if not answers_to(name, self.host):
                app = _json({"error": f"this server does not answer requests for the host {name!r}"}, 403)
        await app(scope, receive, send)


def parsed(body: bytes, limits: Limits, sliced: bool) -> list[Line]:
    """The texts in the body of a request, with their ids and slices; HTTPException if it is not as it should be.

    sliced : whether texts may have slices
    """
    try:
        found = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        where = f"byte 0x{body[error.start]:02x} at place {error.start + 1}"
        raise HTTPException(400, f"the body is not UTF-8 ({where})") from None
    except json.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not usable JSON: it is too deep, or a number is too long") from None
    named = ("ids", "slices") if sliced else ("ids",)
    more = " and ".join(f'"{name}"' for name in named)
    wanted = f'give {{"texts": ["…", …]}}, and perhaps {more} of the same length'
    if not isinstance(found, dict) or not isinstance(found.get("texts"), list):
        raise HTTPException(400, f"the body has no list of texts; {wanted}")
    if "slices" in found and not sliced:
        raise HTTPException(400, "the body has slices, and the server was started without --slices")
    if other := sorted(set(found) - {"texts", *named}):
        raise HTTPException(400, f"the body has a field {other[0][:40]!r}, which is not known; {wanted}")
    texts = found["texts"]
    ids, slices = (_names(name, found.get(name), len(texts)) for name in ("ids", "slices"))
    if len(texts) > limits.texts:
        raise HTTPException(413, f"the request has {len(texts)} texts; send at most {limits.texts} at a time")
    return [_line(place, *given, limits) for place, given in enumerate(zip(texts, ids, slices, strict=True))]


def _names(field: str, given: Any, texts: int) -> list[Any]:
    """The ids or the slices of a request, one for each text. given : the value of the field, or None"""
    names = [None] * texts if given is None else given
    if not isinstance(names, list) or len(names) != texts:
        held = f"{len(names)} of them" if isinstance(names, list) else f"a value of type {type(names).__name__}"
        raise HTTPException(400, f"{field} holds {held} for {texts} texts; give one value, or null, for each text")
    for place, name in enumerate(names):
        right = isinstance(name, str | int | None) and not isinstance(name, bool)
        if not right or (isinstance(name, str) and unusable(name)):
            allowed = "give a string, a whole number or null"
            raise HTTPException(400, f"{field}[{place}] is {str(name)[:40]!r}; {allowed}")
        if len(str(name)) > LONGEST_ID:
            raise HTTPException(413, f"{field}[{place}] is longer than {LONGEST_ID} characters; give a shorter one")
    return names


def _line(place: int, text: Any, name: str | int | None, slice: str | int | None, limits: Limits) -> Line:
    if not isinstance(text, str):
        raise HTTPException(400, f"texts[{place}] is of type {type(text).__name__}; texts are strings")
    if len(text) > limits.characters:
        most = limits.characters
        raise HTTPException(413, f"texts[{place}] has {len(text)} characters; send at most {most} of them")
    reason = unusable(text)
    return Line(place, None if reason else text, reason, name, slice=slice)


def _later(why: str) -> HTTPException:
    return HTTPException(503, why, {"Retry-After": str(AGAIN)})


def _error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        words = {404: f"there is nothing at {request.url.path[:80]}; see /score, /health and /metrics"}
        method = "POST" if request.url.path == "/score" else "GET"
        words[405] = f"{request.url.path} does not take {request.method}; send {method}"
        return _json({"error": words.get(error.status_code, error.detail)}, error.status_code, error.headers)
    return _json({"error": f"these texts could not be scored: {type(error).__name__}"}, 500)


def _json(content: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # A lone surrogate in a message is not UTF-8.
    body = json.dumps(content, ensure_ascii=False, allow_nan=False).encode(errors="replace")
    return Response(body, code, headers, "application/json")
