"""The errors: who acted, what is known, and nothing secret."""

from __future__ import annotations

import pytest
from mcp import MCPError

import trio_mcp_resilient
from trio_mcp_resilient import (
    ConnectionLost,
    Evidence,
    GaveUp,
    HandshakeFailed,
    OutcomeUnknown,
    Recovery,
    RequestRefused,
    ResilientError,
    SessionLost,
)
from trio_mcp_resilient._errors import twin

EVIDENCE = Evidence(3, "#1a2b3c4d", "POST tools/call answered 404", 404, "Session not found")


def test_the_text_names_session_evidence_and_reconnect() -> None:
    error = SessionLost(
        "tools/call was not executed", evidence=EVIDENCE, recovery=Recovery(4, 1.25, "refused")
    )
    assert str(error) == (
        "tools/call was not executed; "
        'evidence: POST tools/call answered 404: "Session not found" (session #1a2b3c4d, generation 3); '
        "reconnect: 4 attempts in 1.25 s, last error: refused"
    )


def test_a_single_attempt_and_a_session_without_id_read_well() -> None:
    assert str(Recovery(1, 0.5)) == "1 attempt in 0.50 s"
    assert str(Evidence(1, "", "POST ping was cut")) == "POST ping was cut (no session id, generation 1)"


@pytest.mark.parametrize(
    ("kind", "executed"),
    [
        (SessionLost, False),
        (ConnectionLost, False),
        (GaveUp, False),
        (HandshakeFailed, False),
        (OutcomeUnknown, None),
    ],
)
def test_each_says_whether_it_ran(kind: type[ResilientError], executed: bool | None) -> None:
    assert kind("x").executed is executed
    assert not isinstance(kind("x"), MCPError)


def test_a_refusal_is_an_mcp_error_too() -> None:
    error = RequestRefused("refused with 500", status=500, evidence=EVIDENCE)
    assert isinstance(error, MCPError)
    assert (error.code, error.message, error.data) == (-32603, "refused with 500", {"status": 500})
    assert error.status == 500
    assert "evidence" in str(error)


def test_all_errors_have_one_base_and_show_their_public_path() -> None:
    errors = [
        value
        for value in vars(trio_mcp_resilient).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert len(errors) == 8
    for error in errors:
        assert issubclass(error, ResilientError)
        assert error.__module__ == "trio_mcp_resilient"


def test_a_twin_of_an_error_of_ours_has_its_cause_and_its_words() -> None:
    error = GaveUp("no session", recovery=Recovery(3, 1.5, "refused"))
    error.__cause__ = ExceptionGroup("what the attempts met", [OSError("refused")])
    copy = twin(error)
    assert copy is not error
    assert type(copy) is GaveUp
    assert str(copy) == str(error)
    assert copy.__cause__ is error.__cause__
    assert copy.__traceback__ is None


def test_a_twin_of_another_error_leads_to_where_it_was_raised() -> None:
    with pytest.raises(KeyError) as caught:
        {}["missing"]
    copy = twin(caught.value)
    assert type(copy) is KeyError
    assert copy.args == ("missing",)
    assert copy.__cause__ is caught.value
    assert twin(KeyError("never raised")).__cause__ is None


def test_what_cannot_be_copied_is_told_of() -> None:
    class Stubborn(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(one + two)

    class Turncoat(Exception):
        def __reduce__(self) -> tuple[type, tuple[str]]:
            return (ValueError, ("another",))

    for error in (Stubborn(1, 2), Turncoat("mine")):
        copy = twin(error)
        assert type(copy) is ResilientError
        assert str(copy) == f"{type(error).__name__}: {error}"
        assert copy.__cause__ is error
