"""A run holds its net: it is opened, used and extended under other presets than it was made with."""

import json
import random

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile import assert_refused
from test_edited_files import NOT_A_VALUE, changed, places
from test_runs import small_images

from sdebnn import cli, presets, runs
from sdebnn.artifacts.outlines import from_outline, outline
from sdebnn.forecasters import open_forecaster
from sdebnn.presets import PRESETS, About, ImageSize, preset
from sdebnn.records import write_record
from sdebnn.runs.settings import KIND
from sdebnn.train import engine

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
IMAGES = {(8, 8, 1), (28, 28, 1), (32, 32, 3)}


def about(shape):
    columns = shape[-1]
    classes, targets = (("a", "b"), ()) if shape in IMAGES else (None, (1.0,))
    return About("x", shape, classes, 1000, (0.4,) * columns, (0.3,) * columns, targets, targets)


@pytest.mark.parametrize("infer_w0", [False, True])
@pytest.mark.parametrize("shape", [(8, 8, 1), (28, 28, 1), (3,)])
def test_an_outline_is_the_net_of_every_preset_without_values(shape, infer_w0):
    for name in PRESETS if shape in IMAGES else PRESETS[:3]:
        row = preset(name, about(shape), infer_w0=infer_w0)
        made = {"net": row.net(jax.random.key(0)), "likelihood": row.likelihood, "training": row.training.objective}
        found = from_outline(json.loads(json.dumps(outline(made))))
        assert eqx.tree_equal(found, eqx.filter_eval_shape(lambda made=made: made))
        assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))


def test_only_parameters_are_outlined():
    with pytest.raises(ValueError, match="holds int32, which is no parameter"):
        outline({"steps": jnp.arange(3)})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small_images(tmp_path_factory.mktemp("outlines") / "data")


@pytest.fixture(scope="module")
def run(data):
    """A finished run of one small net."""
    out = data.parent / "run"
    runs.train(settings(data), out, progress=False)
    return out


def settings(data, **others):
    return runs.Settings(str(data), "fast", **{"epochs": 1, **others})


@pytest.fixture
def other_presets(monkeypatch):
    """Presets as a later version might have them."""
    for table in (presets.COLOUR, presets.GREY, presets.SMALL):
        for name in table:
            monkeypatch.setitem(table, name, ImageSize((8, 8, 8), 7, 3))


def edited(run, change):
    """Write ``run.json`` anew, with a valid seal; returns its former bytes."""
    file = run / "run.json"
    whole = file.read_bytes()
    words = json.loads(whole)
    del words["kind"], words["seal"]
    write_record(file, KIND, change(words))
    return whole


@pytest.mark.usefixtures("_as_a_user")
def test_every_command_works_after_the_presets_have_changed(run, data, tmp_path, capsys, request):
    x = np.load(data / "x_test.npy")[:5]
    np.save(tmp_path / "x.npy", x)
    before = open_forecaster(run).forecast(open_forecaster(run).read(tmp_path / "x.npy"), where="x")
    scores = json.loads((run / "result.json").read_text())
    request.getfixturevalue("other_presets")
    assert preset("fast", about((8, 8, 1))).members == 3
    for command in (
        ("predict", run, tmp_path / "x.npy", "--out", tmp_path / "p.npy"),
        ("evaluate", run, "--draws", "16", "--json"),
        ("export", run, "--out", tmp_path / "m.stablehlo"),
        ("report", run, "--out", tmp_path / "r.html"),
        ("info", run, "--layers"),
    ):
        cli.app(list(map(str, command)), standalone_mode=False)
        said = capsys.readouterr().out
        if command[0] == "evaluate":
            assert json.loads(said)["nll"] == pytest.approx(scores["nll"], rel=1e-6)
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy")[:, 1], before["p(0)"])


@pytest.mark.usefixtures("other_presets")
def test_a_preset_that_is_gone_is_not_asked_for(run):
    model = runs.open_run(run)[1]
    whole = edited(run, lambda words: {**words, "preset": "gone"})
    try:
        assert eqx.tree_equal(runs.open_run(run)[1], model)
    finally:
        (run / "run.json").write_bytes(whole)


def test_a_run_without_an_outline_is_made_from_its_preset(run, request):
    model = runs.open_run(run)[1]
    whole = edited(run, lambda words: {name: value for name, value in words.items() if name != "net"})
    try:
        assert eqx.tree_equal(runs.open_run(run)[1], model)
        request.getfixturevalue("other_presets")
        with pytest.raises(ValueError, match="is of another model"):
            runs.open_run(run)
    finally:
        (run / "run.json").write_bytes(whole)


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, 2])
def test_a_finished_run_goes_on_with_its_own_net_and_recipe(data, tmp_path, request, members):
    outs = [tmp_path / name for name in ("one", "two")]
    for out in outs:
        runs.train(settings(data, members=members), out, progress=False)
    first = runs.train(settings(data, members=members, epochs=2), outs[0], resume=True, progress=False)
    request.getfixturevalue("other_presets")
    second = runs.train(settings(data, members=members, epochs=2), outs[1], resume=True, progress=False)
    for name in ("nll", "elbo", "kl", "parameters", "epochs", "members"):
        assert second[name] == first[name]
    assert (
        json.loads((outs[1] / "run.json").read_text())["net"] == json.loads((outs[0] / "run.json").read_text())["net"]
    )


def interrupted(monkeypatch, data, out, at, **others):
    """A run that was stopped when its fit of this number was to begin, or when it had ended."""
    real, calls = engine.fit, []

    def stopped(*given, **how):
        calls.append(given)
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(*given, **how)

    with monkeypatch.context() as patched:
        patched.setattr(engine, "fit", stopped)
        if at > others.get("members", 1):
            patched.setattr("sdebnn.runs.training.score", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            runs.train(settings(data, **others), out, progress=False)


def test_an_unfinished_run_goes_on_with_its_own_net_if_all_of_it_has_begun(data, run, tmp_path, monkeypatch, request):
    interrupted(monkeypatch, data, tmp_path / "run", at=2)
    request.getfixturevalue("other_presets")
    result = runs.train(settings(data), tmp_path / "run", resume=True, progress=False)
    assert result["nll"] == json.loads((run / "result.json").read_text())["nll"]


def test_a_member_that_has_not_begun_is_refused_if_the_preset_is_another(data, tmp_path, monkeypatch, request):
    interrupted(monkeypatch, data, tmp_path / "run", at=2, members=2)
    request.getfixturevalue("other_presets")
    with pytest.raises(
        ValueError, match=r"lacks checkpoints of member 1.*The preset 'fast' of this version is another"
    ):
        runs.train(settings(data, members=2), tmp_path / "run", resume=True, progress=False)
    runs.open_run(tmp_path / "run")  # the first member


def test_a_net_in_bfloat16_is_opened_in_float32_on_a_cpu(run):
    model = runs.open_run(run)[1]

    def in_bfloat16(words):
        parts = json.dumps(words["net"]["parts"])
        assert '"compute": "float32"' in parts
        parts = json.loads(parts.replace('"compute": "float32"', '"compute": "bfloat16"'))
        return {**words, "net": {**words["net"], "parts": parts}}

    whole = edited(run, in_bfloat16)
    try:
        assert eqx.tree_equal(runs.open_run(run)[1], model)
    finally:
        (run / "run.json").write_bytes(whole)


FORGERIES = {
    "no outline": ("net", 3),
    "a list": ("net", []),
    "nothing in it": ("net", {}),
    "no arrays": (("net", "arrays"), {}),
    "arrays in a list": (("net", "arrays"), []),
    "a net of nothing": (("net", "parts"), {"dict": {}}),
    "a net that is a word": (("net", "parts"), "net"),
    "a prior as net": (("net", "parts", "dict", "net"), {"class": "sdebnn.NoDrift", "fields": {}}),
    "a net as likelihood": (("net", "parts", "dict", "likelihood"), {"class": "sdebnn.NoDrift", "fields": {}}),
    "a class of os": (("net", "parts", "dict", "net", "class"), "os:PathLike"),
    "a function of os": (("net", "parts", "dict", "training", "fields", "optimizer", "fields", "rule"),
                         {"partial": [{"function": "os:system"}, {"tuple": ["true"]}, {"dict": {}}]}),
    "no members": (("net", "parts", "dict", "members"), 0),
    "a billion members": (("net", "parts", "dict", "members"), 10**9),
    "members that are not there": (("net", "parts", "dict", "in_turn"), "yes"),
    "no draws": (("net", "parts", "dict", "draws_at_once"), 0),
    "no recipe": (("net", "parts", "dict", "training"), None),
    "a recipe of no draws": (
        ("net", "parts", "dict", "training", "fields", "objective", "fields", "draws"), 0,
    ),
    "one part more": (("net", "parts", "dict", "more"), 1),
    "something opaque": (("net", "parts", "dict", "training"), {"opaque": "<lambda>"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_outline_with_a_valid_seal_is_refused(name, run):
    where, value = FORGERIES[name]
    whole = edited(run, lambda words: changed(words, (where,) if isinstance(where, str) else where, value))
    try:
        assert_refused(lambda path: runs.open_run(path.parent), run / "run.json", name)
    finally:
        (run / "run.json").write_bytes(whole)


@pytest.mark.usefixtures("bounded")
def test_shapes_of_10_gb_are_refused_before_memory_is_taken(run):
    arrays = json.loads((run / "run.json").read_text())["net"]["arrays"]
    for where in random.Random(0).sample(sorted(arrays), 8):
        for described in (["float32", [10**5, 10**5]], ["float32", [2**31 - 1] * 9], ["object", [1]], ["float32", 3]):
            whole = edited(run, lambda words, where=where, to=described: changed(words, ("net", "arrays", where), to))
            try:
                with pytest.raises(ValueError, match=r"run\.json|step-") as error:
                    runs.open_run(run)
                assert len(str(error.value).splitlines()) == 1
            finally:
                (run / "run.json").write_bytes(whole)


@pytest.mark.usefixtures("bounded")
def test_a_random_edit_of_an_outline_is_refused_or_gives_a_whole_net(run):
    words = json.loads((run / "run.json").read_text())
    lot, refusals = random.Random(0), 0
    everywhere = [("net", *where) for where in places(words["net"])]
    for _ in range(150):
        where, value = lot.choice(everywhere), lot.choice([..., *NOT_A_VALUE])
        whole = edited(run, lambda facts, where=where, value=value: changed(facts, where, value))
        try:
            _, model, _ = runs.open_run(run)
        except ValueError as error:
            assert len(str(error).splitlines()) == 1, (where, value)
            refusals += 1
        else:
            leaves = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
            assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)
        finally:
            (run / "run.json").write_bytes(whole)
    assert refusals > 100
