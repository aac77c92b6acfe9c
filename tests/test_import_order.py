"""One direction of imports: a module imports only from its own stage and those to its left."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "cog_triton"

STAGES: list[tuple[str, ...]] = [
    ("errors",),
    ("process_tree", "runtimes.config", "runtimes.llm_api_arguments", "runtimes.mpi_environment"),
    ("settings",),
    ("artifacts",),
    ("template", "template_variables", "template_values", "tensorrt_config"),
    ("gpu_inventory", "machine", "runtime_choice", "model_size", "engine_config"),
    ("engine_check", "build", "engine", "model"),
    ("text_model_values", "model_repository"),
    ("run_directory", "ports", "triton_installation", "launch"),
    ("server_log", "child_session", "server"),
    ("sse", "generate_request", "generate_client"),
    ("restart_policy", "progress_watchdog", "session_watch"),
    ("generation", "supervisor", "supervised_client"),
    ("text",),
    ("inputs", "prediction"),
    ("cog_bridge", "deployment", "plan", "cog_server", "__main__"),
]
"""The way of the data, from left to right; `text` and `runtimes` are further restricted below."""

ALONE = {
    "text": {"errors"},
    "runtimes": {"errors", "text", "template"},
    "artifacts": {"errors", "settings"},
}
"""Rooms that know nothing of the stages to their left but these: `runtimes` runs inside Triton."""


def modules() -> dict[str, set[str]]:
    """Every module of the package and the modules of the package that it imports."""
    names = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    return {name: imported(path, set(names)) for name, path in names.items()}


def imported(path: Path, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("cog_triton.") for name in found} & known


def stage(name: str) -> int | None:
    for index, rooms in enumerate(STAGES):
        if any(name == room or name.startswith(room + ".") for room in rooms):
            return index
    return None


MODULES = modules()


def test_every_module_has_a_room() -> None:
    """A new module belongs to a stage or to the runtimes."""
    homeless = [name for name in MODULES if stage(name) is None and not name.startswith("runtimes")]
    assert homeless == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_go_to_the_left(name: str) -> None:
    """No module imports from a stage to its right."""
    here = stage(name)
    if here is None:
        return
    for other in MODULES[name]:
        there = stage(other)
        assert there is not None, f"{name} imports {other}, which runs inside Triton"
        assert there <= here, f"{name} imports {other}, which is to its right"


@pytest.mark.parametrize("room", sorted(ALONE))
def test_rooms_that_stand_alone(room: str) -> None:
    """Text, runtimes and artifacts can be read and used without the rest."""
    for name, others in MODULES.items():
        if not name.startswith(room + "."):
            continue
        foreign = {other.partition(".")[0] for other in others} - {room} - ALONE[room]
        assert foreign == set(), f"{name} imports {foreign}"


def test_no_cycles() -> None:
    """Also inside a stage nothing imports itself in a circle."""
    assert list(TopologicalSorter(MODULES).static_order())
