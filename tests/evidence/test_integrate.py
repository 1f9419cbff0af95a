"""Integration over the hyperparameters against quadrature by SciPy of models whose evidence has a closed form."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats
from scipy.special import logsumexp

import pymc_ep as pmep
from docs.benchmarks.public.rethinking import ISLAND_DISTANCES
from pymc_ep.compat import group
from pymc_ep.evidence.budget import most_posteriors
from pymc_ep.evidence.ep.evidence import evidence_of
from pymc_ep.evidence.integration import integrate
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.methods.ep import OPTIONS
from pymc_ep.numerics.interpolation.nearest_components import calibrated_weights

N = 12
X = np.linspace(0.0, 3.0, N)
SQUARES = (X[:, None] - X) ** 2
Y = 2 * np.sin(2 * X) + 0.3 * np.random.default_rng(8).normal(size=N)
NEW = np.array([0.4, 3.2])
CROSS = (NEW[:, None] - X) ** 2
"""A Gaussian process seen with noise; the amplitude, then the noise scale, then the lengthscale are unknown."""
KNOWN = {"amp": 2.0, "sigma": 0.4, "ell": 0.7}
PRIORS = {
    "amp": lambda v: scipy.stats.halfnorm.logpdf(v, scale=3.0),
    "sigma": lambda v: scipy.stats.halfnorm.logpdf(v, scale=1.0),
    "ell": lambda v: scipy.stats.invgamma.logpdf(v, 4.0, scale=3.0),
}


def build(unknown):
    with pm.Model(coords={"x": X}) as model:
        values = KNOWN | {
            name: {
                "amp": lambda: pm.HalfNormal("amp", 3.0),
                "sigma": lambda: pm.HalfNormal("sigma", 1.0),
                "ell": lambda: pm.InverseGamma("ell", 4.0, 3.0),
            }[name]()
            for name in unknown
        }
        covariance = values["amp"] ** 2 * pt.exp(-0.5 * SQUARES / values["ell"] ** 2) + 1e-8 * pt.eye(N)
        f = pm.MvNormal("f", np.zeros(N), covariance, dims="x")
        pm.Normal("y", f, values["sigma"], observed=Y, dims="x")
    return model


def quadrature(unknown, points):
    """Log evidence, moments of the hyperparameters and of f, on a fine regular grid of logarithms, prior included."""
    axes = [np.linspace(-6.0, 3.5, points)] * len(unknown)
    theta = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(unknown))
    log_density, means, variances = [], [], []
    for rows in np.array_split(theta, -(-len(theta) // 10_000)):
        v = {name: np.full(len(rows), value) for name, value in KNOWN.items()} | dict(zip(unknown, np.exp(rows.T)))
        amp, sigma, ell = (v[name][:, None, None] for name in ("amp", "sigma", "ell"))
        prior = amp**2 * np.exp(-0.5 * SQUARES / ell**2) + 1e-8 * np.eye(N)
        factor = np.linalg.cholesky(prior + sigma**2 * np.eye(N))
        white = np.linalg.solve(factor, np.broadcast_to(Y[:, None], (len(rows), N, 1)))
        half = np.linalg.solve(factor, prior)
        log_det = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
        likelihood = -0.5 * (white**2).sum(axis=(1, 2)) - log_det - 0.5 * N * np.log(2 * np.pi)
        log_density.append(likelihood + sum(PRIORS[name](v[name]) for name in unknown) + rows.sum(axis=1))
        means.append(np.einsum("kij,ki->kj", half, white[..., 0]))
        variances.append(np.diagonal(prior, axis1=1, axis2=2) - (half**2).sum(axis=1))
    log_density, means, variances = (np.concatenate(parts) for parts in (log_density, means, variances))
    log_density += len(unknown) * np.log(axes[0][1] - axes[0][0])
    total = logsumexp(log_density)
    weight = np.exp(log_density - total)

    def moments(values, inner=0.0):
        mean = weight @ values
        return mean, np.sqrt(weight @ (inner + (values - mean) ** 2))

    hyper = dict(zip(unknown, zip(*moments(np.exp(theta)))))
    return total, hyper, moments(means, variances)


@pytest.mark.parametrize(
    ("unknown", "points", "evidence", "hyper", "latent"),
    [
        (("amp",), 500, 1e-3, 0.01, 0.002),
        (("amp", "sigma"), 150, 3e-3, 0.01, 0.01),
        (("amp", "sigma", "ell"), 44, 0.04, 0.07, 0.03),
    ],
    ids=["1", "2", "3"],
)
def test_against_quadrature(unknown, points, evidence, hyper, latent):
    """Tolerances of moments are in standard deviations."""
    result = pmep.fit(model=build(unknown), hyper="integrate", draws=1000, random_seed=3, progressbar=False)
    fit, draws = group(result, "fit"), group(result, "posterior")
    total, moments, (mean, sd) = quadrature(unknown, points)
    assert bool(fit["converged"])
    assert abs(float(fit["log_evidence"]) - total) < evidence
    np.testing.assert_allclose((result["posterior_mean"]["f"] - mean) / sd, 0.0, atol=latent)
    np.testing.assert_allclose(result["posterior_sd"]["f"] / sd, 1.0, atol=latent)
    chance = 4.5 / np.sqrt(4000)
    for name, (centre, spread) in moments.items():
        assert abs(float(result["posterior_mean"][name]) - centre) < hyper * spread, name
        assert abs(float(result["posterior_sd"][name]) / spread - 1) < 2 * hyper, name
        assert abs(float(draws[name].mean()) - centre) < (hyper + chance) * spread, name
    np.testing.assert_allclose((draws["f"].mean(("chain", "draw")) - mean) / sd, 0.0, atol=latent + chance)
    np.testing.assert_allclose(draws["f"].std(("chain", "draw")) / sd, 1.0, atol=latent + chance)


def test_draws_keep_the_correlation_of_hyperparameters_and_latents():
    """Cov(log amp, f) is that of the conditional means, by quadrature."""
    model = build(("amp",))
    draws = group(pmep.fit(model=model, hyper="integrate", draws=5000, random_seed=3, progressbar=False), "posterior")
    logs = np.linspace(-4.0, 4.0, 300)
    means, log_density = [], []
    for amp in np.exp(logs):
        prior = amp**2 * np.exp(-0.5 * SQUARES / KNOWN["ell"] ** 2)
        total = prior + KNOWN["sigma"] ** 2 * np.eye(N)
        means.append(prior @ np.linalg.solve(total, Y))
        log_density.append(scipy.stats.multivariate_normal.logpdf(Y, np.zeros(N), total) + PRIORS["amp"](amp))
    weight = np.exp(np.array(log_density) + logs - max(log_density))
    weight /= weight.sum()
    expected = (weight * (logs - weight @ logs)) @ np.array(means)
    found = np.cov(np.log(draws["amp"].values.ravel()), draws["f"].values.reshape(-1, N).T)[0, 1:]
    error = draws["f"].values.reshape(-1, N).std(axis=0) * np.log(draws["amp"].values).std() / np.sqrt(20_000)
    np.testing.assert_allclose(found, expected, atol=4.5 * error.max() + 0.02 * np.abs(expected).max())


@pytest.fixture(scope="module")
def grid_fit():
    model = build(("amp", "sigma"))
    return model, pmep.fit(model=model, hyper="integrate", draws=50, chains=2, random_seed=3, progressbar=False)


def test_the_design_is_in_the_result(grid_fit):
    """Densities at the fits are those of the marginal likelihood in closed form, times the prior of the logarithms."""
    _, result = grid_fit
    fit = group(result, "fit")
    assert fit["hyper_weight"].dims == fit["hyper_point_amp"].dims == ("hyper_point",)
    np.testing.assert_allclose(fit["hyper_weight"].sum(), 1.0)
    for amp, sigma, found in zip(*(fit[f"hyper_{k}"].values for k in ("point_amp", "point_sigma", "log_density"))):
        total = amp**2 * np.exp(-0.5 * SQUARES / KNOWN["ell"] ** 2) + (1e-8 + sigma**2) * np.eye(N)
        expected = scipy.stats.multivariate_normal.logpdf(Y, np.zeros(N), total) + np.log(amp * sigma)
        assert abs(found - expected - PRIORS["amp"](amp) - PRIORS["sigma"](sigma)) < 1e-6
    assert "integrated" in fit.attrs["log_evidence_is"]
    assert f"integrated over by {int(fit['n_evaluations'])} fits" in fit.attrs["status"]
    assert 0.99 < float(fit["hyper_ess"]) <= 1.0
    assert float(fit["hyper_log_weight_sd"]) < 0.1


def test_leave_one_out_mixes_over_the_design(grid_fit):
    """p(y_i | y_-i) by quadrature of p(y) / p(y_-i), both integrated over the hyperparameters.

    Averages of inverse densities have long tails, and the grid ends: what is influential comes out a little high.
    """
    _, result = grid_fit
    logs = np.linspace(-6.0, 3.5, 90)
    theta = np.stack(np.meshgrid(logs, logs, indexing="ij"), axis=-1).reshape(-1, 2)
    amp, sigma = np.exp(theta.T)[:, :, None, None]
    total = amp**2 * np.exp(-0.5 * SQUARES / KNOWN["ell"] ** 2) + (1e-8 + sigma**2) * np.eye(N)
    prior = PRIORS["amp"](amp.ravel()) + PRIORS["sigma"](sigma.ravel()) + theta.sum(axis=1)

    def evidence(kept):
        factor = np.linalg.cholesky(total[:, kept][:, :, kept])
        white = np.linalg.solve(factor, np.broadcast_to(Y[kept][:, None], (len(theta), kept.sum(), 1)))
        log_det = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
        return logsumexp(prior - 0.5 * (white**2).sum(axis=(1, 2)) - log_det - 0.5 * kept.sum() * np.log(2 * np.pi))

    whole = evidence(np.ones(N, dtype=bool))
    error = group(result, "fit")["y_loo"] - [whole - evidence(np.arange(N) != i) for i in range(N)]
    assert float(np.abs(error).median()) < 0.002
    assert float(np.abs(error).max()) < 0.05


def test_predictions_from_disk_mix_over_the_design(grid_fit, tmp_path):
    """Moments at new inputs, and the density of new observations, by exact conditionals at each component."""
    _, result = grid_fit
    result.to_netcdf(tmp_path / "fit.nc")
    saved = az.from_netcdf(tmp_path / "fit.nc")
    model = build(("amp", "sigma"))
    with model:
        amp, sigma = model["amp"], model["sigma"]
        weights = amp**2 * pt.exp(-0.5 * CROSS / KNOWN["ell"] ** 2)
        prior = amp**2 * pt.exp(-0.5 * SQUARES / KNOWN["ell"] ** 2) + 1e-8 * pt.eye(N)
        projected = pm.Deterministic("g", weights @ pt.linalg.solve(prior, model["f"]))
        pm.Normal("y_new", projected, sigma)
    found = pmep.predict(saved, model, var_names=["g"])
    parts, densities = [], []
    y_new = np.array([0.5, -0.2])
    state = group(result, "fit_state")
    components = state["component_thetas"].values
    for weight, (amp, sigma) in zip(calibrated_weights(components, state["hyper_draws"].values), np.exp(components)):
        prior = amp**2 * np.exp(-0.5 * SQUARES / KNOWN["ell"] ** 2) + 1e-8 * np.eye(N)
        cross = amp**2 * np.exp(-0.5 * CROSS / KNOWN["ell"] ** 2)
        total = prior + sigma**2 * np.eye(N)
        mean = cross @ np.linalg.solve(total, Y)
        variance = np.diag(cross @ (np.linalg.solve(prior, cross.T) - np.linalg.solve(total, cross.T)))
        parts.append((weight, mean, variance))
        densities.append(np.log(weight) + scipy.stats.norm.logpdf(y_new, mean, np.sqrt(variance + sigma**2)))
    mean = sum(w * m for w, m, _ in parts)
    sd = np.sqrt(sum(w * (v + (m - mean) ** 2) for w, m, v in parts))
    np.testing.assert_allclose(found["g_mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["g_sd"], sd, rtol=1e-4)
    lpd = pmep.log_predictive(saved, model, {"y_new": y_new})["y_new"]
    np.testing.assert_allclose(lpd, logsumexp(densities, axis=0), rtol=1e-4)


def test_an_earlier_result_is_a_start(grid_fit):
    model, result = grid_fit
    again = pmep.fit(model=model, hyper="integrate", start=result, draws=0, progressbar=False)
    expected = float(group(result, "fit")["log_evidence"])
    np.testing.assert_allclose(float(group(again, "fit")["log_evidence"]), expected, atol=1e-3)


def test_nothing_to_integrate_over():
    fit = group(pmep.fit(model=build(()), hyper="integrate", draws=0, progressbar=False), "fit")
    fixed = group(pmep.fit(model=build(()), hyper="fixed", draws=0, progressbar=False), "fit")
    np.testing.assert_allclose(fit["log_evidence"], fixed["log_evidence"])


def test_a_flat_prior_is_named():
    """With a flat prior on the logarithm of the amplitude the density does not end towards zero."""
    with pm.Model() as model:
        log_amp = pm.Flat("log_amp")
        f = pm.MvNormal("f", np.zeros(N), pt.exp(2 * log_amp) * pt.as_tensor(np.exp(-0.5 * SQUARES) + 1e-6 * np.eye(N)))
        pm.Normal("y", f, 0.4, observed=0.3 * Y)
    with pytest.warns(
        pmep.ConvergenceWarning, match=r"does not fall on the way to log_amp = -.*give them proper priors"
    ):
        pmep.fit(model=model, hyper="integrate", draws=0, progressbar=False)


def test_a_density_without_a_mode_is_named():
    """One effect under a flat prior on its scale: on the log scale the density does not fall towards infinity."""
    with pm.Model() as model:
        tau = pm.HalfFlat("tau")
        pm.Normal("y", pm.Normal("f", 0.0, tau), 1.0, observed=np.array([3.0]))
    with pytest.warns(
        pmep.ConvergenceWarning,
        match=r"does not fall on the way to tau = .*not integrated over.*give them proper priors",
    ):
        fit = group(pmep.fit(model=model, hyper="integrate", draws=0, progressbar=False), "fit")
    assert "hyper_weight" not in fit


def test_too_many_hyperparameters_are_refused():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0, shape=26)
        pm.Normal("y", pm.Normal("f", 0.0, 1.0, shape=26), scale, observed=np.zeros(26))
    with pytest.raises(ValueError, match=r"up to 25 hyperparameters, but the model has 26.*hyper='sample'"):
        pmep.fit(model=model, hyper="integrate", draws=0, progressbar=False)


def test_a_tail_that_fits_have_told_to_be_empty_stays_empty():
    """Rare events in groups: the density of their scale falls by ten nats and then flattens, far below the mode."""
    trials = np.random.default_rng(3).integers(5, 40, 25)
    with pm.Model() as model:
        mean, scale = pm.Normal("mean", -3, 2), pm.HalfCauchy("scale", 2.5)
        effect = pm.Normal("effect", mean, scale, shape=25)
        pm.Binomial("y", n=trials, logit_p=effect, observed=np.where(np.arange(25) == 4, 2, 0))
    evidence = evidence_of(compiled_form(model), OPTIONS, density="unconstrained")
    log_scale = np.linspace(-9.0, 9.0, 181)
    values = np.array([evidence.at(np.array([one])).value for one in log_scale])
    weights = np.exp(values - values.max())
    weights /= weights.sum()
    mean = weights @ np.exp(log_scale)
    sd = np.sqrt(weights @ (np.exp(log_scale) - mean) ** 2)
    found = pmep.fit(model=model, random_seed=1, progressbar=False)
    draws = found["posterior"]["scale"].to_numpy()
    assert abs(draws.mean() - mean) < 0.1 * sd
    assert abs(draws.std() / sd - 1) < 0.1
    assert draws.max() < 20


def test_a_tail_beyond_all_fits_is_not_guessed():
    """Tools of ten islands (Kline and Boyd 2010): the scale of their process ends where its emulator knows nothing."""
    tools = np.array([13, 22, 24, 43, 33, 19, 40, 28, 55, 71])
    log_population = np.log([1100, 1500, 3600, 4791, 7400, 8000, 9200, 13000, 17500, 275000])
    with pm.Model() as model:
        scale, rate = pm.HalfCauchy("scale", 1), pm.HalfCauchy("rate", 1)
        covariance = scale * pt.exp(-rate * ISLAND_DISTANCES**2) + 0.01 * np.eye(10)
        effect = pm.MvNormal("effect", np.zeros(10), covariance)
        log_rate = pm.Normal("a", 0, 10) + pm.Normal("b", 0, 1) * log_population + effect
        pm.Poisson("y", pt.exp(log_rate), observed=tools)
    evidence = evidence_of(compiled_form(model), OPTIONS, density="unconstrained")
    grid = np.stack(np.meshgrid(np.linspace(-8, 6, 21), np.linspace(-8, 6, 21)), axis=-1).reshape(-1, 2)
    values = np.array([evidence.at(theta).value for theta in grid])
    weights = np.exp(values - values.max())
    beyond = weights[grid[:, 0] > 2].sum() / weights.sum()
    draws = pmep.fit(model=model, random_seed=1, progressbar=False)["posterior"]["scale"].to_numpy()
    np.testing.assert_allclose((draws > np.exp(2.0)).mean(), beyond, atol=0.003)


def test_without_any_fit_that_converged_nothing_is_integrated():
    with pm.Model() as model:
        pm.Poisson(
            "y",
            pt.exp(pm.Normal("f", 0.0, pm.HalfNormal("tau", 1.0), shape=3) + pm.Normal("a", 0.0, 3.0)),
            observed=[0, 1, 7],
        )
    with pytest.warns(
        pmep.ConvergenceWarning, match=r"no fit on the way to the mode .* converged.*held where it ended"
    ):
        result = pmep.fit(model=model, hyper="integrate", draws=3, max_iter=1, progressbar=False)
    assert "hyper_weight" not in group(result, "fit")


def test_a_predictor_that_is_known_costs_no_fits():
    """Observations of a baseline have the predictor zero, which interpolated sites cannot miss."""
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1.0)
        effect = pm.Normal("effect", 0.0, tau) * np.repeat([0.0, 1.0], 4)
        pm.Poisson("y", pt.exp(effect), observed=[1, 0, 2, 1, 3, 5, 2, 4])
    fit = group(pmep.fit(model=model, draws=0, progressbar=False), "fit")
    assert fit["converged"] and int(fit["n_evaluations"]) < 60


@pytest.mark.parametrize(("power", "effect"), [(2, 1000.0), (1, 20.0)], ids=["a standard deviation", "a variance"])
def test_a_mode_of_the_prior_is_not_taken_for_that_of_the_posterior(power, effect):
    """A large effect, whose scale has a prior of 1e-4: near it the data hardly matter."""
    with pm.Model() as model:
        scale = pm.HalfCauchy("scale", 1e-4)
        pm.Normal("y", pm.Normal("effect", 0.0, scale ** (power / 2)), 1.0, observed=effect)
    log_scale = np.linspace(-30.0, 60.0, 10_000)
    value = scipy.stats.norm.logpdf(effect, 0.0, np.sqrt(1.0 + np.exp(power * log_scale)))
    value += scipy.stats.halfcauchy.logpdf(np.exp(log_scale), scale=1e-4) + log_scale
    log_evidence = logsumexp(value) + np.log(log_scale[1] - log_scale[0])
    fit = pmep.fit(model=model, draws=1000, random_seed=1, progressbar=False)
    np.testing.assert_allclose(float(group(fit, "fit")["log_evidence"]), log_evidence, atol=0.01)
    weight = np.exp(value - value.max())
    median = np.interp(0.5, np.cumsum(weight) / weight.sum(), log_scale)
    np.testing.assert_allclose(np.median(np.log(fit["posterior"]["scale"])), median, atol=0.1)


@pytest.fixture(scope="module")
def negative_scale():
    """A scale of a scale with mass below zero, where the density of PyMC is zero."""
    with pm.Model() as model:
        s = pm.HalfNormal("s", pm.Normal("scale", 0.5, 1.0))
        pm.Normal("y", pm.Normal("a", 0.0, 2.0), s, observed=Y)
    return model


def test_a_prior_whose_parameter_is_out_of_range_has_no_density(negative_scale):
    """For each row of a batch by itself."""
    scale, log_s = np.array([0.5, -0.5, 1.0]), np.array([0.0, 0.0, 0.3])
    found = compiled_form(negative_scale).rows.log_prior(np.column_stack([scale, log_s]))
    with np.errstate(all="ignore"):
        exact = scipy.stats.norm.logpdf(scale, 0.5) + scipy.stats.halfnorm.logpdf(np.exp(log_s), scale=scale) + log_s
    np.testing.assert_allclose(found, np.where(scale > 0, exact, -np.inf))


def test_a_prior_scale_with_mass_below_zero_against_quadrature(negative_scale):
    found = pmep.fit(model=negative_scale, draws=0, random_seed=1, progressbar=False)
    scale, s = np.linspace(1e-3, 7.0, 400)[:, None], np.exp(np.linspace(np.log(0.1), np.log(20.0), 400))
    likelihood = [scipy.stats.multivariate_normal.logpdf(Y, np.zeros(N), 4.0 + v**2 * np.eye(N)) for v in s]
    log_p = scipy.stats.norm.logpdf(scale, 0.5) + scipy.stats.halfnorm.logpdf(s, scale=scale) + likelihood + np.log(s)
    cell = (scale[1] - scale[0]).item() * np.log(s[1] / s[0])
    log_evidence = logsumexp(log_p) + np.log(cell)
    weight = np.exp(log_p - logsumexp(log_p))
    np.testing.assert_allclose(float(found["fit"]["log_evidence"]), log_evidence, atol=5e-3)
    for name, values in (("scale", scale), ("s", s)):
        mean = (weight * values).sum()
        sd = np.sqrt((weight * (values - mean) ** 2).sum())
        np.testing.assert_allclose(float(found["posterior_mean"][name]), mean, atol=0.02 * sd)
        np.testing.assert_allclose(float(found["posterior_sd"][name]), sd, rtol=0.02)


def test_well_determined_values_take_fewer_posteriors(monkeypatch):
    """And their moments are those of many: 60 counts each leave a group's mean no room to move with the scale."""
    rng = np.random.default_rng(7)
    where = np.arange(1200) % 20
    with pm.Model() as model:
        effect = pm.Normal("effect", 0.0, pm.HalfNormal("scale", 1.0), shape=20)
        pm.Poisson(
            "y", pm.math.exp(1.0 + effect[where]), observed=rng.poisson(np.exp(1.0 + 0.5 * rng.normal(size=20))[where])
        )
    made = []

    def counted(form, variation):
        made.append(most_posteriors(form, variation))
        return made[-1]

    monkeypatch.setattr(integrate, "most_posteriors", counted)
    found = pmep.fit(model=model, draws=0, progressbar=False)
    monkeypatch.setattr(integrate, "most_posteriors", lambda form, variation: 4000)
    wanted = pmep.fit(model=model, draws=0, progressbar=False)
    assert made[0] < most_posteriors(compiled_form(model)) == 100
    sd = wanted["posterior_sd"]["effect"]
    assert np.abs((found["posterior_mean"]["effect"] - wanted["posterior_mean"]["effect"]) / sd).max() < 5e-4
    np.testing.assert_allclose(found["posterior_sd"]["effect"], sd, rtol=5e-4)
