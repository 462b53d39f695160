# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A clinic's own images
#
# Six clinics keep scans in folders. Three of their scanners write negatives, patients have several
# scans, and the clinics want to protect their patients. Digits stand for the scans here, so that
# everybody can run this; put your own folder in their place.
#
# ## Folders
#
# `scans/CLINIC/CLASS/*.png` is all that is needed. `groups.csv` beside the folders says whose scans
# belong together: here three in a row are of one patient.

# %%
import csv
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

import fedflux

CLINICS = ("Aarau", "Bern", "Chur", "Davos", "Erlach", "Flims")
place = Path(mkdtemp())
x, y = shuffle(*load_digits(return_X_y=True), random_state=0)
scans = (np.clip(x.reshape(-1, 8, 8), 0, 16) * 15.9).astype(np.uint8)

rows = [("file", "group")]
for k in range(1620):
    clinic, patient = CLINICS[k % 6], f"patient {k // 18}"
    image = 255 - scans[k] if CLINICS.index(clinic) >= 3 else scans[k]
    path = place / "scans" / clinic / f"finding {y[k]}" / f"{k}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).resize((16, 16)).save(path)
    rows.append((path.relative_to(place / "scans").as_posix(), patient))
with (place / "scans" / "groups.csv").open("w", newline="") as file:
    csv.writer(file).writerows(rows)

# %% [markdown]
# ## A federation
#
# Clients and classes are called as the folders are. A fifth of each client's *patients* becomes its test
# part: a patient is never in two parts.

# %%
federation = fedflux.Federation.from_folder(place / "scans")
print(federation)
print(federation.names, federation.class_names[:3], "…")

# %% [markdown]
# ## Training
#
# Images of 12 pixels and more get a LeNet-5 by default. For anything else give `model=` a network of
# your own, with a method `encode`.

# %%
settings = {"rounds": 12, "lr": 0.05, "batch_size": 16, "progress": False}
result = fedflux.run(federation, **settings, out=place / "run")
print(result.clients.round(1))
print(result["verdict"])

# %% [markdown]
# Which clinics have scanners alike was found, not told. `result.report()` makes an HTML page of it;
# images of your own data are in it only with `samples="keep"`.

# %%
assert result["clusters_found"] == 2
assert result.clients["cluster"].groupby(lambda name: CLINICS.index(name) < 3).nunique().eq(1).all()
print(result.report())

# %% [markdown]
# ## A new clinic, without labels
#
# It is placed by its scans alone, and its predictions come by file.

# %%
run = fedflux.load(place / "run")
new = np.stack([np.asarray(Image.fromarray(255 - scan).resize((16, 16))) for scan in scans[1620:1680]])
placement = run.assign(new)
likes = [name for name, cluster in run.clusters.items() if cluster == placement.cluster[0]]
answers = run.predict(new).argmax(axis=1)
print(f"like {', '.join(likes)}: {placement.confidence[0]:.0%} sure, novel: {placement.novel[0]}")
print(f"{(answers == y[1620:1680]).mean():.0%} of its scans are named rightly")

# %% [markdown]
# ## Protecting patients
#
# `epsilon` makes descriptors differentially private; `privacy_unit="group"` protects a whole patient,
# however many scans there are of one. It covers descriptors, not the training of models:
# [what is promised](../privacy.md#what-is-promised-and-what-is-not).
#
# Noise hides patients among each other, so privacy needs many of them. Here are 90 a clinic, far
# too few for a strict ε. This is what it costs:

# %%
for epsilon in (10.0, 1.0, 0.1):
    private = fedflux.run(federation, **settings, epsilon=epsilon, privacy_unit="group")
    print(f"ε = {private['epsilon']:g}: {private['clusters_found']} clusters, {private.known:.1f} % right")

# %% [markdown]
# With too much noise all clients end in one cluster, which is FedAvg: privacy costs power, not
# validity. [Measured](../privacy.md#measured) on MNIST with 4,800 images a client, ε = 1 costs nothing.
#
# **Next:** [from simulation to serving](from-simulation-to-serving.md).
