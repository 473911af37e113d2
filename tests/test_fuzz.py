"""A slice of what `nox -s fuzz` does, from one seed, so that the harness cannot rot."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import TARGETS, Target, run


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_bytes_that_no_server_means_to_send(target: Target) -> None:
    run(target, 0, min(target.weight, 100) // 2)
