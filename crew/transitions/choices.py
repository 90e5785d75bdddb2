"""What functions of the crew decide from a result: the next agent or group, and the items of a fan-out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any

from crew.agents.agent import Parallel, Quorum
from crew.agents.choice import Choice, Named, NodeResult, function_name
from crew.errors import RunError, abbreviate, describe
from crew.messages import ToolMessage, Transcript
from crew.tools.tool import to_text
from crew.transitions.markdown import without_code_fence
from crew.transitions.plan import Plan
from crew.transitions.step import USER_ERRORS, Step


def parsed_output(plan: Plan, agent: str, text: str) -> Any:
    """The text as a value of the agent's output type; unchanged if it has none, or if a route ended its turn."""
    output = plan.output_type(agent)

    try:
        return text if output is None else output.parse(without_code_fence(text))
    except Exception:  # validators are user code
        return text


def reply_result(step: Step, text: str, before: Transcript) -> NodeResult[Any]:
    """What the current agent answered; `before` are the messages before its reply."""
    text = step.plan.output_text(step.agent, text)
    output = parsed_output(step.plan, step.agent, text)
    return _result(step, step.agent, output, text, before)


def input_result(step: Step) -> NodeResult[Any]:
    """The input of a run that starts with a group."""
    text = newest_text(step)
    return _result(step, "", text, text, before_newest(step))


def before_newest(step: Step) -> Transcript:
    """The transcript without its newest message."""
    return step.transcript.until(len(step.transcript) - 1)


def newest_text(step: Step) -> str:
    """The text of the newest message: an input, a reply without calls, or a join."""
    newest = step.transcript[-1]
    assert not isinstance(newest, ToolMessage)
    return newest.text


def payload_result(step: Step, payload: object) -> NodeResult[Any]:
    """What a handoff passes on."""
    return _result(step, step.agent, "", "", step.transcript, payload)


def join_result(step: Step, group: str, text: str, joined: Sequence[str]) -> NodeResult[Any]:
    """What a group joined, from the branches with these run ids; the join is the newest message."""
    records = [record for run_id in joined for record in step.branches if record.run_id == run_id]
    outputs = tuple(
        parsed_output(step.plan, record.agent, record.output) if record.outcome == "completed" else record.output
        for record in records
    )
    return _result(step, group, outputs, text, before_newest(step))


def _result(
    step: Step, agent: str, output: object, text: str, before: Transcript, payload: object = None
) -> NodeResult[Any]:
    return NodeResult(
        agent=agent,
        output=output,
        text=text,
        payload=payload,
        rounds=step.counters.rounds,
        transcript=before.loaded(),
        metadata=deepcopy(step.metadata),
    )


def choose_target(choice: Choice, result: NodeResult[Any]) -> str | None:
    """The name of the chosen agent or group. Raises `RunError` if it is not declared, or if the function fails."""
    try:
        chosen: object = choice.function(result)
    except USER_ERRORS as error:  # the function is user code
        text = f"The function {choice.name!r}, which chooses what follows {result.agent!r}, failed"
        raise RunError(f"{text}: {describe(error)}") from error

    if chosen is None:
        return None

    name = chosen if isinstance(chosen, str) else chosen.name if isinstance(chosen, Named) else None

    if name not in choice.target_names:
        targets = ", ".join(choice.target_names)
        text = f"The function {choice.name!r} chose {abbreviate(name or chosen)} after {result.agent!r}"
        raise RunError(f"{text}, which is not among its targets: {targets}. Add it to targets=, or return None to end.")

    return name


def group_items(group: Parallel, result: NodeResult[Any]) -> tuple[str, ...]:
    """The texts of the items of a fan-out. Raises `RunError` for too many or too few, or if they can't be read."""
    try:
        items = _read_items(group, result)
        texts = tuple(map(to_text, items))
    except RunError:
        raise
    except USER_ERRORS as error:  # the function is user code, and so is an iterator that it returns
        source = "" if isinstance(group.items, str) else f" of the function {function_name(group.items)!r}"
        raise RunError(f"The items{source} for the group {group.name!r} can't be read: {describe(error)}") from error

    if isinstance(group.on_error, Quorum) and 0 < len(texts) < group.on_error.n:
        got = "1 item" if len(texts) == 1 else f"{len(texts)} items"
        text = f"The group {group.name!r} got {got}, but on_error=Quorum({group.on_error.n}) needs at least"
        raise RunError(f"{text} {group.on_error.n}. Pass more items, or lower the quorum.")

    return texts


def _read_items(group: Parallel, result: NodeResult[Any]) -> list[object]:
    values = _field(group.name, group.items, result) if isinstance(group.items, str) else None

    if callable(group.items):
        values = group.items(result)

    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise RunError(f"The items of the group {group.name!r} must be a list, not {abbreviate(values)}.")

    items = [*islice(values, group.max_items + 1)]

    if len(items) > group.max_items:
        got = len(values) if isinstance(values, Sequence) else f"more than {group.max_items}"
        text = f"The group {group.name!r} got {got} items, at most {group.max_items} are allowed"
        raise RunError(f"{text}. Raise max_items=, or pass fewer, larger items.")

    return items


def _field(group: str, name: str, result: NodeResult[Any]) -> object:
    source = result.output if result.payload is None else result.payload

    if isinstance(source, Mapping) and name in source:
        return source[name]

    try:
        return getattr(source, name)
    except AttributeError:
        text = f"The items of the group {group!r} are the field {name!r}, but {result.agent!r} passed on"
        raise RunError(f"{text} {abbreviate(source)}.") from None
