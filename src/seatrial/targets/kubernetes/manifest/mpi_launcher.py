"""Pods under MPI: a launcher that runs mpirun, and nodes that wait for it, each with an sshd.

The sshd needs neither root nor a capability: it uses a high port, a host key of its user, and no PID file. Its
configuration sets PATH and LD_LIBRARY_PATH of the container, which ssh would drop; mpirun passes on all the others.
All pods have one key pair, that of the Secret of the run, so the host keys are known in advance and checked. The one
that the operators bring is read nowhere: they take any Secret of its name, with what commands its public part may hold.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from seatrial.targets.kubernetes.manifest import wait_for_hosts
from seatrial.targets.kubernetes.manifest.objects import SSH_KEY
from seatrial.targets.kubernetes.manifest.pod import (
    EXPANDED,
    NODE_NAME,
    copied_argv,
    copy_argv,
    env_names,
    escaped,
    pod_template,
)
from seatrial.targets.kubernetes.manifest.workload import COPY, JOIN_TIMEOUT_S, SCRATCH, Object, Workload

SSH = "/opt/seatrial-ssh"
"""Folder into which the operators mount their key."""
_PORT = 2222
_HOSTFILE = "/etc/mpi/hostfile"
_HOSTS = f"{SCRATCH}/hosts"
"""A copy of the host file, which is compared with the run. Others may change the operator's one at any time."""
_KEY = f"{SCRATCH}/ssh_key"
_KEY_VARIABLE = "SEATRIAL_SSH_KEY"
_AUTHORIZED_KEYS = f"{SCRATCH}/authorized_keys"
_KNOWN_HOSTS = f"{SCRATCH}/known_hosts"
_WAIT = "wait_for_hosts.py"
_POD_IP = "SEATRIAL_POD_IP"

_SSH_CONFIG = f"""Host *
  Port {_PORT}
  IdentityFile {_KEY}
  IdentitiesOnly yes
  UserKnownHostsFile {_KNOWN_HOSTS}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectionAttempts 10
  ConnectTimeout 10
  ServerAliveInterval 15
  LogLevel ERROR
"""
# StrictModes: the folder above the keys is a volume that its group can write to, which sshd would refuse.
_SSHD_CONFIG = f"""Port {_PORT}
HostKey {_KEY}
AuthorizedKeysFile {_AUTHORIZED_KEYS}
StrictModes no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding no
X11Forwarding no
MaxStartups 256:30:1024
PrintMotd no
"""
# The scripts contain no text of a user, which comes as their arguments. Every pod gets the known hosts, since with many
# hosts the daemons of MPI start one another as a tree. The umask of the ranks is that of sshd. Of the public key only
# its first two words count: a comment can hold whatever a file can, lines with options and commands as well.
_NEED = 'need() { [ -s "$1" ] || { echo "Error: $1 is not there: the operator has not mounted $2." >&2; exit 3; }; }'
_TAKE_KEY = f"""(umask 077
printf '%s\\n' "${_KEY_VARIABLE}" > {_KEY} && ssh-keygen -y -f {_KEY} < /dev/null > {_AUTHORIZED_KEYS}) || {{
  echo "Error: ssh-keygen finds no key in {SSH_KEY} of the Secret of this run (its words are above)." >&2
  exit 3
}}
unset {_KEY_VARIABLE}
read -r type key comment < {_AUTHORIZED_KEYS}
echo "$type $key" > {_AUTHORIZED_KEYS} && echo "* $type $key" > {_KNOWN_HOSTS} || exit 3"""
_LAUNCH = f"""{_TAKE_KEY}
{_NEED}
need {_HOSTFILE} "the list of the nodes"
cat {_HOSTFILE} > {_HOSTS} || exit 3
exec "$0" {COPY}/{_WAIT} {_HOSTFILE} {_HOSTS} "$@"
"""
# The interpreter is $0 of the script; what the host file must have and the command of mpirun are its arguments.
# The start script joins the bundle before sshd runs, so that every rank finds it at the same path.
_SERVE = f"""{_TAKE_KEY}
"$@" || exit
own="{NODE_NAME}=${NODE_NAME} PATH=$PATH LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
exec /usr/sbin/sshd -D -e -f {COPY}/sshd_config -o "SetEnv=$own"
"""


def mpi_files() -> Mapping[str, bytes]:
    """Return the configuration of ssh and sshd, and the first program of the launcher: file name -> content."""
    return {
        "ssh_config": _SSH_CONFIG.encode(),
        "sshd_config": _SSHD_CONFIG.encode(),
        _WAIT: _wait_script().encode(),
    }


def _wait_script() -> str:
    return inspect.getsource(wait_for_hosts)


def launcher_template(workload: Workload, *, container: str, host: str, mpi: str, mpirun: str) -> Object:
    """Return the template of the pod that runs mpirun; it has no GPU.

    Args:
        workload: The run.
        container: Name of the container; the operators look for it.
        host: The name of a node in the namespace, with ``{}`` for its number.
        mpi: The implementation in the image, ``openmpi``, ``mpich`` or ``intel``.
        mpirun: Its name or path there.
    """
    slots = f"{' slots=' if mpi == 'openmpi' else ':'}{workload.nproc_per_node}"
    wait = [host, slots, str(workload.nodes), str(_PORT), str(JOIN_TIMEOUT_S), mpi]
    start = [*wait, *_mpirun(workload, mpi, mpirun), *copied_argv(workload)]
    command = ["/bin/sh", "-c", _LAUNCH.replace("$", "$$"), escaped(workload.python), *start]
    return pod_template(
        workload,
        container=container,
        command=command,
        env={"MASTER_PORT": str(workload.master_port)},
        component="launcher",
        secrets={_KEY_VARIABLE: SSH_KEY},
        fields={} if mpi == "openmpi" else {_POD_IP: "status.podIP"},
    )


def worker_template(workload: Workload, *, container: str) -> Object:
    """Return the template of a pod that holds ranks once mpirun has reached it."""
    return pod_template(
        workload,
        container=container,
        command=["/bin/sh", "-c", _SERVE.replace("$", "$$"), "worker", *copy_argv(workload)],
        env={},
        # A running pod is not ready: without the probe the launcher would start before the sshd of the nodes.
        probe={"tcpSocket": {"port": _PORT}, "periodSeconds": 2},
        secrets={_KEY_VARIABLE: SSH_KEY},
    )


def _mpirun(workload: Workload, mpi: str, mpirun: str) -> list[str]:
    """Return the command up to the program. It names the host file and the options of ssh: Open MPI 5 ignores the
    operators' variables for them, and would start all ranks in the launcher."""
    names = [*env_names(workload), "MASTER_ADDR", "MASTER_PORT"]
    size = str(workload.world_size)
    if mpi == "openmpi":
        passed = [word for name in names for word in ("-x", name)]
        return [
            *(mpirun, "--hostfile", _HOSTS, "-np", size, "--bind-to", "none", "--map-by", "slot"),
            *("--mca", "plm_rsh_args", f"-F {COPY}/ssh_config"),
            # Open MPI 4 cuts host names at the first dot, and the short names do not resolve.
            *("--mca", "orte_keep_fqdn_hostnames", "1"),
            *passed,
        ]
    # `env` overrides the same variables of the operator.
    # MPICH reads the first one. The second one, which mpi-operator sets, was read by old releases alone.
    hydra = ("HYDRA_LAUNCHER_EXTRA_ARGS", "HYDRA_LAUNCH_EXTRA_ARGS")
    extra = hydra if mpi == "mpich" else ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",)
    # Above 16 hosts Intel's proxies would start further ones, which get the names of theirs.
    flat = f"I_MPI_HYDRA_BRANCH_COUNT={workload.nodes}"
    intel = ["I_MPI_HYDRA_BOOTSTRAP=ssh", "I_MPI_PIN=0", flat] if mpi == "intel" else []
    # A number, not a name (`wait_for_hosts.py`). Intel MPI ignores this option.
    address = ["-localhost", EXPANDED.format(_POD_IP)] if mpi == "mpich" else []
    binding = ["-bind-to", "none"] if mpi == "mpich" else []
    return [
        *("env", *(f"{name}=-F {COPY}/ssh_config" for name in extra), *intel),
        *(mpirun, *address, "-f", _HOSTS, "-np", size, *binding, "-genvlist", ",".join(names)),
    ]
