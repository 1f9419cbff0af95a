# %% [markdown]
# # Wavelet trees: large coefficients come in families
#
# Where an image has an edge, its wavelet coefficients are large at all scales, one below the other. A `WaveletTree`
# says so: each coefficient is in a low or a high state, and a high parent tends to have high children. Here is a
# photograph of which nothing is known but how much noise it has: the scales of both states, level by level, and the
# probabilities of the states are learned from it.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from skimage import data, metrics, restoration

import pymc_ep as pmep

side, levels, noise = 64, 3, 0.1
portrait = data.astronaut()[0:256, 96:352].mean(axis=-1) / 255
step = len(portrait) // side
truth = portrait.reshape(side, step, side, step).mean(axis=(1, 3))
noisy = truth + noise * np.random.default_rng(1).normal(size=truth.shape)

# %% [markdown]
# Probabilities that are not given, of roots and of children below a low and below a high parent, become variables of
# the model: `u_root` and `u_child`.

# %%
with pm.Model() as tree:
    low = pm.HalfNormal("low", 1, shape=levels)  # finest level first
    high = pm.HalfNormal("high", 1, shape=levels)
    u = pmep.WaveletTree(
        "u",
        shape=(side, side),
        wavelet="db2",
        levels=levels,
        low=pm.Normal.dist(0, low),
        high=pm.Normal.dist(0, high),
    )
    pm.Normal("y", u, noise, observed=noisy)
    print(pmep.explain())
    idata = pmep.fit(method="ep", random_seed=1)

fit = idata["fit"]
print(fit.attrs["status"])
for name in ("low", "high", "u_root", "u_child"):
    print(name, fit[f"hyper_mode_{name}"].values.round(3).tolist())

# %% [markdown]
# With Gaussian noise on every pixel EP is exact. A basis has a grid, which shows: average over translated ones.

# %%
with tree:
    averaged = pmep.fit(method="ep", translations=16, random_seed=1)

# %% [markdown]
# ## Beside a factorial prior
#
# The same without a tree: every coefficient has a Laplace potential of its own.

# %%
with pm.Model() as factorial:
    b = pm.HalfNormal("b", 1, shape=levels)
    x = pmep.SparseField(
        "u", operator=pmep.operators.Wavelet2D((side, side), "db2", levels), potential=pm.Laplace.dist(0, b)
    )
    pm.Normal("y", x, noise, observed=noisy)
    plain = pmep.fit(method="dsb", random_seed=1)


def psnr(image):
    """Peak signal-to-noise ratio in decibels."""
    return metrics.peak_signal_noise_ratio(truth, image, data_range=1.0)


thresholded = restoration.denoise_wavelet(noisy, sigma=noise, wavelet="db2", mode="soft", rescale_sigma=True)
print(f"PSNR of the data            {psnr(noisy):.2f} dB")
print(f"PSNR, wavelet tree          {psnr(idata['posterior_mean']['u'].values):.2f} dB")
print(f"PSNR, 16 grids              {psnr(averaged['posterior_mean']['u'].values):.2f} dB")
print(f"PSNR, factorial Laplace     {psnr(plain['posterior_mean']['u'].values):.2f} dB")
print(f"PSNR, BayesShrink           {psnr(thresholded):.2f} dB")
for name, found in (("tree", idata), ("16 grids", averaged), ("factorial", plain)):
    inside = np.abs(truth - found["posterior_mean"]["u"].values) <= 1.645 * found["posterior_sd"]["u"].values
    print(f"{name}: 90% intervals contain {100 * inside.mean():.0f}% of the pixels")

# %% [markdown]
# ## Where the states are
#
# Edges show at every scale.

# %%
figure, axes = plt.subplots(2, 2, figsize=(8.4, 6.8), layout="constrained")
pmep.plots.plot_image(averaged, "u", data=noisy, ax=axes.ravel()[:3])
pmep.plots.plot_states(idata, "u", ax=axes[1, 1])
axes[1, 1].set_title("states of the coefficients")
for panel in axes.ravel():
    panel.set(xticks=[], yticks=[])
figure.savefig("wavelet_tree.png", dpi=110)
print("saved wavelet_tree.png")
