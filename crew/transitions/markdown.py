"""Markdown in replies: code fences, and text that becomes a section of a longer text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from crew.tools.tool import truncate_middle

_ONLY_A_FENCE = re.compile(r"\s*```[a-zA-Z]*[ \t]*\n(?P<content>(?:(?!```).)*?)\n?[ \t]*```\s*", re.DOTALL)
_FENCE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})(?P<info>.*)")
_LINE_BREAKS = r"\n\r\v\f\x85\u2028\u2029"
_HEADING = re.compile(rf"(?:^|(?<=[{_LINE_BREAKS}]))[^\S{_LINE_BREAKS}]*(?=[#＃]{{2}})")


def without_code_fence(text: str) -> str:
    """The content of a reply that is one fenced code block, as models write JSON; any other text unchanged."""
    found = _ONLY_A_FENCE.fullmatch(text)
    return found["content"] if found else text


def open_code_fence(lines: Iterable[str]) -> str:
    """The fence of a code block that is still open after these lines; empty if there is none."""
    fence = ""

    for line in lines:
        found = _FENCE.match(line)

        if found is None:
            continue

        if not fence:
            # A line such as ```code``` is inline code.
            fence = "" if found["fence"][0] in found["info"] else found["fence"]
        elif found["fence"].startswith(fence) and not found["info"].strip():
            fence = ""

    return fence


def section(heading: str, text: str, max_chars: int) -> str:
    """The text under a second-level heading. It can't look like another section: its headings are one level lower.

    A code fence that is open at the end of the text is closed, so that it does not include the next section.
    """
    lower = _HEADING.sub(lambda found: f"{found[0]}#", text)
    content = truncate_middle(lower, max_chars)
    fence = open_code_fence(content.splitlines())
    return f"## {heading}\n{content}" + (f"\n{fence}" if fence else "")
