"""Write the help texts of `cli.md` from the parser's own (`python docs/cli_help.py`)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from trio_mcp_resilient._cli_parser import make_parser

PAGE = Path(__file__).parent / "cli.md"
BEGIN, END = "<!-- begin: generated -->", "<!-- end: generated -->"


def texts() -> str:
    """Return the help of the whole, then of each command."""
    parser = make_parser()
    (commands,) = (
        action
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)  # pyright: ignore
    )
    parts = [_block("trio-mcp", parser)]
    parts += [_block(f"trio-mcp {name}", command) for name, command in commands.choices.items()]
    return "\n\n".join(parts)


def _block(title: str, parser: Any) -> str:
    return f"### {title}\n\n```text\n{parser.format_help().strip()}\n```"


def written(page: str) -> str:
    """Return the page with its generated part made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{texts()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
