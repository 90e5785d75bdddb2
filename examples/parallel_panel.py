"""Three reviewers run in parallel and one of them fails; `on_error` decides whether the editor gets the results."""

import asyncio

from crew import Agent, Crew, CrewExecutor, Parallel, Quorum, ScriptedProvider
from crew.errors import BranchesFailed

legal = Agent("legal", instructions="Find legal risks.", model=ScriptedProvider("No risk found."))
finance = Agent("finance", instructions="Find the costs.", model=ScriptedProvider("About 300 a month."))
security = Agent(
    "security", instructions="Find security problems.", model=ScriptedProvider(ConnectionError("no route to host"))
)
editor = Agent(
    "editor",
    instructions="Summarize the findings of the panel.",
    model=ScriptedProvider(
        lambda request: f"The panel made {len(request.messages[-1].text.split('## ')) - 1} comments."
    ),
)


def review(on_error: object) -> Crew:
    panel = Parallel("panel", branches=[legal, finance, security], then=editor, on_error=on_error, timeout=60)
    return Crew("review", agents=[legal, finance, security, editor], groups=[panel], entry=panel)


crew = review("collect")


async def main() -> None:
    all_results = await CrewExecutor(crew).execute("Shall we buy it?")
    joined = all_results.transcript[-2].text
    print(joined, "\n")
    assert all_results.output == "The panel made 3 comments."
    assert "## security\n(failed)" in joined

    two_of_three = await CrewExecutor(review(Quorum(2))).execute("Shall we buy it?")
    assert two_of_three.output == "The panel made 2 comments."
    print([(branch.agent, branch.outcome) for branch in two_of_three.branches])

    stopped: BranchesFailed | None = None

    try:
        await CrewExecutor(review("fail_fast")).execute("Shall we buy it?")
    except BranchesFailed as failed:
        stopped = failed
        print(failed)

    assert stopped is not None, "with fail_fast, one failure stops the panel"
    assert stopped.result.usage.requests == 2, "the error holds the result so far"


if __name__ == "__main__":
    asyncio.run(main())
