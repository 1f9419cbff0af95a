"""Fits of preferences integrated over scales: against importance sampling, quadrature, modes and themselves."""

import pickle
import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.special import logsumexp, ndtr
from scipy.stats import gamma, halfnorm, norm

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.models.preferences.engine.evidence import ComparisonEvidence

from . import simulated

X = np.array([0.0, 0.5, 2.0])
QUIET = {"draws": 0, "progressbar": False}
U, PAIRS = 3, 8
KERNEL = np.exp(-((X[:, None] - X) ** 2)) + 0.1 * np.eye(3)


def answers(n_users=U, n_pairs=PAIRS):
    """Answers of people with a scale of one."""
    return simulated.answers(KERNEL, n_users, n_pairs, seed=5)


def model_of(
    rows, sigma=lambda name: pm.HalfNormal(name, 1.0), *, length=False, compare=pmep.PairwiseProbit, items="abc"
):
    """A model of given comparisons."""
    users, winners, losers = rows
    with pm.Model(coords={"user": range(users.max() + 1), "item": list(items)}) as model:
        f = pmep.PreferenceUtility(
            "f", kernel=kernel_of(length), sigma=sigma("sigma"), jitter=0.0, dims=("user", "item")
        )
        compare("prefers", f, users=users, winners=np.asarray(winners), losers=np.asarray(losers))
        pm.Deterministic("scaled", f / 2.0)
    return model


def kernel_of(length):
    if not length:
        return KERNEL
    return pm.math.exp(-(((X[:, None] - X) / pm.Gamma("length", 4.0, 4.0)) ** 2)) + 0.1 * np.eye(3)


@pytest.fixture(scope="module")
def few():
    rows = answers()
    model = model_of(rows)
    return rows, model, pmep.fit(model=model, draws=1000, log_likelihood=True, random_seed=1, progressbar=False)


@pytest.fixture(scope="module")
def sampled():
    """Weighted draws of sigma and utilities from the prior, given the comparisons."""
    users, winners, losers = answers()
    rng, n = np.random.default_rng(0), 600_000
    sigma = halfnorm.rvs(size=n, random_state=rng)
    f = sigma[:, None, None] * (rng.normal(size=(n, U, 3)) @ np.linalg.cholesky(KERNEL).T)
    log_w = norm.logcdf(f[:, users, winners] - f[:, users, losers]).sum(axis=1)
    return sigma, f, np.exp(log_w - logsumexp(log_w)), logsumexp(log_w) - np.log(n)


def test_scale_utilities_and_evidence_are_those_of_importance_sampling(few, sampled):
    _, _, idata = few
    sigma, f, weights, log_z = sampled
    assert "hyperparameters integrated over by" in idata["fit"].attrs["status"]
    assert "integrated over the prior" in idata["fit"].attrs["log_evidence_is"]
    # What is left is EP's own error, for people who contradict themselves.
    assert float(idata["fit"]["log_evidence"]) == pytest.approx(log_z, abs=0.06)
    for name, values in (("sigma", sigma), ("f", f)):
        mean = np.tensordot(weights, values, 1)
        sd = np.sqrt(np.tensordot(weights, (values - mean) ** 2, 1))
        np.testing.assert_allclose((idata["posterior_mean"][name] - mean) / sd, 0.0, atol=0.05)
        np.testing.assert_allclose(idata["posterior_sd"][name] / sd, 1.0, atol=0.07)
        drawn = group(idata, "posterior")[name].to_numpy().reshape(-1, *np.shape(mean))
        np.testing.assert_allclose((drawn.mean(axis=0) - mean) / sd, 0.0, atol=0.1)
        np.testing.assert_allclose(drawn.std(axis=0) / sd, 1.0, atol=0.1)
    # At the mode sigma has no spread, and utilities have half of it.
    with pytest.warns(UserWarning, match="less certain"):
        mode = pmep.fit(model=few[1], hyper="optimize", **QUIET)
    assert float(mode["posterior_sd"]["f"].mean()) < 0.8 * float(idata["posterior_sd"]["f"].mean())


def test_draws_are_joint(few, sampled):
    _, _, idata = few
    sigma, f, weights, _ = sampled
    drawn = group(idata, "posterior")
    size = np.abs(f).mean(axis=(1, 2))
    expected = np.cov(sigma, size, aweights=weights)
    found = np.cov(drawn["sigma"].values.ravel(), np.abs(drawn["f"].values).mean(axis=(2, 3)).ravel())
    correlations = [c[0, 1] / np.sqrt(c[0, 0] * c[1, 1]) for c in (found, expected)]
    assert correlations[0] == pytest.approx(correlations[1], abs=0.06)
    np.testing.assert_allclose(drawn["scaled"], drawn["f"] / 2.0)
    users, winners, losers = few[0]
    d = drawn["f"].values[..., users, winners] - drawn["f"].values[..., users, losers]
    np.testing.assert_allclose(group(idata, "log_likelihood")["prefers"], norm.logcdf(d), atol=1e-9)


def test_predictions_are_those_of_importance_sampling(few, sampled):
    _, model, idata = few
    _, f, weights, _ = sampled
    first, second = np.triu_indices(3, 1)
    rows = np.repeat(np.arange(U), 3), np.tile(first, U), np.tile(second, U)
    chance = ndtr(f[:, rows[0], rows[1]] - f[:, rows[0], rows[2]])
    said = np.exp(pmep.log_predictive(idata, model, {"prefers": rows})["prefers"].to_numpy())
    np.testing.assert_allclose(said, weights @ chance, atol=0.012)
    ranks = pmep.rank_items(idata, model, user=list(range(U)))
    best = np.argmax(f, axis=2)
    expected = np.array([[weights @ (best[:, u] == k) for k in range(3)] for u in range(U)])
    np.testing.assert_allclose(ranks["probability_best"], expected, atol=0.03)
    np.testing.assert_allclose(ranks["rank_probability"].sum("item"), 1.0)
    asked = pmep.next_pairs(idata, model, user=1, n=3)

    def entropy(p):
        return -(p * np.log2(p) + (1.0 - p) * np.log2(1.0 - p))

    own = np.clip(chance[:, 3:6], 1e-12, 1.0 - 1e-12)
    information = entropy(weights @ own) - weights @ entropy(own)
    np.testing.assert_allclose(np.sort(asked["information"])[::-1], np.sort(information)[::-1], atol=0.01)


@pytest.mark.parametrize("method", ["ep", "laplace", "jaakkola"])
def test_two_scales_are_those_of_a_fine_grid_of_fits(method):
    """Quadrature of the evidences of fits at given hyperparameters, on a wide and fine grid."""
    model = model_of(answers(), length=True, compare=pmep.PairwiseLogit)
    idata = pmep.fit(method, model=model, **QUIET)
    grid = np.linspace(*np.log([5e-4, 12.0]), 19), np.linspace(*np.log([0.1, 4.5]), 9)
    density, sigmas, lengths = np.empty((19, 9)), *map(np.exp, grid)
    for i, sigma in enumerate(sigmas):
        for j, length in enumerate(lengths):
            at = pmep.fit(method, model=model, hyper="fixed", start={"sigma": sigma, "length": length}, **QUIET)
            density[i, j] = float(at["fit"]["log_evidence"])
    density += (halfnorm.logpdf(sigmas) + grid[0])[:, None] + gamma.logpdf(lengths, 4.0, scale=0.25) + grid[1]
    cell = np.log((grid[0][1] - grid[0][0]) * (grid[1][1] - grid[1][0]))
    assert float(idata["fit"]["log_evidence"]) == pytest.approx(logsumexp(density) + cell, abs=0.01)
    weights = np.exp(density - logsumexp(density))
    for name, values, shares in (("sigma", sigmas, weights.sum(1)), ("length", lengths, weights.sum(0))):
        mean = shares @ values
        assert float(idata["posterior_mean"][name]) == pytest.approx(mean, rel=0.01)
        sd = np.sqrt(shares @ (values - mean) ** 2)
        assert float(idata["posterior_sd"][name]) == pytest.approx(sd, rel=0.03)


def test_many_people_give_the_utilities_of_the_mode():
    model = model_of(answers(n_users=300))
    found, mode = pmep.fit(model=model, **QUIET), pmep.fit(model=model, hyper="optimize", **QUIET)
    np.testing.assert_allclose(found["posterior_mean"]["f"], mode["posterior_mean"]["f"], atol=0.03)
    np.testing.assert_allclose(found["posterior_sd"]["f"] / mode["posterior_sd"]["f"], 1.0, atol=0.03)
    assert float(found["posterior_mean"]["sigma"]) == pytest.approx(float(mode["posterior_mean"]["sigma"]), rel=0.03)
    assert 0.02 < float(found["posterior_sd"]["sigma"]) < 0.2


def test_a_file_keeps_the_mixture(few, tmp_path):
    rows, model, idata = few
    path = str(tmp_path / "fit.nc")
    idata.to_netcdf(path)
    again = az.from_netcdf(path)
    for one in ({"prefers": rows},):
        before, after = (pmep.log_predictive(found, model, one)["prefers"] for found in (idata, again))
        np.testing.assert_array_equal(before, after)
    ranks = (pmep.rank_items(found, model, user=[0, 2])["rank_probability"] for found in (idata, again))
    np.testing.assert_array_equal(*ranks)


def test_parts_give_what_the_whole_gives(few):
    _, model, idata = few
    parts = pmep.fit(model=model, partitions=2, **QUIET)
    assert float(parts["fit"]["log_evidence"]) == pytest.approx(float(idata["fit"]["log_evidence"]), abs=1e-6)
    np.testing.assert_allclose(parts["posterior_sd"]["f"], idata["posterior_sd"]["f"], rtol=1e-5)


def test_new_people_and_items_have_the_scale_of_the_earlier_fit(few):
    """A person without comparisons has the prior, integrated over the posterior of sigma."""
    _, _, idata = few
    rows = np.array([0, 0]), np.array([0, 1]), np.array([1, 2])
    model = model_of(rows)
    with model:
        found = pmep.fit(hyper="fixed", start=idata, **QUIET)
    assert "as the earlier fit left them" in found["fit"].attrs["status"]
    assert "averaged over" in found["fit"].attrs["log_evidence_is"]
    for what in ("posterior_mean", "posterior_sd"):
        assert float(found[what]["sigma"]) == pytest.approx(float(idata[what]["sigma"]), rel=1e-9)
    nodes = group(idata, "fit")
    held = [
        pmep.fit(model=model, hyper="fixed", start={"sigma": float(s)}, **QUIET) for s in nodes["hyper_point_sigma"]
    ]
    mean = sum(float(w) * one["posterior_mean"]["f"] for w, one in zip(nodes["hyper_weight"], held))
    np.testing.assert_allclose(found["posterior_mean"]["f"], mean, rtol=1e-6)
    log_z = [float(one["fit"]["log_evidence"]) for one in held]
    expected = logsumexp(log_z, b=nodes["hyper_weight"].to_numpy())
    assert float(found["fit"]["log_evidence"]) == pytest.approx(expected, abs=1e-6)


def test_a_collapsing_mode_is_integrated():
    """People who answer by coins: the mode of sigma is near zero, its posterior is not."""
    rows = np.repeat([0, 1], 4), np.array([0, 1, 1, 2, 2, 0, 0, 1]), np.array([1, 0, 2, 1, 0, 2, 1, 0])
    model = model_of(rows)
    found = pmep.fit(model=model, **QUIET)
    with pytest.warns(UserWarning, match="less certain"):
        mode = pmep.fit(model=model, hyper="optimize", **QUIET)
    assert float(mode["posterior_mean"]["sigma"]) < 0.1 * float(found["posterior_mean"]["sigma"])
    grid = np.linspace(-12.0, 3.0, 300)
    density = [
        float(pmep.fit(model=model, hyper="fixed", start={"sigma": np.exp(t)}, **QUIET)["fit"]["log_evidence"])
        for t in grid[::10]
    ]
    log_p = np.interp(grid, grid[::10], density) + halfnorm.logpdf(np.exp(grid)) + grid
    weights = np.exp(log_p - logsumexp(log_p))
    assert float(found["posterior_mean"]["sigma"]) == pytest.approx(weights @ np.exp(grid), rel=0.02)


def test_wide_proper_priors_are_integrated():
    rows = answers()
    found = pmep.fit(model=model_of(rows, lambda name: pm.LogNormal(name, 0.0, 3.0)), **QUIET)
    assert bool(found["fit"]["converged"])
    assert "integrated" in found["fit"].attrs["status"]


def test_flat_priors_are_estimated_and_a_posterior_without_end_is_told():
    agreeing = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.array([1, 2, 1, 2])
    with pytest.warns(pmep.ConvergenceWarning, match="not fallen on the way to sigma .* 'sigma' a proper prior"):
        endless = pmep.fit(model=model_of(agreeing, pm.HalfFlat), hyper="integrate", **QUIET)
    assert np.isfinite(endless["posterior_sd"]["f"]).all()
    # Contradictions make the posterior proper.
    model = model_of(answers(20), pm.HalfFlat)
    assert "integrated" in pmep.fit(model=model, hyper="integrate", **QUIET)["fit"].attrs["status"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'f' is less certain", UserWarning)
        assert "at their mode" in pmep.fit(model=model, **QUIET)["fit"].attrs["status"]


def test_what_cannot_be_integrated_is_refused_with_the_reason():
    users, winners, losers = answers()
    with pm.Model() as model:
        b, sigma = pm.Normal("b", 0.0, 1.0, shape=3), pm.HalfNormal("sigma", 1.0)
        f = pmep.PreferenceUtility("f", b=b, sigma=sigma, n_users=U)
        pmep.PairwiseProbit("prefers", f, users=users, winners=winners, losers=losers)
    with pytest.raises(ValueError, match=r"single numbers, and 'b' has 3; use hyper='optimize'"):
        pmep.fit(model=model, hyper="integrate", **QUIET)
    one = model_of(answers())
    with pytest.raises(ValueError, match=r"held_out=0.2 leaves some out"):
        pmep.fit(model=one, hyper="integrate", held_out=0.2, **QUIET)
    with pytest.raises(ValueError, match=r"needs learn='evidence'"):
        pmep.fit(model=one, hyper="integrate", learn="em", **QUIET)


LENGTHS = "abc"
TWO = 2
"""People of the model with four scales, few enough for importance sampling from the prior."""
PLACES = np.random.default_rng(0).normal(size=(4, 3))


def kernel_in(lengths, exp):
    """A kernel of four items with a length scale for each of three features."""
    distance = sum(((PLACES[:, None, i] - PLACES[:, i]) / own) ** 2 for i, own in enumerate(lengths))
    return exp(-0.5 * distance) + 0.1 * np.eye(4)


@pytest.fixture(scope="module")
def four():
    rows = simulated.answers(kernel_in(np.ones(3), np.exp), TWO, 6, seed=5)
    users, winners, losers = rows
    with pm.Model(coords={"user": range(TWO), "item": list("abcd")}) as model:
        kernel = kernel_in([pm.Gamma(name, 4.0, 4.0) for name in LENGTHS], pm.math.exp)
        sigma = pm.HalfNormal("sigma", 1.0)
        f = pmep.PreferenceUtility("f", kernel=kernel, sigma=sigma, jitter=0.0, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, users=users, winners=winners, losers=losers)
    return rows, model, pmep.fit(model=model, draws=1000, random_seed=1, progressbar=False)


@pytest.fixture(scope="module")
def four_sampled(four):
    """Weighted draws of four scales and utilities from the prior, given the comparisons."""
    users, winners, losers = four[0]
    rng, n = np.random.default_rng(0), 400_000
    scales = {name: rng.gamma(4.0, 0.25, size=n) for name in LENGTHS} | {"sigma": np.abs(rng.normal(size=n))}
    lower = np.linalg.cholesky(kernel_in([scales[name][:, None, None] for name in LENGTHS], np.exp))
    f = scales["sigma"][:, None, None] * np.einsum("nij,nuj->nui", lower, rng.normal(size=(n, TWO, 4)))
    log_w = norm.logcdf(f[:, users, winners] - f[:, users, losers]).sum(axis=1)
    weights = np.exp(log_w - logsumexp(log_w))
    assert 1.0 / (weights**2).sum() > 5000
    return scales | {"f": f}, weights, logsumexp(log_w) - np.log(n)


def test_four_scales_are_those_of_importance_sampling(four, four_sampled):
    _, _, idata = four
    values, weights, log_z = four_sampled
    assert "hyperparameters integrated over by" in idata["fit"].attrs["status"]
    assert float(idata["fit"]["log_evidence"]) == pytest.approx(log_z, abs=0.06)
    for name, own in values.items():
        mean = np.tensordot(weights, own, 1)
        sd = np.sqrt(np.tensordot(weights, (own - mean) ** 2, 1))
        np.testing.assert_allclose((idata["posterior_mean"][name] - mean) / sd, 0.0, atol=0.1)
        np.testing.assert_allclose(idata["posterior_sd"][name] / sd, 1.0, atol=0.1)
        drawn = group(idata, "posterior")[name].to_numpy().reshape(-1, *np.shape(mean))
        np.testing.assert_allclose((drawn.mean(axis=0) - mean) / sd, 0.0, atol=0.1)
        np.testing.assert_allclose(drawn.std(axis=0) / sd, 1.0, atol=0.12)


def test_four_scales_and_utilities_are_drawn_jointly(four, four_sampled):
    values, weights, _ = four_sampled
    size = np.abs(values["f"]).mean(axis=(1, 2))
    drawn = group(four[2], "posterior")
    expected = np.cov(values["sigma"], size, aweights=weights)
    found = np.cov(drawn["sigma"].values.ravel(), np.abs(drawn["f"].values).mean(axis=(2, 3)).ravel())
    correlations = [c[0, 1] / np.sqrt(c[0, 0] * c[1, 1]) for c in (found, expected)]
    assert correlations[0] == pytest.approx(correlations[1], abs=0.06)
    assert len(np.unique(drawn["sigma"])) > 150


def test_four_scales_predict_from_a_file_and_are_carried_over(four, four_sampled, tmp_path):
    rows, model, idata = four
    values, weights, _ = four_sampled
    path = str(tmp_path / "fit.nc")
    idata.to_netcdf(path)
    again = az.from_netcdf(path)
    f, (users, winners, losers) = values["f"], rows
    said = np.exp(pmep.log_predictive(again, model, {"prefers": rows})["prefers"].to_numpy())
    np.testing.assert_allclose(said, weights @ ndtr(f[:, users, winners] - f[:, users, losers]), atol=0.015)
    best = np.argmax(f, axis=2)
    expected = np.array([[weights @ (best[:, u] == k) for k in range(4)] for u in range(TWO)])
    ranks = pmep.rank_items(again, model, user=list(range(TWO)))
    np.testing.assert_allclose(ranks["probability_best"], expected, atol=0.04)
    assert len(pmep.next_pairs(again, model, user=1, n=2)["information"]) == 2
    held = pmep.fit(model=model, hyper="fixed", start=again, **QUIET)
    assert "as the earlier fit left them" in held["fit"].attrs["status"]
    for what in ("posterior_mean", "posterior_sd"):
        np.testing.assert_allclose(held[what]["f"], idata[what]["f"], atol=1e-4)
        np.testing.assert_allclose(held[what]["sigma"], idata[what]["sigma"])


def test_an_interrupted_emulator_returns_the_mode(four, monkeypatch):
    def stopping(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("pymc_ep.evidence.integration.integrate._Integration._rounds", stopping)
    with pytest.warns(
        pmep.ConvergenceWarning, match="interrupted after .* fits: the hyperparameters are at their mode"
    ):
        found = pmep.fit(model=four[1], **QUIET)
    assert float(found["posterior_sd"]["sigma"]) == 0.0


def test_an_interrupted_emulator_goes_on_from_its_checkpoint(four, monkeypatch, tmp_path):
    """The second run makes the fits that the first one had not made, and comes to the same numbers."""
    _, model, idata = four
    path, own, fits, stop = str(tmp_path / "fit.ckpt"), ComparisonEvidence.settled, [], 100

    def counted(*given):
        fits.append(given)
        if len(fits) == stop:
            raise KeyboardInterrupt
        return own(*given)

    monkeypatch.setattr(ComparisonEvidence, "settled", counted)
    with pytest.warns(pmep.ConvergenceWarning, match="interrupted after"):
        pmep.fit(model=model, checkpoint=path, **QUIET)
    first, stop = len(fits), np.inf
    found = pmep.fit(model=model, checkpoint=path, **QUIET)
    assert len(fits) - first < int(idata["fit"]["n_evaluations"]) - 50
    for what in ("posterior_mean", "posterior_sd"):
        np.testing.assert_array_equal(found[what]["f"], idata[what]["f"])


@pytest.mark.parametrize("method", ["ep", "laplace"])
def test_sampled_scales_are_those_integrated_over(few, method):
    """NUTS on the evidence and the lattice of fits have the same evidence of each scale."""
    model = few[1]
    chains = {"draws": 400, "chains": 2, "sample_kwargs": {"cores": 1, "tune": 300}, "random_seed": 1}
    found = pmep.fit(method, model=model, hyper="sample", **(QUIET | chains))
    over = few[2] if method == "ep" else pmep.fit(method, model=model, **QUIET)
    for name in ("sigma", "f"):
        mean, sd = (over[what][name].to_numpy() for what in ("posterior_mean", "posterior_sd"))
        np.testing.assert_allclose((found["posterior_mean"][name] - mean) / sd, 0.0, atol=0.2)
        np.testing.assert_allclose(found["posterior_sd"][name] / sd, 1.0, atol=0.2)
    drawn = group(found, "posterior")
    np.testing.assert_allclose(drawn["scaled"], drawn["f"] / 2.0)


def test_a_marginal_model_sees_its_comparisons_as_they_are():
    """Value and gradient by fits at given scales, before and after the data are set; a copy by pickle has the same."""
    users, winners, losers = answers()
    with pm.Model() as model:
        who, won, lost = (pm.Data(name, rows) for name, rows in zip(("who", "won", "lost"), (users, winners, losers)))
        f = pmep.PreferenceUtility("f", kernel=KERNEL, sigma=pm.HalfNormal("sigma", 1.0), jitter=0.0, n_users=U)
        chance = pm.math.invprobit(f[who, won] - f[who, lost])
        pm.Bernoulli("prefers", chance, observed=pm.Data("y", np.ones(len(users), dtype=int)))
    op = pmep.marginalize(model)["ep_log_evidence"].owner.op
    for some in (slice(None), slice(0, 5)):
        with model:
            pm.set_data({"who": users[some], "won": winners[some], "lost": losers[some], "y": 1 + 0 * users[some]})
        theta = np.log([0.7])
        log_z, gradient = op.evaluate(theta)
        held = [
            float(
                pmep.fit(model=model, hyper="fixed", start={"sigma": 0.7 * np.exp(d)}, **QUIET)["fit"]["log_evidence"]
            )
            for d in (0.0, -1e-3, 1e-3)
        ]
        assert log_z == pytest.approx(held[0], abs=1e-7)
        assert gradient[0] == pytest.approx((held[2] - held[1]) / 2e-3, abs=1e-5)
        np.testing.assert_allclose(pickle.loads(pickle.dumps(op)).evaluate(theta)[0], log_z, atol=1e-7)


def test_too_many_scales_are_at_their_mode_and_the_status_says_so():
    users, winners, losers = answers(4)
    with pm.Model() as model:
        own = [pm.HalfNormal(f"scale_{i}", 1.0) for i in range(26)]
        f = pmep.PreferenceUtility("f", kernel=KERNEL, sigma=0.5 + pm.math.stack(own).mean(), n_users=4)
        pmep.PairwiseProbit("prefers", f, users=users, winners=winners, losers=losers)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'f' is less certain", UserWarning)
        status = pmep.fit(model=model, **QUIET)["fit"].attrs["status"]
    assert "takes up to 25 hyperparameters, and the model has 26" in status
    with pytest.raises(ValueError, match="up to 25 hyperparameters"):
        pmep.fit(model=model, hyper="integrate", **QUIET)


def test_an_interrupted_integration_returns_the_mode(few, monkeypatch):
    calls = []

    def stopping(*given, **options):
        calls.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr("pymc_ep.models.preferences.methods.integration.lattice", stopping)
    with pytest.warns(pmep.ConvergenceWarning, match="interrupted after 2 fits: the hyperparameters are at their mode"):
        found = pmep.fit(model=few[1], **QUIET)
    assert calls
    assert float(found["posterior_sd"]["sigma"]) == 0.0


def test_dear_fits_leave_the_mode(few, monkeypatch):
    monkeypatch.setattr("pymc_ep.models.preferences.methods.integration._OPERATIONS", 1.0)
    with pytest.warns(UserWarning, match="less certain than this fit says"):
        found = pmep.fit(model=few[1], **QUIET)
    assert "dear: hyper='integrate' makes 20" in found["fit"].attrs["status"]
