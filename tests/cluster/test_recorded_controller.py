"""A member beside a controller of Apache Kafka 4.3.1, of which only the recorded bytes are here."""

from pathlib import Path

from kits.cluster.recording import Recording, ReplayedController
from kits.node.sockets import on_loop
from twofold.broker.broker import Broker
from twofold.config.settings import Settings
from twofold.runtime.real import real_runtime


def settings(port: int) -> Settings:
    return Settings.from_mapping(
        {
            "process.roles": "broker",
            "node.id": "9",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{port}",
            "cordoned.log.dirs": "*",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "controlled.shutdown.enable": "false",
        }
    )


def test_the_bytes_of_apache_kafka_lead_a_member_from_the_first_question_to_unfenced(tmp_path: Path) -> None:
    @on_loop
    async def scenario() -> None:
        controller = ReplayedController(Recording.read())
        async with await controller.start():
            broker = Broker(real_runtime(), settings(controller.port), str(tmp_path / "data"), hostname="localhost")
            try:
                await broker.start()
                registration = broker.image.broker(9)
                assert registration is not None and not registration.fenced
                assert registration.epoch == broker._lifecycle.broker_epoch  # type: ignore[union-attr]
                assert broker.image.features["metadata.version"] == 30
                assert registration.cordoned_log_dirs == registration.log_dirs
            finally:
                await broker.stop(timeout_s=1.0)
        names = [name for name, _ in controller.asked]
        assert names.index("DescribeCluster") < names.index("Fetch") < names.index("BrokerRegistration")
        assert names.index("BrokerRegistration") < names.index("BrokerHeartbeat")

    scenario()
