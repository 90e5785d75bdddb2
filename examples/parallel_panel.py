"""Three reviewers work at the same time; one of them fails, and the editor reads what the others found."""

import asyncio

from crew import Agent, Crew, CrewExecutor, Parallel, Quorum, ScriptedProvider
from crew.errors import BranchesFailed

legal = Agent("legal", instructions="Find legal risks.", model=ScriptedProvider("No risk found."))
finance = Agent("finance", instructions="Find the costs.", model=ScriptedProvider("About 300 a month."))
security = Agent("security", instructions="Find holes.", model=ScriptedProvider(ConnectionError("no route to host")))
editor = Agent(
    "editor",
    instructions="Sum up what the panel found.",
    model=ScriptedProvider(lambda request: f"The panel said {len(request.messages[-1].text.split('## ')) - 1} things."),
)


def review(on_error: object) -> CrewExecutor:
    panel = Parallel("panel", branches=[legal, finance, security], then=editor, on_error=on_error, timeout=60)
    return CrewExecutor(Crew("review", agents=[legal, finance, security, editor], groups=[panel], entry=panel))


async def main() -> None:
    everything = await review("collect").execute("Shall we buy it?")
    joined = everything.transcript[-2].text
    print(joined, "\n")
    assert everything.output == "The panel said 3 things."
    assert "## security\n(failed)" in joined

    two_of_three = await review(Quorum(2)).execute("Shall we buy it?")
    assert two_of_three.output == "The panel said 2 things."
    print([(branch.agent, branch.outcome) for branch in two_of_three.branches])

    stopped: BranchesFailed | None = None

    try:
        await review("fail_fast").execute("Shall we buy it?")
    except BranchesFailed as failed:
        stopped = failed
        print(failed)

    assert stopped is not None, "with fail_fast one failure stops the panel"
    assert stopped.result.usage.requests == 2, "what was done so far is not lost"


asyncio.run(main())
