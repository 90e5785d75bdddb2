"""An agent keeps a shopping list with the tools of an MCP server, which runs in another process.

`python examples/mcp_tools.py` runs the agent; with the argument `serve` it is the server, made with the official SDK.
"""

import asyncio
import json
import sys
from pathlib import Path

from crew import Agent, CrewExecutor, ScriptedProvider, call
from crew.mcp import MCPServer, ToolSettings

LIST = Path("shopping.json")


def read_list() -> list[str]:
    return list(json.loads(LIST.read_text())) if LIST.exists() else []


def serve() -> None:
    """The server: any program in any language that speaks MCP would do."""
    from mcp.server.mcpserver import MCPServer as OfficialServer

    server = OfficialServer("shopping")

    @server.tool()
    def find_items(words: str) -> list[str]:
        """Find items on the shopping list."""
        return [item for item in read_list() if words in item]

    @server.tool()
    def add_item(item: str) -> str:
        """Add an item to the shopping list."""
        LIST.write_text(json.dumps([*read_list(), item]))
        return f"Added {item}."

    server.run("stdio")


shopping = MCPServer(
    name="shopping",
    stdio=[sys.executable, str(Path(__file__).resolve()), "serve"],
    approval="writes",  # a person approves what changes something
    tools={"find_items": ToolSettings(effect="read")},  # we know that this one does not
    pins="mcp-pins.json",
)
script = ScriptedProvider(
    call("shopping_find_items", words="milk"),
    call("shopping_add_item", item="milk"),
    call("shopping_find_items", words="milk"),
    "Milk is on the list.",
)
agent = Agent("shopper", instructions="Keep the shopping list.", model=script, tools=[shopping])


async def main() -> None:
    async with CrewExecutor(agent) as executor:  # ends the server's process
        result = await executor.execute("We need milk.")
        [pause] = result.pauses
        print(pause.text)
        assert read_list() == [], "the call waits for the approval"

        result = await executor.resume(result.run_id, {pause.id: True})
        print(result.output)
        assert result.output == "Milk is on the list."
        assert read_list() == ["milk"]


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else asyncio.run(main())
