"""Bounds in seconds that stand still while a person is asked.

An OAuth flow may have to send somebody to a login page. That takes as long as it takes, and it
happens where a bound runs that is meant for a server: a handshake, or a call's wait for a
session. Were it to run on, the attempt would be given up, and the next would open another page.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager

import trio


class Patience:
    """The bounds of one client."""

    def __init__(self) -> None:
        self._left: dict[trio.CancelScope, float] = {}
        """Each bound that is open, with the seconds it had left when somebody was last asked."""
        self._asking = 0

    @contextmanager
    def move_on_after(self, seconds: float) -> Generator[trio.CancelScope, None, None]:
        """Bound the block, as `trio.move_on_after` does."""
        scope = trio.CancelScope()
        if not self._asking:
            scope.deadline = trio.current_time() + seconds
        self._left[scope] = seconds
        try:
            with scope:
                yield scope
        finally:
            del self._left[scope]

    @contextmanager
    def asking(self) -> Generator[None, None, None]:
        """Let every bound stand still while the block runs."""
        if not self._asking:
            now = trio.current_time()
            for scope in self._left:
                self._left[scope] = scope.deadline - now
                scope.deadline = math.inf
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            if not self._asking:
                now = trio.current_time()
                for scope, seconds in self._left.items():
                    scope.deadline = now + seconds
