"""Several devices give the answer of one, and exchange one sum a step. Eight devices are simulated in a process."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from sdebnn import SDEBNN, Gaussian, fit, make_mesh, predict
from sdebnn.cli.training import train
from sdebnn.meshes import check_mesh, padded

WORKER = Path(__file__).parent / "several_worker.py"


def worked(folder, scenario):
    """What a process with eight devices found: arrays by name, and facts."""
    given = json.dumps({"devices": 8, "out": str(folder), "scenario": scenario})
    done = subprocess.run([sys.executable, str(WORKER), given], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(folder / "found.npz")), json.loads((folder / "facts.json").read_text())


def environment():
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(WORKER.parent.parent)}


def difference(found, name, shape, part, one="1x1"):
    """The largest difference from one device, relative to the size of the numbers."""
    here, there = found[f"{name} {shape}/{part}"], found[f"{name} {one}/{part}"]
    return np.abs(here - there).max() / max(np.abs(there).max(), 1e-30)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    return worked(tmp_path_factory.mktemp("meshes"), "meshes")


@pytest.mark.parametrize("shape", ["8x1", "4x2", "1x8"])
@pytest.mark.parametrize("part", ["elbo", "log_likelihood", "kl", "parameters", "samples"])
def test_every_mesh_gives_the_bound_gradient_and_predictions_of_one_device(eight, shape, part):
    """Parameters are moved by plain gradient steps. Examples and draws are not multiples of the devices."""
    assert difference(eight[0], "vectors", shape, part) < 1e-5


@pytest.mark.parametrize("part", ["elbo", "accuracy", "parameters"])
def test_images_are_seen_in_the_same_way_by_every_mesh(eight, part):
    assert difference(eight[0], "images", "8x1", part) < 1e-5


def test_a_step_has_one_sum_over_devices_and_it_is_outside_the_loop_over_depth(eight):
    # The steps of a call are one loop; a sum in a loop over depth would be two loops deep.
    assert eight[1]["collectives"]["images"] == [["all-reduce", 1]]


@pytest.mark.slow
def test_everything_that_a_batch_may_be_gives_the_answer_of_one_device(tmp_path):
    found, facts = worked(tmp_path, "more_meshes")
    names = {name.partition(" 1x1/")[0] for name in found if " 1x1/" in name}
    assert names > {"parts", "members", "weighted classes", "read-out", "mixing", "divided"}
    assert "adaptive steps cannot be trained on several devices" in facts["refusals"][0]
    for name in names - {"adaptive"}:
        shape = "8x1" if name == "divided" else "4x2"
        for part in ("elbo", "parameters"):
            # Adam's first steps divide by the size of a gradient, however small it is.
            assert difference(found, name, shape, part) < (1e-4 if name == "Adam" else 1e-5), (name, part)
    assert difference(found, "weighted classes", "4x2", "accuracy") < 1e-6
    assert facts["collectives"]["mixing"] == [["all-reduce", 1]]


def test_a_mesh_of_one_device_is_no_mesh():
    x = np.linspace(-1, 1, 8)[:, None].astype(np.float32)
    model = SDEBNN.paper_mlp(1, 1, key=jax.random.key(0))
    options = {"key": jax.random.key(1), "epochs": 1, "progress": False}
    plain, on_one = (fit(model, Gaussian(0.1), x, x, mesh=mesh, **options).model for mesh in (None, make_mesh(1, 1)))
    np.testing.assert_array_equal(*(predict(each, x, draws=2, key=jax.random.key(2)) for each in (plain, on_one)))


def test_shares_are_filled_up_with_the_first_rows():
    np.testing.assert_array_equal(padded(jnp.arange(5), 4), [0, 1, 2, 3, 4, 0, 1, 2])
    np.testing.assert_array_equal(padded(jnp.arange(2), 8), [0, 1] * 4)


def test_wrong_meshes_are_refused(refused):
    refused(lambda: make_mesh(4, 2, devices=jax.devices()[:1]), "a mesh of 4 x 2 needs 8 devices, and there are 1")
    refused(lambda: make_mesh(0), "data=0")
    refused(lambda: check_mesh("4x2"), "no mesh with the axes data and draw")
    other = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("rows",))
    model, x = SDEBNN.paper_mlp(1, 1, key=jax.random.key(0)), np.zeros((4, 1), np.float32)
    refused(lambda: fit(model, Gaussian(0.1), x, x, key=jax.random.key(1), mesh=other), "no mesh with the axes")
    refused(lambda: predict(model, x, key=jax.random.key(1), mesh=other), "no mesh with the axes")


def test_devices_that_do_not_divide_a_batch_are_refused():
    code = (
        "import jax, numpy as np\nfrom sdebnn import *\nx = np.zeros((10, 1), np.float32)\n"
        "m = SDEBNN.paper_mlp(1, 1, key=jax.random.key(0))\n"
        "for mesh in (make_mesh(4, 1), make_mesh(1, 4)):\n"
        "    try:\n"
        "        fit(m, Gaussian(0.1), x, x, key=jax.random.key(1), mesh=mesh, objective=Objective(draws=2))\n"
        "    except ValueError as error:\n        print(error)\n"
    )
    flags = {**environment(), "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    said = subprocess.run([sys.executable, "-c", code], env=flags, capture_output=True, text=True, check=True).stdout
    assert "4 devices on its axis data, which do not divide 10 examples" in said
    assert "4 devices on its axis draw, which do not divide 2 draws" in said


def test_the_page_on_several_devices_runs_and_the_files_for_clusters_pass_options_that_there_are():
    text = (WORKER.parent.parent / "docs" / "several-devices.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    scope = {}
    exec(compile(block, "several-devices.md", "exec"), scope)
    assert scope["samples"].shape == (100, 64, 1)
    known = {f"--{name.replace('_', '-')}" for name in inspect.signature(train).parameters}
    folder = WORKER.parent.parent / "docs" / "cluster"
    (command,) = re.findall(r"sdebnn train ([^|]*)\\", (folder / "slurm.sh").read_text())
    *_, job = yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    container = job["spec"]["template"]["spec"]["containers"][0]
    for words in (command.split(), container["args"], re.findall(r"^sdebnn train (.*)$", text, re.M)[0].split()):
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
    assert f"--processes={job['spec']['completions']}" in container["args"]
