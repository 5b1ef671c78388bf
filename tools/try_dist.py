"""Try the wheel and the sdist as a user would: `make dist` calls this with the files it has built.

    python tools/try_dist.py dist/twofold-0.1.0-py3-none-any.whl dist/twofold-0.1.0.tar.gz

Each is installed twice into an empty environment. Alone it is the client: commands name the extra they lack, and it sends
to a broker. With `[server]` it runs the broker, the command line and the embedded broker, and stays under `MOST_MB`.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

MOST_MB = 90
PACKAGING = ("pip", "setuptools", "wheel", "pkg_resources", "_distutils_hack")  # what an empty environment has already

EMBEDDED = """
from twofold import Admin, Producer
from twofold.embedded import Broker
with Broker() as broker:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("orders", b"first").result()
print("sent")
"""
CLIENT = (
    "import sys; from twofold import Producer; Producer(bootstrap_servers=sys.argv[1]).send('orders', b'x').result()"
)


class Environment:
    """An empty environment with one thing installed."""

    def __init__(self, folder: Path, *install: str) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *install]
        subprocess.run(pip, check=True)

    def run(self, *command: str, code: int = 0) -> str:
        program = self.folder / "bin" / command[0]
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        done = subprocess.run(
            [str(program), *command[1:]],
            cwd=self.folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        told = done.stdout + done.stderr
        if done.returncode != code:
            raise SystemExit(f"{' '.join(command)}: exit code {done.returncode} instead of {code}\n{told}")
        return told

    def megabytes(self) -> float:
        """What was installed, with the compiled modules that pip writes."""
        (site,) = self.folder.glob("lib/python*/site-packages")
        files = (
            path
            for entry in site.iterdir()
            if not entry.name.startswith(PACKAGING)
            for path in ([entry] if entry.is_file() else entry.rglob("*"))
        )
        return sum(path.lstat().st_size for path in files if path.is_file()) / 1e6


def expect(is_true: bool, what: str) -> None:
    if not is_true:
        raise SystemExit(f"failed: {what}")


def try_client(file: Path, folder: Path) -> None:
    client = Environment(folder / "client", str(file))
    expect(client.run("twofold", "--version").startswith("twofold "), "twofold --version")
    for command in (["topic", "list"], ["serve", "--data", str(folder / "data")], ["--help"]):
        told = client.run("twofold", *command, code=1)
        expect(f"pip install '{file}[server]'" in told, f"twofold {' '.join(command)} names the extra: {told}")
    told = client.run("python", "-c", EMBEDDED, code=1)
    expect(f"pip install '{file}[server]'" in told, f"the embedded broker names the extra: {told}")
    # The command that was printed is what a user copies.
    client.run("pip", "install", "--quiet", "--disable-pip-version-check", f"{file}[server]")
    expect(client.run("python", "-c", EMBEDDED) == "sent\n", "the printed command has installed the broker")
    print(f"{file.name}: the client, {client_size(folder, file)}")


def client_size(folder: Path, file: Path) -> str:
    return f"{Environment(folder / 'size', str(file)).megabytes():.0f} MB"


def try_server(file: Path, folder: Path) -> None:
    server = Environment(folder / "server", f"{file}[server]")
    for command in (["--help"], ["version"], ["topic", "--help"], ["serve", "--help"], ["completion", "bash"]):
        server.run("twofold", *command)
    expect(server.run("python", "-c", EMBEDDED) == "sent\n", "an embedded broker")
    with_broker(server, lambda address: try_commands(server, address))
    size = server.megabytes()
    expect(size < MOST_MB, f"a server install takes {size:.0f} MB, and {MOST_MB} are allowed")
    print(f"{file.name}: the server, {size:.0f} MB")


def with_broker(server: Environment, use: Callable[[str], None]) -> None:
    command = [str(server.folder / "bin" / "twofold"), "serve", "--listen", "127.0.0.1:0", "--data", "data"]
    process = subprocess.Popen(command, cwd=server.folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        use(process.stdout.readline().split(" ready on ")[1].split(",")[0])
    finally:
        process.terminate()
        process.wait(timeout=60)


def try_commands(server: Environment, address: str) -> None:
    where = ("--bootstrap-server", address)
    server.run("twofold", "topic", "create", "orders", *where)
    server.run("python", "-c", CLIENT, address)
    told = server.run("twofold", "consume", "orders", "--from-beginning", "--exit", *where)
    expect("x" in told, f"consume shows what was sent: {told}")
    expect("orders" in server.run("twofold", "topic", "list", *where), "topic list")


def main(files: Sequence[str]) -> int:
    for name in files:
        file = Path(name).resolve()
        with tempfile.TemporaryDirectory(prefix="twofold-dist-") as folder:
            try_client(file, Path(folder))
            try_server(file, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
