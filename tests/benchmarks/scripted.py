"""The scripted server on a port of its own, with a side door: what is done to every client alike.

    python -m tests.benchmarks.scripted PORT NAME

It prints its port, which it chooses if it is told 0. On each line of its standard input, `evict` or
`counts`, it does as told and prints a JSON object of what it has counted. Servers of different
names have different session ids, as those of a restarted server are.
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


async def main(port: int, name: str) -> None:
    """Serve until standard input ends."""
    async with open_scripted_server(name) as server:
        server.tool("act", act)
        print(await server.serve_tcp(port), flush=True)
        async for line in trio.wrap_file(sys.stdin):
            if line.strip() == "evict":
                server.lose_session()
            print(json.dumps(counted(server)), flush=True)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), sys.argv[2])
