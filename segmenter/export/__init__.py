"""Models for other runtimes: ONNX, SavedModel and LiteRT, each checked with the runtime itself."""
