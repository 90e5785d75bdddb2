"""What spans say: attributes out of events, texts made safe."""

from __future__ import annotations

from typing import Any

from crew.agents import Parallel, Quorum
from crew.messages import Usage
from crew.runs import Tally
from crew.runs.events import Asked, HistoryPruned, Replied
from crew.telemetry import names
from crew.telemetry.redaction import safe


def of_asked(event: Asked, conversation_id: str) -> dict[str, Any]:
    """A question to a model."""
    told: dict[str, Any] = {
        names.OPERATION: names.CHAT,
        names.PROVIDER: event.provider,
        names.REQUEST_MODEL: safe(event.model),
        names.AGENT_NAME: event.agent,
        names.CONVERSATION_ID: conversation_id,
        names.MESSAGES: event.messages,
        names.ESTIMATED_TOKENS: event.tokens,
    }

    if event.manifest is not None and event.manifest.request:
        told[names.SAME] = event.manifest.same

        if event.manifest.rule:
            told[names.MOVED_BY] = safe(event.manifest.rule)

    return told


def finished(reason: str) -> str:
    """Why a reply ended, in the words of the conventions."""
    return {"calls": "tool_call", "refusal": "content_filter", "filter": "content_filter"}.get(reason, reason)


def of_replied(event: Replied) -> dict[str, Any]:
    """A model's answer, with its bill."""
    told: dict[str, Any] = {names.FINISH_REASONS: (finished(event.finish_reason),), **of_bill(event.usage)}

    if event.model:
        told[names.RESPONSE_MODEL] = safe(event.model)

    if event.response_id:
        told[names.RESPONSE_ID] = safe(event.response_id)

    return told


def of_bill(usage: Usage) -> dict[str, Any]:
    """What one model call cost."""
    told: dict[str, Any] = {names.INPUT_TOKENS: usage.input_tokens, names.OUTPUT_TOKENS: usage.output_tokens}

    if usage.cache_read_tokens:
        told[names.CACHE_READ_TOKENS] = usage.cache_read_tokens

    if usage.cache_write_tokens:
        told[names.CACHE_WRITE_TOKENS] = usage.cache_write_tokens

    if usage.reasoning_tokens:
        told[names.REASONING_TOKENS] = usage.reasoning_tokens

    if usage.cost:
        told[names.COST] = usage.cost

    return told


def of_total(tally: Tally) -> dict[str, Any]:
    """What a whole run has spent and pruned, also where this is not its first part: as the result counts."""
    usage = tally.usage
    told: dict[str, Any] = {
        names.USAGE_REQUESTS: usage.requests,
        names.USAGE_INPUT: usage.input_tokens,
        names.USAGE_OUTPUT: usage.output_tokens,
        names.USAGE_CACHE_READ: usage.cache_read_tokens,
        names.USAGE_CACHE_WRITE: usage.cache_write_tokens,
        names.PRUNINGS: len(tally.prunings),
        names.PRUNED: tally.messages_pruned,
    }
    return told | {names.USAGE_COST: usage.cost} if usage.cost else told


def of_pruning(event: HistoryPruned) -> dict[str, Any]:
    """What left the history, and why."""
    told: dict[str, Any] = {
        names.BEFORE: event.before,
        names.AFTER: event.after,
        names.EVICTED: len(event.evicted),
        names.LIMIT: event.limit,
        names.HISTORY_POLICY: event.policy,
        names.REASON: safe(event.reason),
        names.TOKENS_BEFORE: event.tokens_before,
        names.TOKENS_AFTER: event.tokens_after,
        names.PREFIX_MOVED: bool(event.evicted or event.masked),
        names.WHERE: event.where,
        names.AGENT_NAME: event.agent,
        names.RUN_ID: event.run_id,
    }
    return told | {names.MASKED: len(event.masked)} if event.masked else told


def of_group(group: Parallel | None, name: str) -> dict[str, Any]:
    """A parallel group and its policy."""
    told: dict[str, Any] = {names.GROUP: name}

    if group is not None:
        policy = group.on_error
        told[names.POLICY] = f"quorum({policy.n})" if isinstance(policy, Quorum) else policy
        told[names.BRANCHES] = len(group.branches)

    return told
