import json
import subprocess
import sys

import pytest

import sdebnn
from sdebnn import cli, verify


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "sdebnn", *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    return out, run("demo", "--out", str(out), "--epochs", "100")


@pytest.mark.slow
def test_the_demo_writes_its_pictures_and_metrics_and_says_where(demo):
    out, done = demo
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {"predictive.png", "trajectories.png", "metrics.json"}
    for picture in out.glob("*.png"):
        assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    metrics = json.loads((out / "metrics.json").read_text())
    assert {"coverage_95", "std_ratio", "nll", "rmse", "kl", "kl_weight", "fit_seconds", "seed"} <= set(metrics)
    assert metrics["std_ratio"] == pytest.approx(metrics["std_beyond"] / metrics["std_inside"])
    assert len(done.stdout.splitlines()) == 1
    assert str(out) in done.stdout
    assert "KL weight 1" in done.stderr


@pytest.mark.slow
def test_the_demo_knows_the_function_among_the_data_and_covers_it_in_the_gap_and_beyond(demo):
    metrics = json.loads((demo[0] / "metrics.json").read_text())
    assert 0.90 <= metrics["coverage_95"] <= 0.99
    assert metrics["std_inside"] < 0.1  # the noise of one observation
    assert metrics["std_gap"] > 3 * metrics["std_inside"]
    assert metrics["std_ratio"] >= 5
    for zone in ("inside", "gap", "beyond"):
        assert metrics[f"coverage_{zone}"] >= 0.9
    assert metrics["elbo"] > -30  # paper_mlp reaches about -200


@pytest.mark.usefixtures("_as_a_user")
def test_mistakes_are_one_line_and_leave_nothing_behind(tmp_path, capfd, monkeypatch):
    file = tmp_path / "file"
    file.write_text("kept")
    new = ("--out", str(tmp_path / "new"))
    for arguments, words in (
        (("--out", str(file)), "file"),
        (("--out", "/proc"), "/proc"),
        ((*new, "--epochs", "0"), "epochs=0"),
        ((*new, "--seed", "99999999999999999999"), "seed=99999999999999999999"),
    ):
        monkeypatch.setattr(sys, "argv", ["sdebnn", "demo", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said = capfd.readouterr().err
        assert stop.value.code == 2
        assert words in said
        assert len(said.strip().splitlines()) == 1
    assert file.read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_verify_prints_every_theorem_as_json_and_fails_if_one_does(monkeypatch, capsys):
    wrong = [verify.Theorem("right", 1.0, 1.0, 0.0), verify.Theorem("wrong", 2.0, 1.0, 0.5)]
    for suite, code in ((wrong[:1], 0), (wrong, 1)):
        monkeypatch.setattr(verify, "theorems", lambda key, suite=suite: iter(suite))
        assert exit_code(["verify", "--json"]) == code
        rows = json.loads(capsys.readouterr().out)["theorems"]
        assert [row["passed"] for row in rows] == [t.passed for t in suite]
        assert all(set(row) == {"name", "measured", "exact", "tolerance", "passed"} for row in rows)
        assert exit_code(["verify"]) == code
        table = capsys.readouterr().out
        assert f"{len(suite) - code} of {len(suite)} hold" in table


def exit_code(arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.app(arguments)
    return stopped.value.code


def test_the_version_is_the_package_s(capsys):
    assert exit_code(["--version"]) == 0
    assert capsys.readouterr().out == f"sdebnn {sdebnn.__version__}\n"


def test_help_and_completion_do_not_wait_for_jax():
    code = "import sys, sdebnn.cli; assert 'jax' not in sys.modules; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_list_of_commands_says_what_each_does():
    for name, command in cli.COMMANDS.items():
        found = cli.imported(name)
        assert found.help, name
        first = found.help.split(".")[0]
        assert command.summary.split()[0] == first.split()[0], f"{name}: {first}"
        for each in found.commands.values() if name == "data" else [found]:
            assert name == "serve" or any("--json" in option.opts for option in each.params), name


def test_data_sets_are_listed_as_json(capsys):
    cli.app(["data", "list", "--json"], standalone_mode=False)
    listed = json.loads(capsys.readouterr().out)
    assert {"name": "digits", "state": "built in"}.items() <= next(
        each for each in listed["data sets"] if each["name"] == "digits"
    ).items()
    cli.app(["data", "get", "digits", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == {"name": "digits", "folder": None}
