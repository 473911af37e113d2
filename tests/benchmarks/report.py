"""What was found, as Markdown tables, and the goals beside it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.measure import SDK, SEQUENTIAL_CALLS
from tests.benchmarks.peers import PEERS

Found = dict[str, Any]
ANSWERS = {"json": "JSON", "sse": "SSE"}


def report(found: Found) -> str:
    """Return everything that was measured."""
    parts = [(title, make(found)) for name, title, make in SECTIONS if name in found]
    parts.append(("Goals", goals_table(found)))
    made = found["made"]
    head = f"{made['date']}, {made['system']}, {made['cores']} cores, Python {made['python']}; {said(made)}"
    return "\n\n".join([head, *(f"## {title}\n\n{text}" for title, text in parts)]) + "\n"


def said(made: Found) -> str:
    """Return the versions of what was measured."""
    return "; ".join(
        f"{name}: " + ", ".join(f"{package} {version}" for package, version in packages.items())
        for name, packages in made["versions"].items()
    )


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *(map(str, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(figures: Found, write: Callable[[Found], str]) -> str:
    """Return a cell of a peer, who may have failed."""
    return figures["failed"] if "failed" in figures else write(figures)


def per_peer(found: Found, columns: list[tuple[str, Callable[[Found], str]]]) -> str:
    """Return a table with a row for each kind of answer and peer, and the columns at each concurrency."""
    cost = found["cost"]
    widths = list(cost["json"])
    head = ["answers", "client", *(f"{title} at {width}" for title, _ in columns for width in widths)]
    rows = [
        [
            ANSWERS[mode],
            PEERS[peer].title,
            *(cell(cost[mode][width][peer], write) for _, write in columns for width in widths),
        ]
        for mode in cost
        for peer in cost[mode][widths[0]]
    ]
    return table(head, rows)


def cost_table(found: Found) -> str:
    """CPU and throughput, and latency."""
    spent = per_peer(
        found,
        [
            ("CPU us/call", lambda figures: f"{figures['cpu_us']:.0f}"),
            ("calls/s", lambda figures: f"{figures['calls_per_s']:.0f}"),
        ],
    )
    return f"{spent}\n\n{per_peer(found, [('p50 / p99 ms', latencies)])}"


def latencies(figures: Found) -> str:
    """Return the middle and the slow end, in milliseconds."""
    return f"{figures['p50_us'] / 1000:.2f} / {figures['p99_us'] / 1000:.2f}"


def rescue_table(found: Found) -> str:
    """How soon everybody is rescued."""
    rescue = found["rescue"]
    unit = rescue["handshake_s"] + rescue["trip_s"]
    handshake, trip = (f"{1e3 * rescue[name]:.2f} ms" for name in ("handshake_s", "trip_s"))
    lead = f"One handshake took {handshake} and one call {trip}; the unit is their sum."
    rows = [
        [
            size,
            f"{1e3 * each['rescued_s']:.1f} ms",
            f"{each['rescued_s'] / unit:.1f}",
            f"{each['ratio']:.2f}",
            f"{each['handshakes_per_loss']:g}",
        ]
        for size, each in rescue["sizes"].items()
    ]
    head = [
        "calls at once",
        "loss to last answer",
        "in units",
        "against a handshake and as many calls",
        "handshakes",
    ]
    return f"{lead}\n\n{table(head, rows)}"


def thousand_table(found: Found) -> str:
    """A thousand calls that lose one session."""
    thousand = found["thousand"]
    rows = [
        [
            width,
            f"{each['refused']:.0f}",
            f"{1e3 * each['calm_s']:.0f} ms",
            f"{1e3 * each['lost_s']:.0f} ms",
            f"{each['ratio']:.2f}",
            each["handshakes"],
        ]
        for width, each in thousand["widths"].items()
    ]
    return table(["calls at a time", "calls refused", "no loss", "one loss", "ratio", "handshakes"], rows)


def losses_table(found: Found) -> str:
    """Many losses in sequence."""
    losses = found["losses"]
    rows = [
        [f"{losses['losses'] * (number + 1) // 10}", f"{1e3 * seconds:.2f}", resident]
        for number, (seconds, resident) in enumerate(
            zip(losses["seconds_per_loss"], losses["resident_kib"], strict=True)
        )
    ]
    return table(["losses so far", "ms each, of the last tenth", "resident KiB"], rows)


def connections_table(found: Found) -> str:
    """Connections of calls in sequence."""
    rows = [[PEERS[name].title, number] for name, number in found["connections"].items()]
    return table(["client", f"connections of {SEQUENTIAL_CALLS} sequential SSE calls"], rows)


def each_kib(resident: Found) -> float:
    """Return KiB for each client beyond the first."""
    sizes = sorted(map(int, resident))
    return float((resident[str(sizes[-1])] - resident[str(sizes[0])]) / (sizes[-1] - sizes[0]))


def memory_table(found: Found) -> str:
    """Idle clients and calls in flight."""
    rows = []
    for name, resident in found["memory"].items():
        if name.startswith("in flight"):
            *_, peer, calls = name.split()
            each = (resident["during"] - resident["before"]) / int(calls)
            rows.append([f"call in flight, {calls} at once", PEERS[peer].title, f"{each:.1f}"])
        else:
            scheme, peer = name.split()
            most = max(map(int, resident))
            rows.append(
                [f"idle client, {scheme}, {most} of them", PEERS[peer].title, f"{each_kib(resident):.1f}"]
            )
    return table(["what", "client", "KiB each"], rows)


def pool_table(found: Found) -> str:
    """Pools of clients."""
    rows = [
        [
            where,
            size,
            f"{each['kib']:.1f}",
            f"{each['open_us'] / 1000:.2f}",
            f"{each['lease_us']:.1f}",
            f"{pool['close_us'] / 1000:.2f}" if size == list(pool["sizes"])[-1] else "",
        ]
        for where, pool in found["pool"].items()
        for size, each in pool["sizes"].items()
    ]
    head = [
        "server",
        "clients",
        "KiB each",
        "CPU ms to open each and call once",
        "CPU us per lease of an open one",
        "CPU ms to close each",
    ]
    lead = (
        "The server in memory is in the same process, so its figures are those of both ends. Clients "
        "have no standalone stream, so each has one connection."
    )
    return f"{lead}\n\n{table(head, rows)}"


def imports_table(found: Found) -> str:
    """Import times."""
    return table(["import", "ms"], [[name, f"{1e3 * each:.0f}"] for name, each in found["imports"].items()])


SECTIONS: list[tuple[str, str, Callable[[Found], str]]] = [
    ("cost", "Cost of a call", cost_table),
    ("connections", "Connections", connections_table),
    ("rescue", "Recovery", rescue_table),
    ("thousand", "1000 calls that lose one session", thousand_table),
    ("losses", "Losses in sequence", losses_table),
    ("memory", "Memory", memory_table),
    ("pool", "Pools of clients", pool_table),
    ("imports", "Import time", imports_table),
]


@dataclass(frozen=True)
class Goal:
    """A bound, and what was measured."""

    title: str
    asked: float
    measured: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.measured <= self.asked if self.at_most else self.measured >= self.asked


TIMES_FASTER: dict[str, dict[str, float]] = {
    "json": {"1": 3, "20": 3, "100": 3.5, "500": 3.5},
    "sse": dict.fromkeys(("1", "20", "100", "500"), 5),
}


def goals(found: Found) -> list[Goal]:
    """Return the goals for which there is a measurement."""
    reached: list[Goal] = []
    if "cost" in found:
        reached += cost_goals(found["cost"])
    if "thousand" in found:
        widths = found["thousand"]["widths"]
        for width in widths:
            title = f"1000 calls, {width} at a time, that lose one session, over a handshake and 1000 calls"
            reached.append(Goal(title, 1.3, widths[width]["ratio"]))
        most = max(each["handshakes"] for each in widths.values())
        reached.append(Goal("the most handshakes of one of these losses", 1, most))
    if "connections" in found:
        title = f"connections of {SEQUENTIAL_CALLS} sequential SSE calls"
        reached.append(Goal(title, 2, found["connections"]["ours"]))
    if "memory" in found:
        for scheme in ("http", "https"):
            title = f"KiB of an idle {scheme} client beyond the first"
            reached.append(Goal(title, 50, each_kib(found["memory"][f"{scheme} ours"])))
    if "pool" in found:
        sizes = found["pool"]["loopback"]["sizes"]
        first, *_, last = sizes
        title = f"CPU of a lease in a pool of {last} over one of {first}"
        reached.append(Goal(title, 1.2, sizes[last]["lease_us"] / sizes[first]["lease_us"]))
    if "imports" in found:
        title = "ms to import the package after `import mcp, httpx`"
        seconds = found["imports"]["trio_mcp_resilient, after mcp, httpx"]
        reached.append(Goal(title, 30, 1e3 * seconds))
    return reached


def cost_goals(cost: Found) -> list[Goal]:
    """Return the goals about one call."""

    def over(mode: str, width: str, one: str, other: str) -> float:
        # Round by round, since the two of one round met the same machine.
        firsts: list[float] = cost[mode][width][one]["cpu_us_by_round"]
        seconds: list[float] = cost[mode][width][other]["cpu_us_by_round"]
        return statistics.median(first / second for first, second in zip(firsts, seconds, strict=True))

    reached = []
    for mode, widths in cost.items():
        for width in widths:
            sdk = cost[mode][width][SDK]
            if width in TIMES_FASTER[mode] and "failed" not in sdk:
                title = f"typed call, {ANSWERS[mode]}, {width} at a time: CPU of the SDK's client over ours"
                ratio = over(mode, width, SDK, "ours")
                reached.append(Goal(title, TIMES_FASTER[mode][width], ratio, at_most=False))
        for width in widths:
            title = f"typed call, {ANSWERS[mode]}, {width} at a time: CPU over the h11 loop's"
            reached.append(Goal(title, 2.0, over(mode, width, "ours", "h11")))
        first, *_, last = widths
        title = f"CPU of a typed call, {ANSWERS[mode]}, {last} at a time over {first}"
        growth = widths[last]["ours"]["cpu_us"] / widths[first]["ours"]["cpu_us"]
        reached.append(Goal(title, 1.1, growth))
    return reached


def goals_table(found: Found) -> str:
    """Return what was to be reached, and what was."""
    rows = [
        [
            goal.title,
            f"{'<=' if goal.at_most else '>='} {goal.asked:g}",
            f"{goal.measured:.2f}".rstrip("0").rstrip("."),
            "yes" if goal.met else "**no**",
        ]
        for goal in goals(found)
    ]
    return table(["work", "goal", "measured", "met"], rows)
