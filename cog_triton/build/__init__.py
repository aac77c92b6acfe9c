"""From a Hugging Face checkpoint to a compiled TensorRT-LLM engine.

`engine_build.ensure_engine` is the way in; `build_plan.plan_build` says beforehand what it runs.
"""
