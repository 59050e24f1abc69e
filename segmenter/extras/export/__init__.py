"""Models for other runtimes: ONNX and SavedModel, each checked with the runtime itself."""
