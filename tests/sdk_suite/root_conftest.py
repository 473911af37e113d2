"""Takes the place of the suite's root `conftest.py`, which is about asyncio, tracing and profiling."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def blockbuster() -> None:
    """The original looks for calls that would block asyncio."""
