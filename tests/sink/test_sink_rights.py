"""What a sink may do without: the right to make its journal, where an administrator has made it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kits.node.sockets import on_loop
from kits.security.certificates import Certificates
from kits.security.guarded_broker import GuardedBroker, guarded_broker, guarded_settings
from twofold.client import NewTopic
from twofold.client.admin.admin import Admin
from twofold.client.admin.security import AclBinding
from twofold.client.parts import Cluster, ProducerConfig
from twofold.config.keys.missing import STANDARD_AUTHORIZER
from twofold.runtime.real import real_runtime
from twofold.security.acl_codes import AclResourceType, Operation
from twofold.sink.journal import Journal
from twofold.sink.names import decision_topic
from twofold.wire.errors import TopicAuthorizationFailed

PREFIX = "shop"


def settings_of(running: GuardedBroker, user: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": f"localhost:{running.ports['LOGIN']}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": user,
        "sasl_password": "opens",
    }


@asynccontextmanager
async def with_rights(folder: Path, *, made: bool) -> AsyncIterator[Journal]:
    """The journal of `alice`, who may write it and not make it; `made` if an administrator has done so."""
    certificates = Certificates.make(folder)
    authorizer = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:bob"}
    topic = decision_topic(PREFIX)
    async with guarded_broker(folder, certificates, guarded_settings(certificates, **authorizer)) as running:
        async with Admin(**settings_of(running, "bob")) as admin:
            right = AclBinding(AclResourceType.TOPIC, topic, "User:alice", Operation.WRITE)
            assert not (await admin.create_acls([right])).errors
            if made:
                assert not (await admin.create_topics([NewTopic(topic, 1)])).errors
        config = ProducerConfig(**settings_of(running, "alice"))
        runtime = real_runtime()
        cluster = Cluster(runtime, config)
        journal = Journal(runtime, cluster, config, PREFIX)
        yield journal
        await journal.close()
        await cluster.close()


@on_loop
async def test_a_journal_that_an_administrator_has_made_needs_no_right_to_make_it(tmp_path: Path) -> None:
    async with with_rights(tmp_path, made=True) as journal:
        await journal.create()


@on_loop
async def test_a_journal_that_is_missing_names_the_right_that_is(tmp_path: Path) -> None:
    async with with_rights(tmp_path, made=False) as journal:
        with pytest.raises(TopicAuthorizationFailed, match="CREATE on topic shop"):
            await journal.create()
