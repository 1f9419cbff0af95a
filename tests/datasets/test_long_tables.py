"""Long tables have the counts that their sources say, and are read as published."""

import gzip

import pandas as pd
import pytest

from pymc_ep.datasets import from_pairs, load_checkins, load_movielens, load_nips_coauthors


@pytest.mark.parametrize("ratings", ["2::11::5::978300760\n1::7::3::978302109\n", "2::11::5\n1::7::3\n"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_movielens_is_read_with_and_without_times(ratings, encoding, tmp_path):
    name = "ratings.dat" if "9783" in ratings else "ratings_notime.dat"
    with gzip.open(tmp_path / f"{name}.gz", "wt") as out:
        out.write(ratings)
    films = "7::Alien: Resurrection (1997)::Action|Sci-Fi\n11::Misérables, Les (1995)::Drama\n"
    (tmp_path / "movies.dat").write_text(films, encoding=encoding)
    found = load_movielens(path=tmp_path)
    assert found.pop("time").dropna().tolist() == [
        pd.Timestamp(t) for t in ("2000-12-31 22:12:40", "2000-12-31 22:35:09") if name == "ratings.dat"
    ]
    assert found.to_dict("list") == {
        "user": [2, 1],
        "item": [11, 7],
        "title": ["Misérables, Les (1995)", "Alien: Resurrection (1997)"],
        "rating": [5, 3],
    }


def test_missing_ratings_are_named_as_published(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^ratings\.dat is not in .*ml-1m"):
        load_movielens(path=tmp_path)


@pytest.mark.parametrize(("size", "message"), [("1M", "neither .* Did you mean '1m'"), ("25m", "neither '1m' nor")])
def test_unknown_sizes_name_the_known_ones(size, message):
    with pytest.raises(ValueError, match=message):
        load_movielens(size)


@pytest.mark.parametrize("name", ["foursquare-nyc", "brightkite"])
def test_check_ins_of_a_user_are_in_time_order(name, tmp_path):
    (tmp_path / "train.txt").write_text("1 5 3 5\n0 4\n")
    (tmp_path / "test.txt").write_text("0 2 2\n1 0\n")
    with gzip.open(tmp_path / "time_test.txt.gz", "wt") as out:
        out.write("0 86400 172801\n1 0\n")
    found = load_checkins(name, tmp_path)
    assert found["time"].dropna().tolist() == [pd.Timestamp(t) for t in ("1970-01-02", "1970-01-03 00:00:01", "1970")]
    assert found["time"].isna().tolist() == (found["part"] == "train").tolist()
    assert found.drop(columns="time").to_dict("list") == {
        "user": [0, 0, 0, 1, 1, 1, 1],
        "place": [4, 2, 2, 5, 3, 5, 0],
        "part": ["train", "test", "test", "train", "train", "train", "test"],
    }


def test_authors_of_papers_have_names(tmp_path):
    (tmp_path / "nips.authors").write_text("1\n0 2\n")
    (tmp_path / "nips.authors.key").write_text("Abbott_L \nBélair_J \nCun_Y \n", encoding="latin-1")
    assert load_nips_coauthors(tmp_path).to_dict("list") == {
        "paper": [0, 1, 1],
        "author": ["Bélair_J", "Abbott_L", "Cun_Y"],
    }


@pytest.mark.parametrize(
    ("size", "shape", "titles", "ratings"),
    [
        ("1m", (6_040, 3_706), 3_706, [56_174, 107_557, 261_197, 348_971, 226_310]),
        ("100k", (943, 1_682), 1_664, [6_110, 11_370, 27_145, 34_174, 21_201]),
    ],
)
def test_real_ratings_are_what_their_sources_say(size, shape, titles, ratings, data_folder):
    films = load_movielens(size, data_folder / f"ml-{size}")
    assert films["rating"].value_counts().sort_index().tolist() == ratings
    assert films["title"].notna().all() and films["title"].nunique() == titles
    assert films["time"].isna().all() if size == "1m" else films["time"].dt.year.isin([1997, 1998]).all()
    assert any("Misérables" in title for title in films["title"].unique())
    counts, coords = from_pairs(films, "user", "item")
    assert counts.shape == shape and counts.nnz == sum(ratings) and counts.max() == 1
    assert coords["user"].tolist() == list(range(1, shape[0] + 1))


def test_real_check_ins_are_what_their_sources_say(data_folder):
    for name, n_users, n_places, parts, extent in (
        ("foursquare-nyc", 1_083, 9_989, {"train": 125_119, "test": 54_349}, (37, 116, 2_599)),
        ("brightkite", 5_766, 14_653, {"train": 586_494, "test": 255_017}, (10, 40, 2_100)),
    ):
        visits = load_checkins(name, data_folder / f"{name}-10core")
        assert (visits["user"].nunique(), visits["place"].nunique()) == (n_users, n_places)
        assert visits["part"].value_counts().to_dict() == parts
        timed = visits[visits["time"].notna()]
        # No times of Brightkite's earlier part were to be had.
        assert len(timed) == (parts["test"] if name == "brightkite" else len(visits))
        assert (timed.groupby("user")["time"].diff().dropna() >= pd.Timedelta(0)).all()
        each = visits["user"].value_counts()
        assert (each.min(), each.median(), each.max()) == extent


def test_unknown_check_ins_name_the_known_ones():
    with pytest.raises(ValueError, match=r"neither 'foursquare-nyc' nor 'brightkite'.* Did you mean 'brightkite'"):
        load_checkins("brightkit")


def test_real_coauthors_are_what_their_sources_say(data_folder):
    papers = load_nips_coauthors(data_folder / "nips0-12")
    assert (len(papers), papers["paper"].nunique(), papers["author"].nunique()) == (3_990, 1_740, 2_037)
    both = papers.merge(papers, on="paper").query("author_x < author_y")
    counts, _ = from_pairs(both, "author_x", "author_y")
    assert (counts.nnz, counts.sum(), counts.max()) == (3_134, 3_740, 9)
