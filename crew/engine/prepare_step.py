"""Performs `PrepareAgent`: resolves the instructions and toolsets of an agent that became active."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Any

from crew.agents.agent import Agent
from crew.engine.concurrency import USER_CODE_ERRORS, is_failure, run_all, run_or_abandon
from crew.engine.contexts import run_context
from crew.engine.run import ActiveRun
from crew.engine.toolsets import Listing, list_toolset
from crew.errors import RunError, describe
from crew.history.request_head import request_head, spec_digest, text_digest
from crew.history.tokens import ESTIMATOR
from crew.interfaces import ToolSpec
from crew.messages import replace_surrogates
from crew.runs.events import AgentPrepared, ConsentAsked
from crew.runs.prepared import PreparedAgent, PreparedTool
from crew.runs.state import RunState
from crew.secrets.scrubbing import scrub_value
from crew.tools.context import Context
from crew.tools.tool import Tool
from crew.tools.toolset import FilteredToolset, Toolset
from crew.transitions.plan import count_tool


async def prepare_agent(run: ActiveRun, state: RunState) -> None:
    """Resolve the instructions and toolsets of the current agent, and record them, or the consents that they need."""
    agent, context = run.plan.agents[state.agent], run_context(run, state)
    listings: dict[str, Listing] = {}

    async def list_one(toolset: Toolset) -> None:
        listings[toolset.name] = await list_toolset(run, state, toolset, context)

    await run_all(list_one(toolset) for toolset in agent.toolsets)
    found = _Found(run=run, state=state, context=context)

    for toolset in agent.toolsets:
        found.add(toolset, listings[toolset.name])

    if found.consents:
        await run.record(ConsentAsked(run_id=state.run_id, consents=found.consents))
    else:
        text = await _write_instructions(run, state, agent, context)
        await run.record(_prepared_event(run, state, agent, text, found))


async def _write_instructions(run: ActiveRun, state: RunState, agent: Agent, context: Context[Any]) -> str:
    """The text of the instructions. A function that fails ends the run with an error; a resume calls it again."""
    if isinstance(agent.instructions, str):
        return agent.instructions

    function = agent.instructions
    failure: BaseException | None = None

    def abandon(outcome: asyncio.Future[Any]) -> None:
        run.abandon(state.run_id, f"the instructions of {agent.name}", outcome)

    async def write() -> object:
        written = function(context)
        return await written if isawaitable(written) else written

    try:
        text = await run_or_abandon(write(), abandon)

        if isinstance(text, str):
            return scrub_value(run.scrubber, replace_surrogates(text))

        failure = TypeError(f"it must return a text, not a {type(text).__name__}")
    except USER_CODE_ERRORS as error:  # the function is user code: the caller gets a RunError
        if not is_failure(error):
            raise

        failure = error

    # Raised outside the except block, so that the error is its cause and not also its context.
    raise RunError(
        f"The function that writes the instructions of {agent.name!r} failed: {describe(failure)}"
    ) from failure


@dataclass(slots=True, kw_only=True)
class _Found:
    """What the toolsets of an agent have for one activation."""

    run: ActiveRun
    state: RunState
    context: Context[Any]
    tools: list[PreparedTool] = field(default_factory=list)
    specs: dict[str, ToolSpec] = field(default_factory=dict)
    listed: dict[str, tuple[PreparedTool, ...]] = field(default_factory=dict)
    consents: dict[str, tuple[str, str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add(self, toolset: Toolset, listing: Listing) -> None:
        """Add the enabled tools of a toolset, or why it has none."""
        if listing.consent is not None:
            self._add_consent(toolset, listing.consent.key, listing.consent.question)
        elif listing.problem:
            self._leave_out(toolset, listing.problem)
        else:
            tools = self._frozen(toolset, listing.tools)
            self._add_enabled(toolset, tools, listing.tools)

    def _add_consent(self, toolset: Toolset, key: str, question: str) -> None:
        match self.run.state.preparation.consents.get(key):
            case None:
                self.consents[toolset.name] = (key, question)
            case True:
                self._leave_out(toolset, "it asks again for a consent that it got")
            case _:
                self._leave_out(toolset, "a person refused its consent")

    def _leave_out(self, toolset: Toolset, reason: str) -> None:
        self.warnings.append(f"{self.state.agent!r} works without the toolset {toolset.name!r}: {reason}")

    def _frozen(self, toolset: Toolset, tools: Mapping[str, Tool]) -> tuple[PreparedTool, ...]:
        """The tools as the run listed them first; what changed since then is reported and left out."""
        known = self.run.state.preparation.toolsets.get(toolset.name)
        now = {name: _prepared_tool(toolset, tool) for name, tool in tools.items()}

        if known is None:
            self.listed[toolset.name] = tuple(now.values())
            self.specs |= {listed.digest: tools[listed.name].spec for listed in now.values()}
            return tuple(now.values())

        names = {tool.name for tool in known}
        gone = [tool.name for tool in known if tool.name not in now]
        changes = (
            ("no longer has", gone),
            ("now also has", [name for name in now if name not in names]),
            ("changed", [tool.name for tool in known if tool.name in now and now[tool.name].digest != tool.digest]),
        )

        for what, changed in changes:
            if changed:
                text = f"The toolset {toolset.name!r} {what} {', '.join(changed)}; its list is frozen for this run"
                self.warnings.append(text)

        return tuple(tool for tool in known if tool.name not in gone)

    def _add_enabled(self, toolset: Toolset, tools: tuple[PreparedTool, ...], listed: Mapping[str, Tool]) -> None:
        taken = {*self.run.plan.toolkits[self.state.agent].names, *(tool.name for tool in self.tools)}

        for tool in tools:
            try:
                enabled = not isinstance(toolset, FilteredToolset) or toolset.is_enabled(
                    self.context, listed[tool.name]
                )
            except Exception as error:  # the filter is user code: a tool that it can't judge is not enabled
                self.warnings.append(f"The filter of the toolset {toolset.name!r} failed: {describe(error)}")
                enabled = False

            if enabled and tool.name in taken:
                text = f"The tool {tool.name!r} of the toolset {toolset.name!r} is left out: its name is taken"
                self.warnings.append(f"{text}; give the toolset a prefix")
            elif enabled:
                self.tools.append(tool)


def _prepared_tool(toolset: Toolset, tool: Tool) -> PreparedTool:
    return PreparedTool(
        name=tool.name,
        toolset=toolset.name,
        digest=spec_digest(tool.spec),
        effect=tool.effect,
        touches=tool.touches,
        tokens=count_tool(tool.spec, ESTIMATOR),
    )


def _prepared_event(run: ActiveRun, state: RunState, agent: Agent, text: str, found: _Found) -> AgentPrepared:
    static, known = run.plan.toolkits[state.agent], run.state.preparation
    specs = {**known.specs, **found.specs}
    toolkit = replace(static, instructions=text, specs=(*static.specs, *(specs[tool.digest] for tool in found.tools)))
    digest = text_digest(text) if callable(agent.instructions) else ""
    prepared = PreparedAgent(
        head=request_head(text, toolkit.specs),
        instructions=digest,
        instructions_tokens=ESTIMATOR.count(text) if digest else 0,
        tools=tuple(found.tools),
    )
    return AgentPrepared(
        run_id=state.run_id,
        prepared=prepared,
        overheads=run.meter.overheads(agent, toolkit, state.parameters.max_tokens),
        texts=dict(_new_text(digest, text, known.texts)),
        specs={key: spec for key, spec in found.specs.items() if key not in known.specs},
        listed=found.listed,
        warnings=tuple(found.warnings),
    )


def _new_text(digest: str, text: str, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if digest and digest not in known:
        yield digest, text
