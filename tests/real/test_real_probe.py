"""Probes of real servers, held against the record that the manual's table is made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .probing import ALL, RECORD, examined
from .servers import Kind

pytestmark = [pytest.mark.real, pytest.mark.limit(120)]

REPORTS: dict[str, dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))["reports"]


def gist(report: dict[str, Any]) -> dict[str, Any]:
    """What clients depend on; how a server words it may change with its version."""
    kept = (
        "eras",
        "keeps_sessions",
        "resumable",
        "standard_client_recovers",
        "this_client_recovers",
        "unfit",
    )
    rows = [(row["step"], row["status"], row["verdict"]) for row in report["rows"]]
    findings = [(finding["step"], finding["level"]) for finding in report["findings"]]
    return {**{name: report[name] for name in kept}, "rows": rows, "findings": findings}


@pytest.mark.parametrize("kind", ALL, ids=str)
async def test_a_server_is_still_as_the_manual_says(kind: Kind, tmp_path: Path) -> None:
    assert gist(await examined(kind, tmp_path)) == gist(REPORTS[kind.name])
