"""The administrator's client for code without asyncio: the same calls on a loop thread of its own.

    with twofold.Admin(bootstrap_servers="127.0.0.1:9092") as admin:
        print(admin.list_transactions().get())

Any thread may call; a call returns when its answer is there.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from twofold.client.admin import admin as aio
from twofold.client.config import ClientConfig, ClientOptions, from_dotted, from_keywords
from twofold.client.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[aio.Admin, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[Admin, P], T]":
    @wraps(method)
    def call(self: "Admin", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._admin, *args, **kwargs))

    return call


class Admin:
    def __init__(self, **options: Unpack[ClientOptions]) -> None:
        self._start(from_keywords(ClientConfig, options))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Admin":
        """With Kafka's own names: `{"bootstrap.servers": "..."}`."""
        admin = cls.__new__(cls)
        admin._start(from_dotted(ClientConfig, config))
        return admin

    def _start(self, config: ClientConfig) -> None:
        self.config = config
        self._thread = LoopThread("twofold-admin")
        self._admin = self._thread.run(_made(config))

    def __enter__(self) -> "Admin":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """May be called more than once."""
        if self._thread.is_running:
            self._thread.run(self._admin.close())
            self._thread.close()

    bootstrap = _blocking(aio.Admin.bootstrap)
    create_topics = _blocking(aio.Admin.create_topics)
    delete_topics = _blocking(aio.Admin.delete_topics)
    create_partitions = _blocking(aio.Admin.create_partitions)
    list_topics = _blocking(aio.Admin.list_topics)
    describe_topics = _blocking(aio.Admin.describe_topics)
    delete_records = _blocking(aio.Admin.delete_records)
    describe_log_dirs = _blocking(aio.Admin.describe_log_dirs)
    describe_configs = _blocking(aio.Admin.describe_configs)
    alter_configs = _blocking(aio.Admin.alter_configs)
    incremental_alter_configs = _blocking(aio.Admin.incremental_alter_configs)
    describe_quotas = _blocking(aio.Admin.describe_quotas)
    alter_quotas = _blocking(aio.Admin.alter_quotas)
    describe_cluster = _blocking(aio.Admin.describe_cluster)
    describe_quorum = _blocking(aio.Admin.describe_quorum)
    describe_features = _blocking(aio.Admin.describe_features)
    update_features = _blocking(aio.Admin.update_features)
    list_offsets = _blocking(aio.Admin.list_offsets)
    alter_partition_reassignments = _blocking(aio.Admin.alter_partition_reassignments)
    list_partition_reassignments = _blocking(aio.Admin.list_partition_reassignments)
    elect_leaders = _blocking(aio.Admin.elect_leaders)
    create_acls = _blocking(aio.Admin.create_acls)
    describe_acls = _blocking(aio.Admin.describe_acls)
    delete_acls = _blocking(aio.Admin.delete_acls)
    describe_users = _blocking(aio.Admin.describe_users)
    alter_users = _blocking(aio.Admin.alter_users)
    list_groups = _blocking(aio.Admin.list_groups)
    describe_groups = _blocking(aio.Admin.describe_groups)
    delete_groups = _blocking(aio.Admin.delete_groups)
    list_group_offsets = _blocking(aio.Admin.list_group_offsets)
    alter_group_offsets = _blocking(aio.Admin.alter_group_offsets)
    delete_group_offsets = _blocking(aio.Admin.delete_group_offsets)
    describe_producers = _blocking(aio.Admin.describe_producers)
    list_transactions = _blocking(aio.Admin.list_transactions)
    describe_transactions = _blocking(aio.Admin.describe_transactions)
    abort_transaction = _blocking(aio.Admin.abort_transaction)
    repair_transaction = _blocking(aio.Admin.repair_transaction)
    fence_producers = _blocking(aio.Admin.fence_producers)
    force_terminate_transaction = _blocking(aio.Admin.force_terminate_transaction)
    complete_transaction = _blocking(aio.Admin.complete_transaction)


async def _made(config: ClientConfig) -> aio.Admin:
    """On the loop that it is going to use."""
    return aio.Admin.of(config)
