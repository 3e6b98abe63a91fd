# docker build -t longrm .
# docker run --rm -v "$PWD:/work" longrm evaluate --model baseline:overlap --bench file:pairs.jsonl --out runs/first
#
# For GPUs, choose torch's build: docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 -t longrm .
# and run it with --gpus all. Files belong to user 1000; --user "$(id -u)" writes as you.
# To serve: docker run -p 8000:8000 -e LONGRM_API_KEY longrm serve --model MODEL --host 0.0.0.0
FROM python:3.12-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=all
RUN python -m venv /opt/longrm
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN /opt/longrm/bin/pip install --no-cache-dir --constraint constraints.txt --extra-index-url "$TORCH_INDEX" ".[$EXTRAS]"

FROM python:3.12-slim
# Triton and torch.compile call a C compiler at run time.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home longrm && install --directory --mode 1777 /cache /work
COPY --from=build /opt/longrm /opt/longrm
# Models, tokenized data and kernels are kept in /cache, for any user: mount a volume there to keep them.
ENV PATH=/opt/longrm/bin:$PATH USER=longrm HOME=/cache XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface
USER 1000
WORKDIR /work
ENTRYPOINT ["longrm"]
CMD ["--help"]
