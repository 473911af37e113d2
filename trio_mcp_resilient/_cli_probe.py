"""`trio-mcp probe` for people: the table of what came back, what it means, and what to mend."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from trio_mcp_resilient._cli_output import Data
from trio_mcp_resilient._cli_view import cell, console, table

VERDICTS = {"answered": "green", "session lost": "yellow", "outcome unknown": "red", "auth": "red"}
LEVELS = {"must": "bold red", "should": "yellow", "may": "dim"}


def show(data: Data) -> None:
    """Print a report, made from what `--json` prints."""
    out = console()
    out.print(cell(f"{data['endpoint']}   {data['server']}", "bold"))
    made = table("sent", "status", "type", "said", "verdict")
    for row in data["rows"]:
        made.add_row(
            cell(row["step"]),
            cell("none" if row["status"] is None else row["status"]),
            cell(row["content_type"]),
            cell(row["excerpt"]),
            cell(row["verdict"], VERDICTS.get(row["verdict"], "")),
        )
    out.print(made)
    out.print()
    if data["unfit"]:
        out.print(cell(f"not examined: {data['unfit']}", "bold red"))
        return
    _conclusions(out, data)
    _findings(out, data)


def _conclusions(out: Console, data: Data) -> None:
    facts = {
        "eras": ", ".join(data["eras"]),
        "keeps sessions": _yes(data["keeps_sessions"]),
        "cut answers can be resumed": _yes(data["resumable"]),
        "a client that follows the specification recovers": _yes(data["standard_client_recovers"]),
        "this package recovers": _yes(data["this_client_recovers"]),
    }
    for label, value in facts.items():
        out.print(Text.assemble(f"{label}: ", (value, "bold")))


def _yes(value: bool | None) -> str:
    return "nothing to lose" if value is None else "yes" if value else "no"


def _findings(out: Console, data: Data) -> None:
    if not data["findings"]:
        out.print("nothing to mend")
        return
    out.print()
    for finding in data["findings"]:
        level = finding["level"]
        out.print(Text.assemble((level, LEVELS[level]), f"  {finding['step']}: ", cell(finding["what"])))
        out.print(Text.assemble("      ", cell(f"{finding['fix']} ({finding['section']})", "dim")))
