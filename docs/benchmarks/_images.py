"""What the benchmarks with images share: pictures, photons, measures of a reconstruction, and what others would do."""

import json
import os
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import interpolate, ndimage
from scipy.special import ndtr
from skimage.io import imread
from skimage.restoration import denoise_tv_chambolle

from docs.benchmarks._common import PAGES, processor

__all__ = [
    "BLUR",
    "Photons",
    "Reconstruction",
    "Store",
    "anscombe",
    "anscombe_tv",
    "area_average",
    "blur",
    "chambolle",
    "coverage",
    "from_anscombe",
    "intensity",
    "linear_interpolation",
    "load",
    "median_sd",
    "panels",
    "photons",
    "psnr",
    "relative_error",
    "richardson_lucy",
    "richardson_lucy_blur",
    "shortfall",
    "total_variation",
]

NORMAL_95 = 1.6448536269514722
"""Half width of a 90% interval of the standard normal distribution."""
FOLDERS = ("images256", "faces32")


def _gaussian_kernel(sd: float) -> np.ndarray:
    weights = np.exp(-(np.arange(-1.0, 2.0) ** 2) / (2 * sd**2))
    kernel = np.outer(weights, weights)
    return kernel / kernel.sum()


BLUR = _gaussian_kernel(0.3)
"""The blur of Ko and Seeger (2015): 3 x 3 pixels, Gaussian with sd 0.3 pixels; 98.5% stays in the middle one."""


class Photons(NamedTuple):
    """A simulated photograph: the true intensity, in photons a pixel, and the counts of the blurred one."""

    truth: np.ndarray
    counts: np.ndarray


class Reconstruction(NamedTuple):
    """What a peer makes of the counts at the setting that the truth likes best."""

    estimate: np.ndarray
    error: float
    setting: float


# Pictures and photons


def load(name: str) -> np.ndarray:
    """Read a picture of one of the folders of pictures; values from 0 to 255."""
    for folder in FOLDERS:
        path = Path(os.environ["PYMC_EP_DATA"]) / folder / f"{name}.png"
        if path.exists():
            return imread(path).astype(float)
    raise FileNotFoundError(f"{name}.png is in none of {', '.join(FOLDERS)} under PYMC_EP_DATA.")


def area_average(image: np.ndarray, size: int) -> np.ndarray:
    """Shrink a square picture by averaging blocks."""
    block = len(image) // size
    return image.reshape(size, block, size, block).mean(axis=(1, 3))


def blur(image: np.ndarray) -> np.ndarray:
    """Blur with `BLUR` and periodic boundaries."""
    return ndimage.convolve(image, BLUR, mode="wrap")


def photons(name: str, size: int, u_max: float, seed: int) -> Photons:
    """Shrink a picture, scale it by its maximum to `u_max`, blur it and count photons."""
    image = area_average(load(name), size)
    truth = u_max * image / image.max()
    return Photons(truth, np.random.default_rng(seed).poisson(blur(truth)))


# Measures


def relative_error(estimate: np.ndarray, truth: np.ndarray) -> float:
    """Return the relative l1 error."""
    return float(np.abs(estimate - truth).sum() / np.abs(truth).sum())


def psnr(estimate: np.ndarray, truth: np.ndarray, peak: float) -> float:
    """Return the ratio of the peak to the root mean square error, in dB."""
    return float(10 * np.log10(peak**2 / np.mean((estimate - truth) ** 2)))


def coverage(mean: np.ndarray, sd: np.ndarray, truth: np.ndarray) -> float:
    """Return the share of pixels whose true value lies in the 90% interval of a Gaussian marginal."""
    return float(np.mean(np.abs(truth - mean) <= NORMAL_95 * sd))


def intensity(mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return E max(0, u) of Gaussian marginals: photons are not negative, the latent pixel may be."""
    ratio = mean / sd
    return mean * ndtr(ratio) + sd * np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)


# What others would do, some of it at the setting that the truth likes best


def linear_interpolation(picture: np.ndarray) -> np.ndarray:
    """Fill the pixels that are NaN linearly, beyond the outermost known ones with the nearest one's value."""
    places = np.argwhere(~np.isnan(picture))
    values = picture[tuple(places.T)]
    everywhere = np.moveaxis(np.indices(picture.shape), 0, -1)
    linear, nearest = (interpolate.griddata(places, values, everywhere, method=how) for how in ("linear", "nearest"))
    return np.where(np.isnan(linear), nearest, linear)


def _oracle(truth: np.ndarray, candidates: Iterable[tuple[float, np.ndarray]]) -> Reconstruction:
    found = [Reconstruction(image, relative_error(image, truth), setting) for setting, image in candidates]
    return min(found, key=lambda one: one.error)


def chambolle(image: np.ndarray, weight: float) -> np.ndarray:
    """Denoise by total variation with scikit-image's algorithm of Chambolle (2004), run to its end."""
    return denoise_tv_chambolle(image, weight=weight, eps=1e-6, max_num_iter=1000)


def total_variation(counts: np.ndarray, truth: np.ndarray) -> Reconstruction:
    """Denoise the counts by total variation (scikit-image's), with the weight of least relative l1 error."""
    weights = np.geomspace(0.05, 3, 31) * np.sqrt(counts.mean())
    return _oracle(truth, ((w, chambolle(counts.astype(float), w)) for w in weights))


def anscombe(counts: np.ndarray) -> np.ndarray:
    """Return the transform that makes the variance of Poisson counts near one."""
    return 2 * np.sqrt(counts + 0.375)


def from_anscombe(mean: np.ndarray) -> np.ndarray:
    """Return the rate whose transformed counts have this mean (Makitalo and Foi 2011, closed form)."""
    d = np.maximum(mean, 2 * np.sqrt(0.375))
    root = np.sqrt(1.5)
    return np.maximum(0.25 * d**2 + 0.25 * root / d - 1.375 / d**2 + 0.625 * root / d**3 - 0.125, 0)


def anscombe_tv(counts: np.ndarray, truth: np.ndarray) -> Reconstruction:
    """Denoise the transformed counts by total variation, with the weight of least relative l1 error."""
    transformed = anscombe(counts)
    return _oracle(truth, ((w, from_anscombe(chambolle(transformed, w))) for w in np.geomspace(0.05, 5, 31)))


def richardson_lucy(
    counts: np.ndarray,
    forward: Callable[[np.ndarray], np.ndarray],
    adjoint: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    iterations: int,
) -> Iterable[tuple[int, np.ndarray]]:
    """Yield the iterates of Richardson (1972) and Lucy (1974), which raise the Poisson likelihood of ``forward(u)``.

    `forward` may add a background to its linear part, of which `adjoint` is the transpose. scikit-image's version knows
    neither periodic boundaries nor a background, and returns the last iterate only.
    """
    u = start
    seen = np.maximum(adjoint(np.ones(counts.shape)), 1e-12)
    for k in range(1, iterations + 1):
        u = u * adjoint(counts / np.maximum(forward(u), 1e-12)) / seen
        yield k, u


def richardson_lucy_blur(counts: np.ndarray, truth: np.ndarray, iterations: int = 50) -> Reconstruction:
    """Deblur, stopped where the relative l1 error is least."""
    flat = np.full(counts.shape, counts.mean())
    return _oracle(truth, richardson_lucy(counts, blur, blur, flat, iterations))


# Rows, tables and figures


class Store:
    """Finished rows in ``docs/benchmarks/rows/<name>.json``.

    A run that was stopped goes on there, on whatever machine, and readers have every fit behind a page.
    """

    def __init__(self, name: str):
        self.path = PAGES / "rows" / f"{name}.json"
        self.rows: dict[str, Any] = self._read()

    def _read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def get(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Return a row, measured now unless it is there; what `measure` raises is reported and not stored."""
        if key not in self.rows:
            try:
                row = measure()
            except Exception as error:
                print(f"{key}: {type(error).__name__}: {error}", flush=True)
                return None
            # Read anew: another process may have added rows.
            self.rows = self._read() | {key: row | {"measured": f"{date.today()}, {processor()}"}}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_suffix(f".{os.getpid()}")
            temporary.write_text(self._lines())
            temporary.replace(self.path)
            print(key, {k: v for k, v in row.items() if isinstance(v, (int, float, str))}, flush=True)
        return self.rows[key]

    def measured(self) -> str:
        """Return a sentence on when and on what machines."""
        return f"Rows were measured on {'; '.join(sorted({row['measured'] for row in self.rows.values()}))}.\n"

    def _lines(self) -> str:
        """Return the rows as JSON with a line for each."""
        lines = [f"{json.dumps(key)}: {json.dumps(self.rows[key])}" for key in sorted(self.rows)]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def median_sd(values: Iterable[float], digits: int = 3) -> str:
    """Format the median of several runs and, of two or more, their standard deviation."""
    known = np.array([v for v in values if v is not None])
    if not len(known):
        return "-"
    spread = f" ({known.std(ddof=1):.{digits}f})" if len(known) > 1 else ""
    return f"{np.median(known):.{digits}f}{spread}"


def shortfall(what: str, value: float, target: float, digits: int = 3, unit: str = "") -> str:
    """Say whether a number that should be small meets its target, and by how much it misses it."""
    verdict = "met" if value <= target else f"missed by {value - target:.{digits}f}{unit}"
    return f"{what}: {value:.{digits}f}{unit} against {target:.{digits}f}{unit}, {verdict}."


def panels(
    name: str, rows: list[list[tuple[str, np.ndarray, float | None]]], size: tuple[float, float] = (2.4, 2.5)
) -> None:
    """Draw rows of pictures, each with a title and, where shared, the value of white, to ``docs/benchmarks``.

    `size` is the width and height of one of them, in inches.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = max(map(len, rows))
    figure, axes = plt.subplots(
        len(rows), columns, figsize=(size[0] * columns, size[1] * len(rows)), layout="constrained", squeeze=False
    )
    for axis in axes.flat:
        axis.set_axis_off()
    for line, shown in zip(axes, rows):
        for axis, (title, image, white) in zip(line, shown):
            colours = "viridis" if white is None or title.endswith("sd") else "gray"
            drawn = axis.imshow(image, cmap=colours, vmin=0, vmax=white)
            axis.set_title(title, fontsize=9)
            figure.colorbar(drawn, ax=axis, shrink=0.7)
    figure.savefig(PAGES / f"{name}.png", dpi=100)
    plt.close(figure)
