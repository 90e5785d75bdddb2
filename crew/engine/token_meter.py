"""What is known of each agent's model before it is asked: its window, and what every request to it holds."""

from __future__ import annotations

from dataclasses import dataclass

from crew.agents.agent import Agent
from crew.errors import DefinitionError
from crew.history.token_budget import DEFAULT_WINDOW, WINDOW_THRESHOLD, TokenBudget, WindowSource
from crew.history.tokens import ESTIMATOR, exact_counter
from crew.interfaces import ModelSettings, Provider, TokenCounter
from crew.models import context_window
from crew.transitions.plan import Plan, Toolkit, overhead_parts

# No registered window is so small that this much could fill it: the registry need not be read for less.
_NEGLIGIBLE_OVERHEAD = 1_500
# What a service adds of its own where tools are given.
_TOOL_PROMPT_TOKENS = {"anthropic": 346}
# What a service is asked to keep free for the reply where nobody says how long that may be; it insists on a number.
_DEFAULT_OUTPUT_TOKENS = {"anthropic": 8_192}


def provider_and_model(model: str | Provider) -> tuple[str, str]:
    """Provider and model, as `openai:gpt-5-mini` has them."""
    if not isinstance(model, str):
        return model.name, model.model

    provider, _, name = model.partition(":")
    return provider, name


@dataclass(slots=True, kw_only=True, eq=False)
class TokenMeter:
    """Counts for an executor: with its own counter, else with each model's tokenizer where one is installed."""

    plan: Plan
    counter: TokenCounter | None = None
    _token_budgets: dict[str, tuple[TokenBudget, ...]] | None = None

    def counter_for(self, model: str | Provider) -> TokenCounter:
        """What counts this model's tokens."""
        return self.counter or exact_counter(*provider_and_model(model)) or ESTIMATOR

    @property
    def token_budgets(self) -> dict[str, tuple[TokenBudget, ...]]:
        """For each agent the gauge of its model, and after it that of its backup; looked up once."""
        if self._token_budgets is None:
            self._token_budgets = {
                name: tuple(
                    _token_budget(agent, self.plan.toolkits[name], model, self.counter_for(model))
                    for model in (agent.model, agent.backup)
                    if model is not None
                )
                for name, agent in self.plan.agents.items()
            }

        return self._token_budgets


def _token_budget(agent: Agent, kit: Toolkit, model: str | Provider, counter: TokenCounter) -> TokenBudget:
    window, source = resolve_window(agent, model)
    provider, name = provider_and_model(model)
    fixed = sum(tokens for _, tokens in overhead_parts(agent, kit, counter))
    fixed += _TOOL_PROMPT_TOKENS.get(provider, 0) if kit.specs else 0
    return TokenBudget(
        model=f"{provider}:{name}",
        window=window,
        window_source=source,
        overhead_tokens=fixed,
        overhead_counted=fixed,
        reply_reserve=_reply_reserve(agent.settings, provider, window, source),
        counts_exactly=counter is not ESTIMATOR,
    )


def _reply_reserve(settings: ModelSettings, provider: str, window: int, source: WindowSource) -> int:
    """The part of the window that the reply, and the thinking before it, may take."""
    wanted = settings.max_output_tokens

    if wanted is None:
        wanted = min(_DEFAULT_OUTPUT_TOKENS.get(provider, 0), window // 4)
    elif source == "explicit":
        return 0  # explicit input tokens are for the input alone: who names both has done the sum

    thought = settings.thinking_tokens or 0
    return min(wanted if wanted > thought else wanted + thought, window // 2)


def resolve_window(agent: Agent, model: str | Provider) -> tuple[int, WindowSource]:
    """Explicit, else registered, else the default."""
    if agent.max_input_tokens is not None:
        return agent.max_input_tokens, "explicit"

    provider, name = provider_and_model(model)
    registered = None if provider == "scripted" else context_window(provider, name)
    return (DEFAULT_WINDOW, "default") if registered is None else (registered, "registry")


def check_windows(plan: Plan) -> None:
    """Fail fast where what every request of an agent must hold leaves no room for a conversation."""
    problems: list[str] = []

    for name, agent in plan.agents.items():
        tokens = plan.toolkits[name].overhead_tokens
        window, source = (
            resolve_window(agent, agent.model)
            if tokens > _NEGLIGIBLE_OVERHEAD or agent.max_input_tokens
            else (0, "default")
        )

        if source != "default" and tokens > WINDOW_THRESHOLD * window:
            parts = "; ".join(f"{part}: {size}" for part, size in overhead_parts(agent, plan.toolkits[name]))
            problems.append(
                f"the instructions and tools of agent {name!r} hold about {tokens} tokens, more than "
                f"{WINDOW_THRESHOLD:.0%} of its window of {window}: {parts}"
            )

    if problems:
        raise DefinitionError("CrewExecutor", problems)
