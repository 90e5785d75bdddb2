"""A state or an event with some of its fields changed, made quickly: a run does this dozens of times in each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from itertools import repeat
from operator import attrgetter, call
from typing import Any, TypeVar

Value = TypeVar("Value")
Put = Callable[[Any, Any], None]


def changed(value: Value, **changes: Any) -> Value:
    """As `dataclasses.replace`, for frozen slotted dataclasses without `__post_init__`, in a fraction of the time."""
    kind: Any = type(value)
    read, puts, by_name = _slots(kind)
    new = object.__new__(kind)

    for _ in map(call, puts, repeat(new), read(value)):
        pass

    for name, given in changes.items():
        by_name[name](new, given)

    made: Value = new
    return made


@cache
def _slots(kind: Any) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[Put, ...], dict[str, Put]]:
    by_name = {field.name: getattr(kind, field.name).__set__ for field in fields(kind)}
    return attrgetter(*by_name), tuple(by_name.values()), by_name
