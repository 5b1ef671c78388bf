"""What `twofold pipeline` says about sinks: text for people, JSON for programs."""

from collections.abc import Mapping

from twofold.cli.common import plural as plural
from twofold.cli.common import print_table
from twofold.cli.group.report import ranges
from twofold.client import TopicPartition
from twofold.client.admin.transaction_model import NO_TIMEOUT_MS
from twofold.sink.decided import DecidedEntry
from twofold.sink.inspection import SinkState, SinkTransaction, Tally
from twofold.sink.recovery import Recovered
from twofold.sink.register import JournalKind, Register

Json = dict[str, object]
NONE_DECIDED = -1


def age(age_ms: int) -> str:
    """In the two largest units, as in `2 h 5 min`. Clocks differ: what is of the future is of now."""
    seconds = max(0, age_ms) // 1000
    for unit, smaller, size, part in (("d", "h", 86_400, 3_600), ("h", "min", 3_600, 60), ("min", "s", 60, 1)):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // part} {smaller}"
    return f"{seconds} s"


# The state of a sink


def print_state(state: SinkState, now_ms: int) -> None:
    register = state.register
    *earlier, last = register.decided or (DecidedEntry("", NONE_DECIDED),)
    if register.query_name:
        print(f"pipeline     {register.query_name}")
    print(f"sink         {state.prefix}")
    print(f"journal      {state.topic}")
    print(f"query        {last.name or '-'}")
    print(f"batch        {_batch(last.batch_id)}")
    print(f"decision     {_decision(state)}")
    print(f"owner        {register.owner or '-'}")
    if register.where:
        print(f"checkpoint   {register.where}")
    if register.moved_to:
        print(f"goes on as   {register.moved_to}")
    print(f"last record  {register.kind}, {age(now_ms - register.at_ms)} ago")
    if earlier:
        print(f"before       {_earlier(earlier)}")


def print_transactions(state: SinkState, now_ms: int) -> None:
    if state.transactions:
        print()
        print_table(["TRANSACTION", "STATE", "AGE", "PARTITIONS"], [_row(row, now_ms) for row in state.transactions])


def _batch(batch_id: int) -> str:
    return "none decided" if batch_id == NONE_DECIDED else str(batch_id)


def _decision(state: SinkState) -> str:
    tally = state.tally
    if tally is None:
        if state.register.kind is JournalKind.REVOKE:
            return "taken back: the query writes the batch again"
        return "done" if any(entry.batch_id != NONE_DECIDED for entry in state.register.decided) else "-"
    total = len(tally.decision.participants)
    text = f"in doubt: {len(tally.left)} of {plural(total, 'transaction')} still open, {len(tally.committed)} committed"
    text += f", {len(tally.lost)} lost" if tally.lost else ""
    return f"{text}, {len(tally.forgotten)} forgotten" if tally.forgotten else text


def _earlier(decided: list[DecidedEntry]) -> str:
    text = f"query {decided[-1].name} up to batch {_batch(decided[-1].batch_id)}"
    return f"{text}, and {len(decided) - 1} more" if len(decided) > 1 else text


def _row(row: SinkTransaction, now_ms: int) -> tuple[str, ...]:
    started = age(now_ms - row.start_ms) if row.start_ms >= 0 else "-"
    partitions = [TopicPartition(topic, index) for topic, indexes in row.partitions.items() for index in indexes]
    return (row.transactional_id, row.standing, started, ranges(partitions) or "-")


def state_json(state: SinkState, now_ms: int) -> Json:
    register = state.register
    queries: list[Json] = [
        {
            "query_id": entry.name,
            "last_decided_batch": None if entry.batch_id == NONE_DECIDED else entry.batch_id,
        }
        for entry in register.decided
    ]
    last = queries[-1] if queries else {"query_id": None, "last_decided_batch": None}
    return {
        "pipeline": register.query_name or None,
        "prefix": state.prefix,
        "decision_topic": state.topic,
        **last,
        "queries": queries,
        "owner": register.owner,
        "checkpoint": register.where or None,
        "moved_to": register.moved_to or None,
        "last_record": _record_json(register, now_ms),
        "pending": None if state.tally is None else _pending_json(state.tally),
        "transactions": [_transaction_json(row, now_ms) for row in state.transactions],
    }


def _record_json(register: Register, now_ms: int) -> Json:
    return {"kind": register.kind.value, "timestamp_ms": register.at_ms, "age_ms": max(0, now_ms - register.at_ms)}


def _pending_json(tally: Tally) -> Json:
    decision = tally.decision
    return {
        "query_id": decision.query_id,
        "run_id": decision.run_id,
        "batch_id": decision.batch_id,
        "mode": decision.mode.value,
        "transactions": len(decision.participants),
        "open": len(tally.left),
        "committed": len(tally.committed),
        "lost": [participant.transactional_id for participant in tally.lost],
        "forgotten": [participant.transactional_id for participant in tally.forgotten],
    }


def _transaction_json(row: SinkTransaction, now_ms: int) -> Json:
    partitions: Mapping[str, list[int]] = {topic: list(indexes) for topic, indexes in row.partitions.items()}
    return {
        "transactional_id": row.transactional_id,
        "state": row.standing.value,
        "producer_id": row.identity.producer_id,
        "producer_epoch": row.identity.epoch,
        "age_ms": max(0, now_ms - row.start_ms) if row.start_ms >= 0 else None,
        "timeout_ms": None if row.timeout_ms == NO_TIMEOUT_MS else row.timeout_ms,
        "partitions": partitions,
    }


# What recovering does


def plan(state: SinkState) -> list[str]:
    """What will be done, one sentence each."""
    lines = [] if state.tally is None else [_completion(state.tally)]
    if state.undecided:
        ids = ", ".join(row.transactional_id for row in state.undecided[:3])
        more = f" and {len(state.undecided) - 3} more" if len(state.undecided) > 3 else ""
        count = plural(len(state.undecided), "transaction")
        lines.append(f"aborts {count} that no decision covers: {ids}{more}")
    if state.is_deciding:
        lines.append(f"drops a record of {state.topic} that was not finished")
    return lines


def _completion(tally: Tally) -> str:
    total, decision = len(tally.decision.participants), tally.decision
    batch = f"batch {decision.batch_id} of query {decision.query_id}"
    if tally.is_taken_back:
        return (
            f"takes the decision about {batch} back: {len(tally.lost)} of its {plural(total, 'transaction')} timed out "
            "and none is committed; the query writes the batch again"
        )
    lost = f", without {len(tally.lost)} that were aborted" if tally.lost else ""
    lost += f", as if {len(tally.forgotten)} were committed that no coordinator knows" if tally.forgotten else ""
    left = f"commits {len(tally.left)} of its {plural(total, 'transaction')}" if tally.left else "nothing of it is open"
    return f"completes {batch}: {left}{lost}"


def nothing_to_do(state: SinkState) -> str:
    if not state.register.decided:
        return f"nothing to do: {state.prefix} has no open transaction, and decided nothing so far"
    last = state.register.decided[-1]
    batch = "no batch is decided" if last.batch_id == NONE_DECIDED else f"batch {last.batch_id} is done"
    return f"nothing to do: {state.prefix} has no open transaction, and {batch} (query {last.name})"


def print_recovered(done: Recovered) -> None:
    before = done.before
    print(f"sink         {before.prefix}")
    print(f"owner        {done.owner}")
    if done.decision is not None:
        query_id, batch_id = done.decision
        text = "taken back: the query writes it again" if done.taken_back else "done"
        text += f", without {plural(len(done.lost), 'transaction')} (--accept-loss)" if done.lost else ""
        print(f"batch        {batch_id} of query {query_id}: {text}")
    print(f"committed    {plural(len(done.committed), 'transaction')}")
    print(f"aborted      {plural(len(done.aborted), 'transaction')}")
    rows = [(row["transactional_id"], row["outcome"]) for row in _outcomes(done)]
    if rows:
        print()
        print_table(["TRANSACTION", "OUTCOME"], rows)


def recovered_json(state: SinkState, done: Recovered | None) -> Json:
    """None where there was nothing to do."""
    told: Json = {"prefix": state.prefix, "decision_topic": state.topic, "changed": done is not None}
    if done is None:
        return told | {"owner": state.register.owner, "mode": None, "decision": None, "transactions": []}
    decision: Json | None = None
    if done.decision is not None:
        query_id, batch_id = done.decision
        outcome = "revoked" if done.taken_back else "done"
        decision = {"query_id": query_id, "batch_id": batch_id, "outcome": outcome, "lost": list(done.lost)}
    return told | {
        "owner": done.owner,
        "mode": done.mode.value,
        "decision": decision,
        "transactions": _outcomes(done),
    }


def _outcomes(done: Recovered) -> list[Json]:
    outcome = dict.fromkeys(done.committed, "committed") | dict.fromkeys(done.aborted, "aborted")
    return [{"transactional_id": name, "outcome": outcome[name]} for name in sorted(outcome)]
