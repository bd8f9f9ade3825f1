import pytest

from graphlint.rules.gl304_gradient_bleed import RULE
from graphlint.testing import Case, cases


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()
