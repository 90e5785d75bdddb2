"""`simulate`: one recording, several policies, and what each of them would have come to."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crew.agents import Agent, Crew
from crew.doors import ModelReply, ModelRequest
from crew.errors import DefinitionError
from crew.exchanges import validate
from crew.execution import Plan, plan_for
from crew.execution.bounds import budget_for
from crew.history import PolicySpec, estimate, policy_from, staged
from crew.history.summaries import as_text
from crew.messages import Message, UserMessage
from crew.providers import ScriptedProvider
from crew.runs import RequestParameters
from crew.simulator.picture import svg
from crew.simulator.prices import Billed, Prices, Till
from crew.simulator.recording import Recording, read_recording
from crew.simulator.replay import Replay

_CONSTRAINT = re.compile(r"(?i)\b(must|never|always|only|do not|don't|at most|at least|no more than|without)\b")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")

DEFAULT_POLICIES: dict[str, PolicySpec] = {
    "unbounded": "unbounded",
    "sliding 50": {"name": "rolling", "limit": 50, "prune_to": 50},
    "rolling 50": "rolling",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy: what its requests would have held and cost, and what they would have shown.

    `cost` is in dollars. `goal` is the share of requests that show it; `facts` and `constraints` are those that the
    last request still shows. `valid` counts the requests that the strictest provider would accept.
    """

    policy: str
    limit: int | None
    billed: tuple[Billed, ...] = field(repr=False)
    requests: tuple[ModelRequest, ...] = field(repr=False)
    cost: float
    goal: float
    facts: tuple[str, ...]
    constraints: tuple[str, ...]
    valid: int

    @property
    def summaries(self) -> int:
        return sum(bill.purpose == "summary" for bill in self.billed)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Input tokens of each request, in order."""
        return tuple(bill.input_tokens for bill in self.billed)

    @property
    def total_tokens(self) -> int:
        return sum(self.tokens)

    @property
    def cache_share(self) -> float:
        """The share of input tokens that are read from the prompt cache."""
        return sum(bill.cached_tokens for bill in self.billed) / max(1, self.total_tokens)

    @property
    def prefix_breaks(self) -> int:
        """How many requests do not begin with all of the agent's request before."""
        return sum(bill.broke for bill in self.billed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What each policy comes to, for the same recording at the same prices."""

    rows: tuple[Row, ...]
    prices: Prices
    messages: int
    facts: tuple[str, ...]
    constraints: tuple[str, ...]

    def table(self) -> str:
        """For the terminal."""
        heads = (
            "policy",
            "limit",
            "requests",
            "summaries",
            "peak",
            "total",
            "cached",
            "breaks",
            "cost",
            "goal",
            "facts",
        )
        lines: list[tuple[str, ...]] = [(*heads, "constraints", "valid")]

        for row in self.rows:
            cells = (row.policy, row.limit or "none", len(row.billed), row.summaries, f"{max(row.tokens, default=0):,}")
            rest = (f"{row.total_tokens:,}", f"{row.cache_share:.0%}", row.prefix_breaks, f"${row.cost:.2f}")
            seen = (f"{row.goal:.0%}", f"{len(row.facts)}/{len(self.facts)}")
            kept = (f"{len(row.constraints)}/{len(self.constraints)}", f"{row.valid}/{len(row.billed)}")
            lines.append(tuple(str(cell) for cell in (*cells, *rest, *seen, *kept)))

        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        return "\n".join(
            "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "messages": self.messages,
            "prices": {name: getattr(self.prices, name) for name in ("input", "output", "cache_read", "cache_write")},
            "facts": list(self.facts),
            "constraints": list(self.constraints),
            "policies": [
                {
                    "policy": row.policy,
                    "limit": row.limit,
                    "requests": len(row.billed),
                    "summaries": row.summaries,
                    "peak_tokens": max(row.tokens, default=0),
                    "total_tokens": row.total_tokens,
                    "cache_share": round(row.cache_share, 4),
                    "prefix_breaks": row.prefix_breaks,
                    "cost_usd": round(row.cost, 6),
                    "goal_visible": round(row.goal, 4),
                    "facts_visible": list(row.facts),
                    "constraints_visible": list(row.constraints),
                    "valid_requests": row.valid,
                    "tokens": list(row.tokens),
                }
                for row in self.rows
            ],
        }

    def svg(self) -> str:
        """A picture of the tokens of each request over time, a line for each policy."""
        return svg([(f"{row.policy} (${row.cost:.2f})", row.tokens) for row in self.rows])


def simulate(
    transcript: Any,
    policies: Mapping[str, PolicySpec] | Sequence[PolicySpec] | None = None,
    prices: Prices | None = None,
    *,
    crew: Crew | Agent | None = None,
    facts: Sequence[str] = (),
    constraints: Sequence[str] | None = None,
    parameters: RequestParameters | None = None,
    fixed_tokens: int = 0,
) -> Simulation:
    """Replay a recorded transcript under each policy, with no key and no model, by the same code as a live run.

    `transcript` is a `RunResult`, its transcript, OpenAI- or Anthropic-format dicts, JSON, or the path of a JSON file.
    With `crew` the requests hold its instructions and tools too; else `fixed_tokens` stand for them. Without
    `constraints`, the user's sentences with words such as "must", "never" or "only" are taken. Summaries are stood in
    for by an extract of what they cover.
    """
    recording = read_recording(transcript)
    prices = prices or Prices()
    named = policies if isinstance(policies, Mapping) else _named(policies) if policies else DEFAULT_POLICIES
    wanted = tuple(_constraints(recording) if constraints is None else constraints)
    rows = [
        _row(label, spec, recording, prices, crew, facts, wanted, parameters, fixed_tokens)
        for label, spec in named.items()
    ]
    return Simulation(
        rows=tuple(rows),
        prices=prices,
        messages=len(recording.messages),
        facts=tuple(facts),
        constraints=wanted,
    )


def _named(policies: Sequence[PolicySpec]) -> dict[str, PolicySpec]:
    named: dict[str, PolicySpec] = {}

    for spec in policies:
        label = spec if isinstance(spec, str) else str(spec["name"]) if isinstance(spec, Mapping) else spec.name
        limit = getattr(policy_from(spec), "limit", None)
        label = label if label not in named else f"{label} {limit}"
        named[label if label not in named else f"{label} #{len(named)}"] = spec

    return named


def _row(
    label: str,
    spec: PolicySpec,
    recording: Recording,
    prices: Prices,
    crew: Crew | Agent | None,
    facts: Sequence[str],
    constraints: Sequence[str],
    parameters: RequestParameters | None,
    fixed_tokens: int,
) -> Row:
    plan = _plan(spec, recording, crew, fixed_tokens)
    till, requests, bills, goals = Till(), [], [], []

    def sent(request: ModelRequest, reply: ModelReply, goal: str) -> None:
        output = estimate(reply.text) + sum(estimate(call.arguments) + 4 for call in reply.calls)
        kit = plan.toolkits[request.agent]
        bills.append(till.bill(request, kit.tokens, output))
        requests.append(request)

        if request.purpose == "reply":
            goals.append(any(message.id == goal for message in request.messages))

    replay = Replay(plan=plan, sent=sent, summarize=extract, parameters=parameters or RequestParameters())
    replay.run(recording)
    last = next((request for request in reversed(requests) if request.purpose == "reply"), None)
    shown = as_text(last.messages) if last is not None else ""
    return Row(
        policy=label,
        limit=plan.budget.limit,
        billed=tuple(bills),
        requests=tuple(requests),
        cost=sum(bill.cost(prices) for bill in bills),
        goal=sum(goals) / len(goals) if goals else 1.0,
        facts=tuple(fact for fact in facts if fact in shown),
        constraints=tuple(constraint for constraint in constraints if constraint in shown),
        valid=sum(not validate(request.messages) for request in requests),
    )


def _plan(spec: PolicySpec, recording: Recording, crew: Crew | Agent | None, fixed_tokens: int) -> Plan:
    given = Crew(crew.name, agents=[crew]) if isinstance(crew, Agent) else crew or _stand_in(recording)

    if missing := [name for name in recording.agents if name not in given.members]:
        raise DefinitionError("simulate", f"the transcript has replies of {missing!r}, who are not in the crew")

    shared, views = staged(policy_from(spec))

    with warnings.catch_warnings():
        # A window that slides by one is what somebody may want to see the price of.
        warnings.simplefilter("ignore")
        plan = plan_for(given, shared, budget_for(given, shared, None, None), views)

    # Where the work went is recorded: calls lead nowhere by themselves here.
    kits = {name: replace(kit, handoffs={}, agents={}) for name, kit in plan.toolkits.items()}

    if crew is None:
        kits = {name: replace(kit, specs=(), tokens=fixed_tokens) for name, kit in kits.items()}

    return replace(plan, toolkits=kits)


def _stand_in(recording: Recording) -> Crew:
    """A crew of those who replied; what their instructions and tools were is not in a transcript."""
    names = recording.agents
    model = ScriptedProvider("")
    return Crew("recorded", agents=[Agent(n, model=model, handoffs=[o for o in names if o != n]) for n in names])


def extract(span: Sequence[Message]) -> str:
    """A stand-in for a summary: how each message begins, within some 150 tokens."""
    lines = [line[:60] for line in as_text(span).splitlines() if line.strip()]
    step = max(1, len(lines) // 10)
    return "\n".join(lines[::step][:10]) or "Nothing was said."


def _constraints(recording: Recording) -> list[str]:
    said = [m.text for m in recording.messages if isinstance(m, UserMessage) and m.origin == "user"]
    sentences = [sentence.strip() for text in said for sentence in _SENTENCE.split(text)]
    return list(dict.fromkeys(s for s in sentences if len(s) <= 200 and _CONSTRAINT.search(s)))
