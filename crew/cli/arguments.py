"""Declares the arguments of all commands; imports nothing of Crew, so that `crew --help` is fast."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The parameter of the functions that declare a subcommand; argparse has no public name for its type."""

TARGET_HELP = (
    "a Python file (FILE.py or FILE.py:name), a module (module:name), or a configuration file (FILE.yaml:crew)"
)

ACCEPTED_ANSWERS = {
    "input": "a text",
    "approval": "yes, no, or a reason for refusing",
    "in_doubt": "run again, skip, or done=RESULT",
}
"""The answers to a pause by its reason, as the prompt, the help and the errors list them."""

EXIT_CODES_HELP = (
    "Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 paused without a terminal to answer, 4 limit reached, "
    "130 Ctrl-C, 143 SIGTERM."
)
ANSWERS_HELP = (
    f"For an approval: {ACCEPTED_ANSWERS['approval']}. For a call that may have run before the process ended: "
    f"{ACCEPTED_ANSWERS['in_doubt']}. For a question: the text."
)

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


def create_parser() -> argparse.ArgumentParser:
    """The parser of the command `crew`; after parsing, `function` names the function of the subcommand."""
    parser = argparse.ArgumentParser(
        prog="crew",
        description="Run crews of LLM agents, with a history that is bounded after every append.",
        epilog="Try it offline: crew run config.yaml:greeter Hello",
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="show program's version number and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_run_parser(subparsers)
    _add_chat_parser(subparsers)
    _add_resume_parser(subparsers)
    _add_cancel_parser(subparsers)
    _add_show_parser(subparsers)
    _add_simulate_parser(subparsers)
    _add_store_parsers(subparsers)
    return parser


class _PrintVersion(argparse.Action):
    """Like the action "version", but reads the metadata of the distribution only if it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(version("crew-executor"))
        parser.exit()


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help=TARGET_HELP)
    parser.add_argument(
        "--allow-modules",
        type=lambda text: [part.strip() for part in text.split(",") if part.strip()],
        metavar="MODULE,...",
        help="import only these modules for a configuration file: use it for files that others wrote",
    )


def _add_run_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew run`."""
    parser = subparsers.add_parser(
        "run",
        help="run a crew on an input",
        description="Run a crew. Events are printed to stderr, the answer to stdout. "
        "When the crew pauses, the command asks for your answer.",
        epilog=f"{EXIT_CODES_HELP} Example: crew run examples/hello.py 'Where is order 17?'",
    )
    _add_target(parser)
    parser.add_argument("input", nargs="?", help="the task for the crew; read from standard input if omitted")
    parser.add_argument("--agent", help="the agent that starts (default: the crew's entry)")
    parser.add_argument("--rounds", type=int, metavar="N", help="maximum number of model calls (default 200)")
    _add_settings(parser, store_help="save the run in this SQLite file (or sqlite:///FILE), so that it can be resumed")
    _add_output_options(parser)
    parser.set_defaults(function="crew.cli.run_command:run_command", strict=False, take_over=False)


def _add_chat_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew chat`."""
    parser = subparsers.add_parser(
        "chat",
        help="talk with a crew, turn by turn",
        description="Talk with a crew: each line is a turn of one conversation. /help lists the commands.",
        epilog="Example: crew chat crew.py --store runs.db --conversation customer-42",
    )
    _add_target(parser)
    parser.add_argument("--conversation", metavar="ID", help="continue this stored conversation, or begin it")
    parser.add_argument("--agent", help="the agent of the first turn (default: the one that answered last)")
    parser.add_argument("--rounds", type=int, metavar="N", help="maximum number of model calls a turn (default 200)")
    parser.add_argument("--quiet", action="store_true", help="print only the answers")
    _add_settings(parser, store_help="keep the conversation in this SQLite file (or sqlite:///FILE)")
    parser.set_defaults(function="crew.cli.chat_command:chat_command")


def _add_resume_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew resume`."""
    parser = subparsers.add_parser(
        "resume",
        help="resume a run that was paused, interrupted or killed",
        description="Resume a run that `crew run --store FILE` saved. Committed steps are not repeated.",
        epilog=f"{EXIT_CODES_HELP} Example: crew resume crew.py RUN --store runs.db --answer yes",
    )
    _add_target(parser)
    parser.add_argument("run_id", help="the id of the run")
    parser.add_argument(
        "--answer",
        action="append",
        default=[],
        metavar="PAUSE=ANSWER",
        help="the answer to a pause; can be repeated; PAUSE= can be omitted if only one pause is pending. "
        + ANSWERS_HELP,
    )
    parser.add_argument(
        "--strict", action="store_true", help="refuse to resume if the crew changed since the run was started"
    )
    parser.add_argument(
        "--take-over", action="store_true", help="take the run from another process that is still running it"
    )
    _add_settings(parser, store_help="the SQLite file that holds the run (required)")
    _add_output_options(parser)
    # A run keeps the limits of its start.
    parser.set_defaults(function="crew.cli.run_command:resume_command", rounds=None)


def _add_cancel_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew cancel`."""
    parser = subparsers.add_parser(
        "cancel",
        help="cancel a run that is under way, paused, interrupted or killed",
        description="Cancel a run that `crew run --store FILE` saved: it is finished and can't be resumed. "
        "If another process runs it, that process stops it within a second, and the command waits for it.",
        epilog="Exit codes: 0 cancelled, 1 failed, 2 wrong usage. Example: crew cancel crew.py RUN --store runs.db",
    )
    _add_target(parser)
    parser.add_argument("run_id", help="the id of the run")
    _add_settings(parser, store_help="the SQLite file that holds the run (required)")
    parser.set_defaults(function="crew.cli.run_command:cancel_command", rounds=None)


def _add_settings(parser: argparse.ArgumentParser, *, store_help: str) -> None:
    """Declare the settings of the executor."""
    parser.add_argument("--config", metavar="FILE", help="executor settings, in the format of config.yaml")
    parser.add_argument("--store", metavar="FILE", help=f"{store_help}; default: `store` of the configuration file")
    parser.add_argument(
        "--max-messages", type=int, metavar="N", help="max_messages_per_request: the bound of the history (default 50)"
    )
    parser.add_argument(
        "--history", metavar="POLICY", help="history policy, such as head_tail or rolling:limit=40 (default rolling)"
    )


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that `crew run` and `crew resume` share."""
    parser.add_argument("--quiet", action="store_true", help="print only the answer")
    parser.add_argument("--stream", action="store_true", help="print the reply while the model generates it")
    parser.add_argument(
        "--trace", action="store_true", help="print the span tree at the end: time, tokens, cost, prunings"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of the answer")
    parser.add_argument("--record", metavar="FILE", help="write the transcript to this file, for `crew simulate`")


def _add_show_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew show`."""
    parser = subparsers.add_parser(
        "show",
        help="print a crew's graph in Mermaid",
        description="Check a crew and print its graph in Mermaid, which GitHub and many editors render.",
        epilog="Example: crew show examples/demo.py > crew.mmd",
    )
    _add_target(parser)
    parser.set_defaults(function="crew.cli.show_command:show_command")


def _add_simulate_parser(subparsers: Subparsers) -> None:
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


def _add_store_parsers(subparsers: Subparsers) -> None:
    """Declare the commands that read stored runs, or erase them."""
    runs = _add_store_parser(subparsers, "runs", "list the stored runs", "List the runs of a store, newest first.")
    runs.add_argument("--crew", help="only runs of this crew")
    runs.add_argument(
        "--status", help="only runs with this status: running, paused, failed, completed, limit or cancelled"
    )
    runs.add_argument("--conversation", metavar="ID", help="only runs of this conversation")
    runs.add_argument("--limit", type=int, default=20, metavar="N", help="runs on one page (default 20)")
    runs.add_argument("--cursor", help="the next page, as the page before printed it")
    runs.add_argument("--json", action="store_true", help="print a JSON list")
    transcript = _add_store_parser(
        subparsers,
        "transcript",
        "print every message of a run",
        "Print every message of a run and of its branches, and which of them the newest request of an agent left out.",
    )
    transcript.add_argument("run_id", help="the id of the run")
    transcript.add_argument("--full", action="store_true", help="print whole messages instead of their first line")
    explain = _add_store_parser(
        subparsers,
        "explain",
        "explain what a request held, and why",
        "Explain a request: which messages it held, which were masked, summarised or evicted and by which rule, what "
        "moved the prefix, and the tokens.",
    )
    explain.add_argument("run_id", help="the id of the run")
    explain.add_argument("--request", type=int, metavar="N", help="the number of the request (default: the last one)")
    trace = _add_store_parser(
        subparsers, "trace", "print the span tree of a run", "Print the span tree of a stored run: time, tokens, cost."
    )
    trace.add_argument("run_id", help="the id of the run")
    export = _add_store_parser(
        subparsers,
        "export",
        "print runs as JSON lines",
        "Print a run, or all runs, as JSON lines: one for the run, each message and each event.",
    )
    export.add_argument("run_id", nargs="?", help="the id of the run (default: all runs)")
    forget = _add_store_parser(
        subparsers,
        "forget",
        "erase a run or a conversation",
        "Erase a run or a conversation: its messages, events and index entries, also from the bytes of the file.",
    )
    forget.add_argument("id", help="the id of the run or conversation")


def _add_store_parser(subparsers: Subparsers, name: str, help: str, description: str) -> argparse.ArgumentParser:
    argument = {"runs": "", "forget": " RUN", "export": " RUN > run.jsonl"}.get(name, " RUN")
    example = f"crew {name} --store runs.db{argument}"
    parser = subparsers.add_parser(name, help=help, description=description, epilog=f"Example: {example}")
    parser.add_argument("--store", required=True, metavar="FILE", help="the SQLite file that holds the runs")
    parser.set_defaults(function=f"crew.cli.store_commands:{name}_command")
    return parser
