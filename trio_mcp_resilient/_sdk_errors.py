"""What an error of the SDK's own session says of its session."""

from __future__ import annotations

from typing import cast

TERMINATED = "Session terminated"
CODES = {"McpError": 32600, "MCPError": -32600}
"""The class of each SDK line, and the code it uses: 1.x has a positive one, by a slip."""


def is_session_terminated(error: Exception) -> bool:
    """Tell whether an SDK session's error means that its session is gone for good.

    For people who hold an `mcp.ClientSession` of their own on the SDK's transport. It is exact
    for mcp 1.x and 2.x, where the transport makes this error of a 404 without words; a request
    that met it was not executed. Never raises. Not a checkpoint.

    Args:
        error: what a request of such a session raised.

    Returns:
        True for that error; False for any other error or object.
    """
    try:
        names = {cls.__name__ for cls in type(error).__mro__}
        data = cast("object", getattr(error, "error", None))
        code, message = getattr(data, "code", None), getattr(data, "message", None)
        known = type(code) is int and any(code == CODES[name] for name in names & CODES.keys())
        return known and type(message) is str and message == TERMINATED
    except Exception:
        # An object whose attributes raise is none of the SDK's.
        return False
