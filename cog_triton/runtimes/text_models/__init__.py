"""What stands behind the Triton models preprocessing, postprocessing and tensorrt_llm_bls.

`model.py` of each is a shell around the code here, which knows numpy arrays and token ids;
only `replies` and `relay` know Triton's Python backend.
"""
