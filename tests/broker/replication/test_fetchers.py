"""Fetchers over a simulated network: logs of two nodes become the same, whatever happens on the way."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kits.cluster.replica_node import TP, ReplicaNode, host_of, image_of
from kits.log.partition import data_batch, marker
from twofold.runtime.sim import Simulation
from twofold.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

Story = Callable[[Simulation, ReplicaNode, ReplicaNode], Awaitable[None]]


def two_nodes(**settings: Any) -> Callable[[Story], Callable[[], None]]:
    def decorate(story: Story) -> Callable[[], None]:
        def test() -> None:
            with Simulation(1) as sim:

                async def main() -> None:
                    leader = await ReplicaNode(sim, 1, **settings).start()
                    follower = await ReplicaNode(sim, 2, **settings).start()
                    await story(sim, leader, follower)

                sim.run(main(), timeout_s=3600)

        test.__name__, test.__doc__ = story.__name__, story.__doc__
        return test

    return decorate


async def until(node: ReplicaNode, condition: Callable[[], bool], within_s: float = 60) -> None:
    end_s = node.sim.now_s + within_s
    while not condition():
        assert node.sim.now_s < end_s, "it did not come to that"
        await node.runtime.timers.sleep(0.01)


async def until_same(a: ReplicaNode, b: ReplicaNode, within_s: float = 60) -> None:
    await until(
        a,
        lambda: (a.log.log_end_offset, a.log.high_watermark) == (b.log.log_end_offset, b.log.high_watermark),
        within_s,
    )
    assert a.content() == b.content()
    assert sorted(a.log.producers()) == sorted(b.log.producers())
    assert a.log.last_stable_offset == b.log.last_stable_offset
    epochs = range(a.epoch + 1)
    assert [a.log.end_offset_for_epoch(e) for e in epochs] == [b.log.end_offset_for_epoch(e) for e in epochs]


def begin(leader: ReplicaNode, follower: ReplicaNode, epoch: int = 1) -> None:
    leader.lead(epoch, {1, 2})
    follower.follow(leader.node_id, epoch)


@two_nodes()
async def test_a_follower_has_what_the_leader_has(sim, leader, follower):
    begin(leader, follower)
    for at in range(30):
        leader.append(3, pid=5, seq=3 * at, txn=at > 20)
        await leader.runtime.timers.sleep(0.03)
    await until_same(leader, follower)
    assert follower.log.high_watermark == 90
    assert follower.log.last_stable_offset == 63, "a transaction is open since then"
    leader.append_as_coordinator(marker(5, commit=False))
    await until_same(leader, follower)
    assert follower.log.last_stable_offset == 91


@two_nodes()
async def test_the_requests_are_those_of_a_session(sim, leader, follower):
    begin(leader, follower)
    leader.append(2)
    await until_same(leader, follower)
    await follower.runtime.timers.sleep(2)
    first, *others = leader.seen("Fetch")
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert (first.max_wait_ms, first.min_bytes, first.max_bytes) == (500, 1, 10485760)
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (2, 102)
    (asked,) = first.topics[0].partitions
    assert (asked.fetch_offset, asked.last_fetched_epoch, asked.current_leader_epoch) == (0, -1, 1)
    assert asked.partition_max_bytes == 1048576
    assert [request.session_epoch for request in others] == list(range(1, len(others) + 1))
    (moved,) = (row for request in others for topic in request.topics for row in topic.partitions)
    assert (moved.fetch_offset, moved.last_fetched_epoch) == (2, 1)
    assert len(others) < 8, "a leader without news keeps a fetch for half a second"


@two_nodes()
async def test_a_follower_that_wrote_what_was_lost_cuts_it(sim, leader, follower):
    """Node 1 led and appended alone; node 2 leads now and has another history from offset 4 on."""
    begin(leader, follower)
    leader.append(4)
    await until_same(leader, follower)
    sim.pause(host_of(2))
    leader.append(5)
    sim.resume(host_of(2))
    follower.fetchers.stop(TP)
    follower.lead(2, {1, 2})
    follower.append(2, value=b"the other history")
    leader.follow(2, 2)
    await until_same(leader, follower)
    assert leader.log.log_end_offset == 6


@two_nodes()
async def test_an_epoch_in_which_nothing_was_written_does_not_stop_a_follower(sim, leader, follower):
    begin(leader, follower)
    leader.append(4)
    await until_same(leader, follower)
    leader.lead(2, {1, 2})  # and the follower never heard of it
    follower.lead(3, {1, 2})
    leader.follow(2, 3)
    follower.append(1)
    await until_same(leader, follower, within_s=0.9)


@two_nodes()
async def test_a_follower_without_a_log_where_the_leader_has_lost_its_beginning(sim, leader, follower):
    leader.lead(1, {1})
    leader.append(10)
    leader.append(10)
    leader.log.advance_log_start(15)
    leader.isr = {1, 2}
    follower.follow(1, 1)
    await until(leader, lambda: follower.log.log_end_offset == 20)
    assert follower.log.log_start_offset == 15
    assert follower.log.read(15, 1000, _end()).records == leader.log.read(15, 1000, _end()).records


@two_nodes()
async def test_a_follower_that_fell_behind_the_leaders_log_start_begins_there(sim, leader, follower):
    begin(leader, follower)
    leader.append(10)
    await until_same(leader, follower)
    follower.fetchers.stop(TP)
    leader.isr = {1}
    for _ in range(3):
        leader.append(10)
        leader.log.roll()
    leader.log.advance_log_start(30)
    leader.log.delete_old_segments()
    follower.follow(1, 1)
    leader.isr = {1, 2}
    await until_same(leader, follower)
    assert follower.log.log_start_offset == 30


@two_nodes()
async def test_the_log_start_of_the_leader_is_taken_over(sim, leader, follower):
    begin(leader, follower)
    leader.append(10)
    await until_same(leader, follower)
    leader.log.advance_log_start(7)
    leader.append(1)
    await until_same(leader, follower)
    assert follower.log.log_start_offset == 7
    await until(leader, lambda: leader.sessions and _told_start(leader) == 7)


def _told_start(leader: ReplicaNode) -> int:
    (session,) = leader.sessions
    (partition,) = session.partitions.values()
    return int(partition.asked.log_start_offset)


@two_nodes()
async def test_a_leader_that_hangs_up_is_asked_again(sim, leader, follower):
    begin(leader, follower)
    leader.append(3)
    await until_same(leader, follower)
    leader.crash()
    await follower.runtime.timers.sleep(5)
    assert follower.fetchers
    await leader.start()
    leader.lead(2, {1, 2})
    follower.follow(1, 2)
    leader.append(3)
    await until_same(leader, follower)


@two_nodes()
async def test_a_follower_that_was_killed_goes_on_from_its_files(sim, leader, follower):
    begin(leader, follower)
    for _ in range(10):
        leader.append(5)
        await leader.runtime.timers.sleep(0.02)
    await until_same(leader, follower)
    for power_cut in (False, True):
        follower.crash(power_cut=power_cut)
        leader.append(5)
        await follower.start()
        follower.follow(1, 1)
        await until_same(leader, follower)


@two_nodes()
async def test_a_paused_leader_is_left_when_another_leads(sim, leader, follower):
    """Its answer comes after the metadata has named another leader: it is not taken."""
    third = await ReplicaNode(sim, 3).start()
    leader.lead(1, {1, 2, 3})
    for node in (follower, third):
        node.follow(1, 1)
    leader.append(3)
    await until_same(leader, follower)
    await until_same(leader, third)
    sim.pause(host_of(1))
    leader.log.append(data_batch(4, value=b"lost"), leader_epoch=1)
    third.lead(2, {2, 3})
    follower.follow(3, 2)
    third.append(2, value=b"kept")
    await until_same(third, follower)
    sim.resume(host_of(1))
    await follower.runtime.timers.sleep(2)
    leader.follow(3, 2)
    third.isr = {1, 2, 3}
    await until_same(third, leader)
    await until_same(third, follower)


@two_nodes()
async def test_while_broker_and_leader_are_cut_off_nothing_is_lost(sim, leader, follower):
    begin(leader, follower)
    leader.append(3)
    await until_same(leader, follower)
    cut = sim.network.partition(host_of(1), host_of(2))
    leader.append(3)
    await leader.runtime.timers.sleep(40)
    assert leader.log.high_watermark == 3
    cut.heal()
    await until_same(leader, follower)
    assert leader.log.high_watermark == 6


def failing(error_code: int, records: bytes = b"") -> Callable[[Any], FetchResponse]:
    def step(request: Any) -> FetchResponse:
        row = PartitionData(
            partition_index=0,
            error_code=error_code,
            high_watermark=-1 if error_code else 99,
            aborted_transactions=None,
            records=records,
            log_start_offset=0,
        )
        topic_id = request.topics[0].topic_id
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=topic_id, partitions=[row])])

    return step


@pytest.mark.parametrize("error_code", [6, 75, 3, 100, 103, 56, -1])
def test_an_error_of_a_partition_makes_it_rest_and_then_go_on(error_code: int) -> None:
    @two_nodes(replica_fetch_backoff_ms=1500)
    async def story(sim, leader, follower):
        leader.script("Fetch", failing(error_code))
        begin(leader, follower)
        leader.append(3)
        began_s = sim.now_s
        await until_same(leader, follower)
        assert 1.5 <= sim.now_s - began_s < 2.5
        assert len(leader.seen("Fetch")) <= 4

    story()


@two_nodes()
async def test_a_fenced_follower_waits_for_the_metadata(sim, leader, follower):
    leader.lead(2, {1, 2})
    follower.follow(1, 1)
    leader.append(3)
    await follower.runtime.timers.sleep(30)
    assert len(leader.seen("Fetch")) == 1
    follower.follow(1, 2)
    await until_same(leader, follower)


@two_nodes()
async def test_a_follower_that_knows_the_next_epoch_first_waits_for_the_leader_to_hear_of_it(sim, leader, follower):
    begin(leader, follower)
    follower.follow(1, 2)
    await follower.runtime.timers.sleep(3)
    leader.lead(2, {1, 2})
    leader.append(3)
    await until_same(leader, follower)


@two_nodes()
async def test_a_corrupt_batch_of_a_leader_is_not_written_and_asked_for_again(sim, leader, follower):
    batch = bytearray(data_batch(3, leader_epoch=1))
    batch[-1] ^= 1
    leader.script("Fetch", failing(0, bytes(batch)))
    begin(leader, follower)
    leader.append(3)
    await until(leader, lambda: len(leader.seen("Fetch")) == 1)
    await follower.runtime.timers.sleep(0.5)
    assert follower.log.log_end_offset == 0
    await until_same(leader, follower)


@two_nodes()
async def test_records_of_an_epoch_that_the_metadata_has_not_brought_yet_are_not_taken(sim, leader, follower):
    late = data_batch(2, leader_epoch=1) + data_batch(2, base_offset=2, leader_epoch=2, value=b"too early")
    leader.script("Fetch", failing(0, late))
    begin(leader, follower)
    leader.append(2)
    await until(leader, lambda: follower.log.log_end_offset > 0)
    assert follower.log.log_end_offset == 2
    await until_same(leader, follower)


@two_nodes()
async def test_a_follower_whose_session_was_evicted_opens_another(sim, leader, follower):
    begin(leader, follower)
    leader.append(1)
    await until_same(leader, follower)
    leader.sessions._sessions.clear()
    leader.append(1)
    await until_same(leader, follower)
    assert [r.session_epoch for r in leader.seen("Fetch")].count(0) == 2


@two_nodes()
async def test_where_records_must_be_on_disk_the_follower_acknowledges_what_it_has_synced(sim, leader, follower):
    sim.blocking_delay_s = (0.05, 0.05)
    follower.log.update_config(_with_flush(follower, 1))
    begin(leader, follower)
    for _ in range(10):
        leader.append(1)
        await until(leader, lambda: leader.log.high_watermark == leader.log.log_end_offset)
        assert follower.log.recovery_point >= leader.log.high_watermark
    follower.crash(power_cut=True)
    await follower.start()
    assert follower.log.log_end_offset == 10


@two_nodes()
async def test_a_partition_that_is_not_followed_any_more_is_not_touched(sim, leader, follower):
    begin(leader, follower)
    leader.append(1)
    await until_same(leader, follower)
    follower.fetchers.stop(TP)
    leader.append(1)
    await follower.runtime.timers.sleep(5)
    assert follower.log.log_end_offset == 1
    assert not list(follower.fetchers), "a fetcher without partitions ends"
    assert len(follower.fetchers) == 0


@two_nodes()
async def test_a_leader_that_moved_is_found_at_its_new_address(sim, leader, follower):
    follower.image = image_of(2, 3)
    begin(leader, follower)
    leader.append(1)
    await follower.runtime.timers.sleep(0.1)
    assert follower.log.log_end_offset == 0
    follower.image = image_of(1, 2, 3)
    follower.fetchers.brokers_changed()
    await until_same(leader, follower, within_s=0.6)


@two_nodes()
async def test_closing_ends_all_fetching(sim, leader, follower):
    begin(leader, follower)
    leader.append(1)
    await until_same(leader, follower)
    await follower.runtime.spawn(follower.fetchers.close(), name="close")
    leader.append(1)
    follower.follow(1, 1)
    await follower.runtime.timers.sleep(3)
    assert follower.log.log_end_offset == 1


def _end() -> Any:
    from twofold.log.api import Bound

    return Bound.LOG_END


def _with_flush(node: ReplicaNode, messages: int) -> Any:
    from dataclasses import replace

    return replace(node.log.config, flush_messages=messages)
