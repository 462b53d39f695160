"""ONNX graphs, run by onnxruntime on one thread: a batch of records in, a batch of numbers out."""

from dataclasses import dataclass
from os import devnull
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError

BATCH = 1024
"""Records at once, which bounds memory."""
NOWHERE = f"{devnull}/none"
"""Where graphs may look for files of weights: they have all of theirs within, and read no other file."""


@dataclass(frozen=True, eq=False)
class Graph:
    """One graph with one input and one output."""

    session: Any
    input: str

    @staticmethod
    def of(content: bytes, where: str, name: str) -> "Graph":
        """From the bytes of an .onnx file."""
        try:
            import onnxruntime
        except ImportError as error:
            raise FedfluxError("bundles need onnxruntime: pip install 'fedflux[serve]'") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # batches differ in size: an arena would keep the largest of each
        options.log_severity_level = 4
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", NOWHERE)
        try:
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises exceptions of its own, one a status
            raise FedfluxError(
                f"{where}: {name}.onnx is no graph that onnxruntime runs; make the bundle again"
            ) from error
        return Graph(session, session.get_inputs()[0].name)

    def __call__(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """What the graph makes of a batch."""
        parts = [self.session.run(None, {self.input: x[begin : begin + BATCH]})[0] for begin in range(0, len(x), BATCH)]
        return np.asarray(parts[0] if len(parts) == 1 else np.concatenate(parts))
