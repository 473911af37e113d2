"""What people see of the answers: tables, texts, and a bar for progress.

All of it is made from what `--json` prints. The words are a server's: no markup is read in them,
and nothing in them can steer the terminal.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

import trio
from mcp.shared.dispatcher import ProgressFnT
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from trio_mcp_resilient._cli_output import Data, clean

WIDE = 200
"""Columns where there is no terminal: whoever searches the output wants whole lines."""
HINTS = {
    "readOnlyHint": "read-only",
    "idempotentHint": "idempotent",
    "destructiveHint": "destructive",
    "openWorldHint": "open-world",
}


def console(*, stderr: bool = False) -> Console:
    """Return a console that takes texts as they are; it honours `NO_COLOR`."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def cell(value: object, style: str = "") -> Text:
    """Return a server's word as a cell of a table."""
    return Text(clean(" ".join(str(value).split())), style=style)


def table(*headings: str) -> Table:
    """Return an empty table; what does not fit is folded, and never left out."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        made.add_column(heading, overflow="fold")
    return made


def show(command: str, data: Data) -> None:
    """Print what one of the asking commands found out."""
    {
        "tools": _tools,
        "resources": _resources,
        "prompts": _prompts,
        "call": _result,
        "read": _contents,
        "prompt": _messages,
    }[command](console(), data)


def _tools(out: Console, data: Data) -> None:
    made = table("tool", "arguments", "hints", "description")
    for tool in data["tools"]:
        hints: Data = tool.get("annotations") or {}
        told = ", ".join(word for hint, word in HINTS.items() if hints.get(hint) is True)
        schema: Data = tool.get("inputSchema") or {}
        made.add_row(
            cell(tool["name"], "bold"),
            cell(_arguments(schema)),
            cell(told),
            cell(tool.get("description", "")),
        )
    _print(out, made, "no tools")


def _arguments(schema: Data) -> str:
    """Return the names of a tool's arguments, those that may be left out in brackets."""
    required: list[str] = schema.get("required") or []
    properties: Data = schema.get("properties") or {}
    return " ".join(name if name in required else f"[{name}]" for name in properties)


def _resources(out: Console, data: Data) -> None:
    made = table("resource", "type", "name", "description")
    for listed, key in ((data["resources"], "uri"), (data["resourceTemplates"], "uriTemplate")):
        for one in listed:
            made.add_row(
                cell(one[key], "bold"),
                cell(one.get("mimeType", "")),
                cell(one.get("title") or one.get("name", "")),
                cell(one.get("description", "")),
            )
    _print(out, made, "no resources")


def _prompts(out: Console, data: Data) -> None:
    made = table("prompt", "arguments", "description")
    for prompt in data["prompts"]:
        arguments = (
            one["name"] if one.get("required") else f"[{one['name']}]"
            for one in prompt.get("arguments") or ()
        )
        made.add_row(
            cell(prompt["name"], "bold"), cell(" ".join(arguments)), cell(prompt.get("description", ""))
        )
    _print(out, made, "no prompts")


def _print(out: Console, made: Table, nothing: str) -> None:
    out.print(made if made.row_count else nothing)


def _result(out: Console, data: Data) -> None:
    result = data["result"]
    blocks = result.get("content") or ()
    for block in blocks:
        _block(out, block)
    structured = result.get("structuredContent")
    if structured is not None and not any(block.get("type") == "text" for block in blocks):
        _text(out, json.dumps(structured, indent=2, ensure_ascii=False))


def _messages(out: Console, data: Data) -> None:
    for message in data["result"]["messages"]:
        out.print(cell(f"{message['role']}:", "bold"))
        _block(out, message["content"])


def _block(out: Console, block: Data) -> None:
    """Print one block of content."""
    kind = block.get("type")
    if kind == "text":
        _text(out, block["text"])
    elif kind == "resource":
        _content(out, block["resource"])
    elif kind == "resource_link":
        out.print(cell(block["uri"]))
    else:
        out.print(_size(kind, block.get("mimeType"), block.get("data", "")))


def _contents(out: Console, data: Data) -> None:
    for content in data["result"]["contents"]:
        _content(out, content)


def _content(out: Console, content: Data) -> None:
    if "text" in content:
        _text(out, content["text"])
    elif out.is_terminal:
        out.print(_size("blob", content.get("mimeType"), content["blob"]))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(base64.b64decode(content["blob"]))


def _text(out: Console, text: str) -> None:
    """Print a text: as it is for whoever reads the output, cleaned for a terminal."""
    if out.is_terminal:
        out.print(Text(clean(text)), soft_wrap=True)
    else:
        print(text)


def _size(kind: object, mime: object, encoded: str) -> Text:
    return cell(f"[{kind}, {mime or 'unknown type'}, {len(encoded) * 3 // 4} bytes]", "dim")


@contextmanager
def progress_bar() -> Generator[ProgressFnT | None, None, None]:
    """Show a call's progress on stderr while the block runs, if that is a terminal; else yield None."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[of]}", markup=False),
        TimeElapsedColumn(),
    )
    # Not refreshed by itself: that would take a thread.
    with Progress(*columns, console=out, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("calling", total=None, of="")
        bar.refresh()

        async def advance(progress: float, total: float | None, message: str | None) -> None:
            of = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
            bar.update(task, completed=progress, total=total, description=clean(message or "calling"), of=of)
            bar.refresh()
            await trio.lowlevel.checkpoint()

        yield advance
