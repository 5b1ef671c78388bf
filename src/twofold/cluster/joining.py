"""What a node asks before it joins: are these the controllers, and of which cluster?

1. DescribeCluster for controllers tells the id of the cluster. A broker refuses it (MISMATCHED_ENDPOINT_TYPE); then
   DescribeQuorum tells where its controllers are, and the message names them.
2. A user without Alter on the cluster is not told the id. A directory that names its cluster needs no answer: each
   fetch of the metadata names the cluster, and another one refuses it.
3. What another try may mend (nothing listens yet, no answer) is tried again until the time is over; the rest is told at
   once.
"""

import logging
from typing import Any

from twofold.cluster.controller_link import NO_LEADER, Controllers
from twofold.cluster.errors import CannotJoin
from twofold.config.internal_topics import CLUSTER_METADATA
from twofold.connections.connection import Address, Connection
from twofold.connections.errors import UnsupportedByBroker
from twofold.connections.waiting import Backoff, Deadline
from twofold.runtime.api import Runtime
from twofold.wire.apis import KEYS
from twofold.wire.errors import NONE, ClusterAuthorizationFailed, KafkaError, MismatchedEndpointType, error_for
from twofold.wire.messages.describe_cluster import DescribeClusterRequest
from twofold.wire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData

DESCRIBE_CLUSTER, DESCRIBE_QUORUM = KEYS["DescribeCluster"], KEYS["DescribeQuorum"]
CONTROLLERS = 2
SETTING = "controller.quorum.bootstrap.servers"
PAUSE = Backoff(50, 500)

log = logging.getLogger(__name__)


async def learn_cluster_id(
    runtime: Runtime, controllers: Controllers, timeout_ms: float, *, known: str | None = None
) -> str:
    """The id of the cluster of these controllers; CannotJoin where they are none, or none answers in time.

    `known` is what the directory says.
    """
    deadline = Deadline(runtime.clock, timeout_ms, "initial.broker.registration.timeout.ms")
    failures = 0
    while True:
        address = controllers.next_bootstrap()
        link = controllers.link(address)
        try:
            return await _ask(await link.connect(deadline), address)
        except UnsupportedByBroker as error:
            raise CannotJoin(f"{address} is no controller of Apache Kafka 3.7 or newer: {error} ({SETTING})") from error
        except ClusterAuthorizationFailed as error:
            if known is not None:
                return known
            raise CannotJoin(
                f"{address} does not tell this broker's user the id of the cluster: put the user into super.users of "
                "the controllers; or give it ClusterAction on the cluster, and prepare the directory with "
                "`kafka-storage.sh format --cluster-id ID`"
            ) from error
        except KafkaError as error:
            failures += 1
            delay_s = PAUSE.delay_s(failures, runtime.random)
            is_hopeless = not error.retriable and failures >= len(controllers.options.bootstrap)
            if is_hopeless or delay_s >= deadline.remaining_s():
                raise CannotJoin(
                    f"no controller answers at {controllers.bootstrap_text}: {error} ({SETTING})"
                ) from error
            if failures == 1:
                log.info("waiting for the controllers at %s: %s", controllers.bootstrap_text, error)
            await runtime.timers.sleep(delay_s)
        finally:
            link.close(KafkaError("asked"))


async def _ask(connection: Connection, address: Address) -> str:
    if not connection.supports(DESCRIBE_CLUSTER, 1):
        raise UnsupportedByBroker(f"{connection.label} does not serve DescribeCluster 1 or newer")
    answer = await connection.request(DescribeClusterRequest(
        include_cluster_authorized_operations=False, endpoint_type=CONTROLLERS, include_fenced_brokers=False
    ), DESCRIBE_CLUSTER)  # fmt: skip
    if answer.error_code == MismatchedEndpointType.code:
        raise CannotJoin(await _name_controllers(connection, address))
    if answer.error_code != NONE:
        raise error_for(answer.error_code)(f"{address} does not describe its cluster: {answer.error_message or ''}")
    return str(answer.cluster_id)


async def _name_controllers(connection: Connection, address: Address) -> str:
    found = ""
    try:
        request = DescribeQuorumRequest(
            topics=[TopicData(topic_name=CLUSTER_METADATA, partitions=[PartitionData(partition_index=0)])]
        )
        answer: Any = await connection.request(request, DESCRIBE_QUORUM)
        places = [
            Address(at.host, at.port) for node in answer.nodes for at in node.listeners[:1] if node.node_id != NO_LEADER
        ]
        found = ",".join(map(str, places))
    except KafkaError:
        pass  # an older one, or not for us
    advice = f": name its controllers, {found}" if found else ": name a listener of its controllers"
    return f"{address} is a broker and no controller{advice} ({SETTING})"
