"""`crew simulate`: replays a recorded transcript under other history policies and compares tokens and cost."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from crew.cli.target import Subparsers
from crew.errors import CrewError, DefinitionError
from crew.history.policies.lookup import PolicySpec
from crew.simulator.billing import Prices
from crew.simulator.simulate import simulate

DESCRIPTION = """\
Replay a recorded transcript through history policies, with no key and no model.

The transcript is a JSON file: a recording of Crew, or a list of messages in OpenAI's or Anthropic's
format. Each policy gets the same replies and tool results and runs the same code as a live run. For
policies without summaries the requests are byte for byte those of a live run.
"""

EPILOG = """\
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


def add_simulate_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments of `crew simulate`."""
    parser = subparsers.add_parser(
        "simulate",
        help="compare history policies on a recorded transcript",
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
        help="a policy to simulate; can be repeated (default: unbounded, sliding 50 and rolling 50)",
    )
    parser.add_argument(
        "--fact", action="append", default=[], help="a text to look for in the last request; can be repeated"
    )
    parser.add_argument("--fixed-tokens", type=int, default=0, help="tokens of instructions and tools (default 0)")
    parser.add_argument(
        "--input", type=float, default=prices.input, help=f"price of input tokens, per million (default {prices.input})"
    )
    parser.add_argument(
        "--output",
        type=float,
        default=prices.output,
        help=f"price of output tokens, per million (default {prices.output})",
    )
    parser.add_argument(
        "--cache-read",
        type=float,
        default=prices.cache_read,
        help=f"price of tokens read from the cache, per million (default {prices.cache_read})",
    )
    parser.add_argument(
        "--cache-write",
        type=float,
        default=prices.cache_write,
        help=f"price of tokens written to the cache, per million (default {prices.cache_write})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw a chart of the tokens of each request")
    parser.set_defaults(run=simulate_command)
    return parser


def simulate_command(args: argparse.Namespace) -> int:
    """Print the comparison and return the exit code; 2 if the simulation is not possible."""
    try:
        if not args.transcript.exists():
            raise DefinitionError(str(args.transcript), "no such file")

        prices = Prices(input=args.input, output=args.output, cache_read=args.cache_read, cache_write=args.cache_write)
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
    """Parse `label=name:option=value,…+name:…` into the label and the policy."""
    head, colon, _ = text.partition(":")
    label, equals, rest = text.partition("=")

    # An equals sign before the first colon ends a label; after the colon it belongs to an option.
    if equals and (not colon or len(label) < len(head)):
        text = rest
    else:
        label = text

    members = [_parse_member(part) for part in text.split("+")]
    return label, members[0] if len(members) == 1 else {"name": "chain", "policies": members}


def _parse_member(text: str) -> dict[str, object]:
    name, _, options = text.partition(":")
    spec: dict[str, object] = {"name": name}

    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        spec[key] = _parse_value(value)

    return spec


def _parse_value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        return text

    return value
