"""`simulate`: replay one recording under several policies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from crew.agents.agent import Agent
from crew.agents.crew import Crew
from crew.engine.token_meter import TokenMeter
from crew.errors import DefinitionError
from crew.history.policies.chain import split_stages
from crew.history.policies.lookup import PolicySpec, resolve_policy
from crew.history.summaries import to_plain_text
from crew.history.token_budget import TokenBudget
from crew.interfaces import ModelReply, ModelRequest, policy_options
from crew.message_rules.validate import validate
from crew.messages import Manifest, Message, Usage, UserMessage
from crew.providers.scripted import ScriptedProvider
from crew.runs.parameters import RequestParameters
from crew.settings import NonNegativeInt, value_problems
from crew.simulator.billing import BilledRequest, Prices, PromptCacheBilling
from crew.simulator.recorded_bills import RecordedBills, read_bills
from crew.simulator.recording import Recording, RecordingSource, read_recording
from crew.simulator.replay import Replay
from crew.simulator.report import Row, Simulation
from crew.transitions.plan import Plan, compile_plan, resolve_budget

_CONSTRAINT = re.compile(r"(?i)\b(must|never|always|only|do not|don't|at most|at least|no more than|without)\b")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")

DEFAULT_POLICIES: dict[str, PolicySpec] = {
    "unbounded": "unbounded",
    "sliding 50": {"name": "rolling", "limit": 50, "prune_to": 50},
    "rolling 50": "rolling",
}


def simulate(
    transcript: RecordingSource,
    policies: Mapping[str, PolicySpec] | Sequence[PolicySpec] | None = None,
    prices: Prices | None = None,
    *,
    crew: Crew | Agent | None = None,
    facts: Sequence[str] = (),
    constraints: Sequence[str] | None = None,
    parameters: RequestParameters | None = None,
    fixed_tokens: int = 0,
) -> Simulation:
    """Replay a recorded transcript under each policy, without a model or key, by the code of a live run.

    `transcript` is a `RunResult`, its transcript, OpenAI- or Anthropic-format dicts, JSON, or the path of a JSON file.
    With `crew`, requests include its instructions and tools; without it, `fixed_tokens` is their size. The report says
    whether the last request still contains `facts` and `constraints`; by default, constraints are the user's sentences
    with words such as "must", "never" or "only". An extract of the messages takes the place of each summary.
    """
    if problems := value_problems(NonNegativeInt, {"fixed_tokens": fixed_tokens}):
        raise DefinitionError("simulate", problems)

    recording = read_recording(transcript)
    prices = prices or Prices()
    labelled = policies if isinstance(policies, Mapping) else _label_policies(policies or ()) or DEFAULT_POLICIES
    counts = read_bills(recording)
    expected = tuple(_find_constraints(recording) if constraints is None else constraints)
    rows = [
        _simulate_policy(label, spec, recording, prices, crew, facts, expected, parameters, fixed_tokens, counts)
        for label, spec in labelled.items()
    ]
    return Simulation(
        rows=tuple(rows),
        prices=prices,
        messages=len(recording.messages),
        facts=tuple(facts),
        constraints=expected,
    )


def _label_policies(policies: Sequence[PolicySpec]) -> dict[str, PolicySpec]:
    """Label policies by name; if names repeat, by name and limit, or by a number."""
    labelled: dict[str, PolicySpec] = {}

    for spec in policies:
        label = spec if isinstance(spec, str) else str(spec["name"]) if isinstance(spec, Mapping) else spec.name
        limit = policy_options(resolve_policy(spec)).history_limit
        label = label if label not in labelled else f"{label} {limit}"
        labelled[label if label not in labelled else f"{label} #{len(labelled)}"] = spec

    return labelled


def _simulate_policy(
    label: str,
    spec: PolicySpec,
    recording: Recording,
    prices: Prices,
    crew: Crew | Agent | None,
    facts: Sequence[str],
    constraints: Sequence[str],
    parameters: RequestParameters | None,
    fixed_tokens: int,
    counts: RecordedBills,
) -> Row:
    plan = _plan(spec, recording, crew)
    token_budgets = _token_budgets(plan, counts, recorded=crew is None, fixed_tokens=fixed_tokens)
    overheads = {name: budgets[0].overhead_tokens for name, budgets in token_budgets.items()}
    billed_overheads = overheads if fixed_tokens else {**overheads, **counts.overheads}
    billing = PromptCacheBilling(counts=counts, overheads=billed_overheads, cache_step=prices.cache_step)
    requests: list[ModelRequest] = []
    bills: list[BilledRequest] = []
    manifests: list[Manifest] = []
    goals: list[bool] = []

    def on_request(request: ModelRequest, reply: ModelReply, goal: str, manifest: Manifest | None) -> Usage:
        billed = billing.bill(request, reply)
        bills.append(billed)
        requests.append(request)

        if manifest is not None:
            tokens, cached, output = billed.input_tokens, billed.cached_tokens, billed.output_tokens
            manifests.append(
                replace(manifest, tokens_billed=tokens, cached_billed=cached, output_billed=output),
            )

        if request.purpose == "reply":
            goals.append(any(message.id == goal for message in request.messages))

        return Usage(requests=1, input_tokens=billed.input_tokens, output_tokens=billed.output_tokens)

    replay = Replay(
        plan=plan,
        token_budgets=token_budgets,
        on_request=on_request,
        summarize=extract_summary,
        parameters=parameters or RequestParameters(),
    )
    replay.run(recording)
    last = next((request for request in reversed(requests) if request.purpose == "reply"), None)
    text = to_plain_text(last.messages) if last is not None else ""
    return Row(
        policy=label,
        limit=plan.budget.limit,
        billed=tuple(bills),
        requests=tuple(requests),
        manifests=tuple(manifests),
        cost=sum(bill.cost(prices) for bill in bills),
        goal=sum(goals) / len(goals) if goals else 1.0,
        facts=tuple(fact for fact in facts if fact in text),
        constraints=tuple(constraint for constraint in constraints if constraint in text),
        valid=sum(not validate(request.messages) for request in requests),
    )


def _plan(spec: PolicySpec, recording: Recording, crew: Crew | Agent | None) -> Plan:
    members = Crew(crew.name, agents=[crew]) if isinstance(crew, Agent) else crew or _crew_from_recording(recording)

    if missing := [name for name in recording.agents if name not in members.agents_by_name]:
        raise DefinitionError("simulate", f"the transcript has replies of agents that the crew lacks: {missing!r}")

    shared, views = split_stages(resolve_policy(spec))

    plan = compile_plan(members, shared, resolve_budget(members, shared, None, None), views)
    # The recording says which agent replies next, so calls must not hand control over.
    kits = {name: replace(kit, handoffs={}, agents={}) for name, kit in plan.toolkits.items()}

    if crew is None:
        kits = {name: replace(kit, specs=()) for name, kit in kits.items()}

    return replace(plan, toolkits=kits)


def _token_budgets(
    plan: Plan, counts: RecordedBills, *, recorded: bool, fixed_tokens: int
) -> dict[str, tuple[TokenBudget, ...]]:
    """The token budgets at the start: of the crew, else of the recorded run; `fixed_tokens` is an explicit overhead."""
    budgets = TokenMeter(plan=plan).token_budgets() | (counts.token_budgets() if recorded else {})

    if not fixed_tokens:
        return budgets

    return {
        name: tuple(replace(b, overhead_tokens=fixed_tokens, overhead_counted=fixed_tokens) for b in ranks)
        for name, ranks in budgets.items()
    }


def _crew_from_recording(recording: Recording) -> Crew:
    """A crew of the agents that replied, without instructions and tools, which a transcript does not contain."""
    names = recording.agents
    model = ScriptedProvider("")
    return Crew("recorded", agents=[Agent(n, model=model, handoffs=[o for o in names if o != n]) for n in names])


def extract_summary(span: Sequence[Message]) -> str:
    """An extract in place of a summary: the first 60 characters of up to 10 lines, spread over the span."""
    lines = [line[:60] for line in to_plain_text(span).splitlines() if line.strip()]
    step = max(1, len(lines) // 10)
    return "\n".join(lines[::step][:10]) or "(no text)"


def _find_constraints(recording: Recording) -> list[str]:
    texts = [m.text for m in recording.messages if isinstance(m, UserMessage) and m.origin == "user"]
    sentences = [sentence.strip() for text in texts for sentence in _SENTENCE.split(text)]
    return list(dict.fromkeys(s for s in sentences if len(s) <= 200 and _CONSTRAINT.search(s)))
