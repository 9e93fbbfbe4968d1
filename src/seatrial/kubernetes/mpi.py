"""Pods under MPI: a launcher that calls mpirun, and nodes that wait for it with an sshd of their own.

The sshd needs no root and no capability: a high port, the mounted key as host key, no file of process ids. It is told
the PATH of its container, which sessions of ssh do not see otherwise; all other variables are passed on by mpirun. The
operators give all pods one key pair, so host keys are known beforehand, and checked.
"""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.kubernetes.pod import NODE_NAME, env_names, pod_template, seatrial_argv
from seatrial.kubernetes.workload import CODE, SCRATCH, Object, Workload

__all__ = ["SSH", "launcher_template", "mpi_files", "worker_template"]

SSH = "/opt/seatrial-ssh"
"""Where the operators are told to put the key."""
_PORT = 2222
_HOSTFILE = "/etc/mpi/hostfile"
_KNOWN_HOSTS = f"{SCRATCH}/known_hosts"

_SSH_CONFIG = f"""Host *
  Port {_PORT}
  IdentityFile {SSH}/id_rsa
  UserKnownHostsFile {_KNOWN_HOSTS}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectionAttempts 10
  ConnectTimeout 10
  ServerAliveInterval 15
  LogLevel ERROR
"""
# StrictModes: the folders above the key belong to root and the volume's group, which sshd takes for a danger.
_SSHD_CONFIG = f"""Port {_PORT}
HostKey {SSH}/id_rsa
AuthorizedKeysFile {SSH}/authorized_keys
StrictModes no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding no
X11Forwarding no
MaxStartups 256:30:1024
PrintMotd no
"""
# No word of a user is in these; what follows comes as their arguments. On every pod, as a daemon of MPI may start
# others in turn (a tree, for many hosts).
_NEED = 'need() { [ -s "$1" ] || { echo "Error: $1 is not there: the operator has not mounted $2." >&2; exit 3; }; }'
_KNOW_HOSTS = f"""{_NEED}
need {SSH}/id_rsa.pub "the key of the run"
sed "s/^/* /" {SSH}/id_rsa.pub > {_KNOWN_HOSTS} || exit 3"""
_LAUNCH = f"""{_KNOW_HOSTS}
need {_HOSTFILE} "the list of the nodes"
MASTER_ADDR=$(sed -n "1s/[ :].*//p" {_HOSTFILE})
export MASTER_ADDR
exec "$@"
"""
_SERVE = f"""{_KNOW_HOSTS}
own="{NODE_NAME}=${NODE_NAME} PATH=$PATH LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
exec /usr/sbin/sshd -D -e -f {CODE}/sshd_config -o "SetEnv=$own"
"""


def mpi_files() -> Mapping[str, bytes]:
    """What the pods need beside the file that travels."""
    return {"ssh_config": _SSH_CONFIG.encode(), "sshd_config": _SSHD_CONFIG.encode()}


def launcher_template(workload: Workload, *, container: str) -> Object:
    """The pod that calls mpirun; it needs no device."""
    command = ["/bin/sh", "-c", _LAUNCH.replace("$", "$$"), "launcher", *_mpirun(workload), *seatrial_argv(workload)]
    return pod_template(
        workload,
        container=container,
        command=command,
        env={"MASTER_PORT": str(workload.master_port)},
        component="launcher",
    )


def worker_template(workload: Workload, *, container: str) -> Object:
    """A pod that holds ranks, as soon as mpirun has reached it."""
    return pod_template(
        workload,
        container=container,
        command=["/bin/sh", "-c", _SERVE.replace("$", "$$")],
        env={},
        # Running is not ready: without this the launcher comes before the sshd of the others.
        probe={"tcpSocket": {"port": _PORT}, "periodSeconds": 2},
    )


def _mpirun(workload: Workload) -> list[str]:
    """The command up to the program. Host file and ssh's options are told here: Open MPI 5 does not read the
    operators' variables, and would start all ranks in the launcher."""
    names = [*env_names(workload), "MASTER_ADDR", "MASTER_PORT"]
    size = str(workload.world_size)
    if workload.mpi == "openmpi":
        passed = [word for name in names for word in ("-x", name)]
        return [
            *(workload.mpirun, "--hostfile", _HOSTFILE, "-np", size, "--bind-to", "none", "--map-by", "slot"),
            *("--mca", "plm_rsh_args", f"-F {CODE}/ssh_config"),
            # Open MPI 4 cuts names at the first dot, and the rest is what makes them resolve.
            *("--mca", "orte_keep_fqdn_hostnames", "1"),
            *passed,
        ]
    # `env` comes last: the operator has set the same variables.
    extra = "HYDRA_LAUNCH_EXTRA_ARGS" if workload.mpi == "mpich" else "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"
    intel = ["I_MPI_HYDRA_BOOTSTRAP=ssh", "I_MPI_PIN=0"] if workload.mpi == "intel" else []
    binding = ["-bind-to", "none"] if workload.mpi == "mpich" else []
    return [
        *("env", f"{extra}=-F {CODE}/ssh_config", *intel),
        *(workload.mpirun, "-f", _HOSTFILE, "-np", size, *binding, "-genvlist", ",".join(names)),
    ]
