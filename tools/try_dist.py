"""Try the wheel and the sdist as a user would: `make dist` calls this with the files it has built.

    python tools/try_dist.py dist/twofold-0.1.0-py3-none-any.whl dist/twofold-0.1.0.tar.gz

Each is installed into empty environments. Alone it is the client: commands name the extra that they lack, and the
command that they print installs it. With `[server]` it runs the broker, the command line and the embedded broker, and
stays under `MOST_MB`.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MOST_MB = 90
PACKAGING = ("pip", "setuptools", "wheel", "pkg_resources", "_distutils_hack")  # what an empty environment has already

EMBEDDED = """
from twofold import Producer
from twofold.embedded import Broker
with Broker() as broker, Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
    producer.send("orders", b"first")
    producer.flush()
print("sent")
"""
CLIENT = """
import sys
from twofold import Producer
with Producer(bootstrap_servers=sys.argv[1]) as producer:
    producer.send("orders", b"second")
    producer.flush()
"""


class Environment:
    """An empty environment with one thing installed."""

    def __init__(self, folder: Path, install: str) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self.install(install)

    def install(self, what: str) -> None:
        self.run("pip", "install", "--quiet", "--disable-pip-version-check", what)

    def run(self, program: str, *arguments: str, code: int = 0) -> str:
        programs = self.folder / "bin"
        environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(
            [str(programs / program), *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        told = done.stdout + done.stderr
        if done.returncode != code:
            raise SystemExit(f"{program} {' '.join(arguments)}: exit code {done.returncode}, not {code}\n{told}")
        return told

    def megabytes(self) -> float:
        """What was installed, with the compiled modules that pip writes."""
        (site,) = self.folder.glob("lib/python*/site-packages")
        entries = (entry for entry in site.iterdir() if not entry.name.startswith(PACKAGING))
        files = (path for entry in entries for path in (entry, *entry.rglob("*")))
        return sum(path.lstat().st_size for path in files if path.is_file()) / 1e6

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The address of a broker that runs while the block does."""
        command = [str(self.folder / "bin" / "twofold"), "serve", "--listen", "127.0.0.1:0", "--data", "data"]
        command += ["--log-level", "error"]
        process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split(" ready on ")[1].split(",")[0]
        finally:
            process.terminate()
            process.wait(timeout=60)


def expect(is_true: bool, what: str) -> None:
    if not is_true:
        raise SystemExit(f"failed: {what}")


def try_client(file: Path, folder: Path) -> None:
    client = Environment(folder / "client", str(file))
    print(f"{file.name}: the client takes {client.megabytes():.0f} MB")
    expect(client.run("twofold", "--version").startswith("twofold "), "twofold --version")
    client.run("python", "-c", "import twofold, twofold.aio, twofold.errors; twofold.Producer, twofold.Admin")
    for command in (["topic", "list"], ["serve", "--data", "data"], ["--help"]):
        told = client.run("twofold", *command, code=1)
        expect(f"pip install '{file}[server]'" in told, f"twofold {' '.join(command)} names the extra: {told}")
    told = client.run("python", "-c", EMBEDDED, code=1)
    expect(f"pip install '{file}[server]'" in told, f"the embedded broker names the extra: {told}")
    client.install(f"{file}[server]")  # what was printed
    expect(client.run("python", "-c", EMBEDDED) == "sent\n", "what was printed has installed the broker")


def try_server(file: Path, folder: Path) -> None:
    server = Environment(folder / "server", f"{file}[server]")
    size = server.megabytes()
    expect(size < MOST_MB, f"a server install takes {size:.0f} MB, and {MOST_MB} are allowed")
    print(f"{file.name}: the server takes {size:.0f} MB")
    for command in (["--help"], ["version"], ["topic", "--help"], ["serve", "--help"], ["completion", "bash"]):
        server.run("twofold", *command)
    expect(server.run("python", "-c", EMBEDDED) == "sent\n", "an embedded broker")
    with server.serving() as address:
        where = ("--bootstrap-server", address)
        server.run("twofold", "topic", "create", "orders", *where)
        server.run("python", "-c", CLIENT, address)
        told = server.run("twofold", "consume", "orders", "--from-beginning", "--exit", *where)
        expect("second" in told, f"consume shows what was sent: {told}")
        expect("orders" in server.run("twofold", "topic", "list", *where), "topic list shows the topic")


def main(files: Sequence[str]) -> int:
    for name in files:
        with tempfile.TemporaryDirectory(prefix="twofold-dist-") as folder:
            try_client(Path(name).resolve(), Path(folder))
            try_server(Path(name).resolve(), Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
