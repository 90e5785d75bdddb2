"""`execute_sync`: the same run without `await`."""

from __future__ import annotations

import pytest

from crew import Agent, CrewExecutor, RunError, ScriptedProvider
from crew.errors import Unavailable


def test_error_has_no_unrelated_context() -> None:
    """The traceback starts with the error of the run, not with the check for a running event loop."""
    with pytest.raises(RunError) as caught:
        CrewExecutor(Agent("a", model=ScriptedProvider(Unavailable("down")))).execute_sync("go")

    chain: list[BaseException] = [caught.value]

    while (following := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(following)

    assert [type(error) for error in chain] == [RunError, Unavailable]


async def test_inside_a_running_loop_it_uses_a_thread() -> None:
    """In a notebook, for example."""
    assert CrewExecutor(Agent("a", model=ScriptedProvider("done"))).execute_sync("go").output == "done"
