"""One run: a plan carried out, from opening the client to looking at what it left behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from tests.simulation.calls import is_the_tools_own, make, wrong_with
from tests.simulation.faults import KINDS, WAITING, Fault
from tests.simulation.ledger import Ended, Ledger
from tests.simulation.network import Network
from tests.simulation.plan import Call, Plan
from tests.simulation.scripted_peer import ScriptedPeer, open_scripted_peer
from tests.simulation.tokens import Tokens
from trio_mcp_resilient import Backoff, Client, Event, Resend, SessionEnded, State, Statistics, open_client
from trio_mcp_resilient._flight import EndReason
from trio_mcp_resilient._secrets import fingerprint
from trio_mcp_resilient._supervisor import UNANSWERED
from trio_mcp_resilient.testing import MemoryStream, Rule, ScriptedServer, ScriptedSession

BACKOFF = Backoff(first=0.5, factor=2, cap=4, jitter=0.5, attempts=8)
RECOVERY, HANDSHAKE, DRAIN, READ, CLOSE = 20.0, 5.0, 20.0, 15.0, 2.0
FOREVER = 20_000.0
"""A call that has not ended by then never will."""
SETTLED = 120.0
"""How long the server may take to notice that everybody has left."""
LAST_CALL = 1000
"""The number of the call that is made once all is calm."""


def last_call(at: float) -> Call:
    """The call that has to succeed once all is calm."""
    return Call(LAST_CALL, at, "charge", resend=Resend.REFUSED)


class World:
    """Everything there is in one run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ledger = Ledger()
        self.told_lost: set[str] = set()
        """Sessions that were said to be gone although they were not."""
        self.invalidations = 0
        self.losses = 0
        self.client: Client | None = None
        self.tokens = Tokens() if plan.settings.tokens else None
        self.network: Network
        self.peer: Any
        self.statistics: Statistics | None = None
        self.left: list[str] = []
        """Sessions that the server still had in the end."""
        self._rules: list[tuple[Fault, Rule]] = []
        self._held: list[Any] = []
        self._over = trio.Event()
        self._all_ended = trio.Event()

    # -- what faults are done by ------------------------------------------------------------------

    @property
    def server(self) -> ScriptedServer:
        """The scripted server."""
        assert isinstance(self.peer, ScriptedPeer)
        return self.peer.server

    async def rule(self, fault: Fault, rule: Rule) -> None:
        """Keep a rule of the script for as long as its fault lasts."""
        self._rules.append((fault, rule))
        await trio.sleep(fault.seconds)
        rule.drop()

    def holding(self, fault: Fault, held: Sequence[Any]) -> None:
        """Keep rules that hold exchanges, to be released when all is calm."""
        self._rules += [(fault, rule) for rule in held]
        self._held += held

    def lose_session(self, streams: str) -> None:
        """Let the server forget every session."""
        self.losses += 1
        self.peer.lose_session(streams)

    async def restart(self, *, keep_sessions: bool, down_for: float) -> None:
        """Let the server die and come back."""
        self.losses += not keep_sessions
        await self.peer.restart(keep_sessions=keep_sessions, down_for=down_for)

    def invalidate(self) -> None:
        """Let the application throw its session away."""
        if self.client is not None:
            self.invalidations += 1
            self.client.invalidate()

    def ask(self, session: ScriptedSession) -> None:
        """Let the server ask the client something."""
        self._asking.start_soon(self._ask, session)

    async def _ask(self, session: ScriptedSession) -> None:
        with trio.move_on_after(3):
            try:
                await self.server.request("ping", session=session)
            except Exception as error:
                self.ledger.note(f"asked   {type(error).__name__}")

    # -- the run ----------------------------------------------------------------------------------

    async def live(self) -> None:
        """Carry the plan out."""
        async with self._open_peer() as self.peer:
            async with trio.open_nursery() as nursery:
                self.network = Network(nursery, self.peer.connect)
                before = trio.lowlevel.current_statistics().tasks_living
                with trio.move_on_after(FOREVER) as scope:
                    await self._play()
                if scope.cancelled_caught:
                    self.ledger.problem("something waits for ever")
                self.calm()
                await trio.sleep(SETTLED)
                await wait_all_tasks_blocked()
                self.left = self.peer.live()
                await self.peer.forget()
                await wait_all_tasks_blocked()
                self._look_around(before)
                nursery.cancel_scope.cancel()

    def _open_peer(self) -> AbstractAsyncContextManager[Any]:
        if self.plan.settings.real:
            from tests.simulation.real_peer import open_real_peer

            return open_real_peer(self.plan.settings, self.ledger, self.tokens)
        return open_scripted_peer(self.plan.settings, self.ledger, self.tokens)

    async def _play(self) -> None:
        async with trio.open_nursery() as nursery:
            self._asking = nursery
            self._breaking = trio.CancelScope()
            nursery.start_soon(self._break)
            nursery.start_soon(self._use_the_client, nursery)
            await self._over.wait()
            self._breaking.cancel()

    async def _break(self) -> None:
        with self._breaking:
            async with trio.open_nursery() as nursery:
                for fault in self.plan.faults:
                    nursery.start_soon(self._do, fault)

    async def _do(self, fault: Fault) -> None:
        await trio.sleep_until(fault.at)
        # What waits for an exchange, or for bytes, is counted when it happens.
        tell = self.ledger.note if fault.kind in WAITING else self.ledger.fault
        tell(f"{fault}")
        await KINDS[fault.kind].do(self, fault)

    async def _use_the_client(self, nursery: trio.Nursery) -> None:
        opening = self.ledger.ended[0] = Ended(0, trio.current_time())
        leaves = self.plan.settings.leaves
        deadline = self.plan.calm_at / 2 if leaves == "cancelled" else math.inf
        try:
            with trio.CancelScope(deadline=deadline) as scope:
                async with open_client(self.peer.url, **self._options()) as self.client:
                    opening.ended, opening.how = trio.current_time(), "result"
                    self.ledger.note("opened")
                    nursery.start_soon(self._call_all)
                    await self._stay()
                    self.statistics = self.client.statistics()
            if scope.cancelled_caught and opening.how == "never":
                opening.ended, opening.how = trio.current_time(), "cancelled"
        except Exception as error:
            # Nothing in the block raises, so it is what opening raised.
            opening.ended, opening.how, opening.error = trio.current_time(), type(error).__name__, error
        self.ledger.note(f"left    {opening.how}")
        self._over.set()

    def _options(self) -> dict[str, Any]:
        settings = self.plan.settings
        return {
            "connect": self._connect,
            "backoff": BACKOFF,
            "recovery_timeout": RECOVERY,
            "handshake_timeout": HANDSHAKE,
            "drain_timeout": DRAIN,
            "read_timeout": READ,
            "close_timeout": CLOSE,
            "mode": "auto" if settings.era else "legacy",
            "keepalive": math.inf if settings.keepalive is None else settings.keepalive,
            "get_stream": settings.get_stream,
            "auth": self.tokens,
            "resend": settings.resend,
            "call_keys": settings.call_keys,
            "on_event": self._told,
        }

    async def _connect(self, host: str, port: int) -> MemoryStream:
        settings = self.plan.settings
        await trio.sleep(settings.latency)
        upstream = self.network.connect if settings.network else self.peer.connect
        return self.ledger.record(await upstream(host, port))

    def _told(self, event: Event) -> None:
        # One that was asked in vain, again and again, may be thrown away alive.
        unanswered = sum(
            rule.hits for fault, rule in self._rules if (fault.kind, fault.target) == ("cut", "ping")
        )
        is_excused = self._says_404() or unanswered >= UNANSWERED
        if isinstance(event, SessionEnded) and event.reason is EndReason.LOST and not is_excused:
            living = {fingerprint(session) for session in self.peer.live()}
            if event.session in living - {fingerprint(session) for session in self.told_lost}:
                self.ledger.problem(f"generation {event.generation} was thrown away, but its session lives")
        self.ledger.told(event)

    def _says_404(self) -> bool:
        """Whether a 404 may be cut before it has said that it is about something else."""
        faults = self.plan.faults
        return len(faults) > 1 and any(f.kind == "answer" and f.how.startswith("404") for f in faults)

    async def _call_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for call in self.plan.calls:
                nursery.start_soon(self._call, call)
        self._all_ended.set()

    async def _stay(self) -> None:
        if self.plan.settings.listed:
            await self._call(Call(LAST_CALL + 1, 0.0, "list_tools"))
        if self.plan.settings.leaves == "early":
            await trio.sleep_until(self.plan.calm_at / 2)
            return
        await trio.sleep_until(self.plan.calm_at)
        self._breaking.cancel()
        self.calm()
        await wait_all_tasks_blocked()
        assert self.client is not None
        was_recovering = self.client.state is State.RECOVERING
        await self._call(last_call(trio.current_time()))
        if was_recovering and self.ledger.ended[LAST_CALL].how == "GaveUp":
            # It joined a recovery whose last attempt the faults had already broken: all who wait for
            # one share its end. The one that begins now has to succeed.
            await self._call(last_call(trio.current_time()))
        await self._all_ended.wait()

    def calm(self) -> None:
        """End every fault."""
        for held in self._held:
            held.release()
        stays = self.plan.settings.silence_stays
        silent = any(KINDS[fault.kind].silent for fault in self.plan.faults)
        self.peer.calm(cut=silent and not stays)
        self.network.heal(silence_stays=stays)
        self.ledger.note("calm")

    # -- calls ------------------------------------------------------------------------------------

    async def _call(self, call: Call) -> None:
        await trio.sleep_until(call.at)
        assert self.client is not None
        began = trio.current_time()
        ended = self.ledger.ended[call.number] = Ended(call.number, began)
        self.ledger.note(f"call    {call.number} {call.what}")
        progress: list[str] = []
        deadline = math.inf if call.give_up_after is None else began + call.give_up_after
        async with trio.open_nursery() as nursery:
            with trio.CancelScope(deadline=deadline) as scope:
                if call.give_up_at_step is not None:
                    nursery.start_soon(_cancel_at_step, call.give_up_at_step, scope)
                try:
                    result = await make(self.client, call, progress)
                except Exception as error:
                    ended.error = error
                    ended.how = "result" if is_the_tools_own(call, error) else type(error).__name__
                else:
                    marked = not self.plan.settings.real
                    ended.how = "result"
                    ended.problem = wrong_with(call, result, progress, marked=marked)
                finally:
                    ended.ended = trio.current_time()
                    if ended.how == "never":
                        ended.how = "cancelled"
                    self.ledger.note(f"ended   {call.number} {ended.how}")
            nursery.cancel_scope.cancel()

    # -- afterwards -------------------------------------------------------------------------------

    def _look_around(self, tasks_before: int) -> None:
        for fault, rule in self._rules:
            if rule.hits:
                self.ledger.faults += rule.hits
                self.ledger.note(f"fault   {fault.kind} {fault.how} happened {rule.hits} times")
        if self.peer.open_connections:
            self.ledger.problem(f"{self.peer.open_connections} connections were left open")
        if self.network.links:
            self.ledger.problem(f"{len(self.network.links)} links were left open")
        tasks = trio.lowlevel.current_statistics().tasks_living
        if tasks != tasks_before:
            self.ledger.problem(f"{tasks - tasks_before} tasks were left running")


async def _cancel_at_step(steps: int, scope: trio.CancelScope) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def play(plan: Plan) -> World:
    """Carry a plan out; to be run by `determinism.run`."""
    world = World(plan)
    await world.live()
    return world
