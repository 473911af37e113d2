"""One POST on a session, from its first byte to its own verdict."""

from __future__ import annotations

from dataclasses import dataclass

from mcp.shared.exceptions import MCPError

from trio_mcp_resilient._answers import Answer, Cursor, Deliver, header, media_type, read_answer, read_excerpt
from trio_mcp_resilient._detector import Verdict, excerpt
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._eras import may_speak_otherwise
from trio_mcp_resilient._errors import Evidence, RequestRefused
from trio_mcp_resilient._handshake import retry_after
from trio_mcp_resilient._jsonrpc import Failure, InvalidMessage, RequestId, Result, decode
from trio_mcp_resilient._judge import Facts, Judge
from trio_mcp_resilient._outcome import Fate, Outcome
from trio_mcp_resilient._pacing import Pacing
from trio_mcp_resilient._secrets import without
from trio_mcp_resilient._session import Session
from trio_mcp_resilient._wire import BeforeWrite, HookFailed, RawHeaders, Response, Wire, WireError

FATES: dict[Verdict, Fate] = {
    Verdict.ANSWERED: Fate.ANSWERED,
    Verdict.SESSION_LOST: Fate.LOST,
    Verdict.OUTCOME_UNKNOWN: Fate.UNKNOWN,
    Verdict.TRANSIENT: Fate.BUSY,
    Verdict.AUTH: Fate.REFUSED,
    Verdict.REFUSED: Fate.REFUSED,
}


@dataclass(frozen=True)
class Exchange:
    """The posting side of one session."""

    wire: Wire
    endpoint: Endpoint
    session: Session
    generation: int
    judge: Judge
    pacing: Pacing

    async def request(
        self,
        method: str,
        request_id: RequestId,
        body: bytes,
        headers: RawHeaders,
        deliver: Deliver,
        cursor: Cursor,
        before_write: BeforeWrite,
        *,
        may_be_silent: bool = False,
    ) -> Outcome:
        """POST one request and read until its own verdict is known. Raises nothing expected.

        Args:
            deliver: takes the messages that come beside the answer.
            may_be_silent: whether the answer is a stream on which silence is no sign of a cut.
            cursor: moved along; with an event id in it, an answer that was cut can be resumed.
            before_write: awaited when the request is about to be written.
        """
        try:
            fields = (*self.session.post_headers, *headers)
            response = await self.wire.send(
                "POST", fields, body, may_be_silent=may_be_silent, before_write=before_write
            )
        except WireError as error:
            return self._cut(method, error)
        self.pacing.heard()
        try:
            if 200 <= response.status < 300 and response.status != 202:
                answer = await read_answer(response, request_id, deliver, cursor)
                return self.answered(method, response, answer)
            return await self._refused(method, response)
        except WireError as error:
            return self._cut(method, error)
        finally:
            await response.aclose()

    async def notify(self, method: str | None, body: bytes) -> Outcome:
        """POST a notification, or an answer to the server if `method` is None.

        Nothing is raised: nobody waits for what becomes of one. The outcome may still show
        that the session is gone.
        """
        try:
            response = await self.wire.send("POST", self.session.post_headers, body)
        except WireError as error:
            return self._cut(method or "an answer", error)
        try:
            if response.status < 300:
                return Outcome(Fate.ANSWERED)
            return await self._refused(method or "an answer", response)
        finally:
            await response.aclose()

    async def read_refusal(self, http_method: str, response: Response) -> tuple[Verdict, Evidence]:
        """Judge an answer to a GET."""
        return await self._judge(http_method, None, response, await read_excerpt(response))

    def answered(self, method: str, response: Response, answer: Answer) -> Outcome:
        """Tell an answer from a 2xx that turns out to be none."""
        message = answer.message
        if isinstance(message, Result):
            return Outcome(Fate.ANSWERED, result=message.result)
        # The raw text is the error itself, whatever framing it came in.
        verdict = self._verdict("POST", method, response, answer.raw, "application/json")
        if isinstance(message, Failure) and verdict is not Verdict.SESSION_LOST:
            return Outcome(Fate.ANSWERED, error=self._mcp_error(message))
        if verdict is Verdict.SESSION_LOST:
            evidence = self._evidence(f"POST {method} answered {response.status}", response, answer.raw)
            # What had begun to speak had begun to run.
            fate = Fate.UNKNOWN if answer.chatter else Fate.LOST
            return Outcome(fate, evidence=evidence, session_gone=True)
        ended = f"the answer to POST {method} ended without a result"
        return Outcome(Fate.UNKNOWN, evidence=self._evidence(ended, response, answer.raw))

    async def _refused(self, method: str, response: Response) -> Outcome:
        body = await read_excerpt(response)
        verdict, evidence = await self._judge("POST", method, response, body)
        fate = FATES[verdict]
        if response.status == 202:
            # Accepted is the answer to a notification; a request's answer would have come here.
            return Outcome(Fate.UNKNOWN, evidence=evidence)
        if fate in (Fate.LOST, Fate.UNKNOWN):
            return Outcome(fate, evidence=evidence)
        failure = _failure_in(body)
        error = (
            self._mcp_error(failure)
            if failure
            else RequestRefused(
                f"{self.endpoint} refused {method} with {response.status}",
                status=response.status,
                evidence=evidence,
            )
        )
        in_doubt = may_speak_otherwise(self.session.protocol_version, response.status, body)
        return Outcome(fate, error=error, evidence=evidence, pause=retry_after(response), in_doubt=in_doubt)

    async def _judge(
        self, http_method: str, method: str | None, response: Response, body: bytes
    ) -> tuple[Verdict, Evidence]:
        content_type = header(response, b"content-type")
        verdict = self._verdict(http_method, method, response, body, content_type)
        what = (
            f"{http_method} {method} answered {response.status}"
            if method
            else f"GET answered {response.status}"
        )
        return verdict, self._evidence(what, response, body)

    def _verdict(
        self, http_method: str, method: str | None, response: Response, body: bytes, content_type: str
    ) -> Verdict:
        session = self.session
        facts = Facts(
            http_method,
            method,
            session.id is not None,
            response.status,
            content_type,
            body,
            session.protocol_version,
        )
        return self.judge.verdict(facts)

    def _evidence(self, what: str, response: Response, body: bytes) -> Evidence:
        return Evidence(
            generation=self.generation,
            session=self.session.label,
            what=what,
            status=response.status,
            excerpt=excerpt(body, media_type(response)),
        )

    def _mcp_error(self, failure: Failure) -> MCPError:
        """Return the server's error as it is, but for the session's id, which servers like to quote."""
        message, data = without(self.session.id or "", [failure.message, failure.data])
        return MCPError(failure.code, message, data)

    def _cut(self, method: str, error: WireError) -> Outcome:
        if isinstance(error, HookFailed):
            return Outcome(Fate.REFUSED, error=error.cause)
        unsent = error.stage.certainly_not_executed
        what = f"POST {method} was not sent" if unsent else f"POST {method} was cut"
        evidence = Evidence(self.generation, self.session.label, f"{what}: {error}")
        return Outcome(Fate.UNSENT if unsent else Fate.UNKNOWN, evidence=evidence)


def _failure_in(body: bytes) -> Failure | None:
    """Return the JSON-RPC error a refusal's body holds; it is the server's own word."""
    try:
        messages = decode(body)
    except InvalidMessage:
        return None
    return next((message for message in messages if isinstance(message, Failure)), None)
