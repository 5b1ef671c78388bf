"""The words of kafka-transactions.sh, and those that KIP-664 showed, mean our commands."""

import pytest

from twofold.cli.txn.words import normalize, table


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("list", "list"),
        ("--bootstrap-server h:1 list", "list --bootstrap-server h:1"),
        (
            "--bootstrap-server=h:1 describe --transactional-id x",
            "describe --bootstrap-server=h:1 --transactional-id x",
        ),
        ("--list --broker 0 --bootstrap-server h:1", "list --broker-id 0 --bootstrap-server h:1"),
        ("--bootstrap-server h:1 --find-hanging --broker 0", "find-hanging --bootstrap-server h:1 --broker-id 0"),
        ("--abort --topic t --partition 0 --start-offset 5", "abort --topic t --partition 0 --start-offset 5"),
        ("--topic t --partition 0 --describe-producers", "describe-producers --topic t --partition 0"),
        ("forceTerminateTransaction --transactionalId x", "terminate --transactional-id x"),
        ("forceTerminateTransaction --transactionalId=x", "terminate --transactional-id=x"),
        ("-b h:1 --forceTerminateTransaction --transactionalId x", "terminate -b h:1 --transactional-id x"),
        ("complete --transactional-id x --state 1:2 --abort", "complete --transactional-id x --state 1:2 --abort"),
        ("", ""),
        ("--help", "--help"),
    ],
)
def test_what_is_typed_means_one_of_our_commands(typed: str, meant: str):
    assert normalize(typed.split()) == meant.split()


def test_a_table_is_padded_to_its_widest_cells_with_a_tab_after_each():
    assert table(["Topic", "P"], [("orders", 10), ("a", 2)]) == "Topic \tP \t\norders\t10\t\na     \t2 \t"
    assert table(["Topic", "P"], []) == "Topic\tP\t"
