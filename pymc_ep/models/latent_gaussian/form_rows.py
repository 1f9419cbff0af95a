"""A latent Gaussian form at rows of hyperparameters: a quantity is evaluated for all rows when one row needs it."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pymc_ep.models.latent_gaussian.form import AffineVariable, NoiseBlock
from pymc_ep.models.latent_gaussian.site_functions import EvaluatedRows, SiteFunctions
from pymc_ep.models.latent_gaussian.values import AffineMoments, NoiseMoments
from pymc_ep.numerics.gaussian.protocol import GaussianPrior

__all__ = ["FormRow", "FormRows"]


class FormRows:
    """Prior moments of a form at rows of unconstrained hyperparameters, each evaluated when needed, then cached.

    Parameters
    ----------
    form : SiteFunctions
    thetas : ndarray, (s, p)
        Rows of hyperparameters.
    """

    def __init__(self, form: SiteFunctions, thetas: np.ndarray):
        self._form = form
        self.thetas = thetas
        self._affine: dict[tuple[AffineVariable, ...] | None, list[dict[str, AffineMoments]]] = {}
        self._evaluated: EvaluatedRows | None = None

    def _known(self, variables: tuple[AffineVariable, ...] | None = None) -> EvaluatedRows:
        """Return the cached arrays of `SiteFunctions.jointly`; the first call evaluates them, for its `variables`."""
        if self._evaluated is None:
            self._evaluated = self._form.jointly(self.thetas, variables)
        return self._evaluated

    @cached_property
    def predictors(self) -> list[tuple[np.ndarray, GaussianPrior]]:
        """Prior mean, (n,), and distribution of the predictors about it, for each row."""
        return self._form.predictor_rows(self.thetas, self._known())

    @cached_property
    def noise(self) -> list[list[NoiseMoments]]:
        """Prior moments of each noise block, for each row."""
        return self._form.noise_rows(self.thetas, self._known())

    @cached_property
    def roots(self) -> list[list[np.ndarray]] | None:
        """Root of each noise block, for each row; None where the solver's coordinates are not of the blocks."""
        return self._form.root_rows(self.thetas)

    def affine(self, variables: Sequence[AffineVariable] | None) -> list[dict[str, AffineMoments]]:
        """Return, for each row, the prior moments of affine variables by name; by default of all in the form."""
        key = None if variables is None else tuple(variables)
        if key not in self._affine:
            self._affine[key] = self._form.affine_rows(self.thetas, key, self._known(key))
        return self._affine[key]

    @property
    def blocks(self) -> tuple[NoiseBlock, ...]:
        """The noise blocks of the form."""
        return self._form.form.blocks

    @property
    def row_bytes(self) -> int:
        """Memory of the quantities that have been evaluated, in bytes for each row."""
        kept: list[Iterable[object]] = [arrays for moments in self._affine.values() for arrays in moments[0].values()]
        if "noise" in self.__dict__:
            kept += self.noise[0]
        if "predictors" in self.__dict__:
            mean, gaussian = self.predictors[0]
            kept.append((mean, next(iter(gaussian))))
        return sum(array.nbytes for arrays in kept for array in arrays if isinstance(array, np.ndarray))


class FormRow(NamedTuple):
    """The form at one row of hyperparameters.

    Attributes
    ----------
    rows : FormRows
    place : int
        Index of the row.
    """

    rows: FormRows
    place: int

    @classmethod
    def at(cls, form: SiteFunctions, theta: np.ndarray) -> "FormRow":
        """Return the form at one theta, (p,)."""
        return cls(FormRows(form, theta[None]), 0)

    @property
    def predictors(self) -> tuple[np.ndarray, GaussianPrior]:
        """Prior mean, (n,), and distribution of the predictors about it."""
        return self.rows.predictors[self.place]

    @property
    def noise(self) -> list[NoiseMoments]:
        """Prior moments of each noise block."""
        return self.rows.noise[self.place]

    def noise_of(self, coordinates: np.ndarray) -> list[tuple[np.ndarray, ...]]:
        """Return, for each block, its noise, (s, d), and, if it has one, its origin, (s, k).

        `coordinates`, (s, c), are values of the solver's coordinates.
        """
        # Rows of w = C c: C = Cov(w, eta) for weights c = a, or a selection of the unknowns c; of v alike.
        if self.rows.roots is None:
            return [
                tuple(coordinates @ cross.T for cross in (block.cross, block.origin_cross) if cross is not None)
                for block in self.noise
            ]
        # w = R^T z, as rows z^T R; an origin v is z itself.
        roots = self.rows.roots[self.place]
        normals = np.split(coordinates, np.cumsum([len(root) for root in roots])[:-1], axis=1)
        return [
            (z * root if root.ndim == 1 else z @ root, *([z] if block.origin is not None else []))
            for z, root, block in zip(normals, roots, self.rows.blocks)
        ]

    def affine(self, variables: Sequence[AffineVariable] | None = None) -> dict[str, AffineMoments]:
        """Return the prior moments of affine variables by name; by default of all in the form."""
        return self.rows.affine(variables)[self.place]
