"""Data sets for examples and tests, and loaders of collections whose terms forbid that a package contains them."""

from pymc_ep.datasets.coal import load_coal
from pymc_ep.datasets.counts import load_gowalla, load_lastfm, load_melbourne_pedestrians
from pymc_ep.datasets.events import SequenceTable, from_events
from pymc_ep.datasets.film_pairs import FilmPairs, load_movielens_pairs
from pymc_ep.datasets.long_tables import load_checkins, load_movielens, load_nips_coauthors
from pymc_ep.datasets.pairs import PairTable, from_pairs, read_inter
from pymc_ep.datasets.split import split_pairs
from pymc_ep.datasets.sushi import SushiRankings, load_sushi, pairs_from_rankings

__all__ = [
    "FilmPairs",
    "PairTable",
    "SequenceTable",
    "SushiRankings",
    "from_events",
    "from_pairs",
    "load_checkins",
    "load_coal",
    "load_gowalla",
    "load_lastfm",
    "load_melbourne_pedestrians",
    "load_movielens",
    "load_movielens_pairs",
    "load_nips_coauthors",
    "load_sushi",
    "pairs_from_rankings",
    "read_inter",
    "split_pairs",
]
