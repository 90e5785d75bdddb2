"""Context windows and backups on the bytes that a server received: no request exceeds its model's window."""

from __future__ import annotations

from typing import Any

import pytest

from crew import Agent, CrewExecutor, Limits
from crew.errors import ContextOverflow
from crew.history.policies import MaskToolResults, Truncate
from crew.interfaces import ModelSettings
from crew.runs import RequestParameters
from crew.runs.events import Asked, FellBack, Replied, Retried, TooLong
from tests.support.remote_providers import PROTOCOLS, provider, refusal_reasons, report_step, retrying_provider, run
from tests.support.runs import run_and_collect
from tests.wire import Fault, Model, Protocol, Reply, WireServer, tool_loop

WINDOW = 8_000


def agent(model: Any, **more: Any) -> Agent:
    return Agent("reader", instructions="Read the whole report.", model=model, tools=[report_step], **more)


async def try_steps(steps: int, protocol: Protocol, **more: Any) -> tuple[WireServer, Any, Any]:
    # The reply's room is inside the window on these services, so that the settings say how much it may be.
    settings = ModelSettings(max_output_tokens=500)

    async with WireServer(tool_loop(steps), model=Model(era="modern", window=WINDOW), keep=5) as server:
        parameters = more.pop("parameters", None)
        history = more.pop("crew", "unbounded")
        made = agent(provider(server, protocol), settings=settings, **more)
        executor = CrewExecutor(made, history=history, limits=Limits(rounds=None), parameters=parameters)
        events, result = await run_and_collect(executor, "Read it all, and keep this goal in mind.")
        assert result.output == "done"
        assert "keep this goal in mind" in server.requests[-1].raw.decode()
        return server, events, result


@pytest.mark.parametrize(
    "more",
    [
        {"max_input_tokens": WINDOW - 500},
        {"max_input_tokens": WINDOW - 500, "history": Truncate()},
        {"max_input_tokens": WINDOW - 500, "history": MaskToolResults(keep_recent=5), "crew": "rolling"},
        {"parameters": RequestParameters(max_tokens=4_000, max_history_size=30)},
    ],
    ids=["window", "truncate", "mask", "parameters"],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_long_run_stays_within_a_known_window(protocol: Protocol, more: dict[str, Any]) -> None:
    """With and without a message limit no request is refused; estimates are within a tenth from the second request on.
    With and without a message limit no request is refused; estimates are within a tenth from the second request on."""
    server, events, _ = await try_steps(120, protocol, **dict(more))
    assert not server.stats()["refused"], refusal_reasons(server)
    told = [event.message.manifest for event in events if isinstance(event, Replied)]
    assert max(abs(m.tokens_estimated / m.tokens_billed - 1) for m in told[1:]) <= 0.10
    limit = 4_000 if "parameters" in more else 0.9 * WINDOW
    assert max(m.tokens_billed for m in told) <= limit


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_wrong_window_is_learned_from_one_refusal(protocol: Protocol) -> None:
    """The registry claims more than this server accepts: one refusal, and none after it."""
    server, events, result = await try_steps(120, protocol)
    refusals = [event for event in events if isinstance(event, TooLong)]
    assert len(refusals) == len(server.refused) == 1, refusal_reasons(server)
    assert result.state.token_budgets["reader"][0].window_source == "learned"


@pytest.mark.parametrize("settings", [None, ModelSettings(thinking_tokens=1_024)], ids=["plainly", "thinking"])
async def test_default_output_limit_is_reserved_in_the_window(settings: ModelSettings | None) -> None:
    """Anthropic requires an output limit; the default limit and reasoning count in the window once it is known."""
    responder = tool_loop(120, thinking="Let me see." if settings else None)

    async with WireServer(responder, model=Model(era="classic", window=WINDOW)) as server:
        made = agent(provider(server, "messages", "classic"), settings=settings or ModelSettings())
        executor = CrewExecutor(made, history="unbounded", limits=Limits(rounds=None))
        events, result = await run_and_collect(executor)

    assert result.output == "done"
    assert len(server.refused) == 2, refusal_reasons(server)  # one for the limit of ours, one for the window
    assert sum(isinstance(event, TooLong) for event in events) == 1
    told = [event.message.manifest for event in events if isinstance(event, Replied)]
    assert max(abs(m.tokens_estimated / m.tokens_billed - 1) for m in told[1:]) <= 0.10, (
        "a refusal for the reply's sake is no bad count"
    )


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("place", [0, 10, 20], ids=["first", "middle", "last"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_refusal_as_too_long_does_not_fail_the_run(protocol: Protocol, place: int, streamed: bool) -> None:
    """At any step the view is cut and the request repeated. If nothing can be removed, as in the first request, the
    error lists the parts."""
    async with WireServer(tool_loop(20), faults={place: Fault("context_too_long")}) as server:
        executor = CrewExecutor(agent(provider(server, protocol, "classic")))

        if place == 0:
            with pytest.raises(ContextOverflow, match="mandatory part"):
                await run(executor, streamed=streamed)

            assert server.count == 1
            return

        assert (await run(executor, streamed=streamed)).output == "done"
        assert server.count == 22
        before, after = server.requests[place : place + 2]
        assert len(after.raw) < len(before.raw)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_backup_on_another_protocol_replaces_a_service(protocol: Protocol) -> None:
    """After the retries the backup continues in the middle of a tool loop."""
    other = PROTOCOLS[(PROTOCOLS.index(protocol) + 1) % 3]
    down = {index: Fault("server_error") for index in range(6, 40)}

    async with (
        WireServer(tool_loop(20), model=Model(era="modern"), faults=down) as first,
        WireServer(tool_loop(20), model=Model(era="modern")) as second,
    ):
        made = agent(retrying_provider(first, protocol), backup=retrying_provider(second, other))
        events, result = await run_and_collect(CrewExecutor(made), "Read it all.")
        assert result.output == "done"
        assert not first.stats()["refused"], refusal_reasons(first)
        assert not second.stats()["refused"], refusal_reasons(second)
        assert sum(isinstance(event, FellBack) for event in events) == 1
        rules = [event.manifest.moved_by for event in events if isinstance(event, Asked) and event.manifest]
        assert rules.count("fallback") == 1
        assert result.metrics.by_tool["step"].calls == 20


@pytest.mark.parametrize("kind", ["cut", "garbage", "reset", "overloaded"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_backup_restarts_a_reply_that_failed_while_streaming(protocol: Protocol, kind: Any) -> None:
    """Deltas that were streamed before are declared void."""
    other, text = PROTOCOLS[(PROTOCOLS.index(protocol) + 1) % 3], "All the words of a long answer, " * 8

    async with (
        WireServer(lambda *_: Reply(text=text), faults=lambda *_: Fault(kind)) as first,
        WireServer(lambda *_: Reply(text=text)) as second,
    ):
        made = agent(retrying_provider(first, protocol, "classic"), backup=retrying_provider(second, other, "classic"))
        events, result = await run_and_collect(CrewExecutor(made), "Read it all.")

    pieces = [event for event in events if event.kind == "text_delta"]
    last = max(index for index, piece in enumerate(pieces) if piece.channel == "restart")
    assert "".join(piece.text for piece in pieces[last + 1 :]) == result.output == text
    assert (first.count, second.count) == (4, 1)
    assert sum(isinstance(event, Retried) for event in events) == 3
    assert result.usage.requests == 1
