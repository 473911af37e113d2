"""The parts of one logical connection, put together and not yet running.

What goes on top of them differs: `open_client` puts a session of the SDK's there, and
`resilient_transport` the two streams that a client of the SDK's wants.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx
import httpx2
import trio

from trio_mcp_resilient._dial import Connect
from trio_mcp_resilient._dispatcher import ResilientDispatcher
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._eras import Mode
from trio_mcp_resilient._events import StreamGap
from trio_mcp_resilient._generation import Generation, Surroundings
from trio_mcp_resilient._http import wire_opener
from trio_mcp_resilient._instruments import Instruments
from trio_mcp_resilient._judge import Detect, Judge
from trio_mcp_resilient._patience import Patience
from trio_mcp_resilient._policy import Backoff, Resend, Timeouts
from trio_mcp_resilient._sending import Sending
from trio_mcp_resilient._statistics import Counters
from trio_mcp_resilient._supervisor import Supervisor


@dataclass(frozen=True)
class Parts:
    """What one logical connection is made of."""

    name: str
    """What log lines call it."""
    dispatcher: ResilientDispatcher
    supervisor: Supervisor
    counters: Counters
    instruments: Instruments


def assemble(
    url: str,
    *,
    headers: Mapping[str, str] | None,
    auth: httpx.Auth | httpx2.Auth | None,
    http_client: httpx.AsyncClient | None,
    name: str | None,
    timeouts: Timeouts,
    backoff: Backoff,
    get_stream: bool,
    mode: Mode,
    log_level: str | None,
    resend: Resend,
    call_keys: bool,
    detect: Detect | None,
    instruments: Instruments,
    ssl_context: ssl.SSLContext | None,
    connect: Connect | None,
    on_started: Callable[[Generation], None],
) -> Parts:
    """Put the parts together. The arguments are those of `open_client`; nothing is opened yet.

    Args:
        on_started: called with each new session once it stands, before any call uses it.

    Raises:
        ValueError: an argument makes no sense.
        RuntimeError: the program does not run on Trio.
    """
    if not trio.lowlevel.in_trio_task():
        # Said here: inside, it would be some internal call of Trio's that fails, and wherever it is met.
        raise RuntimeError(
            "trio_mcp_resilient runs on Trio, and this program does not: "
            "start it by trio.run(...), or by anyio.run(..., backend='trio')"
        )
    endpoint = Endpoint.parse(url)
    counters = Counters()
    sending = Sending(
        resend=resend, backoff=backoff, timeouts=timeouts, counters=counters, instruments=instruments
    )
    dispatcher = ResilientDispatcher(
        sending, call_keys=call_keys, counters=counters, instruments=instruments, log_level=log_level
    )
    patience = Patience()
    around = Surroundings(
        endpoint=endpoint,
        open_wire=wire_opener(
            endpoint,
            headers=headers,
            auth=auth,
            http_client=http_client,
            ssl_context=ssl_context,
            connect=connect,
            read_timeout=timeouts.read,
            patience=patience,
        ),
        timeouts=timeouts,
        inbound=dispatcher.inbound,
        next_id=sending.next_id,
        judge=Judge(detect),
        report=lambda generation, notice, evidence: supervisor.report(generation, notice, evidence),
        on_gap=lambda number: instruments.tell(StreamGap(number)),
        get_stream=get_stream,
        mode=mode,
        patience=patience,
    )
    supervisor = sending.supervisor = Supervisor(
        endpoint,
        lambda number: Generation(number, dispatcher.introduction, around),
        name=name or str(endpoint),
        backoff=backoff,
        timeouts=timeouts,
        counters=counters,
        prepare=dispatcher.prepare,
        on_started=on_started,
        patience=patience,
        instruments=instruments,
    )
    return Parts(name or str(endpoint), dispatcher, supervisor, counters, instruments)
