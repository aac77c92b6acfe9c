"""Text to token ids and back: tokenizer, prompt rendering, detokenizer, stop sequences.

Nothing here touches a socket or a file beyond the tokenizer's own; everything that
follows a stream is a state machine whose output does not depend on how it was cut.
"""
