import math

import pytest

from fastbk.overview.bookie_history import Buckets, MetricText, rate, slope

PAGE = """# HELP fastbk_a_total Some.
# TYPE fastbk_a_total counter
fastbk_a_total 7
fastbk_b{pair="0",text="a \\"quoted\\" one"} 2
fastbk_b{pair="1"} 3.5
fastbk_other 9
fastbk_b{pair="2"} not a number
fastbk_h_bucket{pair="0",le="0.001"} 10
fastbk_h_bucket{pair="0",le="+Inf"} 12
fastbk_h_bucket{pair="1",le="0.001"} 1
fastbk_h_bucket{pair="1",le="+Inf"} 2
"""
NAMES = {"fastbk_a_total", "fastbk_b", "fastbk_h_bucket"}


def test_only_wanted_metrics_are_kept_and_bad_lines_left_out() -> None:
    found = MetricText.parse(PAGE, NAMES)
    assert found.total("fastbk_a_total") == 7
    assert found.total("fastbk_b") == 5.5
    assert found.of("fastbk_b")[0].labels == {"pair": "0", "text": 'a \\"quoted\\" one'}
    assert found.of("fastbk_other") == []
    assert found.total("fastbk_other") == 0


def test_a_histogram_is_added_up_or_of_one_pair() -> None:
    found = MetricText.parse(PAGE, NAMES)
    assert found.histogram("fastbk_h").counts == ((0.001, 11), (math.inf, 14))
    assert found.histogram("fastbk_h", pair=1).counts == ((0.001, 1), (math.inf, 2))
    assert found.histogram("fastbk_h", pair=7).count == 0


def test_quantiles_are_interpolated_within_their_bucket() -> None:
    buckets = Buckets(((1.0, 50), (2.0, 100), (math.inf, 100)))
    assert buckets.quantile(0.25) == pytest.approx(0.5)
    assert buckets.quantile(0.5) == pytest.approx(1.0)
    assert buckets.quantile(0.99) == pytest.approx(1.98)
    assert buckets.count == 100


def test_a_quantile_beyond_the_last_bound_is_that_bound() -> None:
    assert Buckets(((1.0, 1), (2.0, 1), (math.inf, 100))).quantile(0.99) == 2.0


def test_no_values_have_no_quantile() -> None:
    assert Buckets().quantile(0.5) is None
    assert Buckets(((1.0, 0), (math.inf, 0))).quantile(0.5) is None


def test_a_difference_is_what_came_in_between_and_all_after_a_reset() -> None:
    before = Buckets(((1.0, 5), (math.inf, 10)))
    after = Buckets(((1.0, 5), (math.inf, 12)))
    assert after.minus(before).counts == ((1.0, 0), (math.inf, 2))
    assert before.minus(after) == before
    assert after.minus(Buckets()) == after


def test_a_counter_that_began_anew_has_no_rate() -> None:
    assert rate(30, 10, 2.0) == 10.0
    assert rate(5, 10, 2.0) is None
    assert rate(10, 10, 0.0) is None


def test_a_slope_needs_two_different_points() -> None:
    assert slope([(0, 10), (1, 8), (2, 6)]) == pytest.approx(-2)
    assert slope([(3, 1)]) is None
    assert slope([(3, 1), (3, 2)]) is None
