"""Draw the pictures of the manual (`python docs/pictures.py`): the shape, and the table of states.

The states are those of the package's own table, so a new move that is not drawn fails a test.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trio_mcp_resilient._states import TRANSITIONS, State

IMAGES = Path(__file__).parent / "images"

STYLE = """
    text { font: 15px system-ui, sans-serif; fill: #1b2733; }
    .small { font-size: 12px; fill: #51606e; }
    .box { fill: #f4f7fa; stroke: #51606e; stroke-width: 1.5; }
    .inner { fill: #ffffff; stroke: #51606e; stroke-width: 1.2; }
    .gone { fill: #ececec; stroke: #9aa5ae; stroke-dasharray: 5 4; stroke-width: 1.2; }
    .move { fill: none; stroke: #2f6f9f; stroke-width: 1.6; marker-end: url(#tip); }
    #tip path { fill: #2f6f9f; }
    @media (prefers-color-scheme: dark) { .sheet { fill: #ffffff; } }
"""
TIP = (
    '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 10 5 0 10z"/></marker>'
)


@dataclass(frozen=True)
class Box:
    """A rectangle with a text in it."""

    text: str
    x: int
    y: int
    width: int = 130
    height: int = 44
    kind: str = "box"
    below: str = ""

    @property
    def middle(self) -> tuple[float, float]:
        """Its centre."""
        return self.x + self.width / 2, self.y + self.height / 2

    def svg(self) -> str:
        """Draw it."""
        x, y = self.middle
        lift = 8 if self.below else 0
        text = f'<text x="{x:g}" y="{y + 5 - lift:g}" text-anchor="middle">{self.text}</text>'
        if self.below:
            text += f'<text class="small" x="{x:g}" y="{y + 13:g}" text-anchor="middle">{self.below}</text>'
        return (
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" rx="7" '
            f'width="{self.width}" height="{self.height}"/>{text}'
        )


def arrow(start: Box, end: Box, bend: float = 0.0) -> str:
    """Draw a curve from the edge of one box to that of another, bent to its left."""
    (x1, y1), (x2, y2) = start.middle, end.middle
    dx, dy = x2 - x1, y2 - y1
    length = (dx * dx + dy * dy) ** 0.5
    cx, cy = (x1 + x2) / 2 + bend * dy / length, (y1 + y2) / 2 - bend * dx / length
    sx, sy = _edge(start, cx, cy)
    ex, ey = _edge(end, cx, cy)
    return f'<path class="move" d="M{sx:.0f} {sy:.0f}Q{cx:.0f} {cy:.0f} {ex:.0f} {ey:.0f}"/>'


def _edge(box: Box, x: float, y: float) -> tuple[float, float]:
    """Where a line from the middle of a box to a point leaves it."""
    mx, my = box.middle
    dx, dy = x - mx, y - my
    scale = min(
        (box.width / 2 + 3) / abs(dx) if dx else float("inf"),
        (box.height / 2 + 3) / abs(dy) if dy else float("inf"),
    )
    return mx + dx * scale, my + dy * scale


def sheet(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """Put a picture together."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n<defs>{TIP}</defs>\n"
        f'<rect class="sheet" width="{width}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


PLACES = {
    State.CONNECTING: Box("connecting", 20, 30, below="the first session"),
    State.READY: Box("ready", 290, 30, below="calls go out"),
    State.RECOVERING: Box("recovering", 560, 30, below="one task tries, all wait"),
    State.DORMANT: Box("dormant", 425, 160, below="gave up; the next call tries"),
    State.CLOSED: Box("closed", 110, 160, below="final"),
}


def states() -> str:
    """Draw the table of states."""
    boxes = {state: Box(b.text, b.x, b.y, 180, 52, below=b.below) for state, b in PLACES.items()}
    moves = [(state, then) for state, thens in TRANSITIONS.items() for then in sorted(thens)]
    both = {(b, a) for a, b in moves} & set(moves)
    arrows = [arrow(boxes[a], boxes[b], 22 if (a, b) in both else 0) for a, b in moves]
    return sheet(760, 240, "The states of a client", [*arrows, *(box.svg() for box in boxes.values())])


def shape() -> str:
    """Draw who is who: callers, supervisor, generations."""
    callers = [Box(f"task {letter}", 20, 40 + 62 * n, 110) for n, letter in enumerate("ABC")]
    dispatcher = Box("dispatcher", 190, 102, 140, below="in the caller's task")
    supervisor = Box("supervisor", 480, 14, 160, 52, below="makes generation n+1")
    old = Box("", 390, 110, 170, 150, "gone")
    new = Box("", 600, 110, 170, 150)
    label = '<text x="{x}" y="{y}" text-anchor="middle">{text}</text>'
    parts = [
        *(arrow(caller, dispatcher) for caller in callers),
        arrow(dispatcher, supervisor, -18),
        arrow(supervisor, new),
        *(box.svg() for box in (*callers, dispatcher, supervisor, old, new)),
        label.format(x=475, y=133, text="generation n"),
        label.format(x=685, y=133, text="generation n+1"),
        *(
            Box(text, 405, 146 + 36 * n, 140, 30, "inner").svg()
            for n, text in enumerate(("session lost", "calls that drain", "connections"))
        ),
        *(
            Box(text, 615, 146 + 36 * n, 140, 30, "inner").svg()
            for n, text in enumerate(("session", "GET stream, calls", "connections"))
        ),
        '<text class="small" x="20" y="285">Each generation is a nursery. Its end is told to every call '
        "in flight</text>",
        '<text class="small" x="20" y="302">over a memory channel; each then goes on with the next.</text>',
    ]
    return sheet(790, 318, "Callers, the supervisor and the generations", parts)


PICTURES = {"states.svg": states, "shape.svg": shape}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw(), encoding="utf-8")
