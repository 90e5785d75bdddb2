"""How texts name a server, by its URL or command, without credentials; and which values are credentials."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

HIDDEN = "***"
LONGEST_COMMAND = 200

_WORD_END = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SENSITIVE_WORD = re.compile(
    # Also at the end of a word, as in PGPASSWORD and AUTHTOKEN.
    r"(?:[a-z]*(?:password|passwd|passphrase|secret|token|credential)"
    r"|(?:api|access|account|auth|private|secret|ssh)?key|(?:ssh)?pass|pwd"
    r"|o?auth|authorization|authentication|bearer|cookie)s?",
    re.IGNORECASE,
)


def is_sensitive(name: str) -> bool:
    """Whether a header, variable, option or parameter of this name holds a credential.

    Whole words count: API_KEY, apiKey and X-Api-Key, but neither KEYBOARD nor GIT_AUTHOR_NAME.
    """
    return any(_SENSITIVE_WORD.fullmatch(word) for word in _WORD_END.split(name))


def url_text(url: str) -> str:
    """The URL without user, password, query and fragment."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def command_text(command: Sequence[str]) -> str:
    """The command without the values of sensitive options, and not longer than a few lines."""
    text = shlex.join(shown for shown, _ in _split_arguments(command))
    return text if len(text) <= LONGEST_COMMAND else f"{text[: LONGEST_COMMAND - 1]}…"


def url_secrets(url: str) -> list[str]:
    """The credentials in a URL."""
    parts = urlsplit(url)
    given = [value for name, value in parse_qsl(parts.query) if is_sensitive(name)]
    return [*given, *([unquote(parts.password)] if parts.password else [])]


def command_secrets(command: Sequence[str]) -> list[str]:
    """The values of sensitive options of a command."""
    return [secret for _, secret in _split_arguments(command) if secret]


def _split_arguments(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each argument as it may be shown, and the secret that was left out: of `--token=x`, `--token x` and `TOKEN=x`."""
    is_value = False

    for index, argument in enumerate(command):
        name, equals, value = argument.partition("=")

        if is_value and not argument.startswith("-"):
            yield HIDDEN, argument
        elif index and equals and is_sensitive(name):
            yield f"{name}={HIDDEN}", value
        else:
            yield argument, ""

        is_value = bool(index) and argument.startswith("-") and not equals and is_sensitive(name)
