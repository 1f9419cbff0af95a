"""`fit` from a model block to the container, against closed forms and its own moments."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_ep as pmep
from pymc_ep.compat import PYMC_6, group, group_names, has_group
from pymc_ep.engines import progress
from pymc_ep.modes import numpy_mode
from pymc_ep.sites import sites

N = 10
YEARS = 1900.0 + np.arange(N)
X = np.linspace(0.0, 3.0, N)[:, None]
COUNTS = np.array([2, 3, 1, 4, 6, 5, 3, 2, 0, 1])
REALS = np.sin(2 * X.ravel()) + 0.3 * np.random.default_rng(8).normal(size=N)
CHAINS, DRAWS = 2, 1500


@pytest.fixture(scope="module")
def counts_model():
    """Counts on a GP with a learned level, scale and lengthscale; dims, data and Deterministics of every kind."""
    with pm.Model(coords={"year": YEARS}) as model:
        x = pm.Data("x", X.ravel(), dims="year")
        ell = pm.InverseGamma("ell", mu=1.0, sigma=0.4)
        amp = pm.HalfNormal("amp", 1.0)
        level = pm.Normal("level", 1.0, 1.0)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=amp**2 * pm.gp.cov.ExpQuad(1, ell))
        f = gp.prior("f", X=X, dims="year")
        pm.Deterministic("rate", pm.math.exp(f), dims="year")
        pm.Deterministic("twice", 2 * f + x, dims="year")
        pm.Deterministic("variance", amp**2)
        pm.Poisson("y", pm.math.exp(f), observed=COUNTS, dims="year")
    return model


@pytest.fixture(scope="module")
def counts_fit(counts_model):
    return pmep.fit(
        model=counts_model,
        hyper="optimize",
        chains=CHAINS,
        draws=DRAWS,
        log_likelihood=True,
        random_seed=4,
        progressbar=False,
    )


@pytest.fixture(scope="module")
def gaussian_model():
    with pm.Model(coords={"site": range(N)}) as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.3), cov_func=pm.gp.cov.ExpQuad(1, 0.7))
        f = gp.prior("f", X=X, dims="site")
        pm.Normal("y", f, sigma, observed=REALS, dims="site")
    return model


def test_groups_names_dims_and_coords(counts_model, counts_fit):
    assert set(group_names(counts_fit)) == {
        "posterior",
        "log_likelihood",
        "observed_data",
        "constant_data",
        "posterior_mean",
        "posterior_sd",
        "fit",
        "fit_state",
    }
    posterior = group(counts_fit, "posterior")
    free = {rv.name for rv in counts_model.free_RVs} | {d.name for d in counts_model.deterministics}
    assert set(posterior.data_vars) == free
    assert posterior["f"].dims == ("chain", "draw", "year")
    assert posterior["ell"].dims == ("chain", "draw")
    assert posterior.sizes["chain"] == CHAINS
    assert posterior.sizes["draw"] == DRAWS
    np.testing.assert_array_equal(posterior["year"], YEARS)
    assert group(counts_fit, "log_likelihood")["y"].dims == ("chain", "draw", "year")
    np.testing.assert_array_equal(group(counts_fit, "observed_data")["y"], COUNTS)

    fit = group(counts_fit, "fit")
    for name in ("f", "ell", "amp", "level", "twice"):
        for moment in ("posterior_mean", "posterior_sd"):
            assert counts_fit[moment][name].dims == posterior[name].dims[2:]
    for name in ("y_loo", "y_site_precision", "y_site_shift"):
        assert fit[name].dims == ("year",)
    assert {n for n in fit.data_vars if n.startswith("hyper_mode_")} == {"hyper_mode_ell", "hyper_mode_amp"}
    assert fit["objective"].dims == fit["max_change"].dims == ("iteration",)
    assert fit["hyper_objective"].dims == ("hyper_iteration",)
    assert fit["log_evidence"].ndim == 0
    assert bool(fit["converged"])
    assert int(fit["n_iter"]) == fit.sizes["iteration"]
    assert fit["max_change"].values[-1] <= 1e-8
    np.testing.assert_allclose(fit["objective"].values[-1], fit["log_evidence"])
    assert fit.attrs["method"] == "ep"
    assert fit.attrs["status"].startswith("converged")
    assert fit.attrs["inference_library"] == "pymc_ep"
    assert fit.attrs["run_time"] > 0
    assert all(np.all(np.isfinite(v)) for v in fit.data_vars.values())
    assert not has_group(counts_fit, "sample_stats")


def test_draws_have_the_moments_of_the_fit(counts_fit):
    posterior = group(counts_fit, "posterior")
    size = CHAINS * DRAWS
    for name in ("f", "f_rotated_", "level", "ell", "amp", "twice"):
        draws = posterior[name].values.reshape(size, -1)
        mean, sd = counts_fit["posterior_mean"][name].values.ravel(), counts_fit["posterior_sd"][name].values.ravel()
        assert np.all(sd > 0), name
        np.testing.assert_allclose(draws.mean(axis=0), mean, atol=4.5 * sd.max() / np.sqrt(size), err_msg=name)
        # A log-normal's standard deviation has a wider error than a Gaussian's.
        np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.1 if name in ("ell", "amp") else 0.06, err_msg=name)


def test_draws_are_joint(counts_fit):
    """Deterministics and log likelihood belong to the very draw of the latent variables."""
    posterior = group(counts_fit, "posterior")
    np.testing.assert_allclose(posterior["rate"], np.exp(posterior["f"]), rtol=1e-10)
    np.testing.assert_allclose(posterior["twice"], 2 * posterior["f"] + X.ravel(), atol=1e-10)
    np.testing.assert_allclose(posterior["variance"], posterior["amp"] ** 2, rtol=1e-10)
    f = posterior["f"].values
    expected = COUNTS * f - np.exp(f) - np.array([np.log(float(np.prod(np.arange(1, c + 1)))) for c in COUNTS])
    np.testing.assert_allclose(group(counts_fit, "log_likelihood")["y"], expected, rtol=1e-8, atol=1e-8)


def test_mode_of_the_hyperparameters(counts_model, counts_fit):
    """No move of the hyperparameters raises log evidence plus log prior."""
    fit = group(counts_fit, "fit")
    best = float(fit["hyper_objective"].max())
    modes = {name: float(fit[f"hyper_mode_{name}"]) for name in ("ell", "amp")}
    for name in modes:
        for factor in (0.9, 1.1):
            moved = pmep.fit(
                model=counts_model,
                hyper="fixed",
                start=modes | {name: modes[name] * factor},
                draws=0,
                progressbar=False,
            )
            assert float(group(moved, "fit")["hyper_objective"].max()) < best


# Ten counts on a flexible curve: leaving one out changes the posterior more than importance weights can follow.
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution")
def test_arviz_reads_it(counts_fit):
    table = az.summary(counts_fit, var_names=["ell", "amp", "level"])
    assert list(table.index) == ["ell", "amp", "level"]
    loo = az.loo(counts_fit)
    assert np.isfinite(loo.elpd if PYMC_6 else loo.elpd_loo)


def test_gaussian_posterior_is_exact(gaussian_model):
    """Joint draws at fixed noise have the covariance of GP regression; leave-one-out is that of refits."""
    sigma = 0.4
    result = pmep.fit(
        model=gaussian_model, hyper="fixed", start={"sigma": sigma}, chains=1, draws=20_000, random_seed=1,
        progressbar=False,
    )  # fmt: skip
    prior = np.exp(-0.5 * (X - X.T) ** 2 / 0.7**2) + 1e-6 * np.eye(N)
    total = prior + sigma**2 * np.eye(N)
    mean = 0.3 + prior @ np.linalg.solve(total, REALS - 0.3)
    covariance = prior - prior @ np.linalg.solve(total, prior)
    fit = group(result, "fit")
    np.testing.assert_allclose(result["posterior_mean"]["f"], mean, atol=1e-8)
    np.testing.assert_allclose(result["posterior_sd"]["f"], np.sqrt(covariance.diagonal()), rtol=1e-7)
    draws = group(result, "posterior")["f"].values[0]
    scale = np.sqrt(np.outer(covariance.diagonal(), covariance.diagonal()))
    np.testing.assert_allclose(np.cov(draws.T) / scale, covariance / scale, atol=5 * np.sqrt(2 / 20_000))
    assert set(np.unique(group(result, "posterior")["sigma"])) == {0.4}
    # The variables behind f have their own posterior: f = 0.3 + L f_rotated.
    rotated = group(result, "posterior")["f_rotated_"].values[0]
    np.testing.assert_allclose(0.3 + rotated @ np.linalg.cholesky(prior).T, draws, atol=1e-5)
    # Rasmussen and Williams 2006, eqs. 5.10 to 5.12.
    inverse = np.linalg.inv(total)
    loo_variance = 1 / inverse.diagonal()
    loo_mean = REALS - (inverse @ (REALS - 0.3)) * loo_variance
    expected = -0.5 * np.log(2 * np.pi * loo_variance) - 0.5 * (REALS - loo_mean) ** 2 / loo_variance
    np.testing.assert_allclose(fit["y_loo"], expected, rtol=1e-8)


def test_draws_of_hyperparameters_against_the_exact_posterior(gaussian_model):
    """One hyperparameter: the Gaussian on the log scale against its exact posterior on a grid."""
    result = pmep.fit(model=gaussian_model, hyper="optimize", chains=1, draws=4000, random_seed=2, progressbar=False)
    prior = np.exp(-0.5 * (X - X.T) ** 2 / 0.7**2) + 1e-6 * np.eye(N)
    grid = np.linspace(-4.0, 2.0, 2001)

    def log_density(s):
        total = prior + np.exp(2 * s) * np.eye(N)
        residual = REALS - 0.3
        evidence = -0.5 * residual @ np.linalg.solve(total, residual) - 0.5 * np.linalg.slogdet(total)[1]
        return evidence - 0.5 * np.exp(2 * s)

    values = np.array([log_density(s) for s in grid])
    mode = grid[values.argmax()]
    curvature = -np.gradient(np.gradient(values, grid), grid)[values.argmax()]
    np.testing.assert_allclose(float(group(result, "fit")["hyper_mode_sigma"]), np.exp(mode), rtol=4e-3)
    draws = np.log(group(result, "posterior")["sigma"].values.ravel())
    np.testing.assert_allclose(draws.mean(), mode, atol=5 / np.sqrt(curvature * 4000))
    np.testing.assert_allclose(draws.std(), 1 / np.sqrt(curvature), rtol=0.06)


def test_seed_layout_and_no_draws(gaussian_model):
    options = {"model": gaussian_model, "hyper": "fixed", "progressbar": False}
    first, again, other = (
        pmep.fit(chains=2, draws=3, random_seed=seed, **options) for seed in (5, np.random.default_rng(5), 6)
    )
    np.testing.assert_array_equal(group(first, "posterior")["f"], group(again, "posterior")["f"])
    assert not np.array_equal(group(first, "posterior")["f"], group(other, "posterior")["f"])
    flat = np.unique(group(first, "posterior")["f"].values.reshape(6, N), axis=0)
    assert len(flat) == 6, "chains have to be independent draws"
    for seed in ("a", -1):
        with pytest.raises(ValueError, match=f"random_seed={seed!r} must be None, a whole number of at least 0"):
            pmep.fit(random_seed=seed, **options)
    none = pmep.fit(draws=0, **options)
    assert not has_group(none, "posterior")
    assert not has_group(none, "log_likelihood")
    np.testing.assert_array_equal(none["posterior_mean"]["f"], first["posterior_mean"]["f"])
    standard = group(pmep.fit(**options), "posterior")
    assert (standard.sizes["chain"], standard.sizes["draw"]) == (4, 1000)


def test_methods_agree_with_their_options(counts_model):
    """Schedules share a fixed point; the power changes it a little; settings are kept."""
    options = {"model": counts_model, "hyper": "fixed", "draws": 0, "progressbar": False}
    parallel = pmep.fit("ep", **options)
    sequential = pmep.fit("ep", schedule="sequential", **options)
    half = group(pmep.fit("ep", power=0.5, damping=0.8, **options), "fit")
    np.testing.assert_allclose(parallel["posterior_mean"]["f"], sequential["posterior_mean"]["f"], atol=1e-7)
    np.testing.assert_allclose(parallel["fit"]["log_evidence"], sequential["fit"]["log_evidence"], atol=1e-8)
    assert 1e-6 < abs(float(half["log_evidence"] - parallel["fit"]["log_evidence"])) < 0.05
    assert '"power": 0.5' in half.attrs["settings"]
    # Leave-one-out removes the whole site, whatever the power.
    np.testing.assert_allclose(half["y_loo"], parallel["fit"]["y_loo"], atol=0.02)


def test_leave_one_out_against_refits(counts_model):
    """EP's cavity against EP without the observation, hyperparameters fixed.

    The cavity lacks the observation, but the other sites keep what they learned from it: with ten counts that is
    worth a few hundredths of a nat.
    """
    options = {"hyper": "fixed", "draws": 0, "progressbar": False}
    whole = group(pmep.fit(model=counts_model, **options), "fit")
    ell, amp = float(whole["hyper_mode_ell"]), float(whole["hyper_mode_amp"])
    exact = []
    for left_out in (0, 4, 8):
        keep = np.delete(np.arange(N), left_out)
        with pm.Model() as model:
            level = pm.Normal("level", 1.0, 1.0)
            gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=amp**2 * pm.gp.cov.ExpQuad(1, ell))
            f = gp.prior("f", X=X)
            pm.Poisson("y", pm.math.exp(f[keep]), observed=COUNTS[keep])
            pm.Poisson("left_out", pm.math.exp(f[[left_out]]))
        refit = pmep.fit(model=model, **options)
        exact.append(float(pmep.log_predictive(refit, model, {"left_out": COUNTS[[left_out]]})["left_out"][0]))
    np.testing.assert_allclose(whole["y_loo"].values[[0, 4, 8]], exact, atol=0.05)


def test_start_from_a_container_or_values(counts_model, counts_fit):
    again = pmep.fit(model=counts_model, hyper="optimize", start=counts_fit, draws=0, progressbar=False)
    fit, other = group(again, "fit"), group(counts_fit, "fit")
    assert fit.sizes["hyper_iteration"] < other.sizes["hyper_iteration"]
    np.testing.assert_allclose(fit["log_evidence"], other["log_evidence"], atol=1e-6)
    np.testing.assert_allclose(again["posterior_mean"]["f"], counts_fit["posterior_mean"]["f"], atol=1e-4)
    held = pmep.fit(model=counts_model, start={"ell": 0.6}, hyper="fixed", draws=0, progressbar=False)
    np.testing.assert_allclose(float(group(held, "fit")["hyper_mode_ell"]), 0.6)
    at_container = pmep.fit(model=counts_model, start=counts_fit, hyper="fixed", draws=0, progressbar=False)
    np.testing.assert_allclose(group(at_container, "fit")["hyper_mode_ell"], other["hyper_mode_ell"])
    assert int(group(at_container, "fit")["n_iter"]) == 1


def test_stopping_early_is_said(counts_model):
    with pytest.warns(pmep.ConvergenceWarning, match=r"may be off.*2 iterations"):
        result = pmep.fit(model=counts_model, hyper="fixed", max_iter=2, draws=0, progressbar=False)
    fit = group(result, "fit")
    assert not bool(fit["converged"])
    assert int(fit["n_iter"]) == 2
    assert "stopped after 2 iterations" in fit.attrs["status"]


def test_progress(counts_model, capfd, monkeypatch):
    """Nothing in the first two seconds, nothing when asked not to; otherwise a bar with what is maximised."""
    options = {"model": counts_model, "hyper": "fixed", "draws": 0}
    # Compilers take longer than that, and may speak.
    pmep.fit(progressbar=False, **options)
    capfd.readouterr()
    pmep.fit(**options)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(progress, "_SILENT_SECONDS", -1.0)
    pmep.fit(progressbar=False, **options)
    assert capfd.readouterr() == ("", "")
    pmep.fit(progressbar=True, **(options | {"hyper": "optimize"}))
    out, err = capfd.readouterr()
    assert out == ""
    assert "EP" in err
    assert "objective" in err


def test_start_point_for_sampling():
    """A rectified likelihood has no density at PyMC's own start, but at ours, and pm.sample runs from it."""
    with pm.Model() as model:
        f = pm.MvNormal("f", np.full(N, 2.0), np.exp(-0.5 * (X - X.T) ** 2) + 0.1 * np.eye(N))
        pmep.RectifiedPoisson("y", f - 2.0, observed=COUNTS)
    result = pmep.fit(model=model, draws=0, progressbar=False)
    start = pmep.start_point(result)
    assert set(start) == {"f"}
    logp = model.compile_logp(mode=numpy_mode())
    assert not np.isfinite(logp(model.initial_point()))
    assert np.isfinite(logp(start))
    with model:
        trace = pm.sample(
            draws=2, tune=2, chains=1, cores=1, initvals=start, progressbar=False, random_seed=1,
            compute_convergence_checks=False, compile_kwargs={"mode": numpy_mode()},
        )  # fmt: skip
    assert np.all(np.isfinite(group(trace, "posterior")["f"]))


def test_start_point_has_every_free_variable(counts_model, counts_fit):
    start = pmep.start_point(counts_fit)
    assert set(start) == {rv.name for rv in counts_model.free_RVs}
    point = counts_model.initial_point()
    assert {name: np.shape(value) for name, value in start.items() if name in point} == {
        name: point[name].shape for name in start if name in point
    }


def test_a_model_that_has_been_predicted_from_has_its_data_once():
    """PyMC 5.28 puts observed variables into the model's list again when it draws from their predictive."""
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("f", 2.0, 0.5, shape=3)), observed=[4, 0, 7])
    first = pmep.fit(model=model, draws=20, random_seed=1, progressbar=False)
    pm.sample_posterior_predictive(first, model=model, random_seed=2, progressbar=False)
    again = pmep.fit(model=model, draws=20, random_seed=1, progressbar=False)
    np.testing.assert_allclose(again["fit"]["log_evidence"], first["fit"]["log_evidence"], rtol=1e-12)
    assert len(model.observed_RVs) == 1


def test_supported_lists_every_site():
    table = pmep.supported()
    for name in sites():
        assert name in table
    assert "optimize" in table


def test_a_scale_that_the_data_put_at_zero():
    """Counts without structure: the amplitude's optimum is at zero, minus infinity on the log scale."""
    rng = np.random.default_rng(1)
    x, y = np.linspace(0.0, 5.0, 12)[:, None], rng.poisson(3, 12)
    with pm.Model() as model:
        ell, amp = pm.InverseGamma("ell", mu=2, sigma=1), pm.HalfNormal("amp", 1)
        level = pm.Normal("level", 0, 2)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=amp**2 * pm.gp.cov.ExpQuad(1, ell))
        pm.Poisson("y", pm.math.exp(gp.prior("f", X=x)), observed=y)
    result = pmep.fit(model=model, hyper="optimize", chains=1, draws=50, random_seed=1, progressbar=False)
    fit = group(result, "fit")
    assert np.isfinite(result["posterior_mean"]["amp"])
    assert np.isfinite(result["posterior_sd"]["amp"])
    assert group(result, "posterior")["amp"].max() < 10
    assert "held at the mode" in fit.attrs["status"]


def test_a_deterministic_of_data_alone_is_reported():
    with pm.Model() as model:
        x = pm.Deterministic("x", pt.as_tensor(np.arange(4.0)))
        pm.Poisson("y", pt.exp(pm.Normal("a", 0, 1) + 0.1 * x), observed=[1, 0, 2, 1])
    idata = pmep.fit(model=model, draws=5)
    np.testing.assert_allclose(idata["posterior_mean"]["x"], np.arange(4.0))
    np.testing.assert_allclose(idata["posterior_sd"]["x"], 0.0)
    assert idata["posterior"]["x"].shape == (4, 5, 4)


def test_a_hyperparameter_in_units_of_a_hundred_thousandth():
    """Untransformed, its scale is the user's: differences for the curvature must follow it (conjugate closed form)."""
    unit, n = 1e-5, 12
    y = unit * np.random.default_rng(6).normal(1.0, 1.0, n)
    with pm.Model() as model:
        c = pm.Normal("c", 0.0, 3 * unit)
        u = pm.Normal("u", 0.0, 0.6 * unit, shape=n)
        pm.Normal("y", c + u, 0.8 * unit, observed=y)
    idata = pmep.fit(model=model, latent=["u"], hyper="optimize", draws=0)
    precision = n / unit**2 + 1 / (3 * unit) ** 2
    np.testing.assert_allclose(idata["posterior_mean"]["c"], y.sum() / unit**2 / precision, rtol=1e-4)
    np.testing.assert_allclose(idata["posterior_sd"]["c"], precision**-0.5, rtol=1e-5)


def test_names_that_other_packages_give():
    """Bambi names its variables by formula, with characters that PyTensor reads as formats."""
    group = np.arange(12) % 3
    with pm.Model() as model:
        sigma = pm.HalfNormal("1|group_sigma", 1)
        offset = pm.Normal("1|group_offset", 0, 1, shape=3)
        pm.Poisson("y", pm.math.exp(sigma * offset[group]), observed=group)
    idata = pmep.fit(model=model, progressbar=False, draws=10, chains=1)
    assert idata["posterior"]["1|group_offset"].shape == (1, 10, 3)


def test_densities_of_draws_are_added_on_request():
    """As `pm.sample` has it; PyMC's own function adds the log likelihoods to a fit without them."""
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("a", 0, 1, shape=3)), observed=[1, 2, 3])
    options = {"model": model, "progressbar": False, "draws": 10, "chains": 1, "random_seed": 1}
    without, stored = pmep.fit(**options), pmep.fit(log_likelihood=True, **options)
    assert not has_group(without, "log_likelihood")
    assert not {"log_p", "log_q"} & set(without["fit"]) and {"log_p", "log_q"} <= set(stored["fit"])
    np.testing.assert_array_equal(group(without, "posterior")["a"], group(stored, "posterior")["a"])
    added = pm.compute_log_likelihood(without, model=model, progressbar=False)
    np.testing.assert_allclose(
        group(added, "log_likelihood")["y"], group(stored, "log_likelihood")["y"], rtol=1e-8, atol=1e-10
    )
    with pytest.raises(ValueError, match="log_likelihood=True asks for densities of draws, and draws=0 for none"):
        pmep.fit(log_likelihood=True, **options | {"draws": 0})


def test_dims_whose_length_is_that_of_their_data():
    with pm.Model() as model:
        x = pm.Data("x", X.ravel(), dims="row")
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("y", slope * x, 0.3, observed=REALS, dims="row")
    fitted = pmep.fit(model=model, draws=10, progressbar=False)
    expected = (X.ravel() @ REALS) / (X.ravel() @ X.ravel() + 0.3**2)
    np.testing.assert_allclose(float(fitted["posterior_mean"]["slope"]), expected, rtol=1e-10)
