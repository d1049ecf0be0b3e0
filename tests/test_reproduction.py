"""``sdebnn reproduce``: rows are saved one by one and resumed, drawings come from the file alone, experiments run."""

import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt

from sdebnn import cli

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "experiments"
IDS = re.compile(r"(fig|table)\d+|partial|ablation")


@pytest.fixture(scope="module")
def reproduction():
    sys.path.insert(0, str(FOLDER))
    return importlib.import_module("reproduction")


@pytest.fixture(scope="module")
def nets(reproduction, tmp_path_factory):
    """The nets that are trained here are shared, and those that a user has trained are left alone."""
    shared = importlib.import_module("trained_nets")
    before, shared.KEPT = shared.KEPT, tmp_path_factory.mktemp("nets")
    yield shared
    shared.KEPT = before


@pytest.fixture
def circle(reproduction, monkeypatch):
    """An experiment of two rows, and the settings with which its rows were run."""
    ran = []

    class Circle(reproduction.Experiment):
        title, claim = "Figure 0: the area of a circle", "The area is 3.14."

        def rows(self, scale):
            return {name: {"count": count, "seed": 0} for name, count in (("few", 100), ("many", 10_000))}

        def run(self, settings):
            ran.append(settings["count"])
            if settings["count"] == self.failing:
                raise KeyboardInterrupt
            darts = np.random.default_rng(settings["seed"]).uniform(-1, 1, (settings["count"], 2))
            return {"area": 4 * np.mean((darts**2).sum(1) < 1), "worst": np.inf, "darts": np.float32(darts[:2])}

        def finding(self, found):
            area = found["many"]["area"]
            return reproduction.Finding(bool(abs(area - np.pi) < 0.1), f"It is {area:.2f}.")

        def table(self, found):
            rows = [[name, f"{each['area']:.2f}"] for name, each in found.items()]
            return reproduction.Table(("darts", "area"), rows)

        def picture(self, found):
            figure, axes = plt.subplots()
            axes.plot(*np.array(found["few"]["darts"]).T)
            return figure

    subject = Circle()
    subject.failing = None
    monkeypatch.setattr(reproduction, "experiment", lambda name: subject)
    return subject, ran


def quietly(words):
    pass


def test_rows_are_saved_one_by_one_and_finished_ones_are_not_run_again(reproduction, circle, tmp_path):
    subject, ran = circle
    subject.failing = 10_000
    with pytest.raises(KeyboardInterrupt):
        reproduction.reproduce("fig0", "full", tmp_path, quietly)
    assert list(reproduction.read(tmp_path / "fig0.json")["rows"]) == ["few"]
    assert reproduction.draw("fig0", tmp_path) is None
    subject.failing = None
    reproduction.reproduce("fig0", "full", tmp_path, quietly)
    assert ran == [100, 10_000, 10_000]
    finding = reproduction.draw("fig0", tmp_path)
    assert finding.holds
    assert (tmp_path / "fig0.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fig0.json", "fig0.png"]


def test_a_row_is_run_again_if_its_settings_change(reproduction, circle, tmp_path, monkeypatch):
    subject, ran = circle
    reproduction.reproduce("fig0", "smoke", tmp_path, quietly)
    monkeypatch.setattr(
        type(subject),
        "rows",
        lambda self, scale: {"few": {"count": 100, "seed": 0}, "many": {"count": 5000, "seed": 0}},
    )
    reproduction.reproduce("fig0", "smoke", tmp_path, quietly)
    assert ran == [100, 10_000, 5000]


def test_rows_that_another_experiment_has_run_are_taken_from_it(reproduction, circle, tmp_path):
    subject, ran = circle
    reproduction.reproduce("fig0", "smoke", tmp_path, quietly)
    subject.shares = ("fig0", "fig1")
    said = []
    reproduction.reproduce("fig9", "smoke", tmp_path, said.append)
    assert ran == [100, 10_000]
    assert said == ["few (1 of 2): taken from fig0", "many (2 of 2): taken from fig0"]
    assert reproduction.read(tmp_path / "fig9.json")["rows"] == reproduction.read(tmp_path / "fig0.json")["rows"]
    reproduction.reproduce("fig8", "full", tmp_path, quietly)  # not from results of another scale
    assert ran == [100, 10_000] * 2


@pytest.mark.slow
def test_a_net_is_trained_once_and_a_stopped_training_goes_on(nets, monkeypatch):
    settings = nets.net("digits", "SDE-BNN", 3, kl_weight=1.0)

    def stopped(*given, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(nets.sdebnn, "save", stopped)  # when it has trained
        nets.trained(settings)
    (folder,) = [path for path in nets.KEPT.iterdir() if path.is_dir()]
    trained = [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first = nets.trained(settings)
    assert [loss for _, _, loss in first.course.curve] == trained
    assert not folder.exists()
    monkeypatch.setattr(nets.sdebnn, "fit", None)
    again = nets.trained(settings)
    np.testing.assert_array_equal(*(each.samples(first.test.x[:5], 0) for each in (first, again)))


@pytest.mark.skipif(not (ROOT / "results").exists(), reason="the results are in the repository alone")
def test_the_page_shows_all_results_and_names_those_that_wait(reproduction):
    page = importlib.import_module("page")
    assert (ROOT / "docs" / "reproduction.md").read_text() == page.page(), "run python experiments/page.py"


def test_a_file_holds_what_a_row_was_and_found_in_plain_json(reproduction, circle, tmp_path):
    reproduction.reproduce("fig0", "smoke", tmp_path, quietly)
    result = json.loads((tmp_path / "fig0.json").read_text())
    row = result["rows"]["few"]
    assert result["command"] == "sdebnn reproduce fig0 --scale smoke"
    assert row["settings"] == {"count": 100, "seed": 0}
    assert row["found"]["worst"] is None
    assert np.shape(row["found"]["darts"]) == (2, 2)
    assert {"python", "jax", "sdebnn"} <= set(row["versions"])
    assert row["seconds"] >= 0


def test_results_of_full_scale_are_not_overwritten_by_a_smoke_test(reproduction, circle, tmp_path):
    reproduction.reproduce("fig0", "full", tmp_path, quietly)
    before = (tmp_path / "fig0.json").read_bytes()
    with pytest.raises(ValueError, match=r"holds results of full scale.*choose another folder"):
        reproduction.reproduce("fig0", "smoke", tmp_path, quietly)
    assert (tmp_path / "fig0.json").read_bytes() == before


def test_two_processes_do_not_run_one_experiment_in_one_folder(reproduction, circle, tmp_path):
    from sdebnn.files import FolderLock

    with FolderLock(tmp_path / ".fig0"), pytest.raises(ValueError, match="in use by another process"):
        reproduction.reproduce("fig0", "smoke", tmp_path, quietly)


@pytest.mark.parametrize("text", ["", "[]", '{"scale": "smoke"}', '{"scale": "half", "rows": {}}'])
def test_a_damaged_file_is_refused(reproduction, circle, tmp_path, text):
    (tmp_path / "fig0.json").write_text(text)
    with pytest.raises(ValueError, match="holds no results"):
        reproduction.reproduce("fig0", "smoke", tmp_path, quietly)


def test_the_command_lists_refuses_and_draws(reproduction, capsys, monkeypatch, tmp_path):
    def said(*words):
        monkeypatch.setattr(sys, "argv", ["sdebnn", "reproduce", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capsys.readouterr()

    code, printed = said()
    assert code == 0
    assert [line.split()[0] for line in printed.out.splitlines()] == reproduction.names()
    code, printed = said("fig99")
    assert code == 2
    assert "choose" in printed.err or "fig1" in printed.err
    code, printed = said("fig1", "--scale", "half", "--out", str(tmp_path))
    assert code == 2
    assert "half" in printed.err
    code, printed = said("fig1", "--draw", "--out", str(tmp_path / "none"))
    assert code == 2
    assert "run sdebnn reproduce fig1 first" in printed.err


def test_every_experiment_has_settings_for_both_scales_and_they_are_plain(reproduction):
    for name in reproduction.names():
        subject = reproduction.experiment(name)
        start = {"a": "ablations", "f": "figure", "t": "table", "p": "the"}[name[0]]
        assert subject.title.lower().startswith(start), name
        for scale in reproduction.SCALES:
            rows = subject.rows(scale)
            assert rows == json.loads(json.dumps(rows)), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the fit has collapsed")  # as it may after few steps
@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.glob("*.py")) if IDS.fullmatch(path.stem)])
def test_an_experiment_runs_at_smoke_scale_and_says_what_it_found(reproduction, nets, name, tmp_path):
    reproduction.reproduce(name, "smoke", tmp_path, quietly)
    finding = reproduction.draw(name, tmp_path)
    result, subject = reproduction.read(tmp_path / f"{name}.json"), reproduction.experiment(name)
    table = subject.table({row: each["found"] for row, each in result["rows"].items()})
    assert finding.words.endswith(".")
    assert (tmp_path / f"{name}.png").exists() or table is not None
    if table is not None:
        assert {len(row) for row in table.rows} == {len(table.headings)}


@pytest.mark.parametrize(
    "path", [path for path in sorted((ROOT / "results").glob("*.json")) if IDS.fullmatch(path.stem)],
    ids=lambda path: path.stem,
)  # fmt: skip
def test_committed_results_are_of_full_scale_and_of_the_present_settings(reproduction, path, tmp_path):
    result, subject = reproduction.read(path), reproduction.experiment(path.stem)
    assert result["scale"] == "full"
    assert {row: each["settings"] for row, each in result["rows"].items()} == subject.rows("full")
    (tmp_path / path.name).write_bytes(path.read_bytes())
    assert reproduction.draw(path.stem, tmp_path) is not None
