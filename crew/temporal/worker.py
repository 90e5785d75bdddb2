"""`CrewWorker`: runs the workflows and activities of a crew in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from temporalio.client import Client
from temporalio.worker import Worker

from crew.agents.agent import Agent
from crew.agents.crew import Crew
from crew.errors import DefinitionError
from crew.runs.interfaces import EffectRecords, EffectStore, RunReader, RunStore
from crew.store import SQLiteStore
from crew.store.location import StoreLocation
from crew.temporal.activities import CrewActivities
from crew.temporal.record_codec import CachedRecords, ReferenceCodec
from crew.temporal.runtime import WorkerRuntime
from crew.temporal.workflow import CrewRunWorkflow, RuntimeInterceptor

STICKY_SECONDS = 1.0
"""How long a workflow waits for the worker that has it in memory, before another worker takes it."""

HEARTBEAT_SECONDS = 0.2
"""The shortest interval between two heartbeats. Activities send four within their timeout. Temporal's worker would hold
them back for 80 % of it, so that a delay of the other 20 % would count as a lost worker."""


def default_task_queue(crew: Crew | Agent) -> str:
    """The task queue of a crew, unless another one is given."""
    return f"crew-{crew.name}"


def records_of(store: RunStore, subject: str) -> CachedRecords:
    """The effect records of a store; `DefinitionError` if other processes can't read them."""
    in_memory = isinstance(store, SQLiteStore) and store.is_in_memory

    if in_memory or not isinstance(store, EffectStore) or not isinstance(store, RunReader):
        found = "':memory:'" if in_memory else type(store).__name__
        text = f"store: workers and clients share the store, and {found} can't be shared; "
        raise DefinitionError(subject, f"{text}use store='postgresql://…', or on one machine store='runs.db'")

    return CachedRecords(store.effects())


def with_references(client: Client, records: EffectRecords) -> Client:
    """The client with a codec that resolves references to records; its own codec stays."""
    config = client.config()
    converter = config["data_converter"]
    codec = ReferenceCodec(records, converter.payload_codec)
    config["data_converter"] = replace(converter, payload_codec=codec)
    return Client(**config)


def _check(options: dict[str, Any]) -> None:
    check_concurrency("CrewWorker", options)

    if "observers" in options:
        raise DefinitionError("CrewWorker", "observers: pass them to TemporalExecutor, which gets every event once")


def check_concurrency(owner: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that has no effect here: the workers decide how much they do at once."""
    if options.get("max_concurrent_runs") is not None:
        advice = 'CrewWorker(…, worker_options={"max_concurrent_activities": …}) limits the work of each worker'
        raise DefinitionError(owner, f"max_concurrent_runs has no effect on Temporal: {advice}")


class CrewWorker:
    """Takes runs of a crew from a task queue, drives them, and performs their effects.

    `options` are those of `CrewExecutor`: the same as for the `TemporalExecutor` that starts the runs. Any number of
    workers may share a task queue; they must share the store too. Options of Temporal's worker, such as
    `max_concurrent_activities`, are in `worker_options`.
    """

    def __init__(
        self,
        client: Client,
        crew: Crew | Agent,
        *,
        store: RunStore | StoreLocation,
        task_queue: str | None = None,
        worker_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        _check(options)
        self._set_up(client, WorkerRuntime(crew, store=store, **options), task_queue, worker_options or {})

    @classmethod
    def from_config(
        cls,
        client: Client,
        path: str | Path,
        crew: str | Crew | Agent,
        *,
        task_queue: str | None = None,
        worker_options: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Self:
        """A worker with the settings of a configuration file; see `CrewExecutor.from_config`."""
        _check(changes)
        made = cls.__new__(cls)
        made._set_up(client, WorkerRuntime.from_config(path, crew, **changes), task_queue, worker_options or {})
        return made

    def _set_up(
        self, client: Client, runtime: WorkerRuntime, task_queue: str | None, worker_options: dict[str, Any]
    ) -> None:
        self._runtime = runtime
        records = records_of(runtime.store, "CrewWorker")
        self.task_queue = task_queue or default_task_queue(runtime.plan.crew)
        defaults: dict[str, Any] = {
            "sticky_queue_schedule_to_start_timeout": timedelta(seconds=STICKY_SECONDS),
            "graceful_shutdown_timeout": timedelta(seconds=30),
            "max_heartbeat_throttle_interval": timedelta(seconds=HEARTBEAT_SECONDS),
        }
        self._worker = Worker(
            with_references(client, records),
            task_queue=self.task_queue,
            workflows=[CrewRunWorkflow],
            activities=CrewActivities(self._runtime, records).all,
            interceptors=[RuntimeInterceptor(self._runtime)],
            **{**defaults, **worker_options},
        )

    async def run(self) -> None:
        """Work until `shutdown` is called, or this task is cancelled."""
        try:
            await self._worker.run()
        finally:
            await self._runtime.aclose()

    async def shutdown(self) -> None:
        """Take no further work, and wait for the effects under way."""
        await self._worker.shutdown()

    async def __aenter__(self) -> Self:
        await self._worker.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._worker.__aexit__(None, None, None)
        await self._runtime.aclose()
