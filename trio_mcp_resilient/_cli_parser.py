"""The words of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trio_mcp_resilient._cli_options import add_target, json_object, own_version, seconds
from trio_mcp_resilient._cli_output import PROGRAM, Exit, clean
from trio_mcp_resilient._policy import Resend
from trio_mcp_resilient._secrets import redact

WIDTH = 96
"""Columns of the help, whatever the terminal: the manual shows the same text."""

ABOUT = "Talk to MCP servers over streamable HTTP, through restarts and lost sessions."

EXITS = """\
exit status:
  0    it is done; `probe` found nothing that must be mended
  1    the server answered with an error, or the tool did; `probe` found something
  2    the command line makes no sense, or the extra `cli` is missing
  3    no session could be had, or no answer came; nothing was executed
  4    the call may have run, and nobody can tell
  130  interrupted by Ctrl-C (143: by SIGTERM; 141: nobody reads the output any more)

Without the extra (pip install 'trio-mcp-resilient[cli]') there are `demo` and whatever has --json.
Colours are left out where NO_COLOR is set, and where the output is no terminal.
"""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help of one width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=WIDTH)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, in which no secret stands."""

    def __init__(self, **options: Any) -> None:
        # Abbreviations would make every new option a change that breaks somebody.
        super().__init__(formatter_class=Formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """End with the message and the status for usage."""
        line = clean(" ".join(redact(message).split()))
        self.exit(Exit.USAGE, f"{PROGRAM}: {line}; see {self.prog} --help\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read a command line.

    Raises:
        SystemExit: it asks for help, or makes no sense.
    """
    parser = make_parser()
    options, strange = parser.parse_known_args(arguments)
    if strange:
        # Only the names: what belongs to a mistyped option may be a secret.
        names = [word.partition("=")[0] for word in strange if word.startswith("-")]
        parser.error(f"unknown options: {' '.join(names)}" if names else "too many arguments")
    return options


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(prog=PROGRAM, description=f"{ABOUT}\n\n{_listed()}", epilog=EXITS)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {own_version()}")
    # Without a help for each, which argparse lays out differently in each of its versions.
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        does = f"{command.does[0].upper()}{command.does[1:]}."
        command.add(commands.add_parser(command.name, description=f"{does}\n\n{command.more}".strip()))
    return parser


def _listed() -> str:
    return "\n".join(["commands:", *(f"  {command.name:11}{command.does}" for command in COMMANDS)])


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object, errors included")


def _add_listing(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    _add_json(parser)


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the prompt to get; all are listed without")
    _add_arguments(parser, "the prompt's")
    _add_json(parser)


def _add_call(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("tool", metavar="TOOL", help="its name")
    _add_arguments(parser, "the tool's")
    parser.add_argument(
        "--resend",
        metavar="WHEN",
        choices=[str(policy) for policy in Resend],
        default=str(Resend.REFUSED),
        help="when it may be sent twice: never, refused (the default: if it certainly did not run), "
        "idempotent (also if the server says it is), always",
    )
    _add_json(parser)


def _add_arguments(parser: argparse.ArgumentParser, whose: str) -> None:
    parser.add_argument(
        "--args",
        metavar="JSON",
        type=json_object,
        default={},
        help=f"{whose} arguments, an object; - reads it from stdin",
    )


def _add_read(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("uri", metavar="URI", help="the resource's URI")
    _add_json(parser)


def _add_watch(parser: argparse.ArgumentParser) -> None:
    add_target(parser, limits=False)
    parser.add_argument(
        "--interval", metavar="SECONDS", type=seconds, default=1.0, help="between two pings (default: 1)"
    )
    parser.add_argument(
        "--for", dest="span", metavar="SECONDS", type=seconds, help="when to end (default: never)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object at the end")
    form.add_argument("--jsonl", action="store_true", help="print each event as a line of JSON")


def _add_probe(parser: argparse.ArgumentParser) -> None:
    add_target(parser, mode=False, limits=False)
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, help="for everything together (default: no end)"
    )
    _add_json(parser)


@dataclass(frozen=True)
class Command:
    """One command, as its help describes it."""

    name: str
    does: str
    add: Callable[[argparse.ArgumentParser], None]
    """Adds its arguments."""
    more: str = ""


COMMANDS = (
    Command("demo", "kill a real server under this client and under the SDK's, and compare", _add_json),
    Command("tools", "list a server's tools", _add_listing),
    Command("resources", "list a server's resources and templates", _add_listing),
    Command("prompts", "list a server's prompts, or get one", _add_prompts),
    Command(
        "call",
        "call a tool",
        _add_call,
        "Its texts go to stdout. A call that may have run is not sent again unless --resend says so.",
    ),
    Command("read", "read a resource", _add_read, "What is no terminal gets the bytes as they are."),
    Command(
        "watch",
        "watch an endpoint, through every restart",
        _add_watch,
        "Holds a session, pings on it, and shows when it was lost and how long each recovery took.",
    ),
    Command(
        "probe",
        "examine what a server answers to ids that it does not know",
        _add_probe,
        "On a session of its own. It never calls a tool.",
    ),
)
