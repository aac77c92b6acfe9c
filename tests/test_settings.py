"""Settings: one file, variables over it, and errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cog_triton import settings
from cog_triton.errors import SettingsError


def write(path: Path, text: str) -> dict[str, str]:
    file = path / "deployment.yaml"
    file.write_text(text)
    return {"COG_TRITON_CONFIG": str(file), "XDG_CACHE_HOME": str(path)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_batch_size: 4", ["max_batch_size is not a known key", "engine.max_batch_size"]),
        ("engine: {max_bath_size: 4}", ["engine.max_bath_size", "engine.max_batch_size"]),
        ("triton: {http_prot: 1}", ["triton.http_prot", "triton.http_port"]),
        ("runtime: gpu", ["runtime", "'openvino'", "'gpu'"]),
        ("triton: {http_port: 99999}", ["triton.http_port", "65535", "99999"]),
        ("engine: {max_batch_size: many}", ["engine.max_batch_size", "integer", "'many'"]),
        ("client: {token_timeout_s: .nan}", ["client.token_timeout_s"]),
        ("- a\n- b", ["keys and values"]),
        ("a: [", ["not valid YAML"]),
        ("engine: 4", ["engine"]),
    ],
)
def test_wrong_file(tmp_path: Path, text: str, words: list[str]) -> None:
    """The error names the wrong key, what was expected, and the nearest known key."""
    with pytest.raises(SettingsError) as caught:
        settings.load(write(tmp_path, text))
    for word in words:
        assert word in str(caught.value)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """config.yaml is optional, but a file that COG_TRITON_CONFIG names is not."""
    with pytest.raises(SettingsError, match="nowhere"):
        settings.load({"COG_TRITON_CONFIG": str(tmp_path / "nowhere.yaml")})


@pytest.mark.parametrize("variable", ["COG_TRITON_HTTP_PORT", "COG_TRITON_ENGINE__BATCH"])
def test_unknown_variable(variable: str) -> None:
    """A variable with our prefix that names no key is an error, not ignored."""
    with pytest.raises(SettingsError, match="not a known key"):
        settings.load({variable: "1", "XDG_CACHE_HOME": "x"})


def test_a_variable_wins_over_the_file(tmp_path: Path) -> None:
    """Variables override single keys of a section and leave its others."""
    environ = write(tmp_path, "engine: {max_batch_size: 4, max_num_tokens: 64}")
    loaded = settings.load({**environ, "COG_TRITON_ENGINE__MAX_BATCH_SIZE": "8"})
    assert (loaded.engine.max_batch_size, loaded.engine.max_num_tokens) == (8, 64)


def test_several_wrong_keys_are_all_named(tmp_path: Path) -> None:
    """One start shows every mistake."""
    with pytest.raises(SettingsError) as caught:
        settings.load(write(tmp_path, "modle: x\nruntime: gpu"))
    assert "modle" in str(caught.value)
    assert "runtime" in str(caught.value)


def test_frozen(tmp_path: Path) -> None:
    """Nothing changes the settings after they are parsed."""
    loaded = settings.load(write(tmp_path, ""))
    with pytest.raises(ValueError, match="frozen"):
        loaded.model = "other"  # type: ignore[misc]


def test_instances_on_other_ports_have_other_run_directories(tmp_path: Path) -> None:
    """Two servers of one user on one machine do not meet."""
    environ = write(tmp_path, "")
    first = settings.load(environ)
    second = settings.load({**environ, "COG_TRITON_TRITON__HTTP_PORT": "9000"})
    assert first.resolved_run_dir != second.resolved_run_dir


def test_concurrency_leaves_room_over_the_batch(tmp_path: Path) -> None:
    """Cog gets 1.5 slots for each place in the engine's batch, unless it is set."""
    environ = write(tmp_path, "engine: {max_batch_size: 5}")
    assert settings.load(environ).resolved_concurrency == 8
    assert settings.load({**environ, "COG_MAX_CONCURRENCY": "3"}).resolved_concurrency == 3
