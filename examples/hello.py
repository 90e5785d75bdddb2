"""One agent with one tool: `python examples/hello.py`, or `crew run examples/hello.py "Where is order 17?"`."""

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool


@tool(effect="read")
async def lookup_order(order_id: str) -> str:
    """Look up an order.

    Args:
        order_id: The order number.
    """
    return f"Order {order_id}: left the warehouse today."


# Scripted replies replace the model; for a real one write model="openai:gpt-5-mini".
scripted = ScriptedProvider(call("lookup_order", order_id="17"), "It left the warehouse today.")
billing = Agent("billing", instructions="Answer questions about orders.", model=scripted, tools=[lookup_order])

if __name__ == "__main__":
    result = CrewExecutor(billing).execute_sync("Where is order 17?")
    print(result.output)
    assert result.output == "It left the warehouse today."
    assert [message.role for message in result.history] == ["user", "assistant", "tool", "assistant"]
