"""Whether a result can be validated by its tool's output schema in bounded time.

A schema is the server's, and so is the result. Between them they can keep a validator busy for
ever: a regular expression that backtracks, references that double at each step, a million items
that have to be unique. Python cannot be interrupted in it, and everything else would wait. So what
could take long is not validated at all; the result is the server's word either way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import unquote

MAX_SUBSCHEMAS = 2000
"""How many objects a schema may have in it: to check one of so many takes about half a second."""
MAX_STEPS = 100_000
"""How many subschemas, references followed, times how many values there may be to look at: the worst
of so many were measured to take two seconds."""
COSTLY: dict[str, type] = {
    # Regular expressions.
    "pattern": str,
    "patternProperties": dict,
    # Comparing each with each, and evaluating again what was evaluated.
    "uniqueItems": bool,
    "unevaluatedProperties": object,
    "unevaluatedItems": object,
    # References that mean something else at each place.
    "$dynamicRef": str,
    "$recursiveRef": str,
}
"""Keywords that take longer than their size, and what they hold; what is named so and holds anything
else is somebody's property."""


def is_affordable(schema: dict[str, Any], value: object) -> bool:
    """Whether validating `value` by `schema` takes no more than a moment. Never raises."""
    try:
        return _weight(schema, _Weigher(schema)) * _size(value) <= MAX_STEPS
    except RecursionError:
        return False


def _weight(schema: dict[str, Any], weigher: _Weigher) -> float:
    subschemas = 0
    for node in _values(schema):
        if isinstance(node, dict):
            subschemas += 1
            if subschemas > MAX_SUBSCHEMAS or _is_costly(cast("dict[str, object]", node)):
                return math.inf
    return weigher.weigh(schema)


def _is_costly(node: dict[str, object]) -> bool:
    return any(key in node and isinstance(node[key], kind) for key, kind in COSTLY.items())


def _size(value: object) -> int:
    return sum(1 for _ in _values(value))


def _values(value: object) -> Iterator[object]:
    """Give a value and all that is in it."""
    left = [value]
    while left:
        value = left.pop()
        yield value
        if isinstance(value, dict):
            left += cast("dict[str, object]", value).values()
        elif isinstance(value, list):
            left += cast("list[object]", value)


class _Weigher:
    """Counts the subschemas of a schema, each reference as what it refers to."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[str, float] = {}

    def weigh(self, node: object) -> float:
        if isinstance(node, list):
            items = cast("list[object]", node)
            return len(items) + sum(map(self.weigh, items))
        if not isinstance(node, dict):
            return 0
        members = cast("dict[str, object]", node)
        reference = members.get("$ref")
        # Definitions cost where they are referred to.
        inside = [value for key, value in members.items() if key not in ("$defs", "definitions")]
        followed = self._follow(reference) if isinstance(reference, str) else 0
        return 1 + sum(map(self.weigh, inside)) + followed

    def _follow(self, reference: str) -> float:
        if not reference.startswith("#/"):
            # Found by a name, or the whole schema again.
            return math.inf
        if reference not in self._known:
            # One that comes back to itself goes as deep as the value does, and doubles as it goes.
            self._known[reference] = math.inf
            self._known[reference] = self.weigh(self._target(reference))
        return self._known[reference]

    def _target(self, reference: str) -> object:
        """Return what a reference points to; nothing, if there is nothing."""
        node: object = self._root
        for part in unquote(reference).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict):
                node = cast("dict[str, object]", node).get(key)
            elif (
                isinstance(node, list) and key.isdecimal() and int(key[:9]) < len(cast("list[object]", node))
            ):
                node = cast("list[object]", node)[int(key[:9])]
            else:
                return None
        return node
