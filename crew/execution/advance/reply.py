"""What a model's reply leads to: calls, a route, a pause, the next agent, or the end."""

from __future__ import annotations

import re

from pydantic import ValidationError

from crew.agents import Agent, Route
from crew.execution.advance.asking import ask, ask_no_more
from crew.execution.advance.calls import open_calls
from crew.execution.advance.draft import Draft
from crew.execution.advance.fork import fork
from crew.execution.advance.learning import learn
from crew.messages import AssistantMessage, is_empty
from crew.runs import AskModel, AwaitInput
from crew.runs.events import AgentStarted, Replied, ReplyEmpty, Routed, UsageChanged


def on_reply(draft: Draft, event: Replied) -> None:
    """A model replied."""
    state = draft.state
    agent, tally = draft.plan.agents[state.agent], state.tally
    again = state.next.again if isinstance(state.next, AskModel) else ""
    mine = tally.by_agent.get(agent.name)
    draft.count(
        usage=tally.usage + event.usage,
        rounds=tally.rounds + 1,
        by_agent={**tally.by_agent, agent.name: event.usage if mine is None else mine + event.usage},
    )
    tokens = learn(draft, event)
    draft.say(UsageChanged, usage=draft.state.tally.usage)

    if is_empty(event.message):
        _empty(draft, again)
    elif event.message.calls:
        open_calls(draft, event.message, tokens)
    else:
        _plain(draft, agent, event.message, tokens, again)


def _empty(draft: Draft, again: str) -> None:
    if again == "empty":
        draft.say(ReplyEmpty, outcome="final")
        draft.finish("completed", "")
        return

    draft.say(ReplyEmpty, outcome="asked_again")
    ask(draft, "empty")


def _plain(draft: Draft, agent: Agent, message: AssistantMessage, tokens: int, again: str) -> None:
    text = draft.plan.output_of(agent.name, message.text)
    route = _matching(agent, text)

    if route is not None:
        draft.say(Routed, signal=route.signal, target=route.target)
        _onwards(draft, message, tokens, route.target, f"the signal {route.signal}", "route")
    elif agent.output is not None and (problem := _misfit(agent, text)):
        _ask_to_mend(draft, agent, message, tokens, problem, again)
    elif agent.wait_for_signal:
        draft.append(message, tokens)
        draft.set(next=AwaitInput(pause_id=f"{draft.state.run_id}:input.{draft.event.sequence}"))
    elif agent.then is not None:
        target = agent.then if isinstance(agent.then, str) else agent.then.name
        draft.say(Routed, signal="", target=target)
        _onwards(draft, message, tokens, target, "its turn", "then")
    else:
        _onwards(draft, message, tokens, None, "", "then")


def _onwards(draft: Draft, message: AssistantMessage, tokens: int, target: str | None, why: str, origin: str) -> None:
    if target is None:
        draft.conclude(message, tokens)
        draft.finish("completed", message.text)
        return

    draft.append(message, tokens)
    source = draft.state.agent

    if target in draft.plan.groups:
        fork(draft, draft.plan.groups[target])
        return

    draft.set(agent=target)
    draft.say(AgentStarted)
    draft.tell(f"[{source} passed the work on to you, {target}, by {why}. Go on with the user's request.]", origin)
    ask(draft)


def _matching(agent: Agent, text: str) -> Route | None:
    """The route whose signal is in the text: exactly, else without case, else with white space folded; in order."""

    def folded(words: str) -> str:
        # Not all white space is dropped: else the signal "stop" would be found in "first option".
        return re.sub(r"(?<=[\[({<]) | (?=[\])}>])", "", re.sub(r"\s+", " ", words.casefold()))

    for read in (str, str.casefold, folded):
        for route in agent.routes:
            if read(route.signal) in read(text):
                return route

    return None


def _misfit(agent: Agent, text: str) -> str:
    assert agent.output is not None

    try:
        agent.output.model_validate_json(text)
    except ValidationError as error:
        # Without the answer itself: the model knows it, and nobody else has to read it in an error.
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the answer'}: {one['msg']}" for one in found)

    return ""


def _ask_to_mend(draft: Draft, agent: Agent, message: AssistantMessage, tokens: int, problem: str, again: str) -> None:
    assert agent.output is not None

    draft.append(message, tokens)
    draft.tell(
        f"[Your answer does not fit the schema: {problem}\nAnswer again, with JSON that fits it and nothing else.]",
        "output",
    )

    if again == "output":
        ask_no_more(
            draft, f"The reply of {agent.name!r} does not fit {agent.output.__name__} after one repair round: {problem}"
        )
        return

    ask(draft, "output")
