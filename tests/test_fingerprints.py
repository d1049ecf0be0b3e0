"""What tells one training from another: each change of a model, an optimiser or data is seen, and nothing else is."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sdebnn import OU, SDEBNN, Adaptive, FixedGrid, Gaussian, Laplace, Normal, Point, StudentT
from sdebnn.data import RandomView, SelectedRows
from sdebnn.fingerprints import described, difference, digest, kept_digest
from sdebnn.train import grouped_muon


def net(seed=0, **how):
    return SDEBNN.paper_mlp(1, 1, widths=(4,), drift=(2,), key=jax.random.key(seed), **how)


def _square(x):
    return x * x


def _cube(x):
    return x * x * x


SGD = optax.sgd(1.0)
PAIRS = {  # what is another training, and where that is seen
    "sigma": (net(prior=OU(sigma=0.2)), net(prior=OU(sigma=0.1)), "prior.sigma"),
    "rate": (net(prior=OU(rate=1.0)), net(prior=OU(rate=2.0)), "prior.rate"),
    "steps": (net(solver=FixedGrid(20)), net(solver=FixedGrid(21)), "solver.steps"),
    "method": (net(solver=FixedGrid(20)), net(solver=FixedGrid(20, "heun")), "solver.method"),
    "tolerance": (net(solver=Adaptive(1e-3)), net(solver=Adaptive(1e-4)), "solver.atol"),
    "activation": (net(activation=jnp.tanh), net(activation=jax.nn.relu), "activation"),
    "own activation": (net(activation=_square), net(activation=_cube), "activation"),
    "lambda": (net(activation=lambda x: x + 1), net(activation=lambda x: x - 1), "activation"),
    "gain": (net(gain=2.0), net(gain=3.0), "field.gain"),
    "kl": (net(), net(kl="stl"), ".kl"),
    "w_0": (net(initial=Normal), net(initial=Point), "initial"),
    "prior of w_0": (net(), net(initial=functools.partial(Normal, prior_std=2.0)), "initial.prior_std"),
    "width": (net(), SDEBNN.paper_mlp(1, 1, widths=(5,), drift=(2,), key=jax.random.key(0)), ""),
    "likelihood": (Gaussian(0.1), Laplace(0.1), ""),
    "scale": (Gaussian(0.1), Gaussian(0.2), "log_scale"),
    "df": (StudentT(3.0), StudentT(4.0), "df"),
    "learned scale": (Gaussian(0.1), Gaussian(0.1, learn=True), "log_scale"),
    "optimiser": (optax.adam(1e-3), optax.nadam(1e-3), "nesterov"),
    "its rate": (optax.adam(1e-3), optax.adam(2e-3), "step_size"),
    "its schedule": (
        optax.adam(optax.cosine_decay_schedule(1e-3, 10)),
        optax.adam(optax.cosine_decay_schedule(1e-3, 20)),
        "decay_steps",
    ),
    "our optimiser": (grouped_muon(1e-3, 100), grouped_muon(2e-3, 100), "end_value"),
    "chained": (
        optax.chain(optax.clip(1.0), SGD),
        optax.chain(optax.clip(2.0), SGD),
        "max_delta",
    ),
    "augmentation": (RandomView(2), RandomView(2, flip=True), "flip"),
    "own augmentation": (lambda x, key: x, lambda x, key: -x, ""),
    "numbers it encloses": (functools.partial(_square, 1), functools.partial(_square, 2), "args"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_each_change_is_found_at_its_path(name):
    one, two, where = PAIRS[name]
    found = difference(described(one), described(two))
    assert found is not None
    assert where in found[0]
    assert found[1] != found[2]


def test_equal_objects_have_equal_descriptions_whatever_their_parameters():
    assert difference(described(net(seed=0)), described(net(seed=1))) is None
    assert difference(described(optax.adam(1e-3)), described(optax.adam(1e-3))) is None
    assert difference(described(grouped_muon(1e-2, 9)), described(grouped_muon(1e-2, 9))) is None
    assert difference(described(Gaussian(0.1, learn=True)), described(Gaussian(0.3, learn=True))) is None


def test_arrays_that_are_not_trained_are_compared_by_value():
    class Masked(eqx.Module):
        mask: jax.Array

    one, two = (Masked(jnp.array(mask)) for mask in ([1, 0], [0, 1]))
    assert difference(described(one), described(two))[0] == "mask"  # pyright: ignore[reportOptionalSubscript]


def test_an_object_that_contains_itself_can_be_described():
    loop: list = [1]
    loop.append(loop)
    assert described(loop)["[1]"] == "itself"


def test_a_digest_depends_on_the_numbers_used_in_training_and_not_on_where_they_are(tmp_path):
    x = np.random.default_rng(0).normal(size=(2500, 7))  # float64 on disk, float32 in training
    np.save(tmp_path / "x.npy", x)
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    same = digest(jnp.asarray(x))
    assert digest(x) == digest(on_disk) == digest(SelectedRows(on_disk, np.arange(2500))) == same
    last = x.copy()
    last[-1, -1] += 1e-3
    assert digest(last) != same
    assert digest(x[::-1]) != same
    assert digest(x.reshape(-1, 14)) != same
    assert digest(np.float32(x).view(np.int32)) != same


def test_a_file_is_read_once_while_it_does_not_change(tmp_path, monkeypatch):
    file = tmp_path / "x.npy"
    x = np.arange(60.0).reshape(20, 3)
    np.save(file, x)
    kept: dict[str, str] = {}
    part = SelectedRows(np.load(file, mmap_mode="r"), np.arange(10))
    first = kept_digest(part, kept)
    monkeypatch.setattr("sdebnn.fingerprints.digest", lambda _: "read again")
    assert kept_digest(part, kept) == first
    assert kept_digest(SelectedRows(np.load(file, mmap_mode="r"), np.arange(1, 11)), kept) == "read again"
    np.save(file, x + 1)
    assert kept_digest(SelectedRows(np.load(file, mmap_mode="r"), np.arange(10)), kept) == "read again"


def test_slices_of_one_file_have_different_digests(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(240.0).reshape(80, 3))
    whole = np.load(tmp_path / "x.npy", mmap_mode="r")
    kept: dict[str, str] = {}
    assert kept_digest(whole[:40], kept) != kept_digest(whole[40:], kept)
    assert kept_digest(whole[:, :1], kept) != kept_digest(whole[:, 1:2], kept)


class Slotted:
    __slots__ = ("size",)

    def __init__(self, size):
        self.size = size


class Lazy:
    @functools.cached_property
    def table(self):
        return [1, 2, 3]


FACTOR = 2.0


def _scaled(x):
    return FACTOR * _square(x)


def test_globals_that_a_function_uses_are_compared(monkeypatch):
    before = described(_scaled)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert difference(before, described(_scaled))[0] == "FACTOR"  # pyright: ignore[reportOptionalSubscript]
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "_square", _cube)
    assert difference(before, described(_scaled)) is not None


def test_cached_properties_are_not_compared():
    assert difference(described(Slotted(1)), described(Slotted(2))) is not None
    lazy = Lazy()
    before = described(lazy)
    assert lazy.table
    assert difference(before, described(lazy)) is None
    words = np.array(["a", None], object)
    assert difference(described(words), described(words.copy())) is None
    assert "0x" not in str(described({"of": {_square, _cube}, _square: 1, "in": words}))


def test_dictionary_keys_with_the_same_text_can_be_described():
    assert described({Slotted(1): {"a": 1}, Slotted(1): {"b": 2}})


def test_a_schedule_that_was_used_is_the_same_as_one_that_was_not():
    used, new = (grouped_muon.__wrapped__(0.01, 40) for _ in range(2))
    before = described(used)
    tree = {"kernel": jnp.ones((2, 3))}
    used.update(tree, used.init(tree), tree)
    assert described(used) != before  # Optax changed the schedule's closure
    assert difference(before, described(used)) is None
    assert difference(described(used), described(new)) is None
    assert difference(described(used), described(grouped_muon.__wrapped__(0.01, 41))) is not None
