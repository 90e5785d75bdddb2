"""A crew that exports its traces to Jaeger: start Jaeger with `make jaeger`, then run this file.

It needs no API key: the models are scripted. OTEL_EXPORTER_OTLP_ENDPOINT sets the URL; the default is the one that
`make jaeger` prints. Without Jaeger, this command prints the trace of the same crew:
`crew run examples/jaeger.py --trace "Please pay order 3 back."`.
"""

import asyncio
import os
import urllib.request

from crew import Agent, Crew, CrewExecutor, Parallel, RunResult, ScriptedProvider, call, tool
from crew.telemetry import configure

ENDPOINT = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
QUERY = os.environ.get("CREW_JAEGER_QUERY", "http://127.0.0.1:16686")


@tool(effect="read")
async def lookup_order(order_id: str) -> str:
    """Look up an order."""
    await asyncio.sleep(0.02)
    return f"Order {order_id} left the warehouse."


@tool(approval="always")
async def refund(order_id: str) -> str:
    """Refund an order."""
    return f"Order {order_id} is paid back."


lookups = [call("lookup_order", order_id=str(number)) for number in range(9)]
legal = Agent("legal", instructions="Check the terms.", model=ScriptedProvider("The terms allow a refund."))
finance = Agent("finance", instructions="Check the budget.", model=ScriptedProvider("There is money for it."))
editor = Agent(
    "editor",
    instructions="Answer the user.",
    model=ScriptedProvider(call("refund", order_id="3"), "Your order 3 is paid back."),
    tools=[refund],
)
panel = Parallel("panel", branches=[legal, finance], then=editor)
billing = Agent(
    "billing",
    instructions="Answer questions about invoices.",
    model=ScriptedProvider(*lookups, call("transfer_to_panel")),
    tools=[lookup_order],
    handoffs=[panel],
)
triage = Agent(
    "triage",
    instructions="Hand off to the right agent.",
    model=ScriptedProvider(call("transfer_to_billing")),
    handoffs=[billing],
)
crew = Crew("support", agents=[triage, billing, editor, legal, finance], groups=[panel])
"""Triage hands off to billing, which looks up nine orders and hands off to a panel; the editor writes the answer."""


async def main() -> tuple[RunResult, RunResult]:
    """Run the crew until it pauses, approve, and resume; the second trace links to the first."""
    configure(otlp_endpoint=ENDPOINT, service_name="crew-example", metrics="off", console=True, log_level="WARNING")

    async with CrewExecutor(crew, max_messages_per_request=10) as executor:
        paused = await executor.execute("Please pay order 3 back.")
        done = await executor.resume(paused.run_id, {pause.id: True for pause in paused.pauses})

    assert (paused.stop_reason, done.stop_reason) == ("paused", "completed")
    assert done.output == "Your order 3 is paid back."
    assert done.metrics.prunings >= 2
    return paused, done


def trace_path() -> str:
    """The path of a trace in Jaeger: a page, or JSON if this Jaeger has no web UI."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    try:
        with direct.open(QUERY, timeout=5) as page:
            return "api/traces" if b"not the Jaeger UI" in page.read() else "trace"
    except OSError:
        return "trace"  # Jaeger is not running


if __name__ == "__main__":
    paused, done = asyncio.run(main())
    path = trace_path()
    print(done.output)
    print(f"prunings: {done.metrics.prunings}, tokens: {done.usage.total_tokens}")
    print(f"trace until the pause: {QUERY}/{path}/{paused.trace_id}")
    print(f"trace after the pause: {QUERY}/{path}/{done.trace_id}")
