"""Sphinx settings: nitpicky, warnings are errors, every example runs (`nox -s docs`)."""

from __future__ import annotations

from importlib.metadata import version as installed_version

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
# Factories make these; how is nobody's business.
autodoc_class_signature = "separated"
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
        r"(collections|contextlib|enum|ssl|typing|types|trio|httpx|mcp|mcp_types|anyio|h11|pydantic)\..*",
    ),
    # Sphinx shows some annotations as they are spelled in the source.
    (r"py:class", r"(types|ssl|httpx|trio)\..*|.*FnT|RequestParamsMeta|Mapping|Callable|AsyncGenerator"),
]
