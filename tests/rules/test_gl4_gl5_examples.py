"""Every example of the device and cleanup rules, run under capture and judged by all rules."""

import pytest

from graphlint.rules.gl401_ping_pong_transfer import RULE as PING_PONG
from graphlint.rules.gl402_redundant_transfer import RULE as REDUNDANT
from graphlint.rules.gl403_repeated_transfer import RULE as REPEATED
from graphlint.rules.gl404_device_mismatch import RULE as MISMATCH
from graphlint.rules.gl501_cleanup_churn import RULE as CHURN
from graphlint.testing import cases


@pytest.mark.parametrize("case", cases(PING_PONG, REDUNDANT, REPEATED, MISMATCH, CHURN), ids=str)
def test_example(case):
    case.check()
