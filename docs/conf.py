"""Sphinx settings: nitpicky, warnings are errors, every example runs (`nox -s docs`)."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

import trio_mcp_resilient

project = "trio_mcp_resilient"
author = "The trio_mcp_resilient authors"
copyright = f"2026, {author}"
version = release = installed_version("trio-mcp-resilient")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.doctest"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"{project} {release}"

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False

doctest_global_setup = """
import trio
import trio_mcp_resilient
from trio_mcp_resilient import *
"""

nitpicky = True
# Names of other projects are not looked up: the manual has to build without a network.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(collections|contextlib|enum|logging|ssl|typing|types|trio|httpx2?|mcp|mcp_types|anyio|h11|opentelemetry|pydantic)\..*",
    ),
    # What the scripted server keeps for itself, seen in passing on its records.
    (r"py:class", r"trio_mcp_resilient\._scripted_.*"),
    # Sphinx shows some annotations as they are spelled in the source.
    (
        r"py:class",
        r"(types|ssl|httpx|httpx2|trio)\..*|.*FnT|RequestParamsMeta|Mapping|Callable|AsyncGenerator",
    ),
    (r"py:class", r"Body|When|Point|How"),
]


def setup(app: Sphinx) -> None:
    """Prepare autodoc for this package's habits."""
    _look_for_field_docs_where_they_are()
    app.connect("source-read", _show_what_is_not_yet_released)
    # Around napoleon, which has priority 500.
    app.connect("autodoc-process-docstring", _keep_as_written, priority=400)
    app.connect("autodoc-process-docstring", _put_back_as_written, priority=600)
    app.connect("autodoc-process-signature", _show_context_managers_as_such)


def _show_what_is_not_yet_released(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put what the next release will say of itself above what the last ones said."""
    if docname == "changes":
        draft = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "Unreleased"]
        root = Path(__file__).parent.parent
        told = subprocess.run(draft, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout
        # Its first line is a title with a date, and the page has one without.
        source[0] = source[0].replace("UNRELEASED", told.partition("\n")[2])


def _look_for_field_docs_where_they_are() -> None:
    """Let autodoc find the strings below fields and enum members.

    It reads them from the source of a class's `__module__`, and ours name the public package
    there, not the file they are written in.
    """
    face = ModuleAnalyzer.for_module(trio_mcp_resilient.__name__)
    face.analyze()
    for name in sorted(sys.modules):
        if name.startswith(f"{trio_mcp_resilient.__name__}._"):
            hidden = ModuleAnalyzer.for_module(name)
            hidden.analyze()
            face.attr_docs.update(hidden.attr_docs)
            face.tagorder.update(hidden.tagorder)


_written: dict[str, list[str]] = {}


def _keep_as_written(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Save an attribute's docstring: napoleon takes what stands before its first colon for a type."""
    if what in ("attribute", "data", "property"):
        _written[name] = list(lines)


def _put_back_as_written(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    if name in _written:
        lines[:] = _written.pop(name)


def _show_context_managers_as_such(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str, returns: str | None
) -> tuple[str, str | None]:
    """Show what calling the function gives, not what the generator below its decorator yields."""
    found = re.fullmatch(r"~?(?:[\w.]+\.)?AsyncGenerator\[(.*), None\]", returns or "")
    return signature, f"~contextlib.AbstractAsyncContextManager[{found[1]}]" if found else returns
