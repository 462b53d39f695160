"""Predictions by a standard client of the Open Inference Protocol: `pip install 'tritonclient[http]'`."""

import sys

import numpy as np
import tritonclient.http as protocol
from sklearn.datasets import load_digits


def main(host: str = "127.0.0.1:8080", key: str | None = None) -> None:
    """Ask every cluster's models about the same digits."""
    digits = load_digits()
    x = np.rint(digits.images[:32] * (255 / 16)).astype(np.uint8)[:, None]
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    client = protocol.InferenceServerClient(host)
    print(client.get_server_metadata(headers=dict(headers)))
    given = protocol.InferInput("x", list(x.shape), "UINT8")
    given.set_data_from_numpy(x)
    cluster = 0
    while client.is_model_ready(f"cluster-{cluster}", headers=dict(headers)):
        answer = client.infer(f"cluster-{cluster}", [given], headers=dict(headers))
        right = (answer.as_numpy("class") == digits.target[:32]).mean()
        print(f"cluster-{cluster}: {100 * right:.0f} % right")
        cluster += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
