"""Inputs that once did harm; a row is what `make fuzz` prints. What was wrong stands beside it."""

import pytest

from fuzz.targets import TARGETS

FOUND = [
    # An array of numbers that is null where the schema does not allow it came through the reader: WriteTxnMarkers.
    (
        "request",
        "001b0001000000010001660002ffffffffffffffff00010102135f5f636f6e73756d65725f6f66667365747300"
        "0000010100000000000000",
    ),
    # Counts that claim 2^31 items and more: kio's reader made room for them and ended the process where it got none.
    (
        "request_round_trip",
        "0000000d00000001000166000f636c65616e75702e706f6c696379012f000000000200000000000000000000000cc617d9fa81caf6c57c"
        "d653810063000000000102ffffffff0500010000000000",
    ),
    ("request_round_trip", "000d00050000000100016600026702ffffffff0f0267076e6f626f6479"),
    ("request", "0003000c0000000100016600ffffffff0f0000"),
    # A tagged field whose value is shorter than its size: the reader went on in the middle of it.
    (
        "response",
        "1204000000010045010000753002004e030f636c65616e75702e7001006963798000000100076e6f626f6479ffff02c1000219fbf89190"
        "626f647901b500f20007c3bc3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d9e3d3d3d3d3d1dffff04000000000000000000300200800000",
    ),
    # The byte before an entity that may be null: the reader takes -1 alone for null, the walk took all below 0.
    ("request_round_trip", "004b000000000001000000010066015dbe010000000000000000"),
    # A section of -1 records without a byte was read as one of none.
    ("records_section", "fdff31fffe027600"),
    ("response", "030c0000000100000000000000ffffffff0f0000"),
]


@pytest.mark.parametrize(("target", "data"), FOUND)
def test_an_input_that_was_found_by_the_fuzzer_does_no_harm(target, data):
    TARGETS[target].run(bytes.fromhex(data))
