"""The hidden nursery: background tasks behind a context manager, one exception out.

A nursery turns whatever leaves it into an `ExceptionGroup`. A user who never opened one must
not meet one, so the group is taken apart again, by this policy:

- `KeyboardInterrupt` and its like always win.
- The body's own exception comes out as itself, with its context, also if it is a group:
  only the nursery's own layer is removed, never one that the user made.
- Background tasks do not raise for expected losses: they record a reason and fail the
  waiters. One that raises all the same has met a bug, or a hook of the user's has raised;
  it comes out as itself if it is alone, else as the context of the body's exception.
- If there is nothing but cancellation, one `Cancelled` goes on its way.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NoReturn, cast

import trio


@asynccontextmanager
async def open_hidden_nursery() -> AsyncGenerator[trio.Nursery, None]:
    """Open a nursery that is cancelled when the body ends and never wraps what the body raises.

    Checkpoints: the exit is one, and waits for the background tasks to end.
    """
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                raised = error
                raise
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        _reraise(group, raised)


def _reraise(group: BaseExceptionGroup[BaseException], raised: BaseException | None) -> NoReturn:
    cancelled, real = _sort(group)
    fatal = [error for error in real if not isinstance(error, Exception)]
    others = [error for error in real if error is not raised]
    if fatal:
        _raise_as_itself(fatal[0])
    if raised is not None and not isinstance(raised, trio.Cancelled):
        if others and raised.__context__ is None:
            raised.__context__ = BaseExceptionGroup("background tasks failed as well", others)
        _raise_as_itself(raised)
    if len(others) == 1:
        _raise_as_itself(others[0])
    if others:
        raise BaseExceptionGroup("background tasks failed", others)
    _raise_as_itself(cancelled)


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
