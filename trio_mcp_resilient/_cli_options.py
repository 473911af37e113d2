"""What a command is told of the server it talks to, and the client it makes of that."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import mcp_types as types

from trio_mcp_resilient._cli_output import UsageError
from trio_mcp_resilient._client import Client
from trio_mcp_resilient._dial import Connect
from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._eras import Mode
from trio_mcp_resilient._events import Watcher
from trio_mcp_resilient._http import wire_opener
from trio_mcp_resilient._open import open_client
from trio_mcp_resilient._patience import Patience
from trio_mcp_resilient._policy import Backoff
from trio_mcp_resilient._wire import Wire

ATTEMPTS = 6
"""How often a server that is down is tried by default: for about 3 s. Who types a command wants to
know soon that nobody is there; who writes a script can say otherwise."""
CLOSING_SECONDS = 1.0
RECOVERY_SECONDS = 30.0


def client_info() -> types.Implementation:
    """Return how the command line introduces itself to servers."""
    return types.Implementation(name="trio-mcp", version=own_version())


def own_version() -> str:
    """Return the package's version; a checkout that was never installed has none."""
    try:
        return version("trio-mcp-resilient")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class Target:
    """A server, and how to talk to it."""

    url: str = field(repr=False)
    """Its query may hold a secret."""
    headers: Mapping[str, str] = field(repr=False)
    mode: str
    attempts: int
    """How often a server that is down is tried; 0 for no end."""
    timeout: float
    """Seconds for everything; infinite for no end."""
    connect: Connect | None = None
    """As of `open_client`; no option sets it."""

    @property
    def endpoint(self) -> Endpoint:
        """The URL, taken apart."""
        return Endpoint.parse(self.url)

    @asynccontextmanager
    async def client(
        self,
        *,
        get_stream: bool = False,
        resend: str = "refused",
        for_ever: bool = False,
        on_event: Watcher | None = None,
    ) -> AsyncGenerator[Client, None]:
        """Open a client.

        Args:
            get_stream: as of `open_client`; most commands are over before anything comes by it.
            resend: likewise.
            for_ever: whether a server that is down is awaited without end.
            on_event: likewise.
        """
        async with open_client(
            self.url,
            headers=self.headers,
            mode=self.mode,
            recovery_timeout=math.inf if for_ever else min(self.timeout, RECOVERY_SECONDS),
            close_timeout=CLOSING_SECONDS,
            backoff=Backoff(attempts=0 if for_ever else self.attempts),
            get_stream=get_stream,
            resend=resend,
            on_event=on_event,
            client_info=client_info(),
            connect=self.connect,
        ) as client:
            yield client


def wire_of(target: Target) -> Callable[[], Wire]:
    """Return what opens a way out to a target, for whoever speaks HTTP by hand.

    Raises:
        ValueError: the URL or a header is none.
    """
    return wire_opener(
        target.endpoint,
        headers=target.headers,
        auth=None,
        http_client=None,
        ssl_context=None,
        connect=target.connect,
        read_timeout=math.inf,
        patience=Patience(),
    )


def target_of(options: argparse.Namespace) -> Target:
    """Read what `add_target` has put on a command line.

    Raises:
        UsageError: it makes no sense.
    """
    headers = dict(cast("list[tuple[str, str]]", options.header))
    if options.bearer_env is not None:
        token = os.environ.get(options.bearer_env, "").strip()
        if not token:
            raise UsageError(f"--bearer-env: the environment has no {options.bearer_env}, or an empty one")
        headers["Authorization"] = f"Bearer {token}"
    target = Target(options.url, headers, options.mode, options.attempts, options.timeout)
    try:
        Mode.parse(target.mode)
        # It checks the URL and the headers, before anything is sent.
        wire_of(target)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return target


def add_target(parser: argparse.ArgumentParser, *, mode: bool = True, limits: bool = True) -> None:
    """Let a command be told of a server.

    Args:
        parser: the command's.
        mode: whether it may choose the era.
        limits: whether it may choose how long it takes, and how often a server that is down is tried.
    """
    parser.add_argument("url", metavar="URL", help="the server's streamable HTTP endpoint")
    parser.add_argument(
        "--header",
        metavar="'K: V'",
        type=_header,
        action="append",
        default=[],
        help="a header for every request; may be repeated",
    )
    parser.add_argument(
        "--bearer-env",
        metavar="VAR",
        help="the environment variable that holds a bearer token; it is never shown",
    )
    parser.set_defaults(mode="auto", timeout=math.inf, attempts=ATTEMPTS)
    if mode:
        parser.add_argument(
            "--mode", metavar="ERA", help="the era of the protocol: auto (the default), legacy or 2026-07-28"
        )
    if limits:
        parser.add_argument(
            "--timeout", metavar="SECONDS", type=seconds, help="for everything together (default: no end)"
        )
        parser.add_argument(
            "--attempts",
            metavar="N",
            type=count,
            help=f"how often a server that is down is tried; 0 for no end (default: {ATTEMPTS})",
        )


def seconds(text: str) -> float:
    """Read a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError("a number of seconds above 0, please")
    return value


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object, or for `-` the one on stdin."""
    try:
        value: object = json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        # The error's own text quotes nothing of what may be secret.
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object, please")
    return cast("dict[str, Any]", value)


def count(text: str) -> int:
    """Read a whole number, 0 included."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError("a whole number, please")
    return int(text)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        # Not quoted: it may be the secret without its name.
        raise argparse.ArgumentTypeError("'Name: value', please")
    return name.strip(), value.strip()
