"""Template values of the four text models that stand around `tensorrt_llm`."""

from __future__ import annotations

from pathlib import Path

TEXT_MODELS = ("preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls")


def text_model_values(
    tokenizer_dir: Path,
    max_batch_size: int,
    *,
    decoupled: bool = True,
    logits_datatype: str = "TYPE_FP32",
    prompt_embedding_table_data_type: str = "TYPE_FP16",
    accumulate_tokens: bool = False,
    skip_special_tokens: bool = True,
    add_special_tokens: bool = True,
) -> dict[str, dict[str, object]]:
    """Values of the template variables by model, for `model_repository.build`.

    `max_batch_size`, `decoupled` and the data types are those of `tensorrt_llm`. One
    instance of each model is enough: BLS runs all its requests in one, and several of
    postprocessing would let the pieces of a stream wait for each other.
    """
    batch: dict[str, object] = {"triton_max_batch_size": max_batch_size}
    return {
        "preprocessing": {
            **batch,
            "tokenizer_dir": tokenizer_dir,
            "preprocessing_instance_count": 1,
            "add_special_tokens": add_special_tokens,
        },
        "postprocessing": {
            **batch,
            "tokenizer_dir": tokenizer_dir,
            "postprocessing_instance_count": 1,
            "skip_special_tokens": skip_special_tokens,
        },
        "ensemble": {**batch, "logits_datatype": logits_datatype},
        "tensorrt_llm_bls": {
            **batch,
            "decoupled_mode": decoupled,
            "bls_instance_count": 1,
            "logits_datatype": logits_datatype,
            "prompt_embedding_table_data_type": prompt_embedding_table_data_type,
            "accumulate_tokens": accumulate_tokens,
            "tensorrt_llm_model_name": "tensorrt_llm",
        },
    }
