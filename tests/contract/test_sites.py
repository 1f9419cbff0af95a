"""Contract of every registered site: its moments against 50-digit tables, its derivatives, its log density."""

import csv
import math
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.sites import Tilted, check_finite, compile_site, get_site, register_site, sites
from pymc_ep.sites.moments import tilted_moments

REFERENCE = Path(__file__).parents[1] / "reference"
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""For a program of which only its tracing is in question; that it is right when optimised is tested by its mode."""
CASES = [(name, {}) for name in sorted(sites())] + [("rectified_poisson", {"zero_mass": False})]

# Relative to max(1, |log Z|), to max(|mean|, sd), and to the value. The precision and the gradient of a site that is
# weak against its cavity are noise in the last digits of v * precision and s * gradient: ABSOLUTE bounds those.
CLOSED = {"log_z": 1e-10, "mean": 1e-10, "variance": 1e-8, "gradient": 1e-8, "precision": 1e-8}
QUADRATURE = {"log_z": 1e-8, "mean": 1e-8, "variance": 1e-8, "gradient": 1e-8, "precision": 1e-8}
ABSOLUTE = 1e-12


def normal_cdf(x):
    """Phi(x) in double precision: PyMC's probit links take sqrt(2) in single precision."""
    return 0.5 * pt.erfc(-x / np.sqrt(2))


DISTRIBUTIONS = {
    "asymmetric_laplace": lambda eta, b, kappa: pm.AsymmetricLaplace.dist(b=b, kappa=kappa, mu=eta),
    "beta": lambda eta, nu: pm.Beta.dist(mu=pt.sigmoid(eta), nu=nu),
    "binomial_cloglog": lambda eta, n: pm.Binomial.dist(n.astype(int), -pt.expm1(-pt.exp(eta))),
    "binomial_logit": lambda eta, n: pm.Binomial.dist(n.astype(int), logit_p=eta),
    "binomial_probit": lambda eta, n: pm.Binomial.dist(n.astype(int), normal_cdf(eta)),
    "cloglog": lambda eta: pm.Bernoulli.dist(-pt.expm1(-pt.exp(eta))),
    "exponential": lambda eta: pm.Exponential.dist(scale=pt.exp(eta)),
    "gamma": lambda eta, alpha: pm.Gamma.dist(alpha=alpha, beta=alpha / pt.exp(eta)),
    "negative_binomial": lambda eta, alpha: pm.NegativeBinomial.dist(mu=pt.exp(eta), alpha=alpha),
    "laplace": lambda eta, b: pm.Laplace.dist(eta, b),
    "logit": lambda eta: pm.Bernoulli.dist(logit_p=eta),
    "normal": lambda eta, sigma: pm.Normal.dist(eta, sigma),
    "poisson": lambda eta: pm.Poisson.dist(pt.exp(eta)),
    "probit": lambda eta: pm.Bernoulli.dist(normal_cdf(eta)),
    "rectified_poisson": lambda eta: pm.Poisson.dist(pt.maximum(eta, 0)),
    "softplus_poisson": lambda eta: pm.Poisson.dist(pt.softplus(eta)),
    # One datum between its own cutpoints is the middle one of three categories.
    "ordered_logit": lambda eta, *ends: pm.OrderedLogistic.dist(eta=eta, cutpoints=np.stack(ends, axis=-1)),
    "ordered_probit": lambda eta, lower, upper: pm.Categorical.dist(
        pt.stack(
            [normal_cdf(lower - eta), normal_cdf(upper - eta) - normal_cdf(lower - eta), normal_cdf(eta - upper)], -1
        )
    ),
    "student_t": lambda eta, nu, sigma: pm.StudentT.dist(nu=nu, mu=eta, sigma=sigma),
}


@cache
def table(name, zero_mass=True):
    """Columns of the reference table of a site: arguments, parameters, and the expected `Tilted`."""
    file = "rectified_poisson.csv" if name == "rectified_poisson" else "sites.csv"
    with (REFERENCE / file).open() as lines:
        rows = [row for row in csv.DictReader(lines) if row.get("site", name) == name]
    if name == "rectified_poisson":
        rows = [row for row in rows if row["zero_mass"] == str(int(zero_mass))]
    arguments = [np.array([float(row[key]) for row in rows]) for key in ("y", "mean", "variance", "power")]
    parsed = [dict(part.split("=") for part in (row.get("parameters") or "").split(";") if part) for row in rows]
    parameters = [np.array([float(part[key]) for part in parsed]) for key in get_site(name).parameters]
    fields = ("log_z", "tilted_mean", "tilted_variance", "gradient", "precision")
    return arguments, parameters, Tilted(*(np.array([float(row[field]) for row in rows]) for field in fields))


def case_id(case):
    return case[0] + "".join(f"-{key}={value}" for key, value in case[1].items()) if isinstance(case, tuple) else None


def small_problem(name, size=40):
    """Random arguments of ordinary size, and parameters."""
    rng = np.random.default_rng(7)
    y = {
        "count": rng.poisson(3, size),
        "binary": rng.integers(0, 2, size),
        "real": rng.normal(size=size),
        "positive": rng.gamma(2.0, size=size),
        "non-negative": rng.gamma(2.0, size=size),
        "unit interval": rng.uniform(0.05, 0.95, size),
        "ordinal": np.ones(size),
    }
    parameters = [rng.uniform(0.5, 4, size) for _ in get_site(name).parameters]
    if name.startswith("ordered"):
        parameters = [-parameters[0], parameters[1]]
    elif name.startswith("binomial"):
        parameters = [y["count"] + rng.integers(1, 4, size).astype(float)]
    return y[get_site(name).domain], rng.normal(0, 2, size), rng.uniform(0.1, 5, size), parameters


def test_every_site_has_a_table():
    with (REFERENCE / "sites.csv").open() as lines:
        tabulated = {row["site"] for row in csv.DictReader(lines)} | {"rectified_poisson"}
    assert {name for name in sites() if not name.startswith("test_")} <= tabulated


@pytest.mark.parametrize(("case", "mode"), list(product(CASES, [None, "JAX"])), ids=case_id)
def test_moments_agree_with_fifty_digits(case, mode):
    name, options = case
    (y, mean, variance, power), parameters, expected = table(name, options.get("zero_mass", True))
    assert len(y) >= 40
    compiled = compile_site(name, mode, **options)
    found = np.empty((5, len(y)))
    # The closed form and the quadrature of a site that has both take their own rows.
    groups = [np.full(len(y), True)] if get_site(name).any_power else [power == 1, power != 1]
    for at in groups:
        part = compiled.moments(y[at], mean[at], variance[at], power[at], *(value[at] for value in parameters))
        found[:, at] = part
    found = Tilted(*found)
    deviation = np.sqrt(expected.variance)
    pull = np.abs(expected.precision) * deviation
    sizes = Tilted(
        log_z=np.maximum(1, np.abs(expected.log_z)),
        mean=np.maximum(np.abs(expected.mean), deviation),
        variance=expected.variance,
        gradient=np.maximum(np.abs(expected.gradient), pull),
        precision=np.abs(expected.precision),
    )
    closed = get_site(name).tilted is not None and (get_site(name).any_power or (power == 1).all())
    tolerances = CLOSED if closed else QUADRATURE
    slack = {"gradient": ABSOLUTE / np.sqrt(variance), "precision": ABSOLUTE / variance}
    for field in Tilted._fields:
        error = np.abs(getattr(found, field) - getattr(expected, field)) - slack.get(field, 0)
        relative = np.maximum(error, 0) / np.maximum(getattr(sizes, field), 1e-300)
        worst = int(np.argmax(np.where(np.isnan(relative), np.inf, relative)))
        where = [y[worst], mean[worst], variance[worst], power[worst], *(part[worst] for part in parameters)]
        assert relative[worst] <= tolerances[field], f"{field} is off by {relative[worst]:.1e} at {where}"
    if get_site(name).log_concave:
        assert (found.precision >= 0).all()
    assert (found.variance > 0).all()


@pytest.mark.parametrize(("case", "power"), list(product(CASES, [1.0, 0.4])), ids=case_id)
def test_derivatives_of_the_log_normaliser(case, power):
    name, options = case
    y, mean, variance, parameters = small_problem(name)
    compiled = compile_site(name, **options)

    def log_z(mean, parameters):
        return compiled.moments(y, mean, variance, power, *parameters).log_z

    step = 1e-4
    # Error of the central difference: step^2 / 6 times a third derivative of order one.
    slope = (log_z(mean + step, parameters) - log_z(mean - step, parameters)) / (2 * step)
    np.testing.assert_allclose(compiled.moments(y, mean, variance, power, *parameters).gradient, slope, atol=3e-7)
    gradients = compiled.parameter_gradient(y, mean, variance, power, *parameters)
    assert len(gradients) == len(parameters)
    for k, gradient in enumerate(gradients):
        up, down = ([part + sign * step * (i == k) for i, part in enumerate(parameters)] for sign in (1, -1))
        np.testing.assert_allclose(gradient, (log_z(mean, up) - log_z(mean, down)) / (2 * step), rtol=1e-5, atol=3e-7)


@pytest.mark.parametrize("name", sorted(sites()))
def test_log_density_is_that_of_pymc(name):
    y, _, _, parameters = small_problem(name)
    # PyMC loses the probability of failure where success is all but certain.
    most = 2.0 if name.endswith("cloglog") else 4.0
    eta = np.linspace(0.1, most, len(y)) * (
        1 if name == "rectified_poisson" else np.where(np.arange(len(y)) % 2, 1, -1)
    )
    expected = pm.logp(DISTRIBUTIONS[name](eta, *parameters), y).eval()
    found = compile_site(name).log_density(y, eta, *parameters)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("zero_mass", [True, False])
def test_rectified_density_at_negative_rates(zero_mass):
    compiled = compile_site("rectified_poisson", zero_mass=zero_mass)
    at_zero = 0.0 if zero_mass else -math.inf
    assert compiled.log_density([0, 2], [-1.0, -1.0]).tolist() == [at_zero, -math.inf]


@pytest.mark.parametrize("name", sorted(sites()))
def test_jax_moments_run_inside_an_outer_jit(name):
    import jax

    y, mean, variance, parameters = small_problem(name)
    compiled = compile_site(name, "JAX")
    traced = jax.jit(lambda m, v: compiled.moments(y, m, v, 1.0, *parameters)).lower(mean, variance)
    found = traced.compile(compiler_options=QUICKLY)(mean, variance)
    assert all(isinstance(part, jax.Array) for part in found)
    expected = compile_site(name).moments(y, mean, variance, 1.0, *parameters)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-11)
    slopes = zip(
        compiled.parameter_gradient(y, mean, variance, 1.0, *parameters),
        compile_site(name).parameter_gradient(y, mean, variance, 1.0, *parameters),
        strict=True,
    )
    for one, other in slopes:
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-11)


def test_traced_power_uses_quadrature_and_agrees():
    import jax

    y, mean, variance, _ = small_problem("probit")
    compiled = compile_site("probit", "JAX")
    found = jax.jit(lambda power: compiled.moments(y, mean, variance, power).log_z)(1.0)
    np.testing.assert_allclose(found, compile_site("probit").moments(y, mean, variance, 1.0).log_z, rtol=1e-10)


def test_arguments_broadcast_and_blocks_join():
    y, mean = np.arange(3)[:, None], np.linspace(-1, 1, 1500)
    found = compile_site("poisson").moments(y, mean, 0.5, 1.0)
    assert found.log_z.shape == (3, 1500)
    one = compile_site("poisson").moments(2, mean[1234], 0.5, 1.0)
    assert one.mean.shape == ()
    np.testing.assert_allclose(found.mean[2, 1234], one.mean, rtol=1e-13)


def test_functions_are_shared():
    assert compile_site("rectified_poisson", zero_mass=True) is compile_site(get_site("rectified_poisson"))
    assert compile_site("rectified_poisson", zero_mass=False) is not compile_site("rectified_poisson")


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("poisson", [1.0, -1.0], r"'y' has the value -1.0 at index 1, but a poisson site takes non-negative whole"),
        ("logit", [[0, 1], [2, 1]], r"'y' has the value 2 at index \(1, 0\), but a logit site takes zeros and ones"),
        ("normal", [np.nan], r"'y' has the value nan at index 0, but a normal site takes finite numbers"),
    ],
)
def test_validate_names_the_first_bad_observation(name, bad, message):
    with pytest.raises(InvalidDataError, match=message):
        get_site(name).validate(np.asarray(bad), "y")


def test_not_finite_moments_are_reported():
    tilted = Tilted(*np.ones((5, 3)))
    check_finite(tilted, 1.0, 0.0, 1.0, "poisson")
    tilted.variance[1] = np.nan
    with pytest.raises(NumericalError, match=r"poisson site at index 1 \(y = 4\).*mean -2.0 and variance 9.0"):
        check_finite(tilted, np.array([3, 4, 5]), -2.0, 9.0, "poisson")


def test_tilted_moments_agree_with_the_conjugate_posterior():
    log_z, mean, variance = tilted_moments("normal", [1.0, 2.0], 0.5, 2.0, sigma=1.5)
    np.testing.assert_allclose(variance, 1 / (1 / 2 + 1 / 1.5**2))
    np.testing.assert_allclose(mean, variance * (0.5 / 2 + np.array([1, 2]) / 1.5**2))
    marginal = pm.logp(pm.Normal.dist(0.5, np.sqrt(2 + 1.5**2)), np.array([1.0, 2.0])).eval()
    np.testing.assert_allclose(log_z, marginal)


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        (("poison", 1, 0.0, 1.0), {}, r"No site is named 'poison'; there are .*poisson, probit"),
        (("poisson", 1, 0.0, [1.0, -1.0]), {}, r"'variance' has the value -1.0 at index 1"),
        (("poisson", 1, np.inf, 1.0), {}, r"'mean' has the value inf, but it must be finite"),
        (("poisson", 1, 0.0, 1.0), {"power": 1.5}, r"'power' has the value 1.5, but it must be in \(0, 1\]"),
        (("poisson", 0.5, 0.0, 1.0), {}, r"'y' has the value 0.5"),
        (("normal", 0.5, 0.0, 1.0), {}, r"needs the parameter 'sigma'"),
        (("normal", 0.5, 0.0, 1.0), {"sigma": 0.0}, r"'normal' has the parameter sigma = 0.0, but it must be positive"),
        (("logit", 1, 0.0, 1.0), {"sigma": 1.0}, r"no parameter 'sigma'; its parameters: none"),
    ],
)
def test_tilted_moments_names_the_wrong_argument(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        tilted_moments(*arguments, **keywords)


def test_register_refuses_a_taken_name_and_compile_an_unknown_option():
    with pytest.raises(ValueError, match="named 'poisson' is registered already"):
        register_site(get_site("poisson"))
    with pytest.raises(ValueError, match="'poisson' has no option 'zero_mass'; its options: none"):
        compile_site("poisson", zero_mass=False)


@pytest.mark.parametrize(("name", "mode"), list(product(sorted(sites()), [None, "JAX"])))
def test_moments_nearby_are_those_of_the_other_cavity(name, mode):
    """Steps of up to twice the reach of the nodes: some sites reuse them and some do not."""
    y, mean, variance, parameters = small_problem(name)
    step = np.linspace(-2.0, 2.0, len(y)) * np.sqrt(variance)
    compiled = compile_site(name, mode)
    first, nearby = compiled.moments_and_nearby(y, mean, variance, 0.8, *parameters)
    for found, at in ((first, mean), (nearby(mean + step), mean + step), (nearby(mean), mean)):
        expected = compiled.moments(y, at, variance, 0.8, *parameters)
        for field, tolerance in QUADRATURE.items():
            np.testing.assert_allclose(getattr(found, field), getattr(expected, field), rtol=tolerance, atol=1e-10)
