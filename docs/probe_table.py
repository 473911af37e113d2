"""Write the table of `probe.md` from recorded probes of real servers (`python docs/probe_table.py`).

`python -m tests.real.probing` records them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "probe.md"
RECORD = Path(__file__).parent.parent / "tests" / "data" / "probes.json"
BEGIN, END = "<!-- begin: generated -->", "<!-- end: generated -->"

ASKED = ("tools/list without an id", "tools/list with a made-up id", "tools/list with the deleted id")
HEADINGS = (
    "Server",
    "Eras",
    "Without an id",
    "An id nobody gave out",
    "A deleted id",
    "Cut answers resumed",
    "A client by the specification recovers",
    "This package recovers",
)


def table(record: dict[str, Any]) -> str:
    """Return the table and the list of what is to be mended."""
    reports = record["reports"].values()
    lines = [f"Probed on {record['date']}.", "", _row(HEADINGS), _row(["---"] * len(HEADINGS))]
    lines += [_row(_cells(report)) for report in reports]
    lines += ["", "What the probes found to mend, besides what may be left out:", ""]
    for what, who in _found(record).items():
        lines.append(f"- {what}: {'; '.join(who)}.")
    return "\n".join(lines)


def _row(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _cells(report: dict[str, Any]) -> list[str]:
    rows = {row["step"]: row for row in report["rows"]}
    said = [f"{rows[step]['status']} {rows[step]['excerpt']}" if step in rows else "" for step in ASKED]
    resumed = "yes" if report["resumable"] else "no"
    recovers = (_yes(report[fact]) for fact in ("standard_client_recovers", "this_client_recovers"))
    return [report["label"], ", ".join(report["eras"]), *said, resumed, *recovers]


def _yes(fact: bool | None) -> str:
    return "nothing to lose" if fact is None else "yes" if fact else "**no**"


def _found(record: dict[str, Any]) -> dict[str, list[str]]:
    """Return each finding that weighs, with the servers that have it."""
    found: dict[str, list[str]] = {}
    for report in record["reports"].values():
        for finding in report["findings"]:
            if finding["level"] != "may":
                words = "**{level}**, {step}: {what}. To mend it: {fix}".format(**finding)
                found.setdefault(f"{words} ({finding['section']})", []).append(report["label"])
    return found


def written(page: str) -> str:
    """Return the page with its generated part made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    return f"{before}{BEGIN}\n\n{table(record)}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
