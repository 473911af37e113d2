"""The package's architecture, as a list that fails when it stops being true.

To add a module, put its name below, after everything it imports. If no place fits, the module
mixes two layers: split it, rather than the list.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

# Found, not imported: the list must be able to fail also when the package cannot be imported.
SPEC = importlib.util.find_spec("trio_mcp_resilient")
assert SPEC is not None and SPEC.origin is not None
PACKAGE = Path(SPEC.origin).parent
PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
PROJECT = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]

LAYERS: dict[str, tuple[str, ...]] = {
    "words": (
        "_errors",
        "_states",
        "_events",
        "_policy",
        "_outcome",
        "_statistics",
        "_endpoint",
        "_secrets",
        "_wire",
    ),
    "sans-IO": (
        "_jsonrpc",
        "_sse",
        "_body",
        "_wording",
        "_detector",
        "_sdk_errors",
        "_eras",
        "_judge",
        "_envelope",
        "_session",
        "_restoring",
        "_validating",
        "_schemas",
    ),
    "HTTP": (
        "_http_errors",
        "_dial",
        "_http11",
        "_http_messages",
        "_spares",
        "_connections",
        "_httpx_transport",
        "_patience",
        "_auth_words",
        "_auth_flow",
        "_auth",
        "_cookies",
        "_inflating",
        "_following",
        "_plain_wire",
        "_httpx_wire",
        "_http",
    ),
    "one session": (
        "_nursery",
        "_answers",
        "_handshake",
        "_discovery",
        "_negotiation",
        "_flight",
        "_pacing",
        "_exchange",
        "_listening",
        "_resuming",
        "_inbound",
        "_router",
        "_generation",
    ),
    "whoever watches": ("_instruments", "_instrument_logging", "otel"),
    "all of them": ("_series", "_succession", "_supervisor", "_call", "_sending", "_dispatcher", "_assembly"),
    "what people hold": (
        "_rounds",
        "_subscription",
        "_client",
        "_open",
        "_sdk_streams",
        "_greeting",
        "_relistening",
        "_bridge",
        "_sdk_transport",
    ),
    "a pool's books": ("_pool_events", "_pool_statistics", "_pool_keys", "_pool_slot", "_pool_slots"),
    "a pool": ("_crowd", "_pool_options", "_pool_client", "_pool_lease", "_pool_keeper", "_pool"),
    "the names": ("__init__",),
    "the scripted server": (
        "_scripted_records",
        "_scripted_stream",
        "_scripted_dialects",
        "_scripted_envelope",
        "_scripted_checks",
        "_scripted_session",
        "_scripted_inputs",
        "_scripted_sessions",
        "_scripted_subscriptions",
        "_scripted_catalog",
        "_scripted_runs",
        "_scripted_http",
        "_scripted_faults",
        "_scripted_answer",
        "_scripted_network",
        "_scripted_modern",
        "_scripted_server",
        "_scripted_breaks",
        "_scripted_recovery",
        "testing",
    ),
    "faces": (
        "_demo_journal",
        "_demo_process",
        "_demo_server",
        "_demo_clients",
        "_demo_scenario",
        "_demo",
        "_probe_report",
        "_probe",
        "_cli_output",
        "_cli_options",
        "_cli_requests",
        "_watch",
        "_cli_parser",
        "_cli_view",
        "_cli_watch",
        "_cli_probe",
        "_cli_demo",
        "_cli",
        "__main__",
    ),
}
ORDER = [module for modules in LAYERS.values() for module in modules]
PURE = {*LAYERS["words"], *LAYERS["sans-IO"], *LAYERS["a pool's books"], "_probe_report"}

ALLOWED: dict[str, set[str]] = {
    # Whoever imports one of these must be named here; an empty set is a ban.
    "asyncio": set(),
    "threading": set(),
    "concurrent": set(),
    "time": set(),
    # The SDK's seam is typed with anyio's names; nothing else needs them.
    "anyio": {"_dispatcher", "_inbound", "_sdk_streams"},
    # One place translates httpx's names, one makes its client, one is a transport for it; others have them
    # in a signature.
    "httpx": {
        "_cookies",
        "_http",
        "_httpx_transport",
        "_httpx_wire",
        "_pool_client",
        "_pool_options",
        "_pool",
        "_assembly",
        "_open",
        "_sdk_transport",
    },
    # What the SDK's OAuth providers are made of: one module drives them, the others name it in annotations.
    "httpx2": {
        "_auth_flow",
        "_auth",
        "_http",
        "_pool_client",
        "_pool",
        "_assembly",
        "_open",
        "_sdk_transport",
    },
    "h11": {"_http11", "_http_messages", *LAYERS["the scripted server"]},
    # An extra: whoever imports it is imported only where something is shown to people.
    "rich": {"_cli_view", "_cli_watch", "_cli_probe", "_cli_demo"},
}
FORBIDDEN_IN_PURE = {"trio", "httpx", "anyio", "h11", "socket", "ssl"}

MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))


def imports_of(module: str) -> set[str]:
    """Every module that `module` imports anywhere, also in functions and for type checkers."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import: spell the package's name"
            found.add(node.module or "")
            # `from trio_mcp_resilient import _x` names the module after the `import`.
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def own(imports: set[str]) -> set[str]:
    """The package's own modules among `imports`."""
    inside = {name.split(".")[1] for name in imports if name.startswith("trio_mcp_resilient.")}
    whole = {"__init__"} if "trio_mcp_resilient" in imports else set[str]()
    return {name for name in inside if name in MODULES} | whole


def foreign(imports: set[str]) -> set[str]:
    """The top-level names of everything else among `imports`."""
    return {name.split(".")[0] for name in imports} - {"trio_mcp_resilient", "__future__"}


def test_every_module_is_in_the_list() -> None:
    assert not set(MODULES) - set(ORDER), "put these in LAYERS, after what they import"
    assert not set(ORDER) - set(MODULES), "these are gone: take them out of LAYERS"
    assert len(ORDER) == len(set(ORDER))


def test_the_map_in_the_package_names_the_same_modules() -> None:
    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    named = set(re.findall(r"`(_?_?[a-z0-9_]+)`", ast.get_docstring(ast.parse(source)) or ""))
    assert named == {
        name for name in ORDER if name != "__init__" and not name.startswith(("_demo", "_scripted"))
    }


def test_the_package_is_flat() -> None:
    folders = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert not folders


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_what_stands_above_it(module: str) -> None:
    above = set(ORDER[: ORDER.index(module)])
    assert not own(imports_of(module)) - above, f"{module} imports what stands below it, or itself"


@pytest.mark.parametrize("module", sorted(PURE & set(MODULES)))
def test_words_and_sans_io_do_no_io(module: str) -> None:
    assert not foreign(imports_of(module)) & FORBIDDEN_IN_PURE


@pytest.mark.parametrize("module", sorted({*LAYERS["the scripted server"]} & set(MODULES)))
def test_the_scripted_server_shares_nothing_with_the_client(module: str) -> None:
    # A parser on both ends of the wire would agree with its own mistakes.
    assert own(imports_of(module)) <= {*LAYERS["the scripted server"]}


@pytest.mark.parametrize("module", MODULES)
def test_foreign_names_stay_where_they_belong(module: str) -> None:
    wrong = {name for name in foreign(imports_of(module)) if name in ALLOWED and module not in ALLOWED[name]}
    assert not wrong, f"{module} may not import {wrong}"


def test_what_is_imported_is_declared() -> None:
    declared = {
        requirement.split(">")[0].split("=")[0].strip().replace("-", "_")
        for requirement in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cli"]]
    }
    # The demonstration's server runs on what the SDK's own servers run on, so it comes with the SDK.
    imported = {name for module in MODULES for name in foreign(imports_of(module))} - {"uvicorn"}
    # The distribution that brings this one is called otherwise.
    declared |= {"opentelemetry"} if "opentelemetry_api" in declared else set()
    assert imported - set(sys.stdlib_module_names) <= declared, "another distribution may stop bringing it"
