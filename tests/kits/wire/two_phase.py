"""A two-phase producer made of single requests (KIP-939), and the text under which others know its transaction."""

from typing import Any

from kits.wire.driver import NO_IDENTITY, TV2, Identity, TxnDriver
from twofold.wire.errors import raise_for
from twofold.wire.messages.init_producer_id import InitProducerIdRequest

VERSION = 6


def prepared_state(identity: Identity) -> str:
    """`producer_id:epoch`, as it is written down in another system; empty where there is no transaction."""
    return "" if identity == NO_IDENTITY else f"{identity.producer_id}:{identity.producer_epoch}"


class TwoPhaseDriver(TxnDriver):
    """With `vows` every transaction is a two-phase one from its beginning; without, it becomes one when `prepare` is
    called (heartbeats or a timeout end it until then)."""

    vows = True

    async def init_producer_id(
        self,
        expected: Identity = NO_IDENTITY,
        *,
        timeout_ms: int | None = None,
        version: int | None = None,
        keep: bool = False,
        two_phase: bool | None = None,
    ) -> Any:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms if timeout_ms is None else timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.producer_epoch,
            enable2_pc=self.vows if two_phase is None else two_phase,
            keep_prepared_txn=keep,
        )
        return await self._coordinate(request, "InitProducerId", version or VERSION)

    async def recover(self) -> Identity:
        """initTransactions(keepPreparedTxn=true): the transaction that was found, and nobody else may end it now."""

        async def attempt() -> Any:
            answer = await self.init_producer_id(keep=True, two_phase=True)
            raise_for(answer.error_code, self.transactional_id)
            return answer

        answer = await self._insist("InitProducerId", attempt)
        self._adopt(Identity(answer.producer_id, answer.producer_epoch))
        return Identity(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)

    async def prepare(self) -> str:
        """After the last answer. The text to write down; empty where the transaction is gone and nothing is vowed: then
        another one may have been kept, and `recover` says which."""
        if self.vows:
            return prepared_state(self.identity)
        mine = self.identity
        found = await self.recover()
        return prepared_state(found) if found == mine else ""

    async def finish(self, commit: bool) -> None:
        """End what was prepared or recovered, whether or not this instance has written to it."""
        await self._end(commit)


def two_phase_driver(runtime: Any, bootstrap_servers: str, transactional_id: str, **options: Any) -> TwoPhaseDriver:
    return TwoPhaseDriver(runtime, bootstrap_servers, transactional_id, **{"versions": TV2, **options})
