# A host for `seatrial ... --on ssh` (docs/launching.md): the image that will train, and an sshd without root.
#
#   docker build -f deploy/images/ssh.Dockerfile --build-arg BASE_IMAGE=IMAGE-WITH-PYTHON-AND-TORCH -t trial-ssh deploy/images
#
# The base must have apt (Debian, Ubuntu, and the PyTorch images of NVIDIA and AMD do) and Python >= 3.10.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
USER root
RUN apt-get update -q \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends openssh-server \
    # Everybody who has an image knows the keys in it.
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
RUN useradd --create-home --uid 10001 --shell /bin/bash trial
COPY --chmod=0555 sshd.py /usr/local/bin/trial-sshd
USER trial
WORKDIR /home/trial
ENTRYPOINT ["/usr/local/bin/trial-sshd"]
