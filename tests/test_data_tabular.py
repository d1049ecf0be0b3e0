"""Tables and saved arrays: what a user wrote is what is read, or the line and column that cannot be."""

import re
import tracemalloc

import numpy as np
import pytest
from sklearn.preprocessing import LabelEncoder

from sdebnn.data import SelectedRows, held_out, load, tabular

TABLE = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def text(separator: str, header: str = "", end: str = "\n") -> str:
    rows = [separator.join(repr(float(value)) for value in row) for row in TABLE]
    return end.join([header, *rows] if header else rows) + end


def rows_of(loaded):
    """The table again, sorted: inputs, then the target."""
    parts = [np.concatenate([part.x, part.y], axis=1) for part in (loaded.train, loaded.test)]
    return np.array(sorted(np.concatenate(parts).tolist()), np.float32)


@pytest.mark.parametrize(
    "content",
    [
        text(","),
        text(", "),
        text(";", "a;b;c"),
        text("\t", "a\tb\tc"),
        text("  "),
        text(",", '"a","b, in metres","c"'),
        text(",", "a,b,c", end="\r\n"),
        "\ufeff" + text(",", "a,b,c") + "\n\n",
    ],
)
def test_a_table_is_read_with_any_separator(content, tmp_path):
    (tmp_path / "mine.csv").write_bytes(content.encode())
    loaded = tabular.csv(tmp_path / "mine.csv", test=0.25)
    assert (loaded.name, loaded.classes) == ("mine", None)
    assert [len(part.x) for part in (loaded.train, loaded.test)] == [30, 10]
    assert loaded.train.x.dtype == loaded.train.y.dtype == np.float32
    assert np.array_equal(rows_of(loaded), np.array(sorted(TABLE.tolist()), np.float32))


@pytest.mark.parametrize(("target", "column"), [(-1, 2), (0, 0), (1, 1), ("b", 1), ("a", 0)])
def test_the_target_is_a_column_by_number_or_name_and_the_others_are_inputs(target, column, tmp_path):
    (tmp_path / "mine.csv").write_text(text(",", "a,b,c"))
    loaded = tabular.csv(str(tmp_path / "mine.csv"), target)
    turned = np.concatenate([np.delete(TABLE, column, 1), TABLE[:, [column]]], axis=1)
    assert np.array_equal(rows_of(loaded), np.array(sorted(turned.tolist()), np.float32))


BAD_TABLES = {
    "a word": (b"a,b\n1,2\n3,oops\n", "line 3, column 1 (b) holds 'oops'", "finite number"),
    "an empty cell": (b"1,2\n3,\n", "line 2, column 1 holds ''", "finite number"),
    "nan": (b"1,2\nnan,4\n", "line 2, column 0 holds 'nan'", "finite number"),
    "too large for float32": (b"1,2\n1e39,4\n", "line 2, column 0 holds '1e39'", "finite number"),
    "a word in the first row of numbers": (b"1,x,3\n4,5,6\n", "line 1, column 1 holds 'x'", "finite number"),
    "a short row": (b"1,2\n3\n", "line 2 has 1 values", "the first line has 2"),
    "a long row": (b"1,2\n\n3,4,5\n", "line 3 has 3 values", "the first line has 2"),
    "empty": (b"", "has no rows", "numbers"),
    "a header alone": (b"a,b\n", "has no rows", "numbers"),
    "one column": (b"1\n2\n3\n", "has one column", "at least one input"),
    "not text": (
        b"\x89PNG\r\n\x1a\n\xff\xfe",
        "is not UTF-8 text: line 1, byte 1 is 0x89",
        "save it as UTF-8",
    ),
    "utf-16": ("1,2\n3,4\n".encode("utf-16"), "is not UTF-8 text: it starts like UTF-16", "save it as UTF-8"),
    "latin-1": ("a,größe\n1,2\n".encode("latin-1"), "line 1, byte 5 is 0xf6", "save it as UTF-8"),
    "latin-1 far down": (b"1,2\n" * 9000 + b"3,\xb5\n", "line 9001, byte 3 is 0xb5", "save it as UTF-8"),
    "a letter that is cut short": (b"1,2\n3,4\xc3", "line 2, byte 4 is 0xc3", "save it as UTF-8"),
    "underscores": (b"a,b\n1,1_000\n", "line 2, column 1 (b) holds '1_000'", "written like -1.5 or 2e3"),
    "underscores at once": (b"1_000,2_000\n1,2\n", "line 1, column 0 holds '1_000'", "finite number"),
    "nan at once": (b"nan,inf\n1,2\n", "line 1, column 0 holds 'nan'", "finite number"),
    "too large at once": (b"1e39,1e40\n1,2\n", "line 1, column 0 holds '1e39'", "finite number"),
    "Arabic digits": ("1,2\n3,\u0664\u0665\n".encode(), "line 2, column 1 holds '\u0664\u0665'", "finite number"),
    "Arabic digits at once": ("\u0664,\u0665\n1,2\n".encode(), "line 1, column 0 holds '\u0664'", "finite number"),
    "wide digits": ("1,2\n\uff11,4\n".encode(), "line 2, column 0 holds '\uff11'", "finite number"),
    "a space that does not break": ("1,2\n\xa03,4\n".encode(), r"line 2, column 0 holds '\xa03'", "finite number"),
    "a narrow space within": ("1 2\n1\u202f000 2\n".encode(), r"line 2, column 0 holds '1\u202f000'", "finite number"),
    "a control character": (b"1,2\n3,4\x1f\n", r"line 2, column 1 holds '4\x1f'", "finite number"),
    "a line feed in a cell": (b'1,2\n"3\n",4\n', r"line 2, column 0 holds '3\n'", "finite number"),
    "infinity": (b"1,2\nInfinity,4\n", "line 2, column 0 holds 'Infinity'", "finite number"),
    "hexadecimal": (b"1,2\n0x10,4\n", "line 2, column 0 holds '0x10'", "finite number"),
    "below what fits": (b"1,2\n-1e39,4\n", "line 2, column 0 holds '-1e39'", "finite number"),
    "a long cell": (b"1,2\n3,4\n5," + b"6" * 200_000 + b"\n", "line 3 has a cell of more than 131072", "shorten it"),
    "a quote that is not closed": (b'1,2\n3,"4\n' + b"5,6\n" * 50_000, "line 2 has a cell", "close its quotation mark"),
    "a quote that is not closed in a small file": (
        b'1,2\n3,"4\n5,6\n7,8\n',
        r"line 2, column 1 holds '4\n5,6",
        "number",
    ),
    "a word after cells of many lines": (b'c,"a\nb"\n1,2\n\nx,3\n', "line 5, column 0 (c) holds 'x'", "finite number"),
    "a name of many lines": (b'c,"a\nb"\n2,x\n', "line 3, column 1 (a b) holds 'x'", "finite number"),
    "a name of many letters": (b"n" * 999 + b",c\nx,2\n", "line 2, column 0 (" + "n" * 80 + ") holds 'x'", "number"),
}


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1", 1), ("-1.5", -1.5), ("+2.", 2), (".5", 0.5), ("2e3", 2000), ("1E-2", 0.01), ("007", 7), ("  3\t ", 3)],
)
def test_numbers_are_read_in_plain_decimal_notation(cell, value, tmp_path):
    (tmp_path / "mine.csv").write_text(f"a,b\n{cell},0\n{cell},0\n")
    loaded = tabular.csv(tmp_path / "mine.csv", test=0.5)
    assert loaded.train.x.tolist() == loaded.test.x.tolist() == [[np.float32(value)]]


def test_a_column_may_be_named_nan(tmp_path):
    (tmp_path / "mine.csv").write_text("nan,price\n1,2\n3,4\n")
    assert len(tabular.csv(tmp_path / "mine.csv", "price", test=0.5).train.x) == 1


@pytest.mark.parametrize("test", [0.0, 1.5, -0.1, float("nan"), 0.001])
def test_a_share_that_leaves_nothing_is_refused_by_its_name(test, tmp_path):
    (tmp_path / "mine.csv").write_text(text(","))
    with pytest.raises(ValueError, match=rf"^test={test} of 40 examples leaves nothing on one side"):
        tabular.csv(tmp_path / "mine.csv", test=test)


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_malformed_table_is_refused_in_one_line(case, tmp_path):
    content, wrong, remedy = BAD_TABLES[case]
    (tmp_path / "mine.csv").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(wrong)) as caught:
        tabular.csv(tmp_path / "mine.csv", test=0.5)
    assert str(tmp_path / "mine.csv") in str(caught.value)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (3, "target=3 is not a column"),
        (-4, "target=-4 is not a column"),
        ("d", "target='d' must name exactly one column"),
        ("a", "target='a' must name exactly one column"),
    ],
)
def test_a_target_that_is_not_a_column_is_refused(target, line, tmp_path):
    (tmp_path / "mine.csv").write_text(text(",", "a,a,c"))
    with pytest.raises(ValueError, match=line):
        tabular.csv(tmp_path / "mine.csv", target)


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.csv cannot be read: No such file"):
        tabular.csv(tmp_path / "none.csv")


@pytest.fixture
def boats(tmp_path):
    """A set in the form with fixed splits; its numbers as numpy writes them."""
    folder = tmp_path / "uci" / "boats"
    folder.mkdir(parents=True)
    np.savetxt(folder / "data.txt", TABLE, fmt="%.9g", delimiter=" \t", newline=" \n")
    order = np.random.default_rng(1).permutation(40)
    np.savetxt(folder / "index_features.txt", [0, 2])  # 0.000000000000000000e+00, as some are
    np.savetxt(folder / "index_target.txt", [1], fmt="%d")
    for split in range(2):
        np.savetxt(folder / f"index_train_{split}.txt", np.roll(order, split)[4:], fmt="%d")
        np.savetxt(folder / f"index_test_{split}.txt", np.roll(order, split)[:4], fmt="%d")
    return folder, order


@pytest.mark.parametrize("split", [0, 1])
def test_a_split_has_the_rows_and_columns_that_its_index_files_name(split, boats, tmp_path):
    _, order = boats
    loaded, order = load(f"uci/boats/{split}", folder=tmp_path), np.roll(order, split)
    for part, at in ((loaded.train, order[4:]), (loaded.test, order[:4])):
        assert np.array_equal(part.x, TABLE[at][:, [0, 2]])
        assert np.array_equal(part.y, TABLE[at][:, [1]])
    assert loaded.classes is None


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("index_train_0.txt", "0\n40\n", "index_train_0.txt must hold whole numbers from 0 to 39, each once"),
        ("index_train_0.txt", "0\n-1\n", "index_train_0.txt must hold whole numbers"),
        ("index_train_0.txt", "0.5\n", "index_train_0.txt must hold whole numbers"),
        ("index_train_0.txt", "3\n3\n", "index_train_0.txt must hold whole numbers"),
        ("index_features.txt", "0\n3\n", "index_features.txt must hold whole numbers from 0 to 2"),
        ("index_features.txt", "0\n1\n", "rows or columns on both sides"),
        ("index_test_0.txt", "".join(f"{i}\n" for i in range(40)), "rows or columns on both sides"),
        ("index_test_0.txt", "", "index_test_0.txt has no rows of numbers"),
        ("index_test_0.txt", None, "index_test_0.txt cannot be read: No such file"),
        ("data.txt", "1 2 3\n4 x 6\n", "data.txt line 2, column 1 holds 'x'"),
        ("data.txt", "1 2 3\n4 5\n", "data.txt line 2 has 2 values"),
    ],
)
def test_an_error_in_a_split_names_its_file(file, content, line, boats, tmp_path):
    folder, _ = boats
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(ValueError, match=re.escape(line)) as caught:
        load("uci/boats", folder=tmp_path)
    assert "\n" not in str(caught.value)


def test_sets_and_splits_that_do_not_exist_are_refused(boats, tmp_path):
    with pytest.raises(ValueError, match="name='cars' is unknown: choose one of 'boats'"):
        load("uci/cars/0", folder=tmp_path)
    with pytest.raises(ValueError, match=r"name='\.\.' is unknown"):
        load("uci/../0", folder=tmp_path)
    with pytest.raises(ValueError, match=r"split=2 does not exist: .* has 2, numbered from 0"):
        load("uci/boats/2", folder=tmp_path)
    with pytest.raises(ValueError, match="split='two' must be a whole number"):
        load("uci/boats/two", folder=tmp_path)
    with pytest.raises(ValueError, match="nowhere/uci holds no data set"):
        load("uci/boats/0", folder=tmp_path / "nowhere")


def saved(folder, **arrays):
    defaults = {
        "x_train": TABLE[:30, :2], "y_train": TABLE[:30, 2:], "x_test": TABLE[30:, :2], "y_test": TABLE[30:, 2:],
    }  # fmt: skip
    for name, array in (defaults | arrays).items():
        np.save(folder / f"{name}.npy", array)
    return folder


def test_saved_arrays_are_read_back_and_stay_on_disk(tmp_path):
    loaded = tabular.arrays(saved(tmp_path))
    assert all(isinstance(a, np.memmap) for part in (loaded.train, loaded.test) for a in part)
    assert np.array_equal(loaded.train.x, TABLE[:30, :2])
    assert np.array_equal(loaded.test.y, TABLE[30:, 2:])
    assert (loaded.name, loaded.classes) == (tmp_path.name, None)


def test_whole_numbers_on_one_axis_are_labels(tmp_path):
    y = np.arange(40) % 4
    loaded = tabular.arrays(saved(tmp_path, y_train=y[:30], y_test=y[30:].astype(np.uint8)))
    assert loaded.classes == ("0", "1", "2", "3")
    assert loaded.train.y.dtype == loaded.test.y.dtype == np.int32
    assert np.array_equal(loaded.train.y, y[:30])


@pytest.mark.parametrize("values", [[0, 5], [-1, 1], [7, 3, 2**40]], ids=str)
def test_classes_are_the_labels_that_occur_as_scikit_learn_has_them(values, tmp_path):
    y = np.array(values)[np.random.default_rng(0).integers(0, len(values), 40)]
    loaded = tabular.arrays(saved(tmp_path, y_train=y[:30], y_test=y[30:]))
    theirs = LabelEncoder().fit(y)
    assert loaded.classes == tuple(map(str, theirs.classes_))
    for part, of in ((loaded.train, y[:30]), (loaded.test, y[30:])):
        np.testing.assert_array_equal(part.y, theirs.transform(of))


def test_signed_and_unsigned_labels_are_the_same(tmp_path):
    y = np.arange(40) % 2 * 5
    loaded = tabular.arrays(saved(tmp_path, y_train=y[:30].astype(np.uint64), y_test=y[30:]))
    assert loaded.classes == ("0", "5")


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({"y_train": TABLE[:29, 2:]}, "x_train.npy has 30 examples and y_train.npy has 29"),
        ({"x_test": TABLE[30:]}, "differ in shape"),
        ({"y_test": TABLE[30:]}, "differ in shape"),
        ({"y_test": TABLE[30:, 2]}, "differ in shape"),
        ({"x_train": TABLE[:30, 0]}, "x_train.npy has shape (30,)"),
        ({"x_train": TABLE[:0]}, "x_train.npy has shape (0, 3)"),
        ({"x_train": TABLE[:30] * 1j}, "x_train.npy holds complex64"),
        ({"x_train": TABLE[:30].astype(">f4")}, "x_train.npy holds >f4"),
        ({"x_train": np.array([["a", "b"]] * 30)}, "x_train.npy holds <U1"),
        ({"y_train": TABLE[:30, 2], "y_test": TABLE[30:, 2]}, "save targets of a regression as y[:, None]"),
        ({"y_train": np.ones(30, int), "y_test": np.ones(10, int)}, "y holds no other label than '1'"),
        ({"y_train": np.eye(2, dtype=int)[np.arange(30) % 2], "y_test": np.eye(2, dtype=int)[[0] * 10]}, "y.argmax(1)"),
        ({"y_train": np.arange(30), "y_test": np.arange(10)}, "30 different labels for 40 examples"),
    ],
)
def test_saved_arrays_that_do_not_match_are_refused(arrays, line, tmp_path):
    with pytest.raises(ValueError, match=re.escape(line)) as caught:
        tabular.arrays(saved(tmp_path, **arrays))
    assert "\n" not in str(caught.value)


def test_a_truncated_or_missing_array_is_refused(tmp_path):
    path = saved(tmp_path) / "x_test.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"x_test\.npy declares \(10, 2\) values of float32 and holds 79 bytes"):
        tabular.arrays(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"x_test\.npy is missing\. Save it with numpy\.save"):
        tabular.arrays(tmp_path)


def test_a_set_larger_than_memory_is_read_row_by_row(tmp_path):
    examples, width = 20_000, 2**18
    saved(tmp_path, y_train=np.arange(examples) % 3, y_test=np.arange(2), x_test=np.ones((2, width), np.float32))
    with (tmp_path / "x_train.npy").open("wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (examples, width)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + 4 * examples * width)  # 20 GB of a sparse file
    tracemalloc.start()
    train, _ = held_out(tabular.arrays(tmp_path).train, seed=0)
    assert isinstance(train.x, SelectedRows)
    assert np.array_equal(train.x[[5, 17_000]], np.zeros((2, width)))
    assert tracemalloc.get_traced_memory()[1] < 2e7
    tracemalloc.stop()
