"""The providers that an executor's agents name, each made once and closed together."""

from __future__ import annotations

from collections.abc import Callable

from crew.doors import Provider
from crew.errors import DefinitionError, nearest
from crew.providers.scripted import ScriptedProvider

MAKERS: dict[str, Callable[[str], Provider]] = {
    "scripted": lambda text: ScriptedProvider(lambda request: text, model=f"scripted:{text}"),
}


class Pool:
    """Makes a provider for a name such as `openai:gpt-5-mini`; hands a ready one back as it is."""

    def __init__(self) -> None:
        self._made: dict[str, Provider] = {}

    def check(self, model: str | Provider) -> None:
        """Whether there is a provider for this, without making it."""
        if not isinstance(model, str):
            return

        kind, found, name = model.partition(":")

        if not found or kind not in MAKERS or not name:
            raise DefinitionError(
                f"Model {model!r}",
                "a model is written as provider:name, such as 'openai:gpt-5-mini', or is a provider such as "
                f"ScriptedProvider('Hello'). {nearest(kind, MAKERS)}",
            )

    def get(self, model: str | Provider) -> Provider:
        """The provider behind a model's name."""
        if not isinstance(model, str):
            return model

        if model not in self._made:
            self.check(model)
            kind, _, name = model.partition(":")
            self._made[model] = MAKERS[kind](name)

        return self._made[model]

    async def aclose(self) -> None:
        """Close what was made here; the next run makes it anew."""
        made, self._made = self._made, {}

        for provider in made.values():
            if close := getattr(provider, "aclose", None):
                await close()
