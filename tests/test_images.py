"""The images: what Cog and Docker read fits together, and holds nothing that it should not."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from cog_triton import settings

ROOT = Path(__file__).parents[1]
HADOLINT = Path(sys.executable).parent / "hadolint"
# What the cog CLI does not let a cog.yaml set (its pkg/config/env.go).
RESERVED = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONUNBUFFERED"),
    *("R8_*", "REPLICATE_*", "LIBRARY_PATH", "CUDA_*", "NVIDIA_*", "NV_*", "PGET_*"),
    *("HF_ENDPOINT", "HF_HUB_ENABLE_HF_TRANSFER", "KUBERNETES_*"),
)


def lint(text: str) -> str:
    """hadolint's findings for a Dockerfile, one a line; "" if there are none."""
    done = subprocess.run(
        [HADOLINT, "--no-color", "-"], input=text, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def pins(name: str) -> dict[str, str]:
    """Package to version of a requirements file; every line of it has to be a pin."""
    found = {}
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        requirement = line.partition("#")[0].partition(";")[0].strip()
        if requirement and not requirement.startswith("--"):
            package, version = requirement.split("==")
            found[package.lower()] = version
    return found


def instructions(text: str) -> list[tuple[str, str]]:
    """The Dockerfile's instructions in order, continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=["cog.yaml", "cog.cpu.yaml"])
def config(request: pytest.FixtureRequest) -> Any:
    return yaml.safe_load((ROOT / request.param).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("tini=0.19.*", "tini", "DL3008"),
        ("USER 1000:1000\n", "USER root\n", "DL3002"),
        ('CMD ["python", "-m", "cog.server.http"]', "CMD python -m cog.server.http", "DL3025"),
        (" --no-install-recommends", "", "DL3015"),
        ("WORKDIR /src", "WORKDIR src", "DL3000"),
    ],
)
def test_hadolint_would_find_a_fault(dockerfile: str, old: str, new: str, rule: str) -> None:
    """The linter runs and sees: a fault put into our Dockerfile is reported."""
    assert old in dockerfile
    assert rule in lint(dockerfile.replace(old, new))


def test_the_dockerfile_is_clean(dockerfile: str) -> None:
    """hadolint has nothing to say, and no rule is switched off."""
    assert lint(dockerfile) == ""
    assert "hadolint ignore" not in dockerfile


def test_the_base_image_is_pinned(dockerfile: str) -> None:
    """By its tag, and by digest where a build gives one."""
    steps = instructions(dockerfile)
    arguments = dict(rest.split("=", 1) for word, rest in steps if word == "ARG")
    assert arguments == {
        "TRITON_IMAGE": "nvcr.io/nvidia/tritonserver",
        "TRITON_TAG": "25.12-trtllm-python-py3",
        "TRITON_DIGEST": "",
    }
    bases = [rest for word, rest in steps if word == "FROM"]
    assert bases == ["${TRITON_IMAGE}:${TRITON_TAG}${TRITON_DIGEST}"]


def test_the_dockerfile_is_what_cog_needs(dockerfile: str) -> None:
    """Cog's server, quietly started by tini in /src, on its port, not as root."""
    steps = instructions(dockerfile)
    last = {word: rest for word, rest in steps}  # noqa: C416 -- the last of each
    assert last["WORKDIR"] == "/src"
    assert last["ENTRYPOINT"] == '["/usr/bin/tini", "--"]'
    assert last["CMD"] == '["python", "-m", "cog.server.http"]'
    assert (last["USER"], last["EXPOSE"]) == ("1000:1000", "5000")
    assert "COG_PREDICT_TYPE_STUB=predict.py:Predictor" in last["ENV"]
    order = [word for word, _rest in steps]
    copies = [rest for word, rest in steps if word == "COPY"]
    assert copies[-1] == ". /src"
    assert order.index("USER") > len(order) - 1 - order[::-1].index("COPY")


def test_the_dockerfile_installs_our_requirements_over_the_containers(dockerfile: str) -> None:
    """Its filter takes out what the base image has; cog and coglet are the pinned ones."""
    steps = [rest for word, rest in instructions(dockerfile) if word == "RUN"]
    (install,) = [step for step in steps if "pip install" in step]
    match = re.search(r"sed -E '([^']+)'", install)
    assert match
    done = subprocess.run(
        ["sed", "-E", match[1], ROOT / "requirements-gpu.txt"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--system-site-packages" in install
    assert "requirements-cog.txt" in install
    left = re.findall(r"^([\w-]+)==", done.stdout, re.MULTILINE)
    assert {name.lower() for name in left} == pins("requirements-gpu.txt").keys() - {
        "tensorrt_llm",
        "nvidia-pytriton",
    }
    assert "--extra-index-url" not in done.stdout


def test_no_weights_in_an_image() -> None:
    """The build context leaves out weights, engines and caches, and keeps Cog's schema."""
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name in ("m.gguf", "model-00001-of-00002.safetensors", "rank0.engine", "engine.tar.gz"):
        assert any(fnmatch(name, pattern) for pattern in patterns), name
    assert {".git", ".venv", "tests", ".cog/*"} <= set(patterns)
    assert patterns.index("!.cog/openapi_schema.json") > patterns.index(".cog/*")


def test_cog_installs_the_pinned_sdk(config: Any) -> None:
    """The CLI installs cog itself: the same release as in the tests and in the Dockerfile."""
    assert config["build"]["sdk_version"] == pins("requirements-cog.txt")["cog"]
    assert config["predict"] == "predict.py:Predictor"
    assert (ROOT / config["build"]["python_requirements"]).is_file()
    assert "cog" not in pins(config["build"]["python_requirements"])


def test_nothing_is_set_that_cog_reserves(config: Any) -> None:
    """The CLI refuses a cog.yaml that sets one of these variables."""
    names = [entry.partition("=")[0] for entry in config.get("environment", [])]
    assert [name for name in names if any(fnmatch(name, one) for one in RESERVED)] == []


def test_the_stock_gpu_deployment_has_a_model() -> None:
    """Its settings name a file that is in the image, with a checkpoint by its name."""
    config = yaml.safe_load((ROOT / "cog.yaml").read_text(encoding="utf-8"))
    variables = dict(entry.split("=", 1) for entry in config["environment"])
    file = ROOT / variables["COG_TRITON_CONFIG"]
    assert settings.load({}, file=file).model == "microsoft/Phi-3-mini-4k-instruct"


def test_the_gpu_image_is_of_the_release_that_the_contracts_describe() -> None:
    """TensorRT-LLM 1.1.0 on Python 3.12 and CUDA 13, from NVIDIA's index."""
    build = yaml.safe_load((ROOT / "cog.yaml").read_text(encoding="utf-8"))["build"]
    assert (build["gpu"], build["cuda"], build["python_version"]) == (True, "13.0", "3.12")
    lines = (ROOT / "requirements-gpu.txt").read_text(encoding="utf-8").splitlines()
    assert "--extra-index-url https://pypi.nvidia.com" in lines
    assert pins("requirements-gpu.txt")["tensorrt_llm"] == "1.1.0"


def test_both_deployments_run_on_the_same_packages() -> None:
    """Pins differ only where TensorRT-LLM's own requirements force them to."""
    gpu, cpu = pins("requirements-gpu.txt"), pins("requirements.txt")
    forced = {"tokenizers": "0.22.2", "huggingface_hub": "0.36.2"}
    assert {name: gpu[name] for name in gpu.keys() & cpu.keys() if gpu[name] != cpu[name]} == forced
    assert gpu.keys() - cpu.keys() == {"tensorrt_llm"}
