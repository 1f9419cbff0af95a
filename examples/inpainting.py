# %% [markdown]
# # Inpainting: an image of which most pixels are missing
#
# A third of the pixels of a portrait were recorded, nearly without noise. The prior says that the wavelet coefficients
# of an image are mostly small and sometimes large: Student-t potentials, with a scale for each level that the pixels
# decide. The double loop needs products with vectors alone, so that images may be of any size.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from skimage import data, metrics, restoration

import pymc_ep as pmep

side, levels, noise = 64, 3, 0.01
portrait = data.astronaut()[0:256, 96:352].mean(axis=-1) / 255
step = len(portrait) // side
truth = portrait.reshape(side, step, side, step).mean(axis=(1, 3))

rng = np.random.default_rng(1)
mask = rng.random((side, side)) < 1 / 3
pixels = truth[mask] + noise * rng.normal(size=mask.sum())
recorded = np.full((side, side), np.nan)
recorded[mask] = pixels

# %% [markdown]
# The scaling coefficients, of the low-pass image that remains after the last level, have a flat prior.

# %%
with pm.Model() as wavelets:
    b = pm.HalfNormal("b", 1, shape=levels)  # finest level first
    u = pmep.SparseField(
        "u",
        operator=pmep.operators.Wavelet2D((side, side), "db2", levels),
        potential=pm.StudentT.dist(nu=2.1, sigma=b),
        shape=(side, side),
    )
    pm.Normal("y", u[mask], noise, observed=pixels)
    print(pmep.explain())
    idata = pmep.fit(method="dsb", variance="perturb-and-map", n_samples=30, random_seed=1)

fit = idata["fit"]
print(fit.attrs["status"])
print("scales of the wavelet coefficients, finest first:", fit["hyper_mode_b"].values.round(4))

# %% [markdown]
# ## Another prior is another operator
#
# An orthonormal basis moves with neither the image nor its edges, which leaves blocks behind. Differences between
# neighbours fare better where most of an image is missing, and so do methods that were made for inpainting and nothing
# else; these say nothing about what they do not know.

# %%
with pm.Model() as differences:
    b = pm.HalfNormal("b", 1)
    u = pmep.SparseField("u", operator=pmep.operators.Gradient2D((side, side)), potential=pm.Laplace.dist(0, b))
    pm.Normal("y", u[mask], noise, observed=pixels)
    smooth = pmep.fit(method="dsb", random_seed=1)


def psnr(image):
    """Peak signal-to-noise ratio in decibels."""
    return metrics.peak_signal_noise_ratio(truth, image, data_range=1.0)


biharmonic = restoration.inpaint_biharmonic(np.nan_to_num(recorded), ~mask)
print(f"PSNR, wavelets             {psnr(idata['posterior_mean']['u'].values):.2f} dB")
print(f"PSNR, total variation      {psnr(smooth['posterior_mean']['u'].values):.2f} dB")
print(f"PSNR, biharmonic equation  {psnr(biharmonic):.2f} dB")

# %% [markdown]
# ## What is known where nothing was seen
#
# The standard deviation is near zero at recorded pixels, and large where an edge may lie between them.

# %%
for name, found in (("wavelets", idata), ("total variation", smooth)):
    inside = np.abs(truth - found["posterior_mean"]["u"].values) <= 1.645 * found["posterior_sd"]["u"].values
    print(f"{name}: 90% intervals contain {100 * inside[~mask].mean():.0f}% of the missing pixels")

figure, axes = plt.subplots(2, 4, figsize=(13, 5.6), layout="constrained")
pmep.plots.plot_image(idata, "u", truth=truth, data=recorded, ax=axes[0])
pmep.plots.plot_image(smooth, "u", ax=axes[1, 2:])
axes[1, 1].imshow(biharmonic, cmap="gray", vmin=truth.min(), vmax=truth.max())
for panel, title in zip(axes.ravel()[[2, 5, 6]], ["wavelets, mean", "biharmonic equation", "total variation, mean"]):
    panel.set_title(title)
for panel in axes.ravel()[[0, 1, 2, 3, 5, 6, 7]]:
    panel.set(xticks=[], yticks=[])
for found in (idata, smooth):
    pmep.plots.plot_coverage(found, np.where(mask, np.nan, truth), "u", ax=axes[1, 0])
axes[1, 0].set_title("missing pixels")
axes[1, 0].legend(axes[1, 0].lines[1::2], ["wavelets", "total variation"], frameon=False)
figure.savefig("inpainting.png", dpi=110)
print("saved inpainting.png")
