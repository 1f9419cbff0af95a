"""A form whose blocks have sparse precisions, in the space of its unknowns, with constant maps to the predictors."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytensor.tensor as pt
import scipy.linalg
import scipy.sparse
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.gaussian_precisions import SparsePrecision
from pymc_ep.models.latent_gaussian.form import MANY_COEFFICIENTS, LatentGaussian
from pymc_ep.models.latent_gaussian.values import AffineMoments
from pymc_ep.numerics.gaussian.precision_pattern import PrecisionPattern
from pymc_ep.numerics.gaussian.sparse_precision import SparsePrecisionPrior

__all__ = [
    "INNER_SCALE",
    "PrecisionDesign",
    "UnknownsMap",
    "lack_of_precisions",
    "precision_graphs",
    "precisions_of",
]

INNER_SCALE = (
    "Give learned scales and covariances to the prior, as in pm.MvNormal('effect', 0, cov), not as factors of a "
    "standard normal variable."
)
"""Advice in messages where maps from latent variables to predictors depend on hyperparameters."""
_FACTORS = 3.0
"""Time of a sweep, in factorisations: one for the factor, and two for the selected inverse."""
_ENTRY = 200.0
"""Time that each entry of Q and A takes in a sweep, in multiply-adds of a dense product: these entries are multiplied
by index, not by BLAS."""


def precisions_of(form: LatentGaussian) -> list[SparsePrecision] | None:
    """Return the sparse precision of each block; None if a block has none."""
    precisions = [block.precision for block in form.blocks if block.precision is not None]
    return precisions if len(precisions) == len(form.blocks) else None


def lack_of_precisions(form: LatentGaussian, coefficients: int, constant: bool) -> str:
    """Return the end of a message: the property that a form lacks for the algebra of sparse precisions, and the cure.

    The form has a number of `coefficients`; `constant` says that its map to the predictors is free of hyperparameters.
    """
    missing = [block.name for block in form.blocks if block.precision is None]
    if coefficients < MANY_COEFFICIENTS:
        return f"{MANY_COEFFICIENTS} latent values or more, and the model has {coefficients}: leave it out."
    if missing:
        return (
            f"latent variables of sparse precision, such as walks, autoregressions, CAR and independent effects, and "
            f"{missing[0]!r} is none: leave it out, or write that variable as one of these."
        )
    if not constant:
        return f"predictors that depend on latent variables by constants. {INNER_SCALE}"
    return "predictors that depend on few latent variables each: leave it out."


def precision_graphs(form: LatentGaussian) -> list[TensorVariable]:
    """Return graphs of each block's precision values, of the sum of log determinants, and of each constrained sum's sd.

    Log determinants that need a factor are left out of the sum.
    """
    precisions = precisions_of(form) or []
    # log|Q| is a sum over independent blocks, here over all whose log determinant is given by structure.
    log_dets = [entry.log_det for entry in precisions if entry.log_det is not None]
    log_det = sum((pt.as_tensor(entry).astype("float64") for entry in log_dets), pt.zeros(()))
    sums = [entry.sum_sd for entry in precisions if entry.sum_sd is not None]
    graphs = [*(entry.values for entry in precisions), log_det, *sums]
    return [form.at_zero_noise(pt.as_tensor(graph)).astype("float64") for graph in graphs]


class UnknownsMap:
    """The constant map from the unknowns to one affine variable.

    Parameters
    ----------
    entries : csr_array, (size, p)
        The map from the p unknowns.
    """

    def __init__(self, entries: scipy.sparse.csr_array):
        self._entries = entries
        self._unknown = np.full(entries.shape[0], np.inf)

    def moments(self, mean: np.ndarray, roots: Sequence[np.ndarray]) -> AffineMoments:
        """Return `mean` and the map; the prior variance, which takes a factor of Q, is set to infinity."""
        return AffineMoments(mean, self._entries, self._unknown)


class PrecisionDesign:
    """The constant map A from all unknowns to the predictors, and the pattern of the unknowns' precision.

    Parameters
    ----------
    form : LatentGaussian
    shapes : sequence of shapes
        Shape of each block's noise.
    maps : dict of str to csr_array, (size, p)
        Constant maps from all unknowns to the predictors, whose name is empty, and to affine variables.
    """

    blocks = None

    def __init__(
        self,
        form: LatentGaussian,
        shapes: Sequence[Sequence[int]],
        maps: dict[str, scipy.sparse.csr_array],
    ):
        precisions = precisions_of(form)
        assert precisions is not None, "asked for only where all blocks have one"
        self.sizes = [math.prod(shape) for shape in shapes]
        starts = np.concatenate([[0], np.cumsum(self.sizes)])
        slices = [slice(int(a), int(b)) for a, b in pairwise(starts)]
        self.pattern = PrecisionPattern(
            np.concatenate([precision.rows + block_slice.start for precision, block_slice in zip(precisions, slices)]),
            np.concatenate(
                [precision.columns + block_slice.start for precision, block_slice in zip(precisions, slices)]
            ),
            maps[""],
            sums=scipy.linalg.block_diag(*(precision.constraints for precision in precisions)),
            factored=[block_slice for precision, block_slice in zip(precisions, slices) if precision.log_det is None],
        )
        self._entries = np.cumsum([len(precision.rows) for precision in precisions])
        self._soft = np.array(
            [precision.sum_sd is not None for precision in precisions for _ in precision.constraints.T], dtype=bool
        )
        self.variables = {name: UnknownsMap(entries) for name, entries in maps.items() if name}

    @property
    def work(self) -> float:
        """Operations of a sweep."""
        return _FACTORS * self.pattern.analysis.flops + _ENTRY * (self._entries[-1] + len(self.pattern.first))

    @property
    def bytes(self) -> int:
        """Memory of a posterior and of the arrays that all posteriors share, in bytes."""
        factors = self.pattern.analysis.bytes + sum(block.analysis.bytes for block in self.pattern.blocks)
        return factors + 40 * (len(self.pattern.first) + len(self.pattern.keys))

    @property
    def sentence(self) -> str:
        """Description of the algebra, for `explain`."""
        n, p = self.pattern.design.shape
        flops = self.pattern.analysis.flops
        return f"the sparse precision of {p} unknowns, of {n} predictors, is factored ({flops:.2g} operations)"

    def prior(self, arrays: Sequence[np.ndarray]) -> SparsePrecisionPrior:
        """Return the prior, given the values of the graphs that `precision_graphs` returns."""
        count = len(self.sizes)
        values, log_det, sums = arrays[:count], arrays[count], arrays[count + 1 :]
        sum_sd = np.zeros(len(self._soft))
        sum_sd[self._soft] = sums
        return SparsePrecisionPrior(np.concatenate(values), float(log_det), sum_sd, self.pattern)

    def cotangents(self, cotangent: np.ndarray) -> list[np.ndarray]:
        """Return the gradient in each of `precision_graphs`, given the gradient in the prior's array, one vector."""
        *values, (of_log_det, *of_sums) = np.split(cotangent, self._entries)
        return [*values, *(np.asarray(gradient) for gradient in [of_log_det, *np.array(of_sums)[self._soft]])]
