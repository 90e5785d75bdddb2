"""`Plan`: what is the same in every step of every run: the crew's graph, each agent's toolkit, policies and bound."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import JsonValue

from crew.agents.agent import Agent, AgentTool, Handoff, Parallel, agent_handoffs
from crew.agents.crew import Crew
from crew.agents.guardrail import NO_CHECKS, Checks
from crew.agents.handoff_tools import handoff_tool
from crew.agents.output_type import OutputType
from crew.errors import ContextOverflow, DefinitionError
from crew.fast_replace import replace_unchecked
from crew.history.policies.chain import chain, chain_members
from crew.history.policies.lookup import policy_spec, resolve_policy
from crew.history.policies.rolling import Rolling
from crew.history.pruning import ViewPolicy, view_limit
from crew.history.request_head import request_head
from crew.history.token_budget import DEFAULT_WINDOW, TokenBudget
from crew.history.tokens import ESTIMATOR, estimate_tokens
from crew.interfaces import (
    HistoryBudget,
    OutputSpec,
    Policy,
    PolicyOptions,
    Summarizer,
    TokenCounter,
    ToolSpec,
    policy_options,
)
from crew.messages import Message, SystemMessage
from crew.runs.state import Pause, RunFields
from crew.settings import MessageLimit, PositiveInt, value_problems
from crew.tools.tool import Tool
from crew.transitions.fingerprint import Fingerprint, crew_fingerprint
from crew.transitions.sanitize_output import sanitize_output


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Toolkit:
    """The tools, agents and handoffs that one agent may call, by name, and what each of its requests holds of them.

    A handoff with `on_handoff` is among the tools too: that function runs as a tool.
    Without what is resolved when the agent becomes active. `head` identifies instructions and specs.
    """

    tools: Mapping[str, Tool]
    agents: Mapping[str, AgentTool]
    handoffs: Mapping[str, Handoff]
    specs: tuple[ToolSpec, ...]
    output: OutputSpec | None
    overhead_tokens: int
    instructions: str = ""
    head: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.specs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A crew that is ready to run under one history policy.

    `policy_spec` is the policy of history and views as a mapping. `min_messages` is the mandatory part of a step.
    `default_bounded` is a policy that counts tokens, if the history is bounded without a limit that was chosen for it.
    `prepares` are the agents that have to be prepared whenever they become active. `checks` are the guardrails of each
    agent that has some, and `crew_checks` those of the crew.
    """

    crew: Crew
    agents: Mapping[str, Agent]
    groups: Mapping[str, Parallel]
    toolkits: Mapping[str, Toolkit]
    policy: Policy
    options: PolicyOptions
    budget: HistoryBudget
    entry: str
    min_messages: int
    view_policies: Mapping[str, tuple[ViewPolicy, ...]] = field(default_factory=dict)
    view_summarizers: Mapping[str, ViewPolicy] = field(default_factory=dict)
    sanitize_output: bool = False
    default_bounded: Policy | None = None
    prepares: frozenset[str] = frozenset()
    checks: Mapping[str, Checks] = field(default_factory=dict)
    crew_checks: Checks = NO_CHECKS
    fingerprint: Fingerprint = field(default_factory=dict)
    policy_spec: dict[str, JsonValue] = field(default_factory=dict)

    def output_text(self, agent: str, text: str) -> str:
        """An agent's output, sanitized where the agent or the executor asks for it."""
        own = self.agents[agent].sanitize_output if agent in self.agents else None
        return sanitize_output(text) if (self.sanitize_output if own is None else own) else text

    def tool_of(self, pause: Pause) -> Tool | None:
        """The tool of the call that a pause waits for."""
        return self.toolkits[pause.agent].tools.get(pause.call.name) if pause.call is not None else None

    def output_type(self, agent: str) -> OutputType | None:
        """The type of an agent's output; None for text, and for the name of a group."""
        return self.agents[agent].output_type if agent in self.agents else None

    @property
    def summarizers(self) -> tuple[Summarizer, ...]:
        """What writes the summaries of the history and of each view."""
        return (self.options.summarizer, *(policy.options.summarizer for policy in self.view_summarizers.values()))

    def summary_policy(self, agent: str, where: Literal["history", "view"]) -> ViewPolicy:
        """The policy that asks for summaries of the history, or of this agent's view."""
        shared = ViewPolicy(policy=self.policy, options=self.options)
        return shared if where == "history" else self.view_summarizers.get(agent, shared)

    def view_limit(self, agent: str) -> int | None:
        """The most messages that requests of this agent may hold, by the policies of history and view."""
        limits = [self.budget.limit, *(p.options.explicit_limit for p in self.view_policies.get(agent, ()))]
        return min((limit for limit in limits if limit is not None), default=None)


def compile_plan(
    crew: Crew,
    policy: Policy,
    budget: HistoryBudget,
    everywhere: tuple[Policy, ...] = (),
    *,
    max_input_tokens: int | None = None,
    sanitize_output: bool = False,
    default_bounded: Policy | None = None,
) -> Plan:
    """Compile a crew; the policies `everywhere` prune each agent's view before the agent's policies do."""
    groups = {group.name: group for group in crew.groups}
    agents = _with_windows(crew.agents_by_name, max_input_tokens)
    toolkits = {name: _build_toolkit(agent, agents, groups) for name, agent in agents.items()}
    shared = tuple(ViewPolicy(policy=member, options=policy_options(member)) for member in everywhere)
    views = {name: (*shared, *_own_policies(agent)) for name, agent in agents.items()}
    options = policy_options(policy)
    touches = {t.name: t.touches for kit in toolkits.values() for t in kit.tools.values() if t.touches is not None}
    budget = replace(budget, touches=touches, eager=options.eager)
    return Plan(
        crew=crew,
        agents=agents,
        groups=groups,
        toolkits=toolkits,
        policy=policy,
        options=options,
        budget=budget,
        entry=crew.entry_name,
        min_messages=_min_messages(crew, options),
        view_policies=views,
        view_summarizers={
            name: next(policy for policy in policies if policy.options.summarizes)
            for name, policies in views.items()
            if any(policy.options.summarizes for policy in policies)
        },
        sanitize_output=sanitize_output,
        default_bounded=default_bounded,
        prepares=frozenset(name for name, agent in agents.items() if agent.needs_preparation),
        checks={name: Checks.of(agent.guardrails) for name, agent in agents.items() if agent.guardrails},
        crew_checks=Checks.of(crew.guardrails) if crew.guardrails else NO_CHECKS,
        fingerprint=crew_fingerprint(crew.agents_by_name, groups),
        policy_spec=policy_spec(chain(*everywhere, policy) if everywhere else policy),
    )


def _with_windows(agents: Mapping[str, Agent], tokens: int | None) -> Mapping[str, Agent]:
    """The agents, with this `max_input_tokens` where an agent sets none."""
    if problems := value_problems(PositiveInt | None, {"max_input_tokens": tokens}):
        raise DefinitionError("CrewExecutor", problems)

    if tokens is None:
        return agents

    return {
        name: replace_unchecked(agent, max_input_tokens=agent.max_input_tokens or tokens)
        for name, agent in agents.items()
    }


def _own_policies(agent: Agent) -> tuple[ViewPolicy, ...]:
    if agent.history is None:
        return ()

    members = chain_members(resolve_policy(agent.history))
    return tuple(ViewPolicy(policy=member, options=policy_options(member)) for member in members)


def _build_toolkit(agent: Agent, agents: Mapping[str, Agent], groups: Mapping[str, Parallel]) -> Toolkit:
    tools = {used.name: used for used in agent.tools if isinstance(used, Tool)}
    callable_agents = {used.name: used for used in agent.tools if isinstance(used, AgentTool)}
    handoffs = {handoff.tool_name: handoff for handoff in agent_handoffs(agent)}
    handoff_specs = {name: _handoff_spec(handoff, agents, groups) for name, handoff in handoffs.items()}
    called_first = ((name, handoff_tool(handoff, handoff_specs[name])) for name, handoff in handoffs.items())
    tools |= {name: function for name, function in called_first if function is not None}
    specs = (
        *(used.spec for used in agent.tools if isinstance(used, Tool | AgentTool)),
        *handoff_specs.values(),
    )
    instructions = agent.static_instructions
    tokens = estimate_tokens(instructions) + sum(count_tool(spec, ESTIMATOR) for spec in specs)
    output = None if agent.output_type is None else agent.output_type.spec
    return Toolkit(
        tools=tools,
        agents=callable_agents,
        handoffs=handoffs,
        specs=specs,
        output=output,
        overhead_tokens=tokens,
        instructions=instructions,
        head=request_head(instructions, specs),
    )


def _handoff_spec(handoff: Handoff, agents: Mapping[str, Agent], groups: Mapping[str, Parallel]) -> ToolSpec:
    if handoff.target in groups:
        purpose = f"The agents {', '.join(groups[handoff.target].branch_names)}, at the same time."
    else:
        purpose = agents[handoff.target].purpose

    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    parameters = handoff.payload.model_json_schema() if handoff.payload else empty
    return ToolSpec(
        name=handoff.tool_name, description=f"Hand the work to {handoff.target}. {purpose}", parameters=parameters
    )


def overhead_parts(toolkit: Toolkit, counter: TokenCounter = ESTIMATOR) -> list[tuple[str, int]]:
    """What every request of an agent holds beside messages: instructions, tools and schema, each with its tokens."""
    parts = [("instructions", counter.count(toolkit.instructions))]
    parts.extend((f"tool {spec.name}", count_tool(spec, counter)) for spec in toolkit.specs)

    if toolkit.output is not None:
        parts.append((f"schema {toolkit.output.name}", counter.count(json.dumps(dict(toolkit.output.schema)))))

    return parts


def count_tool(spec: ToolSpec, counter: TokenCounter) -> int:
    """The tokens of a tool. The services' documented examples have three quarters of the tokens of the JSON text."""
    tool = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return counter.count(json.dumps(tool, separators=(",", ":"), ensure_ascii=False)) * 3 // 4 + 4


def token_budget_for(plan: Plan, state: RunFields, name: str) -> TokenBudget:
    """The token budget of the model that this agent asks now: its own, or its backup."""
    budgets = state.token_budgets.get(name, ())
    index = _model_index(state, name)

    if index < len(budgets):
        return budgets[index]

    window = plan.agents[name].max_input_tokens
    return TokenBudget(
        window=window or DEFAULT_WINDOW,
        window_source="explicit" if window else "default",
        overhead_tokens=plan.toolkits[name].overhead_tokens,
    )


def with_token_budget(state: RunFields, name: str, changed: TokenBudget) -> dict[str, tuple[TokenBudget, ...]]:
    """All token budgets, with a changed one for the model that this agent asks now."""
    budgets = [*state.token_budgets.get(name, ())]
    index = _model_index(state, name)
    budgets[index : index + 1] = [changed]
    return {**state.token_budgets, name: tuple(budgets)}


def _model_index(state: RunFields, name: str) -> int:
    view = state.views.get(name)
    return 1 if view is not None and view.active_model == "backup" else 0


def resolve_budget(crew: Crew, policy: Policy, limit: int | None, prune_to: int | None) -> HistoryBudget:
    """The bound of the history: the explicit limit, else that of the policy; by default a pruning cuts to its half."""
    options = policy_options(policy)
    problems = value_problems(MessageLimit | None, {"max_messages_per_request": limit})

    if prune_to is None:
        prune_to = options.prune_to
    elif options.prune_to not in (None, prune_to):
        problems.append(f"prune_to={prune_to} contradicts prune_to={options.prune_to} of the policy {policy.name!r}")

    problems.extend(value_problems(PositiveInt | None, {"prune_to": prune_to}))
    own = options.history_limit

    if not problems and limit is not None and own is None:
        problems.append(f"max_messages_per_request={limit} contradicts the policy {policy.name!r}, which has no bound")

    if problems:
        raise DefinitionError("CrewExecutor", problems)

    if (
        own is not None
        and limit is not None
        and limit < own
        and any(_asks_for_more_than(m, limit) for m in chain_members(policy))
    ):
        raise DefinitionError(
            "CrewExecutor",
            f"max_messages_per_request={limit} is below the {own} messages that the policy {policy.name!r} asks for; "
            f"raise it to {own}, or give the policy smaller numbers",
        )

    bound = own if limit is None else limit

    if bound is None and prune_to is not None:
        text = f"prune_to={prune_to} contradicts the policy {policy.name!r}, which has no bound"
        raise DefinitionError("CrewExecutor", text)

    if bound is None:
        return HistoryBudget(limit=None)

    needed = _min_messages(crew, options)

    if bound < needed:
        raise DefinitionError(
            "CrewExecutor",
            f"max_messages_per_request must be at least {needed} for this crew (a goal, a call and its result, or a "
            f"reply and what follows it), not {bound}; 1 is enough where agents only answer",
        )

    target = max(1, bound // 2) if prune_to is None else prune_to

    if target > bound:
        raise DefinitionError(
            "CrewExecutor", f"prune_to must be at most max_messages_per_request={bound}, not {target}"
        )

    return HistoryBudget(limit=bound, prune_to=target)


def _asks_for_more_than(policy: Policy, limit: int) -> bool:
    """Whether the policy sets a larger limit; the 50 of `rolling` is only a default."""
    own = policy_options(policy).explicit_limit
    return own is not None and own > limit and not (isinstance(policy, Rolling) and own == Rolling().limit)


def check_view_policies(plan: Plan) -> None:
    """Refuse view policies that are too small for the mandatory part of a step, and for a summary of the view."""
    problems: list[str] = []

    for name, policies in plan.view_policies.items():
        for policy in policies:
            limit, title = (
                view_limit(policy.options, plan.budget.limit),
                f"agent {name!r}: the policy {policy.policy.name!r}",
            )
            target, needed = policy.options.prune_to, _messages_per_step(plan.agents[name])
            needed += policy.options.summarizes

            if limit is not None and limit < needed:
                with_summary = ", with its summary" if policy.options.summarizes else ""
                problems.append(f"{title} must let it see at least {needed} messages{with_summary}, not {limit}")
            elif target is not None and limit is None:
                problems.append(f"{title} has prune_to={target}, which has no effect without a limit")
            elif target is not None and limit is not None and target > limit:
                problems.append(f"{title}: prune_to must be at most its limit of {limit}, not {target}")

    if problems:
        raise DefinitionError("CrewExecutor", problems)


def _min_messages(crew: Crew, options: PolicyOptions) -> int:
    """The size of the mandatory part of a step, and of a summary where the policy makes one."""
    checks_output = any(one.on == "output" for one in crew.guardrails)
    step = (
        3 if crew.groups or checks_output else max(_messages_per_step(agent) for agent in crew.agents_by_name.values())
    )
    return step + options.summarizes


def _messages_per_step(agent: Agent) -> int:
    """1 (the goal) for an agent that only replies; otherwise 3: a call and its result, or a reply and a message."""
    more = agent.tools or agent.handoffs or agent.routes or agent.then or agent.wait_for_signal or agent.output_type
    return 3 if more or any(one.on == "output" for one in agent.guardrails) else 1


def check_system_messages_fit(plan: Plan, messages: Iterable[Message]) -> None:
    """Refuse input whose system messages leave no space for a step."""
    systems = len({message.text for message in messages if isinstance(message, SystemMessage)})
    needed, budget = plan.min_messages, plan.budget

    if budget.limit is not None and needed + systems > budget.limit:
        raise ContextOverflow(
            f"{systems} system messages leave no space for a step within max_messages_per_request={budget.limit}; "
            f"at least {needed + systems} are needed.",
            limit=budget.limit,
            items=[("system messages", systems), ("goal and one step", needed)],
        )
