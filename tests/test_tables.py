"""Tables with named columns: files as people have them, models that remember their columns, and forecasts as files."""

import csv
import json
import warnings

import numpy as np
import pytest

from sdebnn import SDEBNNClassifier, SDEBNNRegressor
from sdebnn.columns import write_columns
from sdebnn.data import CATALOGUE, Distance, load
from sdebnn.records import write_record
from sdebnn.tables.columns import ColumnCoder, WordColumn
from sdebnn.tables.forecaster import TableForecaster, _cells
from sdebnn.tables.forecasts import forecast, table_scores
from sdebnn.tables.frame import Frame, read_frame
from sdebnn.tables.kind import KIND
from sdebnn.tables.model import (
    FAR,
    INPUTS_FILE,
    MODEL_FILE,
    fit_table,
    known_rows,
    load_table,
    targets_of,
    task_of,
)
from sdebnn.tables.rows import TableSettings, _with_all_classes, split, table_rows
from sdebnn.tables.runs import read_table_run, train_table

QUICK = {"members": 1, "max_iter": 40, "random_state": 0}


def written(path, text):
    path.write_text(text)
    return path


def rows(n=60):
    """Prices of things of some size and colour; some sizes are missing."""
    rng = np.random.default_rng(0)
    size, colour = rng.normal(50, 10, n), np.array(["red", "green", "blue"], object)[rng.integers(0, 3, n)]
    price = 0.3 * size + 5 * (colour == "red") + rng.normal(0, 0.5, n)
    size[::7] = np.nan
    return Frame({"size": size, "colour": colour, "price": price})


@pytest.fixture(scope="module")
def model():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_table(rows(), "price", "regression", where="prices.csv", family="ensemble", **QUICK)


# Files


def test_columns_are_numbers_or_words_and_cells_may_be_missing(tmp_path):
    frame = read_frame(written(tmp_path / "t.csv", 'a; b ;c\n1;"x; y";2.5\n;NA;-1e3\n3;z;?\n'))
    assert list(frame.columns) == ["a", "b", "c"]
    np.testing.assert_array_equal(frame.columns["a"], [1, np.nan, 3])
    assert frame.columns["b"].tolist() == ["x; y", None, "z"]
    np.testing.assert_array_equal(frame.columns["c"], [2.5, -1000, np.nan])


@pytest.mark.parametrize(
    "cell",
    [
        "2024-03-01",
        "2024-01",
        "1 Jan 2024",
        "Jan 1, 2024",
        "12-Dec-23",
        "01:05 PM",
        "3/4/2021",
        "2024-03-01T10:00",
        "2024Q1",
        "2024-Q3",
        "Q1 2024",
        "2024-W05",
        "2024-W05-1",
        "W5 2024",
        "Jan 2024",
        "12:30",
        "12:30:05.25",
    ],
)
def test_dates_are_refused_with_the_remedy(tmp_path, cell):
    (tmp_path / "t.csv").write_text("when,y\n" + f'"{cell}",1.5\n' * 5)
    with pytest.raises(ValueError, match=r"holds dates or times .* replace them by numbers"):
        read_frame(tmp_path / "t.csv")


@pytest.mark.parametrize("cell", [
    "3.4%", "1,5", "$1,200.50", "1 000", "12 €", "1200 USD", "1200EUR", "GBP 12.50", "$1,200", "-$3", "€-3", "35%",
    "5 kg", "1,200 km", "20 °C", "12.5 cm", "300 m²", "64 GB", "3 days", "₹500",
])  # fmt: skip
def test_numbers_in_another_form_are_refused_with_the_remedy(tmp_path, cell):
    (tmp_path / "t.csv").write_text("size;y\n" + f"{cell};1.5\n" * 5)
    with pytest.raises(ValueError, match=r"looks like a number in another form: write it as a decimal number"):
        read_frame(tmp_path / "t.csv")


@pytest.mark.parametrize(
    "cell",
    [
        "1.2.3", "A1", "12-34", "v2", "10mm", "may", "Mark-12", "MAR-100", "00123", "Mars 10", "A12", "model 3", "4x4",
        "B-52", "covid19", "3 series", "5G", "1st", "4WD", "Q1", "W05", "Boeing 747", "7 Eleven", "2024 model", "USD",
        "12 A", "80s",
    ],
)  # fmt: skip
def test_other_words_with_digits_are_words(tmp_path, cell):
    (tmp_path / "t.csv").write_text("part,y\n" + f"{cell},1.5\n" * 5)
    assert list(read_frame(tmp_path / "t.csv").columns["part"]) == [cell] * 5


@pytest.mark.parametrize("cells", [
    ["101", "102", "103A", "104"], ["10115", "20095", "80331", "1010X"], ["1200 USD"] * 4, ["2024Q1"] * 4,
    ["12:30"] * 4, ["10115", "20095", "80331", "50667"], ["5kg", "10kg", "7.5kg", "small"], ["10", "12", "8mm", "16mm"],
], ids=str)  # fmt: skip
def test_a_column_that_is_declared_as_words_holds_them_whatever_they_look_like(cells, tmp_path):
    file = written(tmp_path / "t.csv", "zip code,y\n" + "".join(f"{cell},1.5\n" for cell in cells))
    assert read_frame(file, words=["zip code"]).columns["zip code"].tolist() == cells
    if not all(cell.isdigit() for cell in cells):
        with pytest.raises(ValueError, match=r"or add --words 'zip code' to take the column as words\.$"):
            read_frame(file)
        with pytest.raises(ValueError, match="column 'zip code' holds") as error:
            read_frame(file, used=["zip code"])  # of a forecast, which cannot choose
        assert "--words" not in str(error.value)


def test_declared_words_are_learned_as_categories_and_are_part_of_the_settings(tmp_path):
    codes = np.tile(["10115", "20095", "80331"], 20)
    y = np.select([codes == "10115", codes == "20095"], [5.0, -5.0], 0.0) + np.random.default_rng(0).normal(0, 0.1, 60)
    file = written(tmp_path / "t.csv", "zip,y\n" + "".join(f"{c},{v:.4f}\n" for c, v in zip(codes, y, strict=True)))
    settings = TableSettings(str(file), members=1, words=("zip",))
    assert train_table(settings, tmp_path / "run", progress=False)["rmse"] < 0.5
    model = load_table(tmp_path / "run")
    assert model.coder.parts == (WordColumn("zip", ("10115", "20095", "80331")),)
    new = model.read(written(tmp_path / "new.csv", "zip\n20095\n10115\n"))
    np.testing.assert_allclose(forecast(model, new, where="new.csv")["y"], [-5, 5], atol=0.5)
    with pytest.raises(ValueError, match="words"):
        train_table(settings._replace(words=()), tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match=r"words='zipp' is not a column of t\.csv"):
        train_table(settings._replace(words=("zipp",)), tmp_path / "other", progress=False)


def test_a_number_beyond_float32_is_refused_for_what_it_is(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n1,2\n2,3\n1e300,4\n")
    with pytest.raises(ValueError, match=r"'1e300'.* beyond the range of 32-bit floats"):
        read_frame(tmp_path / "t.csv")


def test_columns_that_a_forecast_does_not_use_are_not_looked_at(tmp_path):
    """An index without a name, two columns of one name, and a target that is not known yet."""
    (tmp_path / "t.csv").write_text(",x,note,note,y\n0,1.5,a,b,tbd\n1,2.5,c,d,3.0\n")
    frame = read_frame(tmp_path / "t.csv", used=["x"])
    np.testing.assert_array_equal(frame.columns["x"], [1.5, 2.5])
    assert list(frame.columns) == ["column 1", "x", "column 3", "column 4", "y"]
    (tmp_path / "u.csv").write_text("column 2,,2,x\n7,50,8,1.5\n")
    named = read_frame(tmp_path / "u.csv", used=["column 2", "x"]).columns
    assert (named["column 2"].tolist(), len(named)) == ([7.0], 4)
    with pytest.raises(ValueError, match="'note' in its first line twice or empty"):
        read_frame(tmp_path / "t.csv", used=["x", "note"])


@pytest.mark.parametrize(("text", "words"), [
    ("a,b\n1,2\n3\n", "line 3 has 1 values"),
    ("1,2\n3,4\n", "numbers in its first line"),
    ("a,a\n1,2\n", "'a'"),
    ("a,\n1,2\n", "twice or empty"),
    ("a,b\n", "no rows"),
    ("a,b\n1,2\n\n3,4\n", "line 3 is empty"),
    ("a,b\n1,2020-01-02\n2,2020-01-03\n", "dates or times such as '2020-01-02'"),
    ("a,b\n1,5\n2,6\n3,seven\n", "line 4, column 'b' holds 'seven'"),
    ("a,b\n1,5\n2,6\n3,x\n", "leave the cell empty if it is missing, or add --words b to take the column as words."),
    ('a,b\n1,"1,000"\n2,6\n3,7\n', "line 2, column 'b' holds '1,000'"),
], ids=str)  # fmt: skip
def test_files_that_are_no_tables_are_refused_in_words(tmp_path, text, words):
    with pytest.raises(ValueError, match=r"t\.csv") as error:
        read_frame(written(tmp_path / "t.csv", text))
    assert words in str(error.value)


def test_rows_without_a_cell_are_kept_and_columns_have_the_kinds_that_are_asked_for(tmp_path):
    file = written(tmp_path / "t.csv", "code,when,x\n12,2020-01-01,1\n13,2020-01-02,2\nA1,2020-01-03,3\n,,\n\n")
    frame = read_frame(file, words=["code"], used=["code", "x"])
    assert frame.columns["code"].tolist() == ["12", "13", "A1", None]
    np.testing.assert_array_equal(frame.columns["x"], [1, 2, 3, np.nan])


def test_labels_that_are_numbers_keep_their_digits():
    assert targets_of(np.array([1234567.0, 1234568.0, 0.1]), "classification").tolist() == ["1234567", "1234568", "0.1"]


# Columns


def test_missing_numbers_are_the_median_and_words_have_columns_of_their_own():
    frame = Frame({"x": np.array([1.0, np.nan, 5.0]), "w": np.array(["b", "a", None], object)})
    coder = ColumnCoder.of(frame)
    np.testing.assert_array_equal(
        coder.matrix(frame, where="t"), [[1, 0, 0, 1, 0], [3, 1, 1, 0, 0], [5, 0, 0, 0, 1]]
    )  # fmt: skip
    assert ColumnCoder.from_json(json.loads(json.dumps(coder.to_json()))) == coder


def test_columns_may_come_in_any_order_and_others_are_ignored_aloud():
    frame = rows()
    coder = ColumnCoder.of(frame.without("price"))
    mixed = Frame({"other": frame.columns["price"], **{n: frame.columns[n] for n in ("colour", "size")}})
    with pytest.warns(UserWarning, match="does not use 'other'"):
        np.testing.assert_array_equal(
            coder.matrix(mixed, where="t"), coder.matrix(frame.without("price"), where="t")
        )  # fmt: skip
    with pytest.raises(ValueError, match="t has no column 'size'"):
        coder.matrix(Frame({"colour": frame.columns["colour"]}), where="t")
    new = Frame({"size": np.ones(1), "colour": np.array(["teal"], object)})
    with pytest.warns(UserWarning, match="such as 'teal'"):
        matrix = coder.matrix(new, where="t")
    np.testing.assert_array_equal(matrix[:, 2:], 0)
    with pytest.raises(ValueError, match="'size' holds 'tall'"):
        coder.matrix(Frame({"size": np.array(["tall"], object), "colour": np.array(["red"], object)}), where="t")


def test_columns_that_name_rows_are_left_out_aloud():
    names = np.array([f"row {i}" for i in range(30)], object)
    with pytest.warns(UserWarning, match="'id' holds 30 different words"):
        coder = ColumnCoder.of(Frame({"id": names, "x": np.arange(30.0)}))
    assert [part.name for part in coder.parts] == ["x"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is not mentioned again
        assert ColumnCoder.from_json(coder.to_json()) == coder
        np.testing.assert_array_equal(
            coder.matrix(Frame({"id": names, "x": np.arange(30.0)}), where="t")[:, 0], range(30)
        )  # fmt: skip
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="no column is left"):
        ColumnCoder.of(Frame({"id": names}))


# Tasks


def test_the_task_is_inferred_where_it_is_plain():
    assert task_of("y", np.array(["a", "b"], object)) == "classification"
    assert task_of("y", np.array([0.0, 1.0, 1.0])) == "classification"
    assert task_of("y", np.array([0.5, 1.0])) == "regression"
    assert task_of("y", np.arange(30.0)) == "regression"
    assert task_of("y", np.arange(5.0), "classification") == "classification"
    with pytest.raises(ValueError, match="5 different whole numbers"):
        task_of("y", np.arange(5.0))
    with pytest.raises(ValueError, match="needs numbers"):
        task_of("y", np.array(["a", "b"], object), "regression")
    with pytest.raises(ValueError, match="task='ranking'"):
        task_of("y", np.arange(5.0), "ranking")


def test_a_target_that_differs_in_nearly_every_row_is_not_one_of_classes(tmp_path):
    text = "x,name\n" + "".join(f"{i},Mr {chr(97 + i)}.\n" for i in range(26))
    file = written(tmp_path / "t.csv", text)
    with pytest.raises(ValueError, match=r"'name' holds 26 different labels in 26 rows, such as 'Mr a\.'"):
        table_rows(TableSettings(str(file), "name"))
    twice = written(tmp_path / "twice.csv", text + text.removeprefix("x,name\n"))
    assert table_rows(TableSettings(str(twice), "name")).task == "classification"


def test_rows_without_a_target_are_left_out_aloud():
    frame = Frame({"x": np.arange(3.0), "y": np.array([1.0, np.nan, 3.0])})
    with pytest.warns(UserWarning, match="1 row has no target and is left out"):
        assert known_rows(frame, "y", where="t.csv").columns["x"].tolist() == [0, 2]
    with pytest.raises(ValueError, match="which has x, y"):
        known_rows(frame, "z", where="t.csv")


# Forecasts


def test_distance_is_mahalanobis_in_units_of_the_training_rows():
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(4000, 2)) @ [[3.0, 1.0], [0.0, 0.1]]
    distance = Distance.of(mixed)
    inside = distance.to(mixed)
    assert np.mean(inside <= 1) == pytest.approx(0.99, abs=3e-3)
    against = np.array([[3.0, -1.0]])  # no column is far out, but they never differ in sign
    exact = np.sqrt(against @ np.linalg.inv(np.cov(mixed.T)) @ against.T / 2)[0, 0]
    assert distance.to(against)[0] * distance.limit == pytest.approx(exact, rel=0.15)


@pytest.mark.parametrize(("rows", "rare"), [(54, 1), (60, 1), (108, 1), (300, 2)])
def test_a_rare_flag_does_not_hide_what_is_far(rows, rare):
    """One empty cell, or one rare word, is a column of zeros with few ones. It must not become the unit of distance."""
    rng = np.random.default_rng(0)
    numbers, flag = rng.uniform(40, 200, rows), np.zeros(rows)
    flag[5 : 5 + rare] = 1
    distance = Distance.of(np.column_stack([numbers, flag]))
    far, usual, flagged = distance.to(np.array([[900.0, 0.0], [100.0, 0.0], [100.0, 1.0]]))
    assert far > FAR
    assert usual < 1
    assert flagged < FAR
    assert 0.1 < distance.limit < 10


def test_a_forecast_has_the_parts_of_the_uncertainty_and_matches_the_estimator(model, tmp_path):
    frame = rows().without("price")
    columns = forecast(model, frame, where="new.csv", coverage=0.8)
    assert list(columns) == ["price", "std", "std_reducible", "std_noise", "lower", "upper", "unlike"]
    np.testing.assert_allclose(
        columns["std"] ** 2, columns["std_reducible"] ** 2 + columns["std_noise"] ** 2, rtol=1e-6
    )
    mean, std = model.estimator.predict(model.coder.matrix(frame, where="t"), return_std=True)
    np.testing.assert_array_equal(columns["price"], mean)
    np.testing.assert_array_equal(columns["std"], std)
    assert np.all((columns["lower"] < mean) & (mean < columns["upper"]))
    for name in ("p.csv", "p.npy", "p.parquet"):
        write_columns(tmp_path / name, columns)
    with open(tmp_path / "p.csv", newline="") as file:
        table = list(csv.DictReader(file))
    np.testing.assert_array_equal([float(row["price"]) for row in table], mean)
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy")[:, 1], std)
    polars = pytest.importorskip("polars")
    assert polars.read_parquet(tmp_path / "p.parquet")["upper"].to_list() == columns["upper"].tolist()


def test_a_missing_word_is_mentioned_if_none_was_in_training(model):
    frame = Frame({"size": np.array([50.0, 51.0]), "colour": np.array(["red", None], object)})
    with pytest.warns(UserWarning, match="1 word is missing in column 'colour', which had all its words in training"):
        forecast(model, frame, where="new.csv")


def test_a_missing_number_counts_as_known_if_none_was_missing_in_training_and_this_is_said():
    coder = ColumnCoder.of(Frame({"size": np.array([1.0, 2.0, 9.0])}))
    with pytest.warns(UserWarning, match=r"1 number is missing in column 'size'.* its median, 2, .* too certain"):
        found = coder.matrix(Frame({"size": np.array([4.0, np.nan])}), where="new.csv")
    np.testing.assert_array_equal(found, [[4.0], [2.0]])


def test_rows_as_json_may_have_other_fields_and_say_true_or_false(model):
    forecaster = TableForecaster(model)
    with pytest.warns(UserWarning, match="the model does not use 'id'"):
        frame = forecaster.from_json([{"id": 7, "size": 50, "colour": "red", "price": None}])
    assert list(frame.columns) == ["size", "colour"]
    part = WordColumn("sold", ("FALSE", "TRUE"))
    assert _cells(part, [True, False, None]).tolist() == ["TRUE", "FALSE", None]


def test_more_draws_are_taken_if_they_are_asked_for(model, tmp_path):
    model.save(tmp_path)
    facts = {
        "digest": "", "data": "t.csv", "target": "price", "task": "regression", "seed": 0, "test": 0.1, "members": 1,
        "kl_weight": 1.0, "rows": 60, "versions": {}, "asked": {},
    }  # fmt: skip
    write_record(tmp_path / "run.json", KIND, facts)
    inputs = rows(5).without("price")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usual, few = (TableForecaster.open(tmp_path, draws).forecast(inputs, where="t")["price"] for draws in (None, 3))
    assert not np.array_equal(usual, few)
    other = load_table(tmp_path).estimator.set_params(draws=3)
    np.testing.assert_allclose(few, other.predict(model.coder.matrix(inputs, where="t")))


def test_rows_in_other_units_are_mentioned_with_their_column(model):
    other = rows().without("price")
    with pytest.warns(UserWarning, match=r"51 of 60 rows are unlike the training data, row .* in its column 'size'"):
        columns = forecast(model, Frame({**other.columns, "size": 1000 * other.columns["size"] + 1e5}), where="t")
    assert np.sum(columns["unlike"] > 3) == 51  # the others miss the size


def test_a_coverage_is_checked_for_classes_too(model):
    with pytest.raises(ValueError, match=r"coverage=7"):
        forecast(model, rows(3), where="t", coverage=7.0)


def test_a_model_of_classes_names_them():
    frame = rows()
    kind = np.where(frame.columns["price"] > 16, "high", "low").astype(object)
    table = Frame({**frame.without("price").columns, "kind": kind})
    found = fit_table(table, "kind", "classification", where="t", **QUICK)
    columns = forecast(found, table, where="t")
    assert list(columns) == [
        "kind", "probability", "p(high)", "p(low)", "entropy", "entropy_reducible", "unlike"
    ]  # fmt: skip
    np.testing.assert_allclose(columns["p(high)"] + columns["p(low)"], 1)
    p = columns["p(high)"]
    np.testing.assert_allclose(columns["entropy"], -p * np.log(p) - (1 - p) * np.log(1 - p), rtol=1e-6)
    assert set(columns["kind"]) <= {"high", "low"}
    assert np.all(columns["entropy_reducible"] <= columns["entropy"])
    assert set(table_scores(found, table, where="t")) == {"nll", "accuracy", "ece", "brier", "rows"}
    other = Frame({**table.columns, "kind": np.array(["huge", *kind[1:]], object)})
    with pytest.warns(UserWarning, match="1 rows of classes that training did not know, such as 'huge'"):
        assert table_scores(found, other, where="t")["rows"] == 59


# Folders


def test_a_saved_model_predicts_the_same_wherever_its_folder_is(model, tmp_path):
    (tmp_path / "a").mkdir()
    model.save(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    again = load_table(tmp_path / "b")
    frame = rows().without("price")
    for ours, theirs in zip(
        forecast(model, frame, where="t").values(), forecast(again, frame, where="t").values(), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", [INPUTS_FILE, MODEL_FILE])
def test_damaged_files_are_refused_in_words(model, tmp_path, name):
    model.save(tmp_path)
    whole = (tmp_path / name).read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(whole)
        if rng.random() < 0.3:
            data = data[: rng.integers(len(data))]
        else:
            at = rng.integers(len(data) if rng.random() < 0.5 else 400)
            data[at] ^= 1 << rng.integers(8)
        (tmp_path / name).write_bytes(bytes(data))
        with pytest.raises(ValueError, match=name):
            load_table(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r"missing|not there"):
        load_table(tmp_path)


def table_file(path, frame):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(frame.columns)
        for row in zip(*frame.columns.values(), strict=True):
            writer.writerow(["" if value is None or value != value else value for value in row])
    return path


def test_a_table_with_missing_cells_is_learned_by_the_ensemble_whose_noise_differs_between_rows():
    """A Gaussian process of one noise level is far too certain of rows with missing cells."""
    random = np.random.default_rng(0)
    x = random.uniform(size=(1200, 4))
    y = np.exp(1.5 * x[:, 0]) * (1 + x[:, 1]) + 3 * x[:, 2]
    x[random.uniform(size=x.shape) < 0.05] = np.nan
    frame = Frame({**{f"x{i}": column for i, column in enumerate(x.T)}, "y": y})
    train, test = frame.at(np.arange(200)), frame.at(np.arange(200, 1200))
    constant = 0.5 * np.log(2 * np.pi * y[:200].var()) + 0.5 * np.mean((y[200:] - y[:200].mean()) ** 2) / y[:200].var()
    short = {"members": 2, "max_iter": 300, "random_state": 0}
    found = fit_table(train, "y", "regression", where="t", **short)
    assert found.estimator.family_ == "ensemble"
    assert table_scores(found, test, where="t")["nll"] < constant - 1
    asked = fit_table(train, "y", "regression", where="t", family="gp", **short)
    assert table_scores(asked, test, where="t")["nll"] > constant + 1
    words = Frame({"a": np.array(["u", "v", None] * 20, object), "y": np.arange(60.0)})
    assert fit_table(words, "y", "regression", where="t", **QUICK).estimator.family_scores_ == {}
    whole = Frame({"a": np.array(["u", "v", "w"] * 20, object), "y": np.arange(60.0)})
    assert set(fit_table(whole, "y", "regression", where="t", **QUICK).estimator.family_scores_) == {"ensemble", "gp"}


@pytest.mark.slow
def test_a_run_scores_as_the_estimator_does_on_the_same_split_and_needs_no_file_afterwards(tmp_path):
    file = table_file(tmp_path / "prices.csv", rows(120))
    settings = TableSettings(str(file), "price", members=2)
    said = []
    result = train_table(settings, tmp_path / "run", say=said.append, progress=False)
    assert said[0] == "Regression of 'price' from 2 columns of 108 rows."
    assert said[1].startswith("Missing cells: 'size' 18. ")
    assert len(said) == 2
    train, test = split(read_frame(file), 0.1, 0)
    coder = ColumnCoder.of(train.without("price"))
    x, x_test = (coder.matrix(part.without("price"), where="t") for part in (train, test))
    alone = SDEBNNRegressor(family="ensemble", members=2, random_state=0).fit(x, train.columns["price"])
    assert result["nll"] == pytest.approx(-alone.log_prob(x_test, test.columns["price"]).mean(), rel=1e-6)
    assert result["rmse"] == pytest.approx(np.sqrt(np.mean((alone.predict(x_test) - test.columns["price"]) ** 2)))
    assert train_table(settings, tmp_path / "run", resume=True) == result
    with pytest.raises(ValueError, match="--resume"):
        train_table(settings, tmp_path / "run")
    with pytest.raises(ValueError, match="members=2"):
        train_table(settings._replace(members=3), tmp_path / "run", resume=True)
    file.write_text(file.read_text() + "50,red,20\n")
    with pytest.raises(ValueError, match="has changed"):
        train_table(settings, tmp_path / "run", resume=True)
    file.unlink()
    (tmp_path / "run").rename(tmp_path / "moved")
    assert forecast(load_table(tmp_path / "moved"), test, where="t")["price"] == pytest.approx(alone.predict(x_test))
    assert str(tmp_path) not in json.dumps(read_table_run(tmp_path / "moved"))


@pytest.mark.parametrize("name", ["wave", "moons"])
def test_a_table_by_name_is_learned_by_the_estimator_and_scored_on_its_own_test_part(name, tmp_path):
    settings = TableSettings(name, members=1, seed=3)
    said = []
    result = train_table(settings, tmp_path / "run", say=said.append, progress=False)
    data = load(name, seed=3)
    x, y = np.asarray(data.train.x, float), np.asarray(data.train.y)
    x_test, y_test = np.asarray(data.test.x, float), np.asarray(data.test.y)
    if data.classes is None:
        alone, y, y_test = SDEBNNRegressor(members=1, random_state=3), y[:, 0].astype(float), y_test[:, 0].astype(float)
        assert said == ["Regression of 'y' from 1 column of 400 rows."]
    else:
        alone, y, y_test = SDEBNNClassifier(members=1, random_state=3), y.astype(str), y_test.astype(str)
    alone.fit(x, y)
    assert result["nll"] == pytest.approx(-alone.log_prob(x_test, y_test).mean(), rel=1e-5)
    assert (result["test_rows"], result["data"]) == (len(x_test), name)
    assert train_table(settings, tmp_path / "run", resume=True) == result
    found = forecast(load_table(tmp_path / "run"), Frame(dict(zip(("x1", "x2"), x_test.T, strict=False))), where="t")
    assert found["y"].tolist() == alone.predict(x_test).tolist()


def test_every_table_of_the_catalogue_is_known_as_one():
    assert [name for name, entry in CATALOGUE.items() if not entry.is_table] == [
        "digits", "mnist", "fashion-mnist", "cifar10", "cifar10c",
    ]  # fmt: skip


def test_classes_that_only_the_test_rows_have_are_learned():
    train, test = (
        Frame({"x": np.arange(float(len(kinds))), "kind": np.array(kinds, object)})
        for kinds in (["a", "b"], ["b", "c"])
    )
    train, test = _with_all_classes(train, test, "kind")
    assert train.columns["kind"].tolist() == ["a", "b", "c"]
    assert test.columns["kind"].tolist() == ["b"]


def test_a_run_that_fails_leaves_nothing_behind(tmp_path):
    file = written(tmp_path / "t.csv", "a,b\n1,2\n2,3\n3,4\n")
    for settings, words in (
        (TableSettings(str(file), "b"), "--task"),
        (TableSettings(str(file), "c"), "target='c'"),
        (TableSettings(str(written(tmp_path / "one.csv", "a,b\n1,7\n2,7\n"))), "'b' is 7 in all rows"),
        (TableSettings(str(tmp_path / "none.csv")), "none.csv"),
        (TableSettings(str(file), test=1.0), "test=1.0"),
        (TableSettings(str(file), members=0), "members=0"),
        (TableSettings(str(written(tmp_path / "std.csv", "a,std\n1,2.5\n2,3.5\n"))), "'std'"),
    ):
        with pytest.raises(ValueError, match=words):
            train_table(settings, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()
