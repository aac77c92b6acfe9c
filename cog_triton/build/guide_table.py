"""Flags of older guides that TensorRT-LLM 1.1 does not have any more, and what replaced them.

By program: `trtllm-build` (0.9 to 0.12), `convert_checkpoint.py` (0.10), and of 0.7 `build.py` and
`hf_gpt_convert.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

# What each old flag does now: a setting ("=path"), a flag of the same program ("->flag"), nothing
# because it is decided elsewhere ("note: …"), or an error ("refuse: …").
_NOWHERE = "note: the build chooses its own directories"
_TRTLLM_BUILD = {
    "checkpoint_dir": _NOWHERE,
    "output_dir": _NOWHERE,
    "tp_size": "=engine.tensor_parallel_size",
    "pp_size": "=engine.pipeline_parallel_size",
    "use_custom_all_reduce": "refuse: removed without replacement; leave it out",
    "multi_block_mode": "=tensorrt.multi_block_mode",
    "enable_xqa": "refuse: removed, it is always on; leave it out",
    "attention_qk_half_accumulation": "refuse: removed without replacement; leave it out",
    "lookup_plugin": "refuse: removed without replacement; leave it out",
    "use_context_fmha_for_generation": "refuse: removed without replacement; leave it out",
    "context_fmha_fp32_acc": "=tensorrt.enable_context_fmha_fp32_acc",
    "auto_parallel": "refuse: removed; set engine.tensor_parallel_size",
    "gpus_per_node": "refuse: it belonged to auto_parallel, which was removed; leave it out",
    "cluster_key": "refuse: it belonged to auto_parallel, which was removed; leave it out",
}
_CONVERT = {
    "output_dir": _NOWHERE,
    "model_type": "note: the family comes from the checkpoint's config.json",
}
_BUILD_PY = {
    "model_dir": _NOWHERE,
    "output_dir": _NOWHERE,
    "dtype": "=engine.dtype",
    "world_size": "=engine.tensor_parallel_size",
    "use_inflight_batching": "note: in-flight batching is what every engine is built for",
    "use_gpt_attention_plugin": "->gpt_attention_plugin",
    "use_gemm_plugin": "->gemm_plugin",
    "use_layernorm_plugin": "note: the plugin is gone since 0.8, TensorRT fuses the layer itself",
    "hidden_act": "note: it comes from the checkpoint's config.json",
    "parallel_build": "note: all ranks are built at once (build.workers)",
}
_HF_GPT_CONVERT = {
    "p": "note: the number of processes is build.workers, by default one for each rank",
    "i": "=model",
    "in-file": "=model",
    "o": _NOWHERE,
    "out-dir": _NOWHERE,
    "tensor-parallelism": "=engine.tensor_parallel_size",
    "storage-type": "=engine.dtype",
}
OLD_FLAGS: Mapping[str, Mapping[str, str]] = {
    "trtllm-build": _TRTLLM_BUILD,
    "convert_checkpoint.py": _CONVERT,
    "build.py": {**_TRTLLM_BUILD, **_BUILD_PY},
    "hf_gpt_convert.py": _HF_GPT_CONVERT,
}
