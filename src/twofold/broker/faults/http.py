"""The faults of `twofold serve --test-faults HOST:PORT`, over HTTP, so that tests in any language can ask for them.

1. `POST /fail_next` with `{"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER"}` calls `Faults.fail_next` with these
   arguments. The answer is `{"result": ...}` (200), or `{"error": text, "kind": exception}` (400).
2. It runs in threads of its own: a broker that is paused can be resumed.
3. Only a broker that was started for tests has it. No setting and no request of a client starts it.
4. A page in a browser cannot use it: the content type has to be application/json, which a browser asks about first.
"""

import inspect
import json
import logging
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from twofold.broker.faults.calls import Faults

MAX_BODY_BYTES = 64 * 1024
OPERATIONS = (
    "fail_next", "drop_next", "delay_next", "wait_for_request",
    "drop_connections", "network_down", "network_up",
    "stop", "kill", "pause", "resume", "slow_disk", "advance", "clear",
)  # fmt: skip

log = logging.getLogger(__name__)


class FaultServer:
    """Listens until `stop`."""

    def __init__(self, faults: Faults, host: str, port: int) -> None:
        class FaultRequest(_FaultRequest):
            asked = faults

        self._http = (_Http6 if ":" in host else _Http)((host, port), FaultRequest)
        self._thread = threading.Thread(target=self._http.serve_forever, name="twofold-faults", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        host, port = self._http.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without asking the resolver for the name of the host


class _Http6(_Http):
    address_family = socket.AF_INET6


class _FaultRequest(BaseHTTPRequestHandler):
    asked: Faults
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_POST(self) -> None:
        operation = self.path.strip("/")
        if operation not in OPERATIONS:
            self.close_connection = True  # its body is not read
            self._answer(HTTPStatus.NOT_FOUND, _as_json(ValueError(f"POST one of: {', '.join(OPERATIONS)}")))
            return
        try:
            result = call(self.asked, operation, self._arguments())
        except (ValueError, TypeError, TimeoutError, RuntimeError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, _as_json(error))
        else:
            log.info("a test asked for %s", operation)
            self._answer(HTTPStatus.OK, {"result": result})

    def _arguments(self) -> dict[str, Any]:
        size = int(self.headers.get("Content-Length") or 0)
        if not 0 <= size <= MAX_BODY_BYTES:
            self.close_connection = True
            raise ValueError(f"a body of {size} bytes: at most {MAX_BODY_BYTES}")
        body = self.rfile.read(size)
        if self.headers.get_content_type() != "application/json":
            raise ValueError("the arguments are JSON: send Content-Type: application/json")
        arguments = json.loads(body or b"{}")
        if not isinstance(arguments, dict):
            raise ValueError("the arguments are one JSON object")
        return arguments

    def _answer(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def call(faults: Faults, operation: str, arguments: dict[str, Any]) -> Any:
    """Call the method of that name; what does not fit its parameters is a TypeError that names them."""
    method = getattr(faults, operation)
    parameters = inspect.signature(method).parameters
    for name, value in arguments.items():
        if name not in parameters:
            raise TypeError(f"{operation} takes {', '.join(parameters) or 'nothing'}, and no {name}")
        if not isinstance(value, _types(parameters[name].annotation)) or isinstance(value, bool) != (
            parameters[name].annotation is bool
        ):
            raise TypeError(f"{operation}: {name}={value!r} is not of the type {parameters[name].annotation}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise TypeError(f"{operation} needs {name}")
    return method(**arguments)


def _types(annotation: Any) -> Any:
    return int | float if annotation is float else annotation


def _as_json(error: Exception) -> dict[str, Any]:
    return {"error": str(error), "kind": type(error).__name__}
