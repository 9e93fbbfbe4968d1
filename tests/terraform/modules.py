"""The Terraform module for EC2, run against a double of EC2 on the loopback (``moto_server.py``)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["MODULE", "ROOT", "Applied", "Module", "applied", "moto", "resources", "sentences", "user_data"]

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "deploy" / "terraform" / "ec2"
_MOST_S = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A copy of it, initialized from the provider of this machine."""

    folder: Path
    environ: dict[str, str]

    @classmethod
    def copied(cls, folder: Path, endpoint: str) -> Module:
        """Copy the module into a folder. ``endpoint`` is the address of the double."""
        folder.mkdir(exist_ok=True)
        place = folder / "deploy" / "terraform" / "ec2"
        ignored = shutil.ignore_patterns(".terraform", "*.tfstate*", "*.tfvars", "seatrial-ssh", "connect.sh")
        shutil.copytree(MODULE, place, ignore=ignored)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", str(folder / "key")], check=True
        )
        (folder / "terraformrc").touch()
        kept = {name: os.environ[name] for name in ("PATH", "SEATRIAL_TEST_RUN") if name in os.environ}
        environ = {
            **kept,
            "HOME": str(folder),
            "TF_CLI_CONFIG_FILE": str(folder / "terraformrc"),
            "TF_IN_AUTOMATION": "1",
            "CHECKPOINT_DISABLE": "1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": endpoint,
            # Nothing that is not on the loopback is reached.
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1",
            "TF_VAR_ssh_public_key_file": str(folder / "key.pub"),
        }
        made = cls(folder=place, environ=environ)
        plugins = os.environ["SEATRIAL_TEST_TERRAFORM_PLUGINS"]
        made("init", "-input=false", f"-plugin-dir={plugins}", "-lockfile=readonly")
        return made

    def run(self, *words: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        """Run ``terraform`` to its end, with variables for the module."""
        told = {
            f"TF_VAR_{name}": value if isinstance(value, str) else json.dumps(value)
            for name, value in variables.items()
        }
        process = subprocess.Popen(
            ["terraform", *words],
            cwd=self.folder,
            env={**self.environ, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            output, errors = process.communicate(timeout=_MOST_S)
        except subprocess.TimeoutExpired:
            # It ends its provider, and then itself.
            process.terminate()
            output, errors = process.communicate(timeout=20)
            raise AssertionError(f"terraform {words[0]} has not ended in {_MOST_S:.0f} s: {output[-2000:]}") from None
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def __call__(self, *words: str, **variables: Any) -> str:
        """Run it as ``run`` does, and return its output; it must succeed."""
        done = self.run(*words, **variables)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr
        return done.stdout

    def plan(self, **variables: Any) -> dict[str, Any]:
        """Return what a plan says: ``planned_values``, ``prior_state`` and so on."""
        self("plan", "-input=false", "-no-color", "-out=plan", **variables)
        plan: dict[str, Any] = json.loads(self("show", "-json", "plan"))
        return plan

    def apply(self, **variables: Any) -> Applied:
        """Apply it, and return what is there then."""
        self("apply", "-input=false", "-no-color", "-auto-approve", **variables)
        state = json.loads(self("show", "-json"))
        outputs = {name: output["value"] for name, output in state["values"]["outputs"].items()}
        return Applied(folder=self.folder, state=state, outputs=outputs)

    def destroy(self, **variables: Any) -> None:
        """Destroy it. Nothing is left then."""
        self("destroy", "-input=false", "-no-color", "-auto-approve", **variables)
        assert json.loads(self("show", "-json")) == {"format_version": "1.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What ``apply`` has made."""

    folder: Path
    state: dict[str, Any]
    outputs: dict[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        """What ``resources`` takes."""
        values: dict[str, Any] = self.state["values"]
        return values


@contextlib.contextmanager
def applied(folder: Path, endpoint: str, **clusters: dict[str, Any]) -> Iterator[dict[str, Applied]]:
    """Apply some clusters at once, by name, and destroy them at the end: it is mostly waiting."""
    made = {name: Module.copied(folder / name, endpoint) for name in clusters}

    def at_once(do: Callable[[str], Any]) -> dict[str, Any]:
        with ThreadPoolExecutor() as threads:
            begun = {name: threads.submit(do, name) for name in made}
        return {name: future.result() for name, future in begun.items()}

    with contextlib.ExitStack() as stack:
        stack.callback(at_once, lambda name: made[name].destroy(**clusters[name]))
        yield at_once(lambda name: made[name].apply(**clusters[name]))


def resources(values: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """Address -> values, of one kind of resource in a plan or a state."""
    found = values["root_module"].get("resources", [])
    return {each["address"]: each["values"] for each in found if each["type"] == kind and each["mode"] == "managed"}


def user_data(instance: dict[str, Any]) -> str:
    """What a machine is told at its first start."""
    return base64.b64decode(instance["user_data_base64"]).decode()


def sentences(errors: str) -> str:
    """What terraform says, without its line breaks."""
    return " ".join(errors.replace("│", " ").replace("╷", " ").replace("╵", " ").split())


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """Start the double and yield its address; it ends with the block."""
    command = [sys.executable, str(Path(__file__).with_name("moto_server.py")), os.environ["SEATRIAL_TEST_MOTO"]]
    environ = {name: os.environ[name] for name in ("PATH", "SEATRIAL_TEST_RUN", "HOME") if name in os.environ}
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), process.communicate(timeout=10)[1]
            yield address
        finally:
            process.kill()
            process.communicate(timeout=10)
