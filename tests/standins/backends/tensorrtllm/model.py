"""A stand-in for Triton's C++ backend `tensorrtllm` 1.1, as a Python-based backend.

It holds its model config and every request against the contract, not against the config that
it was given, and answers with the tokens of the toy engine. As in the C++ backend (its
model_instance_state.cc): streaming answers hold new ids only, `num_output_tokens` counts one
response, the end id is left out, so that an answer which it ends closes with an empty response,
the final flag is on the last response with data, and an error is the text of an exception.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# Triton's stub ignores PYTHONPATH by itself.
sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]

import tensorrt_llm  # noqa: E402
from tensorrt_llm.llmapi import SamplingParams  # noqa: E402
from tensorrt_llm.toy_engine import toy_tokens  # noqa: E402

# This file is copied into Triton's backend directory; the package beside it is not.
TESTS = Path(tensorrt_llm.__file__).resolve().parents[2]
CONTRACT = TESTS / "data" / "contracts" / "tensorrt_llm_model.json"
NUMPY_TYPES = {
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT64": np.uint64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_BOOL": np.bool_,
    "TYPE_STRING": np.object_,
}
TOKEN_INTERVAL_S = 0.002


@dataclass(eq=False)
class Running:
    """One request: its toy tokens, and how many of them have been sent."""

    request_id: str
    sender: Any
    prompt: list[int]
    ids: list[int]
    reason: Any
    flags: dict[str, bool]
    num_sent: int = 0
    log_probs: list[float] = field(default_factory=list)


class TritonPythonModel:
    """The backend's side of one model."""

    def initialize(self, args: dict[str, str]) -> None:
        contract = json.loads(CONTRACT.read_text(encoding="utf-8"))
        config = json.loads(args["model_config"])
        self._parameters = check_config(config, contract)
        self._inputs = {entry["name"]: entry for entry in contract["input"]}
        self._types = {entry["name"]: entry["data_type"] for entry in config["input"]}
        self._vocab_size = read_engine(Path(self._parameters["gpt_model_path"]), config)
        self._check_period_s = int(self._parameters["cancellation_check_period_ms"]) / 1000
        self._lock = threading.Lock()
        self._running: list[Running] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._enqueue(request, sender)
            except Exception as err:
                error = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(err)))
                sender.send(error, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self) -> None:
        self._closing = True
        self._thread.join()

    def _enqueue(self, request: Any, sender: Any) -> None:
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        check_tensors(arrays, self._inputs, self._types)
        request_id = request.request_id()
        if "stop" in arrays and arrays["stop"].any():
            self._stop(request_id, sender)
            return
        prompt = arrays["input_ids"][0, : int(arrays["input_lengths"].flat[0])].tolist()
        params = sampling(arrays)
        ids, reason = toy_tokens(prompt, params, self._vocab_size)
        flags = {
            name: bool(arrays[name].flat[0]) if name in arrays else False
            for name in (
                "streaming",
                "exclude_input_in_output",
                "return_log_probs",
                "return_num_input_tokens",
                "return_num_output_tokens",
            )
        }
        if "exclude_input_in_output" not in arrays:
            given = self._parameters.get("exclude_input_in_output", "false")
            flags["exclude_input_in_output"] = given == "true"
        with self._lock:
            self._running.append(Running(request_id, sender, prompt, ids, reason, flags))

    def _stop(self, request_id: str, sender: Any) -> None:
        if not request_id:
            raise ValueError("Trying to stop a request but request ID is not provided")
        with self._lock:
            for running in self._running:
                if running.request_id == request_id:
                    running.ids = running.ids[: running.num_sent]
                    running.reason = "cancelled"
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _run(self) -> None:
        checked_at = time.monotonic()
        while not self._closing:
            time.sleep(TOKEN_INTERVAL_S)
            look = time.monotonic() - checked_at >= self._check_period_s
            checked_at = time.monotonic() if look else checked_at
            with self._lock:
                for running in list(self._running):
                    if look and running.sender.is_cancelled():
                        self._running.remove(running)
                        running.sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    elif self._step(running):
                        self._running.remove(running)

    def _step(self, running: Running) -> bool:
        """Sends the next token; True if it was the last response."""
        streaming = running.flags["streaming"]
        start = running.num_sent if streaming else 0
        running.num_sent += 1
        by_end_id = running.reason in ("stop", "cancelled")
        finished = running.num_sent >= len(running.ids) + by_end_id
        if streaming or finished:
            end = running.num_sent if streaming else len(running.ids)
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if finished else 0
            running.sender.send(response(running, running.ids[start:end]), flags=flags)
        return finished


def check_config(config: dict[str, Any], contract: dict[str, Any]) -> dict[str, str]:
    """The parameters of a model config that the backend would load; raises if it would not."""
    parameters = {key: entry["string_value"] for key, entry in config["parameters"].items()}
    unknown = sorted(parameters.keys() - contract["parameters"].keys())
    missing = sorted(set(contract["keys_that_must_exist"]) - parameters.keys())
    unfilled = sorted(
        key
        for key, value in parameters.items()
        if value.startswith("${") and key not in contract["keys_that_must_exist"]
    )
    if unknown or missing or unfilled:
        raise ValueError(f"parameters: unknown {unknown}, missing {missing}, unfilled {unfilled}")
    by_key = {v["parameter_key"]: v for v in contract["template_variables"] if "parameter_key" in v}
    for key, value in parameters.items():
        if key in by_key and not value.startswith("${"):
            check_parameter(by_key[key], value, contract["boolean_words"])
    for kind in ("input", "output"):
        names = [entry["name"] for entry in config[kind]]
        if names != [entry["name"] for entry in contract[kind]]:
            raise ValueError(f"{kind}s are not those of the contract: {names}")
    if config["backend"] != "tensorrtllm":
        raise ValueError(f"backend is {config['backend']}")
    if not config["model_transaction_policy"]["decoupled"]:
        raise ValueError("streaming needs a decoupled model")
    return parameters


def check_parameter(variable: dict[str, Any], value: str, words: dict[str, list[str]]) -> None:
    """Raises for a value that the backend cannot convert (it would warn and take its default)."""
    kind = variable["value_type"]
    fits = True
    if kind == "enum":
        fits = value in variable["choices"]
    elif kind == "bool":
        fits = value in words["true"] + words["false"]
    elif kind == "int":
        fits = value.isdigit()
    elif kind.startswith("float"):
        fits = 0 <= float(value) <= 1
    if not fits:
        raise ValueError(f"{variable['parameter_key']} is {value!r}, expected {kind}")


def read_engine(path: Path, config: dict[str, Any]) -> int:
    """The vocabulary of the engine directory; raises as the backend does without a good one."""
    try:
        engine = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except OSError as err:
        raise ValueError(
            "Both encoder and decoder model paths are empty: "
            f"{config['parameters']['gpt_model_path']['string_value']} is no engine directory"
        ) from err
    for rank in range(engine["pretrained_config"]["mapping"]["world_size"]):
        if not (path / f"rank{rank}.engine").is_file():
            raise ValueError(f"{path} has no rank{rank}.engine")
    return int(engine["pretrained_config"]["vocab_size"])


def check_tensors(
    arrays: dict[str, Any], inputs: dict[str, dict[str, Any]], types: dict[str, str]
) -> None:
    """Names, types, shapes (batch dimension first) and what is required, as the contract has it."""
    for name, entry in inputs.items():
        if not entry.get("optional") and name not in arrays:
            raise ValueError(f"the required input {name} is missing")
    for name, array in arrays.items():
        if name not in inputs:
            raise ValueError(f"{name} is no input of the contract")
        entry = inputs[name]
        wanted = types[name] if entry["data_type"].startswith("${") else entry["data_type"]
        if array.dtype != NUMPY_TYPES[wanted]:
            raise ValueError(f"{name} is {array.dtype}, expected {wanted}")
        dims = [array.shape[0], *entry.get("reshape", entry["dims"])]
        if len(array.shape) != len(dims) or any(
            size not in (-1, have) for size, have in zip(dims, array.shape, strict=True)
        ):
            raise ValueError(f"{name} has shape {list(array.shape)}, expected {dims}")


def sampling(arrays: dict[str, Any]) -> SamplingParams:
    """The toy engine's parameters from the slot's tensors."""

    def value(name: str, default: Any = None) -> Any:
        return arrays[name].reshape(-1)[0].item() if name in arrays else default

    greedy = value("runtime_top_k", 0) in (0, 1) and not value("runtime_top_p", 0.0)
    greedy = greedy or value("runtime_top_k", 0) == 1
    return SamplingParams(
        max_tokens=value("request_output_len"),
        min_tokens=value("min_tokens"),
        top_k=1 if greedy else value("runtime_top_k", 0),
        top_p=None if greedy else value("runtime_top_p", 1.0),
        seed=value("seed"),
        ignore_eos=value("end_id") is None,
        include_stop_str_in_output=True,
        stop_token_ids=single_words(arrays.get("stop_words_list")),
        bad_token_ids=single_words(arrays.get("bad_words_list")),
    )


def single_words(array: Any) -> list[int]:
    """The one-token words of a `[1, 2, n]` list."""
    if array is None:
        return []
    ids, ends = array[0].tolist()
    starts = [0, *ends]
    return [
        ids[start]
        for start, end in zip(starts, ends, strict=False)
        if end >= 0 and end - start == 1
    ]


def response(running: Running, ids: list[int]) -> Any:
    """The tensors of one response, in the shapes that the contract gives for the wire."""
    flags = running.flags
    out = ids
    if not flags["streaming"] and not flags["exclude_input_in_output"]:
        out = running.prompt + ids
    tensors = {
        "output_ids": np.array([[out]], np.int32),
        "sequence_length": np.array([[len(out)]], np.int32),
    }
    if flags["return_log_probs"]:
        running.log_probs += [-0.5] * len(ids)
        tensors["cum_log_probs"] = np.array([[sum(running.log_probs)]], np.float32)
        tensors["output_log_probs"] = np.array([[running.log_probs]], np.float32)
    if flags["return_num_input_tokens"]:
        tensors["num_input_tokens"] = np.array([[len(running.prompt)]], np.int32)
    if flags["return_num_output_tokens"]:
        tensors["num_output_tokens"] = np.array([[len(out)]], np.int32)
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, value) for name, value in tensors.items()]
    )
