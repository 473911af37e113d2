"""Takes the place of the suite's root `conftest.py`, which is about asyncio, tracing and profiling."""

from typing import Any

import pytest
from trio.testing import MockClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Trio, under virtual time: all is in memory, and no test depends on how busy the machine is."""
    return "trio", {"clock": MockClock(autojump_threshold=0)}


@pytest.fixture
def blockbuster() -> None:
    """The original looks for calls that would block asyncio."""
