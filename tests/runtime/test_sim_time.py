"""Virtual time, where it meets code that counts the rest of a deadline in floating point."""

import pytest

from twofold.runtime.sim import Simulation


@pytest.mark.parametrize("seed", range(20))
def test_a_loop_that_waits_for_the_rest_of_its_time_ends(seed: int) -> None:
    """Twenty of them, whose timers fall close together: woken early, they would wait zero seconds for ever."""
    with Simulation(seed) as sim:

        async def wait(number: int) -> int:
            runtime = sim.runtime("a")
            end = runtime.clock.monotonic() + 0.1 + number * 1e-8
            turns = 0
            while runtime.clock.monotonic() < end:
                await runtime.timers.sleep(end - runtime.clock.monotonic())
                turns += 1
            return turns

        async def main() -> list[int]:
            tasks = [sim.runtime("a").spawn(wait(number), name=f"waiter {number}") for number in range(20)]
            return [await task for task in tasks]

        assert max(sim.run(main(), timeout_s=1)) <= 2
