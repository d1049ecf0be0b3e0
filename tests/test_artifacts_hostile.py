"""Damaged and forged files of models are refused in one line, in bounded memory and time."""

import json
import random
import struct

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile import assert_refused
from small_models import GRID, KEY, shaken
from test_edited_files import NOT_A_VALUE, changed, places
from test_files import mutations

import sdebnn
from sdebnn import Fit, Gaussian
from sdebnn.artifacts.models import KIND
from sdebnn.records import load_one, save_one

pytestmark = pytest.mark.usefixtures("_compiled_in_haste", "bounded")
NEEDS = {"model", "likelihood", "history", "inputs", "outputs", "made_with"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The fit of a small net in a file, with the shape of its inputs."""
    model = sdebnn.SDEBNN.paper_mlp(2, 1, widths=(3,), drift=(2,), solver=GRID, key=KEY)
    path = tmp_path_factory.mktemp("saved") / "m.safetensors"
    sdebnn.save(Fit(shaken(model), Gaussian(0.1, learn=True), {"elbo": np.ones(2)}), path, inputs=np.ones((3, 2)))
    return path


def test_a_damaged_file_is_refused(saved, tmp_path):
    whole, path = saved.read_bytes(), tmp_path / "m.safetensors"
    for name, data in mutations(whole, 150, seed=2):
        path.write_bytes(data)
        assert_refused(sdebnn.load, path, name)


def test_every_flipped_bit_of_an_array_is_refused(saved, tmp_path):
    whole, path, lot = bytearray(saved.read_bytes()), tmp_path / "m.safetensors", random.Random(0)
    begins = 8 + struct.unpack("<Q", whole[:8])[0]
    for _ in range(40):
        at, bit = lot.randrange(begins, len(whole)), 1 << lot.randrange(8)
        whole[at] ^= bit
        path.write_bytes(whole)
        assert_refused(sdebnn.load, path, (at, bit))
        whole[at] ^= bit


def raw(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def number(begin=0, end=4, shape=(1,)):
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}


HEADERS = {
    "a header of 10 GB": struct.pack("<Q", 10**10) + b"{}",
    "a header of all memory": struct.pack("<Q", 2**64 - 1) + b"{}",
    "no header": struct.pack("<Q", 0),
    "a list": raw([]),
    "a number": raw(b"1"),
    "no metadata": raw({"a": number()}, b"0000"),
    "metadata that is a list": raw({"__metadata__": []}),
    "a record that is no JSON": raw({"__metadata__": {"record": "{"}}),
    "a record that is a list": raw({"__metadata__": {"record": "[]"}}),
    "a record that is no text": raw({"__metadata__": {"record": 3}}),
    "a record without a seal": raw({"__metadata__": {"record": json.dumps({"kind": KIND})}}),
    "a record of another kind": raw({"__metadata__": {"record": json.dumps({"kind": "a cake, version 1"})}}),
    "a kind of the future": raw({"__metadata__": {"record": json.dumps({"kind": "model of sdebnn, version 99"})}}),
    "deep lists": raw({"__metadata__": {"record": "[" * 10**6}}),
    "deep objects": raw(b'{"a":' * 10**5),
    "deep nesting in the record": raw(
        {"__metadata__": {"record": '{"kind": "%s", "seal": %s}' % (KIND, "[" * 900 + "]" * 900)}}  # noqa: UP031
    ),
    "an array of 10 GB": raw(
        {"__metadata__": {"record": json.dumps({"kind": KIND})}, "a": number(0, 10**10, (10**9, 10))}
    ),
    "arrays that overlap": raw({"a": number(), "b": number()}, b"0000"),
    "two arrays of one name": raw(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b"00000000",
    ),
    "not UTF-8": raw(b"\xff\xfe{}"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_hostile_header_is_refused(name, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(HEADERS[name])
    assert_refused(sdebnn.load, path, name)


BLOCK = ("model", "fields", "layers", "tuple", 1, "fields")
HEAD = ("model", "fields", "layers", "tuple", 2, "fields", "module")
GAIN = (*BLOCK, "field", "fields", "gain")
ACTIVATION = (*BLOCK, "field", "fields", "activation")
AUGMENT = ("model", "fields", "layers", "tuple", 0, "fields", "module", "fields", "zeros")


def nested(depth, node):
    for _ in range(depth):
        node = {"tuple": [node]}
    return node


FORGERIES = {
    "a trillion steps": ((*BLOCK, "solver", "fields", "steps"), 10**12),
    "no steps": ((*BLOCK, "solver", "fields", "steps"), 0),
    "steps of text": ((*BLOCK, "solver", "fields", "steps"), "20"),
    "half a step": ((*BLOCK, "solver", "fields", "steps"), 0.5),
    "true steps": ((*BLOCK, "solver", "fields", "steps"), True),
    "an int of a thousand digits": (GAIN, 10**1000),
    "a number that is none": (GAIN, float("nan")),
    "an infinite number": (GAIN, float("inf")),
    "a number below zero": ((*BLOCK, "prior", "fields", "sigma"), -1.0),
    "a long text": ((*BLOCK, "kl"), "x" * 10**6),
    "an unknown estimator of the KL": ((*BLOCK, "kl"), "guess"),
    "a billion zeros": (AUGMENT, 10**9),
    "two billion zeros": (AUGMENT, 2**31 - 1),
    "an unknown class": ((*HEAD, "class"), "sdebnn.Cake"),
    "a class of os": ((*HEAD, "class"), "os:PathLike"),
    "a class by a path": ((*HEAD, "class"), "../../etc/passwd"),
    "a class by a dotted path": ((*HEAD, "class"), "sdebnn.models.block.SDEBlock"),
    "a class without a name": ((*HEAD, "class"), ""),
    "a class that is a function": ((*HEAD, "class"), "jax.nn.silu"),
    "a class that is a number": ((*HEAD, "class"), 3),
    "an abstract class": (HEAD, {"class": "sdebnn.AbstractDrift", "fields": {}}),
    "a class of other fields": ((*HEAD, "class"), "sdebnn.OU"),
    "a class for another one": ((*BLOCK, "initial", "class"), "sdebnn.Guide"),
    "a drift as prior": ((*BLOCK, "prior"), {"class": "sdebnn.NoDrift", "fields": {}}),
    "a prior as model": ("model", {"class": "sdebnn.OU", "fields": {"rate": 1.0, "mean": 0.0, "sigma": 0.1}}),
    "a likelihood as model": ("model", {"class": "sdebnn.Categorical", "fields": {}}),
    "a prior as likelihood": ("likelihood", {"class": "sdebnn.NoDrift", "fields": {}}),
    "a tuple as model": ("model", {"tuple": []}),
    "no likelihood": ("likelihood", None),
    "no history": ("history", None),
    "a history of numbers": ("history", {"dict": {"elbo": 3}}),
    "a history that is a list": ("history", {"list": []}),
    "a missing field": ((*HEAD, "fields", "bias"), ...),
    "an additional field": ((*HEAD, "fields", "__class__"), {"class": "sdebnn.NoDrift", "fields": {}}),
    "a field with a dunder": ((*HEAD, "fields", "__dict__"), {"dict": {}}),
    "a missing layer": (("model", "fields", "layers", "tuple", 1), ...),
    "layers in a dict": (("model", "fields", "layers"), {"dict": {}}),
    "no layers": (("model", "fields", "layers"), {"tuple": []}),
    "a number for an array": ((*HEAD, "fields", "weight"), 1.0),
    "no array": ((*HEAD, "fields", "weight"), None),
    "an array of an unknown kind": ((*HEAD, "fields", "weight"), {"array": "torch"}),
    "an array that is a scalar": ((*HEAD, "fields", "weight"), {"array": "scalar"}),
    "a NumPy array": ((*HEAD, "fields", "weight"), {"array": "numpy"}),
    "an array that is a key": ((*HEAD, "fields", "weight"), {"key": "threefry2x32"}),
    "a key of an unknown kind": ((*HEAD, "fields", "weight"), {"key": "dice"}),
    "a leaf outside of a structure": ((*HEAD, "fields", "weight"), {"leaf": True}),
    "a structure in a structure": (
        (*BLOCK, "weights", "fields", "structure", "structure"), {"structure": {"leaf": True}},
    ),
    "a structure of one leaf": ((*BLOCK, "weights", "fields", "structure", "structure"), {"leaf": True}),
    "no structure": ((*BLOCK, "weights", "fields", "structure"), None),
    "shapes of a billion": ((*BLOCK, "weights", "fields", "shapes", "tuple", 0, "tuple", 0), 10**9),
    "fewer shapes": ((*BLOCK, "weights", "fields", "shapes", "tuple", 0), ...),
    "a scale for a model": ((*BLOCK, "weights", "fields", "scales"), 1.0),
    "a function that writes files": (ACTIVATION, {"function": "jax.numpy.save"}),
    "a function of os": (ACTIVATION, {"function": "os:system"}),
    "a function of builtins": (ACTIVATION, {"function": "builtins:eval"}),
    "a function that is a class": (ACTIVATION, {"function": "sdebnn.OU"}),
    "a partial of os": (
        ACTIVATION, {"partial": [{"function": "os:system"}, {"tuple": ["true"]}, {"dict": {}}]},
    ),
    "a partial of a number": (ACTIVATION, {"partial": [3, {"tuple": []}, {"dict": {}}]}),
    "a partial without arguments": (ACTIVATION, {"partial": [{"function": "jax.nn.silu"}]}),
    "something opaque": (ACTIVATION, {"opaque": "<lambda>"}),
    "two kinds at once": (ACTIVATION, {"function": "jax.nn.silu", "opaque": "<lambda>"}),
    "no kind": (ACTIVATION, {}),
    "a bare list": (ACTIVATION, []),
    "deep tuples": ((*HEAD, "fields", "use_bias"), nested(200, True)),
    "a million parts": ((*HEAD, "fields", "use_bias"), {"tuple": [0] * (10**6 + 1)}),
    "a huge name": ((*HEAD, "fields", "use_bias"), {"dict": {"a" * 10**5: True}}),
    "inputs of another shape": (("inputs", "shape"), [1, 5]),
    "inputs of 10 GB": (("inputs", "shape"), [1, 10**10]),
    "inputs of many axes": (("inputs", "shape"), [1] * 10**4),
    "inputs without a shape": (("inputs", "shape"), None),
    "inputs of text": (("inputs", "dtype"), "object"),
    "other outputs": ("outputs", [1, 2]),
    "outputs that are text": ("outputs", "1"),
    "no model": ("model", ...),
    "no versions": ("made_with", ...),
    "a false flag": ((*HEAD, "checked"), True),
}  # fmt: skip


def forged(saved, path, where, value):
    arrays, words = load_one(saved, KIND, {})
    save_one(path, arrays, KIND, changed(words, (where,) if isinstance(where, str) else where, value))


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_record_with_a_valid_seal_is_refused(name, saved, tmp_path):
    path = tmp_path / "m.safetensors"
    forged(saved, path, *FORGERIES[name])
    assert_refused(sdebnn.load, path, name)


def renamed(arrays, new):
    first = next(iter(arrays))
    return {new if name == first else name: array for name, array in arrays.items()}


CHANGED_ARRAYS = {
    "a path": lambda arrays: renamed(arrays, "../../etc/passwd"),
    "an absolute path": lambda arrays: renamed(arrays, "/etc/passwd"),
    "no name": lambda arrays: renamed(arrays, ""),
    "one array more": lambda arrays: {**arrays, "more": np.ones(1)},
    "one array fewer": lambda arrays: dict(list(arrays.items())[1:]),
    "no arrays": lambda arrays: {},
    "NaN": lambda arrays: {name: np.full_like(array, np.nan) for name, array in arrays.items()},
    "infinities": lambda arrays: {name: np.full_like(array, np.inf) for name, array in arrays.items()},
    "float64": lambda arrays: {name: array.astype(np.float64) for name, array in arrays.items()},
    "integers": lambda arrays: {name: array.astype(np.int32) for name, array in arrays.items()},
    "transposed": lambda arrays: {name: np.ascontiguousarray(array.T) for name, array in arrays.items()},
    "flat": lambda arrays: {name: array.ravel() for name, array in arrays.items()},
    "an additional axis": lambda arrays: {name: array[None] for name, array in arrays.items()},
    "empty": lambda arrays: {name: array[:0] if array.ndim else array for name, array in arrays.items()},
}


@pytest.mark.parametrize("name", CHANGED_ARRAYS)
def test_forged_arrays_with_a_valid_digest_are_refused(name, saved, tmp_path):
    path, (arrays, words) = tmp_path / "m.safetensors", load_one(saved, KIND, {})
    save_one(path, CHANGED_ARRAYS[name](arrays), KIND, words)
    assert_refused(sdebnn.load, path, name)


def test_a_random_edit_with_a_valid_seal_is_refused_or_gives_a_whole_model(saved, tmp_path):
    arrays, words = load_one(saved, KIND, {})
    path, lot, refusals = tmp_path / "m.safetensors", random.Random(0), 0
    everywhere = list(places({name: words[name] for name in NEEDS}))
    others = [at(words, place) for place in everywhere]
    for _ in range(200):
        where, value = lot.choice(everywhere), lot.choice([..., *NOT_A_VALUE, *lot.sample(others, 5)])
        save_one(path, arrays, KIND, changed(words, where, value))
        try:
            found = sdebnn.load(path)
        except ValueError as error:
            assert len(str(error).splitlines()) == 1, (where, value)
            assert path.name in str(error)
            refusals += 1
        else:
            leaves = jax.tree.leaves(eqx.filter(found.model, eqx.is_inexact_array))
            assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)
    assert refusals > 140


def at(tree, where):
    for key in where:
        tree = tree[key]
    return tree


def test_a_module_gives_only_what_it_defines(saved, tmp_path):
    """A declared module that imports os does not lend its names."""
    path = tmp_path / "m.safetensors"
    for name in ("small_models:np", "small_models:eqx.nn", "small_models:KEY", "small_models:FixedGrid"):
        forged(saved, path, ACTIVATION, {"function": name})
        with pytest.raises(ValueError, match="m\\.safetensors"):
            sdebnn.load(path, modules=["small_models"])


def test_a_name_that_was_changed_and_a_field_that_was_added_since_are_known(saved, tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    forged(saved, path, (*BLOCK, "prior", "class"), "sdebnn.Ornstein")
    assert_refused(sdebnn.load, path, "an old name")
    monkeypatch.setitem(sdebnn.artifacts.names.RENAMED, "sdebnn.Ornstein", "sdebnn.OU")
    assert sdebnn.load(path).model.layers[1].prior == sdebnn.OU(sigma=0.2)
    forged(saved, path, (*BLOCK, "solver", "fields", "at_once"), ...)
    assert_refused(sdebnn.load, path, "an old class")
    monkeypatch.setitem(sdebnn.artifacts.names.ADDED_FIELDS, "sdebnn.FixedGrid", {"at_once": None})
    assert sdebnn.load(path).model.layers[1].solver == GRID
