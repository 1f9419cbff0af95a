"""Small models of every likelihood and block, with scales over twelve decades, as strategies of Hypothesis.

A `Case` is a few plain numbers, so that its repr is all one needs to see a failure again. Everything but likelihood,
block and size enters the model as `pm.Data`: cases that share these share a compiled model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from hypothesis import strategies as st
from scipy import special

import pymc_ep as pmep

__all__ = ["BLOCKS", "LIKELIHOODS", "Case", "Numbers", "cases", "model_of", "numbers_of"]

CUTS = np.array([-1.0, 0.5, 2.0])
"""Cutpoints of the ordered likelihoods."""
ASYMMETRY = 2.0
JITTER = 1e-6
"""What PyMC adds to the diagonal of a Gaussian process."""
TRIALS_DECADES = 6


@dataclass(frozen=True)
class Likelihood:
    """A likelihood of the latent Gaussian form.

    Parameters
    ----------
    observe : callable
        Of predictor, scale s, trials and observations: write the observed variable ``y``.
    logp : callable
        Of observations (n,), predictors (..., n), s and trials: log density, written without the package or PyMC.
    kind : {"real", "count", "binary", "trials", "positive", "share", "category"}
        What observations are.
    link : callable
        Mean of an observation, of the predictor; the identity where it is None.
    smooth : bool
        Whether the log density has a second derivative everywhere.
    log_concave : bool
        Whether it is concave: posteriors then have one peak.
    """

    observe: Callable[..., Any]
    logp: Callable[..., np.ndarray]
    kind: str
    link: Callable[[np.ndarray], np.ndarray] | None = None
    smooth: bool = True
    log_concave: bool = True


def cloglog(f: Any) -> Any:
    """Return 1 - exp(-exp(f)) as models write it."""
    return 1 - pt.exp(-pt.exp(f))


def log_cloglog(f: np.ndarray) -> np.ndarray:
    """Return log(1 - exp(-exp(f))); below -30 it is f to double precision."""
    return np.where(f < -30, f, np.log(-np.expm1(-np.exp(np.maximum(f, -30.0)))))


def log_softplus(f: np.ndarray) -> np.ndarray:
    """Return log log(1 + exp(f)); below -30 it is f to double precision."""
    return np.where(f < -30, f, np.log(np.logaddexp(0.0, np.maximum(f, -30.0))))


def of_trials(log_p: Callable[..., Any], log_q: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Return the binomial log density of log probabilities of success and of failure."""

    def logp(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
        binomial = -special.betaln(y + 1.0, trials - y + 1.0) - np.log1p(trials)
        # Zero times minus infinity is zero: of no successes each is certain to be none.
        return binomial + np.where(y > 0, y * log_p(f), 0.0) + np.where(trials > y, (trials - y) * log_q(f), 0.0)

    return logp


def of_rate(log_rate: Callable[..., Any], rate: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Return the log density of Poisson counts."""

    def logp(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
        return np.where(y > 0, y * log_rate(f), 0.0) - rate(f) - special.gammaln(y + 1.0)

    return logp


def negative_binomial(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density for mean exp(f) and shape s."""
    total = np.logaddexp(np.log(s), f)
    ways = -special.betaln(s, y + 1.0) - np.log(s + y)
    return ways + s * (np.log(s) - total) + y * (f - total)


def gamma(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density for mean exp(f) and shape s."""
    return s * (np.log(s) - f) - special.gammaln(s) + (s - 1.0) * np.log(y) - s * y * np.exp(-f)


def beta(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density for mean expit(f) and concentration s."""
    a, b = s * special.expit(f), s * special.expit(-f)
    return (a - 1.0) * np.log(y) + (b - 1.0) * np.log1p(-y) - special.betaln(a, b)


def asymmetric_laplace(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return PyMC's log density with b = 1 / s and kappa = ASYMMETRY."""
    x = (y - f) / s
    sign = np.sign(x)
    return -np.log(s * (ASYMMETRY + 1 / ASYMMETRY)) - x * sign * ASYMMETRY**sign


def ordered_logit(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return log(expit(upper - f) - expit(lower - f))."""
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    lower, upper = edges[y] - f, edges[y + 1] - f
    return special.log_expit(upper) + special.log_expit(-lower) + np.log(-np.expm1(edges[y] - edges[y + 1]))


def ordered_probit(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return log(Phi(upper - f) - Phi(lower - f)), of the tail in which it loses no digits."""
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    lower, upper = edges[y] - f, edges[y + 1] - f
    lower, upper = np.where(lower > 0, -upper, lower), np.where(lower > 0, -lower, upper)
    below, at = special.log_ndtr(upper), special.log_ndtr(lower)
    return below + np.log(-np.expm1(at - below))


def student_t(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density for 4 degrees of freedom and scale s."""
    constant = special.gammaln(2.5) - special.gammaln(2.0) - 0.5 * np.log(4 * np.pi) - np.log(s)
    return constant - 2.5 * np.log1p(((y - f) / s) ** 2 / 4.0)


def gumbel(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density for location f and scale s."""
    x = (y - f) / s
    return -x - np.exp(-x) - np.log(s)


def signed(log_cdf: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Return the log density of bits under a symmetric link."""
    return lambda y, f, s, trials: log_cdf((2 * y - 1) * f)


INVPROBIT = pm.math.invprobit
LOGIT_PAIR = (special.log_expit, lambda f: special.log_expit(-f))
PROBIT_PAIR = (special.log_ndtr, lambda f: special.log_ndtr(-f))
CLOGLOG_PAIR = (log_cloglog, lambda f: -np.exp(f))
LIKELIHOODS = {
    "normal": Likelihood(
        lambda f, s, t, y: pm.Normal("y", f, s, observed=y),
        lambda y, f, s, t: -0.5 * ((y - f) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi),
        "real",
    ),
    "student_t": Likelihood(
        lambda f, s, t, y: pm.StudentT("y", nu=4, mu=f, sigma=s, observed=y), student_t, "real", log_concave=False
    ),
    "laplace": Likelihood(
        lambda f, s, t, y: pm.Laplace("y", f, s, observed=y),
        lambda y, f, s, t: -np.abs(y - f) / s - np.log(2 * s),
        "real",
        smooth=False,
    ),
    "asymmetric_laplace": Likelihood(
        lambda f, s, t, y: pm.AsymmetricLaplace("y", kappa=ASYMMETRY, mu=f, b=1 / s, observed=y),
        asymmetric_laplace,
        "real",
        smooth=False,
    ),
    "gumbel, by quadrature": Likelihood(lambda f, s, t, y: pm.Gumbel("y", f, s, observed=y), gumbel, "real"),
    "poisson": Likelihood(
        lambda f, s, t, y: pm.Poisson("y", pt.exp(f), observed=y), of_rate(lambda f: f, np.exp), "count", np.exp
    ),
    "softplus_poisson": Likelihood(
        lambda f, s, t, y: pmep.SoftplusPoisson("y", f, observed=y),
        of_rate(log_softplus, lambda f: np.logaddexp(0.0, f)),
        "count",
        lambda f: np.logaddexp(0.0, f),
    ),
    "rectified_poisson": Likelihood(
        lambda f, s, t, y: pmep.RectifiedPoisson("y", f, observed=y),
        of_rate(lambda f: np.log(np.maximum(f, 0.0)), lambda f: np.maximum(f, 0.0)),
        "count",
        lambda f: np.maximum(f, 0.0),
        smooth=False,
    ),
    "negative_binomial": Likelihood(
        lambda f, s, t, y: pm.NegativeBinomial("y", mu=pt.exp(f), alpha=s, observed=y),
        negative_binomial,
        "count",
        np.exp,
    ),
    "bernoulli_logit": Likelihood(
        lambda f, s, t, y: pm.Bernoulli("y", logit_p=f, observed=y), signed(special.log_expit), "binary", special.expit
    ),
    "bernoulli_probit": Likelihood(
        lambda f, s, t, y: pm.Bernoulli("y", INVPROBIT(f), observed=y), signed(special.log_ndtr), "binary", special.ndtr
    ),
    "bernoulli_cloglog": Likelihood(
        lambda f, s, t, y: pm.Bernoulli("y", cloglog(f), observed=y),
        lambda y, f, s, t: np.where(y == 1, log_cloglog(f), -np.exp(f)),
        "binary",
        lambda f: -np.expm1(-np.exp(f)),
    ),
    "binomial_logit": Likelihood(
        lambda f, s, t, y: pm.Binomial("y", t, logit_p=f, observed=y), of_trials(*LOGIT_PAIR), "trials", special.expit
    ),
    "binomial_probit": Likelihood(
        lambda f, s, t, y: pm.Binomial("y", t, INVPROBIT(f), observed=y),
        of_trials(*PROBIT_PAIR),
        "trials",
        special.ndtr,
    ),
    "binomial_cloglog": Likelihood(
        lambda f, s, t, y: pm.Binomial("y", t, cloglog(f), observed=y),
        of_trials(*CLOGLOG_PAIR),
        "trials",
        lambda f: -np.expm1(-np.exp(f)),
    ),
    "exponential": Likelihood(
        lambda f, s, t, y: pm.Exponential("y", scale=pt.exp(f), observed=y),
        lambda y, f, s, t: -f - y * np.exp(-f),
        "positive",
        np.exp,
    ),
    "gamma": Likelihood(
        lambda f, s, t, y: pm.Gamma("y", alpha=s, beta=s / pt.exp(f), observed=y), gamma, "positive", np.exp
    ),
    "beta": Likelihood(
        lambda f, s, t, y: pm.Beta("y", mu=pt.sigmoid(f), nu=s, observed=y),
        beta,
        "share",
        special.expit,
        log_concave=False,
    ),
    "ordered_logit": Likelihood(
        lambda f, s, t, y: pm.OrderedLogistic("y", eta=f, cutpoints=CUTS, compute_p=False, observed=y),
        ordered_logit,
        "category",
        lambda f: np.searchsorted(CUTS, f),
    ),
    "ordered_probit": Likelihood(
        lambda f, s, t, y: pm.OrderedProbit("y", eta=f, cutpoints=CUTS, compute_p=False, observed=y),
        ordered_probit,
        "category",
        lambda f: np.searchsorted(CUTS, f),
    ),
}


@dataclass(frozen=True)
class Block:
    """A predictor: how a model writes it, and the same in matrices.

    Parameters
    ----------
    write : callable
        Of n, sds (2,) and covariate (n,): the predictor without its offset.
    matrices : callable
        Of the same: design A (n, d) and a root L (d, k) of the prior covariance of the latent variables, in the order
        of `names`.
    names : tuple of str
        Latent variables.
    least : int
        Fewest observations.
    """

    write: Callable[..., Any]
    matrices: Callable[..., tuple[np.ndarray, np.ndarray]]
    names: tuple[str, ...]
    least: int = 1


def write_intercept(n: int, sds: Any, x: Any) -> Any:
    """Return an intercept for all."""
    return pm.Normal("a", 0.0, sds[0]) * np.ones(n)


def write_regression(n: int, sds: Any, x: Any) -> Any:
    """Return an intercept and a slope."""
    return pm.Normal("a", 0.0, sds[0]) + pm.Normal("b", 0.0, sds[1]) * x


def write_groups(n: int, sds: Any, x: Any) -> Any:
    """Return an intercept and effects of groups of two."""
    return pm.Normal("a", 0.0, sds[0]) + pm.Normal("b", 0.0, sds[1], shape=(n + 1) // 2)[np.arange(n) // 2]


def write_slopes(n: int, sds: Any, x: Any) -> Any:
    """Return levels and slopes of groups of two."""
    group, size = np.arange(n) // 2, (n + 1) // 2
    return pm.Normal("a", 0.0, sds[0], shape=size)[group] + pm.Normal("b", 0.0, sds[1], shape=size)[group] * x


def write_crossed(n: int, sds: Any, x: Any) -> Any:
    """Return effects of two rows and of all columns of a table."""
    columns = (n + 1) // 2
    a, b = pm.Normal("a", 0.0, sds[0], shape=2), pm.Normal("b", 0.0, sds[1], shape=columns)
    return a[np.arange(n) % 2] + b[np.arange(n) // 2]


def write_process(n: int, sds: Any, x: Any) -> Any:
    """Return a Gaussian process at the unit interval."""
    process = pm.gp.Latent(cov_func=sds[0] ** 2 * pm.gp.cov.Matern32(1, ls=0.3))
    return process.prior("f", np.linspace(0.0, 1.0, n)[:, None], jitter=JITTER)


def write_walk(n: int, sds: Any, x: Any) -> Any:
    """Return a random walk."""
    return pm.GaussianRandomWalk("f", sigma=sds[1], init_dist=pm.Normal.dist(0.0, sds[0]), steps=n - 1)


def indicators(of: np.ndarray) -> np.ndarray:
    """Return the matrix that gives each observation the effect of its group."""
    return (of[:, None] == np.arange(of.max() + 1)).astype(float)


def two_blocks(first: np.ndarray, second: np.ndarray, sds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return design and root of two blocks of independent effects."""
    scale = np.repeat(sds, [first.shape[1], second.shape[1]])
    return np.concatenate([first, second], axis=1), np.diag(scale)


def process_matrices(n: int, sds: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the identity and a root of the Matérn covariance."""
    distance = np.sqrt(3.0) * np.abs(np.subtract.outer(*[np.linspace(0.0, 1.0, n)] * 2)) / 0.3
    covariance = sds[0] ** 2 * (1.0 + distance) * np.exp(-distance) + JITTER * np.eye(n)
    return np.eye(n), np.linalg.cholesky(covariance)


def walk_matrices(n: int, sds: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the identity and the sums of steps."""
    return np.eye(n), np.tril(np.ones((n, n))) * np.concatenate([sds[:1], np.full(n - 1, sds[1])])


def ones(n: int) -> np.ndarray:
    """Return the design of an intercept."""
    return np.ones((n, 1))


def pairs(n: int) -> np.ndarray:
    """Return the design of groups of two."""
    return indicators(np.arange(n) // 2)


BLOCKS = {
    "intercept": Block(write_intercept, lambda n, sds, x: (ones(n), sds[:1, None]), ("a",)),
    "regression": Block(write_regression, lambda n, sds, x: two_blocks(ones(n), x[:, None], sds), ("a", "b")),
    "groups": Block(write_groups, lambda n, sds, x: two_blocks(ones(n), pairs(n), sds), ("a", "b")),
    "random slopes": Block(
        write_slopes, lambda n, sds, x: two_blocks(pairs(n), pairs(n) * x[:, None], sds), ("a", "b")
    ),
    "crossed groups": Block(
        write_crossed, lambda n, sds, x: two_blocks(indicators(np.arange(n) % 2), pairs(n), sds), ("a", "b"), least=2
    ),
    "Gaussian process": Block(write_process, process_matrices, ("f",), least=2),
    "random walk": Block(write_walk, walk_matrices, ("f",), least=2),
}


@dataclass(frozen=True)
class Case:
    """A model in plain numbers; decades are powers of ten.

    ``likely`` observations are drawn from the model, its predictors cut at a size of 20 where a link is not the
    identity; others have a size of their own, ``observed``, whatever the model expects.
    """

    likelihood: str
    block: str
    n: int
    seed: int
    likely: bool
    prior: float
    other_prior: float
    offset: float
    covariate: float
    scale: float
    observed: float


@dataclass(frozen=True)
class Numbers:
    """What a case comes to: data of its model, and design and root of the prior covariance for the reference."""

    offset: np.ndarray
    sds: np.ndarray
    x: np.ndarray
    s: float
    trials: np.ndarray
    y: np.ndarray
    design: np.ndarray
    root: np.ndarray


def decades(least: int, most: int) -> st.SearchStrategy[float]:
    """Return halves of decades; examples shrink towards a scale of one."""
    return st.integers(2 * least, 2 * most).map(lambda k: k / 2)


@st.composite
def cases(draw: st.DrawFn, likelihoods: tuple[str, ...] = (), blocks: tuple[str, ...] = (), most: int = 8) -> Case:
    """Return a strategy of cases, of all or of some likelihoods and blocks, with at most so many observations."""
    likelihood = draw(st.sampled_from(likelihoods or tuple(LIKELIHOODS)))
    block = draw(st.sampled_from(blocks or tuple(BLOCKS)))
    long = likelihood == "normal" and block in ("Gaussian process", "random walk")
    sizes = [n for n in (1, 2, 3, 8, *([30] if long else [])) if BLOCKS[block].least <= n <= (30 if long else most)]
    real, count = LIKELIHOODS[likelihood].kind == "real", LIKELIHOODS[likelihood].kind in ("count", "positive")
    return Case(
        likelihood,
        block,
        draw(st.sampled_from(sizes)),
        draw(st.integers(0, 2**16)),
        draw(st.booleans()),
        draw(decades(-6, 6)),
        draw(decades(-6, 6)),
        draw(decades(-6, 6 if real else 2)),
        draw(decades(-6, 6)),
        # Shapes of Gamma, Beta and the negative binomial have fewer decades that make sense than a noise.
        draw(decades(-6, 6) if real else decades(-2, 4)),
        draw(decades(-6, 6) if real else decades(0, 12) if count else decades(0, TRIALS_DECADES)),
    )


def observations(case: Case, eta: np.ndarray, s: float, trials: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return observations: near what the model expects, or of a size of their own."""
    likelihood, n, size = LIKELIHOODS[case.likelihood], case.n, 10.0**case.observed
    noise = rng.normal(size=n)
    mean = eta if likelihood.link is None else likelihood.link(np.clip(eta, -20.0, 20.0))
    uniform = rng.uniform(size=n)
    match likelihood.kind:
        case "real":
            return eta + s * noise if case.likely else size * noise
        case "count":
            return rng.poisson(mean) if case.likely else np.floor(size * uniform).astype(np.int64)
        case "binary":
            return (uniform < mean if case.likely else uniform < 0.5).astype(np.int64)
        case "trials":
            return rng.binomial(trials, mean if case.likely else uniform)
        case "positive":
            # At the other end of the decades too: as far below one as above.
            return mean * rng.gamma(2.0, 0.5, size=n) if case.likely else 10.0 ** (case.observed - 6) * uniform
        case "share":
            return np.clip(mean + 0.1 * (uniform - 0.5) if case.likely else uniform, 1e-6, 1 - 1e-6)
        case _:
            return mean.astype(np.int64) if case.likely else rng.integers(4, size=n)


def numbers_of(case: Case) -> Numbers:
    """Draw the numbers of a case."""
    rng = np.random.default_rng(case.seed)
    sds, s = 10.0 ** np.array([case.prior, case.other_prior]), 10.0**case.scale
    x = 10.0**case.covariate * rng.normal(size=case.n)
    offset = 10.0**case.offset * rng.choice([-1.0, 1.0]) * (1.0 + 0.1 * rng.normal(size=case.n))
    design, root = BLOCKS[case.block].matrices(case.n, sds, x)
    eta = offset + design @ (root @ rng.normal(size=root.shape[1]))
    trials = 1 + np.floor(10.0 ** min(case.observed, TRIALS_DECADES) * rng.uniform(size=case.n)).astype(np.int64)
    y = observations(case, eta, s, trials, rng)
    return Numbers(offset, sds, x, s, trials, y, design, root)


@cache
def _template(likelihood: str, block: str, n: int) -> pm.Model:
    """Return the model that all cases of a likelihood, a block and a size share."""
    of = LIKELIHOODS[likelihood]
    with pm.Model() as model:
        offset, x = pm.Data("offset", np.zeros(n)), pm.Data("x", np.ones(n))
        sds, s = pm.Data("sds", np.ones(2)), pm.Data("s", np.array(1.0))
        trials = pm.Data("trials", np.full(n, 2)) if of.kind == "trials" else None
        # PyMC keeps whole numbers in 32 bits, and counts go up to 1e12: they are given as floats.
        y = pm.Data("data", np.ones(n, dtype=int if of.kind == "category" else float))
        of.observe(offset + BLOCKS[block].write(n, sds, x), s, trials, y)
    return model


def model_of(case: Case, numbers: Numbers) -> pm.Model:
    """Return the model of a case; a later case may change its data."""
    model = _template(case.likelihood, case.block, case.n)
    y = numbers.y if LIKELIHOODS[case.likelihood].kind == "category" else numbers.y.astype(float)
    data = {"offset": numbers.offset, "x": numbers.x, "sds": numbers.sds, "s": np.array(numbers.s), "data": y}
    if "trials" in model.named_vars:
        data["trials"] = numbers.trials
    with model:
        pm.set_data(data)
    return model
