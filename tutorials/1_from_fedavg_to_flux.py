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
# # From FedAvg to FLUX
#
# Ten clients write digits, and turn and tint them in ways of their own. We train one model for all of
# them, look at who is served badly, and let FLUX find out who belongs together. A minute, no data to
# fetch.

# %%
import fedflux

SETTING = {"dataset": "digits", "shift": "px", "level": 6, "progress": False}
"""Digits of scikit-learn; a shift of P(X): rotations and colours."""

# %% [markdown]
# ## One model for all
#
# FedAvg is the mean of what clients train, round by round. `known` is the accuracy of a client's test
# part.

# %%
fedavg = fedflux.run(**SETTING, algorithm="fedavg")
print(fedavg)
print(fedavg.clients[["known", "truth"]].round(1))

# %% [markdown]
# The mean hides how unequal clients are: the worst is far below it. `truth` is the pattern that a client
# applies to its images. In a simulation we know it; FLUX is not told.
#
# ## Everybody alone
#
# The other extreme: nobody sends anything. Each client has some 110 images to train with.

# %%
local = fedflux.run(**SETTING, algorithm="local")
print(local)

# %% [markdown]
# ## FLUX
#
# Three rounds of FedAvg, then every client sends its descriptor, clusters are found, and each trains on.

# %%
flux = fedflux.run(**SETTING, algorithm="flux")
print(flux)
print(flux.clients[["cluster", "known", "test", "truth"]].round(1))

# %% [markdown]
# `cluster` and `truth` agree up to the numbering: `pairs_right` is the share of pairs of clients that are
# rightly together or apart. `test` is the accuracy where a client is placed by its *features* alone,
# as if it had come today without labels.

# %%
print(f"{flux['clusters_found']} clusters found, {flux['clusters_true']} true; pairs right {flux['pairs_right']:.3f}")
print(flux["verdict"])
assert flux.known > fedavg.known

# %% [markdown]
# ## Why do clusters differ?
#
# FLUX says in which of the four ways two clusters differ, and in which classes.

# %%
for pair in flux["why"][:3]:
    print(pair["words"])

# %% [markdown]
# ## Five clients that come later
#
# `unseen=5` holds five clients out of training. Afterwards each is asked without labels.

# %%
later = fedflux.run(**SETTING, algorithm="flux", unseen=5)
print(f"unseen clients: {later.unseen:.1f} % right, members {later.known:.1f} %")
for one in later["unseen_placements"]:
    print(f"client {one['client']}: cluster {one['cluster']}, {one['confidence']:.0%} sure, novel: {one['novel']}")

# %% [markdown]
# ## Side by side
#
# A comparison runs every method on the same clients, data order and budget, and gives a table with means
# and deviations over seeds.

# %%
table = fedflux.compare(dataset="digits", shifts="px,pygx", levels="4", seeds="42,43", progress=False)
print(table[["shift", "algorithm", "known_mean", "known_std", "test_mean"]].round(1).to_string(index=False))

# %% [markdown]
# Under P(Y|X) there is no `test`: the same features carry other labels, so features cannot choose. See
# [placement](../concepts/placement.md#where-features-cannot-tell).
#
# **Next:** [a clinic's own images](a-clinics-own-images.md).
