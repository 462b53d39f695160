"""Life after training: a bundle of what was trained, and a service, a client and a page that place with it.

Only `making` and `onnx_models` need torch; whatever reads a bundle runs on numpy, scipy and onnxruntime.
"""
