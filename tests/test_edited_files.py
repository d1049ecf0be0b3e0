"""Damaged files, and edited files with a valid seal, are refused in one line and in bounded memory."""

import json
import random

import equinox as eqx
import interrupted_run
import jax
import numpy as np
import pytest
from hostile import assert_refused
from test_files import mutations

import sdebnn
from sdebnn import artifacts
from sdebnn.records import load_one, parse, save_one, save_tree, write_record
from sdebnn.train import saved_answer, saved_steps
from sdebnn.train.checkpoints import CHECKPOINT_KIND

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
NOT_A_VALUE = [None, True, -1, 10**9, 10**30, 1e400, float("nan"), "word", "<U500000000", [], {}, [[[]]], {"value": {}}]


@pytest.fixture(scope="module", params=[sdebnn.SDEBNNRegressor, sdebnn.SDEBNNClassifier])
def saved(request, tmp_path_factory):
    """A fitted estimator in a file."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = np.where(x[:, 0] > 0, "yes", "no") if request.param is sdebnn.SDEBNNClassifier else x[:, 0]
    path = tmp_path_factory.mktemp("saved") / "e.safetensors"
    sdebnn.save(request.param(members=1, width=8, steps=2, draws=8, max_iter=3, random_state=0).fit(x, y), path)
    return path


@pytest.mark.usefixtures("bounded")
def test_a_damaged_estimator_is_refused(saved, tmp_path):
    whole, path = saved.read_bytes(), tmp_path / "e.safetensors"
    for name, data in mutations(whole, 80, seed=1):
        path.write_bytes(data)
        assert_refused(sdebnn.load, path, name)


def places(tree, where=()):
    """Every place in a tree of JSON, as a list of keys."""
    if where:
        yield where
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from places(part, (*where, key))


def changed(tree, where, value):
    """A copy of a tree with another value in one place; without it, if the value is ``...``."""
    tree = json.loads(json.dumps(tree))
    at = tree
    for key in where[:-1]:
        at = at[key]
    if value is ...:
        del at[where[-1]]
    else:
        at[where[-1]] = value
    return tree


@pytest.mark.usefixtures("bounded")
def test_an_estimator_with_an_edited_record_and_a_valid_seal_is_refused_or_still_works(saved, tmp_path):
    arrays, words = load_one(saved, artifacts.KIND, {})
    x, path, lot = np.random.default_rng(1).normal(size=(2, 3)), tmp_path / "e.safetensors", random.Random(0)
    reference, refusals = sdebnn.load(saved).predict(x), 0
    everywhere = list(places(words))
    for number in range(100):
        where, value = lot.choice(everywhere), lot.choice([..., *NOT_A_VALUE])
        save_one(path, arrays, artifacts.KIND, changed(words, where, value))
        try:
            found = sdebnn.load(path)
        except ValueError as error:
            assert len(str(error).splitlines()) == 1, (where, value)
            assert path.name in str(error)
            refusals += 1
        else:  # what was changed is of no consequence for predictions, such as the rate of training
            assert np.array_equal(found.predict(x), reference), (number, where, value)
    assert refusals > 70


FORGERIES = {
    "a net of a billion": ("net_", lambda fields: [*fields[:2], {"value": 10**9}, *fields[3:]]),
    "a net of a billion outputs": ("net_", lambda fields: [fields[0], {"value": 10**9}, *fields[2:]]),
    "no net at all": ("net_", lambda fields: fields[:2]),
    "another tuple": ("y_scaling_", lambda fields: fields[::-1] + fields),
}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", FORGERIES)
def test_sizes_larger_than_the_file_are_refused_before_memory_is_allocated(saved, tmp_path, name):
    arrays, words = load_one(saved, artifacts.KIND, {})
    part, change = FORGERIES[name]
    words["state"][part]["fields"] = change(words["state"][part]["fields"])
    path = tmp_path / "e.safetensors"
    save_one(path, arrays, artifacts.KIND, words)
    assert_refused(sdebnn.load, path, name)


def test_an_estimator_with_parameters_that_are_not_finite_is_refused(saved, tmp_path):
    arrays, words = load_one(saved, artifacts.KIND, {})
    for name in [name for name in arrays if name.startswith("ensemble_")]:
        bad = arrays[name].copy()
        bad.flat[0] = np.nan
        save_one(tmp_path / "e", {**arrays, name: bad}, artifacts.KIND, words)
        assert_refused(sdebnn.load, tmp_path / "e", name)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, interrupted_run.train(folder)


def parameters_of(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.usefixtures("bounded")
@pytest.mark.slow
def test_a_checkpoint_with_an_edited_record_and_a_valid_seal_is_refused_or_still_works(run):
    folder, fitted = run
    like = eqx.filter((fitted.model, fitted.likelihood), eqx.is_inexact_array)
    step = saved_steps(folder)[-1]
    file = folder / "checkpoints" / f"step-{step:08d}.json"
    whole, lot, refusals = file.read_bytes(), random.Random(0), 0
    words = json.loads(whole)
    del words["seal"], words["kind"]
    top = [(name,) for name in words]
    reference, kept = interrupted_run.leaves(fitted), parameters_of(saved_answer(folder, like))
    try:
        for number in range(60):
            where, value = top[number % len(top)], lot.choice([..., *NOT_A_VALUE])
            write_record(file, CHECKPOINT_KIND, changed(words, where, value))
            for load in (lambda: saved_answer(folder, like), lambda: interrupted_run.train(folder, resume=True)):
                try:
                    found = load()
                except ValueError as error:
                    assert len(str(error).splitlines()) == 1, (where, value)
                    assert str(folder) in str(error)
                    refusals += 1
                else:  # what was changed is of no consequence for the parameters
                    leaves = interrupted_run.leaves(found) if hasattr(found, "history") else parameters_of(found)
                    assert leaves == (reference if hasattr(found, "history") else kept), (where, value)
        assert refusals > 75
        write_record(file, CHECKPOINT_KIND, words)
        assert interrupted_run.leaves(interrupted_run.train(folder, resume=True)) == reference
    finally:
        file.write_bytes(whole)


def test_a_checkpoint_with_parameters_that_are_not_finite_is_refused(run):
    folder, fitted = run
    like = eqx.filter((fitted.model, fitted.likelihood), eqx.is_inexact_array)
    pair = folder / "checkpoints" / f"step-{saved_steps(folder)[-1]:08d}"
    data, record = (pair.with_suffix(suffix).read_bytes() for suffix in (".safetensors", ".json"))
    words = json.loads(record)
    facts = {name: value for name, value in words.items() if name not in ("seal", "kind", "sha256")}
    arrays = {name: array.copy() for name, array in parse(data).items()}
    for name, array in arrays.items():
        if name.startswith(("parameters", "ema")):
            array.flat[0] = np.inf
    try:
        save_tree(pair, arrays, CHECKPOINT_KIND, facts)
        for load in (lambda: saved_answer(folder, like), lambda: interrupted_run.train(folder, resume=True)):
            assert_refused(lambda _, load=load: load(), pair, "infinite")
    finally:
        pair.with_suffix(".safetensors").write_bytes(data)
        pair.with_suffix(".json").write_bytes(record)
