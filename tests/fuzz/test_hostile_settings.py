"""Limits of connections can be changed while the broker runs."""

from pathlib import Path

from kits.node.running import running
from kits.node.sockets import on_loop, until
from oracle.wire import decode_response, encode_request


async def ask(client, api, version, **body):
    client.send_raw(encode_request(api, version, body))
    return decode_response(api, version, await client.receive())[1]


def test_max_connections_is_changed_while_others_are_connected(tmp_path: Path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            admin, other = await node.connect(), await node.connect()
            change = {"name": "max.connections", "config_operation": 0, "value": "2"}
            resource = {"resource_type": 4, "resource_name": "", "configs": [change]}
            answer = await ask(admin, "IncrementalAlterConfigs", 0, resources=[resource], validate_only=False)
            assert answer["responses"][0]["error_code"] == 0
            await until(lambda: node.broker.server.options.limits.max_connections == 2)
            refused = await node.connect()
            assert await refused.closed_by_peer()
            assert (await ask(other, "ApiVersions", 0))["error_code"] == 0

    scenario()
