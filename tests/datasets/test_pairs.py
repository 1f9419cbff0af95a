"""Counts and coordinates of long tables, against tables counted by hand."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy.sparse import csr_array

import pymc_ep as pmep
from pymc_ep.datasets import from_pairs, read_inter
from pymc_ep.exceptions import InvalidDataError

HEADER = "user_id:token\titem_id:token\trating:float\treview:token_seq\n"


def table(**columns):
    return pd.DataFrame({"user": ["b", "a", "b", "b"], "item": [30, 4, 4, 30], **columns})


def check(found, counts, **coords):
    assert isinstance(found.counts, csr_array) and found.counts.dtype == np.int64
    assert found.counts.has_canonical_format and np.all(found.counts.data > 0)
    np.testing.assert_array_equal(found.counts.toarray(), counts)
    assert {name: labels.tolist() for name, labels in found.coords.items()} == coords


def test_rows_are_counted():
    check(from_pairs(table(), "user", "item"), [[1, 0], [1, 2]], user=["a", "b"], item=[4, 30])


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float64", "Int64", "Float64", object])
def test_counts_of_repeated_rows_are_added_up(dtype):
    frame = table(plays=pd.Series([2, 1, 7, 3]).astype(dtype))
    check(from_pairs(frame, "user", "item", count="plays"), [[1, 0], [7, 5]], user=["a", "b"], item=[4, 30])


def test_flags_are_counts():
    frame = table(liked=[True, False, True, True])
    check(from_pairs(frame, "user", "item", "liked"), [[0, 0], [1, 2]], user=["a", "b"], item=[4, 30])


def test_sums_of_small_integers_do_not_wrap():
    frame = table(plays=np.array([200, 1, 1, 200], dtype=np.uint8))
    assert from_pairs(frame, "user", "item", "plays").counts[1, 1] == 400


def test_large_counts_are_exact():
    frame = table(plays=[2**60 + 1, 0, 0, 2])
    assert from_pairs(frame, "user", "item", "plays").counts[1, 1] == 2**60 + 3


def test_labels_without_counts_are_kept():
    frame = table(plays=[0, 2, 0, 0])
    check(from_pairs(frame, "user", "item", "plays"), [[2, 0], [0, 0]], user=["a", "b"], item=[4, 30])


@pytest.mark.parametrize(
    ("labels", "want", "counts"),
    [
        (["x", "y", "x", "y"], ["x", "y"], [[0, 1], [2, 1]]),
        ([10, 9, 10, 9], [9, 10], [[1, 0], [1, 2]]),
        (pd.array([10, 9, 10, 9], dtype="Int64"), [9, 10], [[1, 0], [1, 2]]),
        (pd.Categorical(["lo", "hi", "lo", "lo"], ["lo", "mid", "hi"]), ["lo", "hi"], [[0, 1], [3, 0]]),
        ([2, "x", 2, 2], [2, "x"], [[0, 1], [3, 0]]),
    ],
    ids=["str", "int", "Int64", "category", "mixed"],
)
def test_labels_are_those_of_the_table(labels, want, counts):
    frame = pd.DataFrame({"who": labels, "user": ["b", "a", "b", "b"]})
    check(from_pairs(frame, "user", "who"), counts, user=["a", "b"], who=want)


def test_rows_count_by_position():
    frame = table(plays=[1, 2, 3, 4]).set_axis([7, 7, 0, 1]).iloc[::-1]
    check(from_pairs(frame, "user", "item", "plays"), [[2, 0], [3, 5]], user=["a", "b"], item=[4, 30])


def test_counts_and_coordinates_fit_a_model():
    counts, coords = from_pairs(table(), "user", "item")
    with pm.Model(coords=coords | {"factor": range(20)}) as model:
        U, V = (pm.Normal(name, 0, 1, dims=(side, "factor")) for name, side in (("U", "user"), ("V", "item")))
        pmep.PairedSymbols("views", U, V, 0, 0, observed=counts)
    assert model.coords["user"] == ("a", "b") and model.coords["item"] == (4, 30)
    assert np.isfinite(model.compile_logp()(model.initial_point()))


def replaced(column, row, value):
    """The table with another value in one row."""
    frame = table(plays=[1.0, 2.0, 3.0, 4.0]).astype(object)
    frame.iloc[row, list(frame.columns).index(column)] = value
    return frame.infer_objects()


@pytest.mark.parametrize(
    ("frame", "names", "message"),
    [
        (table(), ("users", "item"), r"no column 'users'; its columns are 'user', 'item'\. Did you mean 'user'\?"),
        (table(plays=1), ("user", "item", "play"), r"no column 'play'.* Did you mean 'plays'\?"),
        (pd.DataFrame(), ("user", "item"), "its columns are none"),
        (table(), ("user", "user"), "'user' is given twice"),
        (table(), ("user", "item", "item"), "'item' is given twice"),
        (table().set_axis(["user", "user"], axis=1), ("user", "user"), "2 columns are named 'user'; rename"),
        (table().set_axis([0, 1], axis=1), (0, 1), r"The column 0 has no string .* frame\.rename\(columns={0: 'user'}"),
        (table().iloc[:0], ("user", "item"), "no rows, so no pairs of 'user' and 'item'; give at least one"),
        (replaced("user", 2, None), ("user", "item"), r"'user' has .* in row 2, .*dropna\(subset=\['user'\]\)"),
        (replaced("item", 1, np.nan), ("user", "item"), r"'item' has .*nan.* in row 1, .*dropna\(subset=\['item'\]\)"),
        (
            table(who=[(1,), [2], (3,), (4,)]),
            ("user", "who"),
            r"cannot be sorted .*frame\['who'\]\.astype\(str\)",
        ),
        (replaced("plays", 3, np.nan), ("user", "item", "plays"), r"'plays' has .*nan.* in row 3, .* or give them 0"),
        (replaced("plays", 3, pd.NA), ("user", "item", "plays"), r"'plays' has <NA> in row 3, .* or give them 0"),
        (replaced("plays", 1, -2.0), ("user", "item", "plays"), r"'plays' has .*-2\.0.* in row 1, .* at least 0"),
        (replaced("plays", 2, 0.5), ("user", "item", "plays"), r"'plays' has .*0\.5.* in row 2, .*leave count= out"),
        (replaced("plays", 0, np.inf), ("user", "item", "plays"), r"'plays' has .*inf.* in row 0, .*whole numbers"),
        (replaced("plays", 0, 1e19), ("user", "item", "plays"), r"'plays' add up to 1e\+19, .* row 0"),
        (table(plays=list("1234")), ("user", "item", "plays"), r"'1' in row 0.* pd\.to_numeric\(frame\['plays'\]\)"),
        (table(plays=1j), ("user", "item", "plays"), "has the type complex128"),
        ({"user": [1], "item": [2]}, ("user", "item"), r"not dict; convert it, such as with pd\.DataFrame"),
    ],
)
def test_wrong_tables_name_the_column_the_row_and_the_cure(frame, names, message):
    with pytest.raises(InvalidDataError, match=message):
        from_pairs(frame, *names)


@pytest.fixture
def inter(tmp_path):
    """Write an .inter file."""

    def write(text, encoding="utf-8"):
        path = tmp_path / "views.inter"
        path.write_text(text, encoding=encoding)
        return path

    return write


def test_inter_files_have_typed_columns(inter):
    path = inter(HEADER + '007\tNA\t4\tso "good\n10\tb\t\tnot good\n007\tb\t2.5\t\n')
    found = read_inter(path)
    assert list(found.columns) == ["user_id", "item_id", "rating", "review"] and list(found.index) == [0, 1, 2]
    assert found["user_id"].tolist() == ["007", "10", "007"] and found["item_id"].tolist() == ["NA", "b", "b"]
    np.testing.assert_array_equal(found["rating"], [4, np.nan, 2.5])
    assert found["rating"].dtype == np.float64
    assert found["review"].tolist()[:2] == ['so "good', "not good"] and found["review"].isna().tolist()[2]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_inter_files_are_counted(inter, encoding):
    path = inter("user_id:token\titem_id:token\tplays:float\nö\t9\t2\n1\t10\t1\nö\t9\t3\n", encoding)
    labels = {"user_id": ["1", "ö"], "item_id": ["10", "9"]}
    for source in (path, str(path)):
        check(from_pairs(source, "user_id", "item_id"), [[1, 0], [0, 2]], **labels)
        check(from_pairs(source, "user_id", "item_id", "plays"), [[1, 0], [0, 5]], **labels)
    with path.open(encoding=encoding) as lines:
        check(from_pairs(lines, "user_id", "item_id"), [[1, 0], [0, 2]], **labels)


def test_names_with_types_are_not_columns(inter):
    with pytest.raises(InvalidDataError, match=r"no column 'user_id:token'.* Did you mean 'user_id'\?"):
        from_pairs(inter(HEADER + "1\t2\t3\ta\n"), "user_id:token", "item_id")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"views\.inter is empty; its first line has the names of columns with their types"),
        ("user_id,item_id\n1,2\n", r"'user_id,item_id' in its .*'user_id:token\\titem_id:token.*pd\.read_csv"),
        ("user_id:token\titem_id\n1\t2\n", "has 'item_id' in its header"),
        ("user_id:token\t\n1\t2\n", "has '' in its header"),
        ("user_id:token\t:token\n1\t2\n", "has ':token' in its header"),
        ("user_id:token\titem_id:tokens\n1\t2\n", r"'item_id' of the unknown type 'tokens'.*Did you mean 'token'\?"),
        ("user_id:token,item_id:token\n1,2\n", "'user_id:token,item_id:token' in its header.* separated by tabs"),
        ("user_id:token\tuser_id:float\n1\t2\n", "two columns named 'user_id'"),
        ("user_id:token\titem_id:token\n1\t2\n1\t2\t3\n", r"more fields .*Expected 2 fields in line 3, saw 3.*tabs"),
        ("user_id:token\trating:float\n1\t2\n1\tgood\n", r"'rating' has 'good' in row 1, .*declare the type token"),
    ],
)
def test_wrong_inter_files_say_what_to_change(inter, text, message):
    with pytest.raises(InvalidDataError, match=message):
        read_inter(inter(text))


def test_other_encodings_are_passed_as_open_files(inter):
    path = inter("user_id:token\titem_id:token\nö\t9\n", "latin-1")
    with pytest.raises(InvalidDataError, match=r"not in UTF-8 .*encoding='latin-1'"):
        read_inter(path)
    with path.open(encoding="latin-1") as lines:
        assert read_inter(lines)["user_id"].tolist() == ["ö"]


def test_files_without_rows_are_tables_without_rows(inter):
    path = inter(HEADER)
    assert read_inter(path).shape == (0, 4)
    with pytest.raises(InvalidDataError, match="no rows"):
        from_pairs(path, "user_id", "item_id")
