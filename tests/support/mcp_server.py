"""An MCP server of the official SDK for the tests, in a process of its own: `python mcp_server.py FOLDER [OPTION…]`.

FOLDER holds a log of what happens, one line each: `start PID`, `call NAME`, `done slow`, `cancelled NAME`. Options:

--http PORT        serve streamable HTTP on loopback instead of stdin and stdout.
--slow SECONDS     wait before the server starts.
--together COUNT   wait until so many servers, whose folders are beside this one, have been started.
--tools FILE       read extra tools from this JSON file: {name: description}; it is read again at each `tools/list`.
--prefix TEXT      stands before the description of each tool.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--http", type=int)
    parser.add_argument("--slow", type=float, default=0)
    parser.add_argument("--together", type=int, default=0)
    parser.add_argument("--tools", type=Path)
    parser.add_argument("--prefix", default="")
    args = parser.parse_args()
    time.sleep(args.slow)
    log(args.folder, f"start {os.getpid()}")

    while len([*args.folder.parent.glob("*/log")]) < args.together:
        time.sleep(0.05)

    server = build(args)

    if args.http:
        server.run("streamable-http", host="127.0.0.1", port=args.http)
    else:
        server.run("stdio")


def log(folder: Path, text: str) -> None:
    with (folder / "log").open("a") as file:
        file.write(f"{text}\n")


def build(args: argparse.Namespace) -> MCPServer:
    server = MCPServer("test", log_level="CRITICAL")

    def described(text: str) -> str:
        return args.prefix + text

    @server.tool(description=described("Adds two numbers."))
    def add(a: int, b: int) -> str:
        log(args.folder, "call add")
        return str(a + b)

    @server.tool(description=described("Returns an environment variable."))
    def variable(name: str) -> str:
        return os.environ.get(name, "(not set)")

    @server.tool(description=described("Fails."))
    def fail() -> str:
        raise ToolError("the disk is full")

    @server.tool(description=described("Ends the server process."))
    def crash() -> str:
        log(args.folder, "call crash")
        os._exit(3)

    @server.tool(description=described("Returns many characters."))
    def huge(size: int) -> str:
        return "x" * size

    @server.tool(description=described("Returns an image."), structured_output=False)
    def picture() -> list[object]:
        return ["A picture:", Image(data=b"\x89PNG" + b"0" * 96, format="png")]

    @server.tool(description=described("Writes a line that is not JSON, or is not JSON-RPC."))
    def garbage(text: str) -> str:
        sys.__stderr__.flush()
        os.write(int((args.folder / "fd").read_text()) if (args.folder / "fd").exists() else 2, text.encode() + b"\n")
        return "written"

    @server.tool(description=described("Takes a while, and reports progress."))
    async def slow(seconds: float, ctx: Context) -> str:
        log(args.folder, "call slow")

        try:
            for step in range(4):
                await ctx.report_progress(step, 4, f"step {step}")
                await asyncio.sleep(seconds / 4)
        except anyio.get_cancelled_exc_class():
            log(args.folder, "cancelled slow")
            raise

        log(args.folder, "done slow")
        return "done"

    @server.tool(description=described("Announces that the list of tools has changed."))
    async def announce(ctx: Context) -> str:
        await ctx.notify_tools_changed()
        return "announced"

    @server.tool(description=described("Blocks the whole server."))
    async def hang(seconds: float) -> str:
        log(args.folder, "call hang")
        time.sleep(seconds)
        return "done"

    @server.resource("notes://today")
    def today() -> str:
        return "Buy milk."

    @server.prompt()
    def greet(name: str) -> str:
        return f"Greet {name} politely."

    if args.tools:
        add_listed_tools(server, args)

    return server


def add_listed_tools(server: MCPServer, args: argparse.Namespace) -> None:
    """Tools from a file, which is read again whenever the tools are listed."""
    listed = server.list_tools

    async def list_tools() -> object:
        for name in [tool.name for tool in await listed()]:
            if name.startswith("extra"):
                server.remove_tool(name)

        for name, description in json.loads(args.tools.read_text()).items():
            server.add_tool(extra, name=name, description=description)

        return await listed()

    async def extra() -> str:
        log(args.folder, "call extra")
        return "extra"

    server.list_tools = list_tools  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    main()
