"""Every model and likelihood survives a file bit for bit."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import GRID, KEY, SMALL, Belief, Matrix, Sums, X, Y, called, guided_net, linear_data, members

import sdebnn
from sdebnn import Adaptive, Categorical, Cauchy, Ensemble, Fit, FixedGrid, Gaussian, Laplace, StudentT, Weighted
from sdebnn.artifacts.names import known_objects
from sdebnn.baselines import (
    GP,
    HMC,
    Diagnostics,
    Hypernet,
    HyperODEBlock,
    LastLayerLaplace,
    MCDropout,
    PartlyRandom,
    ResNet,
    TemperatureScaled,
    bayes_by_backprop,
    bbvi,
)
from sdebnn.data import RandomView
from sdebnn.fields import Last
from sdebnn.integrate import RungeKutta
from sdebnn.models import Frozen
from sdebnn.nn import (
    SDEBNN,
    AbstractModel,
    Deterministic,
    MeanField,
    ODEBlock,
    TimeMLP,
    Views,
    Waves,
    bayesianize,
    pooled,
    unsqueeze,
)
from sdebnn.presets import Affine
from sdebnn.processes import OU, Independent, LinearDrift, NoDrift, Normal, Point

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
FIELD = TimeMLP(2, (3,), key=KEY)
MIDPOINT = RungeKutta(1.0, shares=(0.0, 1.0), c=(0.0, 0.5), a=((), (0.5,)), alpha=(0.0, 0.5), beta=(0.0, 0.0))
IMAGES = jnp.arange(2 * 8 * 8, dtype=jnp.float32).reshape(2, 8, 8, 1)


def moved(model, size=0.5):
    """The same model with noise added to its arrays, by NumPy, which compiles nothing."""
    random = np.random.default_rng(0)

    def noisy(leaf):
        return jnp.asarray(np.asarray(leaf) + size * random.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(lambda leaf: noisy(leaf) if eqx.is_inexact_array(leaf) else leaf, model)


def block(**options):
    return bayesianize(FIELD, **{"solver": GRID, "drift": (2,), "key": KEY, **options})


def net(**options):
    return SDEBNN.paper_mlp(2, 1, widths=(3,), drift=(2,), solver=GRID, key=KEY, **options)


def small_image_net(**options):
    return sdebnn.our_net((8, 8, 1), 3, channels=(2,), blocks=1, drift=(1, 2, 1), key=KEY, **options)


def conditioned(**options):
    """The net for vectors, placed at data as ``fit`` places it."""
    new = SDEBNN.mlp(2, 1, width=4, points=3, solver=GRID, candidates=2, key=KEY, **options)
    return moved(new.before_training(Gaussian(0.1), (X, Y)), size=0.1)


def by_halves(w):
    return Independent((Point(w[:2]), Normal(w[2:], 0.1, prior_std=None)))


def laplace(factor):
    model = LastLayerLaplace(eqx.nn.Linear(2, 3, key=KEY), 3, 1, key=KEY)
    return eqx.tree_at(lambda m: m.factor, model, factor, is_leaf=lambda leaf: leaf is None)


def sampled():
    hmc = HMC(SMALL, draws=10, warmup=20)
    found = Frozen(jnp.ones((10, hmc.start.law.size))), Diagnostics(1.0, 1.0, 5.0, 5.0, 0, 0.9, 3.5)
    return eqx.tree_at(lambda m: (m.samples, m.diagnostics), hmc, found, is_leaf=lambda leaf: leaf is None)


def tempered():
    return eqx.tree_at(
        lambda m: m.likelihood, TemperatureScaled(SMALL), Gaussian(None), is_leaf=lambda leaf: leaf is None
    )


def reversible(gradient):
    return block(prior=OU(rate=0.1), solver=FixedGrid(3, "reversible_heun", gradient))


MODELS = {
    "paper_mlp": lambda: moved(net()),
    "mlp, new": lambda: SDEBNN.mlp(2, 1, width=4, key=KEY),
    "mlp, placed": conditioned,
    "mlp, of given length and scale": lambda: conditioned(length=1.0, scale=(2.0,)),
    "our_net": lambda: small_image_net(views=RandomView(1, flip=True, fill=(3,)), mean_field_head=True),
    "our_net, partly inferred": lambda: moved(small_image_net(infer_w0_of=(1,))),
    "our_net, deterministic": lambda: small_image_net(deterministic=(0,), compute="float32"),
    "paper_net": lambda: sdebnn.paper_net((8, 8, 1), 3, blocks=(1, 1), width=2, drift=(1, 2, 1), solver=GRID, key=KEY),
    "a net with an encoder": lambda: net(encoder=Affine((1.0, 2.0), (0.5, 0.5)), decoder=jax.nn.softplus),
    "activations with options": lambda: net(activation=functools.partial(jax.nn.leaky_relu, negative_slope=0.2)),
    "a sine as activation": lambda: net(activation=jnp.sin),
    "ensemble": lambda: Ensemble([moved(net()), net()]),
    "ensemble of placed nets": lambda: Ensemble([conditioned(), moved(conditioned())]),
    "ensemble in training": lambda: Ensemble(members(2)).for_training(),
    "a trained prior": lambda: block(prior=OU(rate=jnp.asarray(1.0), mean=jnp.zeros(20), sigma=0.3)),
    "part of a module": lambda: block(where=lambda m: m.layers[0]),
    "w_0 normal": lambda: block(initial=Normal, kl="stl"),
    "w_0 by halves": lambda: block(initial=by_halves, kl="full"),
    "no drift": lambda: block(drift=NoDrift()),
    "a linear drift": lambda: bbvi(FIELD, knots=3, solver=GRID, key=KEY),
    "a drift of low rank": lambda: block(drift=(1, 4, 1)),
    "another field": lambda: bayesianize(Waves(2, 4, 1, key=KEY), drift=LinearDrift(31, 2), key=KEY),
    "a guide": lambda: moved(guided_net()),
    "heun": lambda: block(solver=FixedGrid(3, "heun", "backprop", unroll=2, at_once=4)),
    "ralston3 on another grid": lambda: block(solver=FixedGrid(4, "ralston3", noise_steps=2)),
    "a method of one's own": lambda: block(solver=FixedGrid(3, MIDPOINT)),
    "reversible steps": lambda: reversible("reversible"),
    "adaptive steps": lambda: block(solver=Adaptive(1e-2, 1e-3, max_steps=64)),
    "adaptive half steps": lambda: block(solver=Adaptive(solver=diffrax.SEA())),
    "the adjoint equation": lambda: block(solver=Adaptive(solver=diffrax.Heun(), adjoint=diffrax.BacksolveAdjoint())),
    "random up to a depth": lambda: PartlyRandom(block(), 0.5),
    "an ODE": lambda: ODEBlock(FIELD, solver=GRID),
    "a hyper-ODE": lambda: HyperODEBlock(FIELD, drift=(2,), solver=GRID, key=KEY),
    "mean field": lambda: MeanField(SMALL),
    "mean field in training": lambda: MeanField(SMALL).for_training(),
    "Bayes by backprop": lambda: bayes_by_backprop(SMALL),
    "dropout": lambda: MCDropout(SMALL, 0.2),
    "a hypernet": lambda: Hypernet(SMALL, couplings=2, width=3, key=KEY),
    "Laplace, untrained": lambda: laplace(None),
    "Laplace": lambda: laplace(Frozen(jnp.eye(4))),
    "HMC, untrained": lambda: HMC(SMALL),
    "HMC": sampled,
    "a Gaussian process": lambda: GP(*linear_data(4), kernel="matern52", features=8),
    "a temperature": tempered,
    "a residual net": lambda: Deterministic(ResNet(1, 3, widths=(2, 3), blocks=2, key=KEY)),
    "views": lambda: SDEBNN((Views(RandomView(1)), Deterministic(unsqueeze), Deterministic(pooled))),
    "a module of Equinox": lambda: Deterministic(
        eqx.nn.Sequential([eqx.nn.LayerNorm(2), eqx.nn.Lambda(jax.nn.gelu), eqx.nn.Linear(2, "scalar", key=KEY)])
    ),
    "a convolution of Equinox": lambda: Deterministic(eqx.nn.Conv2d(1, 2, 3, padding=1, key=KEY)),
    "arrays of other types": lambda: Deterministic(
        jax.tree_util.Partial(jnp.clip, min=jnp.arange(2), max=jnp.asarray([2, 3], jnp.bfloat16))
    ),
    "NumPy arrays, weak types and keys": lambda: Deterministic(
        jax.tree_util.Partial(jnp.mean, np.arange(3.0), jnp.full(2, 0.1), KEY, np.float32(0.5), [True, None], {"a": ""})
    ),
    "the last entries": lambda: Deterministic(Last(1)),
}  # fmt: skip
LIKELIHOODS = {
    "Gaussian": lambda: Gaussian(0.1),
    "Gaussian, learned": lambda: Gaussian(0.1, learn=True),
    "Gaussian, of the outputs": lambda: Gaussian(None),
    "Laplace": lambda: Laplace(0.2),
    "Cauchy": lambda: Cauchy(0.2),
    "Student's t": lambda: StudentT(3.5, learn=True),
    "classes": Categorical,
    "weights": lambda: Weighted(StudentT(4.0, None)),
}
# Parts of a solve or of a training, which no model holds.
TRANSIENT = {"Brownian", "BrownianPath", "Grid", "NoiseOnWeights", "Posterior", "RandomMixing"}


def bits(leaf):
    """A leaf with everything that a computation depends on."""
    if isinstance(leaf, functools.partial):
        return leaf.func, leaf.args, leaf.keywords
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return leaf
    plain = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    weak = getattr(leaf, "weak_type", None)
    return isinstance(leaf, jax.Array), type(leaf), str(leaf.dtype), weak, leaf.shape, np.asarray(plain).tobytes()


def assert_same(a, b):
    """The same structure, the same functions and the same bits: JAX runs the same program on the same numbers."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, two in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert type(one) is type(two)
        assert bits(one) == bits(two)


def assert_survives(thing, path, **options):
    sdebnn.save(thing, path)
    assert_same(thing, sdebnn.load(path, **options))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_survives(name, tmp_path):
    assert_survives(MODELS[name](), tmp_path / "m")


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood_survives_in_a_fit(name, tmp_path):
    history = {"elbo": np.array([1.0, np.nan]), "kl": np.zeros((2, 3))}
    assert_survives(Fit(Belief(jnp.zeros(())), LIKELIHOODS[name](), history), tmp_path / "m", modules=["small_models"])


def test_no_class_of_a_model_is_left_out():
    """Whoever adds a class to sdebnn adds it to MODELS or LIKELIHOODS here."""
    found = set()

    def walk(node):
        if isinstance(node, jax.tree_util.PyTreeDef):
            return
        if isinstance(node, eqx.Module):
            found.add(type(node))
            walk([getattr(node, name) for name in node.__dataclass_fields__])
        elif isinstance(node, list | tuple):
            found.add(type(node))
            [walk(part) for part in node]

    walk([make() for make in (*MODELS.values(), *LIKELIHOODS.values())])
    known = {part for name, part in known_objects().items() if name.startswith("sdebnn.") and isinstance(part, type)}
    concrete = {part for part in known if issubclass(part, eqx.Module) and not getattr(part, "__abstractmethods__", ())}
    assert {part.__name__ for part in concrete - found if not part.__name__.startswith("Abstract")} <= TRANSIENT


def test_no_two_classes_share_a_name():
    own = [part for name, part in known_objects().items() if name.startswith("sdebnn.")]
    assert all(known_objects()[f"sdebnn.{part.__name__}"] is part for part in own)
    for name in ("sdebnn.SDEBlock", "sdebnn.squeeze", "equinox.nn.MLP", "diffrax.ShARK", "jax.nn.silu"):
        assert name in known_objects()


@pytest.mark.parametrize("name", ["paper_mlp", "mlp, placed", "our_net, partly inferred"])
def test_predictions_after_loading_are_equal_bit_for_bit(name, tmp_path):
    model, x = MODELS[name](), IMAGES if "our_net" in name else X
    sdebnn.save(model, tmp_path / "m", inputs=x)
    before, after = called(model, x), called(sdebnn.load(tmp_path / "m"), x)
    np.testing.assert_array_equal(np.asarray(before[0]), np.asarray(after[0]))
    assert np.asarray(before[1]) == np.asarray(after[1])


@pytest.mark.slow
def test_models_in_float64_survive_and_are_refused_in_float32(tmp_path, refused):
    code = (
        "import sys, pathlib, test_artifacts_models as t\n"
        "for name, make in t.MODELS.items():\n"
        "    t.assert_survives(make(), pathlib.Path(sys.argv[1]) / 'm')\n"
        "t.sdebnn.save(t.MODELS['paper_mlp'](), pathlib.Path(sys.argv[1]) / 'm')\n"
    )
    env = {**os.environ, "JAX_ENABLE_X64": "1", "PYTHONPATH": str(Path(__file__).parent)}
    env["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=env)
    refused(lambda: sdebnn.load(tmp_path / "m"), "holds float64 numbers.*jax_enable_x64")


def test_models_are_saved_and_loaded_without_scikit_learn(tmp_path):
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import jax, sdebnn\n"
        "from sdebnn.artifacts import load, save\n"
        "save(sdebnn.SDEBNN.paper_mlp(2, 1, key=jax.random.key(0)), sys.argv[1]); load(sys.argv[1])\n"
        "try: load(sys.argv[2])\n"
        "except ImportError as error: assert 'needs scikit-learn' in str(error)\n"
    )
    committed = Path(__file__).parent / "artifacts" / "estimator-3-regressor.safetensors"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "m"), str(committed)], check=True)


class Mine(eqx.Module):
    """A module of a user's own."""

    weight: jax.Array
    activation: object

    def __call__(self, x):
        return self.activation(self.weight * x)


def own_activation(x):
    return x**3


def test_modules_of_ones_own_load_if_their_module_is_declared(tmp_path, refused):
    path, model = tmp_path / "m", Deterministic(Mine(jnp.arange(2.0), own_activation))
    sdebnn.save(model, path)
    refused(lambda: sdebnn.load(path), r"needs 'test_artifacts_models:Mine': pass modules=\('test_artifacts_models',\)")
    assert_same(model, sdebnn.load(path, modules=(__name__,)))
    assert_survives(bayesianize(Matrix(jnp.eye(2)), key=KEY), path, modules=["small_models"])
    assert_survives(Deterministic(Sums(jnp.ones(2), jnp.zeros(1))), path, modules=["small_models"])
    refused(lambda: sdebnn.load(path, modules=["no.such.module"]), "cannot be imported")


def test_what_has_no_name_loads_into_a_model_of_the_same_structure(tmp_path, refused):
    class Local(AbstractModel):
        bias: jax.Array
        shift: object
        power: int

        def solve(self, x, *, key, with_roughness=False):
            return Belief(self.bias).solve(self.shift(x) ** self.power, key=key)

    def model(value, power=2, size=2):
        return SDEBNN((Local(jnp.full(size, value), lambda x: x + 1, power), net()))

    path = tmp_path / "m"
    sdebnn.save(model(3.0), path)
    refused(lambda: sdebnn.load(path), "which no import finds: pass like=")
    loaded = sdebnn.load(path, like=model(0.0))
    np.testing.assert_array_equal(np.asarray(loaded.layers[0].bias), 3.0)
    assert loaded.layers[0].shift(1) == 2
    assert_same(loaded.layers[1], net())
    refused(lambda: sdebnn.load(path, like=model(0.0, power=3)), "power is 2 in the file and 3 in like")
    refused(
        lambda: sdebnn.load(path, like=model(0.0, size=3)), r"float32 \(2,\) in the file and float32 \(3,\) in like"
    )
    refused(lambda: sdebnn.load(path, like=net()), "holds another model")
    sdebnn.save(Fit(Deterministic(lambda x: x), Gaussian(0.1), {}), path)
    refused(lambda: sdebnn.load(path), "has no name: pass like=")
    for like in (Deterministic(lambda x: x), Fit(Deterministic(lambda x: x), Gaussian(0.1), {})):
        assert isinstance(sdebnn.load(path, like=like), Fit)
    refused(lambda: sdebnn.load(path, like=Fit(Deterministic(abs), Gaussian(0.2), {})), "log_scale is")
    sdebnn.save(model(3.0), path)
    refused(lambda: sdebnn.load(path, like=Fit(model(0.0), Gaussian(0.2), {})), "likelihood is None in the file")


def test_a_partial_in_a_structure_stays_one_object(tmp_path):
    """JAX compares the static fields of a block's field and of the structure of its weights; partials by identity."""
    model = bayesianize(Scaled(jnp.eye(2), functools.partial(jnp.clip, min=-1.0)), solver=GRID, key=KEY)
    sdebnn.save(model, tmp_path / "m")
    loaded = sdebnn.load(tmp_path / "m", modules=(__name__,))
    np.testing.assert_array_equal(called(loaded, X)[0], called(model, X)[0])


class Scaled(eqx.Module):
    weight: jax.Array
    bound: object = eqx.field(static=True)

    def __call__(self, t, h):
        return self.bound(self.weight @ h)


@pytest.mark.usefixtures("_as_a_user")
def test_what_cannot_be_saved_is_refused(tmp_path, refused):
    path = tmp_path / "m"
    refused(lambda: sdebnn.save(net(), tmp_path), "cannot be a file")
    refused(lambda: sdebnn.save(lambda x: x, path), "none of the things that can be saved")
    refused(lambda: sdebnn.save(SMALL, path), "none of the things that can be saved")
    refused(lambda: sdebnn.save(Belief(jnp.asarray(jnp.nan)), path), "NaN or infinite")
    refused(lambda: sdebnn.save(Belief(jnp.zeros(2, jnp.float8_e4m3fn)), path), "dtype float8")
    refused(lambda: sdebnn.save(Fit(net(), 3, {}), path), "likelihood=3")
    refused(lambda: sdebnn.save(Fit(net(), Gaussian(), {"elbo": [1]}), path), "history")
    refused(lambda: sdebnn.save(net(), path, inputs=np.ones((2, 5))), "pass x of shape")
    nested = {"a": {}}
    nested["a"]["a"] = nested
    refused(lambda: sdebnn.save(Deterministic(functools.partial(jnp.sum, nested)), path), "contains itself")
    refused(
        lambda: eqx.filter_jit(lambda model: sdebnn.save(model, path))(Belief(jnp.ones(()))), "save a model outside of"
    )
    assert list(tmp_path.iterdir()) == []
    sdebnn.save(net(), path)
    refused(lambda: sdebnn.load(path, like=3), "is no model")
    refused(lambda: sdebnn.load(path, modules="small_models"), "must be names of modules")
