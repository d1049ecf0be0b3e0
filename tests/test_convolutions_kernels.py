"""The seam for kernels of other distributions: who is found, who is chosen and why, and that the plain path remains."""

import json
import sys
import warnings
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn import FixedGrid, bayesianize, cli
from sdebnn.convolutions import TimeConv, kernels, squeezed
from sdebnn.convolutions.kernels import EulerSteps

KEY = jax.random.key(0)
PROVIDER = """
import jax
from sdebnn.convolutions.kernels import AbstractKernels

class Kernels(AbstractKernels):
    calls = 0

    def unavailable(self, device):
        return None if device.platform == {platform!r} else f"it needs a {platform}; this is {{device.platform}}"

    def refusal(self, steps):
        return None if steps.h0.shape[-1] == 3 else f"{{steps.h0.shape[-1]}} channels"

    def euler(self, steps, plain):
        Kernels.calls += 1
        return plain(steps.layers, steps.h0)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a distribution with an entry point, and the code of its module, until the end of the test.

    The group has another name than sdebnn's, so that what is installed on this machine does not matter.
    """
    monkeypatch.setattr(kernels, "GROUP", "sdebnn.kernels.tested")
    monkeypatch.syspath_prepend(tmp_path)
    modules = []

    def installed(name: str, code: str, version: str = "1.2") -> None:
        module = name.replace("-", "_")
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(code)
        about = tmp_path / f"{module}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (about / "entry_points.txt").write_text(f"[{kernels.GROUP}]\n{name} = {module}:Kernels\n")
        kernels.installed.cache_clear()

    kernels.installed.cache_clear()
    yield installed
    kernels.installed.cache_clear()
    for module in modules:
        sys.modules.pop(module, None)


def steps_of(channels: int = 3) -> EulerSteps:
    """Two steps of a field of random weights on two images."""
    one = TimeConv(channels, (4, 4, 4), key=KEY)
    field = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.9 * leaf]) if eqx.is_array(leaf) else leaf, one)
    layers = tuple((layer.kernel, layer.time, layer.bias) for layer in field.layers)
    h0 = jnp.cos(jnp.arange(2.0 * 6 * 4 * channels)).reshape(2, 6, 4, channels)
    return EulerSteps(layers, h0, jnp.tanh, "float32")


def plain_of(steps: EulerSteps) -> kernels.Plain:
    return partial(squeezed.euler_over_patches, activation=steps.activation, compute=steps.compute, keep=True, unroll=1)


def test_without_a_distribution_the_plain_path_runs(install):
    steps = steps_of()
    assert kernels.choice(steps) == (None, "plain path (no kernels installed)")
    assert kernels.description() == "none installed"
    plain = plain_of(steps)
    np.testing.assert_array_equal(kernels.choice(steps).euler(steps, plain), plain(steps.layers, steps.h0))


def test_an_installed_distribution_computes_the_steps_that_it_does_not_refuse(install):
    install("some-kernels", PROVIDER.format(platform="cpu"))
    chosen = kernels.choice(steps_of())
    assert chosen.reason == kernels.description() == "some-kernels 1.2"
    steps = steps_of()
    kernels.choice(steps).euler(steps, plain_of(steps))
    assert chosen.kernels.calls == 1
    assert kernels.choice(steps_of(5)) == (None, "plain path (some-kernels 1.2: 5 channels)")


def test_a_device_without_kernels_takes_the_plain_path(install):
    install("some-kernels", PROVIDER.format(platform="tpu"))
    assert kernels.choice(steps_of()) == (None, "plain path (some-kernels 1.2: it needs a tpu; this is cpu)")
    assert kernels.description() == "some-kernels 1.2 (not used: it needs a tpu; this is cpu)"


def test_a_distribution_that_refuses_leaves_the_steps_to_the_next(install):
    install("a-kernels", PROVIDER.format(platform="tpu"))
    install("b-kernels", PROVIDER.format(platform="cpu"), version="2.0")
    assert kernels.choice(steps_of()).reason == "b-kernels 2.0"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import a_module_that_nobody_has", "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"),
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("Kernels = dict", "TypeError: broken_kernels:Kernels is not a subclass"),
    ],
)
def test_a_distribution_that_cannot_be_loaded_is_warned_of_once_and_the_plain_path_runs(install, code, words):
    install("broken-kernels", code)
    steps = steps_of()
    plain = plain_of(steps)
    with pytest.warns(RuntimeWarning, match="broken-kernels 1.2 could not be loaded") as warned:
        found = kernels.choice(steps).euler(steps, plain)
    assert words in str(warned[0].message)
    np.testing.assert_array_equal(found, plain(steps.layers, steps.h0))
    with warnings.catch_warnings(action="error"):
        assert words in kernels.choice(steps).reason
        assert words in kernels.description()


def test_nothing_is_loaded_before_it_is_needed(install):
    """Neither by importing sdebnn nor by a block on a processor, whose steps are a loop."""
    install("broken-kernels", "raise RuntimeError('loaded too early')")
    block = bayesianize(TimeConv(3, (4, 4, 4), key=KEY), drift=(2,), solver=FixedGrid(2), key=KEY)
    block(jnp.zeros((1, 4, 4, 3)), key=KEY)
    assert "broken_kernels" not in sys.modules


def test_a_block_reaches_the_kernels_with_its_own_layers(install, monkeypatch):
    """On a device that JAX calls a GPU; the result is that of the loop."""
    install("some-kernels", PROVIDER.format(platform="cpu"))
    block = bayesianize(TimeConv(3, (4, 4, 4), key=KEY), drift=(2,), solver=FixedGrid(2), key=KEY)
    h0 = steps_of().h0
    by_loop, _ = block(h0, key=KEY)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.clear_caches()
    by_kernels, _ = block(h0, key=KEY)
    (found,) = kernels.installed()
    assert type(found.kernels).calls >= 1
    np.testing.assert_allclose(by_kernels, by_loop, rtol=1e-4, atol=1e-5)


def test_the_device_is_that_of_the_state_or_the_default_one_while_tracing():
    steps = steps_of()
    cpu = jax.devices("cpu")[0]
    assert steps.device == next(iter(steps.h0.devices()))
    seen = []
    jax.jit(lambda h0: seen.append(steps._replace(h0=h0).device))(steps.h0)
    with jax.default_device(cpu):
        jax.jit(lambda h0: seen.append(steps._replace(h0=h0).device))(steps.h0)
    assert seen == [jax.devices()[0], cpu]


def test_info_says_which_kernels_are_installed(install, capsys):
    install("some-kernels", PROVIDER.format(platform="tpu"))
    cli.app(["info", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["kernels"] == kernels.description()
