"""The protocol with a bug in it: the search has to find each."""

from dataclasses import replace

from kits.dualwrite.world import Protocol
from twofold.dualwrite import protocol
from twofold.dualwrite.operations import Answer, Locked, Lost, Ok
from twofold.dualwrite.protocol import At, Next, Program


def read_before_fence(program: Program, answer: Answer) -> Next:
    """Recovery decides by the row as it was before the old writer was fenced and the row was owned."""
    if program.at is At.OWN and isinstance(answer, Locked):
        assert program.row is not None
        answer = Locked(replace(answer.row, state=program.row.state))
    return protocol.step(program, answer)


def no_owner_check(program: Program, answer: Answer) -> Next:
    """A writer locks the row without asking whose it is."""
    if program.at is At.LOCK and isinstance(answer, Lost):
        answer = Locked(answer.row)
    if program.at is At.STORE and isinstance(answer, Lost):
        answer = Ok()
    return protocol.step(program, answer)


def prepare_before_rows(program: Program, answer: Answer) -> Next:
    """The state is prepared and stored first, and the caller's rows and records come after it."""
    following = {At.BEGIN_LOG: At.PREPARE, At.STORE: At.CALLER, At.CALLER: At.COMMIT}.get(program.at)
    if following is not None and isinstance(answer, Ok):
        return protocol._to(program, following)
    return protocol.step(program, answer)


def no_rollback(program: Program, answer: Answer) -> Next:
    """After a COMMIT that failed, the row is read in the transaction that failed."""
    after = protocol.step(program, answer)
    if program.at is At.COMMIT and after[0].at is At.ROLLBACK and after[0].then is At.DOUBT_BEGIN:
        return protocol._to(after[0], At.DOUBT)
    return after


PLANTED = {
    "read before fence": Protocol(step=read_before_fence),
    "no owner check": Protocol(step=no_owner_check),
    "prepare before rows": Protocol(step=prepare_before_rows, sends_after_prepare=True),
    "no rollback": Protocol(step=no_rollback),
}
