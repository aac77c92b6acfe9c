"""Every error the product can report: one tree, split by whose fault it is.

`E1xxx` is the caller's input, `E2xxx` is Triton or the engine, `E3xxx` is the
deployment (settings, artifacts, model repository, machine). Each class carries
a stable code, a sentence that says what it means and one that says what to do;
`table()` is what the README prints. Codes E1000 to E1102 and E2100 to E2104
are the ones that users of cog-triton already match on.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple


class CogTritonError(Exception):
    """Root of the tree; `str()` of any of them is `CODE Name: detail (what to do)`."""

    code: ClassVar[str] = ""
    meaning: ClassVar[str] = ""
    remedy: ClassVar[str] = ""

    def __init__(self, detail: str = "") -> None:
        self.detail = detail or self.meaning
        super().__init__(self.detail)

    def __str__(self) -> str:
        detail = self.detail.rstrip()
        stop = "" if detail.endswith((".", "!", "?", ":")) else "."
        return f"{self.code} {type(self).__name__}: {detail}{stop} {self.remedy}"


class UserError(CogTritonError):
    code = "E1000"
    meaning = "The input of the prediction cannot be used."
    remedy = "Correct the input and send the prediction again."


class PromptRequired(UserError):
    code = "E1001"
    meaning = "Neither prompt nor messages holds any text."
    remedy = "Send a non-empty prompt, or messages with at least one entry."


class PromptTooLong(UserError):
    code = "E1002"
    meaning = "The prompt fills the whole context of the model."
    remedy = "Shorten the prompt, or deploy with a larger max_seq_len."


class BadPromptTemplate(UserError):
    code = "E1003"
    meaning = "prompt_template has no {prompt} in it."
    remedy = "Put {prompt} where the prompt belongs; {system_prompt} is optional."


class PromptTemplateError(UserError):
    code = "E1004"
    meaning = "The prompt or chat template could not be rendered."
    remedy = "Use only {prompt} and {system_prompt}, and write a literal brace twice."


class InvalidArgumentMinTokens(UserError):
    code = "E1101"
    meaning = "min_tokens is out of range, above max_tokens, or given under two names."
    remedy = "Send min_tokens alone, between 0 and max_tokens."


class InvalidArgumentMaxTokens(UserError):
    code = "E1102"
    meaning = "max_tokens is out of range, or given under two names."
    remedy = "Send max_tokens alone, 1 or more."


class InvalidArgument(UserError):
    code = "E1103"
    meaning = "A sampling input is out of range."
    remedy = "Use a value in the range that the input's description gives."


class InvalidMessages(UserError):
    code = "E1104"
    meaning = "messages is not a list of objects with a known role and text content."
    remedy = 'Send entries like {"role": "user", "content": "…"}; roles: system, user, assistant.'


class UnsupportedInput(UserError):
    code = "E1105"
    meaning = "The runtime that serves this model cannot honour the input."
    remedy = "Leave the input out, or deploy on a runtime that supports it."


class TritonError(CogTritonError):
    code = "E2100"
    meaning = "Triton answered with an error that has no code of its own."
    remedy = "Try again; if it repeats, read triton.log in the run directory."


class TritonUnknownError(TritonError):
    meaning = "Triton answered with an error that has no code of its own."


class TritonTimeout(TritonError):
    code = "E2101"
    meaning = "Triton accepted the request but sent nothing within the deadline."
    remedy = "Try again; if it repeats, raise client.first_token_timeout_s or token_timeout_s."


class TritonTokenizerError(TritonError):
    code = "E2102"
    meaning = "The tokenizer failed on the prompt or on the generated tokens."
    remedy = "Check that tokenizer.json belongs to this model."


class TritonMalformedJSON(TritonError):
    code = "E2103"
    meaning = "An event of the stream is not valid JSON."
    remedy = "Try again; if it repeats, something between predictor and Triton alters the stream."


class TritonMalformedEvent(TritonError):
    code = "E2104"
    meaning = "An event of the stream lacks the tensors that it must carry."
    remedy = "Check that the tensorrt_llm model of the repository is the one of this release."


class TritonUnavailable(TritonError):
    code = "E2105"
    meaning = "Triton could not be reached or closed the connection."
    remedy = "Wait until the health check passes and send the prediction again."


class TritonIncompleteStream(TritonError):
    code = "E2106"
    meaning = "The stream ended before its last token, or lost tokens on the way."
    remedy = "Send the prediction again; what was streamed so far is not the whole answer."


class TritonDied(TritonError):
    code = "E2107"
    meaning = "The Triton server died or hung during the prediction, and is being restarted."
    remedy = "Send the prediction again; what was streamed so far is not the whole answer."


class TritonRestarting(TritonError):
    code = "E2108"
    meaning = "The Triton server is being restarted, and was not ready in time."
    remedy = "Wait until the health check passes and send the prediction again."


class TritonGaveUp(TritonError):
    code = "E2109"
    meaning = "The Triton server failed too often and is not restarted any more."
    remedy = "Correct what the message names and start the deployment again."


class DeploymentError(CogTritonError):
    code = "E3000"
    meaning = "The deployment cannot start."
    remedy = "Read the lines above, correct the deployment and start again."


class SettingsError(DeploymentError):
    code = "E3001"
    meaning = "The settings file or a COG_TRITON_ variable is wrong."
    remedy = "Correct it; `python -m cog_triton plan` checks without starting anything."


class ArtifactUnavailable(DeploymentError):
    code = "E3002"
    meaning = "A model artifact could not be fetched."
    remedy = "Check the source, the network and the disk space, then start again."


class ArtifactCorrupt(DeploymentError):
    code = "E3003"
    meaning = "A model artifact is not what it should be."
    remedy = "Delete the named file or directory and start again."


class UnsupportedModel(DeploymentError):
    code = "E3004"
    meaning = "No runtime on this machine can serve the model."
    remedy = "Choose another model, another runtime, or another machine."


class RuntimeUnavailable(DeploymentError):
    code = "E3005"
    meaning = "A program or library that the runtime needs is not installed."
    remedy = "Install what the message names and start again."


class ModelRepositoryError(DeploymentError):
    code = "E3006"
    meaning = "The Triton model repository could not be filled."
    remedy = "Correct the named key or template."


class PortInUse(DeploymentError):
    code = "E3007"
    meaning = "A port that Triton needs is taken."
    remedy = "Stop the program that holds it, or set another port under triton."


class ServerDied(DeploymentError):
    code = "E3008"
    meaning = "The Triton server process ended."
    remedy = "The last lines of its log say why."


class ServerStartTimeout(DeploymentError):
    code = "E3009"
    meaning = "The Triton server did not become ready in time."
    remedy = "For a large model raise triton.start_timeout_s; the log lines say how far it got."


class EngineIncompatible(DeploymentError):
    code = "E3010"
    meaning = "The compiled engine does not fit this machine or these settings."
    remedy = "Build it again with scripts/build_engine.py on this machine, or change what is named."


class EngineBuildFailed(DeploymentError):
    code = "E3011"
    meaning = "A step of the engine build failed."
    remedy = "The lines that the step printed say why; nothing of the build was kept."


class Row(NamedTuple):
    """One line of the public error table."""

    code: str
    name: str
    meaning: str
    remedy: str


def table() -> list[Row]:
    """All errors that can reach a user, by code; the README's table is this one."""
    rows: list[Row] = []
    pending: list[type[CogTritonError]] = [CogTritonError]
    while pending:
        cls = pending.pop()
        pending.extend(cls.__subclasses__())
        if cls not in (CogTritonError, TritonError):
            rows.append(Row(cls.code, cls.__name__, cls.meaning, cls.remedy))
    return sorted(rows)
