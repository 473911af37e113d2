"""The options of `open_client`, as a type: what a pool passes on to its clients."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TypedDict

import httpx
import mcp_types as types
from mcp.client.session import (
    ElicitationFnT,
    ListRootsFnT,
    LoggingFnT,
    MessageHandlerFnT,
    SamplingFnT,
)

from trio_mcp_resilient._dial import Connect
from trio_mcp_resilient._instruments import Instrument
from trio_mcp_resilient._judge import Detect
from trio_mcp_resilient._policy import Backoff, Resend


class ClientOptions(TypedDict, total=False):
    """Any options of `open_client`, but for those that a pool has a parameter of its own for."""

    http_client: httpx.AsyncClient | None
    recovery_timeout: float
    handshake_timeout: float
    drain_timeout: float
    read_timeout: float
    close_timeout: float
    keepalive: float
    mode: str
    backoff: Backoff
    get_stream: bool
    resend: Resend | str
    call_keys: bool
    detect: Detect | None
    instruments: Sequence[Instrument]
    client_info: types.Implementation | None
    log_level: types.LoggingLevel | None
    input_required_max_rounds: int
    sampling_callback: SamplingFnT | None
    elicitation_callback: ElicitationFnT | None
    list_roots_callback: ListRootsFnT | None
    logging_callback: LoggingFnT | None
    message_handler: MessageHandlerFnT | None
    ssl_context: ssl.SSLContext | None
    connect: Connect | None
