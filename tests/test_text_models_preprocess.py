"""The model `preprocessing`: text to the tensors of tensorrt_llm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cog_triton.errors import ArtifactCorrupt, UnsupportedInput, UserError
from cog_triton.runtimes.text_models.preprocess import Preprocessor
from cog_triton.runtimes.text_models.text_tokenizer import TextTokenizer, load
from cog_triton.text.tokenizer import Tokenizer
from cog_triton.text.word_lists import from_word_list
from tests import text_samples

END_ID, PAD_ID = 3, 1


def strings(*rows: list[str]) -> npt.NDArray[Any]:
    return np.array([[text.encode() for text in row] for row in rows], np.object_)


def column(*values: int) -> npt.NDArray[Any]:
    return np.array([[value] for value in values], np.int32)


def inputs(*prompts: str, **others: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    lengths = column(*[7] * len(prompts))
    return {"QUERY": strings(*([p] for p in prompts)), "REQUEST_OUTPUT_LEN": lengths, **others}


def preprocessor(kind: str, *end_ids: int, add_special_tokens: bool = True) -> Preprocessor:
    tokenizer = Tokenizer(text_samples.ALL[kind]())
    text = TextTokenizer(tokenizer, end_ids or (END_ID,), PAD_ID)
    return Preprocessor(text, add_special_tokens=add_special_tokens)


def words(array: npt.NDArray[Any], row: int = 0) -> list[list[int]]:
    return from_word_list(array[row].tolist())


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        (inputs(""), UserError, "QUERY holds no token"),
        (inputs("a", IMAGE_URL=strings(["x"])), UnsupportedInput, "IMAGE_URL"),
        ({**inputs("a"), "QUERY": np.array([[b"\xff"]], np.object_)}, UserError, "not UTF-8"),
        (
            inputs(
                "a",
                EMBEDDING_BIAS_WORDS=strings(["a", "b"]),
                EMBEDDING_BIAS_WEIGHTS=np.ones((1, 1), np.float32),
            ),
            UserError,
            "2 EMBEDDING_BIAS_WORDS and 1 weights",
        ),
    ],
)
def test_inputs_that_cannot_be_used_are_named(
    arrays: dict[str, npt.NDArray[Any]], error: type[Exception], message: str
) -> None:
    """No token, an image, broken text, and words without weights."""
    with pytest.raises(error, match=message):
        preprocessor("gemma", add_special_tokens=False).run(arrays)


def test_prompts_of_a_batch_are_padded_on_the_right() -> None:
    """Each row holds its ids and then the pad id; the lengths are the true ones."""
    tokenizer = Tokenizer(text_samples.ALL["byte_level"]())
    ids = [tokenizer.encode(text, add_special_tokens=True) for text in ("hi", "hello, world")]
    outputs = preprocessor("byte_level").run(inputs("hi", "hello, world"))
    assert outputs["REQUEST_INPUT_LEN"].tolist() == [[len(ids[0])], [len(ids[1])]]
    padding = [PAD_ID] * (len(ids[1]) - len(ids[0]))
    assert outputs["INPUT_ID"].tolist() == [ids[0] + padding, ids[1]]
    assert outputs["REQUEST_OUTPUT_LEN"].tolist() == [[7], [7]]
    assert {array.dtype.type for array in outputs.values()} == {np.int32}


@pytest.mark.parametrize(("add_special_tokens", "first"), [(True, 0), (False, None)])
def test_special_tokens_are_added_as_configured(
    add_special_tokens: bool, first: int | None
) -> None:
    """The parameter add_special_tokens decides whether the first token is the beginning's."""
    outputs = preprocessor("byte_level", add_special_tokens=add_special_tokens).run(inputs("hi"))
    assert (outputs["INPUT_ID"][0, 0] == 0) == (first == 0)


def test_end_and_pad_ids_are_the_clients_or_the_models() -> None:
    """Given ids pass through; without them the tokenizer's stand in for every row."""
    given = preprocessor("gemma").run(inputs("a", "b", END_ID=column(9, 8), PAD_ID=column(7, 6)))
    assert (given["OUT_END_ID"].tolist(), given["OUT_PAD_ID"].tolist()) == ([[9], [8]], [[7], [6]])
    own = preprocessor("gemma").run(inputs("a", "b"))
    assert own["OUT_END_ID"].tolist() == [[END_ID], [END_ID]]
    assert own["OUT_PAD_ID"].tolist() == [[PAD_ID], [PAD_ID]]


def test_further_end_ids_of_the_model_are_stop_words() -> None:
    """The contract has one end id; a client that names its own gets that one alone."""
    assert words(preprocessor("gemma", 2, 5, 6).run(inputs("a"))["STOP_WORDS_IDS"]) == [[5], [6]]
    assert "STOP_WORDS_IDS" not in preprocessor("gemma", 2, 5).run(inputs("a", END_ID=column(2)))


@pytest.mark.parametrize("name", ["STOP_WORDS", "BAD_WORDS"])
def test_an_empty_word_means_none(name: str) -> None:
    """The guides send "" for both lists; there is no such output then."""
    outputs = preprocessor("gemma").run(inputs("a", **{f"{name}_DICT": strings([""])}))
    assert f"{name}_IDS" not in outputs


@pytest.mark.parametrize("kind", ["byte_level", "llama2", "gemma"])
@pytest.mark.parametrize("name", ["STOP_WORDS", "BAD_WORDS"])
def test_a_word_is_found_after_a_space_and_inside_a_word(kind: str, name: str) -> None:
    """The lists hold the ids with which the word stands in either text."""
    tokenizer = Tokenizer(text_samples.ALL[kind]())
    outputs = preprocessor(kind).run(inputs("a", **{f"{name}_DICT": strings(["fox"])}))
    lists = words(outputs[f"{name}_IDS"])
    for text in ("\nfox", "qu fox"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert any(ids[-len(word) :] == word for word in lists), (text, ids, lists)
    for word in lists:
        assert tokenizer.decode(word).strip() == "fox"


def test_word_lists_of_a_batch_have_one_shape() -> None:
    """Rows with fewer words are padded: ids with 0, offsets with -1; both rows read back."""
    stop_words = strings(["fox", "the"], ["fox", ""])
    array = preprocessor("gemma").run(inputs("a", "b", STOP_WORDS_DICT=stop_words))
    lists = array["STOP_WORDS_IDS"]
    assert lists.shape[:2] == (2, 2)
    assert len(words(lists, 0)) > len(words(lists, 1)) > 0
    assert lists[1, 1, -1] == -1


def test_embedding_bias_adds_up_the_weights_of_each_token() -> None:
    """One value for each token of the vocabulary; words without weight give no output."""
    tokenizer = Tokenizer(text_samples.ALL["gemma"]())
    outputs = preprocessor("gemma").run(
        inputs(
            "a",
            EMBEDDING_BIAS_WORDS=strings(["fox", "the fox"]),
            EMBEDDING_BIAS_WEIGHTS=np.array([[2.0, -0.5]], np.float32),
        )
    )
    bias = outputs["EMBEDDING_BIAS"]
    assert bias.shape == (1, tokenizer.vocab_size)
    expected = np.zeros(tokenizer.vocab_size)
    expected[tokenizer.encode("fox", add_special_tokens=False)] += 2.0
    expected[tokenizer.encode("the fox", add_special_tokens=False)] -= 0.5
    assert bias[0].tolist() == expected.tolist()
    empty = inputs(
        "a",
        EMBEDDING_BIAS_WORDS=strings([""]),
        EMBEDDING_BIAS_WEIGHTS=np.zeros((1, 1), np.float32),
    )
    assert "EMBEDDING_BIAS" not in preprocessor("gemma").run(empty)


def test_decoder_text_and_prompt_table_ids_come_only_when_asked_for() -> None:
    """An output that says nothing is left out, so that the next model gets no such input."""
    plain = preprocessor("gemma").run(inputs("a"))
    assert set(plain) == {
        *("INPUT_ID", "REQUEST_INPUT_LEN", "REQUEST_OUTPUT_LEN", "OUT_END_ID", "OUT_PAD_ID")
    }
    outputs = preprocessor("gemma").run(
        inputs(
            "the fox",
            DECODER_QUERY=strings(["fox"]),
            PROMPT_TABLE_EXTRA_ID=np.array([[5]], np.uint64),
        )
    )
    assert outputs["REQUEST_DECODER_INPUT_LEN"].tolist() == [[outputs["DECODER_INPUT_ID"].size]]
    assert outputs["OUT_PROMPT_TABLE_EXTRA_IDS"].dtype == np.uint64
    assert outputs["OUT_PROMPT_TABLE_EXTRA_IDS"].shape == outputs["INPUT_ID"].shape


@pytest.mark.parametrize(
    ("generation", "config", "end_ids", "pad_id"),
    [
        ({"eos_token_id": [2, 0], "pad_token_id": 5}, {"eos_token_id": 9}, (2, 0), 5),
        (None, {"eos_token_id": 9}, (9,), 9),
        ({}, {}, (2,), 2),
        ({"eos_token_id": None}, None, (2,), 2),
    ],
)
def test_end_ids_come_from_the_best_file(
    tmp_path: Path,
    generation: dict[str, Any] | None,
    config: dict[str, Any] | None,
    end_ids: tuple[int, ...],
    pad_id: int,
) -> None:
    """generation_config.json before config.json before the tokenizer's own token."""
    text_samples.save_model(tmp_path, text_samples.ALL["gemma"](), {"eos_token": "</s>"})
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    text = load(tmp_path)
    assert (text.end_ids, text.end_id, text.pad_id) == (end_ids, end_ids[0], pad_id)


def test_a_broken_file_is_named_and_no_end_id_is_minus_one(tmp_path: Path) -> None:
    """-1 is TensorRT-LLM's word for no end id."""
    text_samples.save_model(tmp_path, text_samples.ALL["gemma"]())
    assert load(tmp_path).end_id == -1
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ArtifactCorrupt, match=r"config\.json"):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["byte_level", "gemma"])
def test_special_tokens_can_be_shown(tmp_path: Path, kind: str) -> None:
    """With skip_special_tokens false they come out as text, in streams as in whole texts."""
    backend = text_samples.ALL[kind]()
    text_samples.save_model(tmp_path, backend)
    ids = backend.encode("the fox").ids
    shown = load(tmp_path, skip_special_tokens=False).tokenizer
    assert shown.decode(ids) == backend.decode(ids, skip_special_tokens=False)
    assert shown.detokenizer().feed(ids) == shown.decode(ids)
    assert shown.decode(ids) != load(tmp_path).tokenizer.decode(ids)
    assert shown.encode("the fox", add_special_tokens=True) == ids
