"""What a recorded run was billed: the tokens of each message, of instructions and tools, and of each reply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from crew.history.token_budget import TokenBudget
from crew.history.tokens import estimate_message_tokens, estimate_tokens
from crew.interfaces import ModelReply
from crew.messages import (
    AssistantMessage,
    Manifest,
    ManifestLine,
    Message,
    ToolMessage,
    mask_results,
    without_calls,
)
from crew.simulator.recording import Recording, branch_recording

_MessageForm = tuple[str, int]
"""The id of a message and its estimated tokens, which differ for a masked or shortened form of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBills:
    """Token counts as the service of a recorded run billed them; estimates for what no bill covers.

    message_tokens  the tokens of each message, for each form of it that was sent.
    overheads       the tokens of the instructions and tools of each agent.
    first_requests  the manifest of the first request of each agent.
    ratio           the billed tokens for each estimated one.
    """

    message_tokens: Mapping[_MessageForm, float] = field(default_factory=dict)
    overheads: Mapping[str, int] = field(default_factory=dict)
    first_requests: Mapping[str, Manifest] = field(default_factory=dict)
    ratio: float = 1.0

    def count(self, message: Message) -> float:
        """The tokens of a message in a request."""
        estimated = estimate_message_tokens(message)
        billed = self.message_tokens.get((message.id, estimated))
        return estimated * self.ratio if billed is None else billed

    def count_output(self, reply: ModelReply) -> int:
        """The tokens of a reply: as billed, else estimated."""
        estimated = estimate_tokens(reply.text) + sum(estimate_tokens(call.arguments) + 4 for call in reply.calls)
        return reply.usage.output_tokens or round(estimated * self.ratio)

    def token_budgets(self) -> dict[str, tuple[TokenBudget, ...]]:
        """The token budgets that the recorded run started with."""
        return {
            name: (
                TokenBudget(
                    model=manifest.model,
                    window=manifest.window,
                    window_source="explicit" if manifest.window_source == "explicit" else "registry",
                    overhead_tokens=manifest.overhead_tokens,
                    overhead_counted=manifest.overhead_tokens,
                ),
            )
            for name, manifest in self.first_requests.items()
        }


def read_bills(recording: Recording) -> RecordedBills:
    """Derive the tokens of each message from the bills in the manifests of a recording.

    A request that extends an earlier one was billed more for its new messages alone. Messages that were new in one
    request share the difference by their estimates.
    """
    conversations = [*_conversations(recording)]
    messages = {message.id: message for conversation in conversations for message in conversation}
    requests = [request for conversation in conversations for request in _billed_requests(conversation)]
    overheads = {manifest.agent: manifest.overhead_tokens for manifest, _ in requests}
    tokens: dict[_MessageForm, float] = {}

    for manifest, lines in requests:
        forms = [_form(line, messages) for line in lines]
        new = dict.fromkeys(form for form in forms if form not in tokens)
        known = sum(tokens.get(form, 0.0) for form in forms)

        if new and (expected := sum(estimated for _, estimated in new)):
            rest = (manifest.tokens_billed or 0) - overheads[manifest.agent] - known
            factor = min(max(rest / expected, 0.25), 4.0)
            tokens.update((form, form[1] * factor) for form in new)

    estimated_total = sum(estimated for _, estimated in tokens)
    return RecordedBills(
        message_tokens=tokens,
        overheads=overheads,
        first_requests={manifest.agent: manifest for manifest, _ in reversed(requests)},
        ratio=sum(tokens.values()) / estimated_total if estimated_total else 1.0,
    )


def _conversations(recording: Recording) -> Iterator[Sequence[Message]]:
    yield recording.messages

    for branch in recording.branches:
        yield from _conversations(branch_recording(branch))


def _billed_requests(conversation: Sequence[Message]) -> Iterator[tuple[Manifest, list[ManifestLine]]]:
    """The manifests of a conversation that hold a bill, each with all lines of its request."""
    lines: dict[str, list[ManifestLine]] = {}

    for message in conversation:
        if not isinstance(message, AssistantMessage) or message.manifest is None:
            continue

        manifest = message.manifest
        lines[manifest.agent] = [*lines.get(manifest.agent, ())[: manifest.same_messages], *manifest.tail]

        if manifest.tokens_billed:
            yield manifest, lines[manifest.agent]


def _form(line: ManifestLine, messages: Mapping[str, Message]) -> _MessageForm:
    """The form of a message that a request held; a marker or a summary is not part of a recording."""
    match messages.get(line.id):
        case None:
            return line.id, line.tokens
        case _ if line.disposition == "cut":
            return line.id, line.tokens  # how much of it was shown is not recorded
        case ToolMessage() as message if line.disposition == "masked":
            return line.id, estimate_message_tokens(mask_results(message))
        case AssistantMessage() as message if line.disposition == "text_only":
            return line.id, estimate_message_tokens(without_calls(message))
        case message:
            return line.id, estimate_message_tokens(message)
