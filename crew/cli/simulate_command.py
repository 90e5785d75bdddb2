"""`crew simulate`: replays a recorded transcript under other history policies and compares tokens and cost."""

from __future__ import annotations

import argparse
import json
import sys

from crew.errors import CrewError, DefinitionError
from crew.history.policies.lookup import PolicySpec
from crew.simulator.billing import Prices
from crew.simulator.simulate import simulate


def simulate_command(args: argparse.Namespace) -> int:
    """Print the comparison and return the exit code; 2 if the simulation is not possible."""
    try:
        if not args.transcript.exists():
            raise DefinitionError(str(args.transcript), "no such file")

        options = ("input", "output", "cache_read", "cache_write", "cache_step")
        given = {name: getattr(args, name) for name in options}
        prices = Prices(**{name: price for name, price in given.items() if price is not None})
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
