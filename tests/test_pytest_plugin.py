"""The pytest plugin: a fixture for whoever asks for it, and nothing for everybody else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest
from trio.testing import MockClock

import pytest_trio_mcp_resilient
from tests.kit import add
from trio_mcp_resilient import open_client
from trio_mcp_resilient.testing import ScriptedServer

WHERE = Path(pytest_trio_mcp_resilient.__file__).parent

USES = """
    async def test_uses(mcp_server):
        mcp_server.tool("add", lambda a, b: str(a + b))
        async with open_client(mcp_server.url, connect=mcp_server.connect) as client:
            mcp_server.lose_session()
            assert "3" in repr(await client.call_tool("add", {"a": 1, "b": 2}))
"""
IMPORTS = """
    import pytest
    from trio_mcp_resilient import open_client
"""
UNUSED = """
    import sys

    def test_costs_nothing():
        assert "pytest_trio_mcp_resilient" in sys.modules
        loaded = {"trio_mcp_resilient", "trio", "mcp", "httpx", "pydantic"} & set(sys.modules)
        assert loaded == set()
"""
ANYIO = """
    @pytest.fixture
    def anyio_backend():
        return "trio"

    pytestmark = pytest.mark.anyio
"""


def run_pytest(folder: Path, test: Sequence[str], *options: str) -> str:
    """Run a test in a project and a process of its own, warnings being errors; return what was said."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    (folder / "test_it.py").write_text("".join(map(dedent, test)), encoding="utf-8")
    path = f"import sys; sys.path.insert(0, {str(WHERE)!r}); import pytest; sys.exit(pytest.main())"
    plugins = ["-p", "no:cacheprovider", "-p", "pytest_trio_mcp_resilient"]
    done = subprocess.run(
        [sys.executable, "-c", path, "-q", *plugins, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


async def test_the_fixture(mcp_server: ScriptedServer, autojump_clock: MockClock) -> None:
    mcp_server.tool("add", lambda a, b: str(a + b))
    async with open_client(mcp_server.url, connect=mcp_server.connect) as client:
        mcp_server.restart(down_for=5)
        assert await add(client) == "3"
    assert mcp_server.sessions == []


def test_unused_it_imports_nothing_of_ours(tmp_path: Path) -> None:
    # Neither does it need pytest-trio, nor that plugin's import of Trio.
    assert "1 passed" in run_pytest(
        tmp_path, [UNUSED], "-p", "no:trio", "-p", "no:anyio", "-p", "no:hypothesispytest"
    )


@pytest.mark.parametrize(
    ("test", "options"),
    [
        pytest.param([IMPORTS, USES], ["-o", "trio_mode=true"], id="pytest-trio's mode"),
        pytest.param([IMPORTS, "    pytestmark = pytest.mark.trio\n", USES], [], id="pytest-trio's mark"),
        pytest.param([IMPORTS, ANYIO, USES], ["-p", "no:trio"], id="anyio's plugin"),
        pytest.param([IMPORTS, ANYIO, USES], [], id="anyio's plugin beside pytest-trio"),
    ],
)
def test_whatever_runs_async_tests_runs_it(test: list[str], options: list[str], tmp_path: Path) -> None:
    assert "1 passed" in run_pytest(tmp_path, test, *options)


def test_a_test_that_is_not_async_is_told(tmp_path: Path) -> None:
    sync = "    def test_sync(mcp_server): pass\n"
    assert "requested an async fixture 'mcp_server'" in run_pytest(tmp_path, [sync], "-p", "no:trio")
