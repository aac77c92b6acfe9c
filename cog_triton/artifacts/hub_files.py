"""Which files of a Hugging Face repository are needed to serve its model: a pure choice by name.

One set of weights, in the best form there is, and the small files beside it; not the same weights
once more for other frameworks (pytorch_model.bin beside safetensors, consolidated.*, onnx/, …).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from cog_triton.errors import ArtifactUnavailable, UnsupportedModel

# Forms of weights, best first: patterns of their files, and those they cannot do without. An engine
# and an OpenVINO IR are there because somebody built them for exactly this use.
_FORMS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("rank*.engine",), ("rank0.engine",)),
    (("openvino_*.xml", "openvino_*.bin"), ("openvino_model.xml", "openvino_model.bin")),
    (("model*.safetensors",), ()),
    (("*.safetensors",), ()),
    (("pytorch_model*.bin",), ()),
    (("*.pth",), ()),
)
_NOT_WEIGHTS = ("consolidated*", "adapter_model*")
# Configuration, tokenizer, chat template; code of the model's own, which nobody runs unasked.
_SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py")
_NOT_NEEDED = ("README*", "LICENSE*", "*requirements*.txt", "trainer_state.json")
_NEEDED = ("config.json", "tokenizer.json")
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf", re.IGNORECASE)


def choose_files(repo: str, names: Iterable[str], gguf: str | None = None) -> list[str]:
    """The files to fetch of a repository that has `names`; only `gguf` where one is asked for.

    Raises: ArtifactUnavailable when a GGUF has to be named, or the named one is not there;
    UnsupportedModel when the repository has no weights that can be served, or lacks what belongs
    to them: told before anything large is fetched.
    """
    names = sorted(names)
    if gguf is not None:
        return [_named_gguf(repo, names, gguf)]
    top = [name for name in names if "/" not in name]
    weights = _weights(top)
    if not weights:
        return [_only_gguf(repo, names)]
    missing = [name for name in _NEEDED if name not in top]
    if missing:
        raise UnsupportedModel(f"{repo} on the Hugging Face Hub has no {' and no '.join(missing)}")
    small = [n for n in top if _matches(n, _SMALL_FILES) and not _matches(n, _NOT_NEEDED)]
    return sorted({*weights, *small})


def _weights(top: list[str]) -> list[str]:
    for patterns, needed in _FORMS:
        found = [n for n in top if _matches(n, patterns) and not _matches(n, _NOT_WEIGHTS)]
        if found and set(needed) <= set(found):
            return found
    return []


def _named_gguf(repo: str, names: list[str], gguf: str) -> str:
    if gguf not in names:
        raise ArtifactUnavailable(f"{repo} on the Hugging Face Hub has no {gguf}{_choices(names)}")
    if _SPLIT_GGUF.search(gguf):
        raise UnsupportedModel(f"{gguf} of {repo} is one part of a split GGUF, which has no reader")
    return gguf


def _only_gguf(repo: str, names: list[str]) -> str:
    found = [n for n in names if n.lower().endswith(".gguf") and "mmproj" not in n.lower()]
    if len(found) == 1:
        return _named_gguf(repo, names, found[0])
    if found:
        raise ArtifactUnavailable(
            f"{repo} on the Hugging Face Hub holds {len(found)} GGUF files; name one of them, as "
            f"in {repo}/{found[0]}{_choices(names)}"
        )
    raise UnsupportedModel(
        f"{repo} on the Hugging Face Hub has no weights at its top level that can be served: no "
        "*.safetensors, pytorch_model*.bin, *.gguf, openvino_model.xml or rank0.engine"
    )


def _choices(names: list[str]) -> str:
    found = [name for name in names if name.lower().endswith(".gguf")]
    return f"; it has {', '.join(found)}" if found else ""


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
