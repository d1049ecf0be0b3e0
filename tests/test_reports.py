"""The page about a run: its numbers from the saved forecasts, and in a real browser its tables, pictures and rules."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from browser import axe_violations, dumped, in_browser

from sdebnn import cli, metrics, runs
from sdebnn.models import SDEBNN, blocks
from sdebnn.outcomes import ClassOutcomes, NumberOutcomes, load_examples, load_outcomes, save_examples, save_outcomes
from sdebnn.reports import report, subject, write_report
from sdebnn.reports.comparing import differences, seed_groups, side_by_side
from sdebnn.reports.page import Cell, Section, page, table
from sdebnn.reports.sections import shown_score, summary
from sdebnn.runs.settings import run_bytes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A net of small images, trained for two epochs."""
    root = tmp_path_factory.mktemp("reports")
    rng = np.random.default_rng(0)
    y = np.arange(160) % 2
    x = rng.integers(0, 120, (160, 8, 8, 1)) + 90 * y[:, None, None, None]
    np.savez(root / "data.npz", x=x.astype(np.uint8), y=np.array(["dark <b>", "light & bright"])[y])
    runs.train(
        runs.Settings(str(root / "data.npz"), epochs=2, validation=0.2, test=0.3), root / "run", progress=False
    )  # fmt: skip
    (root / "data.npz").unlink()
    return root / "run"


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """A regression on a line."""
    out = tmp_path_factory.mktemp("line") / "wave"
    runs.train(runs.Settings("wave", epochs=3), out, progress=False)
    return out


@pytest.fixture(scope="module")
def written(run):
    """The page about the net, as a file."""
    path = run.parent / "report.html"
    size = write_report([run], path)
    assert size == path.stat().st_size < 5_000_000
    return path


def test_the_numbers_of_a_report_follow_from_the_saved_forecasts(run):
    text, outcomes = report([run]), load_outcomes(run)
    assert isinstance(outcomes, ClassOutcomes)
    probs = outcomes.samples.astype(float).mean(0)
    wanted = {
        "accuracy": np.mean(probs.argmax(-1) == outcomes.labels),
        "nll": -np.mean(np.log(probs[np.arange(len(probs)), outcomes.labels])),
        "ece15": float(metrics.ece(jnp.asarray(probs[None]), jnp.asarray(outcomes.labels), 15)),
    }
    for name, value in wanted.items():
        shown = re.search(rf"<th scope=\"row\">{name}</th><td[^>]*data-value=\"([^\"]+)\"><span>([^<]+)", text)
        assert shown is not None, name
        assert float(shown[1]) == pytest.approx(value, rel=1e-5), name
        assert shown[2].startswith(shown_score(name, value)), name
    result = json.loads((run / "result.json").read_text())
    assert result["accuracy"] == pytest.approx(wanted["accuracy"])
    assert result["nll"] == pytest.approx(wanted["nll"], rel=1e-4)


def test_the_committed_report_has_the_numbers_of_its_saved_forecasts():
    """``results/reports``: a real run without its checkpoints, and the page about it."""
    folder = Path(__file__).parent.parent / "results" / "reports"
    if not folder.is_dir():
        pytest.skip("results/ is not here: a distribution does not hold it")
    text, outcomes = (folder / "digits.html").read_text(), load_outcomes(folder / "digits")
    assert isinstance(outcomes, ClassOutcomes)
    probs = outcomes.samples.astype(float).mean(0)
    uncertainty = -(probs * np.log(np.maximum(probs, 1e-300))).sum(-1)
    wrong = probs.argmax(-1) != outcomes.labels
    right_of = np.subtract.outer(uncertainty[wrong], uncertainty[~wrong])
    wanted = {
        "accuracy": 1 - wrong.mean(),
        "nll": -np.mean(np.log(probs[np.arange(len(probs)), outcomes.labels])),
        "brier": np.mean(((probs - np.eye(10)[outcomes.labels]) ** 2).sum(-1)),
        "auroc_of_mistakes": np.mean((right_of > 0) + 0.5 * (right_of == 0)),
        "entropy": uncertainty.mean(),
    }
    for name, value in wanted.items():
        shown = re.search(rf"<th scope=\"row\">{name}</th><td[^>]*data-value=\"([^\"]+)\"", text)
        assert shown is not None, name
        assert float(shown[1]) == pytest.approx(value, rel=1e-4), name
    assert "Where it was not trained" in report([folder / "digits"])


def test_a_report_says_what_was_trained_what_not_to_trust_and_how_to_repeat_it(run):
    text = report([run])
    for words in (
        "How it did, and how sure that is", "What was trained, and how", "What it must not be trusted with",
        "How to repeat it", "sdebnn train --data", "--epochs 2", "--validation 0.2", "--test 0.3", "images of 8 by 8",
        "unlike", "Images that tell most", "Calibration", "Uncertainty by its source", "Loss", "Risk and coverage",
        "Weights and hidden units over depth", "Classes of run",
    ):  # fmt: skip
        assert words in text, words
    assert "dark &lt;b&gt;" in text  # names of classes cannot become HTML
    assert "light & bright" not in text
    assert "<b>" not in text
    assert not re.search(r"(src|href)=\"(?!#|data:)", text)  # nothing from elsewhere
    assert "http" not in text.replace("http://www.w3.org", "")


@pytest.mark.slow
def test_runs_stand_side_by_side_and_kinds_do_not_mix(run, line, tmp_path, refused):
    other = tmp_path / "run"
    shutil.copytree(run, other)
    outcomes = load_outcomes(other)
    assert isinstance(outcomes, ClassOutcomes)
    save_outcomes(other, outcomes._replace(labels=1 - outcomes.labels))
    text = report([run, other])
    shown = re.search(r"<th scope=\"row\">accuracy</th><td[^>]*data-value=\"([^\"]+)\".*?data-value=\"([^\"]+)\"", text)
    assert shown is not None
    assert float(shown[1]) + float(shown[2]) == pytest.approx(1)
    assert "Side by side" in text
    assert str(other) in text  # two folders of one name are told apart by a number, and by their paths
    assert "run (2)" in text
    refused(lambda: report([run, line]), "predict classes and others numbers")
    refused(lambda: report([tmp_path]), "is no folder of a run")
    save_examples(other, np.zeros((2, 8, 8, 1), np.uint8), np.array([0, 1000]))
    refused(lambda: report([other]), "holds no examples of these outcomes")
    (other / "outcomes.safetensors").unlink()
    refused(lambda: report([other]), "train it again")
    (other / "result.json").unlink()
    refused(lambda: report([other]), "has no scores yet")
    refused(lambda: report([]), "no run was given")


def test_differences_are_paired_and_seeds_are_summarised(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    outcomes = load_outcomes(run)
    assert isinstance(outcomes, ClassOutcomes)
    samples = outcomes.samples.copy()
    samples[:, ::5] = samples[:, ::5, ::-1]  # a fifth of the forecasts is turned round
    save_outcomes(other, outcomes._replace(samples=samples))
    seed = json.loads((other / "run.json").read_text())
    first, second = subject(run), subject(other)
    second = second._replace(settings={**second.settings, "seed": 7})
    assert seed["seed"] == first.settings["seed"] == 0
    assert seed_groups([first, second]) == [[first, second]]
    assert len(seed_groups([first, second._replace(settings={**second.settings, "kl_weight": 2.0})])) == 2
    found = differences(first, second)
    wrong = [each.probs.argmax(-1) != outcomes.labels for each in (outcomes, second.outcomes)]
    each = wrong[0].astype(float) - wrong[1]
    assert found["accuracy"].value == pytest.approx(each.mean())
    error = each.std(ddof=1) / np.sqrt(len(each))  # of a mean of paired differences
    assert found["accuracy"].upper - found["accuracy"].lower == pytest.approx(2 * 1.96 * error, rel=0.15)
    same = differences(first, first)
    assert same["nll"] == (0.0, 0.0, 0.0)
    text = side_by_side([first, second]).body
    nll = [each.scores["nll"].value for each in (first, second)]
    assert f'<th scope="row">nll</th><td class="number" data-value="{np.mean(nll)!s}"' in text.replace("np.float64", "")
    assert f'data-value="{np.std(nll, ddof=1)!s}"' in text
    alone = side_by_side([first, second._replace(outcomes=outcomes._replace(labels=1 - outcomes.labels))]).body
    assert "Differences from" not in alone  # other test examples


def test_a_run_that_went_on_is_repeated_by_one_command_for_each_stage(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    about = runs.read_about(copy)
    settings, record = runs.read_settings(copy), json.loads((copy / "run.json").read_text())
    facts = {"fingerprint": record["fingerprint"], "about": about._asdict()}
    (copy / "run.json").write_bytes(run_bytes(settings, (2, 3), facts))
    first, second = subject(copy).command.splitlines()
    assert "--epochs 2 " in first
    assert "--resume" not in first
    assert "--epochs 5 " in second
    assert second.endswith("--out run --resume")


def test_the_summary_says_whether_forecasts_are_as_sure_as_they_should_be(run, line):
    outcomes = load_outcomes(run)
    assert isinstance(outcomes, ClassOutcomes)
    truth = np.eye(2)[outcomes.labels]
    sure, unsure = (
        np.tile(p * truth + (1 - p) * (1 - truth), (2, 1, 1)).astype(np.float32) for p in (0.999, 0.51)
    )  # fmt: skip
    known = subject(run)

    def words(samples, labels=outcomes.labels):
        of = outcomes._replace(samples=samples, labels=labels)
        return summary(known._replace(outcomes=of, scores=of.scores(20)))

    assert "it could be surer" in words(unsure)
    assert "too sure of itself" in words(sure, 1 - outcomes.labels)
    assert "95 % intervals of wave contain" in summary(subject(line))


@pytest.mark.slow
def test_long_names_leave_room_for_the_pictures(run, tmp_path):
    folders = [tmp_path / ("a run with a very long name, and more of it, which goes on and on " + end) for end in "xy"]
    for folder in folders:
        shutil.copytree(run, folder)
    assert "which goes on and on x" in report(folders)


def test_a_report_of_a_line_has_its_band_and_the_scores_of_numbers(line):
    text, outcomes = report([line]), load_outcomes(line)
    assert isinstance(outcomes, NumberOutcomes)
    rmse = np.sqrt(np.mean((outcomes.mean.astype(float).mean(0) - outcomes.y) ** 2))
    shown = re.search(r"<th scope=\"row\">rmse</th><td[^>]*data-value=\"([^\"]+)\"", text)
    assert shown is not None
    assert float(shown[1]) == pytest.approx(rmse, rel=1e-5)
    for words in ("The forecast along the line", "Coverage", "Ranks of the truth", "Predicted and true"):
        assert words in text, words


def test_hidden_units_over_depth_end_where_the_forecast_is_and_start_at_the_input(line):
    found = subject(line).depths
    outcomes = load_outcomes(line)
    assert found is not None
    assert isinstance(outcomes, NumberOutcomes)
    _, net, _ = runs.open_run(line)
    assert isinstance(net, SDEBNN)
    order = np.argsort(found.chosen_units)  # all three are shown: the input, and two zeros
    states = found.units[..., order]
    x, rows = load_examples(line, len(outcomes.y)) or (np.zeros(0), np.zeros(0))
    std = np.sqrt(outcomes.mean[:, rows, 0].var(0) + outcomes.variance[:, rows, 0].mean(0))
    about = runs.read_about(line)
    for example, row in enumerate((std.argmin(), std.argmax())):
        start = [(x[row, 0] - about.center[0]) / about.spread[0], 0, 0]
        np.testing.assert_allclose(states[:, 0, example], np.tile(start, (len(states), 1)), atol=1e-5)
        h = jnp.asarray(states[:, -1, example])
        for layer in net.layers[3:]:  # the read-out and the units of y
            h = layer(h, key=jax.random.key(0))[0]
        kept = outcomes.mean[:, rows[row], 0]
        error = np.sqrt(np.var(h, ddof=1) / len(h) + kept.var(ddof=1) / len(kept))
        assert abs(float(h.mean()) - kept.mean()) < 4 * error
    moved = np.abs(found.weights[:, -1].mean(0) - found.weights[:, 0].mean(0))
    assert (np.diff(moved) < 0).all()  # the furthest first
    assert np.ptp(found.weights[:, 0], axis=0).max() == 0  # w_0 is a point
    assert found.weight_count == net.layers[2].weights.size
    assert "Weights and hidden units over depth" in report([line])


def test_the_weights_over_depth_of_images_are_those_of_the_first_block(run):
    found, (_, net, _) = subject(run).depths, runs.open_run(run)
    assert found is not None
    assert isinstance(net, SDEBNN)
    block = blocks(net)[0]
    draws = np.stack([block.draw(key=key).w for key in jax.random.split(jax.random.key(9), 200)])
    ours, theirs = found.weights[:, -1], draws[:, -1, found.chosen_weights]
    error = np.sqrt(ours.var(0) / len(ours) + theirs.var(0) / len(theirs))
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error).all()
    moved = draws[:, -1] - draws[:, 0]
    distance = np.abs(moved.mean(0))
    wanted = np.quantile(distance, [1, 0.75, 0.5])
    error = moved[:, found.chosen_weights].std(0) * np.sqrt(1 / len(draws) + 1 / 64)  # chosen by 64 other draws
    assert (np.abs(distance[found.chosen_weights] - wanted) < 4 * error).all()
    assert found.unit_count == 8 * 8 * 16
    assert found.blocks == len(blocks(net))


def test_curves_go_on_over_stages_and_lines_that_were_cut_off_are_left_out(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    log = copy / "metrics.jsonl"
    log.write_text(log.read_text() + '{"epoch": 3, "los')
    curve = subject(copy).curve
    assert max(row["epoch"] for row in curve) == 2
    assert all(a["epoch"] <= b["epoch"] for a, b in pairwise(curve))


@pytest.mark.slow
def test_scores_elsewhere_are_shown_if_they_were_measured(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    cells = [{"accuracy": 0.9 - 0.1 * i, "nll": 0.3 + i, "ece": 0.05} for i in range(5)]
    scores = {"accuracy": 0.7, "nll": 2.3, "ece": 0.05}
    found = {
        "clean": {"accuracy": 0.95, "nll": 0.2, "ece": 0.01},
        "corruptions": {"mean": scores, "by_severity": cells, "by_corruption": {"fog": cells, "snow": cells}},
        "ood": {"noise": {"entropy": {"auroc": 0.97}, "unlike": {"auroc": 1.0}}},
        "entropies": {"test": [0.1, 0.2, 0.3], "noise": [0.25, 0.6]},
        "resolutions": [
            {"steps": 8, "evaluations": 16.0, "nll": 0.21},
            {"rtol": 1e-3, "evaluations": 50.0, "nll": 0.2},
        ],
    }
    assert "Where it was not trained" not in report([copy])
    (copy / "shifts.json").write_text(json.dumps({**found, "model": {"epochs": 1}}))
    assert "Where it was not trained" not in report([copy])  # of the model before it was trained for more epochs
    (copy / "shifts.json").write_text(json.dumps({**found, "model": {"epochs": 2}}))
    text = report([copy])
    for words in (
        "Where it was not trained",
        "Accuracy under corruption",
        "0.97",
        "8 steps",
        "rtol 0.001",
        "fog",
        "AUROC 0.833",
    ):
        assert words in text, words


def test_the_command_writes_the_page_and_says_so(run, tmp_path, capsys):
    out = tmp_path / "page.html"
    cli.app(["report", str(run), "--out", str(out), "--json"], standalone_mode=False)
    facts = json.loads(capsys.readouterr().out)
    assert facts["bytes"] == out.stat().st_size
    with pytest.raises(ValueError, match="exists already: add --force"):
        cli.app(["report", str(run), "--out", str(out)], standalone_mode=False)
    with pytest.raises(ValueError, match=r"must end in \.html"):
        cli.app(["report", str(run), "--out", str(tmp_path / "page.pdf")], standalone_mode=False)


# In a browser


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_passes_the_rules_of_accessibility(written, tmp_path, dark):
    found, console = axe_violations(written.read_text(), tmp_path, dark=dark)
    assert found.get("wrong") == [], found
    assert found["passes"] > 10
    shade = sum(map(int, re.findall(r"\d+", found["paper"])[:3]))
    assert (shade < 200) == dark
    assert not console, console


@in_browser
@pytest.mark.slow
def test_tables_sort_pictures_are_there_and_a_phone_shows_it_all(written, tmp_path):
    script = """
      const table = document.querySelector("table.sorts"), head = table.tHead.rows[0].cells[1];
      const values = () => [...table.tBodies[0].rows].map(row => Number(row.cells[1].dataset.value));
      head.querySelector("button").click(); const up = values(), upwards = head.getAttribute("aria-sort");
      head.querySelector("button").click(); const down = values(), downwards = head.getAttribute("aria-sort");
      const boxes = [...document.querySelectorAll("figure svg")].map(svg => svg.getBoundingClientRect());
      const frame = document.createElement("iframe");
      frame.style.width = "390px"; frame.style.height = "800px"; frame.srcdoc = document.documentElement.outerHTML
        .replace(/<script[^]*?<\\/script>/g, "");
      document.body.append(frame);
      await new Promise(done => frame.addEventListener("load", done));
      const phone = frame.contentDocument.documentElement;
      return {up, down, upwards, downwards, sizes: boxes.map(box => Math.min(box.width, box.height)),
              phone: [phone.scrollWidth, phone.clientWidth]};
    """
    found, console = dumped(written.read_text(), tmp_path, script)
    assert "error" not in found, found
    assert found["up"] == sorted(found["up"])
    assert found["down"] == found["up"][::-1]
    assert (found["upwards"], found["downwards"]) == ("ascending", "descending")
    assert len(found["sizes"]) >= 5
    assert min(found["sizes"]) > 100
    assert found["phone"][0] <= found["phone"][1] <= 390
    assert not console, console


def test_tables_and_sections_are_escaped_and_numbers_can_be_sorted():
    text = table("<c>", ["a", "b"], [["x<y", Cell("1 %", 0.01)], ["z", Cell("2 %", 0.02, "(<0)")], ["v", Cell("")]])
    assert "<span>2 %</span> <span>(&lt;0)</span>" in text
    assert '<td class="number"></td>' in text  # an empty cell does not make a column of words
    assert "&lt;c&gt;" in text
    assert "x&lt;y" in text
    assert 'data-value="0.01"' in text
    whole = page("<t>", "about", [Section("How it did, and more", text)])
    assert 'href="#how-it-did-and-more"' in whole
    assert "<title>&lt;t&gt;</title>" in whole


def test_a_report_without_the_parameters_of_the_net_lacks_only_its_depth(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints")
    whole, text = report([run]), report([copy])
    missing = set(re.findall(r"<strong>(.*?)</strong>", whole)) - set(re.findall(r"<strong>(.*?)</strong>", text))
    assert missing == {"Weights and hidden units over depth."}
