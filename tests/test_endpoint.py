"""The URL, taken apart and shown."""

from __future__ import annotations

import pytest

from trio_mcp_resilient._endpoint import Endpoint


def test_parts() -> None:
    endpoint = Endpoint.parse("https://Example.test:8443/a/mcp?key=s3cret")
    assert (endpoint.scheme, endpoint.host, endpoint.port) == ("https", "example.test", 8443)
    assert endpoint.target == "/a/mcp?key=s3cret"
    assert endpoint.authority == "example.test:8443"
    assert endpoint.url == "https://example.test:8443/a/mcp?key=s3cret"


def test_the_query_is_never_shown() -> None:
    endpoint = Endpoint.parse("http://h/mcp?key=s3cret")
    assert str(endpoint) == "http://h/mcp"
    assert "s3cret" not in repr(endpoint)


def test_ipv6_and_default_ports() -> None:
    assert Endpoint.parse("http://[::1]:80/x").authority == "[::1]"
    assert Endpoint.parse("http://[::1]:8080/x").url == "http://[::1]:8080/x"
    assert Endpoint.parse("https://h").target == "/"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "mcp",
        "/mcp",
        "ftp://h/x",
        "http:///x",
        "http://u:p@h/",
        "http://h/a b",
        "http://h/\u00e4",
        "http://h:99999/",
    ],
)
def test_what_is_no_endpoint_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"endpoint|credentials|[Pp]ort"):
        Endpoint.parse(wrong)


@pytest.mark.parametrize(
    ("location", "there"),
    [
        ("/mcp/", "http://h/mcp/"),
        ("http://h/other?x=1", "http://h/other?x=1"),
        ("https://h/mcp", "https://h/mcp"),
        ("https://h:444/mcp", None),
        ("http://evil/mcp", None),
        ("http://h:81/mcp", None),
        ("//evil/mcp", None),
        ("javascript:x", None),
    ],
)
def test_a_redirect_stays_on_the_origin(location: str, there: str | None) -> None:
    redirected = Endpoint.parse("http://h/mcp").redirected(location)
    assert (None if redirected is None else redirected.url) == there


def test_a_redirect_never_downgrades() -> None:
    assert Endpoint.parse("https://h/mcp").redirected("http://h/mcp") is None
