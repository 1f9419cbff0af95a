"""Log densities of draws: under the model's own graph, under SciPy's Gaussians, and their ratio as a weight."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group, has_group
from pymc_ep.evidence.ep.evidence import Evidence
from pymc_ep.evidence.ep.fit import Shape
from pymc_ep.models.latent_gaussian.posterior import LatentPosterior
from pymc_ep.modes import numpy_mode

N = 7
X = np.linspace(0.0, 3.0, N)[:, None]
REALS = np.array([0.4, 0.1, -0.6, 0.9, 1.4, 0.3, -0.2])
COUNTS = np.array([2, 0, 1, 8, 13, 3, 0])
KERNEL = np.exp(-0.5 * (X - X.T) ** 2)


def centred(level, cov):
    return pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=cov).prior("f", X=X, reparameterize=False)


def whitened(level, cov):
    return pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=cov).prior("f", X=X)


def multivariate(level, cov):
    return pm.MvNormal("f", level * pt.ones(N), cov(X) + 1e-6 * pt.eye(N))


def independent(level, cov):
    return pm.Normal("f", level, pt.sqrt(pt.diagonal(cov(X))), shape=N)


def singular(level, cov):
    """Values 0 and 1 are the same one."""
    index = np.r_[0, 0:6]
    return pm.MvNormal("f", level * pt.ones(N), cov(X)[index][:, index])


def factored(level, cov):
    """More directions than values: a wide factor."""
    v = pm.Normal("v", 0.0, 1.0, shape=2 * N)
    factor = pt.concatenate([cov(X), 0.3 * pt.eye(N)], axis=1)
    return pm.Deterministic("f", level + factor @ v)


def stretched(level, cov):
    """A standard deviation outside of each value."""
    v = pm.Normal("v", 0.0, 1.0, shape=N)
    return pm.Deterministic("f", level + v * pt.sqrt(pt.diagonal(cov(X))))


def stretched_by_one(level, cov):
    v = pm.Normal("v", 0.0, 1.0, shape=N)
    return pm.Deterministic("f", level + pt.sqrt(cov(X)[0, 0]) * v)


WRITINGS = [centred, whitened, multivariate, independent, singular, factored, stretched, stretched_by_one]


def densities_of(result):
    fit = group(result, "fit")
    return fit["log_p"].values.ravel(), fit["log_q"].values.ravel()


@pytest.mark.parametrize("level", ["given", "latent"])
@pytest.mark.parametrize("write", WRITINGS)
def test_the_ratio_is_the_evidence_where_the_posterior_is_gaussian(write, level):
    with pm.Model() as model:
        amp = pm.HalfNormal("amp", 1.0, initval=0.8)
        centre = 0.4 if level == "given" else pm.Normal("level", 0.4, 1.3)
        f = write(centre, amp**2 * pm.gp.cov.ExpQuad(1, 1.0))
        pm.Normal("y", f, 0.3, observed=REALS)
    result = pmep.fit(model=model, hyper="fixed", draws=40, chains=2, log_likelihood=True, random_seed=1)
    log_p, log_q = densities_of(result)
    np.testing.assert_allclose(log_p - log_q, float(group(result, "fit")["log_evidence"]), rtol=0, atol=1e-8)
    assert np.ptp(log_p) > 1.0


def poisson_exp(f):
    pm.Poisson("y", pt.exp(f), observed=COUNTS)


@pytest.mark.parametrize("write", [centred, whitened, multivariate, independent, factored, stretched, stretched_by_one])
def test_log_p_is_that_of_the_model(write):
    """At PyMC's own unconstrained points, made by hand from a few draws, with its Jacobians."""
    with pm.Model() as model:
        amp = pm.HalfNormal("amp", 1.0)
        ell = pm.InverseGamma("ell", mu=1.0, sigma=0.3)
        slope = pm.Uniform("slope", -1.0, 2.0)
        level = pm.Normal("level", 0.3, 0.7)
        f = write(level, amp**2 * pm.gp.cov.Matern52(1, ell))
        poisson_exp(f + slope * X.ravel())
        pm.Potential("pull", -0.1 * amp**2)
    result = pmep.fit(model=model, hyper="optimize", draws=6, chains=2, log_likelihood=True, random_seed=3)
    log_p, log_q = densities_of(result)
    assert "held" not in group(result, "fit").attrs["status"]
    logp = model.compile_logp(mode=numpy_mode())
    draws = {name: v.values.reshape(12, *v.shape[2:]) for name, v in group(result, "posterior").data_vars.items()}
    for k in range(12):
        point = {"amp_log__": np.log(draws["amp"][k]), "ell_log__": np.log(draws["ell"][k])}
        point["slope_interval__"] = np.log(draws["slope"][k] + 1.0) - np.log(2.0 - draws["slope"][k])
        point |= {rv.name: draws[rv.name][k] for rv in model.free_RVs if rv.name in ("level", "f", "f_rotated_", "v")}
        np.testing.assert_allclose(log_p[k], logp(point), rtol=1e-9, atol=1e-6)
    assert np.all(np.isfinite(log_q))


@pytest.mark.parametrize("prior", ["car", "icar"])
def test_priors_that_pymc_does_not_normalise(prior):
    """Their missing constants, for ICAR a function of sigma, are missing in log p and in the evidence alike."""
    ring = np.roll(np.eye(N), 1, 0) + np.roll(np.eye(N), -1, 0)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        if prior == "car":
            f = pm.CAR("f", mu=np.zeros(N), W=ring, alpha=0.6, tau=scale)
        else:
            f = pm.ICAR("f", W=ring, sigma=scale, zero_sum_stdev=0.1)
        pm.Normal("y", f, 0.3, observed=REALS)
    result = pmep.fit(model=model, hyper="optimize", draws=5, chains=1, log_likelihood=True, random_seed=3)
    log_p, _ = densities_of(result)
    logp = model.compile_logp(mode=numpy_mode())
    draws = group(result, "posterior")
    for k in range(5):
        point = {"scale_log__": np.log(draws["scale"].values[0, k]), "f": draws["f"].values[0, k]}
        np.testing.assert_allclose(log_p[k], logp(point), rtol=1e-9, atol=1e-6)
    fixed = pmep.fit(model=model, hyper="fixed", draws=20, chains=1, log_likelihood=True, random_seed=3)
    log_p, log_q = densities_of(fixed)
    np.testing.assert_allclose(log_p - log_q, float(group(fixed, "fit")["log_evidence"]), rtol=0, atol=1e-8)


def weighted():
    """A factor without hyperparameters: a regression with three weights."""
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 1.0, shape=3)
        poisson_exp(pt.as_tensor(KERNEL[:, :3]) @ v + pm.HalfNormal("amp", 1.0))
    return model, "v"


def scaled():
    with pm.Model() as model:
        amp = pm.HalfNormal("amp", 1.0)
        poisson_exp(pm.MvNormal("f", np.full(N, 0.3), amp**2 * (KERNEL + 0.3 * np.eye(N))))
    return model, "f"


@pytest.mark.parametrize("write", [weighted, scaled])
def test_log_q_is_that_of_a_joint_gaussian_where_no_site_is_skewed(write, monkeypatch):
    """Normalised, quadratic in hyperparameter and values, with the moments that the container holds."""
    monkeypatch.setattr(Evidence, "shape", lambda *arguments, **options: Shape(*np.zeros((4, N))))
    model, name = write()
    result = pmep.fit(model=model, hyper="optimize", draws=300, chains=1, log_likelihood=True, random_seed=5)
    _, log_q = densities_of(result)
    fit, posterior = group(result, "fit"), group(result, "posterior")
    assert "held" not in fit.attrs["status"]
    centre = np.append(np.log(fit["hyper_mode_amp"]), result["posterior_mean"][name])
    rows = np.column_stack([np.log(posterior["amp"].values[0]), posterior[name].values[0]]) - centre
    d = rows.shape[1]
    i, j = np.triu_indices(d)
    terms = np.column_stack([np.ones(len(rows)), rows, rows[:, i] * rows[:, j]])
    coefficients, *_ = np.linalg.lstsq(terms, log_q)
    np.testing.assert_allclose(terms @ coefficients, log_q, atol=1e-7)
    np.testing.assert_allclose(coefficients[1 : d + 1], 0.0, atol=1e-6)
    precision = np.zeros((d, d))
    precision[i, j] = -coefficients[d + 1 :]
    precision = precision + precision.T
    gaussian = scipy.stats.multivariate_normal(np.zeros(d), np.linalg.inv(precision))
    np.testing.assert_allclose(log_q, gaussian.logpdf(rows), atol=1e-6)
    np.testing.assert_allclose(np.sqrt(gaussian.cov.diagonal()[1:]), result["posterior_sd"][name], rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(gaussian.cov[0, 0]), rows[:, 0].std(), rtol=0.15)


def test_the_mean_weight_is_the_true_evidence():
    """Poisson counts at three points: importance sampling from EP's posterior against quadrature."""
    counts, kernel = np.array([3, 0, 2]), KERNEL[:3, :3] + 0.1 * np.eye(3)
    with pm.Model() as model:
        f = pm.MvNormal("f", np.full(3, 0.2), kernel)
        pm.Poisson("y", pt.exp(f), observed=counts)
    result = pmep.fit(model=model, hyper="optimize", draws=40_000, chains=1, log_likelihood=True, random_seed=2)
    log_p, log_q = densities_of(result)
    weights = np.exp(log_p - log_q)
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 3)
    mass = np.prod(np.stack(np.meshgrid(*[node_weights] * 3, indexing="ij"), axis=-1).reshape(-1, 3), axis=1)
    values = 0.2 + grid @ np.linalg.cholesky(kernel).T
    likelihood = scipy.stats.poisson.pmf(counts, np.exp(values)).prod(axis=1)
    truth = (mass * likelihood).sum() / (2 * np.pi) ** 1.5
    error = weights.std() / np.sqrt(weights.size)
    assert error < 0.01 * truth
    assert abs(weights.mean() - truth) < 4 * error


def test_in_the_container_and_on_disk(tmp_path):
    with pm.Model(coords={"i": range(N)}) as model:
        poisson_exp(whitened(0.2, pm.HalfNormal("amp", 1.0) ** 2 * pm.gp.cov.ExpQuad(1, 1.0)))
    result = pmep.fit(model=model, hyper="optimize", draws=5, chains=3, log_likelihood=True, random_seed=1)
    fit, posterior = group(result, "fit"), group(result, "posterior")
    for name in ("log_p", "log_q"):
        assert fit[name].dims == ("chain", "draw")
        assert fit[name].shape == (3, 5)
        np.testing.assert_array_equal(fit[name]["chain"], posterior["chain"])
        np.testing.assert_array_equal(fit[name]["draw"], posterior["draw"])
    result.to_netcdf(str(tmp_path / "fit.nc"))
    again = group(az.from_netcdf(str(tmp_path / "fit.nc")), "fit")
    np.testing.assert_array_equal(again["log_p"], fit["log_p"])
    np.testing.assert_array_equal(again["log_q"], fit["log_q"])


def test_absent_without_draws_over_budget_and_without_a_density(monkeypatch):
    def model(write):
        with pm.Model() as made:
            poisson_exp(write(0.2, pm.HalfNormal("amp", 1.0) ** 2 * pm.gp.cov.ExpQuad(1, 1.0)))
        return made

    def left_out(result):
        fit = group(result, "fit")
        assert "log_p" not in fit
        assert "log_q" not in fit
        return fit.attrs.get("left_out", "")

    assert not left_out(pmep.fit(model=model(whitened), hyper="optimize", draws=0))
    assert has_group(
        result := pmep.fit(model=model(singular), hyper="optimize", draws=5, log_likelihood=True, random_seed=1),
        "posterior",
    )
    assert "log_p and log_q left out: a covariance is singular" in left_out(result)
    monkeypatch.setattr(LatentPosterior.draws, "__kwdefaults__", {"log_likelihood": False, "budget": 20 * N**3 - 1})
    assert "log_p and log_q left out: a covariance to factorise" in left_out(
        pmep.fit(model=model(whitened), hyper="optimize", draws=5, log_likelihood=True)
    )
    # Nothing to factorise: hyperparameters at one value, or none that scale the latent variables.
    assert "log_p" in group(pmep.fit(model=model(whitened), draws=5, log_likelihood=True, hyper="fixed"), "fit")
    assert "log_p" in group(pmep.fit(model=weighted()[0], hyper="optimize", draws=5, log_likelihood=True), "fit")
