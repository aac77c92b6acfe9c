"""Cog's typed inputs, and nothing else: the work is in `cog_triton`.

The cog CLI reads this file without running it: defaults and descriptions must each be one
literal (of two adjoining strings it would show the quotes between them as text).
"""

from typing import Optional

from cog import BasePredictor, ConcatenateIterator, Input, Path, concurrent, streaming

from cog_triton.deployment import Deployment


class Predictor(BasePredictor):
    """Streams text from a language model that runs on Triton Inference Server."""

    async def setup(self, weights: Optional[Path] = None) -> None:
        """Fetch the model, start Triton and prove with a short answer that text streams."""
        self.deployment = await Deployment.start(weights=str(weights) if weights else None)

    async def healthcheck(self) -> bool:
        """Whether Triton was alive and ready when it was last looked at."""
        return self.deployment.healthy

    @streaming
    @concurrent(max=96)
    async def predict(
        self,
        prompt: str = Input(
            default="",
            description="Text to answer; leave it empty when messages are given.",
        ),
        messages: Optional[list[dict]] = Input(  # type: ignore[type-arg]
            default=None,
            description="Conversation instead of a prompt: objects with role (system, user, assistant) and content.",
        ),
        system_prompt: Optional[str] = Input(
            default=None,
            description="Instruction that comes before the conversation.",
        ),
        max_tokens: int = Input(
            default=512,
            description="Most tokens to generate, 1 or more; cut to the room in the context.",
        ),
        min_tokens: Optional[int] = Input(
            default=None,
            description="Fewest tokens to generate before the model may end.",
        ),
        temperature: float = Input(
            default=0.7,
            description="Randomness, 0 to 5; 0 always takes the likeliest token.",
        ),
        top_p: float = Input(
            default=0.95,
            description="Sample from the likeliest tokens of this total probability, 0 to 1.",
        ),
        top_k: int = Input(
            default=0,
            description="Sample from this many of the likeliest tokens; 0 or -1 is off.",
        ),
        min_p: float = Input(
            default=0.0,
            description="Leave out tokens below this share of the likeliest one's probability.",
        ),
        repetition_penalty: Optional[float] = Input(
            default=None,
            description="Above 1 makes repeated tokens less likely, 0.01 to 10.",
        ),
        presence_penalty: Optional[float] = Input(
            default=None,
            description="Lowers tokens that have occurred at all, -2 to 2.",
        ),
        frequency_penalty: Optional[float] = Input(
            default=None,
            description="Lowers tokens by how often they have occurred, -2 to 2.",
        ),
        length_penalty: Optional[float] = Input(
            default=None,
            description="Favours longer answers above 0; acts on beam search alone.",
        ),
        seed: Optional[int] = Input(
            default=None,
            description="Seed of the sampling; left out, a random one is used and logged.",
        ),
        stop_sequences: Optional[str] = Input(
            default=None,
            description="End before any of these: comma-separated, or a JSON list of strings.",
        ),
        bad_words: Optional[str] = Input(
            default=None,
            description="Words that must not occur: comma-separated, or a JSON list of strings.",
        ),
        prompt_template: Optional[str] = Input(
            default=None,
            description="Instead of the chat template: text with {prompt} and, if wanted, {system_prompt}.",
        ),
        max_new_tokens: Optional[int] = Input(
            default=None,
            description="Older name of max_tokens.",
            deprecated=True,
        ),
        min_new_tokens: Optional[int] = Input(
            default=None,
            description="Older name of min_tokens.",
            deprecated=True,
        ),
    ) -> ConcatenateIterator[str]:
        inputs = {name: value for name, value in locals().items() if name != "self"}
        return await self.deployment.predict(inputs)
