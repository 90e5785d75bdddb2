"""Connects commands to a Temporal server: `--temporal HOST:PORT`."""

from __future__ import annotations

import argparse
import re
from functools import cache
from typing import Any

from crew import temporal
from crew.agents.crew import Crew
from crew.cli.temporal_log import connection_problem, printed_logger
from crew.errors import DefinitionError, describe
from crew.executor import CrewExecutor

_ADDRESS = re.compile(r"(\[[^\s/\]]+\]|[^\s/:]+):[0-9]{1,5}")
DEFAULT_NAMESPACE = "default"


async def connect(args: argparse.Namespace) -> Any:
    """A client of the server, whose namespace exists.

    TLS, API key and namespace come from the environment and the configuration file of Temporal's own tools; the options
    of the command override them.
    """
    try:
        from temporalio.client import Client
        from temporalio.envconfig import ClientConfig
        from temporalio.service import RPCError
    except ImportError as error:
        text = f"needs the extra temporal: pip install 'crew-executor[temporal]' ({error})"
        raise DefinitionError("--temporal", text) from error

    if not _ADDRESS.fullmatch(args.temporal):
        raise DefinitionError("--temporal", f"must be HOST:PORT, such as 127.0.0.1:7233, not {args.temporal!r}")

    try:
        settings: dict[str, Any] = {**ClientConfig.load_client_connect_config(), "target_host": args.temporal}
    except (RuntimeError, ValueError, OSError) as error:
        text = f"Temporal's settings in the environment (TEMPORAL_…) or in its file are wrong: {describe(error)}"
        raise DefinitionError("--temporal", text) from error

    settings["namespace"] = args.namespace or settings.get("namespace") or DEFAULT_NAMESPACE

    try:
        client = await Client.connect(**settings, runtime=_runtime(prints_log=not args.quiet))
        await _check_namespace(client)
    except (RuntimeError, ValueError, RPCError) as error:
        reason = connection_problem(describe(error)) or describe(error).rstrip(".")
        secured = " with TLS, as TEMPORAL_… or Temporal's file ask for" if settings.get("tls") else ""
        text = f"can't connect to {args.temporal!r}{secured}: {reason}. Is the server running?"
        raise DefinitionError("--temporal", text) from error

    return client


@cache
def _runtime(*, prints_log: bool) -> Any:
    """The runtime of the SDK, with its threads; its core sends its log to the logger of the Python part."""
    from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig

    if not prints_log:
        return Runtime(telemetry=TelemetryConfig(logging=None))

    config = LoggingConfig(filter=LoggingConfig.default.filter, forwarding=LogForwardingConfig(printed_logger()))
    return Runtime(telemetry=TelemetryConfig(logging=config))


async def _check_namespace(client: Any) -> None:
    """Raise `DefinitionError` if the server does not have the namespace: a worker would wait for work for ever."""
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
    from temporalio.service import RPCError, RPCStatusCode

    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as error:
        if error.status == RPCStatusCode.PERMISSION_DENIED:
            return  # the client may use the namespace, and not look at it

        if error.status != RPCStatusCode.NOT_FOUND:
            raise

        text = f"the server has no namespace {client.namespace!r}; `temporal operator namespace create` creates one"
        raise DefinitionError("--namespace", text) from error


def check_unused(args: argparse.Namespace) -> None:
    """Raise `DefinitionError` for options that have no effect without `--temporal`."""
    for option, value in {"--namespace": args.namespace, "--task-queue": args.task_queue}.items():
        if value is not None and args.temporal is None:
            raise DefinitionError(option, "has no effect without --temporal")


async def temporal_executor(
    crew: Crew, args: argparse.Namespace, config: str | None, options: dict[str, Any]
) -> CrewExecutor:
    """An executor whose runs the workers of the server drive."""
    if args.location is None:
        raise DefinitionError("--store", "required with --temporal: workers and clients share the store")

    chosen = {"client": await connect(args), "task_queue": args.task_queue, **options}

    if config is None:
        return temporal.TemporalExecutor(crew=crew, **chosen)

    return temporal.TemporalExecutor.from_config(config, crew, **chosen)
