"""The same stories while transaction.version is 1: what the server does of its own accord follows the old protocol.

They are not in the suite of all cases: `test_differential` sets both servers back for them.
"""

from dataclasses import replace

from interop.cases import txn_init, txn_stories, txn_timeouts
from interop.cases.txn_end import NOT_OURS
from oracle.compare import Case, Differs

NOT_BUMPED = Differs(NOT_OURS.why, {"transaction_states[0].producer_epoch": 1})
DECIDED = {
    "ending_it_of_the_old_protocol": {
        "v5 False": NOT_OURS,
        "v5 False, with what was learnt": NOT_OURS,
        "v5 False, in the end": NOT_BUMPED,
    }
}

ALL: list[Case] = [
    replace(case, group=f"{case.group}-1", differs={**case.differs, **DECIDED.get(case.name, {})})
    for module in (txn_init, txn_timeouts, txn_stories)
    for case in module.CASES.all
]
