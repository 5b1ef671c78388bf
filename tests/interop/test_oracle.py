"""The oracle itself: it starts, it answers, and its tools run."""

import pytest

from oracle.driver import Connection

pytestmark = pytest.mark.oracle


def test_oracle_is_the_kafka_we_match(oracle):
    with Connection(oracle.host, oracle.port) as connection:
        answer = connection.ask("ApiVersions", 3, client_software_name="t", client_software_version="1")
    finalized = {row["name"]: row["max_version_level"] for row in answer["finalized_features"]}
    assert finalized["metadata.version"] == 30
    assert finalized["transaction.version"] == 2


def test_tools_of_the_jars_run(oracle, tmp_path):
    listed = oracle.tool(
        "org.apache.kafka.tools.TopicCommand", ["--bootstrap-server", oracle.bootstrap_servers, "--list"]
    )
    assert listed.returncode == 0, listed.stderr
    program = tmp_path / "Hello.java"
    for said in ("hello", "good morning"):  # a program that was changed is compiled again
        said_by = (
            f'public class Hello {{ public static void main(String[] a) {{ System.out.print("{said} " + a[0]); }} }}'
        )
        program.write_text(said_by)
        assert oracle.java_program(program, ["there"]).stdout == f"{said} there"
