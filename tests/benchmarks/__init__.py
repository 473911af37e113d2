"""What a call, a recovery and an idle client cost, beside every peer: `python -m tests.benchmarks`.

Nothing here is a test. The guard that is one, by counts instead of seconds, is
`tests/test_cost_guard.py`.

Everything is measured in processes of their own, started here and spoken to by lines of JSON:

- `server`: a canned MCP server, cheap enough not to be what is measured
- `peers`, `worker`: the same calls by each client and by bare loops
- `rescue`, `footprint`: what a loss costs, and what a client holds
- `imports`: what importing the package adds
- `processes`: starting those
- `measure`: the runs, in turns, so that a busy moment of the machine meets all peers alike
- `report`, `plot`: the tables, the goals and the picture
- `comparison`, with `callers`, `losing` and `scripted`: what becomes of calls when a session is lost, by
  the client that makes them (`python -m tests.benchmarks.comparison`)
"""
