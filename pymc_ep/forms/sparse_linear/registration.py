"""Registration of sparse linear models: their recogniser, compiled functions, predictions and methods."""

from pymc_ep.forms.latent_gaussian.registration import likelihood_rows
from pymc_ep.forms.registry import FormEntry, register_form, register_method
from pymc_ep.forms.sparse_linear.compiled import CompiledSparseLinear
from pymc_ep.forms.sparse_linear.form import SparseLinear
from pymc_ep.forms.sparse_linear.methods.dsb import DSB, MAP
from pymc_ep.forms.sparse_linear.methods.ep import EP
from pymc_ep.forms.sparse_linear.recognise import field_sites, recognise_sparse_linear


def _rows() -> list[tuple]:
    fields = [(distribution, "of its prior", potentials, site) for distribution, potentials, site in field_sites()]
    return [*likelihood_rows(), *fields]


register_form(FormEntry(SparseLinear, CompiledSparseLinear, recognise_sparse_linear, rows=_rows, gaussian=True))
for method in (EP, DSB, MAP):
    register_method(method)
