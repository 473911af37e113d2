"""Compressed answers, which nobody asked for, read without the bomb that may be in them.

Requests ask for `identity`. Proxies that compress all the same use gzip, so that is read, piece by
piece: a kilobyte that would inflate to a megabyte never exists as one. Any other coding, and
gzip within gzip, is refused. httpx's own decoding is not used, for it inflates each piece of the
body whole, and as often as the server says that it was compressed.
"""

from __future__ import annotations

import zlib

import trio

from trio_mcp_resilient._wire import RawHeaders, Response, Stage, WireError

PIECE_BYTES = 65536
"""The most that is inflated at a time."""


class Inflated:
    """A response with a content-encoding, whose body is decoded as it is read, or refuses to be."""

    def __init__(self, response: Response) -> None:
        self._response = response
        values = [value for name, value in response.headers if name == b"content-encoding"]
        codings = [coding.strip().lower() for value in values for coding in value.split(b",")]
        self._codings = [coding for coding in codings if coding not in (b"", b"identity")]
        # 16 more than the window's bits: a gzip header and trailer.
        self._inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._packed = b""

    @property
    def status(self) -> int:
        """The status code."""
        return self._response.status

    @property
    def headers(self) -> RawHeaders:
        """The header fields, as they came."""
        return self._response.headers

    async def receive(self) -> bytes:
        """Return the next bytes of the body, at most 64 KiB, or `b""` at its end.

        Raises:
            WireError: at `Stage.ANSWERING`, if the body was cut, is no gzip, or is encoded in
                another way.
        """
        if not self._codings:
            return await self._response.receive()
        if self._codings not in ([b"gzip"], [b"x-gzip"]):
            raise WireError(Stage.ANSWERING, "the answer is encoded in a way that was not asked for")
        if self._packed:
            # As far as the server goes nothing has to be awaited: it must not keep others waiting.
            await trio.lowlevel.checkpoint()
        while True:  # noqa: ASYNC913  # each turn takes bytes off, or awaits more
            if not self._packed:
                self._packed = await self._response.receive()
                if not self._packed:
                    return self._rest()
            piece = self._inflate()
            if piece:
                return piece

    def _inflate(self) -> bytes:
        try:
            piece = self._inflater.decompress(self._packed, PIECE_BYTES)
        except zlib.error as error:
            raise WireError(Stage.ANSWERING, "the answer is not the gzip it says it is") from error
        # What follows the end is nobody's.
        self._packed = b"" if self._inflater.eof else self._inflater.unconsumed_tail
        return piece

    def _rest(self) -> bytes:
        if not self._inflater.eof:
            raise WireError(Stage.ANSWERING, "the compressed answer was cut")
        return b""

    async def aclose(self) -> None:
        """Close the response."""
        await self._response.aclose()
