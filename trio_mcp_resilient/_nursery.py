"""The hidden nursery: background tasks behind a context manager, one exception out.

A nursery, or a task group of the SDK's, turns whatever leaves it into an `ExceptionGroup`. A user
who never opened one must not meet one, so the group is taken apart again, by this policy:

- `KeyboardInterrupt` and its like always win.
- The body's own exception comes out as itself, with its context, also if it is a group:
  only the nursery's own layer is removed, never one that the user made.
- Background tasks do not raise for expected losses: they record a reason and fail the
  waiters. One that raises all the same has met a bug, or a hook of the user's has raised;
  it comes out as itself if it is alone, else as the context of the body's exception.
- If there is nothing but cancellation, one `Cancelled` goes on its way.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, NoReturn, TypeVar, cast

import trio

T = TypeVar("T")


class Hidden(Generic[T]):
    """Something with a nursery in it, which never wraps what its block raises.

    A class and no generator: every client holds some of these for as long as it lives.
    """

    __slots__ = ("_group",)

    def __init__(self, group: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._group = group

    async def __aenter__(self) -> T:
        return await self._group.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            return await self._group.__aexit__(kind, raised, traceback)  # noqa: ASYNC102  # a nursery's own
        except BaseExceptionGroup as group:
            left = _take_apart(group, raised)
        if left is not raised:
            _raise_as_itself(left)
        return False


class _HiddenNursery(Hidden[trio.Nursery]):
    __slots__ = ("_nursery",)

    def __init__(self) -> None:
        super().__init__(trio.open_nursery())

    async def __aenter__(self) -> trio.Nursery:
        self._nursery = await super().__aenter__()
        return self._nursery

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._nursery.cancel_scope.cancel()
        return await super().__aexit__(kind, raised, traceback)  # noqa: ASYNC102  # as above


def open_hidden_nursery() -> AbstractAsyncContextManager[trio.Nursery, bool | None]:
    """Open a nursery that is cancelled when the block ends and never wraps what the block raises.

    Checkpoints: the exit is one, and waits for the background tasks to end.
    """
    return _HiddenNursery()


def _take_apart(group: BaseExceptionGroup[BaseException], raised: BaseException | None) -> BaseException:
    """Return the one exception that comes out."""
    cancelled, real = _sort(group)
    fatal = [error for error in real if not isinstance(error, Exception)]
    others = [error for error in real if error is not raised]
    if fatal:
        return fatal[0]
    if raised is not None and not isinstance(raised, trio.Cancelled):
        if others and raised.__context__ is None:
            raised.__context__ = BaseExceptionGroup("background tasks failed as well", others)
        return raised
    if len(others) == 1:
        return others[0]
    return BaseExceptionGroup("background tasks failed", others) if others else cancelled


def _sort(group: BaseExceptionGroup[BaseException]) -> tuple[BaseException, list[BaseException]]:
    """Tell the direct members that are cancellation through and through from the others."""
    cancelled: BaseException = group
    real: list[BaseException] = []
    for member in group.exceptions:
        if isinstance(member, trio.Cancelled):
            cancelled = member
        elif not isinstance(member, BaseExceptionGroup):
            real.append(member)
        else:
            inner = cast("BaseExceptionGroup[BaseException]", member)
            if inner.split(trio.Cancelled)[1] is None:
                cancelled = _sort(inner)[0]
            else:
                real.append(inner)
    return cancelled, real


def _raise_as_itself(error: BaseException) -> NoReturn:
    # A plain `raise` would make the group the exception's context and lose the one it had.
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context
