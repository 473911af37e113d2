"""What can go wrong, as a table: how it is drawn, how it is done, and how calls may end by it.

A fault that is `alone` in its plan may end calls in fewer ways than one among others: a call that
meets a single loss is resent and succeeds, one that meets two has used up its second chance.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import trio

from tests.simulation.network import Cut
from tests.simulation.replies import FINAL, REPLIES
from trio_mcp_resilient.testing import DIALECTS, SeenRequest

if TYPE_CHECKING:
    from tests.simulation.plan import Era, Settings
    from tests.simulation.world import World

CALL = "tools/call"
# `None` is any exchange at all; a target that a run has none of simply never happens.
TARGETS = (
    CALL, CALL, CALL, CALL, None, "POST", "initialize", "notifications/initialized", "GET", "DELETE",
    "ping", "tools/list", "resources/read", "notifications/cancelled",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One fault, drawn."""

    at: float
    kind: str
    target: str | None = None
    how: str = ""
    amount: int = 1
    seconds: float = 0.0
    """How long it lasts; what has not happened by then never does."""


@dataclass(frozen=True)
class Kind:
    """One row of the table."""

    draw: Callable[[random.Random], dict[str, Any]]
    do: Callable[[World, Fault], Awaitable[None]]
    alone: frozenset[str]
    """The errors a call may end by, if it happens once and nothing else does."""
    more: frozenset[str] = frozenset()
    """Further ones, in company."""
    weight: int = 1
    loses: bool = False
    """Whether sessions go by it, or are said to be gone."""
    narrow: bool = False
    """Whether it touches sessions only, and never an exchange: then counts must be exact."""
    scripted_only: bool = True
    network: bool = False
    """Whether it needs the simulated network."""
    tokens: bool = False
    """Whether it needs a server that asks for tokens."""
    silent: bool = False
    """Whether it leaves exchanges open without a word."""


NONE: frozenset[str] = frozenset()
UNKNOWN = frozenset({"OutcomeUnknown"})
UNSENT = frozenset({"ConnectionLost"})
LOST = frozenset({"SessionLost"})
REFUSED = frozenset({"RequestRefused"})
NO_WAY_BACK = frozenset({"GaveUp", "ConnectionLost", "SessionLost"})
FINAL_ANSWER = frozenset({"HandshakeFailed", "ConnectionLost", "SessionLost"})


# -- the network, by the scripted server ---------------------------------------------------------


async def _down(world: World, fault: Fault) -> None:
    world.server.down("hang" if fault.how == "hang" else "refuse", cut=fault.how == "crash")
    await trio.sleep(fault.seconds)
    world.server.up()


async def _cut_all(world: World, fault: Fault) -> None:
    world.server.cut_connections("fin" if fault.how == "fin" else "reset")
    await trio.lowlevel.checkpoint()


async def _cut(world: World, fault: Fault) -> None:
    point, _, how = fault.how.partition(" ")
    await world.rule(fault, world.server.cut(point, how=how, when=fault.target, times=fault.amount))  # type: ignore[arg-type]


async def _cut_at_byte(world: World, fault: Fault) -> None:
    await world.rule(fault, world.server.cut(after_bytes=fault.amount, how=fault.how, when=fault.target))  # type: ignore[arg-type]


async def _mid_request(world: World, fault: Fault) -> None:
    await world.rule(fault, world.server.cut("mid-request", after_bytes=fault.amount, when=fault.target))


async def _silence(world: World, fault: Fault) -> None:
    await world.rule(fault, world.server.go_silent(fault.how, when=fault.target))  # type: ignore[arg-type]


async def _swizzle(world: World, fault: Fault) -> None:
    """Stop exchanges one by one, and let them go on in another order."""
    held = [
        world.server.hold(fault.target, point="before-head" if number % 2 else "before-run")
        for number in range(fault.amount)
    ]
    world.holding(fault, held)
    order = random.Random(fault.how)
    order.shuffle(held)
    for rule in held:
        await trio.sleep(fault.seconds / fault.amount)
        rule.release()


async def _slow(world: World, fault: Fault) -> None:
    world.server.delay = fault.amount / 10
    await trio.sleep(fault.seconds)
    world.server.delay = 0.0


# -- answers -------------------------------------------------------------------------------------


async def _answer(world: World, fault: Fault) -> None:
    reply = REPLIES[fault.how]

    def wanted(seen: SeenRequest) -> bool:
        return seen.matches(fault.target) and (not reply.tools_only or seen.rpc_method == CALL)

    rule = world.server.answer(
        reply.status,
        reply.body,
        content_type=reply.content_type,
        headers=reply.headers,
        when=wanted,
        times=fault.amount,
        ran=reply.ran,
    )
    await world.rule(fault, rule)


async def _told_lost(world: World, fault: Fault) -> None:
    """Say that the session is gone although it is not: all the client can do is believe it."""
    dialect = DIALECTS[fault.how]

    def believed(seen: SeenRequest) -> bool:
        if not seen.matches(fault.target) or seen.session_id is None:
            return False
        world.told_lost.add(seen.session_id)
        return True

    rule = world.server.answer(
        dialect.status,
        dialect.body,
        content_type=dialect.content_type,
        headers=dialect.headers,
        when=believed,
        times=fault.amount,
    )
    await world.rule(fault, rule)


# -- sessions ------------------------------------------------------------------------------------


async def _lose(world: World, fault: Fault) -> None:
    world.lose_session(fault.how)
    await trio.lowlevel.checkpoint()


async def _restart(world: World, fault: Fault) -> None:
    await world.restart(keep_sessions=fault.how == "with store", down_for=fault.seconds)
    await trio.sleep(fault.seconds)


async def _redeploy(world: World, fault: Fault) -> None:
    server = world.server
    server.protocol_version = fault.how
    server.capabilities = {"tools": {}, "resources": {"subscribe": True}, "logging": {}, "completions": {}}
    server.info = {"name": "another", "version": fault.how}
    server.tool("new", lambda: "new")
    server.restart(keep_sessions=False, down_for=fault.seconds)
    await trio.sleep(fault.seconds)


async def _flip(world: World, fault: Fault) -> None:
    world.server.restart(era=cast("Era", fault.how), keep_sessions=False, down_for=fault.seconds)
    await trio.sleep(fault.seconds)


async def _invalidate(world: World, fault: Fault) -> None:
    world.invalidate()
    await trio.lowlevel.checkpoint()


async def _expire(world: World, fault: Fault) -> None:
    """Let the token expire, again and again: each time the application fetches another."""
    assert world.tokens is not None
    for _ in range(fault.amount):
        world.tokens.expire()
        await trio.sleep(fault.seconds / fault.amount)


async def _speak(world: World, fault: Fault) -> None:
    """Say things nobody asked for: notifications, a question, answers to no or somebody's request."""
    server = world.server
    for session in server.sessions:
        for number in range(fault.amount):
            server.notify("notifications/message", {"level": "info", "data": number}, session=session)
            server.notify("notifications/cancelled", {"requestId": number}, session=session)
            for request_id in (number, f"none-{number}"):
                session.standalone.send({"jsonrpc": "2.0", "id": request_id, "result": {"stray": True}})
        world.ask(session)
    await trio.lowlevel.checkpoint()


# -- the simulated network -----------------------------------------------------------------------


async def _wire_down(world: World, fault: Fault) -> None:
    world.network.down = True
    await trio.sleep(fault.seconds)
    world.network.down = False


async def _wire_cut(world: World, fault: Fault) -> None:
    way, _, how = fault.how.partition(" ")
    text = f"{fault.kind} {fault.how} after {fault.amount}"
    cut = Cut(way, fault.amount, how, lambda: world.ledger.fault(text))  # type: ignore[arg-type]
    world.network.cut_after(cut)
    await trio.lowlevel.checkpoint()


async def _clog(world: World, fault: Fault) -> None:
    """Stop connections one by one, and let them flow again in another order."""
    links = list(world.network.links)
    order = random.Random(fault.amount)
    order.shuffle(links)
    for link in links:
        link.clog()
        await trio.sleep(fault.seconds / 2 / len(links))
    order.shuffle(links)
    for link in links:
        await trio.sleep(fault.seconds / 2 / len(links))
        link.unclog()


async def _trickle(world: World, fault: Fault) -> None:
    world.network.piece, world.network.pace = fault.amount, 0.05
    await trio.sleep(fault.seconds)
    world.network.pace = 0.0


# -- the table -----------------------------------------------------------------------------------


POINTS = ("before-run", "before-head", "after-head", "mid-body", "before-end")


def _target(dice: random.Random) -> dict[str, Any]:
    return {"target": dice.choice(TARGETS), "seconds": dice.choice([1.0, 10.0])}


def _draw_cut(dice: random.Random) -> dict[str, Any]:
    point = dice.choice(POINTS)
    how = dice.choice(["reset", "fin", "end"])
    return {**_target(dice), "how": f"{point} {how}", "amount": dice.choice([1, 1, 3])}


def _draw_answer(dice: random.Random) -> dict[str, Any]:
    storm = dice.random() < 0.25
    how = dice.choice(sorted(REPLIES))
    if REPLIES[how].rare and dice.random() < 0.95:
        how = "503 no backend"
    target = "POST" if storm else dice.choice(TARGETS)
    amount = dice.randint(3, 20) if storm else 1
    return {"how": how, "target": target, "amount": amount, "seconds": dice.choice([1.0, 6.0])}


def _draw_told_lost(dice: random.Random) -> dict[str, Any]:
    return {**_target(dice), "how": dice.choice(sorted(DIALECTS)), "amount": dice.choice([1, 1, 1, 2, 8])}


def _seconds(*choices: float) -> Callable[[random.Random], dict[str, Any]]:
    return lambda dice: {"seconds": dice.choice(choices)}


KINDS: dict[str, Kind] = {
    "down": Kind(
        lambda d: {
            "how": d.choice(["refuse", "hang", "crash"]),
            "seconds": d.choice([0.1, 1.0, 4.0, 12.0, 40.0]),
        },
        _down, UNKNOWN | UNSENT, NO_WAY_BACK, weight=3,
    ),
    "cut all": Kind(lambda d: {"how": d.choice(["reset", "fin"])}, _cut_all, UNKNOWN, UNSENT, weight=2),
    "cut": Kind(_draw_cut, _cut, UNKNOWN, NO_WAY_BACK, weight=5),
    "cut at byte": Kind(
        lambda d: {**_target(d), "amount": d.randint(0, 700), "how": d.choice(["reset", "fin"])},
        _cut_at_byte, UNKNOWN, NO_WAY_BACK, weight=5,
    ),
    "mid-request": Kind(
        lambda d: {**_target(d), "amount": d.randint(0, 600)}, _mid_request, NONE, NO_WAY_BACK, weight=3
    ),
    "silence": Kind(
        lambda d: {**_target(d), "how": d.choice(POINTS)},
        _silence, UNKNOWN, NO_WAY_BACK, weight=3, silent=True,
    ),
    "swizzle": Kind(
        lambda d: {
            **_target(d),
            "amount": d.randint(1, 5),
            "seconds": d.choice([0.5, 4.0]),
            "how": str(d.randint(0, 999)),
        },
        _swizzle, NONE, NO_WAY_BACK, weight=2,
    ),
    "slow": Kind(
        lambda d: {"amount": d.randint(1, 20), "seconds": d.choice([1.0, 10.0])}, _slow, NONE, NO_WAY_BACK
    ),
    "answer": Kind(_draw_answer, _answer, NONE, NO_WAY_BACK, weight=6),
    "told lost": Kind(_draw_told_lost, _told_lost, NONE, LOST | NO_WAY_BACK, weight=3, loses=True),
    "lose": Kind(
        lambda d: {"how": d.choice(["keep", "keep", "end", "cut"])}, _lose, NONE, LOST,
        weight=6, loses=True, narrow=True, scripted_only=False,
    ),
    "restart": Kind(
        lambda d: {"how": d.choice(["with store", "without"]), "seconds": d.choice([0.0, 0.5, 3.0, 12.0])},
        _restart, UNKNOWN, NO_WAY_BACK, weight=5, loses=True, scripted_only=False,
    ),
    "redeploy": Kind(
        lambda d: {
            "how": d.choice(["2025-03-26", "2025-06-18", "2025-11-25"]),
            "seconds": d.choice([0.0, 1.0]),
        },
        _redeploy, UNKNOWN, NO_WAY_BACK, weight=2, loses=True,
    ),
    "flip": Kind(
        # Only by `draw_flips`.
        lambda d: {"how": d.choice(["legacy", "modern", "both"]), "seconds": d.choice([0.0, 0.5, 2.0])},
        _flip, UNKNOWN | LOST, NO_WAY_BACK, weight=0, loses=True,
    ),
    "invalidate": Kind(lambda d: {}, _invalidate, NONE, narrow=True, scripted_only=False, weight=2),
    "expire": Kind(
        # Not so fast that a fresh one has expired before it comes to the server.
        lambda d: {"amount": d.choice([1, 1, 2, 3]), "seconds": d.choice([6.0, 12.0])},
        _expire, NONE, FINAL_ANSWER, tokens=True, narrow=True, scripted_only=False, weight=12,
    ),
    "speak": Kind(lambda d: {"amount": d.randint(1, 20)}, _speak, NONE, narrow=True),
    "wire down": Kind(
        _seconds(0.1, 2.0, 12.0), _wire_down, UNSENT, NO_WAY_BACK, network=True, scripted_only=False, weight=4
    ),
    "wire cut": Kind(
        lambda d: {
            "how": f"{d.choice(['up', 'down'])} {d.choice(['reset', 'fin', 'silence'])}",
            "amount": d.randint(0, 800),
        },
        _wire_cut, UNKNOWN, NO_WAY_BACK, network=True, scripted_only=False, silent=True, weight=12,
    ),
    "clog": Kind(
        lambda d: {"amount": d.randint(0, 99), "seconds": d.choice([0.5, 3.0])}, _clog, NONE, NO_WAY_BACK,
        network=True, scripted_only=False, weight=4,
    ),
    "trickle": Kind(
        lambda d: {"amount": d.choice([16, 100]), "seconds": d.choice([1.0, 6.0])},
        _trickle, UNKNOWN, NO_WAY_BACK, network=True, scripted_only=False, weight=2,
    ),
}  # fmt: skip


def draw_fault(dice: random.Random, moments: list[float], window: float, settings: Settings) -> Fault:
    """Draw a fault, most often at a moment at which calls begin, or just after."""
    kinds = [
        name
        for name, kind in KINDS.items()
        if (settings.network or not kind.network)
        and (settings.tokens or not kind.tokens)
        and not (settings.real and kind.scripted_only)
    ]
    name = dice.choices(kinds, [KINDS[kind].weight for kind in kinds])[0]
    at = dice.choice(moments) if dice.random() < 0.6 else dice.uniform(0, window)
    return Fault(round(at + dice.choice([0.0, 0.0, 0.001, 0.05, 0.5]), 3), name, **KINDS[name].draw(dice))


def draw_flips(dice: random.Random, moments: list[float]) -> tuple[Fault, ...]:
    """Draw redeploys to another era: one, or a few in a row."""
    return tuple(
        Fault(
            round(dice.choice(moments) + dice.choice([0.0, 0.001, 0.05, 1.0]), 3),
            "flip",
            **KINDS["flip"].draw(dice),
        )
        for _ in range(dice.choice([1, 1, 2, 4]))
    )


def may_end_by(faults: tuple[Fault, ...], settings: Settings) -> frozenset[str]:
    """The errors by which a call may end, under the usual policy, among these faults."""
    only = faults[0]
    company = (
        len(faults) > 1
        or settings.idle_timeout is not None
        or (only.amount > 1 and only.kind not in SIZED)
        or (only.seconds >= 4.0 and only.kind in LONG)
    )
    errors: set[str] = set()
    for fault in faults:
        kind = KINDS[fault.kind]
        errors |= kind.alone
        if company:
            # A refusal whose body is cut is judged by its status alone.
            errors |= kind.more | REFUSED
        if fault.kind == "answer":
            errors |= REPLIES[fault.how].alone
            if fault.how in FINAL:
                errors |= FINAL_ANSWER
            if settings.resumable and fault.target in ("GET", None):
                # The answer was to come by that GET.
                errors |= UNKNOWN
        if fault.kind == "lose" and (fault.how != "keep" or settings.real):
            errors |= UNKNOWN
        if fault.kind == "cut" and fault.how.endswith("end") and settings.json_mode:
            # Half of a JSON text, sent as if it were all: to `initialize`, that is no MCP server.
            errors |= FINAL_ANSWER
        if fault.kind == "mid-request" and settings.network:
            # The network has taken it whole.
            errors |= UNKNOWN
    return frozenset(errors)


SIZED = frozenset({"expire", "cut at byte", "mid-request", "speak", "wire cut", "clog", "trickle", "slow"})
"""Kinds whose amount is a size."""
LONG = frozenset({"down", "restart", "wire down"})
"""Kinds that the budget of attempts may not outlast."""
WAITING = frozenset(
    {"cut", "cut at byte", "mid-request", "silence", "swizzle", "answer", "told lost", "wire cut"}
    # These break nothing.
    | {"speak", "invalidate", "slow"}
)
"""Kinds that only happen when something comes by, and are counted then."""
