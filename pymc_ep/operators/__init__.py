"""Linear maps of images and vectors, and their application to variables of a model."""

from pymc_ep.operators.adapters import as_linear_map
from pymc_ep.operators.apply import apply_operator
from pymc_ep.operators.base import LinearMap, stack
from pymc_ep.operators.convolution import Convolution2D
from pymc_ep.operators.fourier import Fourier2D
from pymc_ep.operators.gradient import Gradient2D
from pymc_ep.operators.hessian import Hessian2D
from pymc_ep.operators.mask import Mask
from pymc_ep.operators.wavelet import Wavelet2D

__all__ = [
    "Convolution2D",
    "Fourier2D",
    "Gradient2D",
    "Hessian2D",
    "LinearMap",
    "Mask",
    "Wavelet2D",
    "apply_operator",
    "as_linear_map",
    "stack",
]
