"""Runs the server as a process: `python -m tests.wire --port 0` prints its port and serves until terminated."""

import argparse
import asyncio

from tests.wire.model import Model
from tests.wire.responders import Responder, always, echo, tool_loop
from tests.wire.server import WireServer


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.wire")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--responder", choices=("echo", "tool_loop", "always"), default="echo")
    parser.add_argument("--steps", type=int, default=20, help="number of steps of the tool loop")
    parser.add_argument("--width", type=int, default=1, help="calls in each step of the tool loop")
    parser.add_argument("--tool", default="step", help="the tool that the loop calls")
    parser.add_argument("--text", default="done", help="final reply of the tool loop")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--era", choices=("classic", "modern"), default="classic")
    parser.add_argument("--window", type=int, default=200_000)
    parser.add_argument("--no-checks", action="store_true", help="skip rules, caches and exact token counts")
    parser.add_argument("--keep", type=int, default=1000, help="number of requests to record")
    return parser.parse_args()


async def serve(given: argparse.Namespace) -> None:
    """Serve until cancelled."""
    responders: dict[str, Responder] = {
        "echo": echo,
        "always": always(given.text),
        "tool_loop": tool_loop(given.steps, given.tool, width=given.width, text=given.text),
    }
    model = Model(era=given.era, window=given.window)
    server = WireServer(
        responders[given.responder], model=model, latency=given.latency, checks=not given.no_checks, keep=given.keep
    )
    await server.start(given.port)
    print(server.port, flush=True)  # noqa: T201 - the parent reads it
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()


if __name__ == "__main__":
    try:
        asyncio.run(serve(options()))
    except KeyboardInterrupt:
        pass
