"""`GET /crew`: the graphs of the crews that the service runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from crew.agents.agent import AgentTool, agent_handoffs, node_name
from crew.agents.choice import Choice
from crew.agents.crew import Crew
from crew.agents.edges import Node
from crew.agents.mermaid import mermaid
from crew.executor import CrewExecutor
from crew.server.access import Principal
from crew.server.response_models import CrewAnswer, CrewList, EdgeAnswer, NodeAnswer
from crew.server.routing import route
from crew.server.run_json import json_response
from crew.server.server_context import ServerContext
from crew.tools.tool import Tool


def crew_routes(context: ServerContext) -> Sequence[BaseRoute]:
    """The route of the graphs."""

    async def read_crews(request: Request, principal: Principal) -> Response:
        """The crews of the service: agents, groups and the transitions between them, as lists and in Mermaid."""
        shown = [crew_answer(executor, principal) for executor in context.executors.values()]
        return json_response(CrewList(crews=shown))

    return [route(context, "/crew", read_crews, answer=CrewList)]


def crew_answer(executor: CrewExecutor, principal: Principal) -> CrewAnswer:
    """The graph of one crew. Only a principal with the scope `all` sees a purpose that is a line of instructions."""
    crew = executor.plan.crew
    return CrewAnswer(
        name=crew.name,
        entry=crew.entry_name,
        max_messages_per_request=executor.plan.budget.limit,
        nodes=[*_nodes(crew, shows_instructions=principal.may("all"))],
        edges=[*_edges(crew)],
        mermaid="\n".join(mermaid(crew)),
    )


def _nodes(crew: Crew, *, shows_instructions: bool) -> Iterator[NodeAnswer]:
    for agent in crew.agents_by_name.values():
        model = agent.model if isinstance(agent.model, str) else f"{agent.model.name}:{agent.model.model}"
        tools = [tool.name for tool in agent.tools if isinstance(tool, Tool | AgentTool)]
        purpose = agent.purpose if shows_instructions else agent.description
        yield NodeAnswer(name=agent.name, kind="agent", purpose=purpose, model=model, tools=tools)

    for group in crew.groups:
        yield NodeAnswer(name=group.name, kind="group")


def _edges(crew: Crew) -> Iterator[EdgeAnswer]:
    for agent in crew.agents_by_name.values():
        for handoff in agent_handoffs(agent):
            yield EdgeAnswer(source=agent.name, target=handoff.target, kind="handoff", label=handoff.tool_name)

        for one in agent.routes:
            yield EdgeAnswer(source=agent.name, target=one.target or "", kind="route", label=one.signal)

        for tool in agent.tools:
            if isinstance(tool, AgentTool):
                yield EdgeAnswer(source=agent.name, target=tool.agent.name, kind="tool", label=tool.name)

        yield from _then_edges(agent)

    for group in crew.groups:
        yield from (EdgeAnswer(source=group.name, target=name, kind="branch") for name in group.branch_names)

        yield from _then_edges(group)


def _then_edges(node: Node) -> Iterator[EdgeAnswer]:
    match node.then:
        case None:
            pass
        case Choice(name=name, target_names=targets):
            for target in (*targets, ""):
                yield EdgeAnswer(source=node.name, target=target, kind="then", label=name)
        case target:
            yield EdgeAnswer(source=node.name, target=node_name(target), kind="then")
