"""The template variables of the Triton models: type, default and meaning of each.

Source: the templates of TensorRT-LLM 1.1 (container 25.12). Values are checked against
these tables in `template_values`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class Kind(Enum):
    """What a value must be; the enum's value is how an error message says it."""

    INT = "a whole number"
    FLOAT = "a number"
    BOOL = "true or false"
    ENUM = "one of"
    PATH = "a path"
    INT_LIST = "whole numbers with commas between, semicolons between instances"
    TEXT = "text"


class Need(Enum):
    """What happens to a variable that is given no value."""

    MANDATORY = "mandatory"
    UNSET = "the parameter is left out, so that the backend's own default holds"


@dataclass(frozen=True)
class Variable:
    """One `${name}`: `default` is the text to fill in, or what to do without a value.

    `key` is the config parameter that the variable fills, if it fills one.
    """

    name: str
    kind: Kind
    meaning: str
    default: str | Need = Need.UNSET
    choices: tuple[str, ...] = ()
    key: str = ""
    minimum: float = 0
    maximum: float = math.inf

    @property
    def expected(self) -> str:
        """What a value must be, for a message."""
        if self.kind is Kind.ENUM:
            return f"one of {', '.join(self.choices)}"
        if self.kind not in (Kind.INT, Kind.FLOAT):
            return str(self.kind.value)
        upper = f" to {self.maximum:g}" if self.maximum < math.inf else " or more"
        return f"{self.kind.value}, {self.minimum:g}{upper}"


def _optional(name: str, kind: Kind, meaning: str, key: str = "", maximum: float = 1) -> Variable:
    """A parameter that is left out when unset; every such float is a share, 0 to 1."""
    bound = maximum if kind is Kind.FLOAT else math.inf
    return Variable(name, kind, meaning, Need.UNSET, (), key or name, 0, bound)


def _choice(name: str, meaning: str, choices: str, default: str | Need, key: str = "") -> Variable:
    key = key or (name if default is Need.UNSET else "")
    return Variable(name, Kind.ENUM, meaning, default, tuple(choices.split()), key)


_MUST, _UNSET = Need.MANDATORY, Need.UNSET
_FLOAT_TYPES = "TYPE_FP16 TYPE_BF16 TYPE_FP32"
_BATCHING = "inflight_fused_batching inflight_batching V1 v1"
_DECODING = "top_k top_p top_k_top_p beam_search medusa redrafter lookahead eagle"

# The four of the first group that are no MUST are mandatory in the template too, but
# guides written before they existed leave them out: they get the name or type that
# was fixed then.
TENSORRT_LLM = (
    _choice("triton_backend", "backend of the model", "tensorrtllm python", "tensorrtllm"),
    Variable("triton_max_batch_size", Kind.INT, "largest client batch", _MUST, minimum=1),
    Variable("decoupled_mode", Kind.BOOL, "needed for streaming", _MUST),
    Variable("engine_dir", Kind.PATH, "engine directory", _MUST, key="gpt_model_path"),
    _choice("batching_strategy", "in-flight or static", _BATCHING, _MUST, "gpt_model_type"),
    _choice("encoder_input_features_data_type", "input type", _FLOAT_TYPES, "TYPE_FP16"),
    _choice("logits_datatype", "the engine's logits type", "TYPE_FP32 TYPE_FP16", "TYPE_FP32"),
    _choice("prompt_embedding_table_data_type", "input type", _FLOAT_TYPES, "TYPE_FP16"),
    Variable("max_queue_delay_microseconds", Kind.INT, "wait of the dynamic batcher", "0"),
    Variable("max_queue_size", Kind.INT, "bound of the queue, 0 is none", "0"),
    _optional("encoder_engine_dir", Kind.PATH, "encoder engine", "encoder_model_path"),
    _optional("max_beam_width", Kind.INT, "largest beam"),
    _optional("max_tokens_in_paged_kv_cache", Kind.INT, "bound of the KV cache, in tokens"),
    _optional("max_attention_window_size", Kind.INT_LIST, "attention window, in tokens"),
    _optional("sink_token_length", Kind.INT, "tokens always kept in the window"),
    _choice("batch_scheduler_policy", "policy", "guaranteed_no_evict max_utilization", _UNSET),
    _optional("kv_cache_free_gpu_mem_fraction", Kind.FLOAT, "KV cache's share of free memory"),
    _optional("cross_kv_cache_fraction", Kind.FLOAT, "cross attention's share of the KV cache"),
    _optional("kv_cache_host_memory_bytes", Kind.INT, "KV cache on the host"),
    _optional("kv_cache_onboard_blocks", Kind.BOOL, "internal"),
    _optional("exclude_input_in_output", Kind.BOOL, "leave the prompt out of output_ids"),
    _optional("cancellation_check_period_ms", Kind.INT, "how often cancellation is looked at"),
    _optional("stats_check_period_ms", Kind.INT, "how often statistics are taken"),
    _optional("iter_stats_max_iterations", Kind.INT, "iterations of statistics kept"),
    _optional("request_stats_max_iterations", Kind.INT, "iterations of request statistics kept"),
    _optional("enable_kv_cache_reuse", Kind.BOOL, "share KV blocks between requests"),
    _optional("normalize_log_probs", Kind.BOOL, "normalise output_log_probs"),
    _optional("enable_chunked_context", Kind.BOOL, "split long prompts over steps"),
    _optional("gpu_device_ids", Kind.INT_LIST, "GPUs of the model"),
    _optional("participant_ids", Kind.INT_LIST, "MPI ranks of the model"),
    _optional("num_nodes", Kind.INT, "MPI nodes"),
    _optional("lora_cache_optimal_adapter_size", Kind.INT, "size that a LoRA cache page fits"),
    _optional("lora_cache_max_adapter_size", Kind.INT, "smallest LoRA cache page"),
    _optional("lora_cache_gpu_memory_fraction", Kind.FLOAT, "LoRA's share of GPU memory"),
    _optional("lora_cache_host_memory_bytes", Kind.INT, "LoRA cache on the host"),
    _optional("lora_prefetch_dir", Kind.PATH, "LoRA weights to load at start"),
    _choice("decoding_mode", "decoder; default by beam width", _DECODING, _UNSET),
    _optional("lookahead_window_size", Kind.INT, "lookahead decoding; needs all three"),
    _optional("lookahead_ngram_size", Kind.INT, "lookahead decoding; needs all three"),
    _optional("lookahead_verification_set_size", Kind.INT, "lookahead decoding; needs all three"),
    _optional("medusa_choices", Kind.TEXT, "Medusa tree, as lists in braces"),
    _optional("eagle_choices", Kind.TEXT, "Eagle tree, as lists in braces"),
    _optional("gpu_weights_percent", Kind.FLOAT, "share of the weights on the GPU"),
    _optional("enable_context_fmha_fp32_acc", Kind.BOOL, "accumulate in FP32"),
    _optional("multi_block_mode", Kind.BOOL, "multi-block attention"),
    _optional("cuda_graph_mode", Kind.BOOL, "CUDA graphs"),
    _optional("cuda_graph_cache_size", Kind.INT, "CUDA graphs kept"),
    _optional("speculative_decoding_fast_logits", Kind.BOOL, "fast transfer of draft logits"),
    _optional("tokenizer_dir", Kind.PATH, "tokenizer, for guided decoding"),
    _choice("guided_decoding_backend", "turns guided decoding on", "xgrammar", _UNSET),
    _optional("xgrammar_tokenizer_info_path", Kind.PATH, "tokenizer description for xgrammar"),
)

_BATCH_SIZE = Variable("triton_max_batch_size", Kind.INT, "largest client batch", _MUST, minimum=1)
_TOKENIZER = Variable("tokenizer_dir", Kind.PATH, "tokenizer", _MUST, key="tokenizer_dir")
_LOGITS = _choice("logits_datatype", "output type", "TYPE_FP32 TYPE_FP16", "TYPE_FP32")


def _instances(model: str) -> Variable:
    """Mandatory in the templates; guides from before they existed leave them out."""
    return Variable(f"{model}_instance_count", Kind.INT, "instances", "1", minimum=1)


PREPROCESSING = (
    _BATCH_SIZE,
    _TOKENIZER,
    _instances("preprocessing"),
    Variable("max_queue_delay_microseconds", Kind.INT, "wait of the dynamic batcher", "0"),
    Variable("max_queue_size", Kind.INT, "bound of the queue, 0 is none", "0"),
    _optional("add_special_tokens", Kind.BOOL, "let the tokenizer add its special tokens"),
    _optional("multimodal_model_path", Kind.PATH, "vision engine"),
    _optional("engine_dir", Kind.PATH, "engine, for multimodal models", "gpt_model_path"),
    _optional("max_num_images", Kind.INT, "images a request"),
)
POSTPROCESSING = (
    _BATCH_SIZE,
    _TOKENIZER,
    _instances("postprocessing"),
    _optional("skip_special_tokens", Kind.BOOL, "leave special tokens out of the text"),
)
ENSEMBLE = (_BATCH_SIZE, _LOGITS)
TENSORRT_LLM_BLS = (
    _BATCH_SIZE,
    Variable("decoupled_mode", Kind.BOOL, "needed for streaming", _MUST),
    _instances("bls"),
    _LOGITS,
    _choice("prompt_embedding_table_data_type", "input type", _FLOAT_TYPES, "TYPE_FP16"),
    _optional("accumulate_tokens", Kind.BOOL, "each piece of a stream is the text so far"),
    _optional("tensorrt_llm_model_name", Kind.TEXT, "model to call"),
    _optional("tensorrt_llm_draft_model_name", Kind.TEXT, "draft model"),
    _optional("multimodal_encoders_name", Kind.TEXT, "encoder model"),
)

# Parameters that the C++ backend reads without a fallback for a missing key. Unset they
# keep the text `${name}`, which it takes for "off": every deployment that NVIDIA's tool
# filled and that does not use guided decoding runs with exactly that.
KEYS_THAT_MUST_EXIST = ("tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path")

# NVIDIA's tool supplies these to every template that has them.
ALWAYS_SUPPLIED: Mapping[str, str] = MappingProxyType(
    {"max_queue_size": "0", "max_queue_delay_microseconds": "0"}
)

# Variables of older templates that guides still fill: the release that dropped them, and
# what takes their place. Without a replacement the value is simply no longer needed.
RETIRED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "tokenizer_type": ("0.9", ""),
        "max_num_sequences": ("0.8", ""),
        "enable_trt_overlap": ("0.10", ""),
        "visual_model_path": ("0.19", "multimodal_model_path"),
    }
)

_TABLES: Mapping[str, Mapping[str, Variable]] = MappingProxyType(
    {
        model: MappingProxyType({variable.name: variable for variable in table})
        for model, table in {
            "tensorrt_llm": TENSORRT_LLM,
            "preprocessing": PREPROCESSING,
            "postprocessing": POSTPROCESSING,
            "ensemble": ENSEMBLE,
            "tensorrt_llm_bls": TENSORRT_LLM_BLS,
        }.items()
    }
)


def known(model: str) -> Mapping[str, Variable]:
    """The variables of a Triton model by name; empty for a model without a table."""
    return _TABLES.get(model, {})
