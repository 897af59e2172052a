# SPDX-License-Identifier: Apache-2.0
# Sets up the machine that $1 hosts on $2 networks are seen from, and stays until its standard input ends.
set -e
hostname login
mount -t tmpfs ssh /etc/ssh
cd /etc/ssh
ssh-keygen -qt ed25519 -N '' -f user
ssh-keygen -qt ed25519 -N '' -f host
cat > ssh_config << END
IdentityFile /etc/ssh/user
GlobalKnownHostsFile /etc/ssh/known_hosts
UserKnownHostsFile /dev/null
END
# bash reads the start files of an interactive shell for a first shell that sshd starts, which on the
# machine of a developer may take long and print things.
cat > sshd_config << END
HostKey /etc/ssh/host
AuthorizedKeysFile /etc/ssh/user.pub
PermitRootLogin yes
SetEnv SHLVL=1
StrictModes no
UseDNS no
UsePAM no
PidFile none
MaxStartups 100
MaxSessions 100
END
echo "* $(cat host.pub)" > known_hosts
{
    echo '127.0.0.1 localhost'
    echo '10.99.0.254 login'
    for i in $(seq "$1"); do echo "10.99.0.$i n$i"; done
} > hosts
mount --bind hosts /etc/hosts
mount -t sysfs sysfs /sys
ip link set lo up
for network in $(seq 0 $(($2 - 1))); do
    ip link add "bridge$network" type bridge
    ip address add "10.$((99 - network)).0.254/24" dev "bridge$network"
    ip link set "bridge$network" up
done
echo ready
while read -r _; do :; done
