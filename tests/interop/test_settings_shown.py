"""What DescribeConfigs tells of a broker as it was started."""

from pathlib import Path

import pytest

from interop.test_cli_serve import serving
from twofold import Admin
from twofold.client.admin.model import ConfigResource, ResourceType
from twofold.embedded import Broker

pytestmark = pytest.mark.interop

THIS_BROKER = ConfigResource(ResourceType.BROKER, "1")


def shown(address: str, *names: str) -> dict[str, tuple[str | None, str]]:
    with Admin(bootstrap_servers=address) as admin:
        entries = admin.describe_configs([THIS_BROKER], names=names).get()[THIS_BROKER]
    return {entry.name: (entry.value, entry.source) for entry in entries}


def address_of(line: str) -> str:
    return line.partition(" ready on ")[2].partition(",")[0]


def test_the_directory_that_data_named_is_shown(tmp_path: Path) -> None:
    """It wins over the file, so neither key may show what the file says."""
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={tmp_path / 'elsewhere'}\nlog.dir={tmp_path / 'elsewhere'}\n")
    data = str(tmp_path / "data")
    with serving("--listen", "127.0.0.1:0", "--config", str(properties), "--data", data) as (_, line):
        found = shown(address_of(line), "log.dirs", "log.dir")
    assert found == dict.fromkeys(("log.dir", "log.dirs"), (data, "STATIC_BROKER_CONFIG"))


def test_the_directory_of_the_file_is_shown(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={data}\n")
    with serving("--listen", "127.0.0.1:0", "--config", str(properties)) as (_, line):
        found = shown(address_of(line), "log.dirs", "log.dir")
    assert found == {"log.dir": ("./twofold-data", "DEFAULT_CONFIG"), "log.dirs": (data, "STATIC_BROKER_CONFIG")}


def test_the_directory_of_an_embedded_broker_is_shown(tmp_path: Path) -> None:
    with Broker(data=str(tmp_path)) as broker:
        found = shown(broker.bootstrap_servers, "log.dirs", "log.dir")
    assert found == dict.fromkeys(("log.dir", "log.dirs"), (str(tmp_path), "STATIC_BROKER_CONFIG"))


def test_an_embedded_broker_keeps_its_data_where_log_dirs_says(tmp_path: Path) -> None:
    """Not in a temporary directory that goes with the broker."""
    with Broker(settings={"log.dirs": tmp_path / "kept"}) as broker:
        assert broker.data == str(tmp_path / "kept")
    assert (tmp_path / "kept" / "meta.properties").exists()
    with pytest.raises(ValueError, match=r"log\.dirs=/a,/b: names 2 directories: choose one"):
        Broker(settings={"log.dirs": "/a,/b"})
