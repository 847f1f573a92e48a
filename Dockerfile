# Echelon for agents and workers: as an ordinary user, with nothing that listens. docs/cloud.md says how it is used.
FROM python:3.11-slim-bookworm

# Where another build of torch than the usual one, which is for NVIDIA's GPUs, comes from: see pytorch.org.
ARG TORCH_INDEX=

RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 echelon

WORKDIR /opt/echelon
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt \
        ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && pip install --no-cache-dir --constraint constraints.txt setuptools \
    && pip install --no-cache-dir --constraint constraints.txt --no-build-isolation '.[aws,gcp]'

USER echelon
WORKDIR /work
ENTRYPOINT ["echelon"]
CMD ["--help"]
