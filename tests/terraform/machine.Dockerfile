# A machine as it comes from a cloud: systemd, cloud-init, sshd without host keys, and no more. Built by test_machines.py.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
      cloud-init dbus iproute2 iptables netbase openssh-client openssh-server sudo systemd systemd-sysv \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
# There is no cloud to be asked, no locale to be made, and no device to wait for.
RUN printf 'datasource_list: [NoCloud]\nlocale: false\n' > /etc/cloud/cloud.cfg.d/99-no-cloud.cfg \
    && systemctl mask apt-daily.timer apt-daily-upgrade.timer console-getty.service \
      systemd-networkd-wait-online.service systemd-udev-trigger.service systemd-udevd.service
