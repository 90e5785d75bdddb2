"""Declares the arguments of `crew serve`; like `arguments.py`, it imports nothing of Crew."""

from __future__ import annotations

import argparse


def port(text: str) -> int:
    """The type of arguments that are the number of a port."""
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"a port must be a number from 0 to 65535, not {text!r}")

    return int(text)


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the service: its address, its tokens and its limits."""
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at (default 127.0.0.1: this machine)"
    )
    parser.add_argument("--port", type=port, default=8000, help="the port (default 8000; 0: any free port)")
    parser.add_argument(
        "--token",
        action="append",
        default=[],
        metavar="SECRET",
        help="accept this bearer token, with all rights; can be repeated. Other users of this machine can see it: "
        "prefer the environment variable CREW_SERVE_TOKEN or --token-file",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="JSON lines with the keys token or sha256, principal, and scopes (run, read, approve, all)",
    )
    parser.add_argument(
        "--insecure-no-token", action="store_true", help="accept requests without a token; only on loopback addresses"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name under which clients reach the service, beside localhost; can be repeated",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="URL",
        help="a web site, such as https://chat.example, whose pages may call the service; can be repeated",
    )
    parser.add_argument(
        "--max-runs-per-token", type=int, default=100, metavar="N", help="runs of one token at once (default 100)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="resume the runs of this store that no process drives any more"
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error", "off"),
        default="warning",
        help="print log lines from this level on to stderr (default warning: failed runs, and errors of tools with "
        "their stack traces; info: every event)",
    )
