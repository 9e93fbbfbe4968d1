#!/bin/sh
# boot.sh SECONDS [NETWORK]: at every start of a machine, before anything else. SECONDS after its first start it shuts down,
# and AWS terminates it then. NETWORK is that of the workers, whose downloads a launcher leads out.
set -eu
mkdir -p /etc/seatrial /run/systemd/system
[ -s /etc/seatrial/stop-at ] || echo $(($(date +%s) + $1)) > /etc/seatrial/stop-at
left=$(($(cat /etc/seatrial/stop-at) - $(date +%s)))
[ "$left" -gt 0 ] || left=1
printf '[Service]\nType=oneshot\nExecStart=/bin/systemctl poweroff\n' > /run/systemd/system/seatrial-stop.service
printf '[Timer]\nOnActiveSec=%s\nAccuracySec=1s\n' "$left" > /run/systemd/system/seatrial-stop.timer
systemctl daemon-reload
# Not waited for, as systemd-run would: timers start later than this, and after it has ended.
systemctl start --no-block seatrial-stop.timer
if [ "${2:-}" ]; then
  [ "$(cat /proc/sys/net/ipv4/ip_forward)" = 1 ] || sysctl -q -w net.ipv4.ip_forward=1
  iptables -w -t nat -A POSTROUTING -s "$2" ! -d 10.77.0.0/16 -j MASQUERADE
fi
