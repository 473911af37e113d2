"""The scripted server on a port of its own, with a side door: what is done to every client alike.

    python -m tests.benchmarks.scripted NAME

Each line of its standard input it obeys and answers by a JSON object of what it has counted, its port
included: `serve PORT` to begin, on a port of its choice if that is 0; then `evict` or `counts`. Servers of
different names have different session ids, as those of a restarted server are.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import trio

from trio_mcp_resilient.testing import ScriptedServer, open_scripted_server


async def act(key: str, seconds: float = 0.0) -> str:
    """What is called: it takes its time and says whose call it was."""
    await trio.sleep(seconds)
    return f"did {key}"


def counted(server: ScriptedServer) -> dict[str, Any]:
    """Return what has reached the server by now."""
    runs = Counter(execution.arguments["key"] for execution in server.executions)
    return {"handshakes": server.handshakes, "runs": runs}


async def main(name: str) -> None:
    """Serve until standard input ends."""
    port = 0
    async with open_scripted_server(name) as server:
        server.tool("act", act)
        async for line in trio.wrap_file(sys.stdin):
            match line.split():
                case ["serve", wanted]:
                    port = await server.serve_tcp(int(wanted))
                case ["evict"]:
                    server.lose_session()
                case _:
                    pass
            print(json.dumps({"port": port, **counted(server)}), flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
