"""Arrays of a bilinear form: its priors at one value of the hyperparameters, and its observed cells."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pymc_ep.models.bilinear.kernel import FactoredRows, Rows
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.pairs import Pairs
from pymc_ep.sites.cells.base import CellSite

__all__ = [
    "AnyRows",
    "BilinearPrior",
    "BilinearProblem",
    "Cells",
    "MatrixPrior",
    "NewCells",
    "places_of_ones",
    "with_ones",
]

AnyRows = Rows | FactoredRows
"""Independent Gaussian rows: with independent entries, or with a covariance each."""


class MatrixPrior(NamedTuple):
    """Prior of a matrix of independent rows: D factors and, if the matrix has a bias, this as the last of K columns.

    Attributes
    ----------
    mean, variance : ndarray, (I, K)
        Moments of each entry; flat priors have infinite variance.
    covariance : ndarray, (D, D), optional
        Covariance of the factors of every row, if they are not independent; `variance` then applies to the bias
        only.
    """

    mean: np.ndarray
    variance: np.ndarray
    covariance: np.ndarray | None = None

    def at(self, indices: np.ndarray) -> "MatrixPrior":
        """Return the prior of the rows `indices`."""
        return self._replace(mean=self.mean[indices], variance=self.variance[indices])

    def log_density(self, values: np.ndarray) -> np.ndarray:
        """Return the log density, (s,), of whole matrices, (s, I, K).

        Flat priors and entries whose learned prior variance is zero contribute zero.
        """
        # log N(x; m, 1 / p) = (log(p / 2 pi) - p (x - m)^2) / 2, with p = 0 where it is left out.
        precision = np.divide(1.0, self.variance, out=np.zeros(self.variance.shape), where=self.variance > 0.0)
        if self.covariance is not None:
            precision[:, : len(self.covariance)] = 0.0
        proper, deviation = precision > 0.0, values - self.mean
        log_normaliser = 0.5 * np.log(precision[proper] / (2 * np.pi)).sum()
        out = log_normaliser - 0.5 * np.einsum("sik,ik->s", deviation**2, precision)
        if self.covariance is None:
            return out
        # Factors: log N(x; m, S) = -|R^-1 (x - m)|^2 / 2 - log|R| - D / 2 log 2 pi for each row, S = R R^T.
        root = np.linalg.cholesky(self.covariance)
        white = deviation[:, :, : len(root)] @ np.linalg.inv(root).T
        log_scale = np.log(root.diagonal()).sum() + 0.5 * len(root) * np.log(2 * np.pi)
        return out - 0.5 * np.einsum("sik,sik->s", white, white) - len(self.mean) * log_scale

    @property
    def precision(self) -> np.ndarray:
        """Diagonals of the precision matrices of rows, (I, K), zero where the prior is flat."""
        out = 1.0 / self.variance
        if self.covariance is not None:
            # 1 / (S^-1)_dd is the variance of an entry given the others of its row.
            out[:, : len(self.covariance)] = np.linalg.inv(self.covariance).diagonal()
        return out

    @property
    def full_precision(self) -> np.ndarray:
        """Precision matrices of rows, (I, K, K)."""
        out = (1.0 / self.variance)[:, :, None] * np.eye(self.variance.shape[1])
        if self.covariance is not None:
            out[:, : len(self.covariance), : len(self.covariance)] = np.linalg.inv(self.covariance)
        return out


class BilinearPrior(NamedTuple):
    """Priors, offsets and likelihood parameters at one value of the hyperparameters.

    Attributes
    ----------
    left, right : MatrixPrior
        Priors of the left and of the right matrix.
    offset : ndarray, (n,)
        Constants of the predictors.
    parameters : tuple of ndarray, (n,)
        Parameters of the cells' likelihood.
    log_prior : float
        Log density of the hyperparameters.
    """

    left: MatrixPrior
    right: MatrixPrior
    offset: np.ndarray
    parameters: tuple[np.ndarray, ...]
    log_prior: float


class BilinearProblem(Protocol):
    """Functions of a compiled bilinear form: its prior at any hyperparameters, and gradients in these."""

    def prior(self, theta: np.ndarray) -> BilinearPrior:
        """Return the priors, offsets and likelihood parameters at theta, (p,)."""

    def pullback(
        self,
        theta: np.ndarray,
        of_prior: Sequence[MatrixPrior],
        of_offset: np.ndarray,
        of_parameters: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return the gradient in theta, (p,), of the log prior plus a function of the arrays of ``prior(theta)``.

        The other arguments are the function's gradients in these arrays.
        """


class Cells(NamedTuple):
    """Observed cells.

    Attributes
    ----------
    y : ndarray, (n,)
        Observations.
    by_left, by_right : Pairs
        Cells sorted by rows of the left, and of the right matrix.
    site : CellSite
        Likelihood.
    """

    y: np.ndarray
    by_left: Pairs
    by_right: Pairs
    site: CellSite

    @classmethod
    def of(cls, y: Array, rows: Array, cols: Array, shape: tuple[int, int], site: CellSite) -> "Cells":
        """Return the cells of a matrix of shape (I, J) with observations, rows and columns, (n,) each."""
        rows, cols = np.asarray(rows), np.asarray(cols)
        pairs = Pairs.of(rows, cols, shape[0]), Pairs.of(cols, rows, shape[1])
        return cls(np.asarray(y, dtype=float), *pairs, site)


class NewCells(NamedTuple):
    """Cells that were not in the fit.

    Attributes
    ----------
    y, rows, cols, offset : ndarray, (n,)
        Observations, indices of rows of the left and right matrix, and constants of the predictors.
    parameters : tuple of ndarray, (n,)
        Parameters of the likelihood.
    """

    y: np.ndarray
    rows: np.ndarray
    cols: np.ndarray
    offset: np.ndarray
    parameters: tuple[np.ndarray, ...]


def places_of_ones(widths: tuple[int, int], n_factors: int) -> tuple[int | None, int | None]:
    """Return, for the left and the right matrix, the index of the column of ones that multiplies the other's bias.

    An index is None if the other matrix has no bias. `widths` are the numbers of columns without ones. With ones, the
    columns of both matrices are the factors, the column for the left bias, the column for the right bias.
    """
    # v^T u + b + c = (v, b, 1)^T (u, 1, c).
    return widths[0] if widths[1] > n_factors else None, n_factors if widths[0] > n_factors else None


def with_ones(rows: AnyRows, place: int | None) -> AnyRows:
    """Return rows with a column of ones, of variance zero, inserted at the index `place`; unchanged for None."""
    if place is None:
        return rows
    mean, spread = np.insert(rows.mean, place, 1.0, axis=1), np.insert(rows[1], place, 0.0, axis=-1)
    return Rows(mean, spread) if isinstance(rows, Rows) else FactoredRows(mean, np.insert(spread, place, 0.0, axis=1))
