# The acceptance trial of this machine, and nothing to install on it:
#
#   docker build -t seatrial .
#   docker run --rm --gpus all --ipc=host -v "$PWD/reports:/reports" seatrial
#   docker run --rm --gpus all --ipc=host -v "$PWD/reports:/reports" seatrial run --validation-only
#   docker run --rm --gpus all --ipc=host -v "$PWD/reports:/reports" seatrial train digits
#
# deploy/images/Dockerfile has the images for clusters, and says what BASE_IMAGE and TORCH may be.
ARG BASE_IMAGE=nvcr.io/nvidia/pytorch:25.01-py3
FROM ${BASE_IMAGE}
USER root
COPY pyproject.toml constraints.txt README.md LICENSE deploy/images/install.sh deploy/images/entry.sh /src/
COPY src /src/src
ARG TORCH=""
RUN cp /src/entry.sh /opt/entry.sh && TORCH="${TORCH}" sh /src/install.sh "util-linux"
ENV PATH=/opt/venv/bin:${PATH} HOME=/home/seatrial USER=seatrial
# `seatrial run` writes to ./reports.
WORKDIR /
ENTRYPOINT ["sh", "/opt/entry.sh"]
CMD ["run"]
