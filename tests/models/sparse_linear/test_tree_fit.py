"""Wavelet trees from the model block to the container: bounds, references with dense algebra, modes."""

import itertools

import numpy as np
import pymc as pm
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group, group_names
from pymc_ep.operators import Wavelet2D
from pymc_ep.results import fit_state

QUIET = {"progressbar": False, "random_seed": 1}
TRANSITION = {"root": 0.4, "child": [[0.15, 0.7]]}
PAIRS = {
    "laplace": (lambda b: pm.Laplace.dist(0, b), lambda b: pm.Laplace.dist(0, b)),
    "normal and student": (lambda s: pm.Normal.dist(0, s), lambda s: pm.StudentT.dist(nu=3.0, sigma=s)),
}


def picture(side, seed=0):
    """A bright rectangle on a gentle slope, and noise of sd 0.3."""
    rng = np.random.default_rng(seed)
    truth = np.add.outer(np.linspace(0, 1, side), np.linspace(0, 1, side))
    truth[side // 4 : side // 2 + 1, side // 3 : side - 2] += 4.0
    return truth, truth + 0.3 * rng.normal(size=truth.shape)


def tree_model(pair, side, *, seen=None, learned=True, scaling=None, wavelet="db2"):
    _, noisy = picture(side)
    low, high = PAIRS[pair]
    with pm.Model() as model:
        if learned:
            # Initial values that tell the two states apart.
            scales = [
                pm.HalfNormal(name, np.array(size), shape=2, initval=np.full(2, size))
                for name, size in (("low", 0.1), ("high", 2.0))
            ]
        else:
            scales = [np.array([0.05, 0.2]), np.array([1.0, 2.5])]
        u = pmep.WaveletTree(
            "u",
            shape=(side, side),
            levels=2,
            wavelet=wavelet,
            low=low(scales[0]),
            high=high(scales[1]),
            scaling=scaling,
            transition=None if learned else TRANSITION,
        )
        if seen is None:
            pm.Normal("y", u, np.array(0.3), observed=noisy)
        else:
            pm.Normal("y", u[seen], np.array(0.3), observed=noisy[seen])
    return model


def mask(side, share):
    return np.random.default_rng(1).random((side, side)) < share


def fitted(model, method="dsb", **options):
    return pmep.fit(method, model=model, **{"variance": "exact"} | QUIET | options)


@pytest.mark.parametrize(
    ("pair", "task", "hyper"),
    [
        ("laplace", "denoising", "optimize"),
        ("laplace", "inpainting", "fixed"),
        ("normal and student", "denoising", "fixed"),
        ("normal and student", "inpainting", "optimize"),
    ],
)
def test_the_bound_never_falls(pair, task, hyper):
    model = tree_model(pair, 16, seen=mask(16, 0.6) if task == "inpainting" else None, scaling=pm.Normal.dist(0, 5))
    fit = group(fitted(model, hyper=hyper, tol=1e-3, draws=0), "fit")
    assert bool(fit["converged"])
    objective = fit["objective"].to_numpy()
    assert len(objective) > 4
    assert np.all(np.diff(objective) >= -1e-9 * np.abs(objective[1:]))


def test_states_that_start_alike_are_told_apart():
    """Where both are the same the bound has a saddle, which no update leaves; the start decides who is high."""
    with pm.Model() as model:
        low, high = (pm.Laplace.dist(0, pm.HalfNormal(name, np.array(1.0), shape=2)) for name in ("low", "high"))
        pm.Normal(
            "y", pmep.WaveletTree("u", shape=(16, 16), levels=2, low=low, high=high), 0.3, observed=picture(16)[1]
        )
    fit = group(fitted(model, tol=1e-2, draws=0), "fit")
    assert np.all(fit["hyper_mode_high"].to_numpy() > 2 * fit["hyper_mode_low"].to_numpy())


# Sixteen pixels


def log_evidence(observed, pair, scales, scaling_sd, noise):
    """Exact, of an image that is seen as a whole: each coefficient of it is one with Gaussian noise of its own."""
    transform = Wavelet2D(observed.shape, "haar", 2, scaling=True)
    coefficients = transform.matrix() @ observed.ravel()
    details, smooth = coefficients[:15], coefficients[15:]
    levels = np.repeat([0, 1], [12, 3])
    families = {
        "laplace": (lambda s, b: scipy.stats.laplace.pdf(s, scale=b),) * 2,
        "normal and student": (
            lambda s, b: scipy.stats.norm.pdf(s, scale=b),
            lambda s, b: scipy.stats.t.pdf(s, 3.0, scale=b),
        ),
    }[pair]

    def emission(w, density, scale):
        def integrand(s):
            return scipy.stats.norm.pdf(w, s, noise) * density(s, scale)

        breaks = sorted({0.0, w, *(w + k * noise for k in (-8, 8))})
        ends = min(breaks) - 1.0, max(breaks) + 1.0
        return np.log(scipy.integrate.quad(integrand, *ends, points=breaks, limit=400, epsabs=1e-14)[0])

    low, high = (
        np.array([emission(w, family, scale[level]) for w, level in zip(details, levels)])
        for family, scale in zip(families, scales)
    )
    # Three trees of four leaves and a root each, by enumeration.
    total = scipy.stats.norm.logpdf(smooth, scale=np.hypot(scaling_sd, noise)).sum()
    for which in range(3):
        nodes = [*range(4 * which, 4 * which + 4), 12 + which]
        terms = []
        for states in itertools.product([0, 1], repeat=5):
            share = np.append(np.full(4, TRANSITION["child"][0][states[4]]), TRANSITION["root"])
            log_prior = np.log(np.where(states, share, 1 - share)).sum()
            terms.append(log_prior + np.where(states, high[nodes], low[nodes]).sum())
        total += scipy.special.logsumexp(terms)
    return total


@pytest.mark.parametrize("pair", PAIRS)
def test_the_bound_lies_below_the_exact_evidence(pair):
    model = tree_model(pair, 4, learned=False, scaling=pm.Normal.dist(0, 5), wavelet="haar")
    found = float(group(fitted(model, draws=0), "fit")["log_evidence"])
    _, noisy = picture(4)
    exact = log_evidence(noisy, pair, [[0.05, 0.2], [1.0, 2.5]], 5.0, 0.3)
    # Ko and Seeger bound each state's potential and factorise Q: some nats on 15 mixtures.
    assert exact - 8.0 < found < exact


# Dense algebra


def log_potentials(pair, x, scales):
    """log t_d(sqrt(x)) and gamma_d(x) of either state, (2, n), with the constants of table 2.5 corrected."""
    low, high = scales
    laplace = lambda b: (-np.sqrt(x) / b - np.log(2 * b), b * np.sqrt(x))  # noqa: E731
    if pair == "laplace":
        both = laplace(low), laplace(high)
    else:
        nu, normal = 3.0, (-0.5 * x / low**2 - 0.5 * np.log(2 * np.pi * low**2), low**2 + 0 * x)
        constant = scipy.special.gammaln((nu + 1) / 2) - scipy.special.gammaln(nu / 2) - 0.5 * np.log(np.pi * nu)
        student = constant - np.log(high) - (nu + 1) / 2 * np.log1p(x / (nu * high**2))
        both = normal, (student, (nu * high**2 + x) / (nu + 1))
    return np.array([value for value, _ in both]), np.array([gamma for _, gamma in both])


class Reference:
    """The double loop of Ko and Seeger with dense matrices, plain iterations and all states of each tree."""

    def __init__(self, pair, side, seen, scales, scaling_sd, noise):
        self.pair, self.noise, self.scaling = pair, noise, scaling_sd
        self.w = Wavelet2D((side, side), "db2", 2, scaling=True).matrix().toarray()
        self.n = 3 * (side**2 // 4 + side**2 // 16)
        levels = np.repeat([0, 1], [3 * side**2 // 4, 3 * side**2 // 16])
        self.scales = [np.asarray(scale)[levels] for scale in scales]
        self.x = np.eye(side**2)[seen.ravel()]
        leaves = np.arange(3 * side**2 // 4).reshape(3, side // 2, side // 2)
        roots = self.n - 3 * side**2 // 16 + np.arange(3 * side**2 // 16).reshape(3, side // 4, side // 4)
        self.trees = [
            [*leaves[o, 2 * r : 2 * r + 2, 2 * c : 2 * c + 2].ravel(), roots[o, r, c]]
            for o, r, c in np.ndindex(roots.shape)
        ]
        self.states = np.array(list(itertools.product([0, 1], repeat=5)))
        share = np.array(TRANSITION["child"][0])[self.states[:, 4]]
        share = np.column_stack([share] * 4 + [np.full(32, TRANSITION["root"])])
        self.log_prior = np.log(np.where(self.states, share, 1 - share)).sum(axis=1)

    def indicators(self, emissions):
        """P(high), (n,), and KL(Q || P) for log potentials (2, n)."""
        high, kl = np.empty(self.n), 0.0
        for nodes in self.trees:
            log_weights = self.log_prior + np.where(self.states, emissions[1][nodes], emissions[0][nodes]).sum(axis=1)
            log_weights -= scipy.special.logsumexp(log_weights)
            weights = np.exp(log_weights)
            high[nodes] = weights @ self.states
            kl += weights @ (log_weights - self.log_prior)
        return high, kl

    def precision(self, pi):
        every = np.append(pi, np.full(len(self.w) - self.n, self.scaling**-2.0))
        return self.x.T @ self.x / self.noise**2 + self.w.T @ (every[:, None] * self.w)

    def loop(self, y, pi, high):
        """One outer loop; the new pi, P(high), posterior mean and bound."""
        details = self.w[: self.n]
        z = np.einsum("ij,jk,ik->i", details, np.linalg.inv(self.precision(pi)), details)
        for _ in range(15):
            for _ in range(3):
                u = np.linalg.solve(self.precision(pi), self.x.T @ y / self.noise**2)
                x = z + (details @ u) ** 2
                emissions, gamma = log_potentials(self.pair, x, self.scales)
                pi = (1 - high) / gamma[0] + high / gamma[1]
            high, kl = self.indicators(emissions)
        pi = (1 - high) / gamma[0] + high / gamma[1]
        return pi, high, u, self.bound(y, u, pi, high, kl, x, emissions, gamma)

    def bound(self, y, u, pi, high, kl, x, emissions, gamma):
        """2.2 of the formulas, with -h / 2 = log t + x / (2 gamma) where gamma is tight at x."""
        minus_half_h = emissions + x / (2 * gamma)
        smooth = self.w[self.n :] @ u
        return (
            -0.5 * len(y) * np.log(2 * np.pi * self.noise**2)
            - 0.5 * ((y - self.x @ u) ** 2).sum() / self.noise**2
            + 0.5 * len(self.w) * np.log(2 * np.pi)
            - 0.5 * np.linalg.slogdet(self.precision(pi))[1]
            - 0.5 * pi @ (self.w[: self.n] @ u) ** 2
            + (1 - high) @ minus_half_h[0]
            + high @ minus_half_h[1]
            - kl
            + scipy.stats.norm.logpdf(smooth, scale=self.scaling).sum()
        )


@pytest.mark.parametrize("pair", PAIRS)
def test_against_plain_iterations_with_dense_algebra(pair):
    """From precisions half as large again, and our states, the classical updates come to our bound and moments."""
    side, seen = 8, mask(8, 0.7)
    model = tree_model(pair, side, seen=seen, learned=False, scaling=pm.Normal.dist(0, 5))
    result = fitted(model, tol=1e-6, outer=200, draws=0)
    fit, state = group(result, "fit"), fit_state(result)
    reference = Reference(pair, side, seen, [[0.05, 0.2], [1.0, 2.5]], 5.0, 0.3)
    y, n_y = picture(side)[1][seen], int(seen.sum())
    ours = state["precision"][n_y : n_y + reference.n]
    # The bound has several maxima: states that are left open lead to another.
    pi, high, bounds = 1.5 * ours, fit["u_indicator"].to_numpy(), []
    for _ in range(200):
        pi, high, u, bound = reference.loop(y, pi, high)
        bounds.append(bound)
    assert np.all(np.diff(bounds) >= -1e-9 * np.abs(bound))
    np.testing.assert_allclose(float(fit["log_evidence"]), bound, rtol=1e-6)
    np.testing.assert_allclose(result["posterior_mean"]["u"].to_numpy().ravel(), u, atol=1e-3)
    np.testing.assert_allclose(ours, pi, rtol=1e-3)
    sd = np.sqrt(np.diag(np.linalg.inv(reference.precision(pi)))).reshape(side, side)
    np.testing.assert_allclose(result["posterior_sd"]["u"], sd, rtol=1e-3)


# Around the double loop


def counts(u):
    pmep.SoftplusPoisson("y", u, observed=np.random.default_rng(0).poisson(np.maximum(picture(8)[0], 0.1)))


def beside_edges(u):
    v = pmep.SparseField("v", operator=pmep.operators.Gradient2D((8, 8)), potential=pm.Laplace.dist(0, 0.5))
    pm.Normal("y", u + v, np.array(0.3), observed=picture(8)[1])


def blurred(u):
    kernel = pmep.operators.Convolution2D((8, 8), np.full((3, 3), 1 / 9), boundary="periodic")
    pm.Normal("y", pmep.apply_operator(kernel, u), np.array(0.3), observed=picture(8)[1])


@pytest.mark.parametrize(
    ("observe", "scaling"),
    [
        (counts, (pm.Normal.dist(0, 1), pm.Laplace.dist(0, 5))),
        (beside_edges, pm.Normal.dist(0, 5)),
        (blurred, None),
    ],
    ids=["counts and a mixture of scaling coefficients", "beside a field of edges", "blurred, flat scaling"],
)
def test_other_likelihoods_and_fields(observe, scaling):
    with pm.Model() as model:
        low, high = pm.Laplace.dist(0, np.array(0.1)), pm.StudentT.dist(nu=3.0, sigma=np.array(2.0))
        observe(pmep.WaveletTree("u", shape=(8, 8), levels=2, low=low, high=high, scaling=scaling))
    idata = fitted(model, tol=1e-3, draws=0)
    assert bool(idata["fit"]["converged"])
    objective = idata["fit"]["objective"].to_numpy()
    assert np.all(np.diff(objective) >= -1e-9 * np.abs(objective[1:]))
    assert np.isfinite(idata["posterior_sd"]["u"]).all()


@pytest.fixture(scope="module", params=PAIRS)
def known(request):
    """A model without hyperparameters."""
    return tree_model(request.param, 8, learned=False, scaling=pm.Normal.dist(0, 5))


@pytest.fixture(scope="module")
def found(known):
    return pmep.fit(model=known, draws=5, chains=2, log_likelihood=True, **QUIET)


def test_the_default_is_the_double_loop(known, found):
    assert group(found, "fit").attrs["method"] == "dsb"
    said = pmep.explain(known)
    assert "methods          dsb, map, ep" in said
    assert "potential        u: 60 terms, site tree of" in said


def test_draws_know_the_density_of_the_model(known, found):
    """The log density of each draw, states summed out, against PyMC's."""
    fit, draws = group(found, "fit"), group(found, "posterior")["u"].to_numpy()
    logp = known.compile_logp()
    for chain, draw in np.ndindex(2, 5):
        np.testing.assert_allclose(fit["log_p"][chain, draw], logp({"u": draws[chain, draw]}), rtol=1e-10)


def test_predictions_and_diagnoses(known, found):
    again = pmep.predict(found, known, var_names=["u"])
    np.testing.assert_allclose(again["u_sd"], found["posterior_sd"]["u"], rtol=1e-9)
    said = pmep.diagnose(found, known)
    assert "the prior of 'u' is one factor of many predictors" in said.attrs["absent"]
    assert np.isfinite(said["y_kurtosis"]).all()


def test_a_warm_start_is_at_the_end_at_once(known, found):
    again = group(fitted(known, start=found, draws=0), "fit")
    assert int(again["n_iter"]) < max(int(group(found, "fit")["n_iter"]), 4)
    np.testing.assert_allclose(float(again["log_evidence"]), float(group(found, "fit")["log_evidence"]), atol=1e-3)


def test_the_mode_maximises_the_density(known):
    """Against PyMC's log density at points nearby."""
    result = pmep.fit("map", model=known, **QUIET)
    mode = result["posterior_mode"]["u"].to_numpy()
    logp = known.compile_logp()
    best = logp({"u": mode})
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(5):
            assert logp({"u": mode + size * rng.standard_normal((8, 8))}) < best
    assert "posterior" not in {name.strip("/") for name in group_names(result)}


def test_sampled_variances_estimate_the_exact_ones():
    model = tree_model("laplace", 8, seen=mask(8, 0.7), learned=False, scaling=pm.Normal.dist(0, 5))
    found = fitted(model, draws=0)
    # The same maximum of several: elsewhere variances differ for other reasons.
    options = {"variance": "perturb-and-map", "n_samples": 100, "tol": 1e-2, "outer": 30, "start": found}
    sampled = fitted(model, draws=0, **options)
    np.testing.assert_allclose(sampled["posterior_mean"]["u"], found["posterior_mean"]["u"], atol=0.15)
    # A standard deviation from k draws has the relative standard error (2 k)^(-1/2) = 0.07; all 64 lie within 4.5.
    np.testing.assert_allclose(sampled["posterior_sd"]["u"], found["posterior_sd"]["u"], rtol=0.32)
