# SPDX-License-Identifier: Apache-2.0
# The first process of a guest. Its files are read only; what changes lies in memory.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
own=$(dirname "$0")
system=${own%/*}/system
guest=$(sed -n 's/.*tombolo.guest=\([0-9]*\).*/\1/p' /proc/cmdline)
for directory in /run /tmp; do mount -t tmpfs tmpfs $directory; done
mkdir -p /dev/shm /dev/pts /run/sshd
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
chmod 1777 /tmp /dev/shm
hostname "g$guest"
# One program under several names; the link of its package leads to that of the machine.
ln -s "$system/bin/kmod" /run/modprobe
/run/modprobe -d "$system" -a virtio_net $(cat "$own/modules") || echo "not all modules are there"
ip link set lo up
for device in /sys/class/net/e*; do
    ip address add 10.0.2.15/24 dev "${device##*/}"
    ip link set "${device##*/}" up
done
sh "$own/prepare.sh" "$guest"
# bash reads the start files of an interactive shell for a first shell that sshd starts.
cat > /run/sshd_config << END
HostKey $own/host
AuthorizedKeysFile $own/user.pub
PermitRootLogin yes
SetEnv SHLVL=1 HOME=/tmp
StrictModes no
UseDNS no
UsePAM no
PidFile none
MaxStartups 100
MaxSessions 100
LoginGraceTime 0
KexAlgorithms curve25519-sha256
END
/usr/sbin/sshd -f /run/sshd_config
echo READY > /dev/console
# The first process has to wait for those whose parents have ended. One `sleep` that does not end keeps it waiting;
# to start one again and again would take a fifteenth of a processor.
sleep infinity &
while :; do wait; done
