"""The hidden nursery's policy, as a matrix: body x background x outer cancel x the user's own groups."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
import trio

from trio_mcp_resilient._nursery import Hidden, open_hidden_nursery


async def fail(error: Exception) -> None:
    raise error


async def test_body_and_background_end_quietly() -> None:
    ended = []

    async def background() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    async with open_hidden_nursery() as nursery:
        nursery.start_soon(background)
        await trio.testing.wait_all_tasks_blocked()
    assert ended == [True]


async def test_the_bodys_error_comes_out_as_itself_with_its_context() -> None:
    with pytest.raises(KeyError) as caught:
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                raise ValueError("first")
            except ValueError:
                raise KeyError("second")  # noqa: B904
    assert isinstance(caught.value.__context__, ValueError)


async def test_a_group_that_the_user_made_is_left_alone() -> None:
    group = ExceptionGroup("mine", [ValueError(), ExceptionGroup("inner", [KeyError()])])
    with pytest.raises(ExceptionGroup) as caught:
        async with open_hidden_nursery():
            raise group
    assert caught.value is group


async def test_a_background_failure_alone_comes_out_as_itself() -> None:
    with pytest.raises(ValueError, match="bug"):
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(fail, ValueError("bug"))
            await trio.sleep_forever()


async def test_the_bodys_error_wins_over_the_backgrounds() -> None:
    with pytest.raises(KeyError) as caught:
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(fail, ValueError("bug"))
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("mine")
    # The cancellation that ended the body is already its context; nothing is overwritten.
    assert isinstance(caught.value.__context__, trio.Cancelled)


async def test_several_background_failures_stay_together() -> None:
    with pytest.RaisesGroup(ValueError, KeyError):
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(fail, ValueError())
            nursery.start_soon(fail, KeyError())
            await trio.sleep_forever()


async def test_outer_cancellation_passes_through(autojump_clock: trio.testing.MockClock) -> None:
    with trio.move_on_after(1) as scope:
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_nested_hidden_nursery_full_of_cancellation_is_one_cancellation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def inner() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)

    with trio.move_on_after(1) as scope:
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(inner)
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_keyboard_interrupt_wins() -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(interrupt)
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("mine")


async def test_a_task_group_of_others_is_hidden_as_well() -> None:
    raised = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with Hidden(anyio.create_task_group()):
            raise raised
    assert caught.value is raised
    with pytest.raises(ValueError, match="bug"):
        async with Hidden(anyio.create_task_group()) as group:
            group.start_soon(fail, ValueError("bug"))
            await trio.sleep_forever()


async def test_the_bodys_traceback_is_the_bodys_own() -> None:
    def depth(error: BaseException) -> int:
        return len(traceback.extract_tb(error.__traceback__))

    with pytest.raises(KeyError) as plain:
        raise KeyError
    with pytest.raises(KeyError) as caught:
        async with open_hidden_nursery():
            raise KeyError
    assert depth(caught.value) == depth(plain.value)


async def test_a_group_that_lost_its_cancellation_is_still_the_bodys_own() -> None:
    """Trio takes cancellation out of whatever passes a cancelled scope, and copies the groups for that."""

    async def fail_together() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, ValueError())
            nursery.start_soon(trio.sleep_forever)

    with pytest.raises(ExceptionGroup) as caught:
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await fail_together()
    assert caught.value.__context__ is None
    assert [type(error) for error in caught.value.exceptions] == [ValueError]


async def test_a_group_with_an_interrupt_in_it_comes_out_as_it_was_raised() -> None:
    class Mine(BaseExceptionGroup[BaseException]):
        pass

    group = Mine("mine", [KeyboardInterrupt(), ValueError()])
    with pytest.raises(Mine) as caught:
        async with open_hidden_nursery():
            raise group
    assert caught.value is group


@pytest.mark.parametrize("hidden", [open_hidden_nursery, lambda: Hidden(anyio.create_task_group())])
async def test_a_cancellation_says_why_on_the_other_side_too(
    hidden: Callable[[], AbstractAsyncContextManager[Any]],
) -> None:
    with trio.CancelScope() as scope:
        scope.cancel(reason="enough")
        with pytest.raises(trio.Cancelled, match="enough") as caught:
            async with hidden():
                try:
                    await trio.lowlevel.checkpoint()
                except trio.Cancelled as error:
                    raised = error
                    raise
        assert caught.value is raised
        raise caught.value


async def test_a_group_of_cancellation_is_left_alone() -> None:
    async def sleep_together() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(BaseExceptionGroup) as caught:
            async with Hidden(anyio.create_task_group()):
                try:
                    await sleep_together()
                except BaseExceptionGroup as error:
                    raised = error
                    raise
        assert caught.value is raised
        raise caught.value
