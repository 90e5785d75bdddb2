"""The version of stored states and events, and the functions that lead an older one to the version of this release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crew.errors import StoreError

FIRST_VERSION = 4
"""The oldest version that is read; before it, stored states were not promised to last."""

Stored = dict[str, Any]

MIGRATIONS: tuple[Callable[[str, Stored], Stored], ...] = ()
"""The first one leads from version 4 to 5, and so on; its first argument is `state`, `event` or `events`.

Add one, and a file to tests/store/files, when older JSON can't be decoded any more; a new field with a default needs
none. Released ones never change. A stored value keeps its version until the run is committed again.
"""


def newest_version() -> int:
    """The version that this release writes."""
    return FIRST_VERSION + len(MIGRATIONS)


def migrate(kind: str, found: object) -> Stored:
    """Stored JSON in the newest version; `StoreError` if it is of a later release, or of none that can be read."""
    version = found.get("version") if isinstance(found, dict) else None

    if not isinstance(found, dict) or not isinstance(version, int) or kind not in found:
        raise StoreError("", f"The stored {kind} has no version: it was not written by a store of runs.")

    if version > newest_version():
        raise StoreError(
            "",
            f"The stored {kind} has version {version}; this release reads versions up to {newest_version()}. Use the "
            "release that wrote it or a later one.",
        )

    if version < FIRST_VERSION:
        raise StoreError(
            "",
            f"The stored {kind} has version {version}; this release reads versions from {FIRST_VERSION} on. Finish the "
            "run with the release that wrote it, or start it again.",
        )

    for step in MIGRATIONS[version - FIRST_VERSION :]:
        found = step(kind, found)

    return found
