"""One agent, one tool, no key: `crew run examples/hello.py`, or `python examples/hello.py`."""

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool


@tool(effect="read")
async def lookup_order(order_id: str) -> str:
    """Look an order up.

    Args:
        order_id: The order's number.
    """
    return f"Order {order_id}: left the warehouse today."


# A script stands in for the model; write model="openai:gpt-5-mini" for a real one.
scripted = ScriptedProvider(call("lookup_order", order_id="17"), "It left the warehouse today.")
billing = Agent("billing", instructions="Answer questions on orders.", model=scripted, tools=[lookup_order])

if __name__ == "__main__":
    result = CrewExecutor(billing).execute_sync("Where is order 17?")
    print(result.output)
    assert result.output == "It left the warehouse today."
    assert [message.role for message in result.history] == ["user", "assistant", "tool", "assistant"]
