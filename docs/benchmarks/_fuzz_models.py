"""Small models of every likelihood and block, with scales over twelve decades, as strategies of Hypothesis.

A `Case` is a few plain numbers, so that its repr is all one needs to see a failure again. Everything but likelihood,
block and size enters the model as `pm.Data`: cases that share these share a compiled model.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from hypothesis import strategies as st
from scipy import stats

from docs.benchmarks._fuzz_likelihoods import LIKELIHOODS

__all__ = ["BLOCKS", "Case", "Numbers", "cases", "model_of", "numbers_of"]

JITTER = 1e-6
"""What PyMC adds to the diagonal of a Gaussian process."""
TRIALS_DECADES = 6
IMPUTED = ("real", "count", "binary", "trials", "positive", "share")
"""Kinds of observations of which some may be missing."""


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
    learned : {0, 1}
        Which of the sds is learned, where one is: that of most latent variables.
    """

    write: Callable[..., Any]
    matrices: Callable[..., tuple[np.ndarray, np.ndarray]]
    names: tuple[str, ...]
    least: int = 1
    learned: int = 1


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
    "intercept": Block(write_intercept, lambda n, sds, x: (ones(n), sds[:1, None]), ("a",), learned=0),
    "regression": Block(write_regression, lambda n, sds, x: two_blocks(ones(n), x[:, None], sds), ("a", "b")),
    "groups": Block(write_groups, lambda n, sds, x: two_blocks(ones(n), pairs(n), sds), ("a", "b")),
    "random slopes": Block(
        write_slopes, lambda n, sds, x: two_blocks(pairs(n), pairs(n) * x[:, None], sds), ("a", "b")
    ),
    "crossed groups": Block(
        write_crossed, lambda n, sds, x: two_blocks(indicators(np.arange(n) % 2), pairs(n), sds), ("a", "b"), least=2
    ),
    "Gaussian process": Block(write_process, process_matrices, ("f",), least=2, learned=0),
    "random walk": Block(write_walk, walk_matrices, ("f",), least=2),
}


@dataclass(frozen=True)
class Case:
    """A model in plain numbers; decades are powers of ten.

    ``likely`` observations are drawn from the model, its predictors cut at a size of 20 where a link is not the
    identity; others have a size of their own, ``observed``, whatever the model expects. Of ``missing`` observations
    every third is one. A ``learned`` standard deviation, the last of the block, has a HalfCauchy prior of its size.
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
    missing: bool = False
    learned: bool = False


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
    seen: np.ndarray

    def only_seen(self) -> "Numbers":
        """Return the numbers of what is observed; missing observations say nothing."""
        rows = {name: getattr(self, name)[self.seen] for name in ("offset", "x", "trials", "y", "design", "seen")}
        return replace(self, **rows)


def decades(least: int, most: int) -> st.SearchStrategy[float]:
    """Return halves of decades; examples shrink towards a scale of one."""
    return st.integers(2 * least, 2 * most).map(lambda k: k / 2)


@st.composite
def cases(
    draw: st.DrawFn,
    likelihoods: tuple[str, ...] = (),
    blocks: tuple[str, ...] = (),
    most: int = 8,
    learned: bool = False,
) -> Case:
    """Return a strategy of cases, of all or of some likelihoods and blocks, with at most so many observations."""
    likelihood = draw(st.sampled_from(likelihoods or tuple(LIKELIHOODS)))
    block = draw(st.sampled_from(blocks or tuple(BLOCKS)))
    long = likelihood == "normal" and block in ("Gaussian process", "random walk")
    sizes = [n for n in (1, 2, 3, 8, *([30] if long else [])) if BLOCKS[block].least <= n <= (30 if long else most)]
    kind = LIKELIHOODS[likelihood].kind
    real, count = kind in ("real", "above", "within"), kind in ("count", "count above", "positive")
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
        not learned and kind in IMPUTED and draw(st.integers(0, 9)) == 9,
        learned,
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
        case "above":
            if not case.likely:
                return size * np.abs(noise)
            return s * stats.truncnorm.rvs(-eta / s, np.inf, loc=eta / s, size=case.n, random_state=rng)
        case "within":
            return np.clip(eta + s * noise if case.likely else size * noise, -s, s)
        case "count above":
            return 1 + (rng.poisson(mean) if case.likely else np.floor(size * uniform).astype(np.int64))
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
    seen = np.arange(case.n) % 3 != 1 if case.missing else np.full(case.n, True)
    return Numbers(offset, sds, x, s, trials, y, design, root, seen)


@cache
def _template(likelihood: str, block: str, n: int, learned: bool) -> pm.Model:
    """Return the model that all cases of a likelihood, a block and a size share, but for missing observations."""
    y = np.ones(n, dtype=int if LIKELIHOODS[likelihood].kind == "category" else float)
    return _model(likelihood, block, n, learned, lambda: pm.Data("data", y))


def _model(likelihood: str, block: str, n: int, learned: bool, observed: Callable[[], Any]) -> pm.Model:
    of, k = LIKELIHOODS[likelihood], BLOCKS[block].learned
    with pm.Model() as model:
        offset, x = pm.Data("offset", np.zeros(n)), pm.Data("x", np.ones(n))
        sds, s = pm.Data("sds", np.ones(2)), pm.Data("s", np.array(1.0))
        trials = pm.Data("trials", np.full(n, 2)) if of.kind == "trials" else None
        if learned:
            tau = pm.HalfCauchy("tau", sds[k])
            sds = pt.stack([sds[0], tau] if k else [tau, sds[1]])
        # PyMC keeps whole numbers in 32 bits, and counts go up to 1e12: they are given as floats.
        of.observe(offset + BLOCKS[block].write(n, sds, x), s, trials, observed())
    return model


def model_of(case: Case, numbers: Numbers) -> pm.Model:
    """Return the model of a case; a later case may change its data."""
    y = numbers.y if LIKELIHOODS[case.likelihood].kind == "category" else numbers.y.astype(float)
    data = {"offset": numbers.offset, "x": numbers.x, "sds": numbers.sds, "s": np.array(numbers.s)}
    key = (case.likelihood, case.block, case.n, case.learned)
    if case.missing:
        # PyMC imputes constants alone.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)
            model = _model(*key, lambda: np.ma.masked_array(y, ~numbers.seen))
    else:
        model, data["data"] = _template(*key), y
    if "trials" in model.named_vars:
        data["trials"] = numbers.trials
    with model:
        pm.set_data(data)
    return model
