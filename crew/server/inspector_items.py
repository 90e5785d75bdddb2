"""Lists of JSON objects that grow and change, of which a reader gets those that changed after its cursor."""

from __future__ import annotations

from typing import Any

from crew.runs.interfaces import Cursor

Item = dict[str, Any]


class ItemList:
    """Objects by number. Each remembers the cursor of its last change."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._changed: list[Cursor | None] = []

    def add(self, item: Item) -> Item:
        """Append an object, which gets its number as `i`."""
        item["i"] = len(self.items)
        self.items.append(item)
        self._changed.append(None)
        return item

    def touch(self, item: Item) -> None:
        """Note that this object changed."""
        self._changed[item["i"]] = None

    def change(self, item: Item, **fields: object) -> None:
        """Set fields of an object."""
        if any(item.get(name) != value for name, value in fields.items()):
            item.update(fields)
            self.touch(item)

    def stamp(self, cursor: Cursor) -> None:
        """Give this cursor to all objects that changed since the last call."""
        self._changed = [cursor if changed is None else changed for changed in self._changed]

    def changed_after(self, cursor: Cursor | None) -> list[Item]:
        """The objects that changed after a cursor; all for None."""
        if cursor is None:
            return self.items

        return [item for item, at in zip(self.items, self._changed, strict=True) if at is None or at > cursor]
