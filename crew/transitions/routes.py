"""Which route a reply takes: where its signal must stand, and the output without the signal."""

from __future__ import annotations

import re
from collections.abc import Callable

from crew.agents.agent import Agent, Route
from crew.transitions.markdown import open_code_fence

# Stripped after a signal: white space, punctuation and Markdown marks. Quotation marks are not among them.
_TRAILING = r"[\s.,;:!?…。！？*_~`)\]}>-]*"
_BLOCK_QUOTE = re.compile(r"\s*>")
# A single mark may be an apostrophe ("the '90s"), so it counts only right before a signal.
_OPENING_QUOTE = re.compile(r"(?:^|(?<=[\s([{<*_-]))\"(?=\S)|[“„«]|['‘‹]\Z")
_CLOSING_QUOTE = re.compile(r"(?<=\S)\"(?!\w)|[”»]")


def find_route(agent: Agent, text: str) -> Route | None:
    """The route that this reply takes: its signal is matched exactly, else ignoring case, else white space too.

    Of several signals that end the reply, the longest counts: `NOT DONE` also ends with `DONE`.
    """
    if not agent.routes:
        return None

    is_quoted = _ends_in_quoted_block(text)

    for read in _READINGS:
        words = read(text)
        found = [route for route in agent.routes if _matches(route, read(route.signal), words, is_quoted=is_quoted)]

        if found:
            endings = [route for route in found if route.match == "end"]
            return found[0] if found[0].match == "anywhere" else max(endings, key=lambda route: len(route.signal))

    return None


def misplaced_signals(agent: Agent, text: str, taken: Route | None) -> tuple[str, ...]:
    """The signals of other routes that are in the reply, but not where they count."""
    if not agent.routes:
        return ()

    words = _folded(text)
    return tuple(
        route.signal
        for route in agent.routes
        if route is not taken and route.match == "end" and _folded(route.signal) in words
    )


def without_signal(text: str, signal: str) -> str:
    """The text without the last occurrence of a signal that ended the run; unchanged if nothing else is left."""
    # White space may differ, also inside brackets, as in `find_route`.
    pattern = re.sub(r"(?:\\\s)+", r"\\s+", re.escape(signal))
    pattern = re.sub(r"\\([\[({<])", r"\\\1\\s*", pattern)
    pattern = re.sub(r"\\([\])}>])", r"\\s*\\\1", pattern)
    found = [*re.finditer(pattern, text, re.IGNORECASE)]

    if not found:
        return text  # the signal was matched in another form, such as without its diacritics

    before, after = text[: found[-1].start()], text[found[-1].end() :]
    is_last = re.fullmatch(_TRAILING, after) is not None
    left = re.sub(r"\s+[*_~`(\[{<]*$", "", before) if is_last else before.rstrip() + after
    return left.strip() or text


def _folded(words: str) -> str:
    # White space is collapsed, not removed: otherwise "stop" would be found in "first option".
    return re.sub(r"(?<=[\[({<]) | (?=[\])}>])", "", re.sub(r"\s+", " ", words.casefold()))


_READINGS: tuple[Callable[[str], str], ...] = (str, str.casefold, _folded)


def _matches(route: Route, signal: str, words: str, *, is_quoted: bool) -> bool:
    if route.match == "anywhere":
        return signal in words

    # A signal that begins with a letter must begin a word: "nonstop" does not end with the signal "stop".
    boundary = r"(?<!\w)" if signal[0].isalnum() else ""
    found = None if is_quoted else re.search(rf"{boundary}{re.escape(signal)}(?={_TRAILING}\Z)", words)
    return found is not None and not _is_inside_quotation(words[: found.start()])


def _is_inside_quotation(before: str) -> bool:
    """Whether a quotation is open at the end of this text: the last opening mark of its paragraph is not closed."""
    paragraph = before.rpartition("\n\n")[2]
    opened = [mark.start() for mark in _OPENING_QUOTE.finditer(paragraph)]

    if paragraph.endswith('"') and not paragraph[:-1].endswith(tuple("0123456789")):
        return True

    return bool(opened) and not any(mark.start() > opened[-1] for mark in _CLOSING_QUOTE.finditer(paragraph))


def _ends_in_quoted_block(text: str) -> bool:
    """Whether the last words of this text are in a Markdown code fence or block quote."""
    lines = text.splitlines()

    while lines and re.fullmatch(_TRAILING, lines[-1]):  # also a fence that closes
        lines.pop()

    return bool(lines) and (open_code_fence(lines) != "" or _BLOCK_QUOTE.match(lines[-1]) is not None)
