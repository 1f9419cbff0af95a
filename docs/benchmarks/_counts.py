"""What the benchmarks with counts share: three links, and held-out scores of a Gaussian field under each."""

import time
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_ep as pmep
from docs.benchmarks._common import hyper_modes

__all__ = [
    "FOLDS",
    "LINKS",
    "Scored",
    "add_counts",
    "all_scores",
    "difference",
    "finite_basis",
    "fit_all",
    "folds",
    "observe",
    "plain",
    "predictor_prior",
    "score_fold",
]

LINKS = ("exp", "softplus", "rectified")
FOLDS = 5


class Scored(NamedTuple):
    """One fit: log predictive densities of the held-out counts, in nats, and how it was reached."""

    log_density: np.ndarray
    log_evidence: float
    modes: dict[str, float]
    converged: bool
    seconds: float
    evaluations: int


def observe(link: str, name: str, f: Any, **observed: Any) -> None:
    """Add Poisson counts with the given link."""
    if link == "exp":
        pm.Poisson(name, pm.math.exp(f), **observed)
    elif link == "softplus":
        pmep.SoftplusPoisson(name, f, **observed)
    else:
        pmep.RectifiedPoisson(name, f, **observed)


def predictor_prior(link: str, counts: np.ndarray) -> tuple[float, float]:
    """Return where the predictor lies at the mean count, and the unit of its prior: of the log rate, or of the rate."""
    mean = float(counts.mean())
    return (np.log(mean), 1.0) if link == "exp" else (mean, max(1.0, mean))


def finite_basis(gp: pm.gp.HSGP, inputs: np.ndarray) -> pt.TensorVariable:
    """Return a Hilbert-space Gaussian process at the inputs, its basis computed once: it has no hyperparameters."""
    # As data, not as a constant: PyTensor folds constants in Python, a number at a time.
    basis, spectrum = gp.prior_linearized(X=pm.Data("inputs", inputs))
    return basis.eval() @ (pm.Normal("coefficients", shape=gp.n_basis_vectors) * spectrum)


def add_counts(link: str, eta: pt.TensorVariable, counts: np.ndarray) -> None:
    """Add the observed and the held-out counts to the model; which are which is data, so that folds share a model."""
    everywhere = np.arange(len(counts))
    train, test = pm.Data("train", everywhere), pm.Data("test", everywhere[:1])
    observe(link, "y", eta[train], observed=pm.Data("seen", counts))
    observe(link, "held_out", eta[test])


def _fit(
    model: pm.Model, counts: np.ndarray, train: np.ndarray, test: np.ndarray, start: Any, hyper: str
) -> tuple[Any, float]:
    with model:
        pm.set_data({"train": train, "test": test, "seen": counts[train]})
        began = time.perf_counter()
        found = pmep.fit(hyper=hyper, draws=0, start=start, progressbar=False)
    return found, time.perf_counter() - began


def _scored(found: Any, log_density: np.ndarray, seconds: float) -> Scored:
    fit = found["fit"]
    evaluations = fit.sizes["hyper_iteration"]
    return Scored(
        log_density, float(fit["log_evidence"]), hyper_modes(fit), bool(fit["converged"]), seconds, evaluations
    )


def fit_all(model: pm.Model, counts: np.ndarray, start: Any = None, hyper: str = "optimize") -> Scored:
    """Fit to all counts."""
    everywhere = np.arange(len(counts))
    found, seconds = _fit(model, counts, everywhere, everywhere[:1], start, hyper)
    return _scored(found, np.zeros(0), seconds)


def score_fold(
    model: pm.Model, counts: np.ndarray, test: np.ndarray, start: Any = None, hyper: str = "optimize"
) -> Scored:
    """Fit to all counts but those of `test`, and predict these."""
    train = np.setdiff1d(np.arange(len(counts)), test)
    found, seconds = _fit(model, counts, train, test, start, hyper)
    density = pmep.log_predictive(found, model, {"held_out": counts[test]})["held_out"]
    return _scored(found, np.asarray(density), seconds)


def folds(n: int) -> list[np.ndarray]:
    """Return `FOLDS` random parts of the observations."""
    return np.array_split(np.random.default_rng(0).permutation(n), FOLDS)


def plain(scored: Scored) -> dict[str, Any]:
    """Return a fit as JSON holds it."""
    return scored._replace(log_density=scored.log_density.tolist())._asdict()


def all_scores(stored: list[dict[str, Any]]) -> np.ndarray:
    """Return the log predictive densities of all held-out counts of stored fits."""
    return np.concatenate([fold["log_density"] for fold in stored])


def difference(first: np.ndarray, second: np.ndarray) -> str:
    """Format the mean difference of log predictive densities on the same counts, with its standard error."""
    apart = first - second
    return f"{apart.mean():+.4f} ({apart.std(ddof=1) / np.sqrt(len(apart)):.4f})"
