"""What a seed decides: settings, calls and faults, drawn before anything runs.

A plan is data, so that a failing one can be printed, made smaller and run again.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.simulation.faults import Fault, draw_fault, draw_flips
from trio_mcp_resilient import Resend
from trio_mcp_resilient._policy import HARMLESS
from trio_mcp_resilient.testing import DIALECTS

Era = Literal["legacy", "modern", "both"]

TOOLS = {"charge": None, "peek": {"readOnlyHint": True}, "put": {"idempotentHint": True}}
"""The tools there are, with their annotations: only the first is never safe to repeat."""

VERSIONS = ("2025-11-25", "2025-11-25", "2025-06-18", "2025-03-26")

METHODS = {
    "list_tools": "tools/list",
    "list_resources": "resources/list",
    "list_resource_templates": "resources/templates/list",
    "list_prompts": "prompts/list",
    "read_resource": "resources/read",
    "get_prompt": "prompts/get",
    "complete": "completion/complete",
    "ping": "ping",
    "set_level": "logging/setLevel",
    "subscribe": "resources/subscribe",
}
"""Requests that MCP itself makes harmless to repeat."""

NOT_REAL = {"set_level", "subscribe", "complete"}
"""Those that the SDK's server does not offer by itself."""
NOT_MODERN = {"set_level", "subscribe", "ping"}
"""Those that there are no more without sessions."""


@dataclass(frozen=True)
class Call:
    """One logical call."""

    number: int
    at: float
    what: str
    """A tool's name, or a key of `METHODS`."""
    seconds: float = 0.0
    """How long the tool takes."""
    steps: int = 0
    """How often it reports progress."""
    ends: str = "result"
    """`result`, `tool error`, `rpc error`; or `detach`: a result after the stream was ended."""
    resend: Resend | None = None
    give_up_after: float | None = None
    """Seconds after which the caller cancels."""
    give_up_at_step: int | None = None
    """The scheduler's turn at which the caller cancels."""
    timeout: float | None = None
    """`read_timeout_seconds`."""

    @property
    def rpc_method(self) -> str:
        """What it is on the wire."""
        return METHODS.get(self.what, "tools/call")

    @property
    def is_tool(self) -> bool:
        """Whether it calls a tool."""
        return self.what in TOOLS


@dataclass(frozen=True)
class Settings:
    """What the client and the server are told before anything happens."""

    real: bool = False
    """The SDK's server instead of the scripted one."""
    era: Era | None = None
    """Which versions the server speaks at first, if the client is to find out; None for sessions."""
    network: bool = False
    """Whether all bytes pass the simulated network."""
    json_mode: bool = False
    resumable: bool = False
    retry: int | None = None
    get_stream: bool = True
    stateless: bool = False
    offer_delete: bool = True
    keepalive: float | None = None
    dialect: str = "404-rpc"
    idle_timeout: float | None = None
    version: str = "2025-11-25"
    resend: Resend = Resend.REFUSED
    call_keys: bool = False
    listed: bool = True
    """Whether the application lists the tools before it calls any."""
    latency: float = 0.0
    silence_stays: bool = False
    """Whether what has gone silent stays so, also when everything else is well again."""
    tokens: bool = False
    """Whether the server asks for a token, and the application renews the ones that expire."""
    get_offered: bool = True
    """Whether the server has a standalone stream."""
    leaves: str = "at the end"
    """When the application leaves the client's block: `at the end`, `early`, or `cancelled`."""


@dataclass(frozen=True)
class Plan:
    """A whole run."""

    seed: int
    settings: Settings
    calls: tuple[Call, ...]
    faults: tuple[Fault, ...]
    calm_at: float
    """When every fault is over, in virtual seconds."""

    def repeatable(self, call: Call) -> bool:
        """Whether the policy lets the call run twice."""
        policy = call.resend or self.settings.resend
        if policy is Resend.NEVER:
            return False
        if call.rpc_method in HARMLESS or policy is Resend.ALWAYS:
            return True
        return policy is Resend.IDEMPOTENT and TOOLS[call.what] is not None

    def __str__(self) -> str:
        defaults = Settings()
        differs = [
            f"{name}={value!r}"
            for name, value in vars(self.settings).items()
            if value != getattr(defaults, name)
        ]
        lines = [f"seed {self.seed}, calm at {self.calm_at:g}: {', '.join(differs)}"]
        lines += [f"  {part}" for part in (*self.faults, *self.calls)]
        return "\n".join(lines)


class Variety(enum.StrEnum):
    """What a seed is drawn for."""

    SCRIPTED = "scripted"
    """Sessions, on the scripted server."""
    REAL = "real"
    """Sessions, on the SDK's server."""
    ERAS = "eras"
    """Redeploys from one era of the protocol to the other, on the scripted server."""


def draw(seed: int, variety: Variety = Variety.SCRIPTED) -> Plan:
    """Draw a plan. The same seed gives the same plan, on every machine."""
    real = variety is Variety.REAL
    # What else a variety is called by would change what its seeds mean.
    dice = random.Random(f"plan {seed} {'eras' if variety is Variety.ERAS else real}")
    settings = _draw_settings(dice, real)
    if variety is Variety.ERAS:
        settings = _draw_era(dice, settings)
    window = dice.choice([0.5, 3.0, 10.0, 30.0])
    moments = [round(dice.uniform(0, window), 3) for _ in range(dice.randint(1, 5))]
    calls = tuple(_draw_call(dice, number, moments, settings) for number in range(1, dice.randint(3, 13)))
    # A third of the plans have one fault: then it is known exactly how calls may end.
    count = dice.choice([1, 1, 1, 2, 2, 3, 4, 6, 9])
    faults = tuple(draw_fault(dice, moments, window, settings) for _ in range(count))
    if variety is Variety.ERAS:
        # In the era without sessions nobody pings.
        asked = [replace(f, target="server/discover") if f.target == "ping" else f for f in faults]
        faults = (*asked, *draw_flips(dice, moments))
    calm_at = max([window, *(fault.at + fault.seconds for fault in faults)]) + dice.choice([0.5, 5.0])
    return Plan(seed, settings, calls, tuple(sorted(faults, key=lambda fault: fault.at)), round(calm_at, 3))


def _draw_settings(dice: random.Random, real: bool) -> Settings:
    resumable = dice.random() < 0.3
    stateless = not real and dice.random() < 0.03
    return Settings(
        real=real,
        network=real or dice.random() < 0.3,
        json_mode=dice.random() < 0.25,
        resumable=resumable,
        retry=dice.choice([None, 100, 2000]) if resumable else None,
        get_stream=dice.random() < 0.5,
        stateless=stateless,
        offer_delete=real or dice.random() < 0.95,
        keepalive=dice.choice([None, None, 2.0, 7.0]),
        dialect="404-rpc" if real or dice.random() < 0.4 else dice.choice(sorted(DIALECTS)),
        idle_timeout=dice.choice([None, None, None, 3.0, 8.0]),
        version="2025-11-25" if real else dice.choice(VERSIONS),
        resend=dice.choice([Resend.REFUSED] * 5 + [Resend.NEVER, Resend.IDEMPOTENT, Resend.ALWAYS]),
        call_keys=dice.random() < 0.2,
        listed=dice.random() < 0.8,
        latency=dice.choice([0.0, 0.0, 0.02, 0.3]),
        silence_stays=dice.random() < 0.3,
        leaves=dice.choice(["at the end"] * 8 + ["early", "cancelled"]),
        tokens=dice.random() < 0.15,
        get_offered=real or dice.random() < 0.9,
    )


def _draw_era(dice: random.Random, settings: Settings) -> Settings:
    # Resuming and pings are of the era with sessions, and have worlds of their own.
    return replace(
        settings,
        era=dice.choice(["legacy", "modern", "both"]),
        resumable=False,
        retry=None,
        stateless=False,
        keepalive=None,
        tokens=False,
        dialect="404-rpc",
        version="2025-11-25",
    )


def _draw_call(dice: random.Random, number: int, moments: list[float], settings: Settings) -> Call:
    at = dice.choice(moments) if dice.random() < 0.7 else round(dice.uniform(0, max(moments)), 3)
    more: dict[str, Any] = {}
    if dice.random() < 0.15:
        more["give_up_after"] = dice.choice([0.0, 0.01, 0.2, 1.5, 6.0])
    elif dice.random() < 0.15:
        more["give_up_at_step"] = dice.randint(1, 60)
    if dice.random() >= 0.7:
        missing = NOT_REAL if settings.real else NOT_MODERN if settings.era else set[str]()
        methods = sorted(METHODS.keys() - missing)
        return Call(number, at, dice.choice(methods), **more)
    seconds = dice.choice([0.0, 0.0, 0.1, 1.0, 4.0, 9.0])
    ends = dice.choice(["result"] * 8 + ["tool error", "rpc error", "detach"])
    if settings.resumable and dice.random() < 0.4:
        ends = "detach"
    if settings.era and ends == "detach":
        ends = "result"
    if dice.random() < 0.1:
        more["timeout"] = dice.choice([0.05, 2.0, 8.0])
    if dice.random() < 0.25:
        more["resend"] = dice.choice(list(Resend))
    what = dice.choice(["charge", "charge", "charge", "peek", "put"])
    return Call(number, at, what, seconds, dice.choice([0, 0, 0, 1, 3]), ends, **more)
