"""The parts of the estimators: mixtures of draws, conformal ranks, rows and encodings of a table."""

import numpy as np
import pytest
from scipy import integrate, stats

from sdebnn.data import Standardiser
from sdebnn.estimators.conformal import conformal_bound
from sdebnn.estimators.forecast import Forecast
from sdebnn.estimators.table import Encoding, Table


@pytest.mark.parametrize("row", range(3))
def test_a_forecast_is_the_mixture_of_its_draws(row):
    random = np.random.default_rng(0)
    law, location, scale = stats.t(5), random.normal(size=(7, 3, 1)), random.uniform(0.1, 2, (7, 3, 1))
    forecast = Forecast(law, location, scale)

    def density(y):
        return np.mean(law.pdf((y - location[:, row, 0]) / scale[:, row, 0]) / scale[:, row, 0])

    mean = integrate.quad(lambda y: y * density(y), -np.inf, np.inf)[0]
    square = integrate.quad(lambda y: (y - mean) ** 2 * density(y), -np.inf, np.inf, limit=200)[0]
    np.testing.assert_allclose(forecast.mean()[row, 0], mean, atol=1e-6)
    np.testing.assert_allclose(forecast.std()[row, 0], np.sqrt(square), rtol=1e-5)
    np.testing.assert_allclose(forecast.log_prob(np.full((3, 1), 0.3))[row], np.log(density(0.3)))
    for level in (0.025, 0.5, 0.9):
        below = integrate.quad(density, -np.inf, forecast.quantile(level)[row, 0], limit=200)[0]
        np.testing.assert_allclose(below, level, atol=1e-7)


@pytest.mark.parametrize("law", [stats.norm(), stats.t(5), stats.laplace()])
@pytest.mark.parametrize("level", [1e-3, 0.5, 0.975])
def test_quantiles_are_exact_for_draws_of_very_different_scales(law, level):
    """The distribution function of such a mixture is flat between its draws."""
    random = np.random.default_rng(0)
    forecast = Forecast(law, 10 * random.normal(size=(32, 500, 1)), np.exp(3 * random.normal(size=(32, 500, 1))))
    found = forecast.quantile(level)
    reached = law.cdf((found - forecast.location) / forecast.scale).mean(0)
    np.testing.assert_allclose(reached, level, atol=1e-9)
    alone = Forecast(law, forecast.location[:, :3], forecast.scale[:, :3]).quantile(level)
    np.testing.assert_array_equal(alone, found[:3])  # independent of the other rows


def test_all_targets_of_a_row_come_from_the_same_draw():
    location, scale = np.array([[[0.0, 0.0]], [[3.0, 3.0]]]), np.ones((2, 1, 2))
    # (0, 3) is far less likely than (3, 3).
    seen = [Forecast(stats.norm(), location, scale).log_prob(np.array([y]))[0] for y in ((3.0, 3.0), (0.0, 3.0))]
    by_hand = [
        np.log(np.mean([stats.norm.pdf(a - m) * stats.norm.pdf(b - m) for m in (0, 3)])) for a, b in ((3, 3), (0, 3))
    ]
    np.testing.assert_allclose(seen, by_hand)


def test_the_coverage_of_the_conformal_bound_is_exact():
    """The k-th of n exchangeable scores is not exceeded by another with probability k / (n + 1)."""
    random = np.random.default_rng(0)
    for n, coverage in ((19, 0.95), (20, 0.9), (9, 0.5)):
        scores = np.sort(random.exponential(size=(20_000, n)), axis=1)
        seen = np.mean(random.exponential(size=20_000) <= conformal_bound(scores, coverage))
        exact = np.ceil((n + 1) * coverage - 1e-9) / (n + 1)
        assert exact >= coverage - 1e-9
        np.testing.assert_allclose(seen, exact, atol=4 * np.sqrt(exact * (1 - exact) / 20_000))


def test_padding_and_merging_rows_keep_weighted_sums():
    random = np.random.default_rng(0)
    x = random.integers(0, 3, (50, 2)).astype(float)
    rows = Table(x, x[:, :1] ** 2, random.integers(0, 4, 50).astype(float))
    whole = (rows.weight[:, None] * np.hstack([rows.x, rows.y])).sum(0)
    for changed in (rows.distinct(), rows.padded(256), rows.distinct().padded(64)):
        np.testing.assert_allclose((changed.weight[:, None] * np.hstack([changed.x, changed.y])).sum(0), whole)
        assert np.isclose(changed.weight.sum(), rows.weight.sum())
    assert len(rows.padded(256).x) == 256
    assert len(rows.distinct().x) <= 9
    train, held_out = rows.distinct().split(0.3, 0)
    assert len(train.x) + len(held_out.x) == len(rows.distinct().x)


def test_each_fold_holds_other_rows_out():
    rows = Table(np.arange(20.0)[:, None], np.zeros((20, 1)), np.ones(20))
    held_out = [set(rows.split(0.2, 3, number)[1].x[:, 0]) for number in range(5)]
    assert set.union(*held_out) == set(range(20))


def test_a_standardised_column_has_mean_zero_and_spread_one():
    random = np.random.default_rng(0)
    columns, weight = random.normal(3, 2, (100, 2)) * [1e-200, 1e200], random.uniform(0, 2, 100)
    z = Standardiser.of(columns, weight, constant=1.0).to(columns)
    np.testing.assert_allclose(np.average(z, axis=0, weights=weight), 0, atol=1e-12)
    np.testing.assert_allclose(np.average(z**2, axis=0, weights=weight), 1)


def test_a_column_with_a_large_offset_is_not_taken_for_a_constant():
    column = 1.7e9 + np.random.default_rng(0).normal(size=(10_000, 1))
    np.testing.assert_allclose(Standardiser.of(column, np.ones(10_000), constant=1e-6).spread, column.std(), rtol=1e-6)


def test_the_bins_of_a_value_add_up_to_its_position_among_the_knots():
    x = np.random.default_rng(0).normal(size=(2000, 1))
    encoding = Encoding.of(x, np.ones(2000), 16)
    in_bins = encoding.in_bins(encoding.columns.to(x)).sum(1)
    knots = encoding.knots[0][np.isfinite(encoding.knots[0])]
    places = np.interp(encoding.columns.to(x)[:, 0], knots, np.arange(len(knots)))
    np.testing.assert_allclose(in_bins, places, atol=1e-9)
