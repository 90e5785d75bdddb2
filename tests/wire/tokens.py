"""Token counts: o200k if rs-bpe is installed, else an approximation of it.

The approximation, calibrated on o200k: a Latin word is one token for each nine letters, digits go by threes, a run of
punctuation by threes, a single space is free and any other white space is one token; Han 0.8, Kana 0.75, Hangul 0.8 a
character; an emoji code point 2; other alphabets one token for each three letters.
"""

import importlib
import re
from collections.abc import Callable
from functools import lru_cache

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
