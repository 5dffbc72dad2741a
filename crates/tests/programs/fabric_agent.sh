#!/bin/sh
# Open MPI's plm_rsh_agent (agent HOST COMMAND...): a host is namespaces of its own, joined to the bridge "job" of the namespace $JOB_NETWORK.
export TOE_VIA_NODE="$1" JOB_HOST="$1" JOB_N="${1##*.}"
shift
export JOB_COMMAND="$*"
exec unshare -n -u -m -i sh -ec '
    nsenter --net="$JOB_NETWORK" ip link add "job$JOB_N" type veth peer name "host$JOB_N"
    nsenter --net="$JOB_NETWORK" ip link set "job$JOB_N" master job up
    nsenter --net="$JOB_NETWORK" ip link set "host$JOB_N" netns $$
    ip addr add "$JOB_HOST/24" dev "host$JOB_N"
    ip link set "host$JOB_N" up
    ip link set lo up
    hostname "job$JOB_N"
    mount -t tmpfs none /dev/shm
    exec sh -c "$JOB_COMMAND"
'
