"""What must hold of a whole run: the histories of the clients against the log that is left at the end."""

from collections import Counter

from sim.broker.clients import Sent, writer_of
from sim.broker.watch import require, stored_batches
from sim.broker.world import BROKER, DATA, World
from twofold.runtime.sim.disk import SimDisk
from twofold.wire.errors import OutOfOrderSequenceNumber


def check(world: World) -> None:
    check_final_log(world)
    check_acknowledged(world)
    check_failures(world)
    check_order_and_doubles(world)
    check_readers(world)


def check_final_log(world: World) -> None:
    """Disk, model and the last reader agree."""
    disk = world.sim.disk(BROKER)
    assert isinstance(disk, SimDisk)
    for tp in world.partitions:
        (model,) = world.watch.of(tp)
        require(stored_batches(disk, f"{DATA}/{tp}") == model.batches, f"{tp}: the files are not what was appended")
        require(
            world.final[tp] == [model.values[offset] for offset in range(model.end)],
            f"{tp}: a reader sees something else than what was appended",
        )


def check_acknowledged(world: World) -> None:
    """Nothing that was acknowledged is lost, but by a power cut where nobody asked for a sync."""
    present = {tp: set(values) for tp, values in world.final.items()}
    for sent in world.history:
        if sent.offset is None:
            continue
        tp = sent.topic_partition
        (model,) = world.watch.of(tp)
        if sent.offset < 0:
            # Acknowledged by what came after it; where it is the broker did not remember.
            is_there = sent.value in present[tp]
            is_lost = any(value == sent.value for _, value in model.lost)
        else:
            is_there = sent.offset < len(world.final[tp]) and world.final[tp][sent.offset] == sent.value
            is_lost = (sent.offset, sent.value) in model.lost
        require(is_there or (is_lost and tp.topic not in world.durable), f"{sent} was acknowledged and is not there")


def check_failures(world: World) -> None:
    """Who does not give up gets every record through, unless a power cut left a gap before it."""
    patient = {plan.node for plan in world.plan.producers if plan.patient}
    for sent in world.history:
        if sent.error is not None and sent.writer.partition("/")[0] in patient:
            (model,) = world.watch.of(sent.topic_partition)
            require(
                isinstance(sent.error, OutOfOrderSequenceNumber) and model.cuts,
                f"{sent} failed although nothing was lost",
            )


def check_order_and_doubles(world: World) -> None:
    """Each writer's records are in their order, and those of idempotent ones at most once.

    A plain producer only gets this much: what it was told to be there is in order where it first appears. A request
    that it gave up may still be carried out, later.
    """
    idempotent = {plan.node: plan.idempotent for plan in world.plan.producers} | {"last": True}
    acknowledged = {sent.value for sent in world.history if sent.acknowledged}
    for tp, values in world.final.items():
        numbers: dict[str, list[int]] = {}
        for value in values:
            writer, number = writer_of(value)
            if idempotent[writer.partition("/")[0]] or value in acknowledged:
                numbers.setdefault(writer, []).append(number)
        for writer, found in numbers.items():
            firsts = list(dict.fromkeys(found))
            require(firsts == sorted(firsts), f"{tp}: the records of {writer} are out of order: {firsts}")
            doubled = [number for number, times in Counter(found).items() if times > 1]
            require(
                not doubled or not idempotent[writer.partition("/")[0]],
                f"{tp}: records {doubled} of {writer} are there more than once",
            )


def check_readers(world: World) -> None:
    """What a reader saw at an offset is there for ever, unless a power cut took it."""
    for app in world.consumers:
        for tp, offset, value in app.seen:
            final = world.final[tp]
            if offset < len(final) and final[offset] == value:
                continue
            (model,) = world.watch.of(tp)
            require(
                (offset, value) in model.lost and tp.topic not in world.durable,
                f"{app.plan.node} read {value[:30]!r} at {tp}@{offset}, which is not there at the end",
            )


def failures(history: list[Sent]) -> Counter[str]:
    return Counter(type(sent.error).__name__ for sent in history if sent.error is not None)
