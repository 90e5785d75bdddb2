"""What is known of each agent's model before it is asked: its window, and what every request to it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from crew.agents import Agent
from crew.doors import ModelSettings, Provider, TokenCounter
from crew.errors import DefinitionError
from crew.execution.plan import Plan, Toolkit
from crew.history import DEFAULT_WINDOW, PRIOR, Gauge, View, exact_counter
from crew.history.gauge import WindowSource
from crew.models import window_of
from crew.runs import RunState

THRESHOLD = 0.8
# No registered window is so small that this much could fill it: the registry need not be read for less.
_SMALL = 1_500
# What a service adds of its own where tools are given.
_TOOL_PROMPTS = {"anthropic": 346}
# What a service is asked to keep free for the reply where nobody says how long that may be; it insists on a number.
_OUTPUT = {"anthropic": 8_192}


def name_of_model(model: str | Provider) -> tuple[str, str]:
    """Provider and model, as `openai:gpt-5-mini` has them."""
    if not isinstance(model, str):
        return model.name, model.model

    provider, _, name = model.partition(":")
    return provider, name


@dataclass(slots=True, kw_only=True, eq=False)
class Meter:
    """Counts for an executor: with its own counter, else with each model's tokenizer where one is installed."""

    plan: Plan
    counter: TokenCounter | None = None
    _gauges: dict[str, tuple[Gauge, ...]] | None = None

    def counter_for(self, model: str | Provider) -> TokenCounter:
        """What counts this model's tokens."""
        return self.counter or exact_counter(*name_of_model(model)) or PRIOR

    @property
    def gauges(self) -> dict[str, tuple[Gauge, ...]]:
        """For each agent the gauge of its model, and after it that of its backup; looked up once."""
        if self._gauges is None:
            self._gauges = {
                name: tuple(
                    _gauge(agent, self.plan.toolkits[name], model, self.counter_for(model))
                    for model in (agent.model, agent.backup)
                    if model is not None
                )
                for name, agent in self.plan.agents.items()
            }

        return self._gauges


def _gauge(agent: Agent, kit: Toolkit, model: str | Provider, counter: TokenCounter) -> Gauge:
    window, source = window_for(agent, model)
    provider, name = name_of_model(model)
    fixed = sum(tokens for _, tokens in fixed_parts(agent, kit, counter))
    fixed += _TOOL_PROMPTS.get(provider, 0) if kit.specs else 0
    return Gauge(
        model=f"{provider}:{name}",
        window=window,
        source=source,
        fixed=fixed,
        counted=fixed,
        reserve=_reserve(agent.settings, provider, window, source),
        exact=counter is not PRIOR,
    )


def _reserve(settings: ModelSettings, provider: str, window: int, source: WindowSource) -> int:
    """The part of the window that the reply, and the thinking before it, may take."""
    wanted = settings.max_output_tokens

    if wanted is None:
        wanted = min(_OUTPUT.get(provider, 0), window // 4)
    elif source == "explicit":
        return 0  # explicit input tokens are for the input alone: who names both has done the sum

    thought = settings.thinking_tokens or 0
    return min(wanted if wanted > thought else wanted + thought, window // 2)


def window_for(agent: Agent, model: str | Provider) -> tuple[int, WindowSource]:
    """Explicit, else registered, else the default."""
    if agent.max_input_tokens is not None:
        return agent.max_input_tokens, "explicit"

    provider, name = name_of_model(model)
    registered = None if provider == "scripted" else window_of(provider, name)
    return (DEFAULT_WINDOW, "default") if registered is None else (registered, "registry")


def fixed_parts(agent: Agent, kit: Toolkit, counter: TokenCounter = PRIOR) -> list[tuple[str, int]]:
    """What every request of this agent holds beside messages, with its tokens."""
    parts = [("instructions", counter.count(agent.instructions))]
    parts.extend(
        (f"tool {spec.name}", counter.count(f"{spec.name} {spec.description} {json.dumps(dict(spec.parameters))}") + 8)
        for spec in kit.specs
    )

    if kit.output is not None:
        parts.append((f"schema {kit.output.name}", counter.count(json.dumps(dict(kit.output.schema)))))

    return parts


def check_windows(plan: Plan) -> None:
    """Fail fast where what every request of an agent must hold leaves no room for a conversation."""
    problems: list[str] = []

    for name, agent in plan.agents.items():
        if agent.max_input_tokens is not None and (
            not isinstance(agent.max_input_tokens, int)
            or isinstance(agent.max_input_tokens, bool)
            or agent.max_input_tokens < 1
        ):
            problems.append(
                f"agent {name!r}: max_input_tokens must be a positive integer, not {agent.max_input_tokens!r}"
            )
            continue

        tokens = plan.toolkits[name].tokens
        window, source = window_for(agent, agent.model) if tokens > _SMALL or agent.max_input_tokens else (0, "default")

        if source != "default" and tokens > THRESHOLD * window:
            parts = "; ".join(f"{part}: {size}" for part, size in fixed_parts(agent, plan.toolkits[name]))
            problems.append(
                f"the instructions and tools of agent {name!r} hold about {tokens} tokens, more than "
                f"{THRESHOLD:.0%} of its window of {window}: {parts}"
            )

    if problems:
        raise DefinitionError("CrewExecutor", problems)


def gauge_of(plan: Plan, state: RunState, name: str) -> Gauge:
    """What is known of the model that this agent asks now."""
    known = state.gauges.get(name, ())
    rank = 1 if state.views.get(name, View()).model == "backup" else 0

    if rank < len(known):
        return known[rank]

    window = plan.agents[name].max_input_tokens
    fixed = plan.toolkits[name].tokens
    return Gauge(window=window or DEFAULT_WINDOW, source="explicit" if window else "default", fixed=fixed)


def regauged(state: RunState, name: str, gauge: Gauge) -> dict[str, tuple[Gauge, ...]]:
    """All gauges, with a new one for the model that this agent asks now."""
    known = [*state.gauges.get(name, ())]
    rank = 1 if state.views.get(name, View()).model == "backup" else 0
    known[rank : rank + 1] = [gauge]
    return {**state.gauges, name: tuple(known)}


def remembered(
    gauges: Mapping[str, tuple[Gauge, ...]], before: Mapping[str, tuple[Gauge, ...]]
) -> dict[str, tuple[Gauge, ...]]:
    """These gauges with the windows that were learned before, and with what was billed for the same fixed part."""
    learned = [g for ranks in before.values() for g in ranks if g.source == "learned"]

    def remember(name: str, rank: int, gauge: Gauge) -> Gauge:
        for other in learned:
            gauge = gauge.learned(other.model, other.window)

        same = before.get(name, ())[rank : rank + 1]

        if same and (same[0].model, same[0].counted) == (gauge.model, gauge.counted):
            return replace(gauge, fixed=same[0].fixed)

        return gauge

    return {name: tuple(remember(name, i, g) for i, g in enumerate(ranks)) for name, ranks in gauges.items()}
