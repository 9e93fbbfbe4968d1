"""A double of AWS's API for EC2: moto, on the loopback, until its standard input ends. The first line is its address.

``python moto_server.py FOLDER``: FOLDER has moto (``pip install --target``). Three things are added to what moto knows.
The machine images that we ask for. g4ad, which is in none of its lists: what is said of it is what AWS's page on the
type says (one Radeon Pro V520, 4 vCPU, cluster placement groups, no EFA), in the form that moto has for g4dn. And
placement groups, of which moto knows nothing: they can be made, listed and deleted.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

__all__: list[str] = []

IMAGES = {
    "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20260904": ("099720109477", 8),
    "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261006": ("137112412989", 75),
}
"""Name -> owner, and size of its disk in GB. moto takes the second owner for the alias ``amazon``."""


def main(folder: Path) -> None:
    """Do what the first lines say."""
    images = folder / f"images-{os.getpid()}.json"
    images.write_text(json.dumps([_image(number, name) for number, name in enumerate(IMAGES)]))
    os.environ["MOTO_AMIS_PATH"] = str(images)
    sys.path.insert(0, str(folder))
    from moto.ec2.models import instance_types as known  # type: ignore[import-not-found]
    from moto.server import ThreadedMotoServer  # type: ignore[import-not-found]

    images.unlink()
    g4ad = copy.deepcopy(known.INSTANCE_TYPES["g4dn.xlarge"])
    g4ad["InstanceType"] = "g4ad.xlarge"
    g4ad["GpuInfo"]["Gpus"] = [
        {"Count": 1, "Manufacturer": "AMD", "MemoryInfo": {"SizeInMiB": 8192}, "Name": "Radeon Pro V520"}
    ]
    known.INSTANCE_TYPES["g4ad.xlarge"] = g4ad
    known.InstanceTypeBackend.instance_types.append(known.InstanceType("g4ad.xlarge"))
    # In one zone only, so that it decides for all.
    known.INSTANCE_TYPE_OFFERINGS["availability-zone"]["eu-west-1"].append(
        {"InstanceType": "g4ad.xlarge", "Location": "eu-west-1b", "LocationType": "availability-zone"}
    )
    _add_placement_groups()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()


def _add_placement_groups() -> None:
    from moto.core.responses import ActionResult  # type: ignore[import-not-found]
    from moto.ec2.responses import EC2Response  # type: ignore[import-not-found]

    made: dict[str, dict[str, str]] = {}

    def create(response: Any) -> Any:
        name = response._get_param("GroupName")
        made[name] = {
            "GroupName": name,
            "GroupId": f"pg-{len(made):017x}",
            "State": "available",
            "Strategy": response._get_param("Strategy"),
            "GroupArn": f"arn:aws:ec2:eu-west-1:123456789012:placement-group/{name}",
        }
        return ActionResult({"PlacementGroup": made[name]})

    def describe(response: Any) -> Any:
        wanted = response._get_param("GroupNames", [])
        return ActionResult({"PlacementGroups": [group for name, group in made.items() if name in wanted]})

    def delete(response: Any) -> Any:
        made.pop(response._get_param("GroupName"))
        return ActionResult({})

    EC2Response.create_placement_group = create
    EC2Response.describe_placement_groups = describe
    EC2Response.delete_placement_group = delete


def _image(number: int, name: str) -> dict[str, object]:
    return {
        "ami_id": f"ami-{number:08x}",
        "name": name,
        "owner_id": IMAGES[name][0],
        "state": "available",
        "public": True,
        "image_location": name,
        "image_type": "machine",
        "architecture": "x86_64",
        "description": "a double",
        "hypervisor": "xen",
        "virtualization_type": "hvm",
        "root_device_type": "ebs",
        "root_device_name": "/dev/sda1",
        "sriov": "simple",
        "platform": None,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
