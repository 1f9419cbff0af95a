"""Registry of forms, the mathematical structures of models that can be fitted, and cache of compiled models.

The subpackages of `pymc_ep.models` register the forms and their methods.
"""

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
    register_verb,
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
    "register_verb",
]
