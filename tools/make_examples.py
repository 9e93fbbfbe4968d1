"""Write deploy/examples: each file is what the command in its first lines prints.

.venv/bin/python tools/make_examples.py
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from seatrial.cli.argparse_app import parse
from seatrial.environment.identity import Identity
from seatrial.request.training_request import resolve
from seatrial.request.trial_request import job_of, request_of
from seatrial.targets.registry import dry_run_lines

FOLDER = Path(__file__).parents[1] / "deploy" / "examples"
_IMAGE = "registry.example.com/ml/train:1"
_NOBODY = Identity(launcher="none", level="none")

EXAMPLES = {
    "job-one-node-4-gpus": "run quick --on job --gpus-per-node 4 --shm-size 1Gi --node-selector launch=Karpenter",
    "job-2-nodes": "run standard --on job --nodes 2 --gpus-per-node 8 --shm-size 16Gi --spread required",
    "job-cpu": "run smoke --on job --nodes 2 --gpu-resource none --nproc-per-node 2",
    "job-amd": "run quick --on job --nodes 2 --gpus-per-node 8 --gpu-resource amd.com/gpu",
    "job-openshift-arbitrary-uid": "run quick --on job --nodes 2 --gpus-per-node 1 --openshift arbitrary-uid",
    "jobset-train": "train mnist --on jobset --nodes 2 --gpus-per-node 8 --max-restarts 2 --epochs 3 --data /data/mnist"
    " --checkpoint-dir /data/checkpoints --pvc data:/data",
    "pytorchjob-2x4": "train fashion-mnist --on pytorchjob --nodes 2 --gpus-per-node 4 --model resnet18 --epochs 1"
    " --batch-size 256 --data /data --pvc fashion-mnist:/data",
    "pytorchjob-4x2-host-network": "train fashion-mnist --on pytorchjob --nodes 4 --gpus-per-node 2 --model resnet18"
    " --epochs 1 --batch-size 256 --data /data --pvc fashion-mnist:/data --host-network --spread required",
    "pytorchjob-8x1-file": "train fashion-mnist --on pytorchjob --nodes 8 --gpus-per-node 1 --model resnet18 --epochs 1"
    " --batch-size 256 --data /data --pvc fashion-mnist:/data --init file:///data/meet-example",
    "pytorchjob-trial": "run quick --on pytorchjob --nodes 2 --gpus-per-node 8",
    "trainjob-torch": "run quick --on trainjob --nodes 2 --gpus-per-node 8",
    "trainjob-mpi": "run quick --on trainjob --runtime mpi --nodes 2 --gpus-per-node 8",
    "mpijob": "run quick --on mpijob --nodes 2 --gpus-per-node 2 --shm-size 8Gi",
    "mpijob-openshift-custom-scc": "run quick --on mpijob --nodes 2 --gpus-per-node 2 --openshift custom-scc"
    " --namespace kubeflow-testing",
    "rdma": "run standard --on job --nodes 4 --gpus-per-node 8 --rdma rdma/hca_shared_devices_a=8 --cpu 64"
    " --memory 512Gi --shm-size 64Gi --spread required --toleration reserved=trials:NoSchedule",
}
"""Name of the file -> what is typed after ``seatrial``, but for what all of them have."""


def text_of(name: str) -> str:
    """The file: the command, and what it prints, but for the Secret: nobody is to run with one that all can read."""
    common = f"--image {_IMAGE} --image-has-seatrial --name example --dry-run"
    command, *typed = shlex.split(f"{EXAMPLES[name]} {common}")
    values = parse("seatrial", command, typed)
    if command == "run":
        lines = dry_run_lines(job_of(request_of(values), _NOBODY, None)[0], values["out"])
    else:
        lines = resolve(values, _NOBODY, {}, debug=False).dry_run()
    documents = re.split(r"^---\n", "\n".join(lines), flags=re.MULTILINE)
    kept = [document for document in documents[1:] if "\nkind: Secret\n" not in document]
    assert len(kept) == len(documents) - 2
    (secret,) = (document for document in documents[1:] if document not in kept)
    head = [
        f"# Printed by: seatrial {EXAMPLES[name]}",
        f"#   {common}",
        "# without its Secret, which is a fresh one for each run. Apply this file only after you have made it: where",
        "# kubectl says AlreadyExists the Secret is somebody else's, or of another run, and you need another name.",
        *_commands(name, has_key="ssh-privatekey" in secret),
        "# Written by tools/make_examples.py.",
    ]
    return "\n".join(head) + "\n" + "".join(f"---\n{document.rstrip()}\n" for document in kept)


def _commands(name: str, *, has_key: bool) -> list[str]:
    """The lines that make the Secret and then apply the file: nobody else may have made the one that the pods read."""
    words = shlex.split(EXAMPLES[name])
    where = f" -n {words[words.index('--namespace') + 1]}" if "--namespace" in words else ""
    create = [
        "openssl rand -hex 24 | tr -d '\\n' |",
        f"  kubectl create secret generic example --from-file=token=/dev/stdin{where}",
    ]
    apply = f"  kubectl apply -f {name}.yaml"
    if not has_key:
        lines = [create[0], f"{create[1]} &&", apply]
    else:
        lines = [
            "d=$(mktemp -d) && ssh-keygen -q -t ecdsa -b 521 -N '' -C '' -f \"$d/key\" &&",
            create[0],
            f'{create[1]} --from-file=ssh-privatekey="$d/key" &&',
            f'{apply}; rm -r "$d"',
        ]
    return [f"#   {line}" for line in lines]


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.yaml"):
        old.unlink()
    for each in EXAMPLES:
        (FOLDER / f"{each}.yaml").write_text(text_of(each))
