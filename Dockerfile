# The image for compiled engines, on NVIDIA's container with Triton's C++ backend of
# TensorRT-LLM: `cog build --dockerfile Dockerfile`, `cog push --dockerfile Dockerfile`.
# It holds no weights: they are fetched or built at setup, into /var/lib/cog-triton. Which model
# is served says config.yaml in this directory, or COG_TRITON_ variables of the container.
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver
ARG TRITON_TAG=25.12-trtllm-python-py3
# For a build that can be repeated to the byte: --build-arg TRITON_DIGEST=@sha256:…
ARG TRITON_DIGEST=
FROM ${TRITON_IMAGE}:${TRITON_TAG}${TRITON_DIGEST}

RUN apt-get update -qq \
    && apt-get install -qqy --no-install-recommends python3-venv=3.12.* tini=0.19.* \
    && rm -rf /var/lib/apt/lists/* \
    # Where user 1000 may write: models and engines, and the file that tells Kubernetes of readiness.
    && install -d -o 1000 -g 1000 /var/lib/cog-triton /var/run/cog

# A virtual environment over the container's packages: TensorRT-LLM stays the one that NVIDIA
# tested, and what apt installed need not be replaced. Triton's Python stub finds it on PATH.
COPY requirements-cog.txt requirements-gpu.txt /opt/cog-triton/
RUN python3 -m venv --system-site-packages /opt/cog-triton \
    && sed -E '/^(--extra-index-url|tensorrt_llm|nvidia-pytriton)/d' \
        /opt/cog-triton/requirements-gpu.txt > /opt/cog-triton/requirements.txt \
    && /opt/cog-triton/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
        -r /opt/cog-triton/requirements.txt -r /opt/cog-triton/requirements-cog.txt

# LOGNAME: PyTorch asks for the name of a user that need not be in /etc/passwd.
ENV PATH=/opt/cog-triton/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/cog-triton \
    LOGNAME=cog-triton \
    COG_TRITON_CACHE_DIR=/var/lib/cog-triton \
    COG_PREDICT_TYPE_STUB=predict.py:Predictor

WORKDIR /src
COPY . /src
# /src is not writable at run time; these files stay valid whatever the build does to times.
RUN python -m compileall -q --invalidation-mode unchecked-hash cog_triton predict.py

USER 1000:1000
EXPOSE 5000
# The base image's own entrypoint prints a banner, into what `pip freeze` gives Cog too.
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["python", "-m", "cog.server.http"]
