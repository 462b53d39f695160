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
# # From simulation to serving
#
# The same federation three times: simulated in this process, deployed with Flower over TLS between
# processes of their own, and served to a client that comes later. It needs the extras
# `pip install 'fedflux[flower,serve]'`; parts whose extra is missing are left out.
#
# ## Simulated

# %%
import json
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import fedflux

place = Path(mkdtemp())
setting = {"dataset": "digits", "shift": "pxgy", "level": 1, "clients": 4, "seed": 18, "rounds": 4}
simulated = fedflux.run(**setting, progress=False, out=place / "simulated")
print(simulated, simulated["assignment"])

# %% [markdown]
# ## Deployed
#
# `loopback` makes a certificate authority and a key for each node, starts a SuperLink and four SuperNodes
# that speak TLS, runs the app, and stops all that it started. On real machines the parts are the
# same, started by hand: [across machines](../deploy.md#3-on-several-machines).
#
# Each node would load data of its own by `data = "own.data:load"`; here each takes the share of the
# digits that it had in the simulation.

# %%
finished = place / "simulated"
if find_spec("flwr"):
    app = Path(fedflux.__file__).parents[2] / "examples" / "flower"  # in a clone of the repository
    config = {**setting, "model": "mlp", "data": "fedflux.deploy.flower.simulated:data", "min-nodes": 4}
    call = [sys.executable, "-m", "fedflux.deploy.flower.loopback", "--app", str(app), "--nodes", "4"]
    call += [word for key, value in config.items() for word in ("--config", f"{key}={json.dumps(value)}")]
    done = subprocess.run([*call, "--out", str(place / "deployment")], capture_output=True, text=True, check=True)
    finished = place / "deployment" / "run"
    deployed = json.loads((finished / "result.json").read_text())
    print(f"deployed: {deployed['known']:.2f} % right, clusters {deployed['assignment']}")
    assert deployed["assignment"] == simulated["assignment"]
    assert abs(deployed["known"] - simulated.known) < 1e-6
else:
    print("Flower is not installed: pip install 'fedflux[flower]'")

# %% [markdown]
# A deployed run *is* a run: the same clusters, the same accuracies, and a folder that everything else
# reads.
#
# ## Handed on
#
# A bundle holds what new clients need: models as ONNX and safetensors, the extractor, class moments,
# scaling, a model card, and a digest of every file.

# %%
bundle = place / "bundle.zip"
if find_spec("onnxruntime") and find_spec("onnx"):
    made = subprocess.run(
        [sys.executable, "-m", "fedflux", "export", str(finished), "--out", str(bundle)],
        capture_output=True,
        text=True,
        check=True,
    )
    print(made.stdout)
else:
    print("bundles need more packages: pip install 'fedflux[serve]'")

# %% [markdown]
# ## Served
#
# The service listens to this machine alone as long as nobody holds a key. Its client describes and scores
# its records itself, sends a number a cluster, and downloads the model that fits.

# %%
if bundle.exists() and find_spec("fastapi") and find_spec("httpx"):
    from fedflux.client import Client

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service = subprocess.Popen(
        [sys.executable, "-m", "fedflux", "serve", str(bundle), "--port", str(port), "--state", str(place / "state")],
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        with np.load(place / "simulated" / "samples.npz") as samples:  # ten images that client 2 holds
            x = samples["image"][samples["client"] == 2].transpose(0, 3, 1, 2)
        with Client(f"http://127.0.0.1:{port}", cache=place / "cache") as client:
            answer = client.assign(x)
            print(f"cluster {answer.cluster}, {answer.confidence:.0%} sure, like nobody: {answer.novel}")
            served = client.predict(x, answer)
        here = fedflux.load(finished).predict(x)
        print(f"largest difference to this process: {np.abs(served - here).max():.1e}")
        assert answer.cluster == simulated["assignment"][2]
        assert np.allclose(served, here, atol=1e-4)
    finally:
        service.terminate()
        service.wait(30)
