"""What the tables of wavelet models fit: pictures with noise and with holes, four models, first values, and peers."""

import argparse
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from scipy.special import beta
from skimage.metrics import structural_similarity
from skimage.restoration import cycle_spin, denoise_wavelet, inpaint_biharmonic

import pymc_ep as pmep
from docs.benchmarks._images import chambolle, linear_interpolation, load, psnr

__all__ = [
    "LEVELS",
    "MODELS",
    "NU",
    "PEERS",
    "TASKS",
    "WAVELET",
    "WEIGHTS",
    "Fitter",
    "Problem",
    "first_values",
    "image",
    "options_of_pictures",
    "pictures",
    "problem",
    "quality",
    "some_pictures",
]

WAVELET, LEVELS, NU = "db2", 5, 2.1
LOW, HIGH = 0.4, 1.6
"""Mean absolute coefficients of the states to start from, relative to that of all: a ratio of four."""
SHIFTS = 5
"""Of the cycle-spun peer, along either axis."""
WEIGHTS = np.geomspace(0.03, 0.15, 13)
"""Of total variation."""
PROBE = 0.01
"""Size of the step by which a divergence is taken."""


class Task(NamedTuple):
    """Standard deviation of the noise, for pictures from 0 to 1, and the share of the pixels that is seen."""

    sd: float
    kept: float


TASKS = {"denoising": Task(0.1, 1.0), "inpainting": Task(10**-2.5, 0.25)}


class Problem(NamedTuple):
    """A picture from 0 to 1, and what was observed of it: NaN where nothing was."""

    truth: np.ndarray
    picture: np.ndarray

    @property
    def seen(self) -> np.ndarray:
        """Whether a pixel was observed."""
        return ~np.isnan(self.picture)

    @property
    def values(self) -> np.ndarray:
        """The observed pixels: a picture where all were, else flat."""
        return self.picture if self.seen.all() else self.picture[self.seen]


def pictures() -> list[str]:
    """Return the names of all pictures, sorted; their places in this list are the seeds of their noise."""
    return sorted(path.stem for path in (Path(os.environ["PYMC_EP_DATA"]) / "images256").glob("*.png"))


def some_pictures(count: int) -> list[str]:
    """Return the first `count` names in an order drawn at random once: a fair sample, where all would take too long."""
    names = pictures()
    return [names[i] for i in np.random.default_rng(0).permutation(len(names))[:count]]


def options_of_pictures(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of what scripts that go through the pictures have in common: ``--images`` and ``--page``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=len(pictures()), help="so many, in an order drawn at random")
    parser.add_argument("--page", action="store_true", help="write the page from the rows there are")
    return parser


def problem(task: str, name: str, side: int | None = None) -> Problem:
    """Return a picture, or its first rows and columns, with its noise and with what is left of its pixels."""
    truth = load(name)[:side, :side] / 255
    sd, kept = TASKS[task]
    picture = truth + np.random.default_rng(pictures().index(name)).normal(0, sd, truth.shape)
    if kept < 1:
        hidden = np.ones(truth.size, dtype=bool)
        # One mask for all pictures.
        hidden[np.random.default_rng(0).choice(truth.size, int(kept * truth.size), replace=False)] = False
        picture[hidden.reshape(truth.shape)] = np.nan
    return Problem(truth, picture)


def quality(estimate: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Return PSNR in dB and the structural similarity of Wang et al. (2004), with their Gaussian windows."""
    similarity = structural_similarity(
        estimate, truth, data_range=1.0, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    return {"psnr": psnr(estimate, truth, 1.0), "ssim": float(similarity)}


# Models


class Potential(NamedTuple):
    """A distribution of coefficients by its scale, and the mean absolute value of one of scale one."""

    of_scale: Callable[[Any], Any]
    mean_absolute: float


LAPLACE = Potential(lambda scale: pm.Laplace.dist(0, scale), 1.0)
STUDENT = Potential(lambda scale: pm.StudentT.dist(nu=NU, sigma=scale), 2 * NU**0.5 / ((NU - 1) * beta(NU / 2, 0.5)))
NORMAL = Potential(lambda scale: pm.Normal.dist(0, scale), (2 / np.pi) ** 0.5)
MODELS = {
    "Laplace, factorial": {"scale": LAPLACE},
    "Student-t, factorial": {"scale": STUDENT},
    "Laplace, tree": {"low": LAPLACE, "high": LAPLACE},
    "Normal/Student-t, tree": {"low": NORMAL, "high": STUDENT},
}
"""The published models: potentials by the names of their scales, of which each level has its own."""
OTHERS = {"Normal, tree": {"low": NORMAL, "high": NORMAL}}


def image(model: str, shape: tuple[int, ...], levels: int = LEVELS, wavelet: str = WAVELET) -> Any:
    """Return the image "u" under one of the models, in a model block."""
    potentials = (MODELS | OTHERS)[model]
    states = {name: one.of_scale(pm.HalfNormal(name, 1, shape=levels)) for name, one in potentials.items()}
    if len(states) > 1:
        return pmep.WaveletTree("u", shape=shape, wavelet=wavelet, levels=levels, **states)
    operator = pmep.operators.Wavelet2D(shape, wavelet, levels)
    return pmep.SparseField("u", operator=operator, potential=states["scale"], shape=shape)


def build(task: str, model: str, given: Problem, levels: int = LEVELS, wavelet: str = WAVELET) -> pm.Model:
    """Build a model; the observed pixels are the data "pixels", the image is "u"."""
    with pm.Model() as built:
        pixels = pm.Data("pixels", given.values)
        u = image(model, given.truth.shape, levels, wavelet)
        pm.Normal("y", u if given.seen.all() else u[given.seen], TASKS[task].sd, observed=pixels)
    return built


def first_values(model: str, picture: np.ndarray, levels: int = LEVELS) -> dict[str, np.ndarray]:
    """Return scales for each level by moments of the coefficients of the picture, whose holes are filled linearly.

    Noise is not taken off. From the mean square follows a mean absolute value as if they had a Laplace distribution,
    and from this the scales; those of two states are a factor apart.
    """
    wavelet = pmep.operators.Wavelet2D(picture.shape, WAVELET, levels)
    coefficients = wavelet.forward(linear_interpolation(picture) if np.isnan(picture).any() else picture)
    power = np.array([np.mean(coefficients[wavelet.groups == level] ** 2) for level in range(levels)])
    share = {"scale": 1.0, "low": LOW, "high": HIGH}
    return {name: share[name] * np.sqrt(power / 2) / one.mean_absolute for name, one in MODELS[model].items()}


class Fitter:
    """Models by task, potentials, wavelet and size, built once; the compiled functions stay with them."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, str, str, tuple[int, ...]], pm.Model] = {}

    def fit(
        self,
        task: str,
        model: str,
        given: Problem,
        levels: int,
        start: dict[str, Any],
        options: dict[str, Any],
        wavelet: str = WAVELET,
    ) -> tuple[Any, float]:
        """Fit from, or at, hyperparameters; return the result and the seconds.

        Compilation counts for the first fit of each model alone.
        """
        key = (task, model, wavelet, given.truth.shape)
        if key not in self.models:
            self.models[key] = build(task, model, given, levels, wavelet)
        values = {name: np.asarray(value) for name, value in start.items()}
        with self.models[key], warnings.catch_warnings():
            # The page says what did not converge.
            warnings.simplefilter("ignore", pmep.ConvergenceWarning)
            pm.set_data({"pixels": given.values})
            began = time.perf_counter()
            found = pmep.fit(start=values, draws=0, progressbar=False, **options)
        return found, time.perf_counter() - began


# Peers


def bayes_shrink(given: Problem, shifts: int = 1) -> np.ndarray:
    """Shrink wavelet coefficients by scikit-image's BayesShrink, averaged over shifts of the picture."""
    options = {"sigma": TASKS["denoising"].sd, "wavelet": WAVELET, "method": "BayesShrink", "mode": "soft"}
    return cycle_spin(given.picture, denoise_wavelet, max_shifts=shifts - 1, func_kw=options, workers=1)


def estimated_tv(given: Problem) -> np.ndarray:
    """Denoise by total variation, with the weight of least estimated risk.

    That is Stein's (1981), with the divergence along one random direction (Ramani, Blu and Unser 2008).
    """
    noise, probe = TASKS["denoising"].sd ** 2, np.random.default_rng(0).choice([-1.0, 1.0], given.truth.shape)

    def risk(estimate: np.ndarray, weight: float) -> float:
        moved = chambolle(given.picture + PROBE * probe, weight)
        divergence = np.mean(probe * (moved - estimate)) / PROBE
        return float(np.mean((estimate - given.picture) ** 2) + 2 * noise * divergence)

    found = [(chambolle(given.picture, weight), weight) for weight in WEIGHTS]
    return min(found, key=lambda one: risk(*one))[0]


def oracle_tv(given: Problem) -> np.ndarray:
    """Denoise by total variation, with the weight of least error."""
    found = [chambolle(given.picture, weight) for weight in WEIGHTS]
    return min(found, key=lambda estimate: float(np.mean((estimate - given.truth) ** 2)))


def biharmonic(given: Problem) -> np.ndarray:
    """Fill holes by the biharmonic equation."""
    return inpaint_biharmonic(np.where(given.seen, given.picture, 0.0), ~given.seen)


Peer = Callable[[Problem], np.ndarray]
PEERS: dict[str, dict[str, Peer]] = {
    "denoising": {
        "noisy picture": lambda given: given.picture,
        "BayesShrink": bayes_shrink,
        f"BayesShrink, {SHIFTS**2} shifts": partial(bayes_shrink, shifts=SHIFTS),
        "TV, weight by estimated risk": estimated_tv,
        "TV, oracle weight": oracle_tv,
    },
    "inpainting": {
        "linear interpolation": lambda given: linear_interpolation(given.picture),
        "biharmonic": biharmonic,
    },
}
