"""What users read of changes: one well-named file for each, none in the changelog itself."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOWNCRIER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
KINDS = [kind["directory"] for kind in TOWNCRIER["type"]]
FRAGMENTS = sorted(path for path in (ROOT / TOWNCRIER["directory"]).iterdir() if path.name != "README.md")


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_is_one_item_under_a_known_kind(path: Path) -> None:
    # towncrier passes over a file whose kind it does not know, and nobody would read it.
    assert re.fullmatch(rf"(\+[a-z0-9-]+|\d+)\.({'|'.join(KINDS)})\.md", path.name)
    text = path.read_text()
    assert re.match(r"[`A-Z]", text), "a sentence, which towncrier makes an item of a list"
    assert text.rstrip().endswith((".", "`"))
    assert text.endswith("\n") and not text.endswith("\n\n")


def test_the_changelog_is_written_by_releases_only() -> None:
    _, marker, released = (
        (ROOT / "CHANGELOG.md").read_text().partition("<!-- towncrier release notes start -->\n")
    )
    assert marker
    assert "Unreleased" not in released, "what is not released has a file of its own in changelog.d/"
