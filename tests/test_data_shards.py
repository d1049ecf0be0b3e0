"""One array in several .npy files, compared with the same array in one file."""

import re

import numpy as np
import pytest

from sdebnn.data import SelectedRows, ShardedRows, held_out, load, name_of_row
from sdebnn.fingerprints import digest, kept_digest

WHOLE = np.random.default_rng(0).normal(size=(23, 2, 3)).astype(np.float32)
ENDS = (5, 6, 16)  # the rows at which a shard begins
LABELS = np.arange(23) % 3

KEYS = {
    "integer": 7, "from the end": -1, "numpy integer": np.int64(16), "all": slice(None), "slice": slice(3, 19),
    "slice of a shard": slice(7, 9), "slice of none": slice(9, 9), "every third": slice(1, None, 3),
    "backwards": slice(None, None, -1), "list": [22, 0, 5, 5], "negative": np.array([-1, -23, 3]),
    "none": np.array([], int), "mask": WHOLE[:, 0, 0] > 0, "table": np.arange(12).reshape(3, 4) * 2 - 1,
}  # fmt: skip


def shards(folder, name, array, ends=ENDS):
    for number, part in enumerate(np.split(array, ends)):
        np.save(folder / f"{name}-{number:05d}.npy", part)


@pytest.fixture
def folder(tmp_path):
    shards(tmp_path, "x_train", WHOLE)
    shards(tmp_path, "y_train", LABELS, (11,))
    np.save(tmp_path / "x_test.npy", WHOLE[:4])
    np.save(tmp_path / "y_test.npy", LABELS[:4])
    return tmp_path


@pytest.mark.parametrize("name", KEYS)
def test_shards_are_indexed_as_one_array(name, folder):
    rows = load(str(folder)).train.x
    assert isinstance(rows, ShardedRows)
    found = rows[KEYS[name]]
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, WHOLE[KEYS[name]])


def test_rows_that_no_shard_has_are_refused(folder):
    rows = load(str(folder)).train.x
    for beyond in (23, -24, np.array([0, 23])):
        with pytest.raises(IndexError, match="not all among 23"):
            rows[beyond]


def test_a_folder_of_shards_is_the_same_data_set_as_one_of_whole_arrays(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("whole") / folder.name
    other.mkdir()
    for name, array in {"x_train": WHOLE, "y_train": LABELS, "x_test": WHOLE[:4], "y_test": LABELS[:4]}.items():
        np.save(other / f"{name}.npy", array)
    sharded, whole = load(str(folder)), load(str(other))
    assert (sharded.name, sharded.classes) == (whole.name, whole.classes)
    for one, two in zip((*sharded.train, *sharded.test), (*whole.train, *whole.test), strict=True):
        assert digest(one) == digest(two)
        assert (one.shape, one.dtype, one.ndim, one.size, len(one)) == (
            two.shape,
            two.dtype,
            two.ndim,
            two.size,
            len(two),
        )
        np.testing.assert_array_equal(np.asarray(one), two)
    for one, two in zip(held_out(sharded.train, 0.3, seed=1), held_out(whole.train, 0.3, seed=1), strict=True):
        assert isinstance(one.x, SelectedRows)
        np.testing.assert_array_equal(np.asarray(one.x), np.asarray(two.x))
        np.testing.assert_array_equal(one.y, two.y)


def test_shards_are_read_once_while_none_of_them_changes(folder, monkeypatch):
    kept: dict[str, str] = {}
    first = kept_digest(load(str(folder)).train.x, kept)
    assert first == digest(WHOLE)
    with monkeypatch.context() as patch:
        patch.setattr("sdebnn.fingerprints.digest", lambda _: "read again")
        assert kept_digest(load(str(folder)).train.x, kept) == first
    changed = WHOLE.copy()
    changed[22] += 1
    np.save(folder / "x_train-00003.npy", changed[16:])
    assert kept_digest(load(str(folder)).train.x, kept) == digest(changed)


def test_a_row_is_named_by_its_number_and_its_file(folder):
    x = load(str(folder)).train.x
    name = name_of_row(SelectedRows(x, np.arange(23)[::-1]), 22 - 17)
    assert name == f"row 17 (row 1 of {folder / 'x_train-00003.npy'})"
    assert name_of_row(SelectedRows(np.asarray(x), np.array([4, 2])), 1) == "row 2"


def remove_one(folder):
    (folder / "x_train-00001.npy").unlink()


def begin_at_one(folder):
    (folder / "x_train-00000.npy").rename(folder / "x_train-00004.npy")


def change_type(folder):
    np.save(folder / "x_train-00002.npy", WHOLE[6:16].astype(np.float64))


def change_shape(folder):
    np.save(folder / "x_train-00002.npy", WHOLE[6:16, :, :2])


def truncate(folder):
    path = folder / "x_train-00003.npy"
    path.write_bytes(path.read_bytes()[:-1])


def save_whole(folder):
    np.save(folder / "x_train.npy", WHOLE)


def lose_a_label(folder):
    np.save(folder / "y_train-00001.npy", LABELS[12:])


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (remove_one, "x_train-00001.npy is missing"),
        (begin_at_one, "x_train-00000.npy is missing"),
        (change_type, "x_train-00002.npy holds float64 of shape (10, 2, 3), and "),
        (change_shape, "x_train-00002.npy holds float32 of shape (10, 2, 2), and "),
        (truncate, "x_train-00003.npy declares (7, 2, 3) values of float32 and holds 167 bytes"),
        (save_whole, "holds both x_train.npy and x_train-00000.npy"),
        (lose_a_label, "x_train.npy has 23 examples and y_train.npy has 22"),
    ],
)
def test_shards_that_do_not_match_are_refused(damage, line, folder):
    damage(folder)
    with pytest.raises(ValueError, match=re.escape(line)) as refused:
        load(str(folder))
    assert "\n" not in str(refused.value)


def test_more_shards_than_files_may_be_open_are_refused(folder, monkeypatch):
    monkeypatch.setattr("sdebnn.data.tabular.MAX_SHARDS", 3)
    with pytest.raises(ValueError, match="4 files of x_train: save at most 3"):
        load(str(folder))
