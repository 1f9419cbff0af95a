"""Counts arrive as they are given, whatever holds them; what a double cannot hold is refused by its own value."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy import sparse, stats

import pymc_ep as pmep
from pymc_ep.distributions.positive_counts import PositiveCounts

BASE = 2**33
COUNTS = np.array([3, 0, 65536]) + BASE
HOLDERS = {
    "list": COUNTS.tolist(),
    "int64": COUNTS,
    "uint64": COUNTS.astype("uint64"),
    "float64": COUNTS.astype("float64"),
    "float32": (COUNTS - [3, 0, 0]).astype("float32"),
    "int32": np.array([3, 0, 65536], dtype="int32"),
    "masked": np.ma.masked_array(COUNTS, [False] * 3),
    "series": pd.Series(COUNTS),
    "nullable series": pd.Series(COUNTS, dtype="Int64"),
}
CELLS = [0, 1, 2]


def matrices():
    return pm.Normal("V", 0, 1, shape=(3, 2)), pm.Normal("U", 0, 1, shape=(3, 2))


DISTRIBUTIONS = {
    "rectified": lambda y: pmep.RectifiedPoisson("y", pm.Normal("f", 1, 1, shape=len(y)), observed=y),
    "softplus": lambda y: pmep.SoftplusPoisson("y", pm.Normal("f", 1, 1, shape=len(y)), observed=y),
    "positive": lambda y: PositiveCounts("y", pm.Poisson.dist(pm.math.exp(pm.Normal("f")), shape=len(y)), observed=y),
    "bilinear": lambda y: pmep.BilinearPoisson("y", *matrices(), CELLS[: len(y)], CELLS[: len(y)], observed=y),
    "bilinear, dispersed": lambda y: pmep.BilinearPoisson(
        "y", *matrices(), CELLS[: len(y)], CELLS[: len(y)], alpha=2.0, observed=y
    ),
}


def stored(model):
    return model.rvs_to_values[model["y"]].eval()


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_counts_are_stored_as_given(kind, holder):
    with pm.Model() as model:
        DISTRIBUTIONS[kind](HOLDERS[holder])
    np.testing.assert_array_equal(stored(model), np.asarray(HOLDERS[holder]).astype(np.int64))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, 2.5, 3], r"2\.5 at index 1, but counts are whole"),
        (np.array([1, 2**53 + 2, 3]), r"9007199254740994 at index 1, .*2\*\*53"),
        (np.array([2**63 + 5, 2, 3], dtype="uint64"), r"9223372036854775813 at index 0, .*2\*\*53"),
        ([1.0, 2.0, 1e300], r"1e\+300 at index 2"),
        ([1.0, np.inf, 2.0], "inf at index 1"),
        (np.array([1, 2.5, 3], dtype="float32"), r"2\.5 at index 1"),
        (pd.Series([1, 2, 2**60]), "1152921504606846976 at index 2"),
        ([1, 2, 2**70], "1180591620717411303424 at index 2"),
    ],
)
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_what_doubles_do_not_count_is_refused(kind, wrong, message):
    if "bilinear" in kind and isinstance(wrong, list) and isinstance(wrong[2], int) and wrong[2] > 2**64:
        message = "type object"
    with pm.Model(), pytest.raises(pmep.InvalidDataError, match=f"'y' has the observation.*{message}"):
        DISTRIBUTIONS[kind](wrong)


@pytest.mark.parametrize("wrong", [["a", "b"], sparse.csr_array(np.eye(2)), [1, object()]])
def test_what_is_no_number_is_refused(wrong):
    with pm.Model(), pytest.raises(pmep.InvalidDataError, match=r"'y' has observations of type .* counts are whole"):
        pmep.RectifiedPoisson("y", pm.Normal("f", 1, 1), observed=wrong)


@pytest.mark.filterwarnings("ignore:Data in y contains missing values")
@pytest.mark.parametrize(
    "holder",
    [
        pd.Series([BASE, pd.NA, 2], dtype="Int64"),
        pd.Series([BASE, np.nan, 2]),
        np.ma.masked_array([BASE, 7, 2], [0, 1, 0]),
        [BASE, None, 2],
    ],
    ids=["nullable series", "series", "masked", "none"],
)
def test_missing_counts_are_imputed(holder):
    with pm.Model() as model:
        pmep.RectifiedPoisson("y", pm.Normal("f", 1, 1, shape=3), observed=holder)
    np.testing.assert_array_equal(model.rvs_to_values[model["y_observed"]].eval(), [BASE, 2])


def test_a_fit_of_large_counts_is_the_integral_over_their_density():
    count, sd = BASE + 40_000, 1e5
    with pm.Model() as model:
        pmep.RectifiedPoisson("y", pm.Normal("f", BASE, sd), observed=np.array(count))
    found = pmep.fit(model=model, draws=0, progressbar=False)
    grid = np.linspace(BASE - 8 * sd, BASE + 8 * sd, 20_001)
    # In deviations from the count, so that the density of 1e10 keeps its digits.
    away = (grid - count) / count
    log_density = -count * (away - np.log1p(away)) + stats.norm.logpdf(grid, BASE, sd)
    weight = np.exp(log_density - log_density.max())
    mean = (weight * (grid - BASE)).sum() / weight.sum() + BASE
    deviation = np.sqrt((weight * (grid - mean) ** 2).sum() / weight.sum())
    assert abs(float(found["posterior_mean"]["f"]) - mean) < 1e-4 * sd
    np.testing.assert_allclose(float(found["posterior_sd"]["f"]), deviation, rtol=1e-4)


@pytest.mark.parametrize(
    "likelihood",
    [
        lambda f, y: pm.Poisson("y", pm.math.exp(f), observed=y),
        lambda f, y: pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=2.0, observed=y),
        lambda f, y: pm.Binomial("y", n=5, logit_p=f, observed=y),
        lambda f, y: pm.Bernoulli("y", logit_p=f, observed=y),
        lambda f, y: pmep.RectifiedPoisson("y", f, observed=y),
    ],
)
def test_fractions_in_a_data_container_are_refused_by_a_fit(likelihood):
    """PyMC casts them to integers, in the graph: what is before the cast can be read."""
    with pm.Model() as model:
        likelihood(pm.Normal("f", 0, 1, shape=3), pm.Data("data", np.array([1.0, 0.5, 1.0])))
    with pytest.raises(pmep.InvalidDataError, match=r"'y' has the value 0\.5 at index 1"):
        pmep.fit(model=model, progressbar=False)


def test_counts_of_pairs_are_stored_as_given():
    counts = sparse.csr_array(np.array([[BASE, 0, 1], [2, 3, 0], [0, 1, 1]]))
    with pm.Model() as model:
        pmep.PairedSymbols("y", *matrices(), observed=counts)
    np.testing.assert_array_equal(stored(model)[:, 2].max(), BASE)
    counts.data[0] = 2**53 + 2
    with pm.Model(), pytest.raises(pmep.InvalidDataError, match=r"count 9007199254740994 at row 0 .*beyond 2\*\*53"):
        pmep.PairedSymbols("y", *matrices(), observed=counts)
