"""Registration of paired symbols: their recogniser, compiled functions, predictions and methods."""

from pymc_ep.forms.registry import FormEntry, register_form, register_method
from pymc_ep.models.paired_symbols.compiled import CompiledPairedSymbols
from pymc_ep.models.paired_symbols.distribution import PairedSymbolsRV
from pymc_ep.models.paired_symbols.form import PairedSymbolsForm
from pymc_ep.models.paired_symbols.methods.paired_vb import PAIRED_VB
from pymc_ep.models.paired_symbols.predict.log_predictive import PairPredictions
from pymc_ep.models.paired_symbols.predict.rows import PairRows
from pymc_ep.models.paired_symbols.recognise import recognise_paired_symbols
from pymc_ep.tables import row_verbs


def _rows() -> list[tuple]:
    return [("PairedSymbols", "logit", "paired symbols", None)]


register_form(
    FormEntry(
        PairedSymbolsForm,
        CompiledPairedSymbols,
        recognise_paired_symbols,
        ops=(PairedSymbolsRV,),
        rows=_rows,
        predictions=PairPredictions(),
        verbs=row_verbs(PairRows()),
    )
)
register_method(PAIRED_VB)
