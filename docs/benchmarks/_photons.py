"""Maps of real photons with what is known of the instrument, two halves of them, and what others would predict."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import ndimage, stats

from docs.benchmarks._images import richardson_lucy

__all__ = [
    "KEPT",
    "Scene",
    "chandra",
    "cropped",
    "fermi",
    "gaussian_log_density",
    "nothing",
    "richardson_lucy_oracle",
    "smoothed_oracle",
    "thinned",
]

KEPT = 0.5
"""Share of the photons that are fitted."""
RL_ITERATIONS = 300


class Scene(NamedTuple):
    """A map of counts and what is known of the instrument; the field is larger than the map by `margin` a side."""

    counts: np.ndarray
    exposure: np.ndarray
    background: np.ndarray
    psf: np.ndarray

    @property
    def margin(self) -> int:
        return len(self.psf) // 2

    @property
    def field(self) -> tuple[int, int]:
        rows, columns = self.counts.shape
        return rows + 2 * self.margin, columns + 2 * self.margin

    @property
    def inside(self) -> tuple[slice, slice]:
        rows, columns = self.counts.shape
        return slice(self.margin, self.margin + rows), slice(self.margin, self.margin + columns)


def _load(folder: str, name: str) -> dict[str, np.ndarray]:
    with np.load(Path(os.environ["PYMC_EP_DATA"]) / folder / name) as stored:
        return dict(stored)


def _binned_psf(psf: np.ndarray, factor: int) -> np.ndarray:
    """Return the response of a pixel of `factor` x `factor` bins to light spread evenly over another one.

    That of bins is averaged over where the light falls and summed over where it is counted: along each axis, lags
    between the bins of two pixels have a triangular distribution about the distance of these.
    """
    radius = len(psf) // 2
    reach = (radius + factor - 1) // factor
    lags, distances = np.arange(-radius, radius + 1), factor * np.arange(-reach, reach + 1)
    weights = np.maximum(0, factor - np.abs(lags - distances[:, None])) / factor
    return weights @ psf @ weights.T


def fermi(factor: int) -> Scene:
    """Read the Galactic Centre in pixels of `factor` x `factor` bins.

    Exposure is relative to its mean, so that the field is in photons a pixel.
    """
    data = _load("counts-fermi-gc", "fermi_gc.npz")
    rows, columns = data["counts"].shape

    def blocks(array: np.ndarray) -> np.ndarray:
        return array.astype(float).reshape(rows // factor, factor, columns // factor, factor)

    exposure = blocks(data["exposure"]).mean(axis=(1, 3))
    psf = data["psf"].astype(float)
    return Scene(
        blocks(data["counts"]).sum(axis=(1, 3)).astype(int),
        exposure / exposure.mean(),
        blocks(data["background"]).sum(axis=(1, 3)),
        _binned_psf(psf / psf.sum(), factor),
    )


def chandra() -> Scene:
    """Read the frame of the supernova remnant; a narrow Gaussian blur, the level at its edge as background."""
    counts = _load("counts-chandra-g21", "chandra_g21.npz")["counts"].astype(int)
    edge = np.concatenate([counts[:20].ravel(), counts[-20:].ravel()]).mean()
    weights = np.exp(-(np.arange(-2.0, 3.0) ** 2) / (2 * 0.5**2))
    psf = np.outer(weights, weights)
    return Scene(counts, np.ones(counts.shape), np.full(counts.shape, edge), psf / psf.sum())


def cropped(scene: Scene, size: int) -> Scene:
    """Crop a square in the middle."""
    crop = tuple(slice(n // 2 - size // 2, n // 2 - size // 2 + size) for n in scene.counts.shape)
    reach = max(0, scene.margin - size // 4)
    middle = slice(reach, len(scene.psf) - reach)
    psf = scene.psf[middle, middle]
    return Scene(scene.counts[crop], scene.exposure[crop], scene.background[crop], psf / psf.sum())


def thinned(scene: Scene, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two halves of the photons: given the sky they are independent Poisson counts with half the rate."""
    kept = np.random.default_rng(split).binomial(scene.counts, KEPT)
    return kept, scene.counts - kept


def gaussian_log_density(counts: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return log probabilities of the unit intervals around counts, to which zero's adds all below it."""
    lower, upper = (counts - 0.5 - mean) / sd, (counts + 0.5 - mean) / sd
    # In the lower tail, where probabilities are small numbers rather than close to one.
    flipped = lower + upper > 0
    near, far = np.where(flipped, -lower, upper), np.where(flipped, -upper, lower)
    within = stats.norm.logcdf(near)
    return np.where(counts == 0, stats.norm.logcdf(upper), within + np.log1p(-np.exp(stats.norm.logcdf(far) - within)))


# What others would predict


def _instrument(scene: Scene) -> tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]:
    """Return the expected counts of one half as a function of the sky, and the transpose of its linear part."""
    kernel = np.zeros(scene.field)
    rows, columns = scene.psf.shape
    kernel[:rows, :columns] = scene.psf
    spectrum = np.fft.rfft2(np.roll(kernel, (-(rows // 2), -(columns // 2)), axis=(0, 1)))

    def forward(u: np.ndarray) -> np.ndarray:
        seen = np.fft.irfft2(np.fft.rfft2(u) * spectrum, s=scene.field)[scene.inside]
        return KEPT * (scene.exposure * np.maximum(seen, 0) + scene.background)

    def adjoint(v: np.ndarray) -> np.ndarray:
        wide = np.zeros(scene.field)
        wide[scene.inside] = KEPT * scene.exposure * v
        return np.maximum(np.fft.irfft2(np.fft.rfft2(wide) * spectrum.conj(), s=scene.field), 0)

    return forward, adjoint


def richardson_lucy_oracle(scene: Scene, split: int) -> dict[str, Any]:
    """Stop where the held-out photons like it best: an oracle, which no practitioner has."""
    train, held_out = thinned(scene, split)
    forward, adjoint = _instrument(scene)
    flat = np.full(scene.field, max(train.mean() / KEPT - scene.background.mean(), 0.1 * train.mean()))
    best, density, image, iteration = -np.inf, np.zeros(0), flat, 0
    for k, u in richardson_lucy(train, forward, adjoint, flat, RL_ITERATIONS):
        found = stats.poisson.logpmf(held_out, forward(u))
        if found.mean() > best:
            best, density, image, iteration = found.mean(), found, u[scene.inside], k
    return {"log_density": density, "setting": f"iteration {iteration}", "maps": [image]}


def smoothed_oracle(scene: Scene, split: int) -> dict[str, Any]:
    """Smooth the counts by the width that the held-out photons like best."""
    train, held_out = thinned(scene, split)
    found = []
    for sd in np.geomspace(0.4, 12, 31):
        rate = ndimage.gaussian_filter(train.astype(float), sd, mode="reflect") + 1e-3
        found.append((stats.poisson.logpmf(held_out, rate), float(sd)))
    density, sd = max(found, key=lambda one: one[0].mean())
    return {"log_density": density, "setting": f"sd {sd:.2g} pixels"}


def nothing(scene: Scene, split: int) -> dict[str, Any]:
    """Score the background alone."""
    _, held_out = thinned(scene, split)
    return {"log_density": stats.poisson.logpmf(held_out, KEPT * scene.background), "setting": "-"}
