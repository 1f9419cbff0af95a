"""Registration of preferences: their recogniser, compiled functions, predictions and methods."""

from pymc_ep.forms.registry import FormEntry, register_form, register_method
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.distributions.preference_utility import LowRankUtilityRV, PreferenceUtilityRV
from pymc_ep.models.preferences.form import Preferences
from pymc_ep.models.preferences.methods.ep import PREFERENCE_EP
from pymc_ep.models.preferences.methods.jaakkola import PREFERENCE_JAAKKOLA
from pymc_ep.models.preferences.methods.laplace import PREFERENCE_LAPLACE
from pymc_ep.models.preferences.new_items import extended_to_items
from pymc_ep.models.preferences.predict.log_predictive import ComparisonPredictions
from pymc_ep.models.preferences.predict.rankings import next_pairs, rank_items
from pymc_ep.models.preferences.recognise import recognise_preferences
from pymc_ep.sites.base import get_site


def _rows() -> list[tuple]:
    return [("comparisons by PreferenceUtility", link, link, get_site(link)) for link in ("probit", "logit")]


register_form(
    FormEntry(
        Preferences,
        CompiledPreferences,
        recognise_preferences,
        ops=(PreferenceUtilityRV, LowRankUtilityRV),
        rows=_rows,
        predictions=ComparisonPredictions(),
        verbs={"rank_items": rank_items, "next_pairs": next_pairs},
        extended=extended_to_items,
    )
)
for method in (PREFERENCE_EP, PREFERENCE_LAPLACE, PREFERENCE_JAAKKOLA):
    register_method(method)
