"""The rules of Anthropic's Messages about thinking: the option, signatures, and where a block is required."""

from tests.wire.model import Json, Model
from tests.wire.rejections import refuse
from tests.wire.signing import Signed, Signer

Turns = list[tuple[int, str, list[Json]]]
THINKING = ("thinking", "redacted_thinking")
REDACTED = "redacted"
LEAST_BUDGET = 1024
MUST_START = (
    "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost "
    "set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from previous turns. "
    "To avoid this requirement, disable `thinking`."
)
UNCHANGED = (
    "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. "
    "These blocks must remain as they were in the original response."
)
NOT_ENABLED = (
    '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and "output_config.effort" '
    "to control thinking behavior."
)


def mode(body: Json) -> str:
    """Return the request's thinking mode, `disabled` if it sets none."""
    return str((body.get("thinking") or {}).get("type", "disabled"))


def check_thinking(body: Json, model: Model, signer: Signer, turns: Turns) -> None:
    """Check all rules about thinking."""
    _option(body, model)
    proofs = {number: _proofs(body, signer, index, blocks) for number, (index, _, blocks) in enumerate(turns)}
    latest = max((number for number, (_, role, _) in enumerate(turns) if role == "assistant"), default=None)
    if latest is None:
        return
    if mode(body) == "enabled":
        for number in _open_loop(turns, interleaved=model.interleaved):
            _starts_with_thinking(turns[number][0], turns[number][2])
    signed = proofs[latest]
    if signed and signed != [Signed(signed[0].turn, place, len(signed)) for place in range(signed[0].total)]:
        refuse("thinking_modified", f"messages.{turns[latest][0]}.content.0: {UNCHANGED}")


def _option(body: Json, model: Model) -> None:
    kind = mode(body)
    allowed = ("disabled", "enabled") if model.era == "classic" else ("adaptive", "between_tools", "disabled")
    if kind == "enabled" and model.era == "modern":
        refuse("thinking_enabled", NOT_ENABLED)
    if kind not in allowed:
        tags = ", ".join(f"'{tag}'" for tag in allowed)
        words = f"thinking: Input tag '{kind}' found using 'type' does not match any of the expected tags: {tags}"
        refuse("thinking_type", words)
    if kind != "enabled":
        return
    budget = body["thinking"].get("budget_tokens")
    if budget is None:
        refuse("thinking_budget", "thinking.enabled.budget_tokens: Field required")
    if budget < LEAST_BUDGET:
        words = f"thinking.enabled.budget_tokens: Input should be greater than or equal to {LEAST_BUDGET}"
        refuse("thinking_budget", words)
    if "max_tokens" in body and body["max_tokens"] <= budget:
        refuse("thinking_budget", "`max_tokens` must be greater than `thinking.budget_tokens`.")
    if body.get("temperature") not in (None, 1):
        refuse("thinking_temperature", "`temperature` may only be set to 1 when thinking is enabled.")
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        refuse("thinking_forced", "Thinking may not be enabled when tool_choice forces tool use.")


def _proofs(body: Json, signer: Signer, index: int, blocks: list[Json]) -> list[Signed]:
    """Verify each block's signature: signed by this model, text unchanged."""
    found = []
    for place, part in enumerate(blocks):
        if part["type"] == "thinking":
            signed = signer.verify(body["model"], part["thinking"], part["signature"])
            problem = "Invalid `signature` in `thinking` block"
        elif part["type"] == "redacted_thinking":
            signed = signer.verify(body["model"], REDACTED, part["data"])
            problem = "Invalid `data` in `redacted_thinking` block"
        else:
            continue
        if signed is None:
            refuse("thinking_signature", f"messages.{index}.content.{place}: {problem}")
        found.append(signed)
    return found


def _open_loop(turns: Turns, *, interleaved: bool) -> list[int]:
    """Return the assistant turns of the open tool loop, or a prefill; without interleaved thinking, only the first."""
    if turns[-1][1] == "assistant":
        return [len(turns) - 1]
    loop: list[int] = []
    for number in range(len(turns) - 1, -1, -1):
        _, role, blocks = turns[number]
        if role == "assistant":
            loop.append(number)
        elif role == "user" and not any(part["type"] == "tool_result" for part in blocks):
            break
    return loop if interleaved else loop[-1:]


def _starts_with_thinking(index: int, blocks: list[Json]) -> None:
    kind = blocks[0]["type"] if blocks else "nothing"
    if kind not in THINKING:
        words = f"Expected `thinking` or `redacted_thinking`, but found `{kind}`. {MUST_START}"
        refuse("thinking_first", f"messages.{index}.content.0.type: {words}")
