"""A simulated broker with an authorizer, and a client that is no super user."""

from typing import Any
from uuid import UUID

from kits.node.sim_node import Asked, simulated
from kits.node.txn_node import Node, Pair
from kits.security import rights
from kits.security.rights import Right, Row, codes
from twofold.broker.network.context import Peer
from twofold.config.keys.missing import STANDARD_AUTHORIZER
from twofold.security.acl_codes import Permission
from twofold.wire.messages.create_acls import AclCreation, CreateAclsRequest
from twofold.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

ALICE = "User:alice"


class GuardedNode(Node):
    """A broker with an authorizer. What sets the scene is a super user, and `as_alice` is not."""

    pair: Pair = (-1, -1)

    def name(self, text: str) -> str:
        return text

    def topic_id(self, text: str) -> UUID:
        found = self.broker.image.topic(text)
        assert found is not None
        return found.topic_id

    def send_as_alice(self, api: str, version: int, **body: Any) -> Asked[dict[str, Any]]:
        admin, self._peer = self._peer, Peer("10.0.0.9", 4712, "PLAINTEXT", ALICE)
        try:
            return self.send(api, version, **body)
        finally:
            self._peer = admin

    async def as_alice(self, api: str, version: int, **body: Any) -> dict[str, Any]:
        return await self.send_as_alice(api, version, **body)()

    async def grant(self, *granted: Right, permission: Permission = Permission.ALLOW) -> None:
        """These entries of alice, and no others."""
        every = DeleteAclsFilter(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1,
        )  # fmt: skip
        await self.broker.controller.delete_acls(DeleteAclsRequest(filters=[every]))
        rows = [
            AclCreation(
                resource_type=right.kind, resource_name=right.name, principal=ALICE, host="*",
                operation=right.operation, permission_type=permission,
            )
            for right in granted
        ]  # fmt: skip
        response = await self.broker.controller.create_acls(CreateAclsRequest(creations=rows))
        assert [row.error_code for row in response.results] == [0] * len(rows)

    async def set_scene(self) -> None:
        for name in (rights.OTHER,):
            await self.create_topic(name)
        for group in (rights.G, rights.GONE):
            while (await self.ask("FindCoordinator", 3, key=group, key_type=0))["error_code"]:
                await self.sleep(0.01)
            row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
            body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
            topics = [{"name": rights.T, "partitions": [row]}]
            assert codes(await self.ask("OffsetCommit", 7, **body, topics=topics)) == {0}
        await self.fresh_transaction()

    async def fresh_transaction(self) -> None:
        while isinstance(found := await self.init(rights.X), int):
            assert found == 51, "the transaction of the row before is being aborted"
            await self.sleep(0.01)
        self.pair = found

    async def answer(self, row: Row) -> dict[str, Any]:
        for name in row.creates:
            if self.broker.image.topic(name) is None:
                await self.create_topic(name)
        for group, topics in row.reads.items():
            answer = await self.ask("ConsumerGroupHeartbeat", 1, **rights.reader(group, topics))
            assert rights.has_topics(answer, topics), answer
        return await self.as_alice(row.api, row.version, **row.body(self))


def guarded(story: Any) -> Any:
    return simulated(
        GuardedNode,
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:ANONYMOUS",
        transaction_two_phase_commit_enable="true",
        add_partitions_to_txn_retry_backoff_max_ms=0,
    )(story)
