"""The client's table of states."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import load_script
from trio_mcp_resilient._states import TRANSITIONS, IllegalTransition, State, StateMachine


def test_every_state_has_a_row_and_only_closed_is_final() -> None:
    assert set(TRANSITIONS) == set(State)
    assert [state for state, after in TRANSITIONS.items() if not after] == [State.CLOSED]


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_only_the_tables_moves_are_made(before: State, after: State) -> None:
    told: list[tuple[State, State]] = []
    machine = StateMachine(lambda *move: told.append(move))
    machine.state = before
    if after is before:
        machine.move(after)
        assert told == []
    elif after in TRANSITIONS[before]:
        machine.move(after)
        assert told == [(before, after)]
        assert machine.state is after
    else:
        with pytest.raises(IllegalTransition, match=f"{before} to {after}"):
            machine.move(after)
        assert told == []
        assert machine.state is before


def test_the_manuals_pictures_are_of_this_table() -> None:
    pictures = load_script(Path(__file__).parent.parent / "docs" / "pictures.py")
    for name, draw in pictures.PICTURES.items():
        drawn = (pictures.IMAGES / name).read_text(encoding="utf-8")
        assert drawn == draw(), "run: python docs/pictures.py"
