"""Token counts: a fast estimate by script and kind of text, or exact ones by a tokenizer."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec
from typing import assert_never

from crew.interfaces import TokenCounter
from crew.messages import AssistantMessage, Message, SummaryMessage, SystemMessage, ToolMessage, UserMessage

TOKENS_PER_MESSAGE = 4
TOKENS_PER_CALL = 2
TOKENS_PER_IMAGE = 800

# A text with more characters than this share of the window (in tokens) is long: at four characters a token, 1 % of it.
_WINDOW_PER_LONG_TEXT = 25

# Longer texts are estimated from samples of their beginning, middle and end.
_SAMPLE = 4_500

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_DIGITS = re.compile(r"\d{1,3}")
_SPACED_NUMBER = re.compile(r" (?=\d)")
_MARKS = re.compile(r"[!-/:-@\[-`{-~]+")
_BREAK = re.compile(r"\s*\n\s*|[ \t]{2,}")
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{48,}")
_HAN = re.compile("[\u2e80-\u2fdf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_KANA = re.compile("[\u3000-\u30ff\u31f0-\u31ff\uff00-\uffef]")
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]")
_PICTURE = re.compile("[\u2190-\u2bff\u200d\ufe0f\U0001f000-\U0001faff]")
_FOREIGN = re.compile("[\u00a1-\u10ff\u1200-\u1fff]+")


def estimate_tokens(text: str) -> int:
    """The estimated number of tokens of a text."""
    if not text:
        return 0

    if len(text) > _SAMPLE:
        third, middle = _SAMPLE // 3, len(text) // 2
        pieces = (text[:third], text[middle : middle + third], text[-third:])
        return int(sum(map(_estimate_pieces, pieces)) * len(text) / _SAMPLE) + 1

    return int((_estimate_short if len(text) <= _SHORT else _estimate_pieces)(text) + 0.5) or 1


def _estimate_pieces(text: str) -> float:
    """Count the pieces that tokenizers split at, each with its average number of tokens."""
    total = 0.0

    if _BLOB.search(text):
        # Keys, hashes and base64 contain no words: 2.5 characters a token.
        total = sum(map(len, _BLOB.findall(text))) * 0.4
        text = _BLOB.sub("", text)

    total += len(_WORD.findall(text)) * 1.1
    total += len(_DIGITS.findall(text)) + len(_SPACED_NUMBER.findall(text)) * 0.8
    total += len(_MARKS.findall(text)) * 0.83 + len(_BREAK.findall(text)) * 0.95

    if not text.isascii():
        total += len(_HAN.findall(text)) * 0.75 + len(_KANA.findall(text)) * 0.68 + len(_HANGUL.findall(text)) * 0.7
        total += len(_PICTURE.findall(text)) * 1.5
        # Words of other alphabets take more tokens than English ones; accented Latin letters take a few more.
        total += sum(0.3 + 0.3 * len(found) for found in _FOREIGN.findall(text))

    # Tokenizers also split long runs of one kind of character (letters, blanks, dashes), which no pattern counts.
    return max(total, len(text) / 8)


# Short texts, such as tool names and arguments, recur and are counted in several places.
_SHORT = 200
_estimate_short = lru_cache(maxsize=2_048)(_estimate_pieces)


class EstimatingCounter:
    """Counts by `estimate_tokens`; needs no tokenizer."""

    def count(self, text: str) -> int:
        return estimate_tokens(text)


ESTIMATOR = EstimatingCounter()


@lru_cache(maxsize=8)
def exact_counter(provider: str, model: str) -> TokenCounter | None:
    """The tokenizer of this model if the extra `tokens` is installed, else None. It works offline."""
    if not has_tokenizer(provider):
        return None

    from rs_bpe.bpe import openai

    uses_cl100k = model.startswith(("gpt-3.5", "gpt-4-", "text-")) or model == "gpt-4"
    counter: TokenCounter = openai.cl100k_base() if uses_cl100k else openai.o200k_base()
    return counter


@lru_cache(maxsize=8)
def has_tokenizer(provider: str) -> bool:
    """Whether `exact_counter` has a tokenizer for this provider's models; does not load it."""
    return provider in ("openai", "openai-responses") and find_spec("rs_bpe") is not None


class LongTextCounter:
    """Counts long texts with a model's tokenizer, and estimates short ones.

    The tables of a tokenizer take up to 66 MB. Most crews never need them: each bill replaces the counts of messages
    that were sent, so that an error of a quarter in a short text is small and soon corrected.
    """

    def __init__(self, provider: str, model: str, min_chars: int) -> None:
        self._provider, self._model, self._min_chars = provider, model, min_chars

    def count(self, text: str) -> int:
        if len(text) < self._min_chars:
            return estimate_tokens(text)

        return (exact_counter(self._provider, self._model) or ESTIMATOR).count(text)


@lru_cache(maxsize=64)
def long_text_counter(provider: str, model: str, window: int) -> TokenCounter:
    """A counter that loads the tokenizer with the first text of about 1 % of the window."""
    return LongTextCounter(provider, model, min_chars=window // _WINDOW_PER_LONG_TEXT)


def count_message_tokens(message: Message, counter: TokenCounter = ESTIMATOR, *, keep: bool = True) -> int:
    """The number of tokens of a message by this counter. `keep` caches the count with the message."""
    if not keep:
        return _count_message(message, counter)

    # The counter is cached too, so that its id cannot be reused by another one.
    counts: dict[int, tuple[TokenCounter, int]] = message.cache().setdefault("tokens", {})
    cached = counts.get(id(counter))

    if cached is None:
        cached = counts[id(counter)] = (counter, _count_message(message, counter))

    return cached[1]


def estimate_message_tokens(message: Message) -> int:
    """The estimated number of tokens of a message, without opaque provider data such as signatures."""
    return count_message_tokens(message)


def _count_message(message: Message, counter: TokenCounter) -> int:
    match message:
        case AssistantMessage():
            calls = sum(counter.count(c.name) + counter.count(c.arguments) + TOKENS_PER_CALL for c in message.calls)
            return TOKENS_PER_MESSAGE + counter.count(message.text) + calls
        case ToolMessage():
            return sum(TOKENS_PER_MESSAGE + counter.count(result.text) for result in message.results)
        case UserMessage():
            return TOKENS_PER_MESSAGE + counter.count(message.text) + TOKENS_PER_IMAGE * len(message.images)
        case SystemMessage() | SummaryMessage():
            return TOKENS_PER_MESSAGE + counter.count(message.text)
        case _:
            assert_never(message)
