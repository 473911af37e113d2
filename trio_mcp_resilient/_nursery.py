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

from collections.abc import Iterator
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

    # Between Trio's own exit and the user's block an interrupt would leave the nursery open.
    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> T:
        return await self._group.__aenter__()

    @trio.lowlevel.enable_ki_protection
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
        except trio.Cancelled as cancelled:  # noqa: ASYNC103  # one of those it stands for is raised
            # anyio puts one of its own, which does not say why, in the place of a group of them.
            together = cancelled.__cause__
            if not isinstance(together, BaseExceptionGroup):
                raise
            left = _take_apart(cast("BaseExceptionGroup[BaseException]", together), raised)
        if left is not raised:
            _raise_as_itself(left)
        return False


class _HiddenNursery(Hidden[trio.Nursery]):
    __slots__ = ("_nursery",)

    def __init__(self) -> None:
        super().__init__(trio.open_nursery())

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> trio.Nursery:
        self._nursery = await super().__aenter__()
        return self._nursery

    @trio.lowlevel.enable_ki_protection
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
    cancelled, found = _sort(group)
    real = [raised if raised is not None and _is_part(error, raised) else error for error in found]
    fatal = [error for error in real if not isinstance(error, Exception)]
    others = [error for error in real if error is not raised]
    if fatal:
        return fatal[0]
    if raised is not None and not (others and _is_cancellation(raised)):
        if others and raised.__context__ is None:
            raised.__context__ = BaseExceptionGroup("background tasks failed as well", others)
        return raised
    if len(others) == 1:
        return others[0]
    return BaseExceptionGroup("background tasks failed", others) if others else cancelled


def _is_part(error: BaseException, raised: BaseException) -> bool:
    """Whether an exception is the body's own. Trio copies a group when it takes cancellation out of it."""
    own = {id(leaf) for leaf in _leaves(raised)}
    return all(id(leaf) in own for leaf in _leaves(error))


def _is_cancellation(error: BaseException) -> bool:
    return all(isinstance(leaf, trio.Cancelled) for leaf in _leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for member in cast("BaseExceptionGroup[BaseException]", error).exceptions:
        yield from _leaves(member)


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
