# %% [markdown]
# # Coal mining disasters: counts on a Gaussian process
#
# 191 explosions in British coal mines killed ten men or more between 1851 and 1962. Their rate is a Gaussian process
# cut off at zero, which may stay near zero for decades and still rise again: a Poisson model with rate max(0, f).
# NUTS has trouble with its kink; expectation propagation gives the posterior, the evidence and the hyperparameters.

# %%
import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.stats import norm

import pymc_ep as pmep

dates = pmep.datasets.load_coal()  # 191 explosions, 1851-1962
counts, edges = np.histogram(dates, bins=100)
years = (edges[:-1] + edges[1:]) / 2

with pm.Model(coords={"year": years}) as model:
    ell = pm.InverseGamma("ell", mu=15, sigma=15)
    amp = pm.HalfNormal("amp", 3)
    level = pm.Normal("level", 2, 2)
    gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=amp**2 * pm.gp.cov.ExpQuad(1, ell))
    f = gp.prior("f", X=years[:, None], dims="year")
    pmep.RectifiedPoisson("y", f, observed=counts, dims="year")

    idata = pmep.fit(method="ep", random_seed=1)

print(az.summary(idata, var_names=["ell", "amp", "level"]).to_string())
print(f"log evidence {float(idata['fit']['log_evidence']):.2f}")
print(idata["fit"].attrs["status"])

# %% [markdown]
# ## What comes next
#
# `gp.conditional` extends the model to the years after the last one, as for any PyMC model. The moments of the latent
# function are exact given the fit; the counts are drawn.

# %%
new_years = np.linspace(1963, 1975, 13)
with model:
    f_new = gp.conditional("f_new", Xnew=new_years[:, None])
    pmep.RectifiedPoisson("y_new", f_new)
forecast = pmep.predict(idata, model, var_names=["f_new"])
counts_new = pm.sample_posterior_predictive(
    idata, model=model, var_names=["y_new"], random_seed=2, progressbar=False
).posterior_predictive["y_new"]
print("chance of another disaster, bin by bin:", np.round((counts_new > 0).mean(("chain", "draw")).values, 2))


# %% [markdown]
# ## The intensity
#
# Under f ~ N(m, s^2) the rate has E max(0, f) = m Phi(m/s) + s phi(m/s), and since max(0, .) increases, its quantiles
# are those of f, cut off at zero.


# %%
def rate(mean, sd):
    """Mean and central 90% interval of max(0, f) for f ~ N(mean, sd^2)."""
    expected = mean * norm.cdf(mean / sd) + sd * norm.pdf(mean / sd)
    low, high = np.maximum(norm.ppf([[0.05], [0.95]], mean, sd), 0)
    return expected, low, high


figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
axes.bar(years, counts, width=np.diff(edges), color="0.85", label="explosions in a bin")
moments = idata["fit"]
for x, mean, sd, style in [
    (years, idata["posterior_mean"]["f"].values, idata["posterior_sd"]["f"].values, "-"),
    (new_years, forecast["f_new_mean"].values, forecast["f_new_sd"].values, "--"),
]:
    expected, low, high = rate(mean, sd)
    axes.fill_between(x, low, high, color="C0", alpha=0.25, lw=0)
    axes.plot(x, expected, f"C0{style}", label="posterior rate, 90% interval" if style == "-" else "forecast")
axes.set(xlabel="year", ylabel="count")
axes.legend(frameon=False)
figure.savefig("coal_mining.png", dpi=150)
print("saved coal_mining.png")
