# A network of its own. With multinode_mpi only the launcher has a public address; it also leads the workers' downloads
# out, so that nothing but machines costs money, and all of them stop by themselves.
locals {
  network         = "10.77.0.0/16"
  public_network  = cidrsubnet(local.network, 8, 0)
  private_network = cidrsubnet(local.network, 8, 1)
  tags            = merge({ Name = var.name, Project = var.name, ManagedBy = "terraform" }, var.tags)
}

resource "aws_vpc" "trial" {
  cidr_block           = local.network
  enable_dns_support   = true
  enable_dns_hostnames = true
}

# The group that AWS makes by itself admits what is in it. Nothing is in it; now it admits nothing either.
resource "aws_default_security_group" "trial" {
  vpc_id = aws_vpc.trial.id
}

resource "aws_internet_gateway" "trial" {
  vpc_id = aws_vpc.trial.id
}

resource "aws_subnet" "public" {
  vpc_id            = aws_vpc.trial.id
  cidr_block        = local.public_network
  availability_zone = local.zone
  tags              = { Name = "${var.name}-public" }
  lifecycle {
    precondition {
      condition     = contains(local.usable_zones, local.zone)
      error_message = "%{if var.availability_zone == ""}No zone of ${var.region} offers all of ${join(", ", local.all_types)}; choose another region or other types.%{else}${var.availability_zone} does not offer all of ${join(", ", local.all_types)}; these zones do: ${join(", ", local.usable_zones)}.%{endif}"
    }
  }
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.trial.id
  tags   = { Name = "${var.name}-public" }
}

resource "aws_route" "public" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.trial.id
}

resource "aws_route_table_association" "public" {
  subnet_id      = aws_subnet.public.id
  route_table_id = aws_route_table.public.id
}

resource "aws_subnet" "private" {
  count             = local.launcher_count
  vpc_id            = aws_vpc.trial.id
  cidr_block        = local.private_network
  availability_zone = local.zone
  tags              = { Name = "${var.name}-private" }
}

resource "aws_route_table" "private" {
  count  = local.launcher_count
  vpc_id = aws_vpc.trial.id
  tags   = { Name = "${var.name}-private" }
}

resource "aws_route" "private" {
  count                  = local.launcher_count
  route_table_id         = aws_route_table.private[0].id
  destination_cidr_block = "0.0.0.0/0"
  network_interface_id   = aws_instance.launcher[0].primary_network_interface_id
}

resource "aws_route_table_association" "private" {
  count          = local.launcher_count
  subnet_id      = aws_subnet.private[0].id
  route_table_id = aws_route_table.private[0].id
}

# What the machines say to one another: all ports, and nobody else. EFA needs the rule for both directions.
resource "aws_security_group" "cluster" {
  name        = "${var.name}-cluster"
  description = "Everything between the machines of this trial, and nothing from elsewhere"
  vpc_id      = aws_vpc.trial.id
  tags        = { Name = "${var.name}-cluster" }
}

resource "aws_vpc_security_group_ingress_rule" "between" {
  security_group_id            = aws_security_group.cluster.id
  description                  = "Between the machines of this trial"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.cluster.id
}

resource "aws_vpc_security_group_egress_rule" "between" {
  security_group_id            = aws_security_group.cluster.id
  description                  = "Between the machines of this trial"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.cluster.id
}

resource "aws_vpc_security_group_egress_rule" "packages" {
  for_each          = { http = 80, https = 443 }
  security_group_id = aws_security_group.cluster.id
  description       = "Packages of Ubuntu and of Python"
  ip_protocol       = "tcp"
  from_port         = each.value
  to_port           = each.value
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_security_group" "ssh" {
  name        = "${var.name}-ssh"
  description = "ssh from allowed_cidr to the one machine with a public address"
  vpc_id      = aws_vpc.trial.id
  tags        = { Name = "${var.name}-ssh" }
}

resource "aws_vpc_security_group_ingress_rule" "ssh" {
  security_group_id = aws_security_group.ssh.id
  description       = "ssh from allowed_cidr"
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
  cidr_ipv4         = var.allowed_cidr
}
