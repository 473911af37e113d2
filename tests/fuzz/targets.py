"""What is fuzzed, with what, and by whom it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz import pieces as made
from tests.fuzz import readers, whole, wire


@dataclass(frozen=True)
class Target:
    """One reader of a server's bytes."""

    name: str
    examples: st.SearchStrategy[Any]
    check: Callable[[Any], None]
    weight: int
    """How many examples are a fair share of a round."""


IDS = st.none() | st.integers() | st.text(max_size=8) | st.integers().map(str) | st.just("9" * 5000)
METHODS = st.sampled_from(["POST", "GET", "DELETE", "post", ""])
RPC = st.sampled_from([None, "initialize", "tools/call", "notifications/initialized", "server/discover", ""])
STATUSES = st.sampled_from([0, 200, 202, 307, 400, 401, 404, 405, 409, 410, 422, 500, 501, 502, 503, 999])
ENDINGS = st.sampled_from(["end", "reset", "silence"])

MUTATIONS = st.builds(
    whole.Mutation,
    # The first half kilobyte is the handshake. Mutated, it leaves nothing more to break.
    at=st.integers(0, 500) | st.integers(500, 2000) | st.integers(500, 5000),
    how=st.sampled_from(["flip", "insert", "drop", "repeat", "end"]),
    argument=st.binary(max_size=12) | st.sampled_from(made.SSE_PIECES + made.JSON_PIECES + made.HTTP_PIECES),
)
SCENES = st.builds(
    whole.Scene,
    mutations=st.lists(MUTATIONS, max_size=4),
    json_mode=st.booleans(),
    resumable=st.booleans(),
    mode=st.sampled_from(["auto", "legacy"]),
    sdk=st.booleans(),
)

TARGETS = (
    Target("sse", st.tuples(made.SSE, made.PLACES), readers.sse, 400),
    Target("jsonrpc", made.JSON, readers.jsonrpc, 400),
    Target("ids", st.tuples(IDS, IDS), readers.ids, 100),
    Target(
        "detector",
        st.tuples(METHODS, RPC, st.booleans(), STATUSES, made.TEXT | made.SSE | made.JSON),
        readers.detector,
        200,
    ),
    Target("http11", st.tuples(made.HTTP, made.PLACES, ENDINGS), wire.http11, 200),
    Target("client", SCENES, whole.client, 60),
)


def run(target: Target, number: int, examples: int) -> None:
    """Run one target from one seed; raise what it finds, as small as it can be made."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )
    @given(target.examples)
    def check(example: Any) -> None:
        target.check(example)

    check()
