"""The pytest plugin of `trio_mcp_resilient`: the fixture `mcp_server`.

pytest imports it in every run of everybody who has the package installed, so it stands beside the
package and not in it: to import a module of a package is to import the package, and that takes
most of a second.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trio_mcp_resilient.testing import ScriptedServer


# Neither pytest-trio's own decorator nor a runner of ours: whatever runs the async test runs this too,
# be it pytest-trio, in its trio mode or by its mark, or anyio's plugin on Trio.
@pytest.fixture
async def mcp_server() -> AsyncGenerator[ScriptedServer, None]:
    """A scripted MCP server in memory, up, and with nothing to offer yet."""
    from trio_mcp_resilient.testing import open_scripted_server

    async with open_scripted_server() as server:
        yield server
