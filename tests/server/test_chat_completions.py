"""The endpoint for OpenAI's chat clients, with the real SDK as the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from crew import Agent, Context, Crew, CrewExecutor, Limits, RunError, ScriptedProvider, call, tool
from crew.agents import GuardedCall, NeedsApproval, guardrail
from crew.errors import StoreError
from crew.interfaces import ModelRequest, ModelSettings
from crew.messages import UserMessage
from crew.providers import OpenAIChat
from crew.runs.events import TextDelta
from crew.server import ServerSettings, Token, app
from crew.store import MemoryStore
from tests.support.http_service import SECRET, bearer, client_of, secret_of, served, token
from tests.support.providers import RecordingProvider


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"Paid {amount}."


@asynccontextmanager
async def sdk(*executors: CrewExecutor, secret: str = SECRET, **settings: object) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client of a service for these executors."""
    async with client_of(executors, {}, **settings) as http:
        yield openai.AsyncOpenAI(api_key=secret, base_url="http://localhost/v1", http_client=http, max_retries=0)


def ask(*texts: str) -> list[ChatCompletionMessageParam]:
    """A conversation whose last message is the user's."""
    roles = ["user", "assistant"] * len(texts)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]  # type: ignore[misc]


def clerk(*lines: object, **options: object) -> CrewExecutor:
    """A crew with one agent and this script."""
    agent = Agent("clerk", model=ScriptedProvider(*lines), tools=[refund])
    return CrewExecutor(Crew("shop", agents=[agent]), **options)


async def test_each_crew_is_a_model() -> None:
    """The list has a model for each crew of the service; an unknown one is OpenAI's 404."""
    store = MemoryStore()
    crews = [
        CrewExecutor(Crew(name, agents=[Agent("one", model=ScriptedProvider("Hello."))]), store=store) for name in "ab"
    ]

    async with sdk(*crews) as client:
        assert [model.id async for model in client.models.list()] == ["a", "b"]
        assert (await client.models.retrieve("b")).owned_by == "crew"

        with pytest.raises(openai.NotFoundError) as error:
            await client.chat.completions.create(model="c", messages=ask("Hello"))

    assert error.value.code == "model_not_found"
    assert error.value.param == "model"


async def test_plain_and_streamed_answers_are_the_same_and_have_their_usage() -> None:
    """`usage` counts the tokens of the whole run; the pieces of a stream add up to the plain answer."""

    @tool
    async def look_up() -> str:
        """Look the order up."""
        while not made.state.crew.hub.readers:  # the reader connects before the pieces of the answer arrive
            await asyncio.sleep(0)

        return "Found."

    agent = Agent("clerk", model=ScriptedProvider(call("look_up"), "It left\nthe warehouse."), tools=[look_up])
    made = app(CrewExecutor(Crew("shop", agents=[agent])), ServerSettings(tokens=(Token.of(SECRET),)))

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(made)) as http:
        client = openai.AsyncOpenAI(api_key=SECRET, base_url="http://localhost/v1", http_client=http)
        plain = await client.chat.completions.create(model="shop", messages=ask("Where is it?"))
        stream = await client.chat.completions.create(
            model="shop", messages=ask("Where is it?"), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

    [choice] = plain.choices
    assert (choice.message.content, choice.finish_reason) == ("It left\nthe warehouse.", "stop")
    assert plain.usage is not None
    assert plain.usage.prompt_tokens > 0
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == choice.message.content
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 1
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == plain.usage.total_tokens


async def test_without_a_conversation_the_messages_of_the_client_are_the_history() -> None:
    """The service keeps nothing between two requests: each one has the whole history."""
    seen = RecordingProvider("Fine.", "Fine.")
    executor = CrewExecutor(Crew("shop", agents=[Agent("clerk", model=seen)]))

    async with sdk(executor) as client:
        await client.chat.completions.create(model="shop", messages=ask("My name is Ada.", "Hello Ada.", "Who am I?"))
        await client.chat.completions.create(model="shop", messages=ask("And now?"))

    assert [message.text for message in seen.requests[0].messages] == ["My name is Ada.", "Hello Ada.", "Who am I?"]
    assert [message.text for message in seen.requests[1].messages] == ["And now?"]


async def test_a_conversation_is_kept_by_the_service() -> None:
    """With X-Crew-Conversation only the newest message counts; what the client repeats is not matched or added."""
    seen = RecordingProvider("Hello Ada.", "You are Ada.")
    executor = CrewExecutor(Crew("shop", agents=[Agent("clerk", model=seen)]))
    headers = {"X-Crew-Conversation": "ada"}

    async with sdk(executor) as client:
        await client.chat.completions.create(model="shop", messages=ask("My name is Ada."), extra_headers=headers)
        repeated = ask("Something else.", "Invented.", "Who am I?")
        answer = await client.chat.completions.create(model="shop", messages=repeated, extra_headers=headers)

    assert answer.choices[0].message.content == "You are Ada."
    assert [message.text for message in seen.requests[1].messages] == ["My name is Ada.", "Hello Ada.", "Who am I?"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_pause_is_asked_as_text_and_the_next_message_answers_it(streamed: bool) -> None:
    """An approval in a conversation: the question is the answer of the model, and `yes` approves the call."""
    headers = {"X-Crew-Conversation": "ada"}

    async with sdk(clerk(call("refund", amount=80), "It is paid.")) as client:

        async def say(text: str) -> str:
            if not streamed:
                plain = await client.chat.completions.create(model="shop", messages=ask(text), extra_headers=headers)
                return plain.choices[0].message.content or ""

            stream = await client.chat.completions.create(
                model="shop", messages=ask(text), extra_headers=headers, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        question = await say("Refund 80, please.")
        assert "May clerk call refund?" in question
        assert "amount: 80" in question
        assert await say("yes") == "It is paid."


async def talk(executor: CrewExecutor, *texts: str) -> list[str]:
    """What the service says to each text of one conversation."""
    async with client_of(executor, bearer() | {"X-Crew-Conversation": "ada"}) as client:
        answers = [
            await client.post("/v1/chat/completions", json={"model": "shop", "messages": ask(text)}) for text in texts
        ]

    assert [answer.status_code for answer in answers] == [200] * len(texts), [answer.text for answer in answers]
    return [answer.json()["choices"][0]["message"]["content"] for answer in answers]


def result_text(request: ModelRequest) -> str:
    return request.messages[-1].results[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("Yes.", "Paid 80."),
        ("OK!", "Paid 80."),
        ("Okay", "Paid 80."),
        ("approved.", "Paid 80."),
        ("No.", "declined this call"),
        ("Refuse.", "declined this call"),
        ("No, that is too much.", "declined this call: No, that is too much."),
        ('edit {"amount": 5}', "Paid 5."),
    ],
)
async def test_a_plain_answer_approves_or_refuses(answer: str, result: str) -> None:
    """Case and punctuation do not count; `edit` changes arguments, as the question says."""
    question, said = await talk(clerk(call("refund", amount=80), result_text), "Refund 80.", answer)
    assert 'Answer yes, no, a reason for refusing, or edit {"argument": value}' in question
    assert result in said


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Yes, please.", "'Yes, please.' is ambiguous. Please answer yes or no, or give a reason to refuse."),
        ("ok but only half of it", "Please answer yes or no, or give a reason to refuse."),
        ("edit amount=5", "The changed arguments must be a JSON object"),
    ],
)
async def test_an_ambiguous_answer_is_asked_again(text: str, problem: str) -> None:
    """It neither refuses the call nor is it an error of the chat; the question follows once more."""
    question, again, done = await talk(clerk(call("refund", amount=80), "It is paid."), "Refund 80.", text, "yes")
    assert problem in again
    assert again.endswith(question)
    assert done == "It is paid."


async def test_a_text_that_is_none_of_the_choices_is_asked_again() -> None:
    """With the reason and the choices."""

    @tool(asks=True)
    async def choose(context: Context[None]) -> str:
        """Ask for a size."""
        return await context.ask_user("Which size?", choices=["small", "large"])

    agent = Agent("clerk", model=ScriptedProvider(call("choose"), result_text), tools=[choose])
    executor = CrewExecutor(Crew("shop", agents=[agent]))
    question, again, done = await talk(executor, "A shirt.", "medium", "2")
    assert question == "Which size?\n\n1. small\n2. large"
    assert again == f"'medium' is not one of the choices.\n\n{question}"
    assert done == "large"


async def test_the_question_of_a_guardrail_names_the_call_and_withholds_the_reply() -> None:
    """A question such as `Sure?` says nothing about the call; a reply is not published before it is accepted."""

    @guardrail("tool")
    def sure(context: Context[Any], given: GuardedCall) -> NeedsApproval:
        return NeedsApproval("Sure?")

    @tool
    def look_up() -> str:
        """Look something up."""
        return "Found."

    @guardrail("output")
    def publish(context: Context[Any], text: str) -> NeedsApproval:
        return NeedsApproval("Publish it?")

    model = ScriptedProvider(call("look_up"), "The draft.")
    agent = Agent("clerk", model=model, tools=[look_up], guardrails=[sure, publish])
    first, second, done = await talk(CrewExecutor(Crew("shop", agents=[agent])), "Hello.", "yes", "yes")
    assert first.startswith("clerk wants to call look_up: Sure?")
    assert second.startswith("Publish it?")
    assert "The draft." not in second
    assert done == "The draft."


async def test_a_pause_without_a_conversation_names_the_run_that_waits() -> None:
    """A stateless client can't answer: it learns which run waits, and the native API answers it."""
    async with sdk(clerk(call("refund", amount=80), "It is paid.")) as client:
        raw = await client.chat.completions.with_raw_response.create(model="shop", messages=ask("Refund 80."))
        run_id = raw.headers["x-crew-run"]
        text = raw.parse().choices[0].message.content or ""

    assert f"POST /runs/{run_id}/answers" in text


async def test_only_a_token_that_may_approve_answers_a_pause() -> None:
    """The scope `run` starts runs; the answer to a pause needs `approve`."""
    headers = {"X-Crew-Conversation": "ada"}
    tokens = (token("ada", "run", "read"),)

    async with sdk(clerk(call("refund", amount=80)), secret=secret_of("ada"), tokens=tokens) as client:
        await client.chat.completions.create(model="shop", messages=ask("Refund 80."), extra_headers=headers)

        with pytest.raises(openai.PermissionDeniedError):
            await client.chat.completions.create(model="shop", messages=ask("yes"), extra_headers=headers)


async def test_settings_of_the_client_override_those_of_the_agents() -> None:
    """temperature, max_tokens and stop apply to the run; what a crew can't do is refused with its name."""
    seen = RecordingProvider("Fine.")
    executor = CrewExecutor(
        Crew("shop", agents=[Agent("clerk", model=seen, settings=ModelSettings(temperature=1.0, seed=7))])
    )

    async with sdk(executor) as client:
        await client.chat.completions.create(
            model="shop", messages=ask("Hello"), temperature=0.2, max_completion_tokens=99, stop=["END"]
        )

        with pytest.raises(openai.UnprocessableEntityError) as error:
            await client.chat.completions.create(
                model="shop",
                messages=ask("Hello"),
                tools=[{"type": "function", "function": {"name": "f"}}],
            )

    settings = seen.requests[0].settings
    assert (settings.temperature, settings.max_output_tokens, settings.stop, settings.seed) == (0.2, 99, ("END",), 7)
    assert error.value.param == "tools"


async def test_bad_requests_are_refused_before_a_run_starts() -> None:
    """The last message must be the user's; an unknown token is 401."""
    async with sdk(clerk("Fine.")) as client:
        with pytest.raises(openai.UnprocessableEntityError, match="last message must be one of the user"):
            await client.chat.completions.create(model="shop", messages=ask("Hello", "Hi"))

        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

        with pytest.raises(openai.UnprocessableEntityError, match="has only images: add a text"):
            await client.chat.completions.create(model="shop", messages=[{"role": "user", "content": [image]}])

        with pytest.raises(openai.UnprocessableEntityError, match="Invalid input: n must be 1, not 2"):
            await client.chat.completions.create(model="shop", messages=ask("Hello"), n=2)

    async with sdk(clerk("Fine."), secret="wrong-secret-0123456789") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="shop", messages=ask("Hello"))


async def test_messages_that_can_not_fit_are_refused_with_the_reason() -> None:
    """System messages are never left out: more of them than a request may hold are an error of the client."""
    executor = CrewExecutor(Agent("shop", model=ScriptedProvider("Hello.")), max_messages_per_request=2)
    messages = [*({"role": "system", "content": str(n)} for n in range(5)), {"role": "user", "content": "Hi"}]

    async with client_of(executor) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "shop", "messages": messages})
        assert (answer.status_code, answer.json()["error"]["type"]) == (422, "context_overflow")
        assert "system" in answer.json()["error"]["message"]


async def test_a_failed_run_is_an_error_also_in_a_stream() -> None:
    """A run that fails answers 502; in a stream, the error follows the pieces that were sent."""
    async with sdk(clerk()) as client:
        with pytest.raises(openai.InternalServerError) as error:
            await client.chat.completions.create(model="shop", messages=ask("Hello"))

        assert error.value.status_code == 502
        stream = await client.chat.completions.create(model="shop", messages=ask("Hello"), stream=True)

        with pytest.raises(openai.APIError, match="failed"):
            [chunk async for chunk in stream]


def boom(request: object) -> str:
    raise RuntimeError("the model is down")


@asynccontextmanager
async def failing_shop() -> AsyncIterator[tuple[str, list[int]]]:
    """The address of a crew whose run fails after it has charged a card, and its charges."""
    charges: list[int] = []

    @tool
    def charge() -> str:
        """Charge the card."""
        charges.append(1)
        return "charged"

    agent = Agent("clerk", model=ScriptedProvider(call("charge"), boom), tools=[charge])

    async with served(CrewExecutor(Crew("shop", agents=[agent]))) as url:
        yield url, charges


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failed_run_is_not_executed_again_by_the_sdk(streamed: bool) -> None:
    """A retry would start another run, with the same effects: the answer forbids it."""
    async with failing_shop() as (url, charges), openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=SECRET) as client:
        assert client.max_retries > 0

        async def buy() -> None:
            answer = await client.chat.completions.create(model="shop", messages=ask("Buy."), stream=streamed)
            [chunk async for chunk in answer]  # type: ignore[union-attr]  # a failed answer has nothing to read

        with pytest.raises(openai.APIError, match="the model is down"):
            await buy()

        assert len(charges) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failed_run_is_not_executed_again_by_a_crew(streamed: bool) -> None:
    """The retries of Crew's own provider obey the answer too, also if the error comes at the end of a stream."""
    async with failing_shop() as (url, charges):
        remote = OpenAIChat("shop", base_url=f"{url}/v1", api_key=SECRET)

        async with CrewExecutor(Agent("front", model=remote)) as executor:
            with pytest.raises(RunError, match="the model is down"):
                await (executor.execute_stream("Buy.").drain() if streamed else executor.execute("Buy."))

        assert len(charges) == 1


async def test_every_error_after_the_start_of_a_run_forbids_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of the store, which is else an error that clients retry; a request that is refused may be sent again."""
    executor = clerk("Fine.")

    async with client_of(executor) as client:
        body = {"model": "shop", "messages": ask("Hello")}
        refused = await client.post("/v1/chat/completions", json=body | {"n": 2})
        assert "x-should-retry" not in refused.headers

        async def fail(*args: object, **options: object) -> None:
            raise StoreError("", "The disk is gone.")

        monkeypatch.setattr(type(executor.store), "events", fail)
        answer = await client.post("/v1/chat/completions", json=body)

    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")
    assert answer.headers["x-crew-run"]


async def test_a_pause_is_answered_through_its_own_crew() -> None:
    """`yes` to another model is no approval: the conversation belongs to the crew that asked."""
    store = MemoryStore()
    executors = [
        CrewExecutor(
            Crew(
                name, agents=[Agent("clerk", model=ScriptedProvider(call("refund", amount=1), "Paid."), tools=[refund])]
            ),
            store=store,
        )
        for name in ("one", "two")
    ]
    headers = bearer() | {"X-Crew-Conversation": "ada"}

    async with client_of(executors, headers) as client:
        await client.post("/v1/chat/completions", json={"model": "one", "messages": ask("Refund 1.")})
        other = await client.post("/v1/chat/completions", json={"model": "two", "messages": ask("yes")})
        assert other.status_code == 422
        assert "belongs to the crew 'one', not to 'two'" in other.json()["error"]["message"]
        own = await client.post("/v1/chat/completions", json={"model": "one", "messages": ask("yes")})
        assert own.json()["choices"][0]["message"]["content"] == "Paid."


async def test_null_is_the_default_and_impossible_numbers_are_refused() -> None:
    """Clients send null for a field that is not set; NaN and zero tokens are no settings of a model."""
    async with client_of(clerk("Fine.")) as client:

        async def send(fields: str) -> httpx2.Response:
            body = f'{{"model": "shop", "messages": [{{"role": "user", "content": "Hello"}}], {fields}}}'
            return await client.post("/v1/chat/completions", content=body)

        assert (await send('"n": null, "stream": null, "stream_options": {"include_usage": null}')).status_code == 200

        for fields in ('"temperature": NaN', '"top_p": Infinity', '"max_tokens": 0', '"max_completion_tokens": -1'):
            refused = await send(fields)
            assert refused.status_code == 422
            assert fields.split('"')[1] in refused.json()["error"]["message"]


async def test_a_limit_ends_the_answer_with_the_finish_reason_length() -> None:
    """A run that reaches a limit is an answer that was cut off."""

    @tool
    def look_up() -> str:
        """Look something up."""
        return "Found."

    agent = Agent("clerk", model=ScriptedProvider(call("look_up"), "Never reached."), tools=[look_up])
    executor = CrewExecutor(Crew("shop", agents=[agent]), limits=Limits(rounds=1))

    async with sdk(executor) as client:
        answer = await client.chat.completions.create(model="shop", messages=ask("Hello"))

    assert answer.choices[0].finish_reason == "length"


async def test_images_of_the_newest_message_reach_the_model() -> None:
    """A message with parts keeps its images."""
    seen = RecordingProvider("A cat.")
    executor = CrewExecutor(Crew("shop", agents=[Agent("clerk", model=seen)]))
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]

    async with sdk(executor) as client:
        await client.chat.completions.create(model="shop", messages=[{"role": "user", "content": parts}])  # type: ignore[misc, list-item]

    newest = seen.requests[0].messages[-1]
    assert isinstance(newest, UserMessage)
    assert [image.url for image in newest.images] == ["data:image/png;base64,AAAA"]


async def test_intermediate_replies_of_a_chain_are_not_part_of_the_answer() -> None:
    """The reply of an agent with `then` is not the answer; what is streamed is what the plain answer has."""
    critic = Agent("critic", model=ScriptedProvider("Good."))
    writer = Agent("writer", model=ScriptedProvider("A draft."), then=critic)
    executor = CrewExecutor(Crew("poets", agents=[writer, critic]))

    async with sdk(executor) as client:
        stream = await client.chat.completions.create(model="poets", messages=ask("Write."), stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert text == "Good."


@pytest.mark.parametrize("streamed", [False, True])
async def test_crew_itself_is_a_client(streamed: bool) -> None:
    """A crew behind the service is the model of an agent in another crew, with its usage."""
    async with served(clerk("It left the warehouse.")) as url:
        remote = OpenAIChat("shop", base_url=f"{url}/v1", api_key=SECRET)

        async with CrewExecutor(Agent("front", instructions="Answer.", model=remote)) as executor:
            if streamed:
                async with executor.execute_stream("Where is it?") as events:
                    pieces = [event.text async for event in events if isinstance(event, TextDelta)]

                result = events.result
                assert "".join(pieces) == result.output
            else:
                result = await executor.execute("Where is it?")

    assert result.output == "It left the warehouse."
    assert result.usage.input_tokens > 0
