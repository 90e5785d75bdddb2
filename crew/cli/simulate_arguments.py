"""Declares the arguments of `crew simulate`; like `arguments.py`, it imports nothing of Crew."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

PRICES_HELP = {
    "--input": ("input tokens", 3.0),
    "--output": ("output tokens", 15.0),
    "--cache-read": ("tokens read from the cache", 0.3),
    "--cache-write": ("tokens written to the cache", 3.75),
}
"""The defaults of `crew.simulator.Prices`, which this module does not import; a test compares them."""

SIMULATE_DESCRIPTION = """\
Replay a recorded transcript through history policies, with no key and no model.

The transcript is a JSON file: a recording of Crew, or a list of messages in OpenAI's or Anthropic's
format. Each policy gets the same replies and tool results and runs the same code as a live run. For
policies without summaries the requests are byte for byte those of a live run.
"""

SIMULATE_EPILOG = """\
policies:
  [LABEL=]NAME[:OPTION=VALUE,...], for example:
    unbounded                          keep all messages
    rolling                            the default: prune to 25 messages when there are more than 50
    rolling:limit=40,prune_to=40       a window that slides by one message
    big=rolling:limit=200              the same policy with a label
    head_tail:max_messages=60          keep the first and the last messages
    checkpoint:trigger_at=60           replace old messages by summaries (simulated by an extract)
    mask_tool_results:keep_recent=10   replace old tool results by [Omitted]
  Join policies with + to chain them:  mask_tool_results:keep_recent=5+rolling:limit=100

columns of the table:
  peak, total    input tokens of the largest request and of all requests
  cached         share of the input tokens that a prompt cache serves
  breaks         requests that do not start with the whole previous request, so that the cache is rewritten
  cost           in US dollars, at the given prices per million tokens
  goal           share of the requests that contain the user's task
  facts          texts given with --fact that the last request contains
  constraints    the user's sentences with "must", "never", "only" ... that the last request contains
  valid          requests that satisfy the strictest provider's rules

examples:
  crew simulate examples/transcripts/coding.json
  crew simulate run.json -p unbounded -p rolling -p checkpoint --fact INV-2041 --svg tokens.svg
  crew simulate run.json --json > simulation.json
"""


def add_simulate_parser(subparsers: Any) -> None:
    """Declare the arguments of `crew simulate`."""
    parser = subparsers.add_parser(
        "simulate",
        help="compare history policies on a recorded transcript",
        description=SIMULATE_DESCRIPTION,
        epilog=SIMULATE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("transcript", type=Path, help="the transcript, a JSON file")
    parser.add_argument(
        "-p",
        "--policy",
        action="append",
        default=[],
        metavar="POLICY",
        help="a policy to simulate; can be repeated (default: unbounded, sliding 50 and rolling 50)",
    )
    parser.add_argument(
        "--fact", action="append", default=[], help="a text to look for in the last request; can be repeated"
    )
    parser.add_argument("--fixed-tokens", type=int, default=0, help="tokens of instructions and tools (default 0)")

    for option, (tokens, price) in PRICES_HELP.items():
        parser.add_argument(
            option, type=float, metavar="DOLLARS", help=f"price of {tokens}, per million (default {price})"
        )

    parser.add_argument(
        "--cache-step", type=int, metavar="TOKENS", help="the cache is read in multiples of it (OpenAI: 128; default 1)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw a chart of the tokens of each request")
    parser.set_defaults(function="crew.cli.simulate_command:simulate_command")
