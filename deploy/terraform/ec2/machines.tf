locals {
  user = "trial"
  # Addresses that are known before there is a machine: so each one can be told the names of all others.
  worker_network = var.multinode_mpi ? local.private_network : local.public_network
  workers = {
    for number, type in local.worker_types : "worker-${number}" => {
      number  = number
      type    = type
      kind    = local.kinds[type]
      address = cidrhost(local.worker_network, 10 + number)
      # The interface of EFA is made apart, and such a one gets no public address, which a single machine needs.
      efa = local.efa[type] && var.multinode_mpi
    }
  }
  launcher_address = cidrhost(local.public_network, 10)
  head             = var.multinode_mpi ? "launcher" : "worker-0"
  addresses = merge(
    { for name, worker in local.workers : name => worker.address },
    var.multinode_mpi ? { launcher = local.launcher_address } : {},
  )

  # One device for all ranks. With AMD GPUs it is the CPU: ROCm has no kernels for those of g4ad (docs/ec2.md).
  device = alltrue([for worker in local.workers : worker.kind == "nvidia"]) ? "cuda" : "cpu"
  # One build of torch for all: ranks with different ones are no training that is to be accepted.
  build    = length(distinct(values(local.workers)[*].kind)) == 1 ? local.workers["worker-0"].kind : "cpu"
  hostfile = join("", [for number in range(length(local.workers)) : "worker-${number} slots=${local.device == "cuda" ? local.gpus[local.worker_types[number]] : 1}\n"])

  boot    = file("${path.module}/machine/boot.sh")
  prepare = file("${path.module}/machine/prepare.sh")
  install = file("${path.module}/machine/install.sh")
  user_data = {
    for name, address in local.addresses : name => templatefile("${path.module}/machine/cloud-init.yaml.tftpl", {
      name         = name
      user         = local.user
      public_key   = trimspace(file(pathexpand(var.ssh_public_key_file)))
      boot         = local.boot
      prepare      = local.prepare
      install      = local.install
      stop_after_s = floor(var.stop_after_hours * 3600)
      # The launcher leads this network out.
      leads_out = name == "launcher" ? local.private_network : ""
      kind      = name == "launcher" ? "launcher" : local.workers[name].kind
      shares    = var.multinode_mpi ? local.private_network : ""
      hosts     = join("", [for other, its_address in local.addresses : "${its_address} ${other}\n"])
      hostfile  = local.hostfile
      torch     = "torch==${var.torch_version}"
      index_url = name == "launcher" ? "" : var.torch_index_urls[local.build]
    })
  }
}

resource "aws_placement_group" "near" {
  # One machine is near itself.
  count    = var.multinode_mpi && anytrue([for worker in local.workers : local.cluster[worker.type]]) ? 1 : 0
  name     = "${var.name}-near"
  strategy = "cluster"
}

resource "aws_instance" "launcher" {
  count                                = local.launcher_count
  ami                                  = data.aws_ami.of["ubuntu"].id
  instance_type                        = local.launcher_type
  subnet_id                            = aws_subnet.public.id
  private_ip                           = local.launcher_address
  associate_public_ip_address          = true
  source_dest_check                    = false
  vpc_security_group_ids               = [aws_security_group.cluster.id, aws_security_group.ssh.id]
  user_data_base64                     = base64encode(local.user_data["launcher"])
  user_data_replace_on_change          = true
  instance_initiated_shutdown_behavior = "terminate"
  tags                                 = { Name = "${var.name}-launcher" }
  volume_tags                          = merge(local.tags, { Name = "${var.name}-launcher" })
  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
  root_block_device {
    encrypted             = true
    volume_type           = "gp3"
    volume_size           = var.launcher_disk_gb
    delete_on_termination = true
  }
  # What it fetches at its first start comes this way.
  depends_on = [aws_route.public, aws_route_table_association.public, aws_vpc_security_group_egress_rule.packages]
}

resource "aws_network_interface" "efa" {
  for_each        = { for name, worker in local.workers : name => worker if worker.efa }
  subnet_id       = aws_subnet.private[0].id
  private_ips     = [each.value.address]
  security_groups = [aws_security_group.cluster.id]
  interface_type  = "efa"
  tags            = { Name = "${var.name}-${each.key}" }
}

resource "aws_instance" "worker" {
  for_each                             = local.workers
  ami                                  = data.aws_ami.of[local.images[each.value.type]].id
  instance_type                        = each.value.type
  placement_group                      = var.multinode_mpi && local.cluster[each.value.type] ? aws_placement_group.near[0].name : null
  subnet_id                            = each.value.efa ? null : var.multinode_mpi ? aws_subnet.private[0].id : aws_subnet.public.id
  private_ip                           = each.value.efa ? null : each.value.address
  associate_public_ip_address          = each.value.efa ? null : !var.multinode_mpi
  vpc_security_group_ids               = each.value.efa ? null : concat([aws_security_group.cluster.id], var.multinode_mpi ? [] : [aws_security_group.ssh.id])
  user_data_base64                     = base64encode(local.user_data[each.key])
  user_data_replace_on_change          = true
  instance_initiated_shutdown_behavior = "terminate"
  tags                                 = { Name = "${var.name}-${each.key}" }
  volume_tags                          = merge(local.tags, { Name = "${var.name}-${each.key}" })
  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
  root_block_device {
    encrypted             = true
    volume_type           = "gp3"
    volume_size           = var.worker_disk_gb
    delete_on_termination = true
  }
  dynamic "network_interface" {
    for_each = each.value.efa ? [aws_network_interface.efa[each.key].id] : []
    content {
      network_interface_id = network_interface.value
      device_index         = 0
    }
  }
  dynamic "instance_market_options" {
    for_each = var.spot ? ["spot"] : []
    content {
      market_type = instance_market_options.value
    }
  }
  lifecycle {
    precondition {
      condition = alltrue([
        for disk in data.aws_ami.of[local.images[each.value.type]].block_device_mappings :
        var.worker_disk_gb >= tonumber(try(disk.ebs.volume_size, 0))
      ])
      error_message = "worker_disk_gb is ${var.worker_disk_gb}, and the machine image of ${each.value.type} needs a larger disk. Set worker_disk_gb to 100 or more."
    }
  }
  depends_on = [
    aws_route.public, aws_route_table_association.public, aws_route.private, aws_route_table_association.private,
    aws_vpc_security_group_egress_rule.packages,
  ]
}
