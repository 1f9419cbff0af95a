"""`marginalize`, samplers on what it returns, and `recover`, against closed forms of Gaussian models."""

import re
import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats
from pymc.model.fgraph import clone_model

import pymc_ep as pmep
from pymc_ep.compat import group, group_names, make_container

N = 8
X = np.linspace(0.0, 3.0, N)
CORRELATION = np.exp(-0.5 * (X[:, None] - X) ** 2)
Y = 1.5 * np.sin(2 * X) + 0.3 * np.random.default_rng(8).normal(size=N)
SIGMA = 0.4


@pytest.fixture
def model():
    """All that a marginal model keeps or drops: transforms, dims, data, Deterministics, a potential, predictions."""
    with pm.Model(coords={"x": X, "part": ["smooth", "level"]}) as model:
        y = pm.Data("y_data", Y, dims="x")
        scale = pm.HalfNormal("scale", 2.0, dims="part", initval=[1.0, 0.5])
        pm.Deterministic("variance", scale**2, dims="part")
        pm.Potential("prefers", -0.1 * scale.sum())
        covariance = scale[0] ** 2 * pt.as_tensor(CORRELATION) + scale[1] ** 2 + 1e-8 * pt.eye(N)
        f = pm.MvNormal("f", np.zeros(N), covariance, dims="x")
        pm.Deterministic("twice", 2 * f, dims="x")
        pm.Normal("y", f, SIGMA, observed=y, dims="x")
        pm.Normal("ahead", f[-1], 1.0)
    return model


def log_density(scale, y=Y):
    """Log joint of data and the logarithms of the two scales."""
    total = scale[0] ** 2 * CORRELATION + scale[1] ** 2 + (1e-8 + SIGMA**2) * np.eye(N)
    likelihood = scipy.stats.multivariate_normal.logpdf(y, np.zeros(N), total)
    return likelihood + scipy.stats.halfnorm.logpdf(scale, scale=2.0).sum() + np.log(scale).sum() - 0.1 * scale.sum()


def test_what_is_kept(model):
    marginal = pmep.marginalize(model, method="ep")
    assert [rv.name for rv in marginal.free_RVs] == ["scale"]
    assert [d.name for d in marginal.deterministics] == ["variance"]
    assert [p.name for p in marginal.potentials] == ["prefers", "ep_log_evidence"]
    assert not marginal.observed_RVs
    assert marginal.named_vars_to_dims["scale"] == ("part",)
    assert tuple(marginal.coords["part"]) == ("smooth", "level")
    assert set(marginal.initial_point()) == {"scale_log__"}
    np.testing.assert_allclose(marginal.initial_point()["scale_log__"], np.log([1.0, 0.5]))
    assert [rv.name for rv in model.free_RVs] == ["scale", "f", "ahead"], "the full model stays as it was"


def test_density_and_gradient(model):
    marginal = pmep.marginalize(model)
    logp, dlogp = marginal.compile_logp(), marginal.compile_dlogp()
    for scale in np.array([[1.0, 0.5], [0.3, 2.0]]):
        point = {"scale_log__": np.log(scale)}
        np.testing.assert_allclose(logp(point), log_density(scale), rtol=1e-8)
        step = 1e-5
        expected = [
            (log_density(scale * np.exp(step * e)) - log_density(scale * np.exp(-step * e))) / (2 * step)
            for e in np.eye(2)
        ]
        np.testing.assert_allclose(dlogp(point), expected, rtol=1e-5, atol=1e-6)


def test_new_data_reach_the_evidence(model):
    marginal = pmep.marginalize(model)
    logp = marginal.compile_logp()
    with marginal:
        pm.set_data({"y_data": Y[::-1] + 1.0})
    scale = np.array([1.0, 0.5])
    np.testing.assert_allclose(logp({"scale_log__": np.log(scale)}), log_density(scale, Y[::-1] + 1.0), rtol=1e-8)


def test_a_copy_of_the_marginal_model(model):
    model.rvs_to_initial_values[model["scale"]] = None  # PyMC copies no model with initial values
    marginal = pmep.marginalize(model)
    point = {"scale_log__": np.log([1.0, 0.5])}
    np.testing.assert_allclose(clone_model(marginal).compile_logp()(point), marginal.compile_logp()(point), rtol=1e-10)


def test_latents_may_be_left_to_the_sampler():
    """A level that is not integrated out is one more variable of the marginal model."""
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0)
        f = pm.MvNormal("f", np.zeros(N), CORRELATION + 1e-8 * np.eye(N))
        pm.Normal("y", level + f, SIGMA, observed=Y)
    marginal = pmep.marginalize(model, ["f"])
    found = marginal.compile_logp()({"level": np.array(0.7)})
    total = CORRELATION + (1e-8 + SIGMA**2) * np.eye(N)
    expected = scipy.stats.multivariate_normal.logpdf(Y, np.full(N, 0.7), total) + scipy.stats.norm.logpdf(0.7)
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    draws = {"level": np.array([[0.7, 0.1, -0.3]])}
    recovered = pmep.recover(container(draws), model, random_seed=1, progressbar=False)
    assert "f" in group(recovered, "posterior")


def container(draws):
    from pymc_ep.compat import to_dataset

    return make_container({"posterior": to_dataset(draws, coords={}, dims={}, sample_dims=("chain", "draw"))})


@pytest.mark.parametrize(
    ("second", "what"), [(3.0, r"disagree \(R-hat [1-3]\.\d+\)"), (0.0, "do not move")], ids=["apart", "stuck"]
)
def test_chains_that_disagree_are_told(model, monkeypatch, second, what):
    scale = np.exp(np.random.default_rng(3).normal(0.0, 0.3, size=(2, 100, 2)))
    scale[1, :, 1] = second * scale[1, :, 1] + (second == 0)
    monkeypatch.setattr(pm, "sample", lambda draws, **options: container({"scale": scale}))
    with pytest.warns(pmep.ConvergenceWarning, match=f"chains of scale {what}: sample longer, with hyper='sample'"):
        found = pmep.fit(model=model, hyper="sample", draws=100, chains=2, progressbar=False)
    assert not bool(group(found, "fit")["converged"])


@pytest.mark.parametrize(("divergent", "converged"), [(4, True), (12, False)])
def test_chains_that_diverge_are_told(model, monkeypatch, divergent, converged):
    from pymc_ep.compat import to_dataset

    scale = np.exp(np.random.default_rng(3).normal(0.0, 0.3, size=(2, 100, 2)))
    sampled = container({"scale": scale})
    stats = {"diverging": np.arange(200).reshape(2, 100) < divergent}
    stats = to_dataset(stats, coords={}, dims={}, sample_dims=("chain", "draw"))
    sampled = make_container({"posterior": group(sampled, "posterior"), "sample_stats": stats})
    monkeypatch.setattr(pm, "sample", lambda draws, **options: sampled)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", pmep.ConvergenceWarning)
        found = pmep.fit(model=model, hyper="sample", draws=100, chains=2, progressbar=False)
    said = [str(w.message) for w in caught if issubclass(w.category, pmep.ConvergenceWarning)]
    assert bool(group(found, "fit")["converged"]) == converged == (not said)
    assert converged or re.search(r"6% of the transitions of scale diverged.*improper.*proper priors first", said[0])


def test_a_sampled_improper_posterior_has_not_converged(monkeypatch):
    """Two effects about a flat level: for large tau the evidence is that of their difference, 1 / tau."""
    tau = np.exp(np.random.default_rng(3).normal(0.0, 0.3, size=(2, 100)))
    monkeypatch.setattr(pm, "sample", lambda draws, **options: container({"tau": tau}))
    with pm.Model() as model:
        effects = pm.Normal("effects", pm.Flat("level"), pm.HalfFlat("tau"), shape=2)
        pm.Normal("y", effects, 1.0, observed=[0.3, 1.1])
    before = pytest.warns(pmep.ConvergenceWarning, match="^The density .* does not fall on the way to tau")
    after = pytest.warns(pmep.ConvergenceWarning, match="may be off: the density .* does not fall on the way to tau")
    with before, after:
        found = pmep.fit(model=model, hyper="sample", draws=100, chains=2, progressbar=False)
    assert not bool(group(found, "fit")["converged"])
    with pytest.warns(pmep.ConvergenceWarning, match=r"not fall on the way to tau.*give them proper priors") as caught:
        pmep.fit(model=model, draws=0, progressbar=False)
    assert "hyper='sample'" not in str(caught[0].message)


def test_refusals(model):
    with pytest.raises(ValueError, match="has no option 'sweeps'"):
        pmep.marginalize(model, sweeps=3)
    with pytest.raises(ValueError, match="method='vb' does not exist"):
        pmep.marginalize(model, method="vb")
    with pytest.raises(ValueError, match="tol=-1 must be positive"):
        pmep.marginalize(model, tol=-1)
    with pytest.raises(ValueError, match="no draws of 'scale', 'f', and these are not what can"):
        pmep.recover(container({"other": np.zeros((1, 3))}), model)
    with pytest.raises(ValueError, match="nothing to recover"):
        pmep.recover(pmep.fit(model=model, draws=2, progressbar=False), model)
    with pytest.raises(ValueError, match=r"no group 'posterior': recover\(\) takes what a sampler"):
        pmep.recover(pmep.fit(model=model, draws=0, progressbar=False), model)
    with pytest.raises(ValueError, match="max_fits=0"):
        pmep.recover(container({"scale": np.ones((1, 3, 2))}), model, max_fits=0)
    with pytest.raises(ValueError, match="takes no checkpoint"):
        pmep.fit(model=model, hyper="sample", checkpoint="here.npz")
    with pytest.raises(ValueError, match="this fit has hyper='integrate', without chains"):
        pmep.fit(model=model, sample_kwargs={"tune": 5})
    with pytest.raises(ValueError, match=r"'chains', which is an argument of fit\(\) itself"):
        pmep.fit(model=model, hyper="sample", sample_kwargs={"chains": 2})
    with pytest.raises(ValueError, match=r"'initvals', which hyper='sample' sets; start="):
        pmep.fit(model=model, hyper="sample", sample_kwargs={"initvals": {}})
    with pm.Model() as bare:
        pm.Normal("y", pm.Normal("f", 0.0, 1.0, shape=N), 1.0, observed=Y)
    with pytest.raises(pmep.UnsupportedModelError, match="no hyperparameters"):
        pmep.marginalize(bare)
    with pm.Model() as field:
        potential = pm.Laplace.dist(0, pm.HalfNormal("b"))
        u = pmep.SparseField("u", operator=np.diff(np.eye(3), axis=0), potential=potential)
        pm.Normal("y", u, 1.0, observed=[2.0, 3.0, 2.5])
    with pytest.raises(pmep.UnsupportedModelError, match="method='map' has no log evidence to sample"):
        pmep.marginalize(field, method="map")
    with model:
        pm.Deterministic("ep_log_evidence", model["scale"].sum())
    with pytest.raises(pmep.UnsupportedModelError, match="needs the name 'ep_log_evidence'"):
        pmep.marginalize(model)


def exact_mean_of_logs():
    """Posterior means of the logarithms of the two scales, by a fine grid."""
    logs = np.linspace(-7.0, 2.5, 120)
    grid = np.array([(a, b) for a in logs for b in logs])
    log_weight = np.array([log_density(np.exp(row)) for row in grid])
    weight = np.exp(log_weight - log_weight.max())
    return weight @ grid / weight.sum()


def test_nuts_on_the_evidence():
    """One amplitude by NUTS against quadrature, within the chains' own error; then the latent variables."""
    with pm.Model() as model:
        amp = pm.HalfNormal("amp", 2.0)
        f = pm.MvNormal("f", np.zeros(N), amp**2 * pt.as_tensor(CORRELATION) + 1e-8 * pt.eye(N))
        pm.Normal("y", f, SIGMA, observed=Y)
    marginal = pmep.marginalize(model)
    sampled = pm.sample(
        400, tune=300, chains=2, cores=1, model=marginal, nuts_sampler="pymc", random_seed=5, progressbar=False
    )
    logs = np.linspace(-6.0, 4.0, 500)
    eigenvalues, vectors = np.linalg.eigh(CORRELATION)
    spread = np.exp(2 * logs)[:, None] * eigenvalues + 1e-8 + SIGMA**2
    along = vectors.T @ Y
    log_weight = -0.5 * (along**2 / spread + np.log(spread)).sum(axis=1)
    log_weight += scipy.stats.halfnorm.logpdf(np.exp(logs), scale=2.0) + logs
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    draws = np.log(group(sampled, "posterior")["amp"].values)
    error = draws.std() / np.sqrt(float(az.ess(draws)))
    assert abs(draws.mean() - weight @ logs) < 4.5 * error
    assert abs(draws.std() / np.sqrt(weight @ (logs - weight @ logs) ** 2) - 1) < 4.5 / np.sqrt(2 * az.ess(draws))
    assert marginal["ep_log_evidence"].owner.op.counts.failed == 0

    result = pmep.recover(sampled, model, max_fits=100, random_seed=1, progressbar=False)
    assert {"posterior", "observed_data", "fit", "fit_state", "sample_stats"} <= set(group_names(result))
    gain = np.exp(2 * logs)[:, None] * eigenvalues / spread
    mean = weight @ (gain * along) @ vectors.T
    fit = group(result, "fit")
    slope = np.abs(np.gradient(gain * along, logs, axis=0) @ vectors.T).max()
    np.testing.assert_allclose(result["posterior_mean"]["f"], mean, atol=4.5 * error * np.sqrt(2.0) * slope)
    assert "log_evidence" not in fit, "a sampler does not know the normalising constant"


def test_sample_is_marginalize_sample_recover(model, monkeypatch):
    """The same numbers as by hand, with the sampler's arguments handed through."""
    scale = np.exp(np.random.default_rng(3).normal(0.0, 0.3, size=(3, 5, 2)))
    calls = []

    def sample(draws, **options):
        calls.append((draws, options))
        return container({"scale": scale})

    monkeypatch.setattr(pm, "sample", sample)
    options = {"chains": 3, "random_seed": 7, "progressbar": False}
    start = {"scale": np.array([2.0, 0.1])}
    more, stored = {"target_accept": 0.95, "tune": 50}, options | {"log_likelihood": True}
    found = pmep.fit(model=model, hyper="sample", draws=5, start=start, sample_kwargs=more, **stored)
    expected = pmep.recover(container({"scale": scale}), model, log_likelihood=True, random_seed=7, progressbar=False)
    for name, variable in (("posterior", "f"), ("log_likelihood", "y")):
        np.testing.assert_array_equal(group(found, name)[variable], group(expected, name)[variable])
    ((draws, given),) = calls
    assert draws == 5
    assert {name: given[name] for name in options | more} == options | more
    np.testing.assert_allclose(given["initvals"]["scale"], start["scale"])
    assert [p.name for p in given["model"].potentials] == ["prefers", "ep_log_evidence"]


def test_recovered_dims_coords_and_moments(model):
    rng = np.random.default_rng(3)
    scale = np.exp(rng.normal(0.0, 0.3, size=(2, 7, 2)))
    given = container({"scale": scale})
    result = pmep.recover(given, model, draws=400, log_likelihood=True, random_seed=1, progressbar=False)
    posterior = group(result, "posterior")
    assert posterior["f"].dims == ("chain", "draw", "x")
    assert posterior["scale"].dims == ("chain", "draw", "part")
    np.testing.assert_array_equal(posterior["x"], X)
    np.testing.assert_array_equal(posterior["scale"], np.repeat(scale, 400, axis=1))
    np.testing.assert_allclose(posterior["twice"], 2 * posterior["f"], rtol=1e-12)
    # No observation depends on it, so that it is drawn from its distribution given the rest.
    innovation = posterior["ahead"] - posterior["f"][..., -1]
    np.testing.assert_allclose([innovation.mean(), innovation.std()], [0, 1], atol=0.05)
    flat = scale.reshape(-1, 2)
    means, variances = [], []
    for a, b in flat:
        prior = a**2 * CORRELATION + b**2 + 1e-8 * np.eye(N)
        gain = np.linalg.solve(prior + SIGMA**2 * np.eye(N), prior)
        means.append(gain.T @ Y)
        variances.append(np.diag(prior - prior @ gain))
    own = posterior["f"].values.reshape(len(flat), 400, N)
    np.testing.assert_allclose((own.mean(axis=1) - means) / np.sqrt(variances), 0.0, atol=4.5 / np.sqrt(400))
    mean = np.mean(means, axis=0)
    np.testing.assert_allclose(result["posterior_mean"]["f"], mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(
        result["posterior_sd"]["f"] ** 2, np.mean(variances + (means - mean) ** 2, axis=0), rtol=1e-6
    )
    log_likelihood = scipy.stats.norm.logpdf(Y, posterior["f"], SIGMA)
    np.testing.assert_allclose(group(result, "log_likelihood")["y"], log_likelihood, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(
        pmep.predict(result, model, var_names=["f"])["f_mean"], result["posterior_mean"]["f"], rtol=1e-6
    )
    assert group_names(given) == ("posterior",), "what is given stays as it was"


def test_at_most_so_many_fits(model):
    scale = np.exp(np.random.default_rng(3).normal(0.0, 0.3, size=(2, 9, 2)))
    result = pmep.recover(container({"scale": scale}), model, max_fits=6, random_seed=1, progressbar=False)
    posterior = group(result, "posterior")
    assert "fits at 6 draws" in group(result, "fit").attrs["status"]
    np.testing.assert_array_equal(posterior["scale"], np.repeat(scale[:, ::3], 3, axis=1))
    assert len(np.unique(posterior["f"].values[..., 0])) == 18


def test_a_bounded_and_an_ordered_hyperparameter_come_back():
    """Transforms whose bounds or order depend on other hyperparameters are undone and done again."""
    with pm.Model() as model:
        low = pm.HalfNormal("low", 1.0)
        scale = pm.Uniform("scale", low, low + 2.0)
        pair = pm.Normal("pair", [0.0, 1.0], 1.0, transform=pm.distributions.transforms.ordered)
        f = pm.Normal("f", 0.0, scale, shape=N)
        pm.Normal("y", f + pair[0], 0.3 + pt.exp(pair[1]), observed=Y)
    draws = {
        "low": np.array([[0.5, 1.0]]),
        "scale": np.array([[1.0, 2.5]]),
        "pair": np.array([[[-1.0, 0.5], [0.2, 0.9]]]),
    }
    idata = pmep.recover(container(draws), model, progressbar=False, random_seed=0)
    for name, values in draws.items():
        np.testing.assert_allclose(idata["posterior_mean"][name], values.mean(axis=(0, 1)), rtol=1e-10, err_msg=name)


# JAX warns of forks wherever another test has imported it; chains do not use it.
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes(model, start):
    """Chains in processes of their own, forked or spawned."""
    marginal = pmep.marginalize(model)
    options = {"nuts_sampler": "pymc", "mp_ctx": start, "cores": 2, "chains": 2, "progressbar": False}
    sampled = pm.sample(50, tune=50, model=marginal, random_seed=1, compute_convergence_checks=False, **options)
    assert np.isfinite(group(sampled, "posterior")["scale"]).all()
    if start == "fork":
        assert marginal["ep_log_evidence"].owner.op.counts.evaluations > 200


@pytest.mark.parametrize(
    ("package", "options"),
    [
        ("nutpie", {"backend": "numba"}),
        ("nutpie", {"backend": "jax", "gradient_backend": "pytensor"}),
        ("nutpie", {"backend": "jax", "gradient_backend": "jax"}),
    ],
)
def test_nutpie(model, package, options):
    nutpie = pytest.importorskip(package)
    model.rvs_to_initial_values[model["scale"]] = None
    compiled = nutpie.compile_pymc_model(pmep.marginalize(model), **options)
    sampled = nutpie.sample(compiled, draws=200, tune=200, chains=2, seed=1, progress_bar=False)
    draws = np.log(sampled["posterior"]["scale"].values)
    mean = exact_mean_of_logs()
    for k in range(2):
        error = draws[..., k].std() / np.sqrt(float(az.ess(draws[..., k])))
        assert abs(draws[..., k].mean() - mean[k]) < 4.5 * error


@pytest.mark.parametrize("sampler", ["numpyro", "blackjax"])
def test_jax_samplers(model, sampler):
    pytest.importorskip(sampler)
    marginal = pmep.marginalize(model)
    sampled = pm.sample(100, tune=100, chains=2, model=marginal, nuts_sampler=sampler, random_seed=1, progressbar=False)
    assert np.isfinite(group(sampled, "posterior")["scale"]).all()


def test_proper_posteriors_are_not_called_improper(monkeypatch):
    """Priors are proper, though the density rises without end towards a scale of zero with all rates at their mean."""

    def no_sampling(*args, **kwargs):
        raise RuntimeError("sampled")

    monkeypatch.setattr(pm, "sample", no_sampling)
    x, group_of = np.linspace(0, 2, 12), np.arange(12) % 3
    with pm.Model() as decay:
        rate = pm.Normal("rate", pm.Normal("mean", 0, 1), pm.HalfNormal("spread", 1), shape=3)
        curve = pm.Normal("height", 0, 3) * pt.exp(-pt.exp(rate)[group_of] * x)
        pm.Normal("y", curve, pm.HalfNormal("noise", 1), observed=2 * np.exp(-x))
    with pm.Model() as lasso:
        scale = pm.HalfCauchy("tau", 1) * pt.sqrt(pm.Exponential("lam", 0.5, shape=27))
        pm.Normal("y", pm.Normal("beta", 0, scale, shape=27), pm.HalfNormal("noise", 1), observed=np.arange(27.0) % 4)
    for model in (decay, lasso):
        with warnings.catch_warnings():
            warnings.simplefilter("error", pmep.ConvergenceWarning)
            with pytest.raises(RuntimeError, match="sampled"):
                pmep.fit(model=model, hyper="sample", draws=10, progressbar=False)


def test_an_improper_posterior_is_named_before_chains_run_away(monkeypatch):
    """One effect under a flat prior on its scale is improper towards infinity; a second one makes it proper."""

    def no_sampling(*args, **kwargs):
        raise RuntimeError("sampled")

    monkeypatch.setattr(pm, "sample", no_sampling)
    for effects, start in ((1, None), (3, None), (3, {"tau": 1e-12}), (3, {"tau": 1e9})):
        with pm.Model() as model:
            tau = pm.HalfFlat("tau")
            pm.Normal("y", pm.Normal("f", 0.0, tau, shape=effects), 1.0, observed=np.full(effects, 3.0))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", pmep.ConvergenceWarning)
            with pytest.raises(RuntimeError, match="sampled"):
                pmep.fit(model=model, hyper="sample", draws=10, start=start, progressbar=False)
        said = [str(w.message) for w in caught if issubclass(w.category, pmep.ConvergenceWarning)]
        if effects == 1:
            assert re.search(r"does not fall on the way to tau = .*e\+.*improper.*proper priors", said[0])
        else:
            assert not said
