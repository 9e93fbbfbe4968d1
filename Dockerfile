# The acceptance trial of this machine, and nothing to install on it:
#
#   docker build -t seatrial . && mkdir -p reports
#   docker run --rm --user "$(id -u)" --gpus all --shm-size=16g -v "$PWD/reports:/reports" seatrial
#   docker run --rm --user "$(id -u)" --gpus all --shm-size=16g -v "$PWD/reports:/reports" seatrial run --validation-only
#   docker run --rm --user "$(id -u)" --gpus all --shm-size=16g -v "$PWD/reports:/reports" seatrial train digits
#
# deploy/images/Dockerfile has the images for clusters, and says what BASE_IMAGE and TORCH may be. Its `worker` begins
# with the same layers.
ARG BASE_IMAGE=nvcr.io/nvidia/pytorch:25.01-py3
FROM ${BASE_IMAGE} AS base
USER root
COPY constraints.txt deploy/images/install.sh /src/
COPY requirements /src/requirements
RUN sh /src/install.sh system tini
ARG TORCH=""
RUN sh /src/install.sh torch ${TORCH}

FROM base
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN sh /src/install.sh seatrial && rm -rf /src
COPY deploy/images/entry.sh /opt/entry.sh
ENV PATH=/opt/trial-venv/bin:${PATH} HOME=/home/seatrial USER=seatrial
# `seatrial run` writes to ./reports.
WORKDIR /
ENTRYPOINT ["sh", "/opt/entry.sh"]
ARG BASE_IMAGE
LABEL org.opencontainers.image.base.name=${BASE_IMAGE}
CMD ["run"]
