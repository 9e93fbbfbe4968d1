# A host for `seatrial ... --on ssh` (docs/launching.md): the image that will train, and an sshd without root.
#
#   docker build -f deploy/images/ssh.Dockerfile -t trial-ssh \
#       --build-arg BASE_IMAGE=IMAGE-WITH-PYTHON-AND-TORCH --build-arg TRIAL_UID="$(id -u)" deploy/images
#
# On a host an account with the number of the container's user can read and end what runs there: the number is yours.
# Where docker or podman runs without root, the numbers of a container are no accounts: leave TRIAL_UID out.
# The base must have apt (Debian, Ubuntu, and the PyTorch images of NVIDIA and AMD do) and Python >= 3.10.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG TRIAL_UID=10001
USER root
RUN apt-get update -q \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends openssh-server \
    # Everybody who has an image knows the keys in it.
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
# Root's number stays outside: nothing here runs as root.
RUN [ "${TRIAL_UID}" -gt 0 ] || TRIAL_UID=10001; \
    useradd --create-home --non-unique --no-log-init --uid "${TRIAL_UID}" --shell /bin/bash trial \
    # So it is with keys that a new home begins with.
    && rm -rf /home/trial/.ssh
COPY --chmod=0555 sshd.py /usr/local/bin/trial-sshd
USER trial
# The base may have an account of the same number, whose home would be taken.
ENV HOME=/home/trial
WORKDIR /home/trial
ENTRYPOINT ["/usr/local/bin/trial-sshd"]
