"""The log of a process: lines for people, objects for machines."""

import io
import json
import logging

from twofold.logging import configure_logging


def test_people_get_time_level_part_and_message() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    logging.getLogger("twofold.broker.network.server").warning("%d connections", 3)
    logging.getLogger("twofold.broker.network.server").debug("not shown")
    (line,) = out.getvalue().splitlines()
    assert line.endswith("WARNING broker.network.server: 3 connections")
    assert line[:4].isdigit() and line[10] == " "


def test_no_name_begins_a_line_of_its_own_or_steers_a_terminal() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    forged = "id\n2026-07-01 12:00:00.000 INFO    audit: refused\r\x1b[2J\u2028\x85"
    try:
        raise KeyError(ValueError(forged))
    except KeyError:
        logging.getLogger("twofold.audit").exception("EndTxn by %s: jürgen's", forged)
    first, *others = out.getvalue().splitlines()
    assert r"EndTxn by id\n2026-07-01 12:00:00.000 INFO    audit: refused\r\x1b[2J\u2028\x85: jürgen's" in first
    assert others and all(line.startswith("    ") for line in others)
    assert "\x1b" not in out.getvalue()


def test_machines_get_one_object_a_line_with_the_traceback_and_the_extras() -> None:
    out = io.StringIO()
    configure_logging(log_format="json", level="debug", stream=out)
    try:
        raise KeyError("lost\nlines")
    except KeyError:
        logging.getLogger("twofold.log").error("cannot read %s", "t-0", exc_info=True, extra={"partition": "t-0"})
    (line,) = out.getvalue().splitlines()
    fields = json.loads(line)
    assert fields["level"] == "error" and fields["logger"] == "twofold.log" and fields["partition"] == "t-0"
    assert fields["message"] == "cannot read t-0" and fields["time"].endswith("Z")
    assert "KeyError" in fields["error"]


def test_setting_up_twice_logs_once() -> None:
    out = io.StringIO()
    configure_logging(stream=io.StringIO())
    configure_logging(stream=out)
    logging.getLogger("twofold").info("once")
    assert out.getvalue().count("once") == 1


def test_a_stream_that_cannot_be_written_is_no_reason_to_fail() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    out.close()
    logging.getLogger("twofold").error("into the void")
