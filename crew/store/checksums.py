"""Checksums of the rows of an SQLite file: SQLite does not notice a bit that flips inside a text."""

from __future__ import annotations

from zlib import crc32

from crew.errors import StoreError


def row_checksum(*values: object) -> int:
    """The checksum of the values of a row, in order; CRC-32 finds flipped bits, it does not stop an attacker."""
    total = 0

    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        total = crc32(data, crc32(b"%d:" % len(data), total))

    return total


def check_row(what: str, checksum: object, *values: object) -> None:
    """Raise `StoreError` if the values of a row are not those that were stored."""
    if checksum != row_checksum(*values):
        raise StoreError("", f"{what} is damaged: its checksum differs.")
