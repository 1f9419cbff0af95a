"""Mixed models of the help pages of lme4, nlme, mlmRev, glmmTMB, MASS and HSAUR, with a Bayesian's weak priors."""

import numpy as np
import pandas as pd
import pymc as pm

from docs.benchmarks.public.base import codes, public, r_table

__all__: list[str] = []

SOURCE = "mixed models"


def _yes(column: pd.Series, level: object) -> np.ndarray:
    return (column == level).astype(int).to_numpy()


@public("lme4_dyestuff2", SOURCE)
def dyestuff2() -> pm.Model:
    d = r_table("lme4/Dyestuff2")
    batch, n = codes(d["Batch"])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 20)
        sigma_batch, sigma = pm.HalfCauchy("sigma_batch", 5), pm.HalfCauchy("sigma", 5)
        a = pm.Normal("a", mu, sigma_batch, shape=n)
        pm.Normal("Yield", a[batch], sigma, observed=d["Yield"].to_numpy())
    return model


@public("lme4_penicillin", SOURCE)
def penicillin() -> pm.Model:
    d = r_table("lme4/Penicillin")
    (plate, n_plates), (sample, n_samples) = codes(d["plate"]), codes(d["sample"])
    with pm.Model() as model:
        mu = pm.Normal("mu", 23, 10)
        sd_plate, sd_sample = pm.HalfNormal("sd_plate", 5), pm.HalfNormal("sd_sample", 5)
        sigma = pm.HalfNormal("sigma", 5)
        u, v = pm.Normal("plate", 0, sd_plate, shape=n_plates), pm.Normal("sample", 0, sd_sample, shape=n_samples)
        pm.Normal("diameter", mu + u[plate] + v[sample], sigma, observed=d["diameter"].to_numpy())
    return model


@public("lme4_pastes", SOURCE)
def pastes() -> pm.Model:
    d = r_table("lme4/Pastes")
    (batch, n_batches), (sample, n_samples) = codes(d["batch"]), codes(d["sample"])
    with pm.Model() as model:
        mu = pm.Normal("mu", 60, 20)
        sd_batch, sd_cask = pm.HalfStudentT("sd_batch", 3, 5), pm.HalfStudentT("sd_cask", 3, 5)
        sigma = pm.HalfStudentT("sigma", 3, 5)
        u, v = pm.Normal("batch", 0, sd_batch, shape=n_batches), pm.Normal("cask", 0, sd_cask, shape=n_samples)
        pm.Normal("strength", mu + u[batch] + v[sample], sigma, observed=d["strength"].to_numpy())
    return model


@public("lme4_cake", SOURCE)
def cake() -> pm.Model:
    d = r_table("lme4/cake")
    recipe, n_recipes = codes(d["recipe"])
    replicate, n_replicates = codes(d["replicate"])
    within, n_within = codes(d["recipe"].astype(str) + d["replicate"].astype(str))
    temperature = ((d["temp"] - d["temp"].mean()) / 10).to_numpy()
    with pm.Model() as model:
        mu, slope = pm.Normal("mu", 30, 20), pm.Normal("slope", 0, 5)
        b = pm.ZeroSumNormal("recipe", sigma=5, shape=n_recipes)
        sd_r, sd_w, sigma = (pm.Exponential(name, 0.2) for name in ("sd_replicate", "sd_within", "sigma"))
        u = pm.Normal("replicate", 0, sd_r, shape=n_replicates)
        v = pm.Normal("within", 0, sd_w, shape=n_within)
        mean = mu + b[recipe] + slope * temperature + u[replicate] + v[within]
        pm.Normal("angle", mean, sigma, observed=d["angle"].to_numpy())
    return model


@public("glmm_salamander", SOURCE)
def salamander() -> pm.Model:
    d = r_table("lme4/salamander")
    female, n_females = codes(d["Experiment"].astype(str) + "-" + d["Female"].astype(str))
    male, n_males = codes(d["Experiment"].astype(str) + "-" + d["Male"].astype(str))
    cross, _ = codes(d["Cross"])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2.5, shape=4)
        sd_f, sd_m = pm.HalfCauchy("sd_female", 2), pm.HalfCauchy("sd_male", 2)
        f, m = pm.Normal("f", 0, 1, shape=n_females), pm.Normal("m", 0, 1, shape=n_males)
        eta = beta[cross] + sd_f * f[female] + sd_m * m[male]
        pm.Bernoulli("mate", logit_p=eta, observed=d["Mate"].to_numpy())
    return model


@public("glmm_toenail", SOURCE)
def toenail() -> pm.Model:
    d = r_table("lme4/toenail")
    patient, n = codes(d["patientID"])
    severe, treated = _yes(d["outcome"], "moderate or severe"), _yes(d["treatment"], "terbinafine")
    time = d["time"].to_numpy()
    with pm.Model() as model:
        b0, b_trt, b_time, b_inter = (pm.Normal(name, 0, 5) for name in ("b0", "b_trt", "b_time", "b_inter"))
        sigma = pm.HalfNormal("sigma", 5)
        z = pm.Normal("z", 0, 1, shape=n)
        eta = b0 + b_trt * treated + b_time * time + b_inter * treated * time + sigma * z[patient]
        pm.Bernoulli("severe", logit_p=eta, observed=severe)
    return model


@public("glmm_contraception", SOURCE)
def contraception() -> pm.Model:
    d = r_table("mlmRev/Contraception")
    district, n = codes(d["district"])
    urban, age = _yes(d["urban"], "Y"), (d["age"] / 10).to_numpy()
    children = np.column_stack([_yes(d["livch"].astype(str), k) for k in ("1", "2", "3+")])
    design = np.column_stack([np.ones(len(d)), urban, age, age**2, children])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=design.shape[1])
        sd = pm.HalfNormal("sd", 1, shape=2)
        u, v = pm.Normal("u", 0, sd[0], shape=n), pm.Normal("v", 0, sd[1], shape=n)
        eta = design @ beta + u[district] + v[district] * urban
        pm.Bernoulli("use", logit_p=eta, observed=_yes(d["use"], "Y"))
    return model


@public("glmm_melanoma_europe", SOURCE)
def melanoma_europe() -> pm.Model:
    d = r_table("mlmRev/Mmmec")
    (nation, n_nations), (region, n_regions) = codes(d["nation"]), codes(d["region"])
    with pm.Model() as model:
        b0, b_uvb = pm.Normal("b0", 0, 1), pm.Normal("b_uvb", 0, 1)
        s_n, s_r = pm.HalfNormal("sd_nation", 1), pm.HalfNormal("sd_region", 1)
        u, v = pm.Normal("nation", 0, s_n, shape=n_nations), pm.Normal("region", 0, s_r, shape=n_regions)
        eta = np.log(d["expected"].to_numpy()) + b0 + b_uvb * d["uvb"].to_numpy() + u[nation] + v[region]
        pm.Poisson("deaths", pm.math.exp(eta), observed=d["deaths"].to_numpy())
    return model


@public("glmm_culcita", SOURCE)
def culcita() -> pm.Model:
    d = r_table("lme4/culcitalogreg")
    block, n = codes(d["block"])
    design = np.column_stack([_yes(d["ttt"], k) for k in (1, 2, 3, 4)])
    with pm.Model() as model:
        beta, sigma = pm.Normal("beta", 0, 3, shape=4), pm.HalfCauchy("sigma", 2.5)
        u = pm.Normal("u", 0, sigma, shape=n)
        pm.Bernoulli("predation", logit_p=design @ beta + u[block], observed=d["predation"].to_numpy())
    return model


@public("glmm_gopher", SOURCE)
def gopher() -> pm.Model:
    d = r_table("lme4/gopherdat2")
    (site, n), (year, _) = codes(d["Site"]), codes(d["year"])
    prevalence = ((d["prev"] - d["prev"].mean()) / d["prev"].std()).to_numpy()
    with pm.Model() as model:
        b_year, b_prev = pm.Flat("b_year", shape=3), pm.Flat("b_prev")
        sigma = pm.HalfNormal("sigma", 1)
        u = pm.Normal("u", 0, sigma, shape=n)
        eta = np.log(d["Area"].to_numpy()) + b_year[year] + b_prev * prevalence + u[site]
        pm.Poisson("shells", pm.math.exp(eta), observed=d["shells"].to_numpy())
    return model


@public("glmm_arabidopsis", SOURCE)
def arabidopsis() -> pm.Model:
    d = r_table("lme4/Arabidopsis")
    (popu, n_popu), (gen, n_gen) = codes(d["popu"]), codes(d["gen"])
    nutrient, clipped = _yes(d["nutrient"], 8), _yes(d["amd"], "clipped")
    design = np.column_stack([nutrient, clipped, nutrient * clipped, d["rack"] - 1])
    with pm.Model() as model:
        mu, beta = pm.Normal("mu", 2, 2), pm.Normal("beta", 0, 1, shape=4)
        s_popu, s_gen, alpha = pm.Exponential("sd_popu", 1), pm.Exponential("sd_gen", 1), pm.Exponential("alpha", 1)
        u, v = pm.Normal("popu", 0, s_popu, shape=n_popu), pm.Normal("gen", 0, s_gen, shape=n_gen)
        rate = pm.math.exp(mu + design @ beta + u[popu] + v[gen])
        pm.NegativeBinomial("fruits", mu=rate, alpha=alpha, observed=d["total.fruits"].to_numpy())
    return model


@public("glmm_verbal_aggression", SOURCE)
def verbal_aggression() -> pm.Model:
    d = r_table("lme4/VerbAgg")
    # Every third of the 316 persons.
    d = d[d["id"] % 3 == 0]
    (person, n), (item, n_items) = codes(d["id"]), codes(d["item"])
    anger, male = ((d["Anger"] - 20) / 5).to_numpy(), _yes(d["Gender"], "M")
    with pm.Model() as model:
        mu, b_anger, b_male = pm.Normal("mu", 0, 2), pm.Normal("b_anger", 0, 1), pm.Normal("b_male", 0, 1)
        s_p, s_i = pm.HalfNormal("sd_person", 2), pm.HalfNormal("sd_item", 2)
        theta, easy = pm.Normal("theta", 0, s_p, shape=n), pm.Normal("easy", 0, s_i, shape=n_items)
        eta = mu + b_anger * anger + b_male * male + theta[person] + easy[item]
        pm.Bernoulli("r2", logit_p=eta, observed=_yes(d["r2"], "Y"))
    return model


@public("glm_quine", SOURCE)
def quine() -> pm.Model:
    d = r_table("MASS/quine")
    design = pd.get_dummies(d[["Eth", "Sex", "Age", "Lrn"]], drop_first=True, dtype=float).to_numpy()
    with pm.Model() as model:
        b0, b = pm.Normal("b0", 2, 2), pm.Normal("b", 0, 1, shape=design.shape[1])
        alpha = pm.HalfCauchy("alpha", 5)
        pm.NegativeBinomial("Days", mu=pm.math.exp(b0 + design @ b), alpha=alpha, observed=d["Days"].to_numpy())
    return model


@public("glmm_epil_slopes", SOURCE)
def epil_slopes() -> pm.Model:
    d = r_table("MASS/epil")
    subject, n = codes(d["subject"])
    treated, visit = _yes(d["trt"], "progabide"), (2 * d["period"] - 5).to_numpy() / 10
    lbase, lage = d["lbase"].to_numpy(), d["lage"].to_numpy()
    design = np.column_stack([np.ones(len(d)), lbase, treated, lbase * treated, lage, visit])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=6)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, size=2))
        z = pm.Normal("z", 0, 1, shape=(n, 2))
        b = pm.Deterministic("b", z @ chol.T)
        eta = design @ beta + b[subject, 0] + b[subject, 1] * visit
        pm.Poisson("y", pm.math.exp(eta), observed=d["y"].to_numpy())
    return model


@public("glmm_respiratory", SOURCE)
def respiratory() -> pm.Model:
    d = r_table("HSAUR/respiratory")
    base = d[d["month"] == 0].set_index("subject")["status"]
    d = d[d["month"] > 0]
    (subject, n), month = codes(d["subject"]), d["month"].to_numpy() - 2.5
    columns = [_yes(d["treatment"], "treatment"), _yes(d["sex"], "male"), (d["age"] - 33) / 10]
    columns += [_yes(d["subject"].map(base), "good"), _yes(d["centre"], 2), month]
    design = np.column_stack([np.ones(len(d)), *columns])
    with pm.Model() as model:
        beta, sigma = pm.Normal("beta", 0, 2.5, shape=7), pm.HalfNormal("sigma", 3)
        u = pm.Normal("u", 0, sigma, shape=n)
        pm.Bernoulli("good", logit_p=design @ beta + u[subject], observed=_yes(d["status"], "good"))
    return model


@public("lmm_beat_the_blues", SOURCE)
def beat_the_blues() -> pm.Model:
    wide = r_table("HSAUR/BtheB").reset_index()
    d = wide.melt(["rownames", "drug", "length", "treatment", "bdi.pre"], var_name="month", value_name="bdi").dropna()
    subject, n = codes(d["rownames"])
    month = d["month"].str.extract(r"(\d)")[0].astype(float).to_numpy()
    columns = [d["bdi.pre"] - 23, month - 4, _yes(d["drug"], "Yes"), _yes(d["length"], ">6m")]
    design = np.column_stack([np.ones(len(d)), *columns, _yes(d["treatment"], "BtheB")])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 10, shape=6)
        sd, sigma = pm.HalfCauchy("sd", [5, 2], shape=2), pm.HalfCauchy("sigma", 5)
        u = pm.Normal("u", 0, 1, shape=(n, 2))
        mean = design @ beta + sd[0] * u[subject, 0] + sd[1] * u[subject, 1] * (month - 4)
        pm.Normal("bdi", mean, sigma, observed=d["bdi"].to_numpy())
    return model


@public("lmm_machines", SOURCE)
def machines() -> pm.Model:
    d = r_table("nlme/Machines")
    (worker, n), (machine, _) = codes(d["Worker"]), codes(d["Machine"])
    with pm.Model() as model:
        b = pm.Normal("b", 60, 20, shape=3)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=1, sd_dist=pm.HalfNormal.dist(10, size=3))
        u = pm.MvNormal("u", mu=np.zeros(3), chol=chol, shape=(n, 3))
        sigma = pm.HalfNormal("sigma", 5)
        pm.Normal("score", b[machine] + u[worker, machine], sigma, observed=d["score"].to_numpy())
    return model


@public("lmm_orthodont", SOURCE)
def orthodont() -> pm.Model:
    d = r_table("nlme/Orthodont")
    (subject, n), male = codes(d["Subject"]), _yes(d["Sex"], "Male")
    age = (d["age"] - 11).to_numpy()
    with pm.Model() as model:
        b = pm.Normal("b", [24, 0.5, 2, 0.3], [10, 2, 5, 2])
        s0, s1 = pm.HalfNormal("sd_intercept", 3), pm.HalfNormal("sd_age", 1)
        sigma = pm.HalfNormal("sigma", 3, shape=2)
        u, v = pm.Normal("u", 0, s0, shape=n), pm.Normal("v", 0, s1, shape=n)
        mean = b[0] + u[subject] + (b[1] + v[subject]) * age + b[2] * male + b[3] * male * age
        pm.Normal("distance", mean, sigma[male], observed=d["distance"].to_numpy())
    return model


@public("lmm_oats", SOURCE)
def oats() -> pm.Model:
    d = r_table("nlme/Oats")
    (block, n), (variety, _) = codes(d["Block"]), codes(d["Variety"])
    with pm.Model() as model:
        mu, b_n = pm.Normal("mu", 100, 50), pm.Normal("b_nitro", 0, 100)
        b_v = pm.ZeroSumNormal("variety", sigma=20, shape=3)
        s_b, s_p, sigma = pm.HalfCauchy("sd_block", 20), pm.HalfCauchy("sd_plot", 20), pm.HalfCauchy("sigma", 20)
        u, v = pm.Normal("block", 0, s_b, shape=n), pm.Normal("plot", 0, s_p, shape=(n, 3))
        mean = mu + b_n * d["nitro"].to_numpy() + b_v[variety] + u[block] + v[block, variety]
        pm.Normal("yield", mean, sigma, observed=d["yield"].to_numpy(dtype=float))
    return model


@public("clmm_wine", SOURCE)
def wine() -> pm.Model:
    d = r_table("ordinal/wine")
    judge, n = codes(d["judge"])
    warm, contact = _yes(d["temp"], "warm"), _yes(d["contact"], "yes")
    with pm.Model() as model:
        cuts = pm.Normal(
            "cuts",
            0,
            5,
            shape=4,
            transform=pm.distributions.transforms.ordered,
            initval=np.array([-2.0, -0.5, 0.5, 2.0]),
        )
        b_temp, b_contact = pm.Normal("b_temp", 0, 5), pm.Normal("b_contact", 0, 5)
        sigma = pm.HalfNormal("sigma", 2)
        u = pm.Normal("u", 0, sigma, shape=n)
        eta = b_temp * warm + b_contact * contact + u[judge]
        pm.OrderedLogistic("rating", eta=eta, cutpoints=cuts, observed=d["rating"].to_numpy() - 1)
    return model
