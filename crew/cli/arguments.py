"""Declares the arguments of all commands; imports nothing that takes time, so that `crew --help` is fast."""

from __future__ import annotations

import argparse
from typing import TypeAlias

from crew.cli.mcp_arguments import add_mcp_options
from crew.cli.serve_arguments import add_serve_options, port
from crew.cli.simulate_arguments import add_simulate_parser
from crew.run_ids import RUN_ID_RULE, is_run_id

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The parameter of the functions that declare a subcommand; argparse has no public name for its type."""

TARGET_HELP = (
    "a Python file (FILE.py or FILE.py:name), a module (module:name), or a configuration file (FILE.yaml:crew); "
    "the name is that of a crew, an agent or a CrewExecutor, which keeps its own settings"
)

ACCEPTED_ANSWERS = {
    "input": "a text",
    "question": "a text",
    "approval": "yes, no, edit, or a reason for refusing",
    "in_doubt": "run again, skip, or done=RESULT",
    "consent": "yes, no, or a reason for refusing",
}
"""The answers to a pause by its reason, as the prompt, the help and the errors list them."""

RUN_STATUSES = ("running", "interrupted", "paused", "failed", "completed", "limit", "stopped", "cancelled")

EXIT_CODES_HELP = (
    "Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 paused without a terminal to answer, 4 limit reached, "
    "5 ended by a tool or a guardrail, 130 Ctrl-C, 143 SIGTERM."
)
ANSWERS_HELP = (
    f'For an approval or a consent: {ACCEPTED_ANSWERS["approval"]} (edit {{"amount": 5}} runs the '
    f"call with another amount). For a call that may have run before the process ended: "
    f"{ACCEPTED_ANSWERS['in_doubt']}. For a question: the text."
)


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
    _add_serve_parser(subparsers)
    _add_mcp_parser(subparsers)
    _add_resume_parser(subparsers)
    _add_cancel_parser(subparsers)
    _add_worker_parser(subparsers)
    _add_show_parser(subparsers)
    _add_check_parser(subparsers)
    add_simulate_parser(subparsers)
    _add_inspect_parser(subparsers)
    _add_store_parsers(subparsers)

    for subparser in subparsers.choices.values():
        subparser.set_defaults(subparser=subparser)

    return parser


class _PrintVersion(argparse.Action):
    """Like the action "version", but reads the metadata of the distribution only if it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(version("crew-executor"))
        parser.exit()


def _id(text: str) -> str:
    """The type of arguments that name a run or a conversation."""
    if not is_run_id(text):
        raise argparse.ArgumentTypeError(f"an id must be {RUN_ID_RULE}, not {text!r}")

    return text


def _run_id(text: str) -> str:
    run, slash, _ = text.partition("/")

    if slash and is_run_id(run):
        raise argparse.ArgumentTypeError(f"{text!r} is a branch, which is part of its run: pass {run!r}")

    return _id(text)


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
    parser.add_argument("--model", metavar="NAME", help="the model of all agents, such as openai:gpt-5-mini")
    parser.add_argument("--rounds", type=int, metavar="N", help="maximum number of model calls (default 200)")
    _add_metadata(parser, "store this value with the run")
    _add_settings(
        parser, store_help="save the run in this SQLite file or postgresql:// database, so that it can be resumed"
    )
    _add_temporal_options(parser, "run the crew on the workers of this Temporal server")
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
    parser.add_argument("--conversation", type=_id, metavar="ID", help="continue this stored conversation, or begin it")
    parser.add_argument("--agent", help="the agent of the first turn (default: the one that answered last)")
    parser.add_argument("--model", metavar="NAME", help="the model of all agents, such as openai:gpt-5-mini")
    parser.add_argument("--rounds", type=int, metavar="N", help="maximum number of model calls a turn (default 200)")
    _add_metadata(parser, "store this value with each turn")
    parser.add_argument("--quiet", action="store_true", help="print only the answers")
    _add_settings(parser, store_help="keep the conversation in this SQLite file or postgresql:// database")
    parser.set_defaults(function="crew.cli.chat_command:chat_command")


def _add_serve_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew serve`."""
    parser = subparsers.add_parser(
        "serve",
        help="serve crews over HTTP",
        description="Serve a crew, or all crews of a configuration file, over HTTP. Prints an address with a token for "
        "the browser, which is valid once. Ctrl-C ends the service; its runs can be resumed.",
        epilog="Example: crew serve examples/support.py --store runs.db",
    )
    _add_target(parser)
    add_serve_options(parser)
    _add_settings(parser, store_help="keep the runs in this SQLite file or PostgreSQL database (default: in memory)")
    _add_temporal_options(parser, "drive the runs on the workers of this Temporal server")
    parser.set_defaults(function="crew.cli.serve_command:serve_command", rounds=None, quiet=False)


def _add_mcp_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew mcp`."""
    parser = subparsers.add_parser(
        "mcp",
        help="serve crews as an MCP server",
        description="Offer each crew as a tool of an MCP server, over stdin and stdout or over HTTP. The events of a "
        "run are reported as progress. Where the run pauses, the user of the client is asked, if the client can do so.",
        epilog="Example: crew mcp examples/support.py --http --port 8001",
    )
    _add_target(parser)
    add_mcp_options(parser)
    _add_settings(
        parser,
        store_help="save the runs in this SQLite file or postgresql:// database, to answer paused ones later",
    )
    parser.set_defaults(function="crew.cli.mcp_command:mcp_command", rounds=None, quiet=False)


def _add_resume_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew resume`."""
    parser = subparsers.add_parser(
        "resume",
        help="resume a run that was paused, interrupted or killed",
        description="Resume a run that `crew run --store FILE` saved. Committed steps are not repeated.",
        epilog=f"{EXIT_CODES_HELP} Example: crew resume crew.py RUN --store runs.db --answer yes",
    )
    _add_target(parser)
    parser.add_argument("run_id", type=_run_id, help="the id of the run")
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
    _add_settings(parser, store_help="the SQLite file or postgresql:// URL that holds the run (required)")
    _add_temporal_options(parser, "the Temporal server on which the run is")
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
    parser.add_argument("run_id", type=_run_id, help="the id of the run")
    _add_settings(parser, store_help="the SQLite file or postgresql:// URL that holds the run (required)")
    _add_temporal_options(parser, "the Temporal server on which the run is")
    parser.set_defaults(function="crew.cli.run_command:cancel_command", rounds=None)


def _add_worker_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew worker`."""
    parser = subparsers.add_parser(
        "worker",
        help="drive runs of a crew on a Temporal server",
        description="Take runs of a crew from a Temporal server, drive them and perform their effects, until Ctrl-C. "
        "Any number of workers may run at the same time; they share the store.",
        epilog="Example: crew worker crew.py --temporal 127.0.0.1:7233 --store runs.db",
    )
    _add_target(parser)
    _add_settings(parser, store_help="the store that workers and clients share: PostgreSQL, or a file on one machine")
    _add_temporal_options(parser, "the Temporal server (required)")
    parser.set_defaults(function="crew.cli.worker_command:worker_command", rounds=None)


def _add_temporal_options(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--temporal", metavar="HOST:PORT", help=f"{help}; needs the extra temporal")
    parser.add_argument("--namespace", help="the namespace on the server (default: TEMPORAL_NAMESPACE, or default)")
    parser.add_argument("--task-queue", metavar="NAME", help="the task queue of the workers (default crew-NAME)")


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


def _add_check_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew check`."""
    parser = subparsers.add_parser(
        "check",
        help="check crews and list their agents, models, tools and MCP servers",
        description="Check the definition of crews, and list their agents, models and tools. MCP servers and other "
        "toolsets are opened, and their tools are listed; this runs the commands of the servers.",
        epilog="Exit codes: 0 all is well, 1 a toolset is not available or its tools changed, 2 the definition is "
        "wrong. Example: crew check config.yaml",
    )
    _add_target(parser)
    parser.add_argument("--offline", action="store_true", help="do not open MCP servers and other toolsets")
    parser.add_argument("--config", metavar="FILE", help="executor settings, in the format of config.yaml")
    parser.set_defaults(
        function="crew.cli.check_command:check_command",
        rounds=None,
        quiet=False,
        store=None,
        max_messages=None,
        history=None,
    )


def _add_inspect_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew inspect`."""
    parser = subparsers.add_parser(
        "inspect",
        help="show stored runs in the browser",
        description="Show the runs of a store in the browser, read-only: the timeline, the history of each request, "
        "tokens and costs. Prints an address with a token that is valid once. Ctrl-C ends it.",
        epilog="Example: crew inspect runs.db --open",
    )
    parser.add_argument("store", help="an SQLite file or a postgresql:// URL")
    parser.add_argument("--port", type=port, default=8700, help="the port (default 8700; 0: any free port)")
    parser.add_argument("--open", action="store_true", help="open the address in the browser")
    parser.add_argument(
        "--crew",
        metavar="TARGET",
        help="the crew of the runs, such as crew.py, whose constant instructions are then shown; nothing of it runs",
    )
    parser.set_defaults(function="crew.cli.inspect_command:inspect_command")


def _add_metadata(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument(
        "--metadata", action="append", default=[], metavar="KEY=VALUE", help=f"{help}, a text or JSON; repeatable"
    )


def _add_store_parsers(subparsers: Subparsers) -> None:
    """Declare the commands that read stored runs, or erase them."""
    runs = _add_store_parser(subparsers, "runs", "list the stored runs", "List the runs of a store, newest first.")
    runs.add_argument("--crew", help="only runs of this crew")
    runs.add_argument("--status", choices=RUN_STATUSES, metavar="STATUS", help=f"only {', '.join(RUN_STATUSES)} runs")
    runs.add_argument("--conversation", type=_id, metavar="ID", help="only runs of this conversation")
    _add_metadata(runs, "only runs with this value")
    runs.add_argument("--since", metavar="TIME", help="only runs updated since 2026-01-31 or 2026-01-31T18:30 (UTC)")
    runs.add_argument("--limit", type=int, default=20, metavar="N", help="runs on one page (default 20)")
    runs.add_argument("--cursor", help="the next page, as the page before printed it")
    runs.add_argument("--json", action="store_true", help="print a JSON list")
    transcript = _add_store_parser(
        subparsers,
        "transcript",
        "print every message of a run",
        "Print every message of a run and of its branches, and which of them the newest request of an agent left out.",
    )
    transcript.add_argument("run_id", type=_run_id, help="the id of the run, or of a conversation: its newest run")
    transcript.add_argument("--full", action="store_true", help="print whole messages instead of their first line")
    explain = _add_store_parser(
        subparsers,
        "explain",
        "explain what a request held, and why",
        "Explain a request: which messages it held, which were masked, summarised or evicted and by which rule, what "
        "moved the prefix, and the tokens.",
    )
    explain.add_argument("run_id", type=_run_id, help="the id of the run, or of a conversation: its newest run")
    explain.add_argument("--request", type=int, metavar="N", help="the number of the request (default: the last one)")
    trace = _add_store_parser(
        subparsers, "trace", "print the span tree of a run", "Print the span tree of a stored run: time, tokens, cost."
    )
    trace.add_argument("run_id", type=_run_id, help="the id of the run, or of a conversation: its newest run")
    export = _add_store_parser(
        subparsers,
        "export",
        "print runs as JSON lines",
        "Print a run, or all runs, as JSON lines: one for the run, each message and each event.",
    )
    export.add_argument("run_id", type=_run_id, nargs="?", help="the id of the run or conversation (default: all runs)")
    forget = _add_store_parser(
        subparsers,
        "forget",
        "erase a run or a conversation",
        "Erase a run or a conversation: its messages, events and index entries, also from the bytes of the file.",
    )
    forget.add_argument("id", type=_run_id, help="the id of the run or conversation")
    forget.add_argument(
        "--conversation", action="store_true", help="erase all runs of the conversation, also if a run has the same id"
    )


def _add_store_parser(subparsers: Subparsers, name: str, help: str, description: str) -> argparse.ArgumentParser:
    argument = {"runs": "", "forget": " RUN", "export": " RUN > run.jsonl"}.get(name, " RUN")
    example = f"crew {name} --store runs.db{argument}"
    parser = subparsers.add_parser(name, help=help, description=description, epilog=f"Example: {example}")
    parser.add_argument(
        "--store", required=True, metavar="FILE", help="the SQLite file or postgresql:// URL that holds the runs"
    )
    parser.set_defaults(function=f"crew.cli.store_commands:{name}_command")
    return parser
