"""A database and the log in step: rows and records, both or neither.

    from sqlalchemy import create_engine
    from twofold.dualwrite import DualWrite

    engine = create_engine("postgresql+psycopg://...")
    with DualWrite(engine, bootstrap_servers="127.0.0.1:9092", transactional_id="shop") as dual:
        with dual.transaction() as (db, log):
            db.execute(...)
            log.send("orders", b"a teapot")

`errors` draws the tree of what can go wrong, `protocol` has the rules, and docs/guide/two-phase-commit.md the proof.
"""

from twofold.extras import require

require("dualwrite", "twofold.dualwrite")

from twofold.dualwrite.aio import AsyncDualWrite  # noqa: E402
from twofold.dualwrite.aio_pool import AsyncDualWritePool  # noqa: E402
from twofold.dualwrite.apply_once import ApplyOnce  # noqa: E402
from twofold.dualwrite.blocking import DualWrite  # noqa: E402
from twofold.dualwrite.errors import (  # noqa: E402
    DatabaseBehind,
    DecidedNotVisible,
    Disagreement,
    DualWriteError,
    LogAborted,
    NoFreeSlot,
    NotDone,
    OtherCluster,
    OtherTopic,
    OutcomeUnknown,
    TakenOver,
    Unsuitable,
)
from twofold.dualwrite.pool import DualWritePool  # noqa: E402
from twofold.dualwrite.verdict import Done, Settled  # noqa: E402

__all__ = [
    "ApplyOnce",
    "AsyncDualWrite",
    "AsyncDualWritePool",
    "DatabaseBehind",
    "DecidedNotVisible",
    "Disagreement",
    "Done",
    "DualWrite",
    "DualWriteError",
    "DualWritePool",
    "LogAborted",
    "NoFreeSlot",
    "NotDone",
    "OtherCluster",
    "OtherTopic",
    "OutcomeUnknown",
    "Settled",
    "TakenOver",
    "Unsuitable",
]
