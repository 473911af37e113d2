"""A scripted MCP server for tests: real HTTP/1.1 bytes over memory streams, made to break on request.

    async with open_scripted_server() as server:
        server.tool("add", lambda a, b: a + b)
        async with open_client(server.url, connect=server.connect) as client:
            server.lose_session()
            ...
        assert server.executed["add"] == 1

`assert_recovers` breaks it in each of the standard ways. The pytest plugin that comes with the package
has it as the fixture `mcp_server`.

Nothing in it sleeps, so with `trio.testing.MockClock(autojump_threshold=0)` hours pass in no time.
"""

from trio_mcp_resilient._scripted_breaks import BREAKS as BREAKS
from trio_mcp_resilient._scripted_breaks import Break as Break
from trio_mcp_resilient._scripted_catalog import ToolContext as ToolContext
from trio_mcp_resilient._scripted_dialects import DIALECTS as DIALECTS
from trio_mcp_resilient._scripted_dialects import DISCOVER_DIALECTS as DISCOVER_DIALECTS
from trio_mcp_resilient._scripted_dialects import Reply as Reply
from trio_mcp_resilient._scripted_faults import Held as Held
from trio_mcp_resilient._scripted_faults import Rule as Rule
from trio_mcp_resilient._scripted_inputs import InputRequired as InputRequired
from trio_mcp_resilient._scripted_records import Execution as Execution
from trio_mcp_resilient._scripted_records import SeenRequest as SeenRequest
from trio_mcp_resilient._scripted_recovery import CallsTools as CallsTools
from trio_mcp_resilient._scripted_recovery import assert_recovers as assert_recovers
from trio_mcp_resilient._scripted_server import ScriptedServer as ScriptedServer
from trio_mcp_resilient._scripted_server import open_scripted_server as open_scripted_server
from trio_mcp_resilient._scripted_session import RpcError as RpcError
from trio_mcp_resilient._scripted_session import ScriptedSession as ScriptedSession
from trio_mcp_resilient._scripted_stream import MemoryStream as MemoryStream
from trio_mcp_resilient._scripted_stream import memory_connection as memory_connection
from trio_mcp_resilient._scripted_subscriptions import Subscription as Subscription


def _show_the_public_path() -> None:
    """Make tracebacks and the docs say where people import these from."""
    for name, value in list(globals().items()):
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("trio_mcp_resilient._"):
            value.__module__ = __name__


_show_the_public_path()
del _show_the_public_path
