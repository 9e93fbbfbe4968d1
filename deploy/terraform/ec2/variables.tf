variable "allowed_cidr" {
  type        = string
  default     = ""
  description = "The addresses that may reach port 22 of the launcher, or of the single machine, such as 203.0.113.7/32. There is no default: it must be given."
  validation {
    condition     = var.allowed_cidr != ""
    error_message = "allowed_cidr is not set: it says from which addresses ssh may come in. Set it to your own address with /32 behind it, such as 203.0.113.7/32."
  }
  validation {
    condition     = var.allowed_cidr == "" || can(cidrnetmask(var.allowed_cidr))
    error_message = "allowed_cidr is \"${var.allowed_cidr}\", which is not an IPv4 network. Write an address and a prefix length, such as 203.0.113.7/32."
  }
  validation {
    condition     = var.allow_ssh_from_anywhere || !can(cidrnetmask(var.allowed_cidr)) || try(tonumber(split("/", var.allowed_cidr)[1]) >= 8, false)
    error_message = "allowed_cidr is \"${var.allowed_cidr}\", which opens ssh to the whole internet or a large part of it. Name a smaller network, or consent with allow_ssh_from_anywhere = true."
  }
}

variable "allow_ssh_from_anywhere" {
  type        = bool
  default     = false
  nullable    = false
  description = "Consent to an allowed_cidr wider than /8, such as 0.0.0.0/0."
}

variable "ssh_public_key_file" {
  type        = string
  default     = "~/.ssh/id_ed25519.pub"
  nullable    = false
  description = "The file with your own public ssh key. Its private half stays where it is."
  validation {
    condition     = fileexists(pathexpand(var.ssh_public_key_file))
    error_message = "ssh_public_key_file is \"${var.ssh_public_key_file}\", and there is no such file. Make a key with ssh-keygen -t ed25519, or name the public key that you have."
  }
  validation {
    condition     = !fileexists(pathexpand(var.ssh_public_key_file)) || can(regex("^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp[0-9]+|sk-[a-z0-9@.-]+) [A-Za-z0-9+/]+=*( [^\n\"\\\\]*)?\n?$", try(file(pathexpand(var.ssh_public_key_file)), "")))
    error_message = "ssh_public_key_file is \"${var.ssh_public_key_file}\", which does not hold one public ssh key in one line. Name the file that ends in .pub, never the private key."
  }
}

variable "multinode_mpi" {
  type        = bool
  default     = false
  nullable    = false
  description = "false: one machine of worker_kind. true: a launcher (t3.micro) and worker_count workers that it starts by mpirun."
}

variable "worker_kind" {
  type        = string
  default     = "cpu"
  nullable    = false
  description = "cpu (t3.xlarge), nvidia (g4dn.xlarge), amd (g4ad.xlarge), or an instance type such as g4dn.12xlarge."
  validation {
    condition     = can(regex("^(cpu|nvidia|amd|[a-z0-9-]+\\.[a-z0-9-]+)$", var.worker_kind))
    error_message = "worker_kind is \"${var.worker_kind}\", which is neither cpu, nvidia nor amd, nor an instance type such as g4dn.12xlarge. Write one of these."
  }
}

variable "worker_count" {
  type        = number
  default     = 2
  nullable    = false
  description = "How many workers there are with multinode_mpi = true."
  validation {
    condition     = var.worker_count >= 1 && var.worker_count <= 100 && floor(var.worker_count) == var.worker_count
    error_message = "worker_count is ${var.worker_count}, and must be a whole number from 1 to 100. For no workers at all, terraform destroy."
  }
}

variable "worker_kinds" {
  type        = list(string)
  default     = []
  nullable    = false
  description = "Workers of different kinds: the kind of each one, such as [\"cpu\", \"nvidia\", \"amd\"]. Where it is set, worker_kind and worker_count do not count."
  validation {
    condition     = length(var.worker_kinds) <= 100 && alltrue([for kind in var.worker_kinds : can(regex("^(cpu|nvidia|amd|[a-z0-9-]+\\.[a-z0-9-]+)$", kind))])
    error_message = "worker_kinds is [${join(", ", var.worker_kinds)}]. It takes at most 100 entries, and each must be cpu, nvidia, amd or an instance type such as g4dn.12xlarge."
  }
  validation {
    condition     = length(var.worker_kinds) == 0 || var.multinode_mpi
    error_message = "worker_kinds is [${join(", ", var.worker_kinds)}], which needs multinode_mpi = true. For a single machine, set worker_kind."
  }
}

variable "region" {
  type        = string
  default     = "eu-west-1"
  nullable    = false
  description = "The AWS region."
  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region is \"${var.region}\", which is no name of an AWS region. Write one such as eu-west-1; a zone such as eu-west-1a belongs in availability_zone."
  }
}

variable "availability_zone" {
  type        = string
  default     = ""
  nullable    = false
  description = "The zone that all machines are in, such as eu-west-1b. Empty: the first one that offers all their types. Set it when that zone has no capacity left."
  validation {
    condition     = var.availability_zone == "" || startswith(var.availability_zone, var.region)
    error_message = "availability_zone is \"${var.availability_zone}\", which is not in the region ${var.region}. Write one such as ${var.region}a, or leave it empty."
  }
}

variable "spot" {
  type        = bool
  default     = false
  nullable    = false
  description = "Workers as spot instances: cheaper, and AWS may take them away at any time. The launcher never is one."
}

variable "launcher_disk_gb" {
  type        = number
  default     = 16
  nullable    = false
  description = "The root disk of the launcher in GB."
  validation {
    condition     = var.launcher_disk_gb >= 8 && var.launcher_disk_gb <= 16384 && floor(var.launcher_disk_gb) == var.launcher_disk_gb
    error_message = "launcher_disk_gb is ${var.launcher_disk_gb}, and must be a whole number from 8 to 16384."
  }
}

variable "worker_disk_gb" {
  type        = number
  default     = 100
  nullable    = false
  description = "The root disk of each worker, or of the single machine, in GB."
  validation {
    condition     = var.worker_disk_gb >= 16 && var.worker_disk_gb <= 16384 && floor(var.worker_disk_gb) == var.worker_disk_gb
    error_message = "worker_disk_gb is ${var.worker_disk_gb}, and must be a whole number from 16 to 16384; torch alone takes up to 16 GB."
  }
}

variable "stop_after_hours" {
  type        = number
  default     = 4
  nullable    = false
  description = "After so many hours each machine shuts itself down, and is thereby terminated with its disk."
  validation {
    condition     = var.stop_after_hours >= 0.5 && var.stop_after_hours <= 168
    error_message = "stop_after_hours is ${var.stop_after_hours}, and must be from 0.5 to 168 (a week). A cluster that never stops by itself is not offered."
  }
}

variable "name" {
  type        = string
  default     = "seatrial"
  nullable    = false
  description = "The name of all that is made, so that several clusters can be told apart."
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}$", var.name))
    error_message = "name is \"${var.name}\". It must begin with a lowercase letter, and have lowercase letters, digits and hyphens only, at most 31 of them."
  }
}

variable "tags" {
  type        = map(string)
  default     = {}
  nullable    = false
  description = "More tags for all that is made."
}

variable "torch_version" {
  type        = string
  default     = "2.13.0"
  nullable    = false
  description = "The version of torch on the workers."
  validation {
    condition     = can(regex("^[0-9]+\\.[0-9]+\\.[0-9]+$", var.torch_version))
    error_message = "torch_version is \"${var.torch_version}\", and must be a full version such as 2.13.0."
  }
}

variable "torch_index_urls" {
  type        = object({ cpu = string, nvidia = string, amd = string })
  nullable    = false
  description = "Where pip finds torch for each kind of worker."
  default = {
    cpu    = "https://download.pytorch.org/whl/cpu"
    nvidia = "https://download.pytorch.org/whl/cu126"
    amd    = "https://download.pytorch.org/whl/rocm7.2"
  }
  validation {
    condition     = alltrue([for url in values(var.torch_index_urls) : can(regex("^(https|file)://[A-Za-z0-9./_~%:@-]+$", url))])
    error_message = "torch_index_urls has \"${join("\", \"", values(var.torch_index_urls))}\". Each must be an https:// or file:// address of a package index."
  }
  validation {
    condition     = alltrue([for url in values(var.torch_index_urls) : !strcontains(url, "@")])
    error_message = "torch_index_urls has an address with a user name or a password, which all who may read the state or the user data of a machine would see. Name an index that asks for none."
  }
}

variable "images" {
  type = object({
    ubuntu = object({ name = string, owner = string })
    nvidia = object({ name = string, owner = string })
  })
  nullable    = false
  description = "The machine images by exact name and owner: nvidia for workers with NVIDIA GPUs, ubuntu for all others. Both must be Ubuntu 24.04 for x86_64."
  default = {
    ubuntu = {
      name  = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20260904"
      owner = "099720109477"
    }
    nvidia = {
      name  = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261006"
      owner = "amazon"
    }
  }
  validation {
    condition     = alltrue([for image in values(var.images) : image.name != "" && !can(regex("[*?]", image.name))])
    error_message = "images has a name with * or ?, or an empty one: \"${var.images.ubuntu.name}\", \"${var.images.nvidia.name}\". Write the exact names, so that the same machines come each time."
  }
}
