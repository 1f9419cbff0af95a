"""Models on the small data sets of statistics textbooks, as PyMC's users write them; data as printed there."""

import numpy as np
import pymc as pm

from docs.benchmarks.public.base import public

__all__: list[str] = []


def _standardized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / x.std()


@public("agresti_separation", "Agresti", quadrature=True)
def agresti_separation() -> pm.Model:
    x = np.array([10, 20, 30, 40, 60, 70, 80, 90])
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Cauchy("b", 0, 2.5)
        pm.Bernoulli("y", logit_p=a + b * (x - 50) / 10, observed=(x > 50).astype(int))
    return model


@public("agresti_death_penalty", "Agresti")
def agresti_death_penalty() -> pm.Model:
    black_defendant, black_victim = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    with pm.Model() as model:
        intercept, coef = pm.Normal("intercept", 0, 10), pm.StudentT("coef", nu=3, mu=0, sigma=2.5, shape=2)
        eta = intercept + coef[0] * black_defendant + coef[1] * black_victim
        pm.Binomial("penalty", n=[467, 48, 16, 143], logit_p=eta, observed=[53, 11, 0, 4])
    return model


@public("agresti_party_ideology", "Agresti")
def agresti_party_ideology() -> pm.Model:
    table = [[44, 47, 118, 23, 32], [36, 34, 53, 18, 23], [18, 28, 86, 39, 48], [12, 18, 62, 45, 51]]
    counts = np.array(table)
    y = np.concatenate([np.repeat(np.arange(5), row) for row in counts])
    republican, male = (np.repeat(of, counts.sum(axis=1)) for of in ([0, 0, 1, 1], [0, 1, 0, 1]))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=2)
        cutpoints = pm.Normal(
            "cutpoints",
            mu=[-2, -1, 1, 2],
            sigma=3,
            transform=pm.distributions.transforms.ordered,
            initval=np.array([-2.0, -1.0, 1.0, 2.0]),
        )
        eta = beta[0] * republican + beta[1] * male
        pm.OrderedLogistic("ideology", eta=eta, cutpoints=cutpoints, compute_p=False, observed=y)
    return model


@public("dobson_aids", "Dobson & Barnett")
def dobson_aids() -> pm.Model:
    cases = [1, 6, 16, 23, 27, 39, 31, 30, 43, 51, 63, 70, 88, 97, 91, 104, 110, 113, 149, 159]
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=2)
        alpha = pm.HalfCauchy("alpha", 10)
        log_quarter = np.log(np.arange(1, 21))
        pm.NegativeBinomial("cases", mu=pm.math.exp(b[0] + b[1] * log_quarter), alpha=alpha, observed=cases)
    return model


@public("dobson_doctors", "Dobson & Barnett")
def dobson_doctors() -> pm.Model:
    deaths = np.array([32, 104, 206, 186, 102, 2, 12, 28, 28, 31])
    years = np.array([52407, 43248, 28612, 12663, 5317, 18790, 10673, 5710, 2585, 1462])
    smoker, age = np.repeat([1, 0], 5), np.tile(np.arange(1, 6), 2)
    X = np.column_stack([smoker, age, age**2, smoker * age])
    with pm.Model() as model:
        intercept, b = pm.Normal("intercept", -8, 5), pm.StudentT("b", nu=4, mu=0, sigma=2.5, shape=4)
        pm.Poisson("deaths", years * pm.math.exp(intercept + X @ b), observed=deaths)
    return model


@public("dobson_birthweight", "Dobson & Barnett")
def dobson_birthweight() -> pm.Model:
    weeks = np.array([40, 38, 40, 35, 36, 37, 41, 40, 37, 38, 40, 38, 40, 36, 40, 38, 42, 39, 40, 37, 36, 38, 39, 40])
    grams = np.array([2968, 2795, 3163, 2925, 2625, 2847, 3292, 3473, 2628, 3176, 3421, 2975])
    grams = np.append(grams, [3317, 2729, 2935, 2754, 3210, 2817, 3126, 2539, 2412, 2991, 2875, 3231])
    with pm.Model() as model:
        mean, slope = pm.Normal("mean", 3000, 1000, shape=2), pm.Normal("slope", 0, 500)
        sigma = pm.HalfCauchy("sigma", 500)
        pm.Normal("grams", mean[np.repeat([0, 1], 12)] + slope * (weeks - 38.5), sigma, observed=grams.astype(float))
    return model


@public("dobson_anthers", "Dobson & Barnett")
def dobson_anthers() -> pm.Model:
    storage, force = np.repeat([0, 1], 3), np.tile(np.log([40, 150, 350]), 2)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2.5, shape=2), pm.Cauchy("b", 0, 1)
        sd = pm.HalfNormal("sd", 0.5)
        plate = pm.Normal("plate", 0, sd, shape=6)
        eta = a[storage] + b * (force - force.mean()) + plate
        pm.Binomial("y", n=[102, 99, 108, 76, 81, 90], logit_p=eta, observed=[55, 52, 57, 55, 50, 50])
    return model


@public("dobson_leukaemia", "Dobson & Barnett", quadrature=True)
def dobson_leukaemia() -> pm.Model:
    weeks = np.array([65, 156, 100, 134, 16, 108, 121, 4, 39, 143, 56, 26, 22, 1, 1, 5, 65])
    cells = [3.36, 2.88, 3.63, 3.41, 3.78, 4.02, 4.00, 4.23, 3.73, 3.85, 3.97, 4.51, 4.54, 5.00, 5.00, 4.72, 5.00]
    with pm.Model() as model:
        a, b = pm.Normal("a", 4, 2), pm.StudentT("b", nu=3, mu=0, sigma=1)
        pm.Exponential("weeks", scale=pm.math.exp(a + b * (np.array(cells) - 4)), observed=weeks)
    return model


@public("dobson_remission", "Dobson & Barnett")
def dobson_remission() -> pm.Model:
    treated = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    placebo = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
    weeks = np.array(treated + placebo, dtype=float)
    upper = np.where((np.arange(42) >= 9) & (np.arange(42) < 21), weeks, np.inf)
    with pm.Model() as model:
        b, shape = pm.Normal("b", 0, 5, shape=2), pm.HalfCauchy("shape", 2)
        life = pm.Weibull.dist(alpha=shape, beta=pm.math.exp(b[0] + b[1] * np.repeat([1, 0], 21)))
        pm.Censored("weeks", life, lower=None, upper=upper, observed=weeks)
    return model


@public("faraway_orings", "Faraway", quadrature=True)
def faraway_orings() -> pm.Model:
    degrees = [53, 57, 58, 63, 66, 67, 67, 67, 68, 69, 70, 70, 70, 70, 72, 73, 75, 75, 76, 76, 78, 79, 81]
    damage = [5, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 10), pm.Cauchy("b", 0, 2.5)
        pm.Binomial("damage", n=6, logit_p=a + b * _standardized(np.array(degrees)), observed=damage)
    return model


@public("faraway_pulp", "Faraway")
def faraway_pulp() -> pm.Model:
    bright = [59.8, 60.0, 60.8, 60.8, 59.8, 59.8, 60.2, 60.4, 59.9, 60.0]
    bright += [60.7, 60.7, 60.5, 60.9, 60.3, 61.0, 60.8, 60.6, 60.5, 60.5]
    with pm.Model() as model:
        mu = pm.Normal("mu", 60, 10)
        tau, sigma = pm.HalfCauchy("tau", 1), pm.HalfCauchy("sigma", 1)
        operator = pm.Normal("operator", 0, tau, shape=4)
        pm.Normal("bright", mu + operator[np.repeat(np.arange(4), 5)], sigma, observed=bright)
    return model


@public("faraway_penicillin", "Faraway")
def faraway_penicillin() -> pm.Model:
    y = np.array([[89, 84, 81, 87, 79], [88, 77, 87, 92, 81], [97, 92, 87, 89, 80], [94, 79, 85, 84, 88]])
    with pm.Model() as model:
        treatment = pm.Normal("treatment", 86, 20, shape=4)
        tau, sigma = pm.HalfStudentT("tau", nu=3, sigma=10), pm.HalfStudentT("sigma", nu=3, sigma=10)
        blend = pm.Normal("blend", 0, tau, shape=5)
        pm.Normal("y", treatment[:, None] + blend[None, :], sigma, observed=y.astype(float))
    return model


@public("faraway_irrigation", "Faraway")
def faraway_irrigation() -> pm.Model:
    y = [[35.4, 37.9], [36.7, 38.2], [34.8, 36.4], [39.5, 40.0], [41.6, 40.3], [42.7, 41.6], [43.6, 42.8], [44.5, 47.6]]
    with pm.Model() as model:
        mu, irrigation = pm.Normal("mu", 40, 20), pm.Normal("irrigation", 0, 5, shape=3)
        variety = pm.Normal("variety", 0, 5)
        tau, sigma = pm.HalfCauchy("tau", 5), pm.HalfCauchy("sigma", 5)
        field = pm.Normal("field", 0, tau, shape=8)
        level = mu + pm.math.concatenate([np.zeros(1), irrigation])[np.arange(8) % 4] + field
        pm.Normal("y", level[:, None] + variety * np.array([0, 1]), sigma, observed=y)
    return model


@public("mccullagh_clotting", "McCullagh & Nelder")
def mccullagh_clotting() -> pm.Model:
    seconds = np.array([[118, 58, 42, 35, 27, 25, 21, 19, 18], [69, 35, 26, 21, 18, 16, 13, 12, 12]], dtype=float)
    log_u = np.log([5, 10, 15, 20, 30, 40, 60, 80, 100])
    with pm.Model() as model:
        level, slope = pm.Normal("level", 0, 10, shape=2), pm.Normal("slope", 0, 10, shape=2)
        shape = pm.HalfCauchy("shape", 50)
        mu = pm.math.exp(level[:, None] + slope[:, None] * (log_u - log_u.mean()))
        pm.Gamma("seconds", alpha=shape, beta=shape / mu, observed=seconds)
    return model


@public("mccullagh_cheese", "McCullagh & Nelder")
def mccullagh_cheese() -> pm.Model:
    table = [[0, 0, 1, 7, 8, 8, 19, 8, 1], [6, 9, 12, 11, 7, 6, 1, 0, 0], [1, 1, 6, 8, 23, 7, 5, 1, 0]]
    counts = np.array([*table, [0, 0, 0, 1, 3, 7, 14, 16, 11]])
    y = np.concatenate([np.repeat(np.arange(9), row) for row in counts])
    additive = np.eye(4)[np.repeat(np.arange(4), 52)][:, :3]
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 5, shape=3)
        cutpoints = pm.Normal(
            "cutpoints",
            0,
            5,
            shape=8,
            transform=pm.distributions.transforms.ordered,
            initval=np.linspace(-4.0, 3.0, 8),
        )
        pm.OrderedLogistic("taste", eta=additive @ beta, cutpoints=cutpoints, compute_p=False, observed=y)
    return model


@public("mccullagh_tonsils", "McCullagh & Nelder")
def mccullagh_tonsils() -> pm.Model:
    counts = np.array([[19, 29, 24], [497, 560, 269]])
    y = np.concatenate([np.repeat(np.arange(3), row) for row in counts])
    carrier = np.repeat([1, 0], counts.sum(axis=1))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1)
        cutpoints = pm.Normal(
            "cutpoints",
            0,
            2,
            shape=2,
            transform=pm.distributions.transforms.ordered,
            initval=np.array([-0.5, 0.5]),
        )
        pm.OrderedProbit("size", eta=beta * carrier, cutpoints=cutpoints, compute_p=False, observed=y)
    return model


@public("hand_insect_sprays", "Hand et al.")
def hand_insect_sprays() -> pm.Model:
    counts = [10, 7, 20, 14, 14, 12, 10, 23, 17, 20, 14, 13, 11, 17, 21, 11, 16, 14, 17, 17, 19, 21, 7, 13]
    counts += [0, 1, 7, 2, 3, 1, 2, 1, 3, 0, 1, 4, 3, 5, 12, 6, 4, 3, 5, 5, 5, 5, 2, 4]
    counts += [3, 5, 3, 5, 3, 6, 1, 1, 3, 2, 6, 4, 11, 9, 15, 22, 15, 16, 13, 10, 26, 26, 24, 13]
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 2, 2), pm.HalfCauchy("tau", 1)
        alpha = pm.HalfCauchy("alpha", 10)
        spray = pm.Normal("spray", mu, tau, shape=6)
        rate = pm.math.exp(spray[np.repeat(np.arange(6), 12)])
        pm.NegativeBinomial("count", mu=rate, alpha=alpha, observed=counts)
    return model


@public("hand_darwin", "Hand et al.")
def hand_darwin() -> pm.Model:
    difference = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 100), pm.HalfCauchy("sigma", 25)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("difference", nu=nu, mu=mu, sigma=sigma, observed=np.array(difference, dtype=float))
    return model


@public("hand_plant_growth", "Hand et al.")
def hand_plant_growth() -> pm.Model:
    y = [4.17, 5.58, 5.18, 6.11, 4.50, 4.61, 5.17, 4.53, 5.33, 5.14, 4.81, 4.17, 4.41, 3.59, 5.87]
    y += [3.83, 6.03, 4.89, 4.32, 4.69, 6.31, 5.12, 5.54, 5.50, 5.37, 5.29, 4.92, 6.15, 5.80, 5.26]
    group = np.repeat(np.arange(3), 10)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 5, 2), pm.HalfCauchy("tau", 1)
        level, sigma = pm.Normal("level", mu, tau, shape=3), pm.HalfCauchy("sigma", 1, shape=3)
        pm.Normal("y", level[group], sigma[group], observed=y)
    return model
