"""The list of deliberate faults keeps up with the code; `nox -s mutants` shows that each is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import PACKAGE, mutated
from tests.mutants.faults import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_applies_once_and_compiles(mutant: Mutant) -> None:
    module = PACKAGE / f"_{mutant.module}.py"
    compile(mutated(mutant, module.read_text()), module.name, "exec")
    for name in mutant.tests.split():
        assert (Path(__file__).parent / f"test_{name}.py").exists()


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_patch_that_fits_nowhere_or_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times"):
        mutated(Mutant("x", "states", "a", "b"), "c")
    with pytest.raises(ValueError, match="2 times"):
        mutated(Mutant("x", "states", "a", "b"), "aa")
