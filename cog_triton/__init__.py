"""cog-triton: a Cog predictor that serves language models on Triton and TensorRT-LLM."""

__version__ = "0.1.0"
