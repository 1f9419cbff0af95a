"""Registration of latent Gaussian models: their recogniser, compiled functions, predictions and methods."""

from pymc_ep.forms.registry import FormEntry, register_form, register_method
from pymc_ep.graphs.families import site_names
from pymc_ep.models.latent_gaussian.compiled import CompiledLatentGaussian
from pymc_ep.models.latent_gaussian.form import LatentGaussian
from pymc_ep.models.latent_gaussian.methods.ascent import DSB, LAPLACE, VG
from pymc_ep.models.latent_gaussian.methods.ep import EP
from pymc_ep.models.latent_gaussian.recognise.recogniser import recognise_latent_gaussian
from pymc_ep.sites import sites

__all__ = ["likelihood_rows"]


def likelihood_rows() -> list[tuple]:
    """Return (distribution, link, name of site, site) for each likelihood; the site is None if it is not registered."""
    registered = sites()
    return [(distribution, link, name, registered.get(name)) for distribution, link, name in site_names()]


register_form(
    FormEntry(
        LatentGaussian,
        CompiledLatentGaussian,
        recognise_latent_gaussian,
        fallback=True,
        rows=likelihood_rows,
        gaussian=True,
        current=CompiledLatentGaussian.is_current,
    )
)
for method in (EP, LAPLACE, VG, DSB):
    register_method(method)
