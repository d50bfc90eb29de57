#!/usr/bin/env bash
# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Becomes pid 1 of one rig host. Started by cluster.py inside new namespaces and the host's own cgroups.
# Input: RIG_* variables, seed files in $RIG_STATE/seed, and on stdin one line once the network device is there.
# Output: on stdout this process' pid as the machine sees it, everything else in $RIG_STATE/init.log.
set -euo pipefail

read -r outer_pid _ </proc/self/stat # a built-in: an external command would give its own pid
echo "$outer_pid"
read -r _
exec </dev/null >>"$RIG_STATE/init.log" 2>&1

# --- root file system: the machine's own, copy on write, without what a host must not see
base=$RIG_STATE/root
mkdir -p "$base"
mount -t tmpfs -o "mode=755,size=$RIG_DISK" rig-root "$base"
mkdir "$base/upper" "$base/work" "$base/merged"
for path in $RIG_HIDE; do
    mkdir -p "$base/upper/$(dirname "$path")"
    mknod "$base/upper/$path" c 0 0 # an overlay whiteout: the entry below does not exist
done
mount -t overlay rig-root -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$base/merged"
cd "$base/merged"
mkdir -p proc sys dev run tmp root home mnt opt srv media data var/lib/docker var/log var/tmp usr/local/sbin usr/local/bin
chmod 1777 tmp var/tmp
chmod 700 root
cp -a "$RIG_STATE/seed/." .
chown -R 1234:1234 home/bench

# --- kernel file systems
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755,size=1m dev dev
node() { mknod -m "$2" "$1" c "$3" "$4"; }
node dev/null 666 1 3 && node dev/zero 666 1 5 && node dev/full 666 1 7
node dev/random 666 1 8 && node dev/urandom 666 1 9 && node dev/tty 666 5 0
mkdir dev/pts dev/shm dev/mqueue dev/dri
# stand-ins for the GPU nodes: they can be opened and handed to a container, no more
node dev/kfd 660 1 3 && node dev/dri/renderD128 660 1 3 && node dev/dri/card0 660 1 3
chgrp "$RIG_RENDER_GID" dev/kfd dev/dri/renderD128
chgrp "$RIG_VIDEO_GID" dev/dri/card0
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t mqueue mqueue dev/mqueue
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin && ln -s fd/1 dev/stdout && ln -s fd/2 dev/stderr
mount -t tmpfs -o mode=755,size=64m run run
mkdir -p run/sshd run/lock
mount -t tmpfs -o "mode=1777,size=$RIG_DATA" rig-data data
if [ "$RIG_CGROUP" = 2 ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs -o mode=755,size=1m cgroup sys/fs/cgroup
    for controllers in $RIG_CONTROLLERS; do # "cpu,cpuacct", "name=systemd"
        mkdir "sys/fs/cgroup/${controllers#name=}"
        case $controllers in
        name=*) options="none,$controllers" ;;
        *) options=$controllers ;;
        esac
        mount -t cgroup -o "$options" cgroup "sys/fs/cgroup/${controllers#name=}"
    done
fi
mount --bind "$RIG_DOCKER" var/lib/docker # overlay2 cannot live on an overlay
for bind in $RIG_BINDS; do
    IFS=: read -r source target mode <<<"$bind"
    mkdir -p "./$target"
    mount --bind "$source" "./$target"
    [ "$mode" = rw ] || mount -o remount,bind,ro "./$target"
done

mkdir .old
pivot_root . .old
cd /
umount -l /.old
rmdir /.old

# --- the host
hostname "$RIG_NAME"
ip link set lo up
ip address add "$RIG_ADDRESS/24" dev eth0
ip link set eth0 up
ip route add default via "$RIG_GATEWAY"
clean="env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8"
cd /root
$clean /usr/sbin/sshd -E /var/log/sshd.log
$clean dockerd >>/var/log/dockerd.log 2>&1 &
exec $clean tini -- sleep infinity >/dev/null 2>&1
