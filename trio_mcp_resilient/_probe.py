"""A doctor for servers: what an endpoint answers to the ids that a client may come with.

It asks on sessions of its own only, and never calls a tool. What the answers mean is
`_probe_report`'s business.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import cast, final

import trio
from mcp_types import SERVER_INFO_META_KEY

from trio_mcp_resilient._answers import Answer, Cursor, header, media_type, read_answer, read_excerpt
from trio_mcp_resilient._body import PREFIX_BYTES
from trio_mcp_resilient._detector import Verdict, classify, excerpt
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._envelope import Introduction, Params
from trio_mcp_resilient._eras import Era
from trio_mcp_resilient._errors import ConnectionLost
from trio_mcp_resilient._handshake import nobody
from trio_mcp_resilient._jsonrpc import Failure, Result, encode_notification, encode_request
from trio_mcp_resilient._probe_report import Report, Row, Step
from trio_mcp_resilient._secrets import fingerprint
from trio_mcp_resilient._session import (
    ANSWER_TYPES,
    INITIALIZE_HEADERS,
    JSON_TYPE,
    SESSION_HEADER,
    STREAM_TYPE,
    VERSION_HEADER,
    Session,
    UnusableHandshake,
)
from trio_mcp_resilient._wire import RawHeaders, Response, Wire, WireError

PATIENCE = 10.0
"""Seconds for one answer: as long as a client of both eras waits for `server/discover`."""
GOODBYE = 2.0
"""Seconds for ending the session of a probe that was broken off."""
EXCERPT_CHARS = 100

LIST = "tools/list"
"""The harmless request: every server with tools has it, and it changes nothing."""


async def probe(endpoint: Endpoint, open_wire: Callable[[], Wire], introduction: Introduction) -> Report:
    """Examine a server, each question bounded by `PATIENCE` seconds.

    Args:
        endpoint: only to be named; `open_wire` knows where it is.
        introduction: how to introduce the client.

    Raises:
        ConnectionLost: no connection was had at all.

    Cancellation: the probe's session is ended all the same, within `GOODBYE` seconds. Checkpoint: always.
    """
    wire = open_wire()
    doctor = _Doctor(wire, endpoint, introduction)
    try:
        await doctor.examine()
    finally:
        with trio.move_on_after(GOODBYE, shield=True):
            await doctor.say_goodbye()
            await wire.aclose()
    return doctor.report()


@dataclass(frozen=True)
class _Seen:
    """One answer, as far as the doctor's next question depends on it."""

    row: Row
    message: Result | Failure | None
    headers: RawHeaders


@final
class _Doctor:
    def __init__(self, wire: Wire, endpoint: Endpoint, introduction: Introduction) -> None:
        self._wire = wire
        self._endpoint = endpoint
        self._introduction = introduction
        self._ids = count(1)
        self._rows: list[Row] = []
        self._eras: list[Era] = []
        self._server = ""
        self._session: Session | None = None
        self._is_open = False
        self._unfit = ""

    async def examine(self) -> None:
        """Ask everything that makes sense to be asked."""
        await self._modern()
        if await self._legacy():
            await self._strangers()
            await self._farewell()
        if self._eras:
            self._unfit = ""
        elif not self._unfit:
            self._unfit = "it answers neither initialize nor server/discover as MCP does"

    async def say_goodbye(self) -> None:
        """End the session if it still stands."""
        if self._is_open and self._session is not None and self._session.id is not None:
            try:
                response = await self._wire.send("DELETE", self._session.get_headers)
                await response.aclose()
            except WireError:
                pass

    def report(self) -> Report:
        """Return what was found out."""
        session = self._session
        return Report(
            endpoint=str(self._endpoint),
            server=self._server,
            protocol_version="" if session is None else session.protocol_version,
            eras=tuple(self._eras),
            keeps_sessions=session is not None and session.id is not None,
            unfit=self._unfit,
            rows=tuple(self._rows),
        )

    # -- the questions ------------------------------------------------------------------------

    async def _modern(self) -> None:
        """Ask whether it speaks 2026-07-28, and if so whether it leaves session ids alone."""
        version = Session.from_discovery(
            {"supportedVersions": ["2026-07-28"], "capabilities": {}}, self._introduction
        )
        seen = await self._post(Step.DISCOVER, version, "server/discover")
        if not isinstance(seen.message, Result):
            return
        try:
            told = Session.from_discovery(seen.message.result, self._introduction)
        except UnusableHandshake:
            return
        self._eras.append(Era.MODERN)
        self._server = _name(told.result.get("_meta", {}).get(SERVER_INFO_META_KEY))
        await self._post(Step.MODERN_CALL, told, LIST)
        await self._post(Step.MODERN_ID, told, LIST, more=((SESSION_HEADER, _made_up()),))

    async def _legacy(self) -> bool:
        """Make a session and use it; return whether there is one."""
        params = self._introduction.initialize_params()
        seen = await self._send(
            Step.INITIALIZE, "POST", INITIALIZE_HEADERS, ("initialize", next(self._ids), params)
        )
        if seen.row.verdict is Verdict.AUTH:
            self._unfit = "it refused the credentials, or wants some"
        if not isinstance(seen.message, Result):
            return False
        try:
            session = Session.from_answer(seen.message.result, seen.headers)
        except UnusableHandshake as error:
            self._unfit = str(error)
            return False
        self._session, self._is_open = session, True
        self._eras.append(Era.LEGACY)
        self._server = _name(seen.message.result.get("serverInfo")) or self._server
        await self._send(
            Step.INITIALIZED, "POST", session.post_headers, ("notifications/initialized", None, {})
        )
        await self._post(Step.CALL, session, LIST)
        await self._send(Step.STREAM, "GET", session.get_headers)
        return True

    async def _strangers(self) -> None:
        """Come without an id, and with one that nobody gave out."""
        assert self._session is not None
        version = (VERSION_HEADER, self._session.protocol_version.encode("ascii"))
        posted, made_up = (ANSWER_TYPES, JSON_TYPE, version), (SESSION_HEADER, _made_up())
        if self._session.id is not None:
            await self._send(Step.NO_ID, "POST", posted, (LIST, next(self._ids), {}))
        await self._send(Step.MADE_UP, "POST", (*posted, made_up), (LIST, next(self._ids), {}))
        await self._send(Step.MADE_UP_STREAM, "GET", (STREAM_TYPE, version, made_up))

    async def _farewell(self) -> None:
        """End the session, and come back with its id."""
        assert self._session is not None
        if self._session.id is None:
            return
        seen = await self._send(Step.DELETE, "DELETE", self._session.get_headers)
        if seen.row.answered:
            self._is_open = False
            await self._post(Step.OLD, self._session, LIST)

    # -- one exchange -------------------------------------------------------------------------

    async def _post(self, step: Step, session: Session, method: str, more: RawHeaders = ()) -> _Seen:
        method, params, headers = session.dress(method, {})
        return await self._send(
            step, "POST", (*session.post_headers, *headers, *more), (method, next(self._ids), params)
        )

    async def _send(
        self,
        step: Step,
        http_method: str,
        headers: RawHeaders,
        message: tuple[str, int | None, Params] | None = None,
    ) -> _Seen:
        """Send one request and take down what comes of it; a failure is an answer like others."""
        method, request_id, params = message or (None, None, {})
        if method is None:
            body = b""
        elif request_id is None:
            body = encode_notification(method)
        else:
            body = encode_request(request_id, method, params)
        asked = _Question(
            step, http_method, method, request_id, any(name == SESSION_HEADER for name, _ in headers)
        )
        seen = await self._answer(asked, headers, body)
        self._rows.append(seen.row)
        return seen

    async def _answer(self, asked: _Question, headers: RawHeaders, body: bytes) -> _Seen:
        response: Response | None = None
        failure = f"no answer within {PATIENCE:g} s"
        try:
            with trio.move_on_after(PATIENCE):
                response = await self._wire.send(asked.http_method, headers, body, may_be_silent=True)
                return await self._read(asked, response)
        except WireError as error:
            if not self._rows and error.stage.certainly_not_executed:
                raise ConnectionLost(f"{self._endpoint}: {error}") from error
            failure = str(error)
        finally:
            if response is not None:
                await response.aclose()
        status = None if response is None else response.status
        content_type = "" if response is None else media_type(response)
        return _Seen(self._row(asked, status, content_type, b"", failure), None, ())

    async def _read(self, asked: _Question, response: Response) -> _Seen:
        content_type, cursor = media_type(response), Cursor()
        answer: Answer | None = None
        if not 200 <= response.status < 300:
            body = await read_excerpt(response)
        elif asked.request_id is not None:
            answer = await read_answer(response, asked.request_id, nobody, cursor)
            body = answer.raw[:PREFIX_BYTES]
        else:
            # A stream for messages to come has no end.
            body = b"" if asked.http_method == "GET" else await read_excerpt(response)
        message = None if answer is None else answer.message
        row = self._row(
            asked,
            response.status,
            content_type,
            body,
            _gist(message) if isinstance(message, Result) else "",
            event_ids=bool(cursor.last_event_id),
            gave_id=bool(header(response, SESSION_HEADER)),
        )
        return _Seen(row, message, response.headers)

    def _row(
        self,
        asked: _Question,
        status: int | None,
        content_type: str,
        body: bytes,
        said: str,
        *,
        event_ids: bool = False,
        gave_id: bool = False,
    ) -> Row:
        verdict = classify(
            http_method=asked.http_method,
            rpc_method=asked.rpc_method,
            session_id_sent=asked.id_sent,
            status=status or 0,
            content_type=content_type,
            body=body,
        )
        if not said:
            said = excerpt(self._without_id(body), content_type, EXCERPT_CHARS)
        return Row(asked.step, status, content_type, said, verdict, event_ids, gave_id)

    def _without_id(self, body: bytes) -> bytes:
        """Blot out the session's own id, which some servers quote, however short it is."""
        if self._session is None or self._session.id is None:
            return body
        return body.replace(self._session.id.encode("ascii"), fingerprint(self._session.id).encode("ascii"))


@dataclass(frozen=True)
class _Question:
    step: Step
    http_method: str
    rpc_method: str | None
    request_id: int | None
    id_sent: bool


def _made_up() -> bytes:
    """Return an id that looks like anybody's and is nobody's."""
    return str(uuid.uuid4()).encode("ascii")


def _name(info: object) -> str:
    if not isinstance(info, dict):
        return ""
    told = cast("dict[str, object]", info)
    return " ".join(str(told[key]) for key in ("name", "version") if isinstance(told.get(key), str))


def _gist(message: Result) -> str:
    """Say what a result holds, which its beginning would not."""
    for name, value in message.result.items():
        if isinstance(value, list) and name != "supportedVersions":
            return f"{len(cast('list[object]', value))} {name}"
    if "supportedVersions" in message.result:
        return "versions " + ", ".join(map(str, message.result["supportedVersions"]))[:EXCERPT_CHARS]
    return f"version {message.result.get('protocolVersion')!s:.20}"
