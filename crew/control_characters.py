"""Escapes control characters, so that a terminal shows a text as it is."""

from __future__ import annotations

import re

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    """The text with control characters and direction marks escaped, so that a terminal shows it as it is.

    Tabs and line ends stay. The escapes are valid in JSON strings.
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))
