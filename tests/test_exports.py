"""The public names: their list, and that they look public wherever they are shown."""

from __future__ import annotations

import inspect
import pickle
import types

import pytest

import trio_mcp_resilient

PUBLIC = {
    # What people hold.
    "open_client",
    "resilient_transport",
    "Client",
    "State",
    "Statistics",
    "Subscription",
    "open_pool",
    "Pool",
    "PoolStatistics",
    # What they choose.
    "Backoff",
    "Resend",
    "ClientOptions",
    # What they catch, and what it carries.
    "ResilientError",
    "SessionLost",
    "ConnectionLost",
    "OutcomeUnknown",
    "HandshakeFailed",
    "Instrument",
    "LoggingInstrument",
    "GaveUp",
    "RequestRefused",
    "RequestInstrument",
    "PoolFull",
    "Evidence",
    "Recovery",
    # What they watch.
    "Event",
    "StateChanged",
    "SessionStarted",
    "SessionEnded",
    "RecoveryFailed",
    "Resent",
    "OutcomeLost",
    "StreamGap",
    "RestoreFailed",
    "ToolsChanged",
    "Flapping",
    "PoolEvent",
    "ClientOpened",
    "ClientClosed",
    "Closing",
    "ClientEvent",
    # The detector: for `detect`, and for people with a session of their own.
    "classify",
    "Facts",
    "Verdict",
    "is_session_terminated",
    # The HTTP transport, useful alone.
    "TrioHTTPTransport",
}

HAVE_A_HOME = sorted(
    name for name in PUBLIC if isinstance(getattr(trio_mcp_resilient, name, None), type | types.FunctionType)
)


def visible() -> set[str]:
    return {
        name
        for name, value in vars(trio_mcp_resilient).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


def test_exactly_these_names_are_public() -> None:
    # A name more is a promise nobody meant to make; a name less breaks people.
    assert visible() == PUBLIC


@pytest.mark.parametrize("name", HAVE_A_HOME)
def test_shows_the_public_path(name: str) -> None:
    assert getattr(trio_mcp_resilient, name).__module__ == "trio_mcp_resilient"


@pytest.mark.parametrize("name", HAVE_A_HOME)
def test_is_found_again_by_pickle(name: str) -> None:
    value = getattr(trio_mcp_resilient, name)
    assert pickle.loads(pickle.dumps(value)) is value


@pytest.mark.parametrize("name", HAVE_A_HOME)
def test_has_a_docstring(name: str) -> None:
    documentation = inspect.getdoc(getattr(trio_mcp_resilient, name))
    # A dataclass without a docstring is given its signature as one.
    assert documentation and not documentation.startswith(f"{name}(")


def test_every_public_error_is_a_resilient_error() -> None:
    errors = [
        value
        for value in vars(trio_mcp_resilient).values()
        if isinstance(value, type) and issubclass(value, BaseException)
    ]
    assert errors
    assert all(issubclass(error, trio_mcp_resilient.ResilientError) for error in errors)


def test_the_client_cannot_be_subclassed_unseen() -> None:
    # `@final` is what type checkers see; it leaves this mark.
    assert trio_mcp_resilient.Client.__final__ is True
