"""The public names of the LLM API."""

from ..contract import (
    CompletionOutput,
    GuidedDecodingParams,
    KvCacheConfig,
    LoraConfig,
    PeftCacheConfig,
    SamplingParams,
    SchedulerConfig,
)
from ..llm import LLM, RequestOutput

__all__ = [
    "LLM",
    "CompletionOutput",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "LoraConfig",
    "PeftCacheConfig",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
]
