"""Models of McElreath's Statistical Rethinking (second edition), with the priors given there."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from docs.benchmarks.public.base import codes, public, rethinking_table

__all__: list[str] = []

SOURCE = "Statistical Rethinking"
ISLAND_DISTANCES = np.array(
    [
        [0.000, 0.475, 0.631, 4.363, 1.234, 2.036, 3.178, 2.794, 1.860, 5.678],
        [0.475, 0.000, 0.315, 4.173, 1.236, 2.007, 2.877, 2.670, 1.965, 5.283],
        [0.631, 0.315, 0.000, 3.859, 1.550, 1.708, 2.588, 2.356, 2.279, 5.401],
        [4.363, 4.173, 3.859, 0.000, 5.391, 2.462, 1.555, 1.616, 6.136, 7.178],
        [1.234, 1.236, 1.550, 5.391, 0.000, 3.219, 4.027, 3.906, 0.763, 4.884],
        [2.036, 2.007, 1.708, 2.462, 3.219, 0.000, 1.801, 0.850, 3.893, 6.653],
        [3.178, 2.877, 2.588, 1.555, 4.027, 1.801, 0.000, 1.213, 4.789, 5.787],
        [2.794, 2.670, 2.356, 1.616, 3.906, 0.850, 1.213, 0.000, 4.622, 6.722],
        [1.860, 1.965, 2.279, 6.136, 0.763, 3.893, 4.789, 4.622, 0.000, 5.037],
        [5.678, 5.283, 5.401, 7.178, 4.884, 6.653, 5.787, 6.722, 5.037, 0.000],
    ]
)
"""Distances between Kline's islands in thousand km."""


@public("rethinking_reedfrogs", SOURCE)
def reedfrogs() -> pm.Model:
    d = rethinking_table("reedfrogs")
    with pm.Model() as model:
        a_bar, sigma = pm.Normal("a_bar", 0, 1.5), pm.Exponential("sigma", 1)
        a = pm.Normal("a", a_bar, sigma, shape=len(d))
        pm.Binomial("S", n=d["density"].to_numpy(), p=pm.math.invlogit(a), observed=d["surv"].to_numpy())
    return model


@public("rethinking_reedfrogs_predators", SOURCE)
def reedfrogs_predators() -> pm.Model:
    d = rethinking_table("reedfrogs")
    (pred, _), (size, _) = codes(d["pred"]), codes(d["size"])
    with pm.Model() as model:
        a_bar, sigma = pm.Normal("a_bar", 0, 1), pm.HalfCauchy("sigma", 1)
        z = pm.Normal("z", 0, 1, shape=len(d))
        bp, s = pm.Normal("bp", -0.5, 1, shape=2), pm.Normal("s", 0, 0.5, shape=2)
        logit_p = a_bar + z * sigma + bp[0] * pred + s[size]
        pm.Binomial("S", n=d["density"].to_numpy(), logit_p=logit_p, observed=d["surv"].to_numpy())
    return model


def _chimpanzees() -> tuple[np.ndarray, ...]:
    d = rethinking_table("chimpanzees")
    treatment = (d["prosoc_left"] + 2 * d["condition"]).to_numpy()
    return d["pulled_left"].to_numpy(), d["actor"].to_numpy() - 1, d["block"].to_numpy() - 1, treatment


@public("rethinking_chimpanzees", SOURCE)
def chimpanzees() -> pm.Model:
    pulled, actor, block, treatment = _chimpanzees()
    with pm.Model() as model:
        b = pm.Normal("b", 0, 0.5, shape=4)
        a_bar = pm.Normal("a_bar", 0, 1.5)
        sigma_a, sigma_g = pm.Exponential("sigma_a", 1), pm.Exponential("sigma_g", 1)
        a, g = pm.Normal("a", a_bar, sigma_a, shape=7), pm.Normal("g", 0, sigma_g, shape=6)
        pm.Bernoulli("L", logit_p=a[actor] + g[block] + b[treatment], observed=pulled)
    return model


@public("rethinking_chimpanzees_lkj", SOURCE)
def chimpanzees_lkj() -> pm.Model:
    pulled, actor, block, treatment = _chimpanzees()
    with pm.Model() as model:
        g = pm.Normal("g", 0, 1, shape=4)
        effects = []
        for name, n in (("actor", 7), ("block", 6)):
            chol, _, _ = pm.LKJCholeskyCov(
                f"chol_{name}", n=4, eta=2, sd_dist=pm.Exponential.dist(1, size=4), compute_corr=True
            )
            z = pm.Normal(f"z_{name}", 0, 1, shape=(4, n))
            effects.append(pm.Deterministic(name, pt.dot(chol, z).T))
        alpha, beta = effects
        pm.Bernoulli("L", logit_p=g[treatment] + alpha[actor, treatment] + beta[block, treatment], observed=pulled)
    return model


def _admissions() -> tuple[np.ndarray, ...]:
    d = rethinking_table("UCBadmit")
    male = (d["applicant.gender"] == "male").astype(int).to_numpy()
    return d["admit"].to_numpy(), d["applications"].to_numpy(), male, codes(d["dept"])[0]


@public("rethinking_ucbadmit", SOURCE)
def ucbadmit() -> pm.Model:
    admit, n, male, dept = _admissions()
    with pm.Model() as model:
        a, delta = pm.Normal("a", 0, 1.5, shape=2), pm.Normal("delta", 0, 1.5, shape=6)
        pm.Binomial("admit", n, logit_p=a[male] + delta[dept], observed=admit)
    return model


@public("rethinking_ucbadmit_betabinomial", SOURCE)
def ucbadmit_betabinomial() -> pm.Model:
    admit, n, male, _ = _admissions()
    with pm.Model() as model:
        a, phi = pm.Normal("a", 0, 1.5, shape=2), pm.Exponential("phi", 1)
        theta = pm.Deterministic("theta", phi + 2)
        pbar = pm.Deterministic("pbar", pm.math.invlogit(a))
        pm.BetaBinomial("admit", alpha=pbar[male] * theta, beta=(1 - pbar[male]) * theta, n=n, observed=admit)
    return model


@public("rethinking_ucbadmit_lkj", SOURCE)
def ucbadmit_lkj() -> pm.Model:
    admit, n, male, dept = _admissions()
    with pm.Model() as model:
        a, bm = pm.Normal("a", 0, 10), pm.Normal("bm", 0, 1)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfCauchy.dist(2, size=2), compute_corr=True)
        ab = pm.MvNormal("ab", mu=pt.stack([a, bm]), chol=chol, shape=(6, 2))
        pm.Binomial("admit", n=n, logit_p=ab[dept, 0] + ab[dept, 1] * male, observed=admit)
    return model


def _kline() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    d = rethinking_table("Kline")
    log_pop = np.log(d["population"].to_numpy())
    return d["total_tools"].to_numpy(), log_pop, (d["contact"] == "high").astype(int).to_numpy()


@public("rethinking_kline", SOURCE)
def kline() -> pm.Model:
    tools, log_pop, contact = _kline()
    P = (log_pop - log_pop.mean()) / log_pop.std()
    with pm.Model() as model:
        a, b = pm.Normal("a", 3, 0.5, shape=2), pm.Normal("b", 0, 0.2, shape=2)
        pm.Poisson("T", pm.math.exp(a[contact] + b[contact] * P), observed=tools)
    return model


@public("rethinking_kline_gp_logpop", SOURCE)
def kline_gp_logpop() -> pm.Model:
    tools, log_pop, _ = _kline()
    with pm.Model() as model:
        a, bp = pm.Normal("a", 0, 10), pm.Normal("bp", 0, 1)
        etasq, rhosq = pm.HalfCauchy("etasq", 1), pm.HalfCauchy("rhosq", 1)
        K = etasq * pt.exp(-rhosq * ISLAND_DISTANCES**2) + np.diag([0.01] * 10)
        g = pm.MvNormal("g", mu=np.zeros(10), cov=K, shape=10)
        pm.Poisson("T", pm.math.exp(a + g + bp * log_pop), observed=tools)
    return model


@public("rethinking_kline_gp", SOURCE)
def kline_gp() -> pm.Model:
    tools, log_pop, _ = _kline()
    with pm.Model() as model:
        a, b, g = pm.Exponential("a", 1), pm.Exponential("b", 1), pm.Exponential("g", 1)
        etasq, rhosq = pm.Exponential("etasq", 2), pm.Exponential("rhosq", 0.5)
        K = etasq * pt.exp(-rhosq * ISLAND_DISTANCES**2) + np.diag([0.01] * 10)
        z = pm.Normal("z", 0, 1, shape=10)
        k = pm.Deterministic("k", pt.linalg.cholesky(K) @ z)
        pm.Poisson("T", (a * np.exp(log_pop) ** b / g) * pm.math.exp(k), observed=tools)
    return model


@public("rethinking_cafes", SOURCE, simulated=True)
def cafes() -> pm.Model:
    rng = np.random.default_rng(5)
    effects = rng.multivariate_normal([3.5, -1], [[1, -0.35], [-0.35, 0.25]], size=20)
    cafe, afternoon = np.repeat(np.arange(20), 10), np.tile([0, 1], 100)
    wait = rng.normal(effects[cafe, 0] + effects[cafe, 1] * afternoon, 0.5)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol_cov", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0), compute_corr=True)
        a_bar, b_bar = pm.Normal("a_bar", mu=5, sigma=2), pm.Normal("b_bar", mu=-1, sigma=0.5)
        ab = pm.MvNormal("ab", mu=pt.stack([a_bar, b_bar]), chol=chol, shape=(20, 2))
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("wait", mu=ab[cafe, 0] + ab[cafe, 1] * afternoon, sigma=sigma, observed=wait)
    return model


@public("rethinking_tulips", SOURCE)
def tulips() -> pm.Model:
    d = rethinking_table("tulips")
    blooms = (d["blooms"] / d["blooms"].max()).to_numpy()
    water, shade = (d["water"] - 2).to_numpy(), (d["shade"] - 2).to_numpy()
    with pm.Model() as model:
        a = pm.Normal("a", 0.5, 0.25)
        bw, bs, bws = (pm.Normal(name, 0, 0.25) for name in ("bw", "bs", "bws"))
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("blooms", a + bw * water + bs * shade + bws * water * shade, sigma, observed=blooms)
    return model


def _standard(x: np.ndarray) -> np.ndarray:
    return (x - np.nanmean(x)) / np.nanstd(x)


@public("rethinking_milk", SOURCE)
def milk() -> pm.Model:
    d = rethinking_table("milk").dropna(subset=["neocortex.perc"])
    K, N = _standard(d["kcal.per.g"].to_numpy()), _standard(d["neocortex.perc"].to_numpy())
    M = _standard(np.log(d["mass"].to_numpy()))
    with pm.Model() as model:
        a, bN, bM = pm.Normal("a", 0, 0.2), pm.Normal("bN", 0, 0.5), pm.Normal("bM", 0, 0.5)
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("K", a + bN * N + bM * M, sigma, observed=K)
    return model


@public("rethinking_milk_imputed", SOURCE)
def milk_imputed() -> pm.Model:
    d = rethinking_table("milk")
    K, B = _standard(d["kcal.per.g"].to_numpy()), _standard(d["neocortex.perc"].to_numpy())
    M = _standard(np.log(d["mass"].to_numpy()))
    with pm.Model() as model:
        nu, sigma_B = pm.Normal("nu", 0, 0.5), pm.Exponential("sigma_B", 1)
        Bi = pm.Normal("Bi", mu=nu, sigma=sigma_B, observed=np.ma.masked_invalid(B))
        a, bB, bM = pm.Normal("a", 0, 0.5), pm.Normal("bB", 0, 0.5), pm.Normal("bM", 0, 0.5)
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("K", a + bB * Bi + bM * M, sigma, observed=K)
    return model


def _waffles() -> tuple[np.ndarray, ...]:
    d = rethinking_table("WaffleDivorce")
    scale = d["Divorce"].std()
    divorce, error = _standard(d["Divorce"].to_numpy()), (d["Divorce SE"] / scale).to_numpy()
    married = _standard(d["Marriage"].to_numpy()), (d["Marriage SE"] / d["Marriage"].std()).to_numpy()
    return divorce, error, _standard(d["MedianAgeMarriage"].to_numpy()), *married


@public("rethinking_waffle_error", SOURCE)
def waffle_error() -> pm.Model:
    divorce, error, A, M, _ = _waffles()
    with pm.Model() as model:
        sigma = pm.Exponential("sigma", 1)
        a, bA, bM = pm.Normal("a", 0, 0.2), pm.Normal("bA", 0, 0.5), pm.Normal("bM", 0, 0.5)
        D_true = pm.Normal("D_true", a + bA * A + bM * M, sigma, shape=len(A))
        pm.Normal("D_obs", D_true, error, observed=divorce)
    return model


@public("rethinking_waffle_errors", SOURCE)
def waffle_errors() -> pm.Model:
    divorce, error, A, M, M_error = _waffles()
    with pm.Model() as model:
        sigma = pm.Exponential("sigma", 1)
        a, bA, bM = pm.Normal("a", 0, 0.2), pm.Normal("bA", 0, 0.5), pm.Normal("bM", 0, 0.5)
        M_true = pm.Normal("M_true", 0, 1, shape=len(A))
        D_true = pm.Normal("D_true", a + bA * A + bM * M_true, sigma, shape=len(A))
        pm.Normal("D_obs", D_true, error, observed=divorce)
        pm.Normal("M_obs", M_true, M_error, observed=M)
    return model


@public("rethinking_bangladesh", SOURCE)
def bangladesh() -> pm.Model:
    d = rethinking_table("bangladesh")
    district, n = codes(d["district"])
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=4, sd_dist=pm.Exponential.dist(1, shape=2))
        abar, bbar = pm.Normal("abar", 0, 1), pm.Normal("bbar", 0, 0.5)
        z = pm.Normal("z", 0, 1, shape=(2, n))
        ab = pm.Deterministic("ab", (chol @ z).T)
        logit_p = abar + ab[district, 0] + (bbar + ab[district, 1]) * d["urban"].to_numpy()
        pm.Bernoulli("C", logit_p=logit_p, observed=d["use.contraception"].to_numpy())
    return model


@public("rethinking_hurricanes", SOURCE)
def hurricanes() -> pm.Model:
    d = rethinking_table("Hurricanes")
    feminine = _standard(d["femininity"].to_numpy())
    with pm.Model() as model:
        a, bF = pm.Normal("a", 1, 1), pm.Normal("bF", 0, 1)
        phi = pm.Exponential("phi", 1)
        pm.NegativeBinomial("deaths", mu=pm.math.exp(a + bF * feminine), alpha=phi, observed=d["deaths"].to_numpy())
    return model


@public("rethinking_cherry_blossoms", SOURCE)
def cherry_blossoms() -> pm.Model:
    from scipy.interpolate import BSpline

    d = rethinking_table("cherry_blossoms").dropna(subset=["doy"])
    year, doy = d["year"].to_numpy(dtype=float), d["doy"].to_numpy(dtype=float)
    inner = np.quantile(year, np.linspace(0, 1, 15))
    knots = np.concatenate([[inner[0]] * 3, inner, [inner[-1]] * 3])
    B = BSpline.design_matrix(year, knots, 3).toarray()
    with pm.Model() as model:
        a = pm.Normal("a", 100, 10)
        w = pm.Normal("w", mu=0, sigma=10, shape=B.shape[1])
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("D", a + pm.math.dot(B, w), sigma, observed=doy)
    return model


@public("rethinking_wines", SOURCE)
def wines() -> pm.Model:
    d = rethinking_table("Wines2012")
    (judge, n_judges), (wine, n_wines) = codes(d["judge"]), codes(d["wine"])
    with pm.Model() as model:
        sigma_j, sigma_w = pm.Exponential("sigma_j", 1), pm.Exponential("sigma_w", 1)
        j, w = pm.Normal("j", 0, sigma_j, shape=n_judges), pm.Normal("w", 0, sigma_w, shape=n_wines)
        a, sigma = pm.Normal("a", 0, 0.2), pm.Exponential("sigma", 1)
        pm.Normal("score", a + j[judge] + w[wine], sigma, observed=_standard(d["score"].to_numpy(dtype=float)))
    return model


@public("rethinking_oxboys", SOURCE)
def oxboys() -> pm.Model:
    d = rethinking_table("Oxboys")
    boy, n = codes(d["Subject"])
    height, age = _standard(d["height"].to_numpy()), _standard(d["age"].to_numpy())
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0, size=2))
        a, b, sigma = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1), pm.Exponential("sigma", 1)
        v = pm.MvNormal("v", mu=pt.zeros(2), chol=chol, shape=(n, 2))
        pm.Normal("h", a + v[boy, 0] + (b + v[boy, 1]) * age, sigma, observed=height)
    return model


@public("rethinking_monks", SOURCE, simulated=True)
def monks() -> pm.Model:
    rng = np.random.default_rng(365)
    drink = rng.binomial(1, 0.2, 365)
    y = (1 - drink) * rng.poisson(1, 365)
    with pm.Model() as model:
        ap, al = pm.Normal("ap", -1.5, 1), pm.Normal("al", 1, 0.5)
        pm.ZeroInflatedPoisson("y", psi=1 - pm.math.invlogit(ap), mu=pm.math.exp(al), observed=y)
    return model
