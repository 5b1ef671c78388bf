"""Make the folder of Apache Kafka with access control entries and SCRAM users that the tests open.

    .venv/bin/python tools/make_guarded_fixture.py tests/fixtures/guarded-kafka-4.3.1.tar.gz

It needs the oracle (Java and the jars, which the tests fetch). The users are alice and bob with the password
`NAME-password`, one with each mechanism. Alice may write the topic orders; orders-secret is denied to every principal.
"""

import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from kits.security.guarded import Asked, GuardedOracle
from kits.security.rights import codes
from oracle.kafka import jars_or_skip
from twofold.security.scram import ScramMechanism, salted_password

ENTRIES = [
    (2, "orders", 3, "User:alice", "*", 4, 3),  # WRITE
    (2, "orders", 4, "User:bob", "*", 3, 3),  # READ by prefix
    (2, "orders-secret", 3, "User:*", "*", 2, 2),  # ALL denied
    (3, "reports", 3, "User:bob", "127.0.0.1", 3, 3),
]


def password(name: str, mechanism: ScramMechanism) -> dict[str, object]:
    salt = f"salt of {name}".encode()
    salted = salted_password(mechanism, f"{name}-password", salt, 4096)
    return {"name": name, "mechanism": int(mechanism), "iterations": 4096, "salt": salt, "salted_password": salted}


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="twofold-fixture-") as directory:
        oracle = GuardedOracle(jars_or_skip(), Path(directory))
        oracle.start()
        try:
            asked = Asked(oracle.name, oracle.host, oracle.port)
            for name in ("orders", "orders-secret"):
                asked.create(name)
            rows = [password("alice", ScramMechanism.SHA_256), password("bob", ScramMechanism.SHA_512)]
            answer = asked.admin.ask("AlterUserScramCredentials", 0, deletions=[], upsertions=rows)
            assert codes(answer) == {0}, answer
            asked.grant(ENTRIES)
        finally:
            oracle.stop(clean=True)
        with tarfile.open(target, "w:gz") as archive:
            archive.add(oracle.data, "data", filter=lambda info: None if info.name.endswith(".lock") else info)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
