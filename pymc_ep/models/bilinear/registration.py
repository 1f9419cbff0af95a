"""Registration of bilinear models: their recogniser, compiled functions, predictions and methods."""

from pymc_ep.forms.registry import FormEntry, register_form, register_method
from pymc_ep.models.bilinear.compiled import CompiledBilinear
from pymc_ep.models.bilinear.form import Bilinear
from pymc_ep.models.bilinear.methods.vbmf import VBMF
from pymc_ep.models.bilinear.methods.vg import VG
from pymc_ep.models.bilinear.predict.log_predictive import CellPredictions
from pymc_ep.models.bilinear.predict.rows import BilinearRows
from pymc_ep.models.bilinear.recognise.recogniser import bilinear_sites, recognise_bilinear
from pymc_ep.tables import row_verbs


def _rows() -> list[tuple]:
    return [(distribution, link, cells.name, cells) for distribution, link, cells in bilinear_sites()]


register_form(
    FormEntry(
        Bilinear,
        CompiledBilinear,
        recognise_bilinear,
        rows=_rows,
        predictions=CellPredictions(),
        verbs=row_verbs(BilinearRows()),
    )
)
for method in (VG, VBMF):
    register_method(method)
