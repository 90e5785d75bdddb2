"""The manifest of a request: what is in it, and what changed since the agent's request before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Literal

from crew.doors import Entry
from crew.history.gauge import Calibration, Gauge, predict
from crew.history.history import History
from crew.history.view import MARKER_POSITION, View, codes, marked, shown, size_of
from crew.manifest import Disposition, Line, Manifest
from crew.messages import SummaryMessage, Transcript

# Providers cache no prefix that is shorter.
CACHED_FROM = 1_024


def manifest_of(
    history: History,
    transcript: Transcript,
    view: View,
    *,
    agent: str,
    gauge: Gauge,
    calibration: Calibration,
    known: int,
    policy: str,
    repairs: tuple[str, ...] = (),
) -> Manifest:
    """The manifest of the request that this view leads to; `policy` is the one that prunes the history."""
    sent = marked(shown(history, view), view)
    now = codes(sent, view)
    same = _common(view.sent, now) if view.sent_to == gauge.model else 0
    rule = _rule(history, view, gauge, same, policy)
    tokens = predict(calibration, gauge.fixed, sent, known)
    front = predict(calibration, gauge.fixed, sent[:same], known) if same or view.sent_to == gauge.model else 0
    numbers = [*map(str, now)]
    ids = [entry.message.id for entry in sent]
    counted: Literal["estimated", "calibrated", "exact"] = "exact" if gauge.exact else "estimated"
    return Manifest(
        agent=agent,
        request=view.turn,
        model=gauge.model,
        messages=size_of(sent, history),
        tokens=tokens,
        counted="calibrated" if calibration.bills else counted,
        fixed=gauge.fixed,
        window=gauge.window,
        window_source=gauge.source,
        same=same,
        rule=rule,
        digest=_digest(gauge, ids, numbers),
        prefix=_digest(gauge, ids[:same], numbers[:same]),
        cached=front if front >= CACHED_FROM else 0,
        lines=tuple(_line(entry, view, code) for entry, code in zip(sent[same:], now[same:], strict=True)),
        left=tuple(_left(history, transcript, view, rule or policy, now, view.sent[same:])),
        repairs=repairs,
    )


def _common(before: Sequence[int], now: Sequence[int]) -> int:
    """How many messages at the front are the same."""
    if before == now[: len(before)]:
        return len(before)

    return next(i for i, (old, new) in enumerate(zip((*before, None), (*now, None), strict=False)) if old != new)


def _rule(history: History, view: View, gauge: Gauge, same: int, policy: str) -> str:
    if not view.sent:
        return "first request"

    if view.sent_to != gauge.model:
        return view.moved or "another model"

    if same == len(view.sent):
        return ""

    # What is not in the history any more left by the crew's policy, whatever else moved this view since.
    there = {entry.position for entry in history.entries}
    gone = view.sent[same] // 4
    return policy if gone >= 0 and gone not in there else view.moved or policy


def _digest(gauge: Gauge, ids: Sequence[str], numbers: Sequence[str]) -> str:
    """A name for what was sent: messages never change, so that their ids and forms say it."""
    front = f"{gauge.model}\n{gauge.counted}\n"
    return blake2b((front + "\n".join(ids) + "\n" + ",".join(numbers)).encode(), digest_size=8).hexdigest()


def _line(entry: Entry, view: View, code: int) -> Line:
    disposition: Disposition = "kept"

    if entry.position == MARKER_POSITION:
        disposition = "marker"
    elif code % 4 == 1:
        disposition = "text_only"
    elif code % 4 == 2:
        disposition = "masked"

    reason = {"kept": "", "marker": "truncate", "text_only": "handoff", "masked": view.moved or "masked before"}
    return Line(id=entry.message.id, disposition=disposition, reason=reason[disposition], tokens=entry.tokens)


def _left(
    history: History, transcript: Transcript, view: View, rule: str, now: Iterable[int], before: Sequence[int]
) -> Iterable[Line]:
    """What was shown last time and is not shown now, in any form."""
    if not before:
        return

    there = {code // 4 for code in now if code >= 0}
    gone = [code // 4 for code in before if code >= 0 and code // 4 not in there]

    if not gone:
        return

    covered = {
        id for entry in history.entries if isinstance(entry.message, SummaryMessage) for id in entry.message.covers
    }

    for position in gone:
        id = transcript[position].id
        yield Line(id=id, disposition="summarised" if id in covered else "evicted", reason=rule)


def unfold(manifests: Iterable[Manifest]) -> list[Line]:
    """The whole of the last request of these, which are all requests of one agent, in order."""
    lines: list[Line] = []

    for manifest in manifests:
        lines = [*lines[: manifest.same], *manifest.lines]

    return lines
