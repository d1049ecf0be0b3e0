"""Sweeps: a fixed number of trials, each trained once whatever happens to the workers, compared without the test."""

import inspect
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
import sweep_worker
from interrupted_run import train as short_run

from sdebnn import cli, runs, sweeps
from sdebnn.cli import reporting, training
from sdebnn.cli.sweeping import sweep
from sdebnn.data import Part
from sdebnn.files import FolderLock
from sdebnn.models import blocks
from sdebnn.presets import About, preset
from sdebnn.records import write_record
from sdebnn.reports import report
from sdebnn.runs.changing import changed
from sdebnn.runs.settings import KIND
from sdebnn.sweeps import Choice, Range, Results, Row, Sweep, parsed, trials, work
from sdebnn.sweeps.importance import importances
from sdebnn.sweeps.results import write_results
from sdebnn.sweeps.settings import write_sweep
from sdebnn.sweeps.space import from_json, to_json
from sdebnn.tables.rows import TableSettings, table_rows, validation_split
from sdebnn.tables.runs import open_table
from sdebnn.train import Scores

SPACE = {"learning_rate": Range(1e-3, 1e-1, log=True), "sigma": Choice((0.1, 0.2, 0.5)), "ema": Range(0.1, 0.9)}


class Formula(sweeps.AbstractTrainee):
    """A score that is a known function of the values, with a curve that approaches it; each training is counted."""

    types = sweeps.NET_TYPES

    def __init__(self, folder, seed=0, data="a"):
        self.folder, self.seed, self.data, self.calls = folder, seed, data, Counter()
        self.fail_if = lambda values: False
        self.interrupt_at = None

    @property
    def settings(self):
        return {"seed": self.seed, "data": self.data}

    def digest(self):
        return self.data

    def check(self, space):
        pass

    def applies(self, name, values):
        return True

    def epochs(self, values):
        return 8

    def train(self, values, folder, should_stop):
        self.calls[folder.name] += 1
        if sum(self.calls.values()) == self.interrupt_at:
            raise KeyboardInterrupt
        if self.fail_if(values):
            raise ValueError("such values are refused: choose others.")
        score = (np.log10(values["learning_rate"]) + 2) ** 2 + 0.3 * values["sigma"]
        for epoch in range(1, 9):
            nll = float(score + 1 / epoch)
            if should_stop is not None and should_stop(epoch, Scores(nll, -nll, 0.0, 0.5)):
                break
        return float(score)

    def sweep(self, space=SPACE, prune=False):
        return Sweep(False, self.settings, space, prune, self.digest())

    def work(self, space=SPACE, prune=False, **how):
        return work(self.sweep(space, prune), self, self.folder, **how)


@pytest.fixture
def formula(tmp_path):
    return Formula(tmp_path / "sweep")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table that a Gaussian process learns in a tenth of a second."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    rows = np.column_stack([x, x[:, 0] ** 2 + 0.1 * rng.normal(size=60)])
    path = tmp_path_factory.mktemp("tables") / "t.csv"
    np.savetxt(path, rows, delimiter=",", header="a,b,y", comments="")
    return path


QUICK = ("--param", "family=gp", "--param", "sigma=0.01,0.1", "--heartbeat", "1")


def run(*arguments):
    cli.app(["sweep", *map(str, arguments)], standalone_mode=False)


@pytest.fixture(scope="module")
def swept(table):
    """A sweep of four trials on a table, by the command."""
    out = table.parent / "sweep"
    run("--data", table, "--out", out, "--trials", 4, *QUICK)
    return out


def test_a_space_is_read_as_it_is_written():
    words = ["learning_rate=0.001..0.1:log", "sigma=0.1,0.2", "batch_size=16..64", "infer_w0=true,false", "epochs=2,4"]
    space = parsed(words, sweeps.NET_TYPES)
    assert [f"{name}={part}" for name, part in space.items()] == words
    assert from_json(json.loads(json.dumps(to_json(space)))) == space
    assert space["learning_rate"] == Range(0.001, 0.1, log=True)
    assert space["infer_w0"] == Choice((True, False))
    assert isinstance(space["batch_size"].low, int)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("width=1,2", "cannot be swept: choose one of"),
        ("sigma", "must be a range or a choice"),
        ("sigma=0.1..0.2:cubic", "no range of numbers"),
        ("sigma=0..1:log", "needs bounds above 0"),
        ("sigma=2..1", "empty range"),
        ("sigma=0.1,0.1", "holds a value twice"),
        ("sigma=big", "is not a number"),
        ("epochs=1.5..3", "is not a whole number"),
        ("infer_w0=1", "is not true or false"),
        ("sigma=0.1,inf", "is not finite"),
    ],
)
def test_a_space_that_cannot_be_is_refused(refused, words, said):
    refused(lambda: parsed([words], sweeps.NET_TYPES), said)


def test_the_paper_s_space_is_the_paper_s_on_standardised_weights():
    assert sweeps.PAPER["sigma"] == Choice((0.1, 0.2, 0.5))
    assert sweeps.PAPER["prior_variance"] == Range(0.1, 0.44)
    rates = sweeps.PAPER["learning_rate"]
    assert rates.log
    assert (rates.low, rates.high) == (pytest.approx(20 * 1e-4), pytest.approx(40 * 1e-3))  # 40: presets.paper
    about = About("own", (8, 8, 1), ("a", "b"), 20, (0.5,), (0.2,))
    settings = runs.Settings("own", "paper", infer_w0=True, sigma=0.5, prior_variance=0.25, learning_rate=3e-3)
    made = runs.make(settings, about)
    assert made.training.optimizer.learning_rate == 3e-3
    assert made.training.optimizer.rule.args == (3e-3,)
    found = blocks(made.nets[0])
    assert found
    assert {(block.prior.sigma, block.initial.prior_std) for block in found} == {(0.5, 0.5)}


@pytest.mark.parametrize("infer_w0", [False, True])
def test_parameters_replace_those_of_every_preset(infer_w0):
    given = {"learning_rate": 0.003, "sigma": 0.35, "batch_size": 12, "ema": 0.5}
    for about in (
        About("v", (3,), ("a", "b"), 50, (0.0,) * 3, (1.0,) * 3),
        About("p", (8, 8, 1), ("a", "b"), 50, (0.5,), (0.2,)),
        About("p", (32, 32, 3), ("a", "b"), 50, (0.5,) * 3, (0.2,) * 3),
    ):
        row = changed(preset("fast", about, infer_w0=infer_w0), runs.Settings("own", "fast", infer_w0, **given))
        net = eqx.filter_eval_shape(row.net, jax.random.key(0))
        assert {block.prior.sigma for block in blocks(net)} == {0.35}
        optimizer, batches = row.training.optimizer, row.training.batches
        assert (optimizer.learning_rate, optimizer.ema, batches.size) == (0.003, 0.5, 12)
        assert optimizer.rule is None or optimizer.rule.args == (0.003,)
        assert 12 % batches.accumulate == 0


def test_a_run_of_an_earlier_version_has_the_parameters_of_its_preset(tmp_path):
    facts = {**runs.Settings("d")._asdict(), "stages": [1], "fingerprint": "", "about": {
        "name": "d", "shape": [2], "classes": None, "examples": 3, "center": [0, 0], "spread": [1, 1],
        "target_center": [0], "target_spread": [1],
    }}  # fmt: skip
    earlier = {name: value for name, value in facts.items() if name not in runs.PARAMETERS}
    write_record(tmp_path / "run.json", KIND, earlier)
    assert runs.read_settings(tmp_path) == runs.Settings("d")


def test_settings_with_wrong_parameters_are_refused(refused):
    for wrong, words in (
        ({"sigma": 0.0}, "sigma=0.0 must be"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be"),
        ({"ema": 1.0}, "ema=1.0 must be between"),
        ({"batch_size": 0}, "batch_size=0 must be"),
        ({"prior_variance": 0.2}, "of w_0, which is a point"),
    ):
        refused(runs.Settings("d", **wrong).check, words)


def test_a_training_stops_where_it_is_told_to_and_a_resumed_one_stays_stopped(tmp_path):
    seen = []

    def should_stop(epoch, scores):
        seen.append((epoch, scores.nll))
        return epoch == 3

    fitted = short_run(tmp_path, should_stop=should_stop)
    assert [epoch for epoch, _ in seen] == [1, 2, 3]
    assert np.isfinite(fitted.history["elbo"]).sum() == 3 * 5
    again = short_run(tmp_path, resume=True, should_stop=lambda epoch, scores: False)
    np.testing.assert_array_equal(again.history["elbo"], fitted.history["elbo"])
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = [row["validation_nll"] for row in rows if "validation_nll" in row]
    assert logged == [nll for _, nll in seen]


def test_every_trial_is_trained_once_and_a_sweep_that_is_done_trains_nothing(formula):
    found = formula.work(trials=5)
    assert [row.number for row in found.rows] == list(range(5))
    assert {row.state for row in found.rows} == {"complete"}
    assert set(formula.calls.values()) == {1}
    assert formula.work() == found == sweeps.read_results(formula.folder)
    assert sum(formula.calls.values()) == 5
    assert formula.work(trials=3) == found  # fewer take none away
    more = formula.work(trials=7)
    assert more.rows[:5] == found.rows
    assert sum(formula.calls.values()) == 7
    assert all(1e-3 <= row.values["learning_rate"] <= 1e-1 for row in more.rows)


def test_the_values_depend_on_the_seed_alone(tmp_path):
    values = [
        [row.values for row in Formula(tmp_path / name, seed).work(trials=4).rows]
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert values[0] == values[1] != values[2]


def test_a_trial_with_an_error_of_its_own_keeps_its_words_and_stops_nothing(formula):
    formula.fail_if = lambda values: values["sigma"] == 0.5
    found = formula.work(trials=8)
    failed = [row for row in found.rows if row.state == "failed"]
    assert failed
    assert all(row.values["sigma"] == 0.5 and row.error.startswith("ValueError: such values") for row in failed)
    assert found.count("complete") == 8 - len(failed)
    assert found.ranked[-1].state == "failed"
    assert formula.work() == found
    assert set(formula.calls.values()) == {1}


def test_a_stopped_worker_leaves_its_trial_to_the_next_with_the_same_values(formula):
    formula.interrupt_at = 4
    with pytest.raises(KeyboardInterrupt):
        formula.work(trials=6)
    with trials.Trials(formula.folder, None, None, 1) as shared:
        left = shared.slots()[3].last.params
    found = formula.work()
    assert found.count("complete") == 6
    assert [row.attempts for row in found.rows] == [1, 1, 1, 2, 1, 1]
    assert found.rows[3].values == left
    assert formula.calls == Counter({"0003": 2, **{f"{i:04d}": 1 for i in (0, 1, 2, 4, 5)}})


def test_a_trial_is_taken_over_when_its_worker_is_dead_but_not_while_it_trains(formula, monkeypatch):
    monkeypatch.setattr(trials, "BEATS_UNTIL_STALE", 1)
    with trials.Trials(formula.folder, None, None, 1) as shared:
        shared.begin(formula.sweep(), 1)
        first = shared.claim(formula.sweep(), formula)
        assert shared.claim(formula.sweep(), formula) is None  # it runs, with a sign of life
        time.sleep(2.5)
        with FolderLock(shared.place(first.slot)):  # taken for dead, but it trains
            assert shared.claim(formula.sweep(), formula) is None
        second = shared.claim(formula.sweep(), formula)
        assert second.values == first.values
        assert second.slot.number == first.slot.number
        shared.finish(second, 1.0, 0.5, None)
        with pytest.raises(Exception, match="already finished and can not be updated"):
            shared.finish(first, 1.0, 0.4, None)
        assert [row.score for row in shared.results().rows] == [0.5]


def test_a_second_attempt_that_two_workers_added_is_run_once(formula):
    with trials.Trials(formula.folder, None, None, 1) as shared:
        shared.begin(formula.sweep(), 1)
        first = shared.claim(formula.sweep(), formula)
        shared.release(first)
        lost = shared.slots()[0].last
        for _ in range(2):
            shared._add_attempt(lost)
        assert shared.claim(formula.sweep(), formula).values == first.values
        assert shared.claim(formula.sweep(), formula) is None
        assert len(shared.slots()) == 1


def test_pruning_stops_trials_that_are_worse_than_the_median_and_counts_none_of_them_as_best(formula):
    found = formula.work(trials=14, prune=True)
    pruned = [row for row in found.rows if row.state == "pruned"]
    assert pruned, found.rows[0]
    assert {row.state for row in found.rows} == {"complete", "pruned"}
    complete = [row for row in found.rows if row.state == "complete"]
    for row in pruned:
        epoch, nll = row.curve[-1]
        assert 2 < epoch < 8  # not in the first quarter
        known = [dict(other.curve)[epoch] for other in complete if other.number < row.number]
        assert len(known) >= 5
        assert nll > np.median(known)
        assert row.score == nll
    assert found.best == min(complete, key=lambda row: row.score)
    assert all(len(row.curve) == 8 for row in complete)


def test_importances_are_the_shares_of_the_variance_of_a_known_function():
    space = {"ema": Range(0, 1), "learning_rate": Range(1e-3, 1e-1, log=True), "sigma": Choice((0.1, 0.3))}
    values = [
        {"ema": a, "learning_rate": 10 ** (2 * b - 3), "sigma": 0.1 if c < 0.5 else 0.3}
        for a, b, c in np.random.default_rng(0).uniform(size=(100, 3))
    ]
    scores = [2 * each["ema"] + (np.log10(each["learning_rate"]) + 3) / 2 for each in values]
    rows = [Row(i, "complete", each, scores[i], (), 1.0, 1, "") for i, each in enumerate(values)]
    found = importances(rows, space)
    # Over the space, the two terms have the variances 4/12 and 1/12: shares of 80 %, 20 % and nothing.
    assert list(found) == ["ema", "learning_rate", "sigma"]
    assert found["ema"] == pytest.approx(0.8, abs=0.1)  # as a forest of a hundred trials finds it
    assert found["learning_rate"] == pytest.approx(0.2, abs=0.1)
    assert found["sigma"] < 0.01
    assert importances(rows[:7], space) == {}
    assert importances([row._replace(score=1.0) for row in rows], space) == {}


def test_another_space_seed_or_data_is_refused(formula, refused, tmp_path):
    formula.work(trials=1)
    other = {**SPACE, "sigma": Choice((0.1,))}
    refused(lambda: formula.work(space=other), "was made with space=")
    refused(lambda: formula.work(prune=True), "was made with prune=False")
    refused(Formula(formula.folder, seed=1).work, "was made with seed=0")
    refused(Formula(formula.folder, data="b").work, "sweep on other data")
    refused(lambda: formula.work(storage=f"sqlite:///{tmp_path}/other.db"), "with another storage")
    refused(lambda: formula.work(storage="nosuch://x"), "with another storage")
    refused(
        lambda: Formula(tmp_path / "n").work(storage="nosuch://u:secret@x/y"), "nosuch://u:\\*\\*\\*@x/y' cannot be"
    )
    refused(lambda: formula.work(trials=0), "trials=0")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    refused(Formula(tmp_path / "run").work, "holds a run")
    assert sum(formula.calls.values()) == 1


def test_workers_in_folders_of_their_own_share_a_storage_by_its_url(tmp_path):
    url = f"sqlite:///{tmp_path}/shared.db"
    one, other = Formula(tmp_path / "a" / "sweep"), Formula(tmp_path / "b" / "sweep")
    one.interrupt_at = 4
    with pytest.raises(KeyboardInterrupt):
        one.work(trials=6, storage=url)
    found = other.work(storage=url)
    assert found.count("complete") == 6
    assert one.calls + other.calls == Counter({"0003": 2, **{f"{i:04d}": 1 for i in (0, 1, 2, 4, 5)}})
    assert sweeps.read_sweep(tmp_path / "b" / "sweep")[1] == url


def test_without_optuna_a_sweep_is_refused_with_the_remedy_and_results_are_read(formula, monkeypatch):
    found = formula.work(trials=2)
    monkeypatch.delitem(sys.modules, "sdebnn.sweeps.trials")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"pip install 'sdebnn\[sweep\]'"):
        formula.work()
    assert sweeps.read_results(formula.folder) == found


def test_importing_the_commands_imports_no_optuna():
    code = "import sys, sdebnn.cli.sweeping, sdebnn.sweeps, sdebnn.reports; assert 'optuna' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_table_s_trials_are_runs_scored_on_rows_that_neither_training_nor_test_saw(swept, table):
    found = sweeps.read_results(swept)
    assert found.count("complete") == 4
    settings = TableSettings(str(table), validation=0.2)
    rows = table_rows(settings)
    seen, held_out = validation_split(settings, rows)
    assert (seen.rows, held_out.rows, rows.test.rows) == (43, 11, 6)
    for row in found.rows:
        model = open_table(swept / row.folder)
        x = np.column_stack([held_out.columns["a"], held_out.columns["b"]])
        assert row.score == pytest.approx(-np.mean(model.estimator.log_prob(x, held_out.columns["y"])))
        assert json.loads((swept / row.folder / "result.json").read_text())["rows"] == 43


def test_the_test_part_has_no_say(swept, table, tmp_path):
    lines = table.read_text().splitlines()
    rows = table_rows(TableSettings(str(table)))
    strange = {f"{float(y):.18e}" for y in rows.test.columns["y"]}
    changed = [line if line.split(",")[2] not in strange else line[:-4] + "e+02" for line in lines]
    assert sum(a != b for a, b in zip(lines, changed, strict=True)) == 6
    (tmp_path / "t.csv").write_text("\n".join(changed))
    run("--data", tmp_path / "t.csv", "--out", tmp_path / "sweep", "--trials", 4, *QUICK)
    scores = [[row.score for row in sweeps.read_results(folder).rows] for folder in (swept, tmp_path / "sweep")]
    assert scores[0] == scores[1]


def test_the_command_goes_on_shows_and_refuses(swept, table, tmp_path, capsys, refused):
    run("--out", swept, "--json")
    before = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["state"] for row in before["trials"]] == ["complete"] * 4
    run("--out", swept, "--show")
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].split() == ["trial", "state", "validation", "NLL", "family", "sigma", "seconds"]
    best = min(before["trials"], key=lambda row: row["score"])
    assert shown.splitlines()[1].split()[2] == f"{best['score']:.4f}"
    assert f"sdebnn report {swept}" in shown
    for words, said in (
        (("--data", table, "--out", swept, "--param", "sigma=0.3,0.4"), "was made with space="),
        (("--data", table, "--out", swept, *QUICK, "--seed", 1), "sweep on other data|was made with seed=0"),
        (("--out", swept, "--seed", 1), "--seed needs --data"),
        (("--out", tmp_path / "none"), "is no sweep"),
        (("--data", table, "--out", tmp_path / "n", "--epochs", 3), "--epochs is for nets"),
        (("--data", table, "--out", tmp_path / "n", "--param", "ema=0.1,0.2"), "cannot be swept"),
        (("--data", table, "--out", tmp_path / "n", "--space", "paper"), "is not for tables"),
        (("--data", table, "--out", tmp_path / "n", "--members", 2, "--param", "members=1,2"), "--members is swept"),
        (("--data", table, "--out", tmp_path / "n", "--param", "noise=loud,gaussian"), "noise='loud' is unknown"),
        (("--data", "digits", "--out", tmp_path / "n", "--target", "y"), "--target is for tables"),
        (("--data", "digits", "--out", tmp_path / "n", "--param", "prior_variance=0.1,0.2"), "add --infer-w0"),
        (("--data", "digits", "--out", tmp_path / "n", "--param", "sigma=-1..1"), "sigma=-1.0 must be"),
    ):
        refused(lambda words=words: run(*words), said)
    assert not (tmp_path / "n").exists()


def test_a_report_of_a_sweep_shows_what_mattered_and_leads_to_the_best(formula, swept):
    def row(number, state, rate, score, error=""):
        values = {"learning_rate": rate, "sigma": 0.1}
        return Row(number, state, values, score, ((1, 2.0),), 3.0, 1 + (number == 3), f"trials/{number:04d}", error)

    rows = (row(0, "complete", 0.01, 0.5), row(1, "complete", 0.02, 0.25), row(2, "pruned", 0.03, 1.5),
            row(3, "failed", 0.04, None, "ValueError: <b>no</b>"))  # fmt: skip
    # The trials of a formula are no runs, so the page of their best trial is that of a real one.
    (formula.folder / "trials").mkdir(parents=True)
    os.symlink(swept / "trials" / "0000", formula.folder / "trials" / "0001")
    write_sweep(formula.folder, formula.sweep(), None)
    write_results(formula.folder, Results(rows, {"learning_rate": 0.83, "sigma": 0.17}))
    assert sweeps.read_results(formula.folder).rows == rows
    text = report([formula.folder])
    assert text.count("<svg ") == 3
    assert '<a href="#the-best-trial">1</a>' in text
    assert 'id="the-best-trial"' in text
    assert "The best is trial 1, with a validation NLL of 0.2500 nats" in text
    assert "4 trials: 2 complete, 1 stopped early, 1 failed. " in text
    assert "1 went on after" in text
    assert "83 %" in text
    assert "ValueError: &lt;b&gt;no" in text
    assert "from 0.001 to 0.1, logarithmic" in text
    command = next(line for line in text.splitlines() if line.startswith("sdebnn train --data t.csv"))
    assert "--validation 0.2 --param sigma=0.1" in command or "--validation 0.2 --param sigma=0.01" in command
    assert "--param family=gp" in command
    with pytest.raises(ValueError, match="a page of its own"):
        report([formula.folder, swept])


def vectors(path):
    """Two clouds, as arrays."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = (rng.normal(size=(120, 2)) + y[:, None] * [2, 1]).astype(np.float32)
    np.savez(path, x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:])
    return path


KILLED_IN = "1"  # of the trials of one worker


@pytest.mark.slow
def test_four_workers_finish_24_trials_when_one_is_killed_and_none_is_lost_or_run_twice(tmp_path):
    data, out, log = vectors(tmp_path / "data.npz"), tmp_path / "sweep", tmp_path / "steps"
    for rate in sweep_worker.SPACE["learning_rate"].values:  # compiles the programs that the workers then find
        settings = sweep_worker.settings(data)._replace(learning_rate=rate)
        runs.train(settings, tmp_path / str(rate), progress=False)
    script = Path(sweep_worker.__file__)
    workers = [
        subprocess.Popen([sys.executable, script, data, out, log, *more], stderr=subprocess.PIPE, text=True)
        for more in ([KILLED_IN], [], [], [])
    ]
    said = [worker.communicate(timeout=300)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [-9, 0, 0, 0], said
    found = sweeps.read_results(out)
    assert [row.number for row in found.rows] == list(range(sweep_worker.TRIALS))
    assert {row.state for row in found.rows} == {"complete"}
    lines = [line.split() for line in log.read_text().splitlines()]
    steps = Counter(place for _, place in lines)
    assert steps == {f"{i:04d}": sweep_worker.EPOCHS for i in range(sweep_worker.TRIALS)}
    last = [place for process, place in lines if process == str(workers[0].pid)][-1]
    assert found.rows[int(last)].attempts == 2  # the killed one, whose steps were not repeated
    assert len({process for process, _ in lines}) > 1
    by_values: dict[str, set[float]] = {}
    for row in found.rows:
        assert runs.known_scores(out / row.folder) is not None
        by_values.setdefault(str(sorted(row.values.items())), set()).add(row.score)
    assert all(len(scores) == 1 for scores in by_values.values())  # the killed one's is that of its like


@pytest.mark.slow
def test_a_net_s_trial_is_a_run_scored_on_its_validation_part(tmp_path, capsys):
    data, out = vectors(tmp_path / "data.npz"), tmp_path / "sweep"
    run("--data", data, "--out", out, "--trials", 2, "--preset", "fast", "--epochs", 2, "--param", "sigma=0.1,0.3",
        "--infer-w0", "--param", "prior_variance=0.1..0.44")  # fmt: skip
    found = sweeps.read_results(out)
    capsys.readouterr()
    for row in found.rows:
        made, model, likelihood = runs.open_run(out / row.folder)
        assert {block.prior.sigma for block in blocks(made.nets[0])} == {row.values["sigma"]}
        std = np.sqrt(row.values["prior_variance"])
        assert [block.initial.prior_std for block in blocks(made.nets[0])] == [pytest.approx(std)]
        nets = sweeps.Nets(runs.read_settings(out / row.folder))
        part = runs.training.held_out(nets._data.train, 0.1, seed=0, name="validation")[1]
        assert isinstance(part, Part)
        assert row.score == pytest.approx(runs.score(made, part, model, likelihood, None).scores["nll"])
        assert [epoch for epoch, _ in row.curve] == [1, 2]
        settings = runs.read_settings(out / row.folder)
        with pytest.raises(ValueError, match="was made with sigma="):
            runs.train(settings._replace(sigma=0.7), out / row.folder, resume=True, progress=False)
    text = report([out])
    assert f"--param sigma={found.best.values['sigma']}" in text


def test_the_commands_of_the_page_have_options_that_there_are():
    text = (Path(__file__).parent.parent / "docs" / "sweeps.md").read_text()
    functions = {"sweep": sweep, "report": reporting.report, "train": training.train}
    known = {
        name: {f"--{each.replace('_', '-')}" for each in inspect.signature(function).parameters}
        for name, function in functions.items()
    }
    commands = re.findall(r"^sdebnn (\w+) ([^#\n]*)", text, re.M)
    assert {name for name, _ in commands} == {"sweep", "report", "train"}
    for name, words in commands:
        assert {word for word in words.split() if word.startswith("--")} <= known[name]
    for words in re.findall(r"--param (\S+=[^\s`]+\.\.[^\s`]+|\w+=[^\s`]*,[^\s`]*)", text):
        parsed([words], sweeps.NET_TYPES)


@pytest.mark.slow
def test_the_python_of_the_page_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parent.parent / "docs" / "sweeps.md").read_text()
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M):
        exec(compile(block, "sweeps.md", "exec"), {})
    assert "learning_rate" in capsys.readouterr().out
    assert sweeps.read_results(tmp_path / "sweep").count("complete") == 2
