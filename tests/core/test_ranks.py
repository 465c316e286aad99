from __future__ import annotations

import numpy as np
import pytest

from twofold.core.ranks import nearest_rank


def test_the_least_value_that_at_least_the_share_does_not_exceed() -> None:
    ascending = [1.0, 2.0, 3.0, 4.0]
    assert [nearest_rank(ascending, share) for share in (0, 0.25, 0.26, 0.99, 1)] == [1, 1, 2, 4, 4]
    assert nearest_rank(np.array(ascending), 0.26) == 2


def test_a_rounded_product_is_not_the_next_rank() -> None:
    assert 0.07 * 100 > 7
    assert nearest_rank(range(1, 101), 0.07) == 7


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(IndexError):
        nearest_rank([], 0.5)
