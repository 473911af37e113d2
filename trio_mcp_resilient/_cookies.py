"""The endpoint's cookies, few and small: a balancer's stickiness is one.

Without it sessions would be lost at every turn. The jar is httpx's, for its rules of what belongs
to whom; what it lacks are bounds, and a way to send back what is not ASCII.
"""

from __future__ import annotations

import httpx

from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._wire import RawHeaders, Response

MAX_COOKIES = 50
MAX_COOKIE_BYTES = 4096
"""How many cookies are kept, and how large they may be together: RFC 6265, section 6.1, asks for
room for so many of one origin, and common servers take 8 KiB of headers in all."""


class Cookies:
    """What an origin asked to be reminded of."""

    def __init__(self) -> None:
        self._cookies = httpx.Cookies()

    def keep(self, endpoint: Endpoint, response: Response) -> None:
        """Take the cookies of an answer."""
        request = httpx.Request("POST", endpoint.url)
        self._cookies.extract_cookies(httpx.Response(200, headers=list(response.headers), request=request))
        tidy(self._cookies)

    def header(self, endpoint: Endpoint) -> RawHeaders:
        """Return the header to send, if there is one."""
        request = httpx.Request("POST", endpoint.url)
        self._cookies.set_cookie_header(request)
        value = request.headers.get("cookie")
        return () if value is None else ((b"cookie", value.encode("ascii")),)


def tidy(cookies: httpx.Cookies) -> None:
    """Forget the cookies that could not be sent back, and all of them if they are too many."""
    sizes: list[int] = []
    for cookie in list(cookies.jar):
        text = cookie.name + (cookie.value or "")
        sizes.append(len(text))
        if not text.isascii():
            cookies.jar.clear(cookie.domain, cookie.path, cookie.name)
    if len(sizes) > MAX_COOKIES or sum(sizes) > MAX_COOKIE_BYTES:
        # Of so many none can be told to be the one that matters.
        cookies.clear()
