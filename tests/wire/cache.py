"""The services' prompt caches: OpenAI's by exact prefix, Anthropic's by breakpoints."""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tests.wire.billing import Usage

STEP = 128
OPENAI_MINIMUM = 1024
LOOK_BACK = 20
PIECE = 512
SECONDS = {"5m": 300.0, "1h": 3600.0}


class Segment(NamedTuple):
    """A part of the prompt, in the service's order; `mark` is the time to live of a breakpoint after it."""

    text: str
    tokens: int
    mark: str | None = None


class Cache:
    """Cached prefixes with their expiry times; a hit renews the expiry."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[bytes, tuple[float, float]] = {}

    def clear(self) -> None:
        """Expire all entries."""
        self._until.clear()

    def automatic(self, scope: str, segments: Sequence[Segment]) -> tuple[int, int]:
        """OpenAI: read the longest known prefix, in steps of 128 tokens from 1,024; return (read, written)."""
        total = sum(segment.tokens for segment in segments)
        matched, end, still = 0, 0, True
        for key, tokens in _prefixes(scope, _pieces(segments)):
            end += tokens
            still = still and self._renew(key)
            if still:
                matched = end
            self._store(key, SECONDS["5m"])
        read = min(matched, total - 1) // STEP * STEP
        read = read if read >= OPENAI_MINIMUM else 0
        written = total // STEP * STEP - read if total >= OPENAI_MINIMUM else 0
        return read, max(written, 0)

    def marked(self, scope: str, segments: Sequence[Segment], minimum: int) -> Usage:
        """Anthropic: read the longest entry within 20 blocks before a breakpoint; write the rest up to the last one."""
        keys = [key for key, _ in _prefixes(scope, segments)]
        ends = _ends(segments)
        marks = [(i, s.mark) for i, s in enumerate(segments) if s.mark and ends[i] >= minimum]
        read = 0
        for place, _ in marks:
            hit = next((p for p in range(place, max(place - LOOK_BACK, -1), -1) if self._renew(keys[p])), None)
            read = max(read, ends[hit]) if hit is not None else read
        hour = max([ends[i] for i, mark in marks if mark == "1h"], default=0)
        last = max([ends[i] for i, _ in marks], default=0)
        for place, mark in marks:
            self._store(keys[place], SECONDS[mark or "5m"])
        long = max(hour - read, 0)
        short = max(last - max(read, hour), 0)
        return Usage(fresh=ends[-1] - read - long - short if ends else 0, read=read, write=short, write_1h=long)

    def _renew(self, key: bytes) -> bool:
        until, life = self._until.get(key, (0.0, 0.0))
        now = self._clock()
        if until <= now:
            return False
        self._until[key] = (now + life, life)
        return True

    def _store(self, key: bytes, life: float) -> None:
        self._until[key] = (self._clock() + life, life)


def _prefixes(scope: str, segments: Sequence[Segment]) -> Iterator[tuple[bytes, int]]:
    chain = hashlib.blake2b(scope.encode(), digest_size=16)
    for segment in segments:
        chain.update(segment.text.encode(errors="surrogatepass"))
        chain.update(b"\0")
        yield chain.copy().digest(), segment.tokens


def _pieces(segments: Sequence[Segment]) -> list[Segment]:
    """Split long segments, so that a prefix may end inside of one; the pieces' tokens add up to the segment's."""
    pieces: list[Segment] = []
    for segment in segments:
        text = segment.text
        if len(text) <= 2 * PIECE:
            pieces.append(segment)
            continue
        given = 0
        for start in range(0, len(text), PIECE):
            upto = segment.tokens * min(start + PIECE, len(text)) // len(text)
            pieces.append(Segment(text[start : start + PIECE], upto - given))
            given = upto
    return pieces


def _ends(segments: Sequence[Segment]) -> list[int]:
    ends, total = [], 0
    for segment in segments:
        total += segment.tokens
        ends.append(total)
    return ends
