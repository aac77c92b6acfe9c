"""Token ids to text: what the model `postprocessing` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cog_triton.errors import UserError
from cog_triton.runtimes.text_models.step_text import StepDecoder


def texts(
    decoder: StepDecoder, tokens_batch: npt.NDArray[Any], sequence_length: npt.NDArray[Any]
) -> npt.NDArray[np.object_]:
    """OUTPUT `[batch · beams]`: UTF-8 text of each beam of TOKENS_BATCH `[batch, beams, n]`.

    SEQUENCE_LENGTH `[batch, beams]` says how many ids of a beam count. Raises UserError for
    lengths that do not fit, TritonTokenizerError for ids that the tokenizer does not know.
    """
    lengths = sequence_length.reshape(-1).tolist()
    if tokens_batch.shape[:-1] != sequence_length.shape:
        raise UserError(
            f"TOKENS_BATCH has the shape {list(tokens_batch.shape)}, SEQUENCE_LENGTH "
            f"{list(sequence_length.shape)}."
        )
    beams = tokens_batch.reshape(len(lengths), tokens_batch.shape[-1])
    if any(not 0 <= length <= beams.shape[1] for length in lengths):
        raise UserError(f"SEQUENCE_LENGTH is {lengths}, but there are {beams.shape[1]} ids.")
    return np.array(
        [
            decoder.decode(beam[:length].tolist()).encode()
            for beam, length in zip(beams, lengths, strict=True)
        ],
        dtype=np.object_,
    )
