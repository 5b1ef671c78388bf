"""Members of a group that commit some of their numbers in transactions: refused by their generation, or not."""

from collections.abc import Callable

from kits.wire.driver import Abortable, Member, TransactionError
from sim.groups.check import GROUP, GroupHistory
from sim.groups.member import GroupMember, MemberPlan, Place
from sim.transactions.clients import SimDriver
from twofold.runtime.api import Runtime
from twofold.wire.errors import FencedInstanceId, IllegalGeneration, RequestTimedOut, UnknownMemberId

TIMEOUT_MS = 700  # shorter than any expiration of ids in a plan
_TOLD = (IllegalGeneration, UnknownMemberId, FencedInstanceId)


class TxnMember(GroupMember):
    """One transaction after the other, with nothing in it but how far it is."""

    def __init__(
        self,
        runtime: Runtime,
        plan: MemberPlan,
        history: GroupHistory,
        name: str,
        bootstrap: str,
        is_transactional: Callable[[], bool],
    ) -> None:
        super().__init__(runtime, plan, history, name, bootstrap)
        self._is_transactional = is_transactional
        self._has_begun = False
        self._before: Place | None = None
        """What it was in the generation before, under the same member id."""
        self._last: Place | None = None
        self._driver = SimDriver(
            runtime,
            bootstrap,
            f"of-{plan.node}",
            timeout_ms=TIMEOUT_MS,
            patience_ms=2000,
            request_timeout_ms=plan.request_timeout_ms,
            socket_connection_setup_timeout_ms=1000,
            client_id=plan.node,
        )

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._driver.close()

    async def _join(self) -> Place:
        before = self._last
        place = self._last = await super()._join()
        is_same = before is not None and before.member_id == place.member_id and before.generation < place.generation
        self._before = before if is_same else None
        return place

    async def _commit(self, place: Place) -> None:
        if not self._is_transactional() or self._random.random() < 0.3:
            await super()._commit(place)
            return
        # Now and then what it would have committed before the group moved on: a thread that was late.
        late = self._before if self._random.random() < 0.3 else None
        try:
            await self._commit_in_transaction(late or place)
        except TransactionError as error:
            self._has_begun = False  # whatever it was: a new epoch, and nothing of the old one is open
            if late is not None and isinstance(error.error, IllegalGeneration):
                return
            if isinstance(error.error, _TOLD):
                raise error.error from error
            raise RequestTimedOut(f"{self._name}: {error}") from error

    async def _commit_in_transaction(self, place: Place) -> None:
        history, driver = self._history, self._driver
        if not self._has_begun:
            await driver.init()
            self._has_begun = True
        if not place.owned:
            return
        member = Member(place.generation, place.member_id, self.plan.instance_id)
        newest = history.newest
        values = {tp: history.next_commit(tp, place.generation) for tp in place.owned}
        try:
            await driver.send_offsets(GROUP, values, member=member)
            for tp, value in values.items():
                history.accepted(tp, value, newest)
            if self._random.random() < 0.2:
                await self._sleep(self._random.uniform(0, self.plan.session_timeout_ms / 1000))
            await driver.commit()
        except Abortable:
            await driver.abort()
            for tp, value in values.items():
                history.not_committed(tp, value)
            raise
        for tp, value in values.items():
            history.ended(tp, value)
