"""The Gaussian process of the regressor against closed forms, and the choice between it and the ensemble."""

import pickle

import numpy as np
import pytest
from estimator_data import SHORT
from scipy import optimize, stats
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

import sdebnn
from sdebnn.estimators import gaussian_process, regressor
from sdebnn.estimators.gaussian_process import GaussianProcess, kernel, log_evidence, log_prior

LOG_PARAMETERS = np.log([[0.7, 2.0, 1.3, 1.5, 0.4, 0.2], [3.0, 1.0, 0.5, 0.8, 1.1, 0.05]])
pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
AUTO = {"members": 1, "max_iter": 200, "random_state": 0}


@pytest.fixture
def rows():
    """Inputs, two targets and weights."""
    random = np.random.default_rng(0)
    return random.normal(size=(25, 3)), random.normal(size=(25, 2)), random.uniform(0.5, 3.0, 25)


@pytest.fixture(scope="session")
def smooth():
    """A table without noise whose target is smooth in two columns."""
    x = np.random.default_rng(0).uniform(-1, 1, (150, 2))
    return x, np.sin(2 * x[:, 0]) * x[:, 1] + x[:, 0]


@pytest.fixture(scope="session")
def process(smooth):
    """A regressor for which a Gaussian process was fitted to ``smooth``."""
    return sdebnn.SDEBNNRegressor(family="gp", random_state=0).fit(*smooth)


@pytest.mark.parametrize("log_parameters", LOG_PARAMETERS)
def test_the_evidence_is_the_density_of_the_targets_and_its_gradient_is_exact(log_parameters, rows):
    x, y, weight = rows
    covariance = kernel(log_parameters, x, x) + np.diag(np.exp(2 * log_parameters[-1]) / weight)
    value, gradient = log_evidence(log_parameters, x, y[:, 0], weight)
    np.testing.assert_allclose(value, stats.multivariate_normal(np.zeros(25), covariance).logpdf(y[:, 0]))
    for function, exact in (
        (lambda at: log_evidence(at, x, y[:, 0], weight)[0], gradient),
        (lambda at: log_prior(at)[0], log_prior(log_parameters)[1]),
    ):
        np.testing.assert_allclose(optimize.approx_fprime(log_parameters, function, 1e-6), exact, rtol=1e-4, atol=1e-4)


def test_the_search_ends_where_the_gradient_vanishes(smooth):
    x, y = smooth[0], smooth[1] + 0.1 * np.random.default_rng(1).normal(size=150)
    found = gaussian_process.best_parameters(x, y, np.ones(150))
    gradient = log_evidence(found, x, y, np.ones(150))[1] + log_prior(found)[1]
    np.testing.assert_allclose(gradient, 0, atol=0.1)  # nats; one standard deviation has a gradient of about 1
    assert 0.08 < np.exp(found[-1]) < 0.12  # the noise of the table is 0.1


def test_held_out_densities_are_those_of_the_leave_one_out_formula(rows):
    """y_i | others ~ N(y_i - α_i / B_ii, 1 / B_ii) with B = A⁻¹ and α = B y (Rasmussen and Williams, 5.4.2)."""
    x, y, weight = rows
    process = GaussianProcess(x, y, weight, LOG_PARAMETERS)
    densities = np.zeros(25)
    for target, log_parameters in enumerate(LOG_PARAMETERS):
        noise = np.exp(2 * log_parameters[-1])
        inverse = np.linalg.inv(kernel(log_parameters, x, x) + np.diag(noise / weight))
        error = inverse @ y[:, target] / np.diag(inverse)
        variance = 1 / np.diag(inverse) - noise / weight + noise  # of a row of weight 1
        densities += stats.norm.logpdf(error, scale=np.sqrt(variance))
    for held_out in (np.arange(25), np.arange(5, 12)):
        found = process.held_out_log_density([np.array([row]) for row in held_out], steps=0)
        np.testing.assert_allclose(found, np.average(densities[held_out], weights=weight[held_out]))


def test_the_rows_of_a_fold_do_not_help_to_predict_each_other(rows):
    """With B = A⁻¹ restricted to a fold,   y_fold | others ~ N(y_fold - B⁻¹ α_fold, B⁻¹)."""
    x, y, _ = rows
    folds, densities = [np.arange(6), np.arange(10, 17)], []
    inverse = np.linalg.inv(kernel(LOG_PARAMETERS[0], x, x) + np.exp(2 * LOG_PARAMETERS[0, -1]) * np.eye(25))
    for fold in folds:
        covariance = np.linalg.inv(inverse[np.ix_(fold, fold)])
        error = covariance @ (inverse @ y[:, 0])[fold]
        densities.append(stats.norm.logpdf(error, scale=np.sqrt(np.diag(covariance))))
    process = GaussianProcess(x, y[:, :1], np.ones(25), LOG_PARAMETERS[:1])
    np.testing.assert_allclose(process.held_out_log_density(folds, steps=0), np.concatenate(densities).mean())


def test_held_out_densities_are_those_of_hyperparameters_that_have_not_seen_the_fold(smooth):
    """Rows with a blank cell are far noisier than others, and a process of one noise level follows them."""
    random = np.random.default_rng(0)
    x = random.uniform(size=(1200, 4))
    y = np.exp(1.5 * x[:, 0]) * (1 + x[:, 1]) + 3 * x[:, 2]
    blank = random.uniform(size=x.shape) < 0.05
    x = np.hstack([np.where(blank, 0.5, x), blank])
    x, y = (x - x[:200].mean(0)) / x[:200].std(0), ((y - y[:200].mean()) / y[:200].std())[:, None]
    process = GaussianProcess.fit(x[:200], y[:200], np.ones(200))
    folds = np.array_split(random.permutation(200), 5)
    mean, std = process.predict(x[200:])
    constant = stats.norm.logpdf(y[200:]).mean()
    assert stats.norm.logpdf(y[200:], mean, std).mean() < constant - 5
    assert process.held_out_log_density(folds, steps=0) > constant + 5  # of hyperparameters that have seen the rows
    assert process.held_out_log_density(folds) < constant
    # If noise is the same for all rows, a search from the start finds the same hyperparameters.
    x, y = smooth[0], (smooth[1] + 0.1 * random.normal(size=150))[:, None]
    process, fold = GaussianProcess.fit(x, y, np.ones(150)), np.arange(30)
    mean, std = GaussianProcess.fit(x[30:], y[30:], np.ones(120)).predict(x[:30])
    exact = stats.norm.logpdf(y[:30], mean, std).mean()
    np.testing.assert_allclose(process.held_out_log_density([fold]), exact, atol=0.01)


def test_predictions_are_those_of_scikit_learn_with_the_same_kernel(rows):
    x, y, weight = rows
    at = np.random.default_rng(1).normal(size=(10, 3))
    mean, std = GaussianProcess(x, y, weight, LOG_PARAMETERS).predict(at)
    for target, log_parameters in enumerate(LOG_PARAMETERS):
        *length, scale, trend, noise = np.exp(log_parameters)
        same = (
            ConstantKernel(scale**2) * RBF(length)
            + ConstantKernel(1.0)
            + ConstantKernel(trend**2) * DotProduct(sigma_0=0.0, sigma_0_bounds="fixed")
        )
        other = GaussianProcessRegressor(same, alpha=noise**2 / weight, optimizer=None).fit(x, y[:, target])
        known_mean, known_std = other.predict(at, return_std=True)
        np.testing.assert_allclose(mean[:, target], known_mean, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(std[:, target], np.hypot(known_std, noise), rtol=1e-6)


def test_samples_have_the_joint_covariance_of_the_process(process, smooth):
    """Neighbouring rows share a function, so that the difference of their targets varies little besides the noise."""
    x = np.array([[3.0, 3.0], [3.001, 3.0], [-3.0, 3.0]])  # far from the data, where functions differ
    mean, std = process.predict(x, return_std=True)
    samples = process.sample_y(x, 4000, random_state=0)
    assert samples.shape == (3, 4000)
    # Four standard errors of 4000 normal samples.
    np.testing.assert_allclose((samples.mean(1) - mean) / std, 0, atol=4 / np.sqrt(4000))
    np.testing.assert_allclose(samples.std(1) / std, 1, atol=4 / np.sqrt(8000))
    assert np.std(samples[0] - samples[1]) < 0.05 * std[0]
    assert abs(np.corrcoef(samples)[0, 2]) < 0.9
    np.testing.assert_array_equal(samples, process.sample_y(x, 4000, random_state=0))


def test_all_forecasts_of_the_process_are_of_one_normal_law(process, smooth):
    x, y = smooth[0][:20], smooth[1][:20]
    mean, std = process.predict(x, return_std=True)
    law = stats.norm(mean, std)
    np.testing.assert_allclose(process.log_prob(x, y + 0.01), law.logpdf(y + 0.01))
    np.testing.assert_allclose(process.predict_quantiles(x, 0.9), law.ppf(0.9))
    np.testing.assert_allclose(np.stack(process.predict_interval(x, 0.8)), np.stack([law.ppf(0.1), law.ppf(0.9)]))
    found = process.forecast(x, 0.8)
    np.testing.assert_array_equal([*found[:2], *found.interval], [mean, std, *process.predict_interval(x, 0.8)])
    np.testing.assert_allclose(np.hypot(*found.uncertainty), std)
    assert np.ptp(found.uncertainty.noise) == 0  # the same for all rows
    outcomes = process.outcomes(x, y)
    np.testing.assert_allclose(outcomes.mean.mean(0)[:, 0], mean)
    np.testing.assert_allclose(outcomes.mean.std(0)[:, 0], found.uncertainty.reducible, atol=1e-9)
    np.testing.assert_allclose(np.sqrt(outcomes.variance.mean(0))[:, 0], found.uncertainty.noise)


@pytest.mark.slow
def test_auto_takes_the_process_for_a_smooth_table_and_the_ensemble_for_steps(smooth):
    x, y = smooth
    model = sdebnn.SDEBNNRegressor(**AUTO)
    chosen = clone(model).fit(x, y)
    assert chosen.family_ == "gp"
    assert chosen.family_scores_["gp"] > chosen.family_scores_["ensemble"] + 1
    alone = clone(model).set_params(family="gp").fit(x, y)
    np.testing.assert_array_equal(chosen.predict(x), alone.predict(x))
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (400, 2))
    steps = (x[:, 0] > 0) + np.where(x[:, 0] > 0, 0.3, 0.01) * random.standard_t(3, 400)
    chosen = clone(model).fit(x, steps)
    assert chosen.family_ == "ensemble"
    assert chosen.family_scores_["ensemble"] > chosen.family_scores_["gp"]
    assert chosen.gp_ is None
    np.testing.assert_array_equal(
        chosen.predict(x), clone(model).set_params(family="ensemble").fit(x, steps).predict(x)
    )


def test_scores_of_families_are_in_the_units_of_the_targets(smooth):
    x, y = smooth
    plain, scaled = (sdebnn.SDEBNNRegressor(**SHORT).fit(x, unit * y).family_scores_ for unit in (1.0, 1000.0))
    for name, score in plain.items():
        np.testing.assert_allclose(scaled[name], score - np.log(1000), atol=1e-2)


def test_auto_uses_the_ensemble_alone_without_held_out_rows_or_with_too_many(smooth, monkeypatch, refused):
    x, y = smooth
    model = sdebnn.SDEBNNRegressor(**SHORT)
    without = clone(model).set_params(early_stopping=False).fit(x, y)
    assert (without.family_, without.family_scores_) == ("ensemble", {})
    monkeypatch.setattr(regressor, "MAX_ROWS", 100)
    assert clone(model).fit(x, y).family_ == "ensemble"
    refused(lambda: clone(model).set_params(family="gp").fit(x, y), "family='gp' .* 150 distinct rows")
    refused(lambda: clone(model).set_params(family="kriging").fit(x, y), "family='kriging'")


def test_weights_of_the_process_are_repeats_and_their_unit_does_not_matter(smooth):
    x, y = smooth[0][:60], smooth[1][:60] + 0.1 * np.random.default_rng(0).normal(size=60)
    model, times = sdebnn.SDEBNNRegressor(family="gp"), 1 + np.arange(60) % 3
    weighted = clone(model).fit(x, y, sample_weight=times).predict(x, return_std=True)
    for x_, y_, weight in ((np.repeat(x, times, 0), np.repeat(y, times), None), (x, y, times / times.sum())):
        for one, other in zip(weighted, clone(model).fit(x_, y_, weight).predict(x, return_std=True), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_several_targets_have_processes_of_their_own(smooth, process):
    x, y = smooth
    noisy = 1e6 * (x[:, 1] + 0.3 * np.random.default_rng(0).normal(size=150))
    model = sdebnn.SDEBNNRegressor(family="gp").fit(x, np.column_stack([y, noisy, np.full(150, 7.0)]))
    mean, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(mean[:, 0], process.predict(x), atol=1e-7)
    assert 0.2e6 < std[:, 1].mean() < 0.4e6
    np.testing.assert_allclose(mean[:, 2], 7.0)
    assert (std > 0).all()
    assert model.sample_y(x[:5], 4).shape == (5, 3, 4)
    assert model.log_prob(x, mean).shape == (150,)


def test_a_saved_process_gives_the_same_forecasts(process, smooth, tmp_path):
    x, y = smooth
    for model in (process, sdebnn.SDEBNNRegressor(**SHORT).fit(x, y)):
        assert model.family_ == "gp"
        sdebnn.save(model, tmp_path / "saved")
        for other in (sdebnn.load(tmp_path / "saved"), pickle.loads(pickle.dumps(model))):
            np.testing.assert_array_equal(other.log_prob(x, y), model.log_prob(x, y))
            np.testing.assert_array_equal(other.sample_y(x[:3], 2), model.sample_y(x[:3], 2))
            assert (other.family_, other.family_scores_) == (model.family_, model.family_scores_)


@pytest.mark.parametrize(
    "wrong",
    [
        {"log_parameters": np.full((1, 5), 800.0)},
        {"log_parameters": np.zeros((1, 6))},
        {"weight": np.zeros(150)},
        {"x": np.full((150, 2), np.inf)},
        {"y": np.zeros((149, 1))},
        {"y": None},
    ],
)
def test_a_saved_process_with_wrong_numbers_is_refused(wrong, process, tmp_path, refused):
    model = clone(process)
    vars(model).update({**vars(process), "gp_": process.gp_._replace(**wrong)})
    sdebnn.save(model, tmp_path / "saved")
    refused(lambda: sdebnn.load(tmp_path / "saved"), "gp_")
    vars(model).update(gp_=None)
    sdebnn.save(model, tmp_path / "saved")
    refused(lambda: sdebnn.load(tmp_path / "saved"), "gp_")


def test_warm_start_fits_the_process_anew(smooth, process):
    x, y = smooth
    model = sdebnn.SDEBNNRegressor(family="gp", warm_start=True, random_state=0).fit(x[:50], y[:50] + 3)
    np.testing.assert_array_equal(model.fit(x, y).predict(x), process.predict(x))
    model = sdebnn.SDEBNNRegressor(**SHORT, warm_start=True).fit(x, y)
    assert model.fit(x, 2 * y).family_ == "gp"
    np.testing.assert_allclose(model.predict(x), 2 * y, atol=1e-2)


def test_conformal_intervals_of_the_process_cover():
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (1300, 2))
    y = np.sin(3 * x[:, 0]) + 0.2 * random.standard_t(2, 1300)
    model = sdebnn.SDEBNNRegressor(family="gp", conformal=True, calibration_fraction=0.5, random_state=0)
    lower, upper = model.fit(x[:300], y[:300]).predict_interval(x[300:], coverage=0.9)
    # 150 held-out rows: the coverage is Beta(136, 15), mean 0.9007, standard deviation 0.024.
    assert abs(np.mean((lower <= y[300:]) & (y[300:] <= upper)) - 0.9007) < 3.5 * np.hypot(0.024, 0.0095)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_rows_leave_a_wide_forecast(count):
    x = np.arange(count, dtype=float)[:, None]
    model = sdebnn.SDEBNNRegressor(family="gp").fit(x, np.sin(x[:, 0]) + 1)
    mean, std = model.predict(x + 100, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0.1).all()
