"""Removes from an output what models leak into it: thinking between tags, NULs, surplus white space."""

from __future__ import annotations

import re

THINKING_TAGS = ("think", "thinking", "thought", "reasoning")
STRIPPED_CHARACTERS = " \t\r\n\v\f\ufeff\u200b\u2060"

_CODE_OR_TAG = re.compile(
    rf"```.*?(?:```|\Z)|`[^`\n]+`|<(?P<closes>/?)(?P<tag>{'|'.join(THINKING_TAGS)})\b[^<>\n]*>",
    re.DOTALL | re.IGNORECASE,
)
_CLOSING_TAG = {tag: re.compile(rf"</{tag}\s*>", re.IGNORECASE) for tag in THINKING_TAGS}


def sanitize_output(text: str) -> str:
    """The text without thinking, NULs and surplus white space; code is unchanged."""
    return "\n".join(_collapse_blank_lines(_without_thinking(text.replace("\0", "")).split("\n"))).strip(
        STRIPPED_CHARACTERS
    )


def _without_thinking(text: str) -> str:
    """The text without blocks of thinking.

    A block without a closing tag counts only at the start of the text; one without an opening tag reaches back to the
    start, because some servers put the opening tag into their template.
    """
    kept, begin, at = "", 0, 0
    never_closed: set[str] = set()

    while found := _CODE_OR_TAG.search(text, at):
        at, tag = found.end(), (found["tag"] or "").lower()

        if not tag or tag in never_closed:
            continue

        if found["closes"]:
            begin = begin if kept.strip() else at
            continue

        before = kept + text[begin : found.start()]

        if closing := _CLOSING_TAG[tag].search(text, at):
            kept, begin = before, closing.end()
            at = begin
        elif not before.strip():
            return ""
        else:
            never_closed.add(tag)

    return kept + text[begin:]


def _collapse_blank_lines(lines: list[str]) -> list[str]:
    """The lines without trailing white space, and with at most one blank line in a row."""
    kept: list[str] = []
    in_code = False

    for line in lines:
        in_code ^= line.lstrip().startswith("```")
        bare = line if in_code else line.rstrip()

        if bare or in_code or (kept and kept[-1]):
            kept.append(bare)

    return kept
