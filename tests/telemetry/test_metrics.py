"""The figures of an executor, in the process and exported, are the same numbers."""

from collections.abc import Callable

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from crew import Agent, Crew, CrewExecutor, Limits, ScriptedProvider, call, tool
from crew.interfaces import ModelReply, ModelRequest
from crew.messages import Usage
from crew.telemetry import Telemetry
from crew.telemetry.names import METRICS


def exported(reader: InMemoryMetricReader) -> dict[str, list]:
    data = reader.get_metrics_data()
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


async def test_executor_metrics_say_what_the_runs_came_to(support: Callable[..., Crew]) -> None:
    """Messages pruned, sizes before and after, tokens, tools: as the results say."""
    executor = CrewExecutor(support(), max_messages_per_request=10)
    results = [await executor.execute("Go") for _ in range(2)]
    figures = executor.metrics()
    assert figures["crew.history.messages_pruned"].total == sum(r.metrics.messages_pruned for r in results)
    sizes = figures["crew.history.size"]
    assert sizes.count == 2 * sum(r.metrics.prunings for r in results)
    assert (sizes.minimum, sizes.maximum) == (5, 11)
    total = sum(r.usage.total_tokens for r in results)
    assert figures["gen_ai.client.token.usage"].total == total
    assert figures["gen_ai.execute_tool.duration"].count == 16
    assert figures["gen_ai.invoke_workflow.duration"].count == 2
    assert figures["crew.runs.active"].total == 0
    assert set(figures) == set(METRICS)


def test_every_metric_can_be_read_before_anything_was_measured() -> None:
    """Whoever asks for errors or cost needs not ask first whether there were any."""
    figures = CrewExecutor(Agent("a", model=ScriptedProvider("Done."))).metrics()
    assert set(figures) == set(METRICS)

    for name, figure in figures.items():
        assert (figure.count, figure.total, figure.minimum, figure.maximum, figure.mean) == (0, 0, 0, 0, 0)
        assert (figure.unit, figure.by_labels) == (METRICS[name].unit, {})


async def test_exported_metrics_are_the_same_numbers(support: Callable[..., Crew]) -> None:
    """An application's own MeterProvider gets what `executor.metrics()` shows."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    executor = CrewExecutor(support(), max_messages_per_request=10, telemetry=Telemetry(meter_provider=provider))
    await executor.execute("Go")
    points, figures = exported(reader), {name: f for name, f in executor.metrics().items() if f.count}
    assert set(points) == set(figures)

    for name, figure in figures.items():
        sums = sum(getattr(point, "sum", None) or getattr(point, "value", 0) for point in points[name])
        assert abs(sums - figure.total) < 1e-9, name


async def test_whoever_reads_in_the_middle_of_a_run_sees_what_was_measured_so_far() -> None:
    """Measurements wait to be told together, but never beyond a reading."""
    reader, seen = InMemoryMetricReader(), []
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)

    @tool(effect="read")
    async def look() -> str:
        """Look at the metrics."""
        seen.append(exported(reader))
        return "seen"

    agent = Agent("watcher", instructions="Look.", model=ScriptedProvider(call("look"), "Done."), tools=[look])

    for _ in range(2):  # whoever else uses the same provider
        await CrewExecutor(agent, telemetry=Telemetry(meter_provider=provider)).execute("Go")

    assert [[point.value for point in at["crew.runs.active"]] for at in seen] == [[1], [1]]
    assert sum(point.count for point in seen[0]["gen_ai.client.token.usage"]) == 2
    assert [point.value for point in exported(reader)["crew.runs.active"]] == [0]


class _Counting:
    """A meter that nobody reads."""

    told = 0

    def get_meter(self, name: str, version: str) -> "_Counting":
        return self

    def create_counter(self, name: str, **facts: object) -> "_Counting":
        return self

    create_histogram = create_up_down_counter = create_observable_counter = create_counter

    def add(self, value: float, attributes: object, context: object) -> None:
        self.told += 1

    record = add


async def test_a_long_run_that_nobody_reads_keeps_few_measurements_waiting() -> None:
    """Some hundred at most; with its end all are told."""
    meter, told_before_the_end = _Counting(), []

    def done(request: ModelRequest) -> str:
        told_before_the_end.append(meter.told)
        return "Done."

    script = [call("nothing", number=number) for number in range(300)]
    agent = Agent("caller", instructions="Call.", model=ScriptedProvider(*script, done))
    executor = CrewExecutor(agent, telemetry=Telemetry(meter_provider=meter), limits=Limits(rounds=400))
    await executor.execute("Go")
    all_ = sum(figure.count for figure in executor.metrics().values())
    assert all_ > 1_000
    assert meter.told == all_
    assert told_before_the_end[0] > all_ - 600


async def test_money_cache_and_limits_are_measured() -> None:
    """Cost where it is known, the part that came from the cache, how much of a limit was used."""
    usage = Usage(requests=1, input_tokens=1000, output_tokens=10, cache_read_tokens=800, cost=0.02)
    agent = Agent(
        "a", model=ScriptedProvider(ModelReply(calls=(call("x"),), usage=usage), ModelReply(text="b", usage=usage))
    )
    executor = CrewExecutor(agent, limits=Limits(rounds=4, cost_usd=0.1))
    await executor.execute("Go")
    figures = executor.metrics()
    assert figures["crew.cost.usd"].total == 0.04
    assert figures["crew.cache.read_ratio"].mean == 0.8
    used = {
        dict(labels)["crew.limit"]: figure.total
        for labels, figure in figures["crew.limit.utilisation"].by_labels.items()
    }
    assert used == {"rounds": 0.5, "cost_usd": pytest.approx(0.4)}
    assert figures["crew.tool.errors"].total == 1
    assert figures["crew.history.utilisation"].maximum == 3 / 50


async def test_names_that_a_model_makes_up_do_not_become_series() -> None:
    """A thousand unknown tools are one series."""
    script = [[call(f"made_up_{n}_{m}") for m in range(5)] for n in range(5)]
    executor = CrewExecutor(Agent("a", model=ScriptedProvider(*script, "Done.")))
    await executor.execute("Go")
    errors = executor.metrics()["crew.tool.errors"]
    assert (errors.total, len(errors.by_labels)) == (25, 1)
