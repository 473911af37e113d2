"""Write the tables of `detector.md` from the detector's own (`python docs/detector_table.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trio_mcp_resilient._detector import RULES, Rule
from trio_mcp_resilient._wording import Sign

PAGE = Path(__file__).parent / "detector.md"
BEGIN, END = "<!-- begin: generated -->", "<!-- end: generated -->"


def rows() -> str:
    """Return the table of rules."""
    lines = [
        "| | Row | Status | Sent | Says | Unless it says | Verdict | Why |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number, rule in enumerate(RULES, 1):
        cells = (
            str(number),
            rule.name,
            _statuses(rule),
            _sent(rule),
            _says(rule),
            _names(rule.none_of),
            f"**{rule.verdict}**",
            rule.why,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def signs() -> str:
    """Return the list of what the rows' words stand for."""
    return "\n".join(
        ["| Word | Stands for |", "|---|---|", *(f"| {_name(sign)} | {sign.value} |" for sign in Sign)]
    )


def _statuses(rule: Rule) -> str:
    return ", ".join(
        str(some.start) if len(some) == 1 else f"{some.start}-{some.stop - 1}" for some in rule.statuses
    )


def _sent(rule: Rule) -> str:
    what = ", ".join(kind.value for kind in rule.kinds)
    return ", ".join(filter(None, (what, "with the id" if rule.with_id else "")))


def _says(rule: Rule) -> str:
    any_of = " or ".join(_name(sign) for sign in rule.any_of)
    return " and ".join([*map(_name, rule.all_of), *([any_of] if any_of else [])])


def _names(some: Iterable[Sign]) -> str:
    return ", ".join(map(_name, some))


def _name(sign: Sign) -> str:
    return sign.name.lower().replace("_", " ")


def written(page: str) -> str:
    """Return the page with its generated part made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{rows()}\n\n{signs()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
