"""The endpoint: one URL, taken apart once, with a form of it that is fit to be shown."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Endpoint:
    """Where an MCP server listens."""

    scheme: str
    host: str
    port: int
    target: str
    """The path and query, as they go on the request line."""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Take an absolute http or https URL apart.

        Raises:
            ValueError: if it is anything else, or carries a user name or password, which
                belong in `auth`.
        """
        parts = urlsplit(url)
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise ValueError("an endpoint is an absolute http:// or https:// URL")
        if parts.username is not None or parts.password is not None:
            raise ValueError("credentials do not belong in the URL: pass auth= or headers=")
        if not url.isascii() or any(character <= " " for character in url):
            raise ValueError("an endpoint URL is printable ASCII: percent-encode the rest")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme], target)

    @property
    def authority(self) -> str:
        """The Host header's value: the port only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole URL. Its query may hold a secret: not for errors or logs."""
        return f"{self.scheme}://{self.authority}{self.target}"

    def __str__(self) -> str:
        """The URL without its query, which may hold a secret."""
        return f"{self.scheme}://{self.authority}{self.target.partition('?')[0]}"

    __repr__ = __str__

    def redirected(self, location: str) -> Endpoint | None:
        """Return where a redirect leads, or None if following it would leave the origin.

        Leaving the origin would hand the session id and the credentials to somebody else, so
        it is never done; http to https on default ports of the same host counts as staying.
        """
        try:
            there = Endpoint.parse(urljoin(self.url, location))
        except ValueError:
            return None
        if (there.scheme, there.host, there.port) == (self.scheme, self.host, self.port):
            return there
        upgraded = (self.scheme, self.port, there.scheme, there.port) == ("http", 80, "https", 443)
        return there if upgraded and there.host == self.host else None
