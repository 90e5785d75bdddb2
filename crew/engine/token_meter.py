"""Token counters and token budgets of each agent's model: its window, and the overhead of every request."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from crew.agents.agent import Agent
from crew.errors import DefinitionError, describe
from crew.history.token_budget import DEFAULT_WINDOW, WINDOW_THRESHOLD, TokenBudget, WindowSource
from crew.history.tokens import ESTIMATOR, LongTextCounter, exact_counter, has_tokenizer, long_text_counter
from crew.interfaces import ModelSettings, Provider, TokenCounter
from crew.models import context_window
from crew.transitions.plan import Plan, Toolkit, overhead_parts

log = logging.getLogger("crew")

# No registered window is so small that this overhead could fill it: below it, the registry is not read.
_NEGLIGIBLE_OVERHEAD = 1_500
# The tokens that a service adds to a request with tools.
_TOOL_PROMPT_TOKENS = {"anthropic": 346}
# The output limit that is sent to services that require one, where the user sets none.
_DEFAULT_OUTPUT_TOKENS = {"anthropic": 8_192}


def provider_and_model(model: str | Provider) -> tuple[str, str]:
    """The provider and the model, such as `openai` and `gpt-5-mini`."""
    if not isinstance(model, str):
        return model.name, model.model

    provider, _, name = model.partition(":")
    return provider, name


@dataclass(frozen=True, slots=True)
class FactCounter:
    """Counts the tokens of a fact, which has to be recorded: where the counter fails, the estimate takes its place."""

    counter: TokenCounter

    def count(self, text: str) -> int:
        """The tokens of a text."""
        try:
            return int(self.counter.count(text))
        except Exception as error:  # the counter boundary: user code may raise anything
            log.warning("The token counter failed, so that tokens are estimated: %s", describe(error))
            return ESTIMATOR.count(text)


@dataclass(slots=True, kw_only=True, eq=False)
class TokenMeter:
    """Counts tokens with the executor's counter, else with each model's tokenizer where one is installed."""

    plan: Plan
    counter: TokenCounter | None = None
    _token_budgets: dict[bool, dict[str, tuple[TokenBudget, ...]]] = field(default_factory=dict)

    def counter_for(self, agent: Agent, model: str | Provider, max_tokens: int | None = None) -> TokenCounter:
        """The counter for this model of an agent. In runs with `max_tokens` a tokenizer counts all texts."""
        if self.counter is not None:
            return self.counter

        provider, name = provider_and_model(model)

        if max_tokens is not None or not has_tokenizer(provider):
            return exact_counter(provider, name) or ESTIMATOR

        return long_text_counter(provider, name, resolve_window(agent, model)[0])

    def token_budgets(self, max_tokens: int | None = None) -> dict[str, tuple[TokenBudget, ...]]:
        """For each agent the budget of its model, followed by that of its backup; computed once."""
        exact = max_tokens is not None

        if exact not in self._token_budgets:
            self._token_budgets[exact] = {
                name: tuple(
                    _token_budget(agent, self.plan.toolkits[name], model, self.counter_for(agent, model, max_tokens))
                    for model in (agent.model, agent.backup)
                    if model is not None
                )
                for name, agent in self.plan.agents.items()
            }

        return self._token_budgets[exact]

    def overheads(self, agent: Agent, toolkit: Toolkit, max_tokens: int | None = None) -> tuple[int, ...]:
        """The tokens of these instructions and tools, for the model of an agent and for its backup."""
        return tuple(
            _count_overhead(
                toolkit, provider_and_model(model)[0], FactCounter(self.counter_for(agent, model, max_tokens))
            )
            for model in (agent.model, agent.backup)
            if model is not None
        )


def _token_budget(agent: Agent, toolkit: Toolkit, model: str | Provider, counter: TokenCounter) -> TokenBudget:
    window, source = resolve_window(agent, model)
    provider, name = provider_and_model(model)
    overhead = _count_overhead(toolkit, provider, counter)
    return TokenBudget(
        model=f"{provider}:{name}",
        window=window,
        window_source=source,
        overhead_tokens=overhead,
        overhead_counted=overhead,
        reply_reserve=_reply_reserve(agent.settings, provider, window, source),
        counts_exactly=counter is not ESTIMATOR and not isinstance(counter, LongTextCounter),
    )


def _count_overhead(toolkit: Toolkit, provider: str, counter: TokenCounter) -> int:
    tokens = sum(tokens for _, tokens in overhead_parts(toolkit, counter))
    return tokens + (_TOOL_PROMPT_TOKENS.get(provider, 0) if toolkit.specs else 0)


def _reply_reserve(settings: ModelSettings, provider: str, window: int, source: WindowSource) -> int:
    """The part of the window that is reserved for the reply and its thinking."""
    wanted = settings.max_output_tokens

    if wanted is None:
        wanted = min(_DEFAULT_OUTPUT_TOKENS.get(provider, 0), window // 4)
    elif source == "explicit":
        return 0  # max_input_tokens is for the input alone

    thinking = settings.thinking_tokens or 0
    return min(wanted if wanted > thinking else wanted + thinking, window // 2)


def resolve_window(agent: Agent, model: str | Provider) -> tuple[int, WindowSource]:
    """The explicit window, else the registered one, else the default."""
    if agent.max_input_tokens is not None:
        return agent.max_input_tokens, "explicit"

    provider, name = provider_and_model(model)
    registered = None if provider == "scripted" else context_window(provider, name)
    return (DEFAULT_WINDOW, "default") if registered is None else (registered, "registry")


def check_windows(plan: Plan) -> None:
    """Refuse agents whose instructions and tools leave too little of the window for a conversation."""
    problems: list[str] = []

    for name, agent in plan.agents.items():
        tokens = plan.toolkits[name].overhead_tokens
        window, source = (
            resolve_window(agent, agent.model)
            if tokens > _NEGLIGIBLE_OVERHEAD or agent.max_input_tokens
            else (0, "default")
        )

        if source != "default" and tokens > WINDOW_THRESHOLD * window:
            parts = "; ".join(f"{part}: {size}" for part, size in overhead_parts(plan.toolkits[name]))
            problems.append(
                f"the instructions and tools of agent {name!r} hold about {tokens} tokens, more than "
                f"{WINDOW_THRESHOLD:.0%} of its window of {window}: {parts}"
            )

    if problems:
        raise DefinitionError("CrewExecutor", problems)
