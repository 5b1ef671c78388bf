"""The same questions to Apache Kafka and to Twofold; the answers must agree, or differ as decided.

Each case is one test; what it asks is in `interop/cases`. A decided difference carries its reason and the exact answer
that Twofold gives instead. An oracle that contradicts itself, because it shows a state in passing, is a warning.
`pytest tests/interop/test_differential.py -k Fetch` runs the cases of one theme.
"""

import warnings
from collections.abc import Iterator

import pytest

from interop.cases import ALL
from oracle.compare import Case, compare
from oracle.kafka import EXACT_SETTINGS, Oracle
from oracle.twofold import Twofold, running_twofold

pytestmark = [pytest.mark.oracle, pytest.mark.interop]


@pytest.fixture(scope="module")
def twofold() -> Iterator[Twofold]:
    with running_twofold(EXACT_SETTINGS) as server:
        yield server


@pytest.mark.parametrize("case", ALL, ids=str)
def test_answers_agree(case: Case, oracle: Oracle, twofold: Twofold) -> None:
    wrong, wavering = compare(case, oracle, twofold)
    if wavering:
        warnings.warn(f"{case}: the oracle gave two answers:\n" + "\n".join(wavering), stacklevel=1)
    assert twofold.running, f"the server did not survive the case:\n{twofold.output.read_text()[-2000:]}"
    assert not wrong, f"{case}: {len(wrong)} differences\n" + "\n".join(wrong)


def test_suite_is_wide_enough() -> None:
    """At least one case a theme and names that tell them apart: they name the topics too."""
    names = [str(case) for case in ALL]
    assert len(set(names)) == len(names)
    assert len(names) >= 800
