"""What is saved is found again, or refused in one line: never half of it, never something else."""

import json
import random
import struct

import equinox as eqx
import interrupted_run
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save as serialise

from sdebnn.files import write_whole
from sdebnn.records import load_tree, read_record, save_tree, write_record
from sdebnn.train import saved_answer, saved_steps

KIND = "test, version 1"
TREE = {"a": np.arange(6.0).reshape(2, 3), "b": [np.int32(7), np.array([True, False])]}
FOREIGN = {
    "nothing": b"",
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "text": b"not what you think\n",
    "a list": b"[1, 2, 3]\n",
    "a number": b"12\n",
    "words without a seal": b'{"kind": "test, version 1", "sha256": "00"}\n',
    "a seal of another kind": b'{"kind": 3, "seal": []}\n',
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
    "deep nesting": b"[" * 100_000,
    "other arrays": serialise({"z": np.zeros(3)}),
    "an absurd header": struct.pack("<Q", 2**60) + b"{}",
}


def test_a_tree_and_its_facts_are_restored_bit_for_bit(tmp_path):
    key = jax.random.key_data(jax.random.key(5))
    tree = {**TREE, "key": np.asarray(key), "bits": np.array([np.nan, -0.0, np.inf], np.float32)}
    tree |= {
        name: np.ones((2, 3), name)
        for name in ("bool", "int8", "uint16", "int32", "uint64", "float16", "float64", "complex64")
    }
    tree["bfloat16"] = np.full(3, 1 / 3, jnp.bfloat16)
    save_tree(tmp_path / "x", tree, KIND, {"step": 3, "words": "ünï"})
    back, facts = load_tree(tmp_path / "x", tree, KIND, {})
    assert facts["step"] == 3
    assert facts["words"] == "ünï"
    for one, two in zip(jax.tree.leaves(tree), jax.tree.leaves(back), strict=True):
        assert np.asarray(one).tobytes() == two.tobytes()
        assert np.shape(one) == two.shape
        assert np.asarray(one).dtype == two.dtype


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    file = tmp_path / "f"
    write_whole(file, b"old")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(f"os.{name}", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="No space"):
                write_whole(file, b"new")
        assert file.read_bytes() == b"old"
        assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_tree_of_another_shape_type_or_name_is_refused(tmp_path):
    save_tree(tmp_path / "x", TREE, KIND, {})
    for like, words in (
        ({**TREE, "a": np.zeros((3, 2))}, "a is float64"),
        ({**TREE, "a": np.zeros((2, 3), np.float32)}, "float32"),
        ({**TREE, "c": np.zeros(1)}, "first c"),
        ({"a": TREE["a"]}, "first b.0"),
    ):
        with pytest.raises(ValueError, match=words):
            load_tree(tmp_path / "x", like, KIND, {})
    with pytest.raises(ValueError, match="is not of the kind 'other'"):
        load_tree(tmp_path / "x", TREE, "other", {})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained run, and the parameters it holds."""
    folder = tmp_path_factory.mktemp("run")
    fitted = interrupted_run.train(folder, keep=2)
    return folder, fitted


def mutations(data, count, seed):
    """Truncations and single flipped bits, at places drawn at random."""
    places = random.Random(seed)
    for i in range(count):
        if i % 2:
            yield f"cut {i}", data[: places.randrange(len(data))]
        else:
            at, bit = places.randrange(len(data)), places.randrange(8)
            yield f"bit {bit} of byte {at}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_a_damaged_or_foreign_checkpoint_is_refused_in_one_line(run, suffix):
    folder, fitted = run
    file = folder / "checkpoints" / f"step-{saved_steps(folder)[-1]:08d}{suffix}"
    whole = file.read_bytes()
    like = eqx.filter((fitted.model, fitted.likelihood), eqx.is_inexact_array)
    reference = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(saved_answer(folder, like))]
    tried = 0
    try:
        for name, data in [*mutations(whole, 120, seed=len(suffix)), *FOREIGN.items()]:
            file.write_bytes(data)
            tried += 1
            try:
                found = saved_answer(folder, like)
            except ValueError as error:
                assert str(file.with_suffix("")) in str(error), name
                assert len(str(error).splitlines()) == 1, name
            else:  # a bit that no one reads, such as a space of the record
                assert [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(found)] == reference, name
                assert suffix == ".json", name
    finally:
        file.write_bytes(whole)
    assert tried == 120 + len(FOREIGN)


def test_a_damaged_checkpoint_stops_a_resume_until_it_is_deleted(run, tmp_path):
    folder, fitted = run
    last = folder / "checkpoints" / f"step-{saved_steps(folder)[-1]:08d}.safetensors"
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="is truncated or was changed") as refused:
        interrupted_run.train(folder, resume=True)
    assert f"delete {last.stem}.*" in str(refused.value)
    for file in last.parent.glob(f"{last.stem}.*"):
        file.unlink()
    assert interrupted_run.leaves(interrupted_run.train(folder, resume=True)) == interrupted_run.leaves(fitted)


def test_checkpoints_of_two_steps_cannot_be_mixed(run):
    folder, _ = run
    before, last = (folder / "checkpoints" / f"step-{step:08d}.safetensors" for step in saved_steps(folder))
    whole = last.read_bytes()
    last.write_bytes(before.read_bytes())
    try:
        with pytest.raises(ValueError, match="was changed since"):
            interrupted_run.train(folder, resume=True)
    finally:
        last.write_bytes(whole)


def test_a_record_that_was_edited_is_refused(tmp_path):
    file = tmp_path / "run.json"
    write_record(file, KIND, {"seed": 1})
    words = json.loads(file.read_text())
    file.write_text(json.dumps({**words, "seed": 2}))
    with pytest.raises(ValueError, match="was changed since it was written"):
        read_record(file, KIND, {})
