"""Model families: which conversion script makes a TensorRT-LLM checkpoint of an architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cog_triton.errors import UnsupportedModel

Script = Literal["llama", "phi", "gpt", "qwen"]


@dataclass(frozen=True)
class Family:
    """A family by name, and the directory of its convert_checkpoint.py below models/core."""

    name: str
    script: Script


LLAMA, MISTRAL = Family("llama", "llama"), Family("mistral", "llama")
PHI, GPT, QWEN = Family("phi", "phi"), Family("gpt", "gpt"), Family("qwen", "qwen")

# Architectures of a Hugging Face config.json. For phi the script has a list of its own; for gpt
# they are those of its --gpt_variant that exist under Hugging Face.
ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "MixtralForCausalLM": MISTRAL,
    "PhiForCausalLM": PHI,
    "Phi3ForCausalLM": PHI,
    "Phi3VForCausalLM": PHI,
    "Phi3SmallForCausalLM": PHI,
    "PhiMoEForCausalLM": PHI,
    "Phi4MMForCausalLM": PHI,
    "GPT2LMHeadModel": GPT,
    "GPTBigCodeForCausalLM": GPT,
    "Starcoder2ForCausalLM": GPT,
    "NemotronForCausalLM": GPT,
    "Qwen2ForCausalLM": QWEN,
}


def family_of(architecture: str) -> Family:
    """The family; raises UnsupportedModel naming those that there are."""
    family = ARCHITECTURES.get(architecture)
    if family is None:
        raise UnsupportedModel(
            f"no engine can be built of the architecture {architecture or '(none named)'}; "
            f"architectures that can: {', '.join(ARCHITECTURES)}"
        )
    return family
