# What is asked for, and what AWS says of these types: GPUs, placement, EFA, zones.
locals {
  types_of_kinds = { cpu = "t3.xlarge", nvidia = "g4dn.xlarge", amd = "g4ad.xlarge" }
  # Enough to call mpirun. It has 1 GiB of memory, too little for torch.
  launcher_type = "t3.micro"

  kinds_asked = length(var.worker_kinds) > 0 ? var.worker_kinds : [
    for number in range(var.multinode_mpi ? var.worker_count : 1) : var.worker_kind
  ]
  worker_types   = [for kind in local.kinds_asked : lookup(local.types_of_kinds, kind, kind)]
  launcher_count = var.multinode_mpi ? 1 : 0
  all_types      = toset(concat(local.worker_types, var.multinode_mpi ? [local.launcher_type] : []))

  zones_by_type = {
    for type in local.all_types : type => [
      for place, zone in data.aws_ec2_instance_type_offerings.of.locations : zone
      if data.aws_ec2_instance_type_offerings.of.instance_types[place] == type
    ]
  }
  usable_zones = sort(setintersection(values(local.zones_by_type)...))
  zone         = var.availability_zone != "" ? var.availability_zone : try(local.usable_zones[0], "")

  facts   = { for type, found in data.aws_ec2_instance_type.of : type => found }
  makers  = { for type, found in local.facts : type => coalesce(one(toset(found.gpus[*].manufacturer)), "none") }
  kinds   = { for type, maker in local.makers : type => lookup({ NVIDIA = "nvidia", AMD = "amd" }, maker, "cpu") }
  gpus    = { for type, found in local.facts : type => sum(concat([0], found.gpus[*].count)) }
  cluster = { for type, found in local.facts : type => contains(found.supported_placement_strategies, "cluster") }
  efa     = { for type, found in local.facts : type => found.efa_supported }
  images  = { for type, kind in local.kinds : type => kind == "nvidia" ? "nvidia" : "ubuntu" }
}

data "aws_ec2_instance_type_offerings" "of" {
  location_type = "availability-zone"
  filter {
    name   = "instance-type"
    values = local.all_types
  }
  lifecycle {
    postcondition {
      condition     = length(setsubtract(local.all_types, self.instance_types)) == 0
      error_message = "${var.region} does not offer ${join(", ", setsubtract(local.all_types, self.instance_types))} to this account. Choose another region, or another worker_kind."
    }
  }
}

data "aws_ec2_instance_type" "of" {
  # Asked one by one, and only about what the region offers: so an unknown type ends in the sentence above.
  depends_on    = [data.aws_ec2_instance_type_offerings.of]
  for_each      = local.all_types
  instance_type = each.value
  lifecycle {
    postcondition {
      condition     = contains(self.supported_architectures, "x86_64")
      error_message = "${each.value} has no x86_64 processor, and the machine images here are made for x86_64. Choose another instance type."
    }
  }
}

data "aws_ami" "of" {
  for_each           = toset(values(local.images))
  owners             = [var.images[each.value].owner]
  include_deprecated = true
  filter {
    name   = "name"
    values = [var.images[each.value].name]
  }
}
