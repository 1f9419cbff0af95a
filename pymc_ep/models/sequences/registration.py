"""Registration of sequences: their recogniser, compiled functions, predictions and methods."""

from pymc_ep.forms.registry import FormEntry, register_form, register_method
from pymc_ep.models.sequences.compiled import CompiledSequences
from pymc_ep.models.sequences.distribution import CollaborativeRNNRV
from pymc_ep.models.sequences.form import SequencesForm
from pymc_ep.models.sequences.methods.ml import ML
from pymc_ep.models.sequences.predict.next_items import next_items
from pymc_ep.models.sequences.predict.predictions import SequencePredictions
from pymc_ep.models.sequences.recognise import recognise_sequences


def _rows() -> list[tuple]:
    return [("CollaborativeRNN", "softmax", "sequences", None)]


register_form(
    FormEntry(
        SequencesForm,
        CompiledSequences,
        recognise_sequences,
        ops=(CollaborativeRNNRV,),
        rows=_rows,
        predictions=SequencePredictions(),
        verbs={"next_items": next_items},
    )
)
register_method(ML)
