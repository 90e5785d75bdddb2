"""`crew simulate`: what other history policies would have made of a recorded transcript, and at what price."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from crew.errors import CrewError
from crew.history.policies.lookup import PolicySpec
from crew.simulator.billing import Prices
from crew.simulator.simulate import simulate

DESCRIPTION = """\
Replay a recorded transcript through history policies, with no key and no model.

The transcript is JSON: what Crew recorded, or a list of messages in OpenAI's or Anthropic's format.
Each policy sees the same replies and tool results, and goes through the same code as a live run; for
policies that make no summaries the requests are those of a live run, byte for byte.
"""

EPILOG = """\
policies:
  A name, or a name with options after a colon, a label before an equals sign if you like:
    unbounded                          keep everything
    rolling                            the default: 50 messages, cut to 25
    rolling:limit=40,prune_to=40       a window that slides by one
    big=rolling:limit=200              the same policy, under a label
    head_tail:max_messages=60          the first and the last stay
    checkpoint:trigger_at=60           summaries that stay (stood in for by an extract)
    mask_tool_results:keep_recent=10   old tool results read [Omitted]
  Several, joined by +, are a chain:   mask_tool_results:keep_recent=5+rolling:limit=100

reading the table:
  peak, total    input tokens of the largest request, and of all requests
  cached         share of the input that a prompt cache would serve
  breaks         requests that do not begin with all of the request before: each pays the cache anew
  cost           in dollars, at --input, --output, --cache-read and --cache-write for a million tokens
  goal           share of the requests that show what the user asked for
  facts          those given with --fact that the last request still shows
  constraints    the user's sentences with "must", "never", "only" ... that the last request still shows
  valid          requests that the strictest provider accepts

examples:
  crew simulate examples/transcripts/coding.json
  crew simulate run.json -p unbounded -p rolling -p checkpoint --fact INV-2041 --svg tokens.svg
  crew simulate run.json --json > figures.json
"""


def add_simulate_parser(subparsers: Any) -> argparse.ArgumentParser:
    """The command's arguments, under the name `simulate`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "simulate",
        help="what other history policies would have made of a transcript",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prices = Prices()
    parser.add_argument("transcript", type=Path, help="the transcript, a JSON file")
    parser.add_argument(
        "-p",
        "--policy",
        action="append",
        default=[],
        metavar="POLICY",
        help="may be given often; without it unbounded, sliding 50 and rolling 50",
    )
    parser.add_argument("--fact", action="append", default=[], help="a text to look for in the last request")
    parser.add_argument("--fixed-tokens", type=int, default=0, help="tokens of instructions and tools (0)")
    parser.add_argument("--input", type=float, default=prices.input, help=f"price of input ({prices.input})")
    parser.add_argument("--output", type=float, default=prices.output, help=f"price of output ({prices.output})")
    parser.add_argument(
        "--cache-read",
        type=float,
        default=prices.cache_read,
        help=f"price of input read from the cache ({prices.cache_read})",
    )
    parser.add_argument(
        "--cache-write",
        type=float,
        default=prices.cache_write,
        help=f"price of input written to it ({prices.cache_write})",
    )
    parser.add_argument("--json", action="store_true", help="write JSON instead of a table")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the tokens of each request")
    parser.set_defaults(run=simulate_command)
    return parser


def simulate_command(args: argparse.Namespace) -> int:
    """Simulate and report; 2 if that can't be."""
    prices = Prices(input=args.input, output=args.output, cache_read=args.cache_read, cache_write=args.cache_write)

    try:
        policies = dict(parse_policy(text) for text in args.policy) or None
        simulation = simulate(args.transcript, policies, prices, facts=args.fact, fixed_tokens=args.fixed_tokens)

        if args.svg is not None:
            args.svg.write_text(simulation.svg(), encoding="utf-8")
    except (CrewError, OSError) as error:
        print(f"crew simulate: {error}", file=sys.stderr)
        return 2

    print(json.dumps(simulation.as_dict(), indent=2, ensure_ascii=False) if args.json else simulation.table())
    return 0


def parse_policy(text: str) -> tuple[str, PolicySpec]:
    """A label and a policy out of `label=name:option=value,…+name:…`."""
    head, found, _ = text.partition(":")
    label, named, rest = text.partition("=")

    # An equals sign before the first colon ends a label; after it, it belongs to an option.
    if named and (not found or len(label) < len(head)):
        text = rest
    else:
        label = text

    members = [_parse_member(part) for part in text.split("+")]
    return label, members[0] if len(members) == 1 else {"name": "chain", "policies": members}


def _parse_member(text: str) -> dict[str, Any]:
    name, _, options = text.partition(":")
    spec: dict[str, Any] = {"name": name}

    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        spec[key] = _parse_value(value)

    return spec


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
