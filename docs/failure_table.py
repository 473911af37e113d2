"""Write the table of `failure-modes.md` from the one that the tests hold (`python docs/failure_table.py`)."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "failure-modes.md"
BEGIN, END = "<!-- begin: generated -->", "<!-- end: generated -->"
RAN = {0: "no", 1: "once", 2: "twice"}


def rows() -> str:
    """Return the table: what broke, what the caller got, what the server counted."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from tests.test_endings import ENDINGS

    lines = [
        "| What broke | `resend=` | The caller gets | It ran | POSTs | Handshakes |",
        "|---|---|---|---|---|---|",
    ]
    for name, ending in ENDINGS.items():
        gets = "its result" if isinstance(ending.gets, str) else f"`{ending.gets.__name__}`"
        cells = (name, ending.resend, gets, RAN[ending.ran], str(ending.posts), str(ending.handshakes - 1))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def written(page: str) -> str:
    """Return the page with its generated part made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{rows()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
