"""With any fault of the connection or the answer, a run ends correctly or with an error that names the cause."""

import asyncio
import itertools
import re

import pytest

from crew import CrewExecutor, RunError
from crew.errors import AuthenticationFailed, ContentRefused, MalformedReply, ProviderError, QuotaExceeded, Unavailable
from crew.runs.events import Retried
from tests.support.remote_providers import (
    FOUR_ATTEMPTS,
    PROTOCOLS,
    SHORT_TIMEOUT,
    refusal_reasons,
    retrying_provider,
    run,
    worker,
)
from tests.support.runs import run_and_collect
from tests.wire import Fault, Protocol, WireServer, every_kind, tool_loop

STEPS = 4
PASSES = {
    *("rate_limited", "server_error", "unavailable", "overloaded", "html_page", "reset", "hang", "garbage", "not_http"),
    *("cut", "cut_clean", "reset_mid_stream", "hang_mid_stream", "error_event", "failed_event"),
}
FINAL: dict[str, type[ProviderError]] = {
    "quota": QuotaExceeded,
    "unauthorized": AuthenticationFailed,
    "forbidden": AuthenticationFailed,
    "blocked": ContentRefused,
}
# tests/stories/test_windows.py covers a prompt that exceeds the window.
FAULTS = [fault for fault in every_kind() if fault.kind != "context_too_long"]
HANGING = [fault for fault in FAULTS if fault.kind.startswith("hang")]
QUICK = [fault for fault in FAULTS if fault not in HANGING]


def name(fault: object) -> str:
    return f"{fault.kind}{fault.shape or ''}" if isinstance(fault, Fault) else str(fault)


async def try_fault(fault: Fault, place: int, protocol: Protocol, *, streamed: bool) -> None:
    """One run with one fault in it."""
    async with WireServer(tool_loop(STEPS), faults={place: fault}) as server:
        policy = SHORT_TIMEOUT if fault.kind.startswith("hang") else FOUR_ATTEMPTS
        executor = CrewExecutor(worker(retrying_provider(server, protocol, "classic", policy=policy)))
        final = FINAL.get(fault.kind)

        if fault.kind in ("refusal", "content_filter") and protocol == "messages":
            final = ContentRefused

        if final is None:
            result = await run(executor, streamed=streamed)
            assert result.stop_reason == "completed"
            refuses = fault.kind in ("refusal", "content_filter")
            cut = fault.kind == "length" and place == STEPS
            assert result.output == ("I can't help with that." if refuses else "do" if cut else "done")
        else:
            with pytest.raises(RunError) as caught:
                await run(executor, streamed=streamed)

            assert isinstance(caught.value.__cause__, final)
            assert server.count == place + 1, "an error that a retry can't fix is not retried"

        assert not server.refused, refusal_reasons(server)

        if fault.kind in PASSES:
            assert server.count == STEPS + 2, f"{protocol}: one more request than without the fault"


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fault", QUICK, ids=name)
async def test_a_fault_in_the_middle_of_a_run(fault: Fault, protocol: Protocol, streamed: bool) -> None:
    """A retryable fault is retried, a mistake of the model is reported to it, any other fault is a typed error."""
    await try_fault(fault, STEPS // 2, protocol, streamed=streamed)


@pytest.mark.parametrize("fault", HANGING, ids=name)
async def test_a_service_that_hangs_in_the_middle_of_a_run(fault: Fault) -> None:
    """Its request is retried after the time-out, which the runs of all protocols wait for at the same time."""
    cases = itertools.product(PROTOCOLS, [False, True])
    await asyncio.gather(*(try_fault(fault, STEPS // 2, protocol, streamed=streamed) for protocol, streamed in cases))


@pytest.mark.soak
@pytest.mark.parametrize("place", [0, STEPS], ids=["first", "last"])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fault", FAULTS, ids=name)
async def test_a_fault_at_the_first_or_last_step_of_a_run(
    fault: Fault, protocol: Protocol, streamed: bool, place: int
) -> None:
    """As in the middle of a run."""
    await try_fault(fault, place, protocol, streamed=streamed)


@pytest.mark.parametrize(
    ("kind", "error"), [("server_error", Unavailable), ("garbage", MalformedReply), ("hang", Unavailable)]
)
async def test_a_permanent_fault_ends_the_run_with_its_cause(kind: str, error: type[ProviderError]) -> None:
    """After the last attempt the run fails with the service's error and the number of attempts."""

    async def failing_run(protocol: Protocol) -> None:
        async with WireServer(faults=lambda *_: Fault(kind)) as server:  # type: ignore[arg-type]
            with pytest.raises(RunError) as caught:
                await run(CrewExecutor(worker(retrying_provider(server, protocol, "classic", policy=SHORT_TIMEOUT))))

            assert isinstance(caught.value.__cause__, error), protocol
            assert server.count == 4, protocol
            assert re.search(r"\(4 attempts in \d+ s\)$", str(caught.value.__cause__)), protocol

    await asyncio.gather(*map(failing_run, PROTOCOLS))  # at the same time: each waits for four time-outs


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_restart_delta_discards_a_partly_streamed_reply(protocol: Protocol) -> None:
    """It comes before the first delta of the second attempt, so that a user interface can remove the first ones."""
    text = "All the words of a long answer, " * 8

    async with WireServer([text, text], faults={0: Fault("cut")}) as server:
        events, result = await run_and_collect(CrewExecutor(worker(retrying_provider(server, protocol, "classic"))))

    pieces = [event for event in events if event.kind == "text_delta"]
    restart = next(index for index, piece in enumerate(pieces) if piece.channel == "restart")
    assert restart > 0
    assert "".join(piece.text for piece in pieces[restart + 1 :]) == result.output == text
    assert text.startswith("".join(piece.text for piece in pieces[:restart]))
    assert [type(event) for event in events].count(Retried) == 1
