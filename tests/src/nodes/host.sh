# SPDX-License-Identifier: Apache-2.0
# The first process of a host: $1 is its name. Its end, that of its standard input, is the end of the host.
set -e
hostname "$1"
for directory in /dev/shm /run; do mount -t tmpfs "${directory##*/}" "$directory"; done
case "$2" in /tmp/*) ;; *) mount -t tmpfs tmp /tmp; chmod 1777 /tmp ;; esac
# What it tells about networks is about those of whoever has mounted it.
mount -t sysfs sysfs /sys
ip link set lo up
mkdir -p /run/sshd
/usr/sbin/sshd
until (: < /dev/tcp/127.0.0.1/22) 2> /dev/null; do sleep 0.01; done
echo ready
# bash takes the status of processes that nobody waits for, as the first process has to.
while read -r _; do :; done
