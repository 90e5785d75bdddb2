"""Payloads that refer to the store: workflow histories hold a key, and the codec loads the value."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pydantic_core import from_json, to_json
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import PayloadCodec

from crew.errors import StoreError
from crew.runs.interfaces import EffectRecords

ENCODING = "encoding"
REFERENCE = b"crew/reference"
CACHE_BYTES = 64_000_000


def reference(run_id: str, key: str) -> RawValue:
    """A payload that refers to the record with this key."""
    return RawValue(Payload(metadata={ENCODING: REFERENCE}, data=to_json([run_id, key])))


class CachedRecords:
    """Effect records with a cache: a record never changes."""

    def __init__(self, records: EffectRecords, max_bytes: int = CACHE_BYTES) -> None:
        self._records, self._max_bytes, self._bytes = records, max_bytes, 0
        self._cached: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    async def put(self, run_id: str, key: str, data: bytes) -> bytes:
        """Store a record, unless there is one; returns the stored one."""
        return self._remember(run_id, key, await self._records.put(run_id, key, data))

    async def get(self, run_id: str, key: str) -> bytes | None:
        """The record with this key; None if there is none."""
        if (known := self._cached.get((run_id, key))) is not None:
            self._cached.move_to_end((run_id, key))
            return known

        data = await self._records.get(run_id, key)
        return None if data is None else self._remember(run_id, key, data)

    def _remember(self, run_id: str, key: str, data: bytes) -> bytes:
        if (run_id, key) not in self._cached:
            self._cached[run_id, key] = data
            self._bytes += len(data)

        while self._bytes > self._max_bytes:
            self._bytes -= len(self._cached.popitem(last=False)[1])

        return data


class ReferenceCodec(PayloadCodec):
    """Replaces each reference by the record that it names, when a payload is decoded. `inner` is applied first."""

    def __init__(self, records: EffectRecords, inner: PayloadCodec | None = None) -> None:
        self._records, self._inner = records, inner

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads, encoded by the inner codec."""
        return [*payloads] if self._inner is None else await self._inner.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads, with records instead of references."""
        decoded = [*payloads] if self._inner is None else await self._inner.decode(payloads)
        return [await self._resolve(one) if one.metadata.get(ENCODING) == REFERENCE else one for one in decoded]

    async def _resolve(self, payload: Payload) -> Payload:
        run_id, key = from_json(payload.data)
        data = await self._records.get(run_id, key)

        if data is None:
            text = f"The store has no record {key!r} of run {run_id!r}. Do all workers and clients use the same store?"
            raise StoreError(run_id, text)

        return Payload(metadata={ENCODING: b"binary/plain"}, data=data)
