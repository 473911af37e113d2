"""Whose client it is: an endpoint and an identity as one key, with nothing secret to be seen in it.

Headers and URLs hold secrets, so a key holds a digest of them. The digest is salted anew for each
pool: what is short enough to be guessed must not be confirmed by the fingerprint in a log.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

from trio_mcp_resilient._endpoint import Endpoint
from trio_mcp_resilient._secrets import fingerprint

IdentityHook: TypeAlias = Callable[[str, Mapping[str, str], Any], str]
"""Given the URL, the merged headers (names in lower case) and the auth object, names the identity."""


@dataclass(frozen=True)
class Key:
    """What two leases have in common that may share a client."""

    digest: bytes = field(repr=False)
    options: tuple[tuple[str, Hashable], ...] = field(repr=False)
    """What else was asked for; two who ask for different callbacks, say, are not to share a client."""
    endpoint: bytes = field(repr=False, compare=False)
    """A digest of the endpoint alone."""
    label: str = field(compare=False)
    """What is shown of it."""


class Keyring:
    """Makes the keys of one pool, which mean nothing in another."""

    def __init__(self, hook: IdentityHook | None) -> None:
        self._hook = hook
        self._salt = secrets.token_bytes(16)

    def key(
        self,
        url: str,
        headers: Mapping[str, str],
        auth: object,
        *,
        name: str | None,
        options: Mapping[str, object],
    ) -> Key:
        """Return the key of a lease.

        The auth object counts by its identity: two that are equal may still hold two people's
        tokens. Whoever uses the key keeps the object alive, so that no other gets its address.

        Args:
            url: the endpoint's; spellings of the same endpoint have the same key.
            headers: merged, with their names in lower case; their order does not matter.
            auth: an auth object, or None.
            name: what to show as the label, instead of the endpoint and a fingerprint.
            options: what else was asked for.

        Raises:
            ValueError: if the URL is no endpoint.
            Exception: whatever the hook raises.
        """
        endpoint = Endpoint.parse(url)
        there = self._digest(("endpoint", endpoint.url))
        if self._hook is not None:
            # The endpoint stays in the key: nobody means to call one server on another's client.
            digest = self._digest(("named", endpoint.url, self._hook(url, headers, auth)))
            others: tuple[tuple[str, Hashable], ...] = ()
        else:
            fields = [part for pair in sorted(headers.items()) for part in pair]
            who = "" if auth is None else str(id(auth))
            digest = self._digest(("given", endpoint.url, who, *fields))
            others = tuple((option, _comparable(value)) for option, value in sorted(options.items()))
        return Key(digest, others, there, name or f"{endpoint} {fingerprint(digest.hex())}")

    def endpoint(self, url: str) -> bytes:
        """Return what the keys of an endpoint have in common."""
        return self._digest(("endpoint", Endpoint.parse(url).url))

    def _digest(self, parts: Iterable[str]) -> bytes:
        digest = blake2b(key=self._salt, digest_size=16)
        for part in parts:
            encoded = part.encode("utf-8", "surrogatepass")
            # With its length before it, so that no two lists of parts read the same.
            digest.update(len(encoded).to_bytes(8, "big"))
            digest.update(encoded)
        return digest.digest()


def merged(*layers: Mapping[str, str] | None) -> dict[str, str]:
    """Merge header fields, the later ones winning, as they will go out: names in lower case."""
    return {name.lower(): value.strip() for layer in layers for name, value in (layer or {}).items()}


class _Equal:
    """Something that can be compared and not hashed, such as a pydantic model."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __hash__(self) -> int:
        return hash(type(self._value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Equal) and self._value == other._value


def _comparable(value: object) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return _Equal(value)
    return value
