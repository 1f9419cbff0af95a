"""Forms: the mathematical structures of models that can be fitted, each a subpackage that registers itself."""

from pymc_ep.forms import bilinear as bilinear
from pymc_ep.forms import latent_gaussian as latent_gaussian
from pymc_ep.forms import paired_symbols as paired_symbols
from pymc_ep.forms import preferences as preferences
from pymc_ep.forms import sparse_linear as sparse_linear
from pymc_ep.forms.cache import compiled_form
from pymc_ep.forms.registry import (
    FormEntry,
    able_methods,
    entry_of,
    forms,
    get_method,
    methods,
    recognise,
    register_form,
    register_method,
)

__all__ = [
    "FormEntry",
    "able_methods",
    "compiled_form",
    "entry_of",
    "forms",
    "get_method",
    "methods",
    "recognise",
    "register_form",
    "register_method",
]
