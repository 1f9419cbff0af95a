"""Parameters of any dtype mean what they mean in double precision.

PyTensor holds the number 16 in eight bits, where its square is 0: every Gaussian, every likelihood and every site of a
prior is asked for the same with integers and single precision as with doubles of the same values.
"""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.continuous import FlatRV

import pymc_ep as pmep
from pymc_ep.distributions.positive_counts import PositiveCounts
from pymc_ep.forms import forms
from pymc_ep.graphs.families import site_names
from pymc_ep.graphs.gaussian_variables import _READERS, gaussian_of
from pymc_ep.operators import Gradient2D

# Readers of the priors of a form come with it.
forms()

DTYPES = ("int8", "int16", "int64", "float32")
RING = np.array([[0, 1, 0, 0, 1], [1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 1, 0, 1], [1, 0, 0, 1, 0]])
MATRIX = np.array([[100, 16, 0], [16, 90, 12], [0, 12, 120]])

# Functions of what casts a parameter; the squares and products of these overflow eight bits.
GAUSSIANS = {
    "normal": lambda p: pm.Normal.dist(p(100), p(16)),
    "normal of arrays": lambda p: pm.Normal.dist(p([100, 20, 50]), p([12, 16, 100])),
    "sparse field": lambda p: pmep.SparseField.dist(
        operator=Gradient2D((3, 3)), potential=pm.Laplace.dist(0, p(100)), shape=(3, 3)
    ),
    "wavelet tree": lambda p: pmep.WaveletTree.dist(
        shape=(4, 4),
        levels=1,
        wavelet="haar",
        low=pm.Laplace.dist(0, p([1])),
        high=pm.Laplace.dist(0, p([100])),
        transition={"root": 0.5},
    ),
    "mv normal": lambda p: pm.MvNormal.dist(p([100, 20, 50]), p(MATRIX)),
    "mv normal rows": lambda p: pm.MvNormal.dist(p([100, 20, 50]), p(MATRIX), shape=(2, 3)),
    "mv normal precision": lambda p: pm.MvNormal.dist(p([100, 20, 50]), tau=p(MATRIX)),
    "matrix normal": lambda p: pm.MatrixNormal.dist(
        p([[100, 2, 3], [4, 50, 60]]), rowcov=p(MATRIX[:2, :2]), colcov=p(MATRIX)
    ),
    "gaussian markov": lambda p: pmep.GaussianMarkov.dist([(p(20), MATRIX), (p(3), np.eye(3, dtype=int))]),
    "random walk": lambda p: pm.GaussianRandomWalk.dist(
        p(100), p(20), init_dist=pm.Normal.dist(p(50), p(100)), steps=4
    ),
    "random walks": lambda p: pm.GaussianRandomWalk.dist(
        p([100, 2]), p([20, 16]), init_dist=pm.Normal.dist(p([50, 3]), p([100, 12])), shape=(2, 4)
    ),
    "random walk of vectors": lambda p: pm.MvGaussianRandomWalk.dist(
        p([100, 20, 50]), cov=p(MATRIX), init_dist=pm.MvNormal.dist(p([0, 0, 100]), p(MATRIX)), steps=3
    ),
    "autoregression": lambda p: pm.AR.dist(
        p([100, 2, 1]), p(16), constant=True, init_dist=pm.Normal.dist(p(50), p(100)), shape=(6,)
    ),
    "autoregressions": lambda p: pm.AR.dist(p([2]), p([16, 50]), init_dist=pm.Normal.dist(p(50), p(100)), shape=(2, 4)),
    "car": lambda p: pm.CAR.dist(p([100, 20, 50, 1, 2]), p(RING), alpha=0.5, tau=p(100)),
    "icar": lambda p: pm.ICAR.dist(p(RING).data, sigma=p(16), zero_sum_stdev=p(20)),
    "zero-sum normal": lambda p: pm.ZeroSumNormal.dist(sigma=p(16), shape=(4,)),
    "zero-sum normals": lambda p: pm.ZeroSumNormal.dist(sigma=p([[16], [100]]), shape=(2, 4)),
}

COUNTS = np.array([0, 100, 120])
REALS = np.array([-20.0, 15.0, 100.0])
POSITIVE = np.array([0.5, 20.0, 100.0])
SHARES = np.array([0.2, 0.45, 0.9])
BINARY = np.array([0, 1, 1])
CATEGORIES = np.array([0, 2, 1])

# Site, function of what casts and of the predictor, observations. Where the distribution has several parameters one
# is a scalar and another an array.
LIKELIHOODS = {
    "poisson": ("poisson", lambda p, f: pm.Poisson.dist(p([100, 50, 3]) * pt.exp(f)), COUNTS),
    "softplus_poisson": ("softplus_poisson", lambda p, f: pm.Poisson.dist(pt.softplus(p(100) * f)), COUNTS),
    "rectified_poisson": ("rectified_poisson", lambda p, f: pm.Poisson.dist(pt.maximum(p(100) * f, p(0))), COUNTS),
    "SoftplusPoisson": ("softplus_poisson", lambda p, f: pmep.SoftplusPoisson.dist(p(100) * f), COUNTS),
    "RectifiedPoisson": ("rectified_poisson", lambda p, f: pmep.RectifiedPoisson.dist(p([100, 50, 3]) + f), COUNTS),
    "logit": ("logit", lambda p, f: pm.Bernoulli.dist(logit_p=p([1, 0, 2]) + f), BINARY),
    "probit": ("probit", lambda p, f: pm.Bernoulli.dist(pm.math.invprobit(p(1) + f)), BINARY),
    "cloglog": ("cloglog", lambda p, f: pm.Bernoulli.dist(1 - pt.exp(-pt.exp(p(1) + f))), BINARY),
    "categorical": (
        "categorical",
        lambda p, f: pm.Categorical.dist(logit_p=pt.stack([p(1) + 0 * f, f, p(2) * f, f - p(1)], axis=-1)),
        COUNTS % 4,
    ),
    "multinomial": (
        "multinomial",
        lambda p, f: pm.Multinomial.dist(3, pm.math.softmax(pt.stack([0 * f, f, p(2) * f], axis=-1), axis=-1)),
        np.stack([COUNTS % 3, np.ones_like(COUNTS), 2 - COUNTS % 3], axis=-1),
    ),
    "binomial_logit": ("binomial_logit", lambda p, f: pm.Binomial.dist(p(127), logit_p=f), COUNTS),
    "binomial_probit": (
        "binomial_probit",
        lambda p, f: pm.Binomial.dist(p([127, 120, 125]), pm.math.invprobit(f)),
        COUNTS,
    ),
    "binomial_cloglog": ("binomial_cloglog", lambda p, f: pm.Binomial.dist(p(127), 1 - pt.exp(-pt.exp(f))), COUNTS),
    "negative_binomial": (
        "negative_binomial",
        lambda p, f: pm.NegativeBinomial.dist(mu=p(100) * pt.exp(f), alpha=p([20, 100, 16])),
        COUNTS,
    ),
    "exponential": ("exponential", lambda p, f: pm.Exponential.dist(scale=p(100) * pt.exp(f)), POSITIVE),
    "gamma": ("gamma", lambda p, f: pm.Gamma.dist(alpha=p([16, 100, 2]), beta=p(3) * pt.exp(f)), POSITIVE),
    "beta": ("beta", lambda p, f: pm.Beta.dist(mu=pt.sigmoid(f), nu=p([16, 100, 2])), SHARES),
    "normal": ("normal", lambda p, f: pm.Normal.dist(p(100) + f, p([16, 100, 12])), REALS),
    "normal of a precision": ("normal", lambda p, f: pm.Normal.dist(f, tau=p(100)), REALS),
    "laplace": ("laplace", lambda p, f: pm.Laplace.dist(p([100, 2, 1]) + f, p(16)), REALS),
    "student_t": ("student_t", lambda p, f: pm.StudentT.dist(nu=p([127, 100, 4]), mu=f, sigma=p(16)), REALS),
    "ordered_logit": ("ordered_logit", lambda p, f: pm.OrderedLogistic.dist(eta=f, cutpoints=p([-1, 2])), CATEGORIES),
    "ordered_probit": (
        "ordered_probit",
        lambda p, f: pm.OrderedProbit.dist(eta=f, cutpoints=p([-20, 20]), sigma=p(16)),
        CATEGORIES,
    ),
    "censored": (
        "generic",
        lambda p, f: pm.Censored.dist(pm.Normal.dist(f, p(16)), lower=p(-20), upper=p([100, 100, 100])),
        REALS,
    ),
    "truncated": (
        "generic",
        lambda p, f: pm.Truncated.dist(pm.StudentT.dist(nu=p(127), mu=f, sigma=p([16, 50, 100])), lower=p(-100)),
        REALS,
    ),
    "truncated counts": (
        "generic",
        lambda p, f: pm.Truncated.dist(pm.Poisson.dist(p(100) * pt.exp(f)), lower=p(1), upper=p(127)),
        COUNTS[1:].repeat(2)[:3],
    ),
    "scale": ("generic", lambda p, f: pm.StudentT.dist(nu=p(127), mu=p([1, 2, 100]), sigma=p(16) * pt.exp(f)), REALS),
    "zero-inflated": (
        "generic",
        lambda p, f: pm.ZeroInflatedBinomial.dist(psi=0.5, n=p(127), p=pt.sigmoid(f)),
        COUNTS,
    ),
    "beta-binomial": (
        "generic",
        lambda p, f: pm.BetaBinomial.dist(alpha=p(100) * pt.exp(f), beta=p([16, 100, 12]), n=p(127)),
        COUNTS,
    ),
    "skew normal": ("generic", lambda p, f: pm.SkewNormal.dist(mu=f, sigma=p(16), alpha=p([2, 12, 100])), REALS),
    "asymmetric_laplace": (
        "asymmetric_laplace",
        lambda p, f: pm.AsymmetricLaplace.dist(kappa=p(2), mu=f, b=p([1, 2, 3])),
        REALS,
    ),
    "weibull": ("generic", lambda p, f: pm.Weibull.dist(alpha=p([2, 16, 1]), beta=p(100) * pt.exp(f)), POSITIVE),
}

PICTURE = np.add.outer(np.arange(4.0), np.arange(4.0)) * 20
CELLS = {"rows": np.array([0, 0, 1, 1, 2, 2]), "cols": np.array([0, 1, 0, 1, 0, 1])}


def sparse_field(p):
    u = pmep.SparseField("u", operator=Gradient2D((4, 4)), potential=pm.StudentT.dist(nu=p(3), sigma=p(16)))
    pm.Normal("y", u, p(16), observed=PICTURE)


def wavelet_tree(p):
    low, high = pm.Laplace.dist(0, p([1])), pm.Laplace.dist(0, p([100]))
    u = pmep.WaveletTree("u", shape=(4, 4), levels=1, wavelet="haar", low=low, high=high)
    pm.Normal("y", u, p(16), observed=PICTURE)


def field_beside_a_level(p):
    level = pm.Normal("level", p(0), p(100))
    u = pmep.SparseField("u", operator=Gradient2D((4, 4)), potential=pm.Laplace.dist(0, p(16)))
    pm.Normal("y", u[0] + level, p(16), observed=PICTURE[0])


def bilinear(p):
    V = pm.Normal("V", p(0), p(12), shape=(3, 2))
    U = pm.Normal("U", p([1, 0]), p([2, 16]), shape=(2, 2))
    pm.Normal("y", (V[CELLS["rows"]] * U[CELLS["cols"]]).sum(-1) + p(100), p(16), observed=100 + 3.0 * np.arange(6))


def bilinear_counts(p):
    V, U = pm.Normal("V", p(0), p(1), shape=(3, 2)), pm.Normal("U", p(0), p(1), shape=(2, 2))
    b = pm.Normal("b", p(0), p(12), shape=3)
    pmep.BilinearPoisson("y", V, U, *CELLS.values(), offset=b[CELLS["rows"]] + p(2), observed=np.arange(6))


def positive_counts(p):
    V, U = pm.Normal("V", p(0), p(1), shape=(3, 2)), pm.Normal("U", p(0), p(1), shape=(2, 2))
    rate = pt.exp((V[CELLS["rows"]] * U[CELLS["cols"]]).sum(-1) + p(2))
    PositiveCounts("y", pm.Poisson.dist(rate), observed=np.arange(1, 7))


def non_centred(p):
    z = pm.Normal("z", p(0), p(1), shape=3)
    pm.Normal("y", p([100, 20, 50]) + p(16) * (np.linalg.cholesky(MATRIX) @ z), p(12), observed=REALS)


def process(p):
    """With inputs whose differences overflow eight bits."""
    covariance = pm.gp.cov.ExpQuad(1, pm.HalfNormal("ell", p(50)))
    f = pm.gp.Latent(cov_func=covariance).prior("f", X=p([[-100], [-20], [100]]).data)
    pm.Normal("y", f, p(1), observed=REALS)


MODELS = (
    sparse_field,
    wavelet_tree,
    field_beside_a_level,
    bilinear,
    bilinear_counts,
    positive_counts,
    non_centred,
    process,
)


def caster(dtype):
    # A number given as it is would be held in the smallest dtype, whatever the caller wrote.
    return lambda x: pt.constant(np.asarray(x, dtype=dtype))


def test_all_are_walked():
    walked = {type(make(caster("float64")).owner.op) for make in GAUSSIANS.values()}
    assert {t for t in _READERS if not any(issubclass(w, t) for w in walked)} == {FlatRV}
    sites = {site for _, _, site in site_names()}
    assert sites - {site for site, _, _ in LIKELIHOODS.values()} == {"quadrature of its log density"}


def gaussian_arrays(make, dtype):
    rv = make(caster(dtype))
    shape = tuple(pytensor.function([], rv.shape, mode="FAST_COMPILE")()) if rv.ndim else ()
    gaussian = gaussian_of(rv)
    graphs = [gaussian.covariance(shape), gaussian.root(shape)]
    graphs += [] if gaussian.mean is None else [pt.broadcast_to(gaussian.mean(shape), shape)]
    graphs += [] if gaussian.log_excess is None else [gaussian.log_excess(shape)]
    return [np.asarray(v, dtype=float) for v in pytensor.function([], graphs, mode="FAST_COMPILE")()]


@pytest.mark.filterwarnings("ignore:.*linalg.trace.*:FutureWarning")
@pytest.mark.parametrize("name", GAUSSIANS)
def test_gaussians(name):
    expected = gaussian_arrays(GAUSSIANS[name], "float64")
    for dtype in DTYPES:
        for found, wanted in zip(gaussian_arrays(GAUSSIANS[name], dtype), expected, strict=True):
            # PyMC itself factors or inverts these matrices, in single precision.
            tolerance = 1e-6 if name in ("mv normal precision", "matrix normal") else 1e-12
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


def test_numbers_as_they_are_written():
    """A level under a wide prior and a random walk, in closed form."""
    y = np.array([30.0, -12.0, 55.0])
    with pm.Model() as model:
        level = pm.Normal("level", 0, 16)
        walk = pm.GaussianRandomWalk("walk", sigma=20, init_dist=pm.Normal.dist(0, 100), steps=2)
        pm.Normal("y", level + walk, 12, observed=y)
    result = pmep.fit(model=model, draws=0, progressbar=False)
    mean, sd = result["posterior_mean"], result["posterior_sd"]
    sums = np.tril(np.ones((3, 3)))
    walk = sums @ np.diag([100.0**2, 20.0**2, 20.0**2]) @ sums.T
    of_y = 16.0**2 + walk + 12.0**2 * np.eye(3)
    np.testing.assert_allclose(mean["walk"], walk @ np.linalg.solve(of_y, y), rtol=1e-8)
    np.testing.assert_allclose(mean["level"], 16.0**2 * np.linalg.solve(of_y, y).sum(), rtol=1e-8)
    np.testing.assert_allclose(sd["level"] ** 2, 16.0**2 - 16.0**4 * np.linalg.inv(of_y).sum(), rtol=1e-8)
    log_evidence = -0.5 * (y @ np.linalg.solve(of_y, y) + np.linalg.slogdet(2 * np.pi * of_y)[1])
    np.testing.assert_allclose(result["fit"]["log_evidence"], log_evidence, rtol=1e-8)


def fitted(write, dtype):
    with pm.Model() as model:
        write(caster(dtype))
    result = pmep.fit(model=model, hyper="optimize", draws=0, progressbar=False)
    groups = {what: result[what] for what in ("posterior_mean", "posterior_sd")}
    moments = {(what, name): v.to_numpy() for what, found in groups.items() for name, v in found.data_vars.items()}
    return moments | {"log_evidence": result["fit"]["log_evidence"].to_numpy()}


def agrees(write):
    expected = fitted(write, "float64")
    assert all(np.isfinite(v).all() for v in expected.values())
    for dtype in DTYPES:
        found = fitted(write, dtype)
        assert found.keys() == expected.keys()
        for name, wanted in expected.items():
            # PyMC takes logarithms of single-precision numbers, and of small integers, in single precision.
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6, err_msg=f"{name} {dtype}")


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods(name):
    _, write, y = LIKELIHOODS[name]

    def model(p):
        f = pm.Normal("f", p(0), p(2), shape=len(y))
        pm.modelcontext(None).register_rv(write(p, f), "y", observed=y)

    agrees(model)


@pytest.mark.parametrize("write", MODELS, ids=lambda write: write.__name__)
def test_models(write):
    agrees(write)
