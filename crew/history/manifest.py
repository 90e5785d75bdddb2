"""Manifests: which messages a request holds, and what changed since the agent's previous request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Literal

from crew.history.history import History
from crew.history.request_head import head_change
from crew.history.token_budget import Calibration, TokenBudget, predict_tokens
from crew.history.view import MARKER_POSITION, RequestView, View, code_position, is_cut
from crew.interfaces import HistoryEntry
from crew.messages import Disposition, Manifest, ManifestLine, SummaryMessage, Transcript

# Providers do not cache shorter prefixes.
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
    head: str = "",
) -> Manifest:
    """Build the manifest of a request with this content; `policy` is the name of the history policy.

    `head` is a hash of its instructions and tools.
    """
    sent, codes = content.sent, content.codes
    same_model = view.last_model == token_budget.model
    new_head = head_change(view.last_head, head) if same_model else ""
    same_front = same_model and not new_head
    same = _common_prefix(view.last_request, codes) if same_front else 0
    moved_by = new_head or _moved_by(history, transcript, view, token_budget.model, same, policy)
    overhead = token_budget.overhead_tokens
    prefix_tokens = predict_tokens(calibration, overhead, sent[:same], billed_until) if same_front else 0
    forms = [*map(str, codes)]
    ids = [entry.message.id for entry in sent]
    counted: Literal["estimated", "exact"] = "exact" if token_budget.counts_exactly else "estimated"
    return Manifest(
        agent=agent,
        turn=view.turn,
        model=token_budget.model,
        messages=content.size,
        tokens_estimated=predict_tokens(calibration, overhead, sent, billed_until),
        count_method="calibrated" if calibration.bill_count else counted,
        overhead_tokens=overhead,
        window=token_budget.window,
        window_source=token_budget.window_source,
        same_messages=same,
        moved_by=moved_by,
        digest=_digest(token_budget, head, ids, forms),
        prefix_digest=_digest(token_budget, head, ids[:same], forms[:same]),
        cached_predicted=prefix_tokens if prefix_tokens >= MIN_CACHED_TOKENS else 0,
        tail=tuple(_manifest_line(entry, view, code) for entry, code in zip(sent[same:], codes[same:], strict=True)),
        removed=tuple(_removed_lines(sent, transcript, moved_by or policy, codes, view.last_request[same:])),
        repairs=repairs,
    )


def _common_prefix(before: Sequence[int], now: Sequence[int]) -> int:
    """The number of equal codes at the start of both requests."""
    if before == now[: len(before)]:
        return len(before)

    return next(i for i, (old, new) in enumerate(zip((*before, None), (*now, None), strict=False)) if old != new)


def _moved_by(history: History, transcript: Transcript, view: View, model: str, same: int, policy: str) -> str:
    """The rule that changed the prefix since the previous request; "" if the prefix is unchanged."""
    if not view.last_request:
        return "first request"

    if view.last_model != model:
        return view.moved_by or "another model"

    if same == len(view.last_request):
        return ""

    # If the first changed message is no longer in the history, the history policy evicted it.
    positions = {entry.position for entry in history.entries}
    changed = code_position(view.last_request[same])
    in_history = changed < 0 or changed in positions or isinstance(transcript[changed], SummaryMessage)
    return view.moved_by or policy if in_history else policy


def _digest(token_budget: TokenBudget, head: str, ids: Sequence[str], forms: Sequence[str]) -> str:
    """A hash of a request. Ids and forms identify the content, because messages never change."""
    front = f"{token_budget.model}\n{token_budget.overhead_counted}\n{head}\n"
    return blake2b((front + "\n".join(ids) + "\n" + ",".join(forms)).encode(), digest_size=8).hexdigest()


def _manifest_line(entry: HistoryEntry, view: View, code: int) -> ManifestLine:
    disposition: Disposition = "kept"

    if entry.position == MARKER_POSITION:
        disposition = "marker"
    elif code % 4 == 1:
        disposition = "text_only"
    elif code % 4 == 2:
        disposition = "masked"
    elif is_cut(code):
        disposition = "cut"

    reasons = {
        "kept": "",
        "marker": "truncate",
        "text_only": "handoff",
        "masked": view.moved_by or "masked before",
        "cut": view.moved_by or "cut before",
    }
    return ManifestLine(id=entry.message.id, disposition=disposition, reason=reasons[disposition], tokens=entry.tokens)


def _removed_lines(
    sent: Sequence[HistoryEntry],
    transcript: Transcript,
    reason: str,
    codes: Iterable[int],
    previous: Sequence[int],
) -> Iterable[ManifestLine]:
    """The messages of the previous request that this one does not hold in any form."""
    if not previous:
        return

    shown = {code_position(code) for code in codes}
    removed = [position for code in previous if code >= 0 and (position := code_position(code)) not in shown]

    if not removed:
        return

    covered = {id for entry in sent if isinstance(entry.message, SummaryMessage) for id in entry.message.covers}

    for position in removed:
        id = transcript[position].id
        yield ManifestLine(id=id, disposition="summarised" if id in covered else "evicted", reason=reason)


def expand_manifests(manifests: Iterable[Manifest]) -> list[ManifestLine]:
    """All lines of the last request, from the manifests of all requests of one agent in order."""
    lines: list[ManifestLine] = []

    for manifest in manifests:
        lines = [*lines[: manifest.same_messages], *manifest.tail]

    return lines
