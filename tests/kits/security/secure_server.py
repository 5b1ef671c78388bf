"""A broker with SASL_SSL and the authorizer, whose entries are those that the guide has for a pipeline.

The pipeline is the user `shop` of the guide; `admin` is a super user that logs in with PLAIN.
"""

import re
import shlex
from pathlib import Path

from kits.processes import commands
from kits.processes.server import TwofoldServer
from kits.security.authorities import Authority
from oracle.processes import spawn, wait_until
from twofold.config.keys.missing import STANDARD_AUTHORIZER

GUIDE = Path(__file__).parent.parent.parent.parent / "docs" / "guide" / "secure-clients.md"
GUIDES_FOLDER = "./guarded-data"
USER, PASSWORD = "shop", "the-shop's-secret"
ADMIN, ADMINS_PASSWORD = "admin", "admins-secret"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{ADMIN}="{ADMINS_PASSWORD}";'


class SecureServer(TwofoldServer):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.authority = Authority(directory)
        self.settings = {
            "listeners": f"SASL_SSL://{self.bootstrap_servers}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.authority.keystore("broker"),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{ADMIN}",
            "transaction.two.phase.commit.enable": "true",
        }

    def start(self, *, wait: bool = True) -> None:
        options = self.directory / "server.properties"
        options.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        command = [self.python, "-m", "twofold", "serve", "--config", str(options), "--data", str(self.data)]
        self._process = spawn(command, output=self.output)
        wait_until(lambda: " ready on " in self.log_text(), self._process, patience_s=60, output=self.output)

    def prepare(self) -> None:
        """The user and the entries, in the folder before the first start: the commands of the guide."""
        for command in commands_of_the_guide():
            words = [str(self.data) if word == GUIDES_FOLDER else word for word in shlex.split(command)[1:]]
            done = commands.run(*words)
            assert done.returncode == 0, done.stderr
        added = ("user", "add", USER, "--mechanism", "SCRAM-SHA-512", "--password-file", "-", "--data", str(self.data))
        done = commands.run(*added, stdin=PASSWORD)
        assert done.returncode == 0, done.stderr

    def client(self, user: str, password: str) -> dict[str, str]:
        """Settings by Kafka's names. What `password` is may be a reference."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN" if user == ADMIN else "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.truststore,
        }


def commands_of_the_guide() -> list[str]:
    """Those that give rights to the pipeline."""
    found = re.findall(rf"^twofold acl add User:{USER} .*$", GUIDE.read_text(), re.M)
    assert found, f"{GUIDE.name} has no `twofold acl add User:{USER}`"
    return found
