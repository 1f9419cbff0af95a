"""Wrong and extreme input: each gets the documented exception, with name, index and cure, or a correct result."""

import re
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import xarray as xr

import pymc_ep as pmep
from pymc_ep.compat import group, make_container
from pymc_ep.results import fit_group

N = 5
X = np.linspace(0.0, 2.0, N)[:, None]
COUNTS = np.array([2, 0, 1, 3, 1])
QUIET = {"draws": 0, "progressbar": False}


def latent(size=N):
    return pm.Normal("f", 0.5, 1.0, shape=size)


def fitted(model, **options):
    """Fit, and insist that nothing in the result is NaN."""
    idata = pmep.fit(model=model, **(QUIET | options))
    for part in ("fit", "posterior_mean", "posterior_sd"):
        for name, values in group(idata, part).data_vars.items():
            assert np.all(np.isfinite(values)), (part, name)
    return idata


# Observations outside the domain


def poisson(counts):
    return pm.Poisson("y", pt.exp(latent()), observed=counts)


def rectified(counts):
    return pmep.RectifiedPoisson("y", latent(), observed=counts)


@pytest.mark.parametrize("write", [poisson, rectified])
@pytest.mark.parametrize(
    ("value", "message"), [(-1.0, "-1"), (1.5, r"1\.5"), (np.nan, "nan"), (np.inf, "inf")], ids=str
)
def test_no_counts(write, value, message):
    """Shared data are seen as the user gave them, below PyMC's cast to integers."""
    with pm.Model() as model:
        counts = pm.Data("counts", COUNTS.astype(float))
        write(counts)
        pm.set_data({"counts": np.array([2.0, 0.0, 1.0, value, 1.0])})
    with pytest.raises(pmep.InvalidDataError, match=rf"'y'.*{message}.*index 3.*counts.*(Correct|remove)"):
        pmep.fit(model=model, **QUIET)


def test_an_exposure_of_zero_says_nothing():
    """A zero is certain then: the fit is that without the observation."""
    exposure, counts, seen = np.array([1.0, 2.0, 0.0, 1.0, 3.0]), np.array([2, 0, 0, 3, 1]), np.array([0, 1, 3, 4])

    def fit_of(at):
        with pm.Model() as model:
            pm.Poisson("y", exposure[at] * pt.exp(latent()[at]), observed=counts[at])
        return fitted(model)

    found, expected = fit_of(np.arange(N)), fit_of(seen)
    np.testing.assert_allclose(found["fit"]["log_evidence"], expected["fit"]["log_evidence"], rtol=1e-7)
    np.testing.assert_allclose(found["posterior_mean"]["f"], expected["posterior_mean"]["f"], rtol=1e-6)


def test_fractions_that_pymc_truncates():
    """PyMC casts constant observations to integers before anyone can see them; the fit is that of the integers."""
    with pm.Model() as model:
        poisson(np.array([2.7, 0.0, 1.2, 3.0, 1.0]))
    np.testing.assert_array_equal(model.rvs_to_values[model["y"]].eval(), [2, 0, 1, 3, 1])
    fitted(model)


def test_negative_constants():
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(latent()), observed=[2, 0, -4, 3, 1])
    with pytest.raises(pmep.InvalidDataError, match=r"'y'.*-4.*index 2"):
        pmep.fit(model=model, **QUIET)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda f: pm.Bernoulli("y", logit_p=f, observed=[0, 1, 2, 0, 1]), r"'y'.*2.*index 2.*zeros and ones"),
        (lambda f: pm.Normal("y", f, 1.0, observed=pm.Data("d", [0.0, np.inf, 0, 0, 1])), r"'y'.*inf.*index 1.*finite"),
        (
            lambda f: pm.Normal("y", f.reshape((5, 1)), 1.0, observed=pm.Data("d", np.full((5, 1), np.inf))),
            r"'y'.*inf.*index \(0, 0\)",
        ),
    ],
)
def test_outside_the_domain(write, message):
    with pm.Model() as model:
        write(latent())
    with pytest.raises(pmep.InvalidDataError, match=message):
        pmep.fit(model=model, **QUIET)


@pytest.mark.parametrize(
    ("write", "value"),
    [
        (lambda f: pm.BetaBinomial("y", pt.exp(f), 1.0, n=5, observed=[1, 2, 7, 0, 0]), "7"),
        (lambda f: pm.Truncated("y", pm.Logistic.dist(f, 1.0), lower=0.0, observed=[1.0, 2.0, -2.0, 3.0, 1.0]), "-2"),
    ],
)
def test_outside_the_support_of_a_density_that_is_integrated(write, value):
    with pm.Model() as model:
        write(latent())
    with pytest.raises(pmep.NumericalError, match=rf"observation 2 of 'y' \(y = {value}\).*outside the support"):
        pmep.fit(model=model, **QUIET)


def test_below_zero_where_pymc_samples_a_logarithm():
    with pm.Model() as model:
        pm.Weibull("y", 1.5, pt.exp(latent()), observed=[1.0, 2.0, -1.5, 0.5, 1.0])
    with pytest.raises(pmep.InvalidDataError, match=r"'y' has the value -1\.5 at index 2, .* from 0 upwards\. Correct"):
        pmep.fit(model=model, **QUIET)


@pytest.mark.filterwarnings("ignore:Data in y contains missing values", "ignore:invalid value encountered in cast")
@pytest.mark.filterwarnings("ignore:.*mpute")
def test_missing_values_that_pymc_would_impute():
    """PyMC makes a variable of its own of NaN among constant observations: it informs nothing, and is named."""
    observed = np.array([2.0, np.nan, 1.0, 3.0, 1.0])
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(latent()), observed=observed)
    with pm.Model() as complete:
        pm.Poisson("y", pt.exp(latent()[[0, 2, 3, 4]]), observed=observed[[0, 2, 3, 4]].astype(int))
    assert "y_unobserved" in pmep.explain(model)
    found, wanted = fitted(model), fitted(complete)
    np.testing.assert_allclose(found["posterior_mean"]["f"], wanted["posterior_mean"]["f"], rtol=1e-7)
    np.testing.assert_allclose(found["posterior_sd"]["f"], wanted["posterior_sd"]["f"], rtol=1e-7)
    np.testing.assert_allclose(found["fit"]["log_evidence"], wanted["fit"]["log_evidence"], rtol=1e-7)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: pm.Normal("a", 0.0, -1.0), r"prior of 'a', normal.*sigma > 0 does not hold"),
        (lambda: pm.HalfStudentT("a", 4, np.nan), r"prior of 'a', halfstudentt.*sigma > 0.*does not hold"),
        (lambda: pm.Gamma("a", np.array([1.0, -1.0]), 1.0, shape=2)[0], r"prior of 'a', gamma.*alpha > 0.*does not"),
    ],
)
def test_parameters_of_a_prior_outside_their_range(write, message):
    """PyMC's log density raises; the square of a negative standard deviation does not."""
    with pm.Model() as model:
        pm.Normal("y", latent() + write(), 1.0, observed=np.zeros(N))
    for call in (lambda: pmep.explain(model), lambda: pmep.fit(model=model, **QUIET)):
        with pytest.raises(pmep.InvalidDataError, match=message):
            call()


def test_parameters_of_a_likelihood_outside_their_range():
    with pm.Model() as model:
        pm.Normal("y", latent(), np.array([1.0, 0.5, -1.0, 1.0, 1.0]), observed=np.zeros(N))
    with pytest.raises((pmep.InvalidDataError, pmep.NumericalError), match=r"'y'.*sigma.*-1.*index 2"):
        pmep.fit(model=model, **QUIET)


# Shapes


@pytest.mark.parametrize("length", [2, 7])
def test_wrong_length(length):
    with pm.Model() as model:
        counts = pm.Data("counts", COUNTS)
        pm.Poisson("y", pt.exp(latent()), observed=counts)
        pm.set_data({"counts": np.ones(length, dtype=int)})
    with pytest.raises(pmep.InvalidDataError, match=rf"'y'.*{length}"):
        pmep.fit(model=model, **QUIET)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": [2.0]}, r"'y' have shape \(5,\).*\(1,\) and \(5,\) meet.*'x' has shape \(1,\)"),
        ({"sd": [2.0]}, r"'y' have shape \(5,\).*beside the predictor has shape \(1,\).*'sd' has shape \(1,\)"),
        ({"g": [0, 1, 1]}, r"\(5,\) and \(3,\) meet.*'g' has shape \(3,\), 'obs' has shape \(5,\)"),
        ({"x": [1.0, 2.0], "g": [0, 1]}, r"'y' have shape \(5,\), and its predictor has shape \(2,\)"),
        ({"obs": [1.0]}, r"'y' have shape \(1,\), and its predictor has shape \(5,\).*set_data"),
        ({"n": [5, 5]}, r"'z' have shape \(5,\).*beside the predictor has shape \(2,\).*'n' has shape \(2,\)"),
        ({"x": [1.0, 2.0], "g": [0, 1], "sd": [1.0, 1.0], "n": [3, 3]}, r"'y' have shape \(5,\).*'obs' has shape"),
        ({"obs": []}, "'y' has no observations; pass at least one"),
    ],
    ids=str,
)
def test_shared_data_of_other_lengths(changed, message):
    """Named before anything is computed; PyTensor does not broadcast data that happen to have the length 1."""
    with pm.Model() as model:
        x, g = pm.Data("x", X.ravel()), pm.Data("g", [0, 0, 1, 1, 2])
        sd, n = pm.Data("sd", np.ones(N)), pm.Data("n", np.full(N, 5))
        eta = pm.Normal("a") + pm.Normal("b") * x + pm.Normal("u", 0.0, pm.HalfNormal("s"), shape=3)[g]
        pm.Normal("y", eta, sd, observed=pm.Data("obs", X.ravel()))
        pm.Binomial("z", n, logit_p=pm.Normal("c") + pm.Normal("d", shape=N), observed=COUNTS)
        pm.set_data({name: np.array(values, dtype=model[name].dtype) for name, values in changed.items()})
    for call in (pmep.fit, pmep.explain, pmep.marginalize):
        with pytest.raises(pmep.InvalidDataError, match=message):
            call(model=model)


def test_every_value_missing():
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)
        pm.Normal("y", pm.Normal("a"), pm.HalfNormal("s"), observed=np.full(N, np.nan))
    with pytest.raises(pmep.InvalidDataError, match=r"All values of 'y' are missing; observe at least one"):
        pmep.fit(model=model, **QUIET)


def test_data_of_another_length_with_an_old_start():
    with pm.Model() as model:
        x = pm.Data("x", X.ravel())
        counts = pm.Data("counts", COUNTS)
        a, b = pm.Normal("a"), pm.Normal("b", 0.0, pm.HalfNormal("s"))
        pm.Poisson("y", pt.exp(a + b * x), observed=counts)
        old = pmep.fit(hyper="fixed", **QUIET)
        pm.set_data({"x": [1.0, 2.0, 3.0], "counts": [1, 1, 5]})
    with pytest.raises(ValueError, match=r"5 sites.*3 observations.*dict"):
        pmep.fit(model=model, start=old, hyper="fixed", **QUIET)
    assert fitted(model, hyper="fixed", start={"s": 0.7})["fit"]["y_loo"].shape == (3,)


def test_no_observations():
    with pm.Model() as model:
        counts = pm.Data("counts", COUNTS[:0])
        x = pm.Data("x", X.ravel()[:0])
        pm.Poisson("y", pt.exp(pm.Normal("a") + pm.Normal("b", 0.0, pm.HalfNormal("s")) * x), observed=counts)
    with pytest.raises(pmep.InvalidDataError, match=r"'y' has no observations"):
        pmep.fit(model=model, **QUIET)


# Covariances


def test_covariance_that_is_not_positive_definite():
    covariance = np.eye(N)
    covariance[0, 1] = covariance[1, 0] = 2.0
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), covariance)
        pm.Poisson("y", pt.exp(f), observed=COUNTS)
    with pytest.raises(pmep.NumericalError, match=r"(?s)'f'|predictor.*not positive"):
        pmep.fit(model=model, **QUIET)


@pytest.mark.parametrize("prior", [lambda: pm.Normal("b", 0.0, 1.0, shape=2), lambda: pm.Flat("b", shape=2)])
def test_nan_in_a_design(prior):
    design = np.column_stack([np.ones(N), X])
    design[3, 1] = np.nan
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(design @ prior()), observed=COUNTS)
    with pytest.raises(
        pmep.NumericalError, match=r"effect of 'b' on the predictor of observation 3 of 'y' is nan.*Check"
    ):
        pmep.fit(model=model, **QUIET)


def test_nan_in_an_offset():
    offset = np.array([0.0, np.nan, 0.0, 1.0, 2.0])
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(latent() + offset), observed=COUNTS)
    with pytest.raises(pmep.NumericalError, match=r"prior mean.*observation 1 of 'y' is nan.*offsets"):
        pmep.fit(model=model, **QUIET)


def test_index_out_of_range():
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(latent(3)[np.array([0, 1, 2, 3, 0])]), observed=COUNTS)
    with pytest.raises(pmep.InvalidDataError, match=r"'f' out of range: index 3 .*size 3.*shape or dims"):
        pmep.fit(model=model, **QUIET)


def test_group_without_observations():
    """Its effect keeps its prior."""
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(latent(4)[np.array([0, 1, 3, 3, 0])]), observed=COUNTS)
    idata = fitted(model)
    np.testing.assert_allclose([idata["posterior_mean"]["f"][2], idata["posterior_sd"]["f"][2]], [0.5, 1.0], rtol=1e-12)


def test_separated_classes_under_a_proper_prior():
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 10.0, shape=2)
        pm.Bernoulli("y", logit_p=b[0] + b[1] * (X[:, 0] - 1.1), observed=X[:, 0] > 1.1)
    assert bool(fitted(model)["fit"]["converged"])


def test_a_covariance_of_hyperparameters_that_is_not_symmetric():
    """At the initial correlation of zero it would be symmetric, as the factor of a correlation matrix is."""
    with pm.Model() as model:
        r = pm.Uniform("r", -0.9, 0.9)
        f = pm.MvNormal("f", np.zeros(2), pt.stack([1.0, 0.0, r, 1.0]).reshape((2, 2)))
        pm.Normal("y", f, 1.0, observed=[0.3, -0.2])
    with pytest.raises(
        pmep.InvalidDataError, match=r"covariance matrix of 'f'.*\(0, 1\).*near the initial values.*chol="
    ):
        pmep.explain(model)


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda w: pm.CAR("f", np.zeros(N), w, alpha=pm.Uniform("a", 0, 4), tau=1.0),
            "InvalidDataError",
            "alpha = 2 at",
        ),
        (lambda w: pm.CAR("f", np.zeros(N), w[::-1], alpha=0.5, tau=1.0), "InvalidDataError", "needs a symmetric W"),
        (lambda w: pm.CAR("f", np.zeros(N), 0 * w, alpha=0.5, tau=1.0), "UnsupportedModelError", "no neighbour"),
    ],
    ids=["alpha", "order", "islands"],
)
def test_an_autoregression_is_refused_before_its_initial_value_is_drawn(write, error, message):
    with pm.Model() as model:
        f = write(np.eye(N, k=1) + np.eye(N, k=-1) + np.diag([1.0, 0, 0, 0, 0]))
        pm.Poisson("y", pt.exp(f + pm.Normal("m", 0.0, 1.0)), observed=COUNTS)
    with pytest.raises(getattr(pmep, error), match=rf"'f'.*{message}"):
        pmep.explain(model)


LINE = np.eye(N, k=1) + np.eye(N, k=-1)
"""Areas in a row."""


def with_weight(value, *, opposite=True):
    weights = LINE.copy()
    weights[1, 2] = value
    if opposite:
        weights[2, 1] = value
    return weights


def ends(weights):
    """Return weights without the first area's neighbour: an island."""
    weights = weights.copy()
    weights[0] = weights[:, 0] = 0
    return weights


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: pm.CAR("f", np.zeros(N), with_weight(-0.5), 0.5, 1.0, dims="area"), "-0.5.*'B'.*'C'.*correct it"),
        (lambda: pm.CAR("f", np.zeros(N), with_weight(np.nan), 0.5, 1.0, dims="area"), "nan.*'B'.*'C'.*correct it"),
        (lambda: pm.CAR("f", np.zeros(N), with_weight(3.0, opposite=False), 0.5, 1.0, dims="area"), "'B'.*'C'.*W.T"),
        (lambda: pm.CAR("f", np.zeros(N), ends(LINE), 0.5, 1.0, dims="area"), "area 'A' .index 0. has no neighbour"),
        (lambda: pm.ICAR("f", ends(LINE), dims="area"), "area 'A' .index 0. is not connected to area 'B'.*Join them"),
        (lambda: pm.ICAR("f", LINE, sigma=0.0, dims="area"), "sigma > 0 does not hold for 0"),
        (
            lambda: pm.GaussianRandomWalk("f", sigma=[1, 0, 1, 1], init_dist=pm.Normal.dist(), dims="area"),
            "steps.*0.* at index 1",
        ),
        (
            lambda: pm.GaussianRandomWalk("f", sigma=1, init_dist=pm.Normal.dist(0, 0), steps=N - 1),
            "of its first value",
        ),
        (lambda: pm.AR("f", [0.5], sigma=-1.0, init_dist=pm.Normal.dist(), shape=N), "sigma > 0 of its steps.*-1"),
        (
            lambda: pm.MvNormal("f", np.zeros(2), [np.eye(2), [[1, 2], [2, 1]]], dims=("row", "column"))[
                [0, 0, 1, 1, 0], 0
            ],
            "at 'low' .index 1. is not positive definite .*-1 to 3",
        ),
    ],
    ids=["negative", "nan", "asymmetric", "island", "icar", "icar sd", "step", "start", "autoregression", "stack"],
)
def test_fields_that_are_none_are_named_by_their_labels(write, message):
    with pm.Model(coords={"area": list("ABCDE"), "row": ["high", "low"], "column": ["a", "b"]}) as model:
        pm.Poisson("y", pt.exp(write()), observed=COUNTS)
    with pytest.raises(
        (pmep.InvalidDataError, pmep.NumericalError, pmep.UnsupportedModelError), match=rf"'f'.*{message}"
    ):
        pmep.explain(model)


def test_covariance_with_nan():
    covariance = np.eye(N)
    covariance[2, 3] = covariance[3, 2] = np.nan
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), covariance)
        pm.Poisson("y", pt.exp(f), observed=COUNTS)
    with pytest.raises(pmep.NumericalError, match=r"covariance.*nan.*\(2, 3\)"):
        pmep.fit(model=model, **QUIET)


@pytest.mark.parametrize("reparameterize", [True, False])
def test_identical_inputs(reparameterize):
    """Each input twice: the same as one latent value seen through two counts."""
    twice = np.repeat(X, 2, axis=0)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 0.7))
        f = gp.prior("f", X=twice, reparameterize=reparameterize)
        pm.Poisson("y", pt.exp(f), observed=np.repeat(COUNTS, 2))
    with pm.Model() as shared:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 0.7))
        f = gp.prior("f", X=X)
        # Told apart, as they are by PyMC's jitter: two counts of one predictor have one site.
        pm.Poisson("y", pt.exp(f[np.repeat(np.arange(N), 2)] + 1e-9 * np.arange(2 * N)), observed=np.repeat(COUNTS, 2))
    first, second = fitted(model), fitted(shared)
    # PyMC's jitter of 1e-6 differs between the two.
    np.testing.assert_allclose(first["posterior_mean"]["f"], np.repeat(second["posterior_mean"]["f"], 2), atol=1e-4)
    np.testing.assert_allclose(first["posterior_sd"]["f"], np.repeat(second["posterior_sd"]["f"], 2), rtol=1e-3)
    np.testing.assert_allclose(first["fit"]["log_evidence"], second["fit"]["log_evidence"], atol=1e-4)


SECONDS = 1.58e9 + 86400.0 * np.arange(40)


def latent_process(x):
    process = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, pm.InverseGamma("ell", 3, 3)))
    pm.Normal("y", process.prior("f", X=x[:, None]), 0.5, observed=np.sin(np.arange(len(x))))


def centred_process(x):
    process = pm.gp.Latent(cov_func=2.0 * pm.gp.cov.ExpQuad(1, 1.0))
    pm.Normal("y", process.prior("f", X=x[:, None], reparameterize=False), 0.5, observed=np.sin(np.arange(len(x))))


def marginal_process(x):
    process = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, 1.0) + pm.gp.cov.Constant(2.0))
    process.marginal_likelihood("f", X=x[:, None], y=np.sin(np.arange(len(x))), sigma=pm.HalfNormal("s", 1.0))


@pytest.mark.parametrize("write", [latent_process, centred_process, marginal_process])
def test_inputs_of_a_process_far_from_zero(write):
    """Days in seconds: the squared distance of a day to itself is off by eps x^2, hundreds of squared lengthscales."""
    with pm.Model() as model:
        write(SECONDS)
    with pytest.raises(
        pmep.InvalidDataError, match=r"function of 'f' has inputs X .*lengthscales from zero.*Centre and"
    ):
        pmep.fit(model=model, **QUIET)


def test_a_lengthscale_of_zero():
    with pm.Model() as model:
        process = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, np.zeros(1)))
        with np.errstate(divide="ignore"):
            pm.Normal("y", process.prior("f", X=X + 1.0), 1.0, observed=COUNTS)
    with pytest.raises(pmep.InvalidDataError, match=r"of 'f' has inputs that are infinite.*lengthscale above zero"):
        pmep.fit(model=model, **QUIET)


def test_inputs_of_a_process_that_are_not_centred():
    """Rounding of 2e-6 in squared distances exceeds PyMC's jitter of 1e-6: centred, the same inputs are fitted."""
    x = np.linspace(0.0, 1.0, 40)
    with pm.Model() as model:
        centred_process(1e5 + x)
    with pytest.raises(pmep.NumericalError, match=r"Centre and scale the inputs X.*lose digits\.") as caught:
        pmep.fit(model=model, **QUIET)
    assert "identity" not in str(caught.value)
    with pm.Model() as model:
        centred_process(x)
    fitted(model)


def test_singular_covariance_without_jitter():
    base = np.exp(-0.5 * (X - X.T) ** 2 / 0.49)
    twice = np.kron(base, np.ones((2, 2)))
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(2 * N), twice)
        pm.Normal("y", f, 0.5, observed=np.repeat([0.3, 1.0, -0.2, 0.1, 0.5], 2))
    result = pmep.fit(model=model, draws=200, chains=1, random_seed=1, progressbar=False)
    fit = fit_group(result)
    total = twice + 0.25 * np.eye(2 * N)
    y = np.repeat([0.3, 1.0, -0.2, 0.1, 0.5], 2)
    np.testing.assert_allclose(result["posterior_mean"]["f"], twice @ np.linalg.solve(total, y), atol=1e-8)
    np.testing.assert_allclose(
        fit["log_evidence"], scipy.stats.multivariate_normal.logpdf(y, np.zeros(2 * N), total), rtol=1e-8
    )
    draws = result["posterior"]["f"].values[0]
    np.testing.assert_allclose(draws[:, ::2], draws[:, 1::2], atol=1e-6)


# Extreme but right


def test_one_observation():
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(pm.Normal("a", 0.3, 1.2)), observed=[4])
    idata = fitted(model)
    f = np.linspace(-12.0, 12.0, 200_001)
    mass = scipy.stats.norm.pdf(f, 0.3, 1.2) * scipy.stats.poisson.pmf(4, np.exp(f)) * (f[1] - f[0])
    np.testing.assert_allclose(idata["fit"]["log_evidence"], np.log(mass.sum()), atol=1e-8)
    np.testing.assert_allclose(idata["posterior_mean"]["a"], (mass @ f) / mass.sum(), atol=1e-8)
    np.testing.assert_allclose(idata["fit"]["y_loo"], [np.log(mass.sum())], atol=1e-8)


@pytest.mark.parametrize("link", ["exp", "softplus", "rectified"])
def test_nothing_but_zeros(link):
    with pm.Model() as model:
        ell = pm.InverseGamma("ell", mu=1.0, sigma=0.5)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ell)).prior("f", X=X)
        zeros = np.zeros(N, dtype=int)
        if link == "exp":
            pm.Poisson("y", pt.exp(f), observed=zeros)
        elif link == "softplus":
            pmep.SoftplusPoisson("y", f, observed=zeros)
        else:
            pmep.RectifiedPoisson("y", f, observed=zeros)
    idata = fitted(model)
    assert bool(idata["fit"]["converged"])
    assert np.all(idata["posterior_mean"]["f"] < 0)


@pytest.mark.parametrize("spread", [1.0, 10.0])
@pytest.mark.parametrize("link", ["exp", "softplus", "rectified"])
def test_counts_of_a_million(link, spread):
    """Only the level of a predictor is unknown: the posterior of its rate is that of a Gamma variable."""
    counts = np.full(4, 1_000_000)
    with pm.Model() as model:
        if link == "exp":
            a = pm.Normal("a", 10.0, spread)
            pm.Poisson("y", pt.exp(a * np.ones(4)), observed=counts)
        else:
            a = pm.Normal("a", 0.0, spread * 1e6)
            kind = pmep.SoftplusPoisson if link == "softplus" else pmep.RectifiedPoisson
            kind("y", a * np.ones(4), observed=counts)
    idata = fitted(model)
    assert bool(idata["fit"]["converged"])
    rate = np.exp(idata["posterior_mean"]["a"]) if link == "exp" else idata["posterior_mean"]["a"]
    sd = idata["posterior_sd"]["a"] if link == "exp" else idata["posterior_sd"]["a"] / 1e6
    np.testing.assert_allclose(rate, 1e6, rtol=1e-5)
    np.testing.assert_allclose(sd, 1 / np.sqrt(4e6), rtol=1e-3)


# Options


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        pm.Poisson("y", pt.exp(s * latent()), observed=COUNTS)
    return model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "mcmc"}, r"'mcmc'.*'ep'"),
        ({"hyper": "guess"}, r"'guess'.*'optimize'.*'fixed'"),
        ({"powr": 1.0}, r"'powr'.*power, damping, tol"),
        ({"power": 0.0}, r"power=0\.0.*\(0, 1\]"),
        ({"power": "1"}, r"power='1'"),
        ({"damping": 2.0}, r"damping=2\.0"),
        ({"tol": 0.0}, r"tol=0\.0"),
        ({"max_iter": 0}, r"max_iter=0"),
        ({"schedule": "random"}, r"'random'.*'parallel'.*'sequential'"),
        ({"draws": -1}, r"draws=-1"),
        ({"chains": 0}, r"chains=0"),
        ({"start": {"q": 1.0}}, r"'q'.*not a hyperparameter.*s"),
        ({"start": {"s": -1.0}}, r"'s'.*-1"),
        ({"start": {"s": [1.0, 2.0]}}, r"'s'.*shape"),
        ({"latent": ["g"]}, r"'g'"),
    ],
    ids=str,
)
def test_unknown_options(model, options, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        pmep.fit(model=model, **(QUIET | options))


def test_start_that_is_no_result(model):
    stranger = make_container({"posterior": xr.Dataset({"s": (("chain", "draw"), np.ones((1, 2)))})})
    with pytest.raises(ValueError, match=r"fit_state.*pymc_ep"):
        pmep.fit(model=model, start=stranger, **QUIET)


def test_outside_a_model():
    with pytest.raises(TypeError, match="model"):
        pmep.fit(**QUIET)


def test_hyperparameters_without_density_at_the_start():
    """A GP so flat that its covariance overflows is a number's failure, not a silent one."""
    with pm.Model() as model:
        scale = pm.Flat("scale", initval=400.0)
        f = pm.Normal("f", 0.0, pt.exp(scale), shape=N)
        pm.Poisson("y", pt.exp(f), observed=COUNTS)
    with pytest.raises(pmep.NumericalError, match=r"covariance.*inf.*scale"):
        pmep.fit(model=model, **QUIET)


@pytest.mark.parametrize("intercept", [-3.2, -3.1, -3.0, -2.0])
def test_a_predictor_without_digits_is_right_or_ends_in_a_warning(intercept):
    """Prior deviations of 2e11 and a site of nearly none: what is left without it is lost in double precision.

    Whether rounding leaves a cavity that is infinite, negative or merely wide depends on the processor. What holds on
    all is that a fit without a warning is right, here by quadrature.
    """
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 3e3), pm.Normal("b", 0.0, 1e5)
        pm.Beta("y", mu=pt.sigmoid(intercept + a + 2e6 * b), nu=0.1, observed=[1e-6])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", pmep.ConvergenceWarning)
        idata = fitted(model, hyper="fixed")
    told = [str(each.message) for each in caught if issubclass(each.category, pmep.ConvergenceWarning)]
    if told:
        assert any(re.search("improper|rounding|does not settle", message) for message in told), told
        return

    def moment(f, order):
        likelihood = scipy.stats.beta.pdf(1e-6, 0.1 * scipy.special.expit(f), 0.1 * scipy.special.expit(-f))
        return f**order * likelihood

    mass, first = (scipy.integrate.quad(moment, -40, 40, (k,), points=[0], limit=500)[0] for k in (0, 1))
    np.testing.assert_allclose(idata["fit"]["log_evidence"], np.log(mass / np.sqrt(2 * np.pi) / 2e11), atol=1e-6)
    np.testing.assert_allclose(idata["posterior_sd"]["a"], 3e3, rtol=1e-6)
    np.testing.assert_allclose(idata["posterior_sd"]["b"], 3e3 / 2e6, rtol=1e-4)
    np.testing.assert_allclose(idata["posterior_mean"]["b"], (first / mass - intercept) / 2e6, rtol=1e-4)
