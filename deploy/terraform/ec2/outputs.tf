locals {
  head_instance   = var.multinode_mpi ? one(aws_instance.launcher) : aws_instance.worker["worker-0"]
  instances       = merge(var.multinode_mpi ? { launcher = one(aws_instance.launcher) } : {}, aws_instance.worker)
  worker_names    = [for number in range(length(local.workers)) : "worker-${number}"]
  trial           = var.multinode_mpi ? "seatrial run --on mpirun --hostfile /etc/seatrial/hostfile --device ${local.device} --out /shared/reports" : "seatrial run --device ${local.device} --out reports"
  install_command = "COPYFILE_DISABLE=1 tar -C ../../.. --exclude __pycache__ -cf - LICENSE README.md constraints.txt pyproject.toml requirements src | ssh -F seatrial-ssh/config ${local.head} seatrial-install"
  next_command    = "ssh -F seatrial-ssh/config -t ${local.head} ${local.trial}"
  folder_of_runs  = var.multinode_mpi ? "/shared/reports" : "reports"
}

output "hostfile" {
  description = "The workers and their slots, as mpirun and seatrial read them. It lies on the launcher as /etc/seatrial/hostfile."
  value       = local.hostfile
}

output "private_ips" {
  description = "Name -> address inside the network of the cluster."
  value       = { for name, instance in local.instances : name => local.addresses[name] }
}

output "master_address" {
  description = "Where rank 0 will be: the first worker, never the launcher."
  value       = aws_instance.worker["worker-0"].private_ip
}

output "head_address" {
  description = "The public address of the launcher, or of the single machine."
  value       = local.head_instance.public_ip
}

output "connect" {
  description = "connect.sh: terraform output -raw connect > connect.sh && sh connect.sh. Nothing in it is secret; it is only too long to be listed."
  sensitive   = true
  value = templatefile("${path.module}/connect.sh.tftpl", {
    head            = local.head
    head_address    = local.head_instance.public_ip
    region          = var.region
    user            = local.user
    workers         = var.multinode_mpi ? local.worker_names : []
    machines        = [for name in concat(var.multinode_mpi ? ["launcher"] : [], local.worker_names) : "${name} ${local.instances[name].id} ${local.addresses[name]}"]
    install_command = local.install_command
    next_command    = local.next_command
  })
}

output "install_command" {
  description = "Installs the seatrial of this clone on the launcher, or on the single machine. The workers need none."
  value       = local.install_command
}

output "next_command" {
  description = "The trial. It answers PASS or FAIL."
  value       = local.next_command
}

output "fetch_command" {
  description = "Brings the reports here."
  value       = "scp -F seatrial-ssh/config -r ${local.head}:${local.folder_of_runs} ."
}

output "machines" {
  description = "Instance type -> how many of them cost money until they are destroyed, or stop by themselves."
  value       = { for type in distinct([for instance in local.instances : instance.instance_type]) : type => length([for instance in local.instances : instance if instance.instance_type == type]) }
}

output "prices" {
  description = "AWS's own pages with the prices of these types, of disks, and of public addresses."
  value = {
    machines  = var.spot ? "https://aws.amazon.com/ec2/spot/pricing/" : "https://aws.amazon.com/ec2/pricing/on-demand/"
    disks     = "https://aws.amazon.com/ebs/pricing/"
    addresses = "https://aws.amazon.com/vpc/pricing/"
  }
}

output "stops_by_itself" {
  description = "When the machines shut themselves down at the latest, which terminates them."
  value       = "each machine ${var.stop_after_hours} hours after its first start"
}
