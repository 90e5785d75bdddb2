"""Token counts: o200k if rs-bpe is installed, else an approximation of it.

The approximation, calibrated on o200k: a Latin word is one token for each nine letters, digits go by threes, a run of
punctuation by threes, a single space is free and any other white space is one token; Han 0.8, Kana 0.75, Hangul 0.8 a
character; an emoji code point 2; other alphabets one token for each three letters.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from tests.wire.model import Json

_RUNS = re.compile(
    r"(?P<latin>[A-Z]?[a-z]+|[A-Z]+)|(?P<space>\s+)|(?P<digit>[0-9]+)|(?P<han>[\u3400-\u9fff]+)|(?P<kana>[\u3040-\u30ff]+)"
    r"|(?P<hangul>[\uac00-\ud7af]+)|(?P<emoji>[\U0001f000-\U0001faff\u2600-\u27bf\u200d\ufe0f]+)"
    r"|(?P<letters>[^\W\d_]+)|(?P<mark>[^\w\s]+|.)",
    re.DOTALL,
)
_SHARES = {"han": 80, "kana": 75, "hangul": 80, "emoji": 200, "letters": 34, "digit": 34, "mark": 34}


def approximate(text: str) -> int:
    """Count by the approximation above; at least one token for a non-empty text."""
    total = 0
    for run in _RUNS.finditer(text):
        kind, length = run.lastgroup or "mark", run.end() - run.start()
        if kind == "latin":
            total += 1 + (length - 1) // 9
        elif kind == "space":
            total += 0 if length == 1 and run.group() == " " else 1
        else:
            total += -(-length * _SHARES[kind] // 100)
    return max(total, 1) if text else 0


def _exact() -> Callable[[str], int] | None:
    try:
        encoder = importlib.import_module("rs_bpe.bpe").openai.o200k_base()
        encoder.count("a")
    except (ImportError, AttributeError):
        return None
    count: Callable[[str], int] = encoder.count
    return count


_counter: Callable[[str], int] = _exact() or approximate


@lru_cache(maxsize=65_536)
def count(text: str) -> int:
    """Count the tokens of a text; cached, since every request repeats the history."""
    return _counter(text)


_DIGITS, _MARKS = re.compile(r"[0-9]{2,}"), re.compile(r"[^\w\s]{2,}")


@lru_cache(maxsize=65_536)
def count_dense(text: str) -> int:
    """Count by a tokenizer that splits numbers into digits, and runs of punctuation into pairs.

    The documentation of Claude's newer tokenizer states 1.0 to 1.35 times the tokens, by the kind of text. That prose
    has the fewest, and code and data the most, is an assumption.
    """
    more = sum(len(run) - -(-len(run) // 3) for run in _DIGITS.findall(text))
    more += sum((len(run) - 1) // 2 for run in _MARKS.findall(text))
    return min(count(text) + more, int(count(text) * 1.35))


def count_openai_tools(tools: Sequence[Json], counter: Callable[[str], int] = count) -> int:
    """Count function tools of Chat or Responses by the formula in OpenAI's cookbook, "How to count tokens"."""
    return sum(_count_function(tool.get("function") or tool, counter) for tool in tools) + (12 if tools else 0)


def _count_function(function: Json, counter: Callable[[str], int]) -> int:
    description = str(function.get("description") or "").removesuffix(".")
    properties = _count_properties(function.get("parameters") or {}, counter)
    return 7 + counter(f"{function['name']}:{description}") + properties


def _count_properties(schema: Json, counter: Callable[[str], int]) -> int:
    """Count the properties of an object; nested objects count alike, which the formula leaves open."""
    properties = schema.get("properties") or {}
    total = 3 if properties else 0
    for name, value in properties.items():
        kind, description = value.get("type", "any"), str(value.get("description") or "").removesuffix(".")
        total += 3 + counter(f"{name}:{kind}:{description}") + _count_properties(value, counter)
        if "enum" in value:
            total += sum(3 + counter(str(item)) for item in value["enum"]) - 3
    return total


def count_schema(dumped: str) -> int:
    """Count a schema as JSON: the model sees its keys, but not most of its punctuation.

    With Anthropic's tool prompt, its documented example of 403 tokens becomes 404.
    """
    return count(dumped) * 3 // 4 + 8
