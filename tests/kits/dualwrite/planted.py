"""The protocol with a bug in it: the search has to find each."""

import ast
from dataclasses import replace
from pathlib import Path

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


def with_source(old: str, new: str) -> Protocol:
    """The protocol with other words in its source. Its classes stay the same, so that the world knows them."""
    source = Path(protocol.__file__).read_text()
    assert source.count(old) == 1, f"{source.count(old)} places fit {old!r}"
    tree = ast.parse(source.replace(old, new))
    tree.body = [node for node in tree.body if not isinstance(node, ast.ClassDef)]
    names = dict(vars(protocol))
    exec(compile(tree, protocol.__file__, "exec"), names)
    return Protocol(names["take_over"], names["write"], names["step"])


PLANTED = {
    "read before fence": lambda: Protocol(step=read_before_fence),
    "no owner check": lambda: Protocol(step=no_owner_check),
    "prepare before rows": lambda: Protocol(step=prepare_before_rows, sends_after_prepare=True),
    "no rollback": lambda: Protocol(step=no_rollback),
    "a COMMIT without an answer is aborted": lambda: with_source(
        "return _roll_back(program, At.DOUBT_BEGIN)",
        "return _roll_back_and_abort(program, End.NOT_DONE, Claim.OWNER)",
    ),
    "a COMMIT without an answer has taken the row over": lambda: with_source(
        "case Ok() if program.kept:", "case Ok() | Doubtful() if program.kept:"
    ),
    "decided before the row is owned": lambda: with_source(
        "return _to(program, At.OWN_COMMIT)", "return _roll_back(program, At.SETTLE)"
    ),
    "done although the log has fenced it": lambda: with_source(
        "case FencedOff():\n            return _to(program, At.ASK)",
        "case FencedOff():\n            return _end(program, End.DONE, Claim.LOST)",
    ),
    "not done although another process may have found it": lambda: with_source(
        "return _roll_back(replace(program, row=row), At.ASK)",
        "return _roll_back_and_end(replace(program, row=row), End.NOT_DONE, Claim.LOST)",
    ),
}
