"""Registration of sparse linear models: their recogniser, compiled functions, predictions and methods."""

from pymc_ep.forms.registry import FormEntry, register_form, register_method
from pymc_ep.graphs.gaussian_variables import register_gaussian
from pymc_ep.models.latent_gaussian.registration import likelihood_rows
from pymc_ep.models.sparse_linear.compiled import CompiledSparseLinear
from pymc_ep.models.sparse_linear.distributions.sparse_field import SparseFieldRV
from pymc_ep.models.sparse_linear.distributions.wavelet_tree import WaveletTreeRV
from pymc_ep.models.sparse_linear.flat_parts import flat_part_of_field, flat_part_of_tree
from pymc_ep.models.sparse_linear.form import SparseLinear
from pymc_ep.models.sparse_linear.methods.dsb import DSB, MAP
from pymc_ep.models.sparse_linear.methods.ep import EP
from pymc_ep.models.sparse_linear.recognise import SPARSE_PRIORS, field_sites, recognise_sparse_linear


def _rows() -> list[tuple]:
    fields = [(distribution, "of its prior", potentials, site) for distribution, potentials, site in field_sites()]
    return [*likelihood_rows(), *fields]


register_gaussian(SparseFieldRV, flat_part_of_field)
register_gaussian(WaveletTreeRV, flat_part_of_tree)
register_form(
    FormEntry(
        SparseLinear,
        CompiledSparseLinear,
        recognise_sparse_linear,
        ops=SPARSE_PRIORS,
        rows=_rows,
        gaussian=True,
    )
)
for method in (EP, DSB, MAP):
    register_method(method)
