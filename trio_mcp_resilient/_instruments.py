"""Who watches a client: what an instrument is, and how events reach all of them.

An instrument is the application's. What it raises is logged, and costs it one event; it never
costs a session.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, runtime_checkable

import trio

from trio_mcp_resilient._events import Event, Watcher, contained

logger = logging.getLogger("trio_mcp_resilient")

Carried = dict[str, object]
"""What an instrument adds to a request's `_meta`, such as the context of a trace."""


class Instrument(Protocol):
    """Watches one client, or many."""

    def event(self, event: Event, /) -> None:
        """Take a life-cycle event, in the order things happened.

        Called synchronously, so it must not block. What it raises is logged.

        Args:
            event: what happened. There may be new kinds in a later version.
        """
        ...


@runtime_checkable
class RequestInstrument(Instrument, Protocol):
    """An instrument that is also told of each request."""

    def request(self, method: str, target: str | None, /) -> AbstractContextManager[Carried]:
        """Return what is entered when a request begins and left when it ends, by its error if it fails.

        It is entered in the caller's own task and may set context variables there; what it yields
        goes into the request's `_meta`, on both POSTs if there are two.

        Args:
            method: the JSON-RPC method.
            target: the tool or prompt that is called; None for what has no name.
        """
        ...


@dataclass(slots=True)
class Instruments:
    """All that watch one client. False if nobody does, so that nothing is made for nobody."""

    watchers: list[Watcher] = field(default_factory=list[Watcher])
    tracers: tuple[RequestInstrument, ...] = ()
    _untold: list[Event] = field(default_factory=list[Event])

    @classmethod
    def of(cls, on_event: Watcher | None, instruments: Sequence[Instrument]) -> Instruments:
        """Put the application's callback and its instruments together."""
        watchers = [] if on_event is None else [contained(on_event)]
        watchers += [contained(instrument.event) for instrument in instruments]
        tracers = tuple(one for one in instruments if isinstance(one, RequestInstrument))
        return cls(watchers, tracers)

    def __bool__(self) -> bool:
        return bool(self.watchers)

    def tell(self, event: Event) -> None:
        """Tell everybody, in the order they were added, and each in the order things happened.

        What a watcher causes, such as by `Client.invalidate`, is told when all have been told of
        what it was told.
        """
        self._untold.append(event)
        if len(self._untold) > 1:
            return
        try:
            while self._untold:
                for watcher in tuple(self.watchers):
                    watcher(self._untold[0])
                self._untold.pop(0)
        finally:
            # Only a KeyboardInterrupt or the like leaves any.
            self._untold.clear()

    @contextmanager
    def around(self, method: str, params: Mapping[str, object]) -> Generator[Carried]:
        """Enter the instruments that are told of requests; yield what they add to `_meta`."""
        name = params.get("name")
        carried: Carried = {}
        with ExitStack() as stack:
            for tracer in self.tracers:
                try:
                    made = tracer.request(method, name if isinstance(name, str) else None)
                    carried.update(stack.enter_context(_Contained(made, method)))
                except Exception:
                    logger.exception("an instrument raised at the beginning of %s", method)
            yield carried

    @asynccontextmanager
    async def channel(self, max_buffered: float) -> AsyncGenerator[trio.MemoryReceiveChannel[Event], None]:
        """Open a channel of events for as long as the block runs; the oldest are dropped if it is full."""
        if max_buffered < 1:
            raise ValueError("max_buffered is a count of 1 or more: nobody waits for who receives")
        send, receive = trio.open_memory_channel[Event](max_buffered)
        # Not the application's own end, which it may have closed, and go on with a clone of it.
        oldest = receive.clone()

        def watch(event: Event) -> None:
            if oldest.statistics().open_receive_channels == 1:
                return
            try:
                send.send_nowait(event)
            except trio.WouldBlock:
                logger.warning("%s events wait to be received: the oldest was dropped", max_buffered)
                oldest.receive_nowait()
                send.send_nowait(event)

        self.watchers.append(watch)
        try:
            with send, receive, oldest:
                yield receive
        finally:
            self.watchers.remove(watch)


class _Contained(AbstractContextManager[Carried]):
    """One instrument around one request, whose failure costs no result, and which hides no error."""

    def __init__(self, made: AbstractContextManager[Carried], method: str) -> None:
        self._made = made
        self._method = method

    def __enter__(self) -> Carried:
        return self._made.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._made.__exit__(kind, error, traceback)
        except Exception as raised:
            if raised is not error:
                logger.exception("an instrument raised at the end of %s", self._method)
