"""Files that are cut off or not as published are refused by their path, and never read as something else."""

import gzip

import numpy as np
import pytest

import pymc_ep as pmep

GOWALLA = {f"{part}.txt": f"{k}\t7\t3\n{k}\t8\t9007199254740992\n" for k, part in enumerate(("train", "tune", "test"))}
LASTFM = {
    "user_artists.dat": "userID\tartistID\tweight\n2\t51\t13883\n2\t52\t11690\n",
    "artists.dat": "id\tname\turl\tpictureURL\n51\tDuran Duran\tu\tp\n52\tMorcheeba\tu\tp\n",
}
MOVIELENS = {
    "u.data": "196\t242\t3\t881250949\n186\t302\t5\t891717742\n",
    "u.item": "242|Kolya (1996)|d\n302|L.A. Confidential (1997)|d\n",
}
PEDESTRIANS = {"counts_hourly.csv": "a,b\n1,2\n-1,4\n"}
LOADERS = {
    "gowalla": (pmep.datasets.load_gowalla, GOWALLA, "train.txt"),
    "lastfm": (pmep.datasets.load_lastfm, LASTFM, "user_artists.dat"),
    "movielens": (lambda path: pmep.datasets.load_movielens("100k", path), MOVIELENS, "u.data"),
    "pedestrians": (pmep.datasets.load_melbourne_pedestrians, PEDESTRIANS, "counts_hourly.csv"),
}


def written(folder, files, name=None, edit=None):
    for own, text in files.items():
        (folder / own).write_text(edit(text) if own == name else text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", LOADERS)
def test_files_as_published(kind, tmp_path):
    load, files, _ = LOADERS[kind]
    found = load(written(tmp_path, files))
    if kind == "gowalla":
        assert found["visits"].tolist() == [3, 2**53] * 3 and found["user"].tolist() == [0, 0, 1, 1, 2, 2]
    if kind == "lastfm":
        assert found["name"].tolist() == ["Duran Duran", "Morcheeba"] and found["plays"].dtype == np.int64
    if kind == "pedestrians":
        np.testing.assert_array_equal(found, [[1.0, 2.0], [np.nan, 4.0]])


def last_count(value):
    """An edit of the second row's last field."""

    def edit(text):
        lines = text.splitlines()
        sep = "," if "," in lines[-1] else "\t"
        fields = lines[-1].split(sep)
        fields[2 if len(fields) > 2 else -1] = value
        return "\n".join([*lines[:-1], sep.join(fields)]) + "\n"

    return edit


def surplus(text):
    """A further field at the end of each row of numbers, without a name."""
    sep = "," if "," in text else "\t"
    return "".join(
        line + (f"{sep}5" if line[0].isdigit() or line[0] == "-" else "") + "\n" for line in text.splitlines()
    )


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("value", ["", "2.5", "18446744073709551616", "many"])
def test_what_is_no_count(kind, value, tmp_path):
    load, files, name = LOADERS[kind]
    if kind == "pedestrians" and value == "":
        pytest.skip("an hour may be missing")
    with pytest.raises(pmep.InvalidDataError, match=rf"{name} is not as published: ") as told:
        load(written(tmp_path, files, name, last_count(value)))
    assert str(tmp_path) in str(told.value)


@pytest.mark.parametrize("kind", ["gowalla", "lastfm", "movielens"])
def test_a_negative_count(kind, tmp_path):
    load, files, name = LOADERS[kind]
    with pytest.raises(pmep.InvalidDataError, match=r"row 1, counted from zero, has -4 as"):
        load(written(tmp_path, files, name, last_count("-4")))


@pytest.mark.parametrize("kind", ["gowalla", "lastfm", "pedestrians"])
def test_a_surplus_column(kind, tmp_path):
    load, files, name = LOADERS[kind]
    with pytest.raises(pmep.InvalidDataError, match=r"is not as published: it has \d columns"):
        load(written(tmp_path, files, name, surplus))


@pytest.mark.parametrize("kind", LOADERS)
def test_a_file_that_is_cut_off(kind, tmp_path):
    load, files, name = LOADERS[kind]
    folder = written(tmp_path, files)
    packed = gzip.compress((folder / name).read_bytes())
    (folder / name).unlink()
    (folder / f"{name}.gz").write_bytes(packed[:-9])
    with pytest.raises(pmep.InvalidDataError, match=rf"{name}\.gz is damaged or cut off"):
        load(folder)
