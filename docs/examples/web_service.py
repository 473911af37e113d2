"""A web service that calls tools: Starlette on hypercorn's Trio worker, and one client for all requests.

    python web_service.py http://127.0.0.1:8000/mcp
    curl 'http://127.0.0.1:8080/add?a=1&b=2'

Requests come in bursts, so when a session is lost many of them meet it at once. They share one
new session, and their users see an answer that took a little longer.
"""

from __future__ import annotations

import math
import sys
from typing import Unpack

import mcp
import mcp_types
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from trio_mcp_resilient import Backoff, Client, ClientOptions, ResilientError, State, open_client

SECONDS_PER_REQUEST = 20.0


def make_app(client: Client) -> Starlette:
    """Make the service. Its requests run at the same time, and all of them use the one client."""

    async def add(request: Request) -> Response:
        try:
            a, b = (int(request.query_params[name]) for name in ("a", "b"))
        except (KeyError, ValueError):
            return JSONResponse({"error": "a and b are whole numbers"}, 400)
        try:
            with trio.fail_after(SECONDS_PER_REQUEST):
                result = await client.call_tool("add", {"a": a, "b": b})
        except ResilientError as error:
            if error.executed is False:
                # The client goes on trying behind this answer, so coming back is worth it.
                return JSONResponse({"error": str(error)}, 503, {"Retry-After": "5"})
            # No 503: proxies and browsers may repeat what that answered.
            return JSONResponse({"error": f"this may have been done: {error}"}, 502)
        except trio.TooSlowError:
            return JSONResponse({"error": "no answer in time; this may have been done"}, 504)
        except mcp.MCPError as error:
            return JSONResponse({"error": str(error)}, 502)
        (content,) = result.content
        assert isinstance(content, mcp_types.TextContent)
        return JSONResponse({"sum": content.text})

    async def health(request: Request) -> Response:
        # For a load balancer, which may send users elsewhere meanwhile. Not for whoever restarts
        # services: a restart would bring no session sooner.
        ready = client.state is State.READY
        return JSONResponse(
            {"state": client.state.value, "sessions": client.generation}, 200 if ready else 503
        )

    return Starlette(routes=[Route("/add", add), Route("/health", health)])


async def main(
    url: str,
    bind: str = "127.0.0.1:8080",
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[ClientOptions],
) -> None:
    """Serve until interrupted; say by `task_status` at which addresses, once there is a session."""
    config = Config()
    config.bind = [bind]
    # It never gives up: an outage of the tools is no reason to end, and requests have a timeout of
    # their own. The client is outside of the server, so it is there when the last requests finish.
    patient: ClientOptions = {"recovery_timeout": math.inf, "backoff": Backoff(attempts=0), **options}
    async with open_client(url, **patient) as client:
        # The ignored error: hypercorn calls headers a list, Starlette a sequence.
        await serve(make_app(client), config, task_status=task_status)  # type: ignore[arg-type]


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
