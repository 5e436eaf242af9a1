"""Connections of the HTTP server: how many there may be, and how long a client may take to send headers and to read.

uvicorn limits the size of headers and the time between two requests of a connection. It limits neither the number of
connections, nor the time that headers take, nor the time until a client reads its answer. So a few lines on each of
many connections would hold all file descriptors.
"""

from __future__ import annotations

import asyncio
import json
import math
from functools import partial
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from metastable.monitor.http_server import AGAIN, Limits

# Seconds, beyond the time for one request, that open requests have when the server stops.
GRACE = 5
# Seconds that an idle connection stays open. Clients and proxies keep theirs for up to a minute, and a request on a
# connection that the server has just closed is lost.
KEEP_ALIVE = 75


def configuration(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    """How uvicorn runs the application."""
    protocol: Any = partial(Connection, limits)
    return uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        lifespan="off",
        loop="asyncio",
        http=protocol,
        ws="none",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(limits.seconds) + GRACE,
    )


class Connection(H11Protocol):
    """A connection that is refused if there are too many.

    It is closed if the headers of a request take too long, or if the client does not read its answers.
    """

    def __init__(self, limits: Limits, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Writing is paused while any byte waits: a transport with unread bytes is never closed, only aborted.
        transport.set_write_buffer_limits(high=0)
        most = self._limits.connections
        if len(self.connections) > most:
            self._refuse(503, f"{most} connections are open; try again later", {"Retry-After": str(AGAIN)})
        else:
            self._limit_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._clear()
        self._clear_unread()

    def pause_writing(self) -> None:
        """Bytes of an answer wait for the client."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self._limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear_unread()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP request, as all other errors are answered."""
        self._refuse(400, "this is no HTTP request, or its headers are too large")

    def _limit_headers(self) -> None:
        """Run the clock while headers are awaited, or the rest of a body whose request is answered already.

        uvicorn has clocks for what lies between: the application's for a body that it reads, its own for an idle
        connection.
        """
        unread = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
        idle = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        if not (idle or unread):
            self._clear()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.seconds, self._expire)

    def _expire(self) -> None:
        if self.conn.our_state is h11.IDLE:
            self._refuse(408, f"the headers did not arrive within {self._limits.seconds:g} s")
        else:
            self.transport.close()

    def _clear(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _clear_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _refuse(self, code: int, why: str, headers: dict[str, str] | None = None) -> None:
        """Answer without a request, and close the connection."""
        if self.transport.is_closing():
            return
        body = json.dumps({"error": why}).encode()
        named = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        parts = (
            h11.Response(
                status_code=code, reason=HTTPStatus(code).phrase, headers=list((named | (headers or {})).items())
            ),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self.conn.send(part) or b"" for part in parts))
        self.transport.close()
