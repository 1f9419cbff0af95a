"""What is no latent Gaussian model is refused, with the variable's name and a cure, never with PyTensor's own error."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_ep as pmep

COUNTS = np.array([0, 1, 3, 2])
REALS = np.array([0.2, -0.4, 1.0, 0.6])


def normal(name="f", **options):
    return pm.Normal(name, 0.0, 1.0, **{"shape": 4, **options})


def product():
    a, b = normal("a"), normal("b")
    pm.Poisson("y", pt.exp(a * b), observed=COUNTS)


def no_gaussian():
    pm.Poisson("y", pm.Gamma("rate", 1.0, 1.0, shape=4), observed=COUNTS)


def discrete():
    k = pm.Bernoulli("k", 0.5)
    pm.Poisson("y", pt.exp(normal() + k), observed=COUNTS)


def potential():
    f = normal()
    pm.Potential("penalty", -pt.dot(f, pt.dot(np.eye(4), f)))
    pm.Poisson("y", pt.exp(f), observed=COUNTS)


def nothing_observed():
    normal()


def dependent_values():
    pm.MvStudentT("y", nu=4, mu=normal(), scale=np.eye(4), observed=REALS)


def shared_counts():
    pm.DirichletMultinomial("y", 6, pt.exp(normal()), observed=COUNTS)


def running_sum():
    pm.Normal("y", pt.cumsum(pt.exp(normal())), 1.0, observed=REALS)


def running_product():
    pmep.RectifiedPoisson("y", pt.cumprod(normal()), observed=COUNTS)


def three_predictors():
    f, g = normal(), normal("g")
    pm.SkewNormal("y", mu=f + g, sigma=pt.exp(f - g), alpha=f, observed=REALS)


def mean_and_scale():
    pm.Normal("y", pm.Normal("f", 0.0, pt.exp(normal("g"))), 1.0, observed=REALS)


def separate_categories():
    rates = pm.math.exp(normal(shape=(4, 3)))
    pm.Categorical("y", p=rates[:, [0, 1, 1]] / 3.0, observed=np.array([0, 1, 2, 1]))


def many_categories():
    pm.Categorical("y", logit_p=normal(shape=(4, 16)), observed=np.array([0, 1, 2, 1]))


def two_counts():
    pm.Multinomial("y", n=3, p=pm.math.softmax(normal(shape=(2, 2)), axis=-1), observed=np.array([[1, 2], [3, 0]]))


def batches():
    rows, batch = pm.Minibatch(np.arange(4), REALS, batch_size=2)
    pm.Normal("y", normal()[rows], 1.0, observed=batch, total_size=4)


def named_axes():
    dims = pytest.importorskip("pymc.dims")
    pm.modelcontext(None).add_coord("k", range(4))
    dims.Normal("y", dims.Normal("f", 0, 1, dims=("k",)), 1.0, observed=dims.as_xtensor(REALS, dims=("k",)))


def mixture_of_means():
    pm.NormalMixture("y", [0.3, 0.7], mu=normal(shape=2), sigma=1.0, observed=REALS)


def sum_of_rates():
    pm.Poisson("y", pt.exp(normal("a")) + pt.exp(normal("b")), observed=COUNTS)


def heavy_latent():
    b = pm.StudentT("b", nu=3.0, mu=0.0, sigma=1.0, shape=4)
    pm.Poisson("y", pt.exp(b), observed=COUNTS)


def heavy_tails_between():
    f = normal()
    g = pm.StudentT("g", nu=3, mu=f, sigma=1.0)
    pm.Poisson("y", pt.exp(f + g), observed=COUNTS)


CASES = [
    (product, {}, r"'a', 'b'.*latent="),
    (no_gaussian, {}, r"no Gaussian latent variable.*'rate' is gamma.*Gaussian priors"),
    (discrete, {}, r"'k' is discrete"),
    (potential, {}, r"'penalty'.*no sum of log densities.*Dot.*pm\.ICAR.*latent=\["),
    (nothing_observed, {}, r"no observed variable.*observed="),
    (dependent_values, {}, r"'y'.*tudent.*depend on each other.*supported\(\)"),
    (shared_counts, {}, r"'y'.*[Dd]irichlet.?[Mm]ultinomial.*depend on each other"),
    (running_sum, {}, r"'y' is not affine.*Exp is applied to 'f' before CumOp.*not elementwise"),
    (running_product, {}, r"'y'.*CumOp.*not elementwise"),
    (three_predictors, {"latent": ["f", "g"]}, r"'y' has more than one predictor.*'f', 'g'"),
    (mean_and_scale, {"latent": ["f", "g"]}, r"latent= names 'g', which enters a scale"),
    (separate_categories, {}, r"categories of 'y'.*softmax.*OrderedLogistic"),
    (many_categories, {}, r"'y' has 16 categories.*15 at most.*Merge"),
    (two_counts, {}, r"'y' counts two categories.*pm.Binomial"),
    (batches, {}, r"'y' is observed in batches.*whole data"),
    (named_axes, {}, r"'f' is a variable of pymc.dims.*dims="),
    (mixture_of_means, {}, r"'y' is a Mixture of Normal with latent variables in several components.*pm.sample"),
    (sum_of_rates, {}, r"'a', 'b'.*Exp is applied to 'a'.*latent="),
    (heavy_latent, {}, r"no Gaussian latent variable.*'b' is t\..*Laplace ones.*with predictors that are affine"),
    (heavy_latent, {"latent": ["b"]}, r"'b', a t variable, not a Gaussian"),
    (heavy_tails_between, {}, r"no Gaussian latent variable.*'f' enters .*'g' is t"),
    (heavy_tails_between, {"latent": ["f"]}, r"'f'.*non-Gaussian variable"),
    (product, {"latent": ["a", "b"]}, r"'y'.*Mul.*'a', 'b'"),
    (product, {"latent": ["c"]}, r"'c'"),
    (product, {"latent": ["y"]}, r"'y', which is not a free random variable"),
]


@pytest.mark.parametrize(("write", "options", "message"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_refusals(write, options, message):
    with pm.Model() as model:
        write()
    with pytest.raises(pmep.UnsupportedModelError, match=f"(?s){message}"):
        pmep.fit(model=model, progressbar=False, **options)
    with pytest.raises(pmep.UnsupportedModelError, match=f"(?s){message}"):
        pmep.explain(model, **options)


def test_a_deterministic_that_is_made_of_no_gaussian():
    with pm.Model() as model:
        pm.Deterministic("d", 2 * pm.HalfNormal("s"))
        pm.Normal("y", normal(), model["d"], observed=REALS)
    with pytest.raises(pmep.UnsupportedModelError, match=r"Deterministic 'd'.*no Gaussian"):
        pmep.explain(model, latent=["d"])


def test_a_potential_of_hyperparameters_is_part_of_the_prior():
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1.0)
        pm.Potential("more", -3.0 * s)
        f = pm.Normal("f", 0.0, s, shape=4)
        pm.Normal("y", f, 0.5, observed=REALS)
    form = pmep.forms.compiled_form(model)
    for value in (0.4, 1.3):
        expected = 0.5 * np.log(2 / np.pi) - 0.5 * value**2 - 3.0 * value
        np.testing.assert_allclose(form.prior(np.log([value])).log_prior, expected)


def test_single_precision():
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as model:
        pm.Poisson("y", pt.exp(normal()), observed=COUNTS)
    with pytest.raises(pmep.UnsupportedModelError, match=r"'f' is in single precision.*floatX = 'float64'"):
        pmep.fit(model=model)


def test_a_model_whose_data_depend_on_nothing_free():
    with pm.Model() as model:
        pm.Deterministic("twice", 2 * pm.Normal("aside"))
        pm.Normal("y", 0.0, 1.0, observed=[1.0, 2.0])
    with pytest.raises(pmep.UnsupportedModelError, match="observed variables depend on no free random variable, so"):
        pmep.explain(model)


@pytest.mark.parametrize("distribution", [pm.ZeroInflatedPoisson, pm.HurdlePoisson])
def test_a_thousand_zeros_are_a_distribution(distribution):
    """A component with all of its mass at zero is an array of constants, but a random variable all the same."""
    with pm.Model() as model:
        distribution("y", 0.7, pt.exp(pm.Normal("f", 0.0, 1.0) * np.ones(1000)), observed=np.zeros(1000, dtype=int))
    assert "y: 1000 values" in pmep.explain(model)
