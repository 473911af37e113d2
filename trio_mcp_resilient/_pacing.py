"""Pacing: a burst of requests goes out in batches, with a look at what has come back in between.

Trio runs every task that can run before it looks at the network again. A thousand calls that
start at once on a session the server has forgotten would all be written before the first of a
thousand refusals is read. So when many were sent and nothing was heard, the next ones wait, in
order of arrival, and each time the loop has come round it lets a batch of them go. By the next
time the refusal may be there, and those that still wait have not been sent at all. They go on
leaving in batches, and find that the session has ended.

It is no limit: nobody waits for an answer, only for the loop to come round, and a server that
says nothing for a minute gets all of them at once but for those passes. A cap on concurrency
would make calls wait for each other, and a pause by the clock would guess how far away the
server is.
"""

from __future__ import annotations

from collections import OrderedDict

import trio

BATCH = 32
"""How many requests may go out before something is heard, and how many the loop lets go each time.
Of a thousand calls 64 at a time open twice as many connections, and 16 gain nothing."""


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
                self._release()
        finally:
            if me in self._queue:
                del self._queue[me]
                self._wake_first()

    def _release(self) -> None:
        self._unheard = min(BATCH, len(self._queue))
        for _ in range(self._unheard):
            self._queue.popitem(last=False)[0].set()
        self._wake_first()

    def _wake_first(self) -> None:
        if self._queue:
            next(iter(self._queue)).set()
