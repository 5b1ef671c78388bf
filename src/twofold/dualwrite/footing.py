"""Where a writer stands between two programs: whether it is the owner, what is unsettled, and what it tells its caller.
Both fronts have one."""

import os

from twofold.client.transactions.prepared import PreparedTxnState
from twofold.dualwrite.errors import (
    DatabaseBehind,
    DecidedNotVisible,
    DualWriteError,
    OutcomeUnknown,
    TakenOver,
    Unsuitable,
)
from twofold.dualwrite.operations import Answer, LogEnded, RowFound
from twofold.dualwrite.protocol import Claim, End, Next, ProgramResult, take_over, write
from twofold.dualwrite.verdict import (
    Done,
    Settled,
    again,
    failure_of_take_over,
    log_aborted,
    new_token,
    outcome_of_write,
)


class Footing:
    """Of one writer of one transactional id, in one process."""

    def __init__(self, transactional_id: str, table: str) -> None:
        self.token = new_token()
        self.cluster = ""
        self.closed = False
        self._transactional_id = transactional_id
        self._table = table
        self._pid = os.getpid()
        self._claim: Claim | None = None  # None: has never been the writer
        self._doubt: DualWriteError | None = None  # what the caller was told of a transaction that is not settled
        self._stored: PreparedTxnState | None = None  # what the row has, as long as this is the writer
        self._behind: DualWriteError | None = None  # the row had lost that
        self._told: Settled | None = None  # what the background has settled, until the caller asks

    @property
    def in_doubt(self) -> PreparedTxnState | None:
        """The last transaction whose end is not known."""
        return None if self._doubt is None else self._doubt.state

    @property
    def is_unsettled(self) -> bool:
        return self._claim is Claim.UNSETTLED

    @property
    def is_lost(self) -> bool:
        return self._claim is Claim.LOST

    def refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise Unsuitable(
                f"the writer of {self._transactional_id!r} was made in process {self._pid}, and this is process "
                f"{os.getpid()}: make one in each process, after the fork",
                transactional_id=self._transactional_id,
            )

    def must_take_over(self) -> bool:
        """Whether a take-over comes before the next write; raises where there is no next write."""
        if self.closed:
            raise Unsuitable(
                f"the writer of {self._transactional_id!r} is closed", transactional_id=self._transactional_id
            )
        if self._behind is not None:
            raise again(self._behind)
        if self._claim is Claim.LOST:
            raise TakenOver(
                f"another process has taken {self._transactional_id!r} over: this writer is over. Make another to take "
                "it back",
                transactional_id=self._transactional_id,
            )
        return self._claim is not Claim.OWNER

    def take_over(self, expected: str | None = None) -> Next:
        """From this writer itself, where it has been the writer before; otherwise from `expected`, or from any."""
        return take_over(self.token, self.cluster, expected if self._claim is None else self.token)

    def write(self) -> Next:
        return write(self.token, self.cluster, self._stored)

    def after_take_over(self, result: ProgramResult, cause: BaseException | None) -> Settled | None:
        if result.end is End.TAKEN or self._claim is not None:
            self._claim = result.claim
        failure = failure_of_take_over(result, self._transactional_id, self.cluster, self._table)
        if failure is not None:
            if isinstance(cause, Unsuitable):
                raise cause
            raise failure from cause
        assert result.row is not None
        state = self.in_doubt or result.kept
        settled = Settled(state, state == result.row.state) if state else None
        if self.in_doubt is not None:
            self._doubt, self._told = None, settled
        self._stored = result.row.state
        return settled

    def still(self, error: DualWriteError) -> DualWriteError:
        """What is raised for an error of settling: of what is in doubt it must not say that it is not done."""
        return error if self._doubt is None else again(self._doubt)

    def hear(self, ended: Answer, found: Answer) -> None:
        """Of what is in doubt, when another process has taken over: what the log and the row say about it."""
        assert self._doubt is not None
        state, doubt = self._doubt.state, self._doubt
        is_in_row = isinstance(found, RowFound) and found.row.state == state
        match ended:
            case LogEnded(False) if is_in_row or isinstance(doubt, DecidedNotVisible):
                raise log_aborted(state, self._transactional_id)
            case LogEnded(committed):
                self._doubt, self._told = None, Settled(state, committed)
            case _ if is_in_row:
                self._doubt, self._told = None, Settled(state, is_done=True)
            case _:
                raise again(doubt) from getattr(ended, "error", None)

    def tell(self) -> Settled | None:
        """What became of the last transaction whose end was not known; once."""
        told, self._told = self._told, None
        return told

    def after_write(self, result: ProgramResult) -> Done | DualWriteError:
        self._claim = result.claim
        outcome = outcome_of_write(result, self._transactional_id)
        if isinstance(outcome, DecidedNotVisible | OutcomeUnknown) and outcome.state:
            self._doubt = outcome
        elif isinstance(outcome, DatabaseBehind):
            self._behind = outcome
        elif isinstance(outcome, Done) and outcome.state:
            self._stored = outcome.state
        return outcome

    def lets_go(self) -> bool:
        """Whether it was the owner, with nothing left open. From now on it is not the writer."""
        is_owner = self._claim is Claim.OWNER
        if is_owner:
            self._claim = None
        return is_owner

    def abandon(self) -> None:
        """A program did not come to its end: an interrupt, a cancellation."""
        if self._claim is not None:
            self._claim = Claim.UNSETTLED
