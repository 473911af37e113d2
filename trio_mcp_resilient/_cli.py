"""The command line: which command does what, how each ends, and what Ctrl-C does."""

from __future__ import annotations

import argparse
import io
import json
import logging
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import trio
from mcp.shared.dispatcher import ProgressFnT

from trio_mcp_resilient import _cli_requests, _demo
from trio_mcp_resilient._cli_options import client_info, target_of, wire_of
from trio_mcp_resilient._cli_output import (
    EXPECTED,
    Data,
    Exit,
    NoAnswer,
    UsageError,
    describe,
    exit_of,
    failure,
    has_view,
    print_json,
    say,
)
from trio_mcp_resilient._cli_parser import parse
from trio_mcp_resilient._envelope import Introduction
from trio_mcp_resilient._probe import probe
from trio_mcp_resilient._probe_report import as_json
from trio_mcp_resilient._watch import Picture, watch

# The modules that show things to people are imported where they are needed: they import `rich`,
# which is an extra.


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry one command out and return its exit status.

    Args:
        arguments: the words after the program's name; None for those of this process.

    Raises:
        SystemExit: they ask for help, or make no sense.
    """
    options = parse(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Servers send what a terminal's encoding may not have.
            stream.reconfigure(errors="backslashreplace")
    # What the package logs is told in other ways here; without a handler it would come to stderr.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        return trio.run(_until_signalled, options)
    # A second Ctrl-C, which does not wait for goodbyes. With a star, for nurseries put it into groups.
    except* KeyboardInterrupt:
        pass
    return Exit.INTERRUPTED


async def _until_signalled(options: argparse.Namespace) -> int:
    """Carry a command out, or end it in good order when a signal comes: sessions and servers too."""
    received: list[int] = []
    status: int = Exit.OK
    async with trio.open_nursery() as nursery:
        await nursery.start(_await_signal, received, nursery.cancel_scope)
        status = await carry_out(options)
        nursery.cancel_scope.cancel()
    if received:
        say("interrupted; the call may have run" if options.command == "call" else "interrupted")
        return 128 + received[0]
    return status


async def _await_signal(
    received: list[int], scope: trio.CancelScope, task_status: trio.TaskStatus[None]
) -> None:
    # Who started this in the background of a script may have made it deaf to Ctrl-C, and meant it.
    wanted = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) != signal.SIG_IGN]
    with trio.open_signal_receiver(*wanted) as signals:
        task_status.started()
        async for number in signals:
            received.append(number)
            scope.cancel()
            return


async def carry_out(options: argparse.Namespace) -> int:
    """Carry one parsed command out and return its exit status; print what went wrong on one line."""
    for_machines = options.json or getattr(options, "jsonl", False)
    try:
        if not for_machines and options.command != "demo" and not has_view():
            raise UsageError("an extra is missing: pip install 'trio-mcp-resilient[cli]' (or use --json)")
        return await COMMANDS[options.command](options)
    except EXPECTED as error:
        say(describe(error))
        if for_machines:
            print_json(failure(error), indent=2 if options.json else None)
        return exit_of(error)
    except (BrokenPipeError, SystemExit):
        # The second is how rich says the first.
        _stop_printing()
        return Exit.NOBODY_READS


def _stop_printing() -> None:
    """Let what is still in the buffers go nowhere, or the interpreter complains of it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


# -- the commands -----------------------------------------------------------------------------


async def _run_demo(options: argparse.Namespace) -> int:
    if options.json or not (has_view() and sys.stdout.isatty()):
        return await _demo.main(as_json=options.json)
    from trio_mcp_resilient._cli_demo import run_live

    return await _demo.main(as_json=False, live=run_live)


async def _run_tools(options: argparse.Namespace) -> int:
    return _show(options, "tools", await _cli_requests.tools(target_of(options)))


async def _run_resources(options: argparse.Namespace) -> int:
    return _show(options, "resources", await _cli_requests.resources(target_of(options)))


async def _run_prompts(options: argparse.Namespace) -> int:
    target = target_of(options)
    if options.name is None:
        return _show(options, "prompts", await _cli_requests.prompts(target))
    # A prompt's arguments are strings.
    arguments = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in options.args.items()
    }
    return _show(options, "prompt", await _cli_requests.get_prompt(target, options.name, arguments))


async def _run_call(options: argparse.Namespace) -> int:
    target = target_of(options)
    showing: AbstractContextManager[ProgressFnT | None] = nullcontext()
    if not options.json:
        from trio_mcp_resilient._cli_view import progress_bar

        showing = progress_bar()
    with showing as progress:
        data = await _cli_requests.call(
            target, options.tool, options.args, resend=options.resend, progress=progress
        )
    status = _show(options, "call", data)
    if status and not options.json:
        say("the tool reported an error")
    return status


async def _run_read(options: argparse.Namespace) -> int:
    return _show(options, "read", await _cli_requests.read(target_of(options), options.uri))


def _show(options: argparse.Namespace, kind: str, data: Data) -> Exit:
    if options.json:
        print_json(data)
    else:
        from trio_mcp_resilient._cli_view import show

        show(kind, data)
    return Exit.OK if data["ok"] else Exit.SAID_NO


async def _run_watch(options: argparse.Namespace) -> int:
    target = target_of(options)
    picture = Picture(str(target.endpoint))
    run = partial(watch, target, interval=options.interval, span=options.span or math.inf)

    def print_line(record: Data) -> None:
        picture.take(record)
        print_json(record, indent=None)

    def conclude() -> None:
        if options.json or options.jsonl:
            print_json(picture.summary(), indent=2 if options.json else None)

    try:
        if options.jsonl:
            await run(print_line)
        elif options.json:
            await run(picture.take)
        else:
            from trio_mcp_resilient._cli_watch import show

            await show(picture, run)
    except trio.Cancelled:
        conclude()
        raise
    conclude()
    return Exit.OK


async def _run_probe(options: argparse.Namespace) -> int:
    target = target_of(options)
    info = client_info().model_dump(mode="json", by_alias=True, exclude_none=True)
    with trio.move_on_after(options.timeout):
        report = await probe(target.endpoint, wire_of(target), Introduction(info, {}))
        data = as_json(report)
        if options.json:
            print_json(data)
        else:
            from trio_mcp_resilient._cli_probe import show

            show(data)
        if report.unfit:
            return Exit.UNREACHABLE
        return Exit.OK if report.sound else Exit.SAID_NO
    raise NoAnswer(f"not examined within {options.timeout:g} s", executed=False)


COMMANDS: dict[str, Callable[[argparse.Namespace], Awaitable[int]]] = {
    "demo": _run_demo,
    "tools": _run_tools,
    "resources": _run_resources,
    "prompts": _run_prompts,
    "call": _run_call,
    "read": _run_read,
    "watch": _run_watch,
    "probe": _run_probe,
}
