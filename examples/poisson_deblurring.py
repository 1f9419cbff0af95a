# %% [markdown]
# # Deblurring photon counts
#
# A camera that sees few photons: every pixel of a blurred photograph is a Poisson count with a mean of at most 10. What
# was in front of the lens, and how sure can one be? The prior says that neighbouring pixels mostly agree (total
# variation); how strongly, the counts decide.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from skimage import data, restoration

import pymc_ep as pmep

side = 64
photograph = data.camera()[60:316, 110:366].astype(float)  # the photographer's head and camera, 256 x 256
step = len(photograph) // side
truth = photograph.reshape(side, step, side, step).mean(axis=(1, 3))
truth *= 10 / truth.max()

taps = np.exp(-0.5 * (np.arange(-2, 3) / 0.8) ** 2)
kernel = np.outer(taps, taps) / taps.sum() ** 2
blur = pmep.operators.Convolution2D((side, side), kernel, boundary="reflect")
counts = np.random.default_rng(1).poisson(blur.forward(truth))

# %% [markdown]
# The rate of a pixel is the positive part of the blurred image. `tau` is the steepness of the potentials: the larger,
# the smoother the image. It has a prior like any other hyperparameter, and its value comes from the evidence.

# %%
with pm.Model() as model:
    tau = pm.HalfNormal("tau", 5)
    u = pmep.SparseField(
        "u", operator=pmep.operators.Gradient2D((side, side)), potential=pm.Laplace.dist(0, 1 / tau), shape=(side, side)
    )
    pmep.RectifiedPoisson("y", pmep.apply_operator(blur, u), observed=counts)
    print(pmep.explain())
    idata = pmep.fit(method="ep", random_seed=1)

fit = idata["fit"]
print(fit.attrs["status"])
print(f"tau {float(fit['hyper_mode_tau']):.3f}, log evidence {float(fit['log_evidence']):.1f}")

# %% [markdown]
# ## Next to Richardson and Lucy
#
# Their algorithm climbs the Poisson likelihood and has to be stopped before it fits the noise. Here it is stopped where
# it comes nearest to the truth, which nobody knows in practice.


# %%
def error(image):
    """Sum of absolute errors, relative to the truth."""
    return np.abs(image - truth).sum() / truth.sum()


padded = np.pad(counts.astype(float), 4, mode="symmetric")
stopped = [
    restoration.richardson_lucy(padded, kernel, num_iter=n, clip=False)[4:-4, 4:-4] for n in (1, 2, 3, 5, 8, 12, 20)
]
mean, sd = idata["posterior_mean"]["u"].values, idata["posterior_sd"]["u"].values
print(f"relative error of the counts              {error(counts):.3f}")
print(f"  of Richardson-Lucy, stopped by an oracle {min(map(error, stopped)):.3f}")
print(f"  of the posterior mean                    {error(mean):.3f}")

# %% [markdown]
# ## What the standard deviations are for
#
# They are those of the posterior, correlations between pixels included. Intervals can be counted against the truth, and
# the draws of whole images in `posterior` answer what single pixels cannot: how bright is the face on average?

# %%
inside = np.abs(truth - mean) <= 1.645 * sd
print(f"90% intervals contain {100 * inside.mean():.0f}% of the pixels")
face = idata["posterior"]["u"].values[..., 16:28, 24:34].mean(axis=(-2, -1))
print(f"brightness of the face {face.mean():.2f} +- {face.std():.2f}, truth {truth[16:28, 24:34].mean():.2f}")

figure, axes = plt.subplots(2, 3, figsize=(10, 5.6), layout="constrained")
panels = axes.ravel()
pmep.plots.plot_image(idata, "u", truth=truth, data="y", ax=panels[:4])
panels[4].imshow(min(stopped, key=error), cmap="gray", vmin=truth.min(), vmax=truth.max())
panels[4].set_title("Richardson-Lucy")
for panel in panels[:5]:
    panel.set(xticks=[], yticks=[])
pmep.plots.plot_coverage(idata, truth, "u", ax=panels[5])
panels[5].set_title("pixels")
figure.savefig("poisson_deblurring.png", dpi=110)
print("saved poisson_deblurring.png")
