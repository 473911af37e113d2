"""Pacing: a burst of requests goes out in batches, with a look at what has come back in between.

Trio runs every task that can run before it looks at the network again. A thousand calls that
start at once on a session the server has forgotten would all be written before the first of a
thousand refusals is read. So when many were sent and nothing was heard, the next ones wait, in
order of arrival, and each pass of the scheduler lets a batch of them go. By the next pass the
refusal may be there, and those that still wait have not been sent at all.

It is no limit: nobody waits for an answer, only for the loop to come round, and a server that
says nothing for a minute gets all of them at once but for those passes. A cap on concurrency
would make calls wait for each other, and a pause by the clock would guess how far away the
server is.
"""

from __future__ import annotations

from collections import OrderedDict

import trio

BATCH = 32
"""How many requests may go out before something is heard, and how many each pass lets go."""


class Pacing:
    """The order in which the requests of one session leave. Below `BATCH` it is not felt."""

    def __init__(self) -> None:
        self._unheard = 0
        # In order of arrival. The first is awake: it drives, for itself and those behind it.
        self._queue: OrderedDict[trio.Event, None] = OrderedDict()

    def heard(self) -> None:
        """Note a sign of life: the head of an answer, whatever it says."""
        self._unheard = 0

    def may_leave(self) -> bool:
        """Take a turn without waiting, if there is one; `turn` is for those that got none."""
        if self._unheard >= BATCH or self._queue:
            return False
        self._unheard += 1
        return True

    async def turn(self) -> None:
        """Wait for a turn behind those that wait already.

        Cancellation: the turn is another's. Checkpoint: yes.
        """
        me = trio.Event()
        self._queue[me] = None
        try:
            if next(iter(self._queue)) is not me:
                await me.wait()
            if me in self._queue:
                # Woken as the first: the batch before has gone, and now the loop looks around.
                await trio.lowlevel.checkpoint()
                self._release(min(BATCH, len(self._queue)))
        finally:
            if me in self._queue:
                del self._queue[me]
                self._wake_first()

    def release_all(self) -> None:
        """Let everybody go who waits: the session has ended, and nobody will send on it."""
        self._release(len(self._queue))

    def _release(self, number: int) -> None:
        self._unheard = number
        for _ in range(number):
            self._queue.popitem(last=False)[0].set()
        self._wake_first()

    def _wake_first(self) -> None:
        if self._queue:
            next(iter(self._queue)).set()
