"""Ensembles: training all members together, and the weight of each in a prediction."""

from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest
from small_models import GRID, KEY, QUIET, X, Y, arrays, members, over_keys

from sdebnn import (
    SDEBNN,
    Batches,
    Checkpoints,
    Deterministic,
    Ensemble,
    Gaussian,
    Objective,
    Optimizer,
    Validation,
    fit,
    predict,
    refined,
)
from sdebnn.baselines import Hypernet, TemperatureScaled
from sdebnn.nn import MeanField, ODEBlock, TimeMLP, draw_keys
from sdebnn.train import grouped_muon

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")


def test_members_trained_together_equal_members_trained_alone():
    how = {
        "epochs": 40, "objective": Objective(draws=1), "batches": Batches(4), "optimizer": Optimizer(1e-2), **QUIET
    }  # fmt: skip
    together = fit(Ensemble(members()), Gaussian(0.3), X, Y, **how).model
    for number, member in enumerate(members()):
        alone = fit(Deterministic(member), Gaussian(0.3), X, Y, **how).model
        for ours, theirs, before in zip(arrays(together.member(number)), arrays(alone), arrays(member), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
            assert np.abs(ours - before).max() > 0.01


def test_a_wrapped_net_counts_its_evaluations():
    net = SDEBNN((ODEBlock(TimeMLP(2, (2,), key=KEY), solver=GRID),))
    for wrapped in (MeanField(net), Hypernet(net, key=KEY), Ensemble([net, net]), TemperatureScaled(net)):
        assert eqx.filter_jit(wrapped.solve)(X, key=KEY).evaluations == GRID.steps, type(wrapped).__name__


def test_predictions_use_the_members_in_turn_and_each_key_names_one():
    ensemble = Ensemble(members())
    each = np.stack([jax.vmap(member)(X) for member in members()])
    for seed in range(4):
        key = jax.random.key(seed)
        outputs = predict(ensemble, X, draws=6, key=key)
        order = [int(np.abs(each - draw).max((1, 2)).argmin()) for draw in outputs]
        np.testing.assert_allclose(outputs, each[order], atol=1e-6)
        assert sorted(order[:3]) == [0, 1, 2] == sorted(order[3:])
        few, many = (jax.random.key_data(draw_keys(key, n, ensemble)) for n in (3, 6))
        assert np.array_equal(few, many[:3])
    # arbitrary keys name all members about equally often: 300 draws, 4 standard errors
    numbers = [int(np.abs(each - draw).max((1, 2)).argmin()) for draw in over_keys(ensemble, X, 300)[0]]
    assert np.all(np.abs(np.bincount(numbers, minlength=3) - 100) < 4 * np.sqrt(300 * 2 / 9))


@pytest.mark.parametrize("draws", [1, 5, 7])
def test_every_member_of_an_ensemble_has_the_same_weight_in_a_prediction(draws):
    """Seven draws of five members are rounded up to ten, so that the mean is exactly that of the members."""
    nets = members(5)
    each = np.stack([jax.vmap(member)(X) for member in nets])
    for ensemble in (Ensemble(nets), Ensemble(nets).for_training(), TemperatureScaled(Ensemble(nets))):
        outputs = np.asarray(predict(ensemble, X, draws=draws, draws_at_once=10, key=KEY), float)
        assert len(outputs) == 5 * -(-draws // 5)
        np.testing.assert_allclose(outputs.mean(0), each.mean(0), atol=1e-6)


def test_a_list_is_trained_in_turn_and_its_first_member_as_if_it_were_alone(tmp_path):
    how = {"epochs": 5, "objective": Objective(draws=1), "batches": Batches(4), "optimizer": Optimizer(1e-2), **QUIET}
    nets = [Deterministic(member) for member in members()]
    fitted = fit(nets, Gaussian(0.3), X, Y, checkpoints=Checkpoints(tmp_path), **how)
    alone = fit(nets[0], Gaussian(0.3), X, Y, **how)
    for ours, theirs in zip(arrays(fitted.model.member(0)), arrays(alone.model), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert fitted.model.size == len(nets)
    assert fitted.history["elbo"].shape == (len(nets), len(alone.history["elbo"]))
    assert sorted(path.name for path in tmp_path.glob("member-*")) == [f"member-{i}" for i in range(1, len(nets))]
    again = fit(nets, Gaussian(0.3), X, Y, checkpoints=Checkpoints(tmp_path, resume=True), **how)
    for ours, theirs in zip(arrays(again.model), arrays(fitted.model), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_models_that_would_learn_a_likelihood_each_are_refused_in_a_list():
    nets = [Deterministic(member) for member in members()]
    with pytest.raises(ValueError, match=r"Ensemble\(models\)"):
        fit(nets, Gaussian(0.3, learn=True), X, Y, **QUIET)
    with pytest.raises(ValueError, match="at least one"):
        fit([], Gaussian(0.3), X, Y, **QUIET)
    held_out = Validation(X, Y)
    with pytest.raises(ValueError, match="TemperatureScaled learns from the data after"):
        fit([TemperatureScaled(net) for net in nets], Gaussian(0.3), X, Y, validation=held_out, **QUIET)


def test_muon_refuses_members_that_are_trained_together():
    rule = partial(grouped_muon, 0.1)
    with pytest.raises(ValueError, match="pass fit a list"):
        fit(Ensemble(members()), Gaussian(0.3), X, Y, optimizer=Optimizer(rule=rule), **QUIET)


@pytest.mark.filterwarnings("ignore:rtol=")
def test_a_mixture_trained_on_a_grid_is_solved_to_a_tolerance_member_by_member():
    nets = [SDEBNN.paper_mlp(1, 1, widths=(3,), drift=(2,), solver=GRID, key=jax.random.key(i)) for i in (0, 1)]
    mixture, x = Ensemble(nets), jax.numpy.linspace(-1, 1, 5)[:, None]
    samples, keys = predict(mixture, x, draws=2, key=KEY, rtol=1e-2), draw_keys(KEY, 2, mixture)
    # Each draw is that of the member that its key names, with the key that the mixture gives it.
    alone = [[refined(net, rtol=1e-2)(x, key=jax.random.fold_in(key, 0))[0] for net in nets] for key in keys]
    distances = np.abs(np.asarray(alone) - np.asarray(samples)[:, None]).max((2, 3))
    np.testing.assert_allclose(distances.min(1), 0, atol=1e-4)
    assert sorted(distances.argmin(1)) == [0, 1]
    assert distances.max(1).min() > 1e-3
