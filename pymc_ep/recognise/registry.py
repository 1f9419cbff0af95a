"""The registry of forms: which recogniser reads a model as which form."""

from collections.abc import Callable, Sequence
from typing import Any

from pymc import Model

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms.bilinear import Bilinear
from pymc_ep.forms.latent_gaussian import LatentGaussian
from pymc_ep.recognise.bilinear import recognise_bilinear
from pymc_ep.recognise.latent_gaussian import recognise_latent_gaussian

__all__ = ["recognise", "register_form"]

Recogniser = Callable[[Model, Sequence[str] | None, Sequence[str]], Any]

_RECOGNISERS: dict[type, Recogniser] = {}


def register_form(form: type, recogniser: Recogniser) -> None:
    """Register a form and the function that reads a model as one.

    Parameters
    ----------
    form : type
        A frozen dataclass.
    recogniser : callable
        ``recogniser(model, latent, wanted)`` returns the form, None where the model is not of that form at all,
        or raises `UnsupportedModelError` where it nearly is. Later registrations are asked first.
    """
    _RECOGNISERS[form] = recogniser


def recognise(model: Model, latent: Sequence[str] | None = None, wanted: Sequence[str] = ()) -> Any:
    """Return the form of a model, by the first recogniser that knows it."""
    for recogniser in reversed(_RECOGNISERS.values()):
        form = recogniser(model, latent, wanted)
        if form is not None:
            return form
    raise UnsupportedModelError("No registered form fits the model; pymc_ep.supported() lists them.")


register_form(LatentGaussian, recognise_latent_gaussian)
register_form(Bilinear, recognise_bilinear)
