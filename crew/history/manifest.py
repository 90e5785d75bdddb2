"""The manifest of a request: what is in it, and what changed since the agent's request before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Literal

from crew.history.history import History
from crew.history.token_budget import Calibration, TokenBudget, predict_tokens
from crew.history.view import MARKER_POSITION, RequestView, View
from crew.interfaces import HistoryEntry
from crew.messages import Disposition, Manifest, ManifestLine, SummaryMessage, Transcript

# Providers cache no prefix that is shorter.
MIN_CACHED_TOKENS = 1_024


def build_manifest(
    history: History,
    transcript: Transcript,
    view: View,
    content: RequestView,
    *,
    agent: str,
    token_budget: TokenBudget,
    calibration: Calibration,
    billed_until: int,
    policy: str,
    repairs: tuple[str, ...] = (),
) -> Manifest:
    """The manifest of the request that this view leads to; `policy` is the one that prunes the history."""
    gauge, known = token_budget, billed_until
    sent, now = content.sent, content.codes
    same = _common_prefix(view.last_request, now) if view.last_model == gauge.model else 0
    rule = _moved_by(history, view, gauge, same, policy)
    tokens = predict_tokens(calibration, gauge.overhead_tokens, sent, known)
    front = (
        predict_tokens(calibration, gauge.overhead_tokens, sent[:same], known)
        if same or view.last_model == gauge.model
        else 0
    )
    numbers = [*map(str, now)]
    ids = [entry.message.id for entry in sent]
    counted: Literal["estimated", "calibrated", "exact"] = "exact" if gauge.counts_exactly else "estimated"
    return Manifest(
        agent=agent,
        turn=view.turn,
        model=gauge.model,
        messages=content.size,
        tokens_estimated=tokens,
        count_method="calibrated" if calibration.bill_count else counted,
        overhead_tokens=gauge.overhead_tokens,
        window=gauge.window,
        window_source=gauge.window_source,
        same_messages=same,
        moved_by=rule,
        digest=_digest(gauge, ids, numbers),
        prefix_digest=_digest(gauge, ids[:same], numbers[:same]),
        cached_predicted=front if front >= MIN_CACHED_TOKENS else 0,
        tail=tuple(_manifest_line(entry, view, code) for entry, code in zip(sent[same:], now[same:], strict=True)),
        removed=tuple(_removed_lines(history, transcript, view, rule or policy, now, view.last_request[same:])),
        repairs=repairs,
    )


def _common_prefix(before: Sequence[int], now: Sequence[int]) -> int:
    """How many messages at the front are the same."""
    if before == now[: len(before)]:
        return len(before)

    return next(i for i, (old, new) in enumerate(zip((*before, None), (*now, None), strict=False)) if old != new)


def _moved_by(history: History, view: View, gauge: TokenBudget, same: int, policy: str) -> str:
    if not view.last_request:
        return "first request"

    if view.last_model != gauge.model:
        return view.moved_by or "another model"

    if same == len(view.last_request):
        return ""

    # What is not in the history any more left by the crew's policy, whatever else moved this view since.
    there = {entry.position for entry in history.entries}
    gone = view.last_request[same] // 4
    return policy if gone >= 0 and gone not in there else view.moved_by or policy


def _digest(gauge: TokenBudget, ids: Sequence[str], numbers: Sequence[str]) -> str:
    """A name for what was sent: messages never change, so that their ids and forms say it."""
    front = f"{gauge.model}\n{gauge.overhead_counted}\n"
    return blake2b((front + "\n".join(ids) + "\n" + ",".join(numbers)).encode(), digest_size=8).hexdigest()


def _manifest_line(entry: HistoryEntry, view: View, code: int) -> ManifestLine:
    disposition: Disposition = "kept"

    if entry.position == MARKER_POSITION:
        disposition = "marker"
    elif code % 4 == 1:
        disposition = "text_only"
    elif code % 4 == 2:
        disposition = "masked"

    reason = {"kept": "", "marker": "truncate", "text_only": "handoff", "masked": view.moved_by or "masked before"}
    return ManifestLine(id=entry.message.id, disposition=disposition, reason=reason[disposition], tokens=entry.tokens)


def _removed_lines(
    history: History, transcript: Transcript, view: View, rule: str, now: Iterable[int], before: Sequence[int]
) -> Iterable[ManifestLine]:
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
        yield ManifestLine(id=id, disposition="summarised" if id in covered else "evicted", reason=rule)


def expand_manifests(manifests: Iterable[Manifest]) -> list[ManifestLine]:
    """The whole of the last request of these, which are all requests of one agent, in order."""
    lines: list[ManifestLine] = []

    for manifest in manifests:
        lines = [*lines[: manifest.same_messages], *manifest.tail]

    return lines
